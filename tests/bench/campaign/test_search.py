"""The search on made-up runs whose effect is known."""

from __future__ import annotations

import math

import pytest

from robustops.bench.campaign.designs import Design, design_of, designs
from robustops.bench.campaign.effects import HARD
from robustops.bench.campaign.plan import STEPS
from robustops.bench.campaign.search import LATE, RAMP, SHORT, Search
from robustops.bench.campaign.trials import Trial, Trials, read_trials
from robustops.bench.run_faults.catalog import all_mechanisms
from robustops.bench.run_faults.spec import RunFaultSpec
from robustops.errors import ConfigError
from robustops.monitor.schema import names
from robustops.seeding import generator

COLUMN = "reward_mean"
HEALTHY = 12


def healthy(place: int, steps: int = STEPS) -> list[dict[str, float]]:
    """Runs differ by a level of their own, of deviation about 1, and a little from step to step."""
    rng = generator(place, "healthy")
    base = 1.65 * math.sin(place)  # spread evenly enough
    return [{COLUMN: base + rng.gauss(0, 0.05)} for _ in range(steps)]


class Bench:
    """Faulty runs of which a known response is true; counts what was asked for."""

    def __init__(self, response) -> None:
        self.response = response
        self.asked: list[Trial] = []

    def __call__(self, trial: Trial) -> list[dict[str, float]]:
        if trial not in self.asked:
            self.asked.append(trial)
        spec = RunFaultSpec("x", "y", trial.strength, 1.0, "step", trial.onset, trial.ramp)
        rng = generator(trial.place, "faulty", repr(trial))
        return [
            {COLUMN: row[COLUMN] + self.response(spec.level(n), trial.probability) + rng.gauss(0, 0.3)}
            for n, row in enumerate(healthy(trial.place, trial.steps), start=1)
        ]

    def true_d(self, values, onset: int, unit: float) -> float:
        """Of the whole window."""
        spec = RunFaultSpec("x", "y", values["strength"], 1.0, "step", onset, values["ramp"])
        effects = [self.response(spec.level(n), values["probability"]) for n in range(onset, STEPS + 1)]
        return math.fsum(effects) / len(effects) / unit


RESPONSES = {
    "proportional": lambda level, share: 30 * level * share,
    "saturating": lambda level, share: share * 20 * level / (0.2 + level),
    "steep": lambda level, share: share * 15 * level**2,
}


@pytest.mark.parametrize("shape", sorted(RESPONSES))
@pytest.mark.parametrize("knob", ["strength", "probability"])
def test_all_modes_have_the_effect_that_their_difficulty_wants(shape, knob):
    bench = Bench(RESPONSES[shape])
    found = Search(Design("x", "y", COLUMN, 1, knob), [healthy(n) for n in range(HEALTHY)], bench).modes()
    assert list(found) == ["easy", "weak", "intermittent", "ramp", "delayed"]
    assert found["easy"]["d"] >= 4 and all(values["reached"] for values in found.values())
    unit = found["easy"]["d"] and _unit()
    for mode, onset in (("weak", 3), ("intermittent", 3), ("ramp", 3), ("delayed", LATE)):
        assert HARD[0] * 0.75 <= bench.true_d(found[mode], onset, unit) <= HARD[1] * 1.3, mode
    assert found["ramp"]["ramp"] == RAMP and found["weak"]["ramp"] == 0
    assert 0.25 <= found["intermittent"]["probability"] <= 0.4
    assert found["intermittent"]["strength"] <= 0.7 * found["easy"]["strength"] + 1e-3
    assert sum(trial.steps for trial in bench.asked) < 600, "of 40 minutes for all mechanisms"


def _unit() -> float:
    from robustops.bench.campaign.effects import unit_of

    return unit_of(COLUMN, [healthy(n) for n in range(HEALTHY)], 3)


def test_a_mechanism_that_never_gets_large_is_told_so():
    weak = Bench(lambda level, share: 2.0 * level * share)
    found = Search(Design("x", "y", COLUMN, 1), [healthy(n) for n in range(HEALTHY)], weak).modes()
    assert found["easy"]["strength"] == 1.0 and not found["easy"]["reached"]
    assert found["weak"]["reached"]
    dead = Bench(lambda level, share: -5.0 * level)
    found = Search(Design("x", "y", COLUMN, 1), [healthy(n) for n in range(HEALTHY)], dead).modes()
    assert not any(values["reached"] for values in found.values()) and found["easy"]["d"] < 0


def test_the_runs_of_a_short_mechanism_are_short_and_a_late_fault_has_as_many_steps():
    bench = Bench(RESPONSES["proportional"])
    Search(Design("x", "y", COLUMN, 1), [healthy(n) for n in range(HEALTHY)], bench).modes()
    assert {t.steps for t in bench.asked if not t.ramp and t.onset < LATE} == {SHORT}
    assert {t.steps for t in bench.asked if t.ramp} == {STEPS}
    assert {t.steps - t.onset for t in bench.asked if not t.ramp} == {SHORT - 3}


def test_designs_name_every_mechanism_and_units_that_it_knows():
    known = {info.name: info for _, info in all_mechanisms()}
    assert [design.mechanism for design in designs()] == [
        name for name, info in known.items() if not info.needs_critic
    ]
    for design in designs():
        assert design.unit is None or design.unit in known[design.mechanism].units
        assert design.quantity == known[design.mechanism].quantity
    with pytest.raises(ConfigError, match="unknown mechanism 'x'; choose one of"):
        design_of("x")


def test_no_trial_is_made_twice_and_a_torn_line_is_made_again(tmp_path):
    made: list[Trial] = []

    def make(trial: Trial):
        made.append(trial)
        return [dict.fromkeys(names(), math.nan) | {COLUMN: 1 / 3} for _ in range(trial.steps)]

    one, two = Trial(0, 2), Trial(1, 3, "reward_spike", "episode_spike", 0.5)
    first = Trials(tmp_path / "a.jsonl", make)
    rows = first.rows(one)
    assert first.rows(one) == rows or math.isnan(rows[0]["grad_norm"])
    assert rows[1][COLUMN] == 0.3333333 and math.isnan(rows[0]["grad_norm"]) and len(rows) == 2
    first.rows(two)
    text = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(text[:-20])
    again = Trials(tmp_path / "a.jsonl", make)
    again.rows(one)
    again.rows(two)
    assert made == [one, two, two] and again.made == 1
    assert (tmp_path / "a.jsonl").read_text() == text and set(read_trials(tmp_path / "a.jsonl")) == {one, two}


def test_a_trial_is_a_run_of_its_own_seed_and_variety():
    healthy_run, faulty = (
        Trial(2, 12).planned(),
        Trial(2, 12, "reward_spike", "episode_spike", 0.5, onset=3).planned(),
    )
    assert (healthy_run.kind, faulty.kind, healthy_run.seed, healthy_run.variant) == (
        *("healthy", "fault"),
        faulty.seed,
        faulty.variant,
    )
    assert healthy_run.run_id != faulty.run_id and healthy_run.seed_group == faulty.seed_group < 0
    assert "grpo.steps=12" in faulty.overrides and "run_fault.strength=0.5" in faulty.overrides
    assert not any("run_fault" in text for text in healthy_run.overrides)
    assert len({Trial(place, 40).planned().seed for place in range(12)}) == 12
