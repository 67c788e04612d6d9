"""The pilot without its processes: its files, what goes into strengths.yaml, and how it goes on."""

from __future__ import annotations

import math

import pytest

from robustops.bench.campaign import pilot
from robustops.bench.campaign.designs import Design, design_of
from robustops.bench.campaign.layout import MODES
from robustops.bench.campaign.plan import STEPS
from robustops.bench.campaign.strengths import frozen, injection, written
from robustops.bench.campaign.trials import Trial
from robustops.errors import ConfigError
from robustops.monitor.schema import names
from robustops.seeding import generator


def no_compose(overrides):
    raise AssertionError("nothing is trained here")


@pytest.fixture
def made(monkeypatch) -> list[Trial]:
    """Trials that were made, by a stand-in for training: reward_mean rises by 2 times strength x share."""
    done: list[Trial] = []

    def trained(trial: Trial, compose):
        done.append(trial)
        rng = generator(trial.place, "pilot")
        base = 0.6 + 0.08 * math.sin(trial.place)
        force = 2 * trial.strength * trial.probability if trial.fault != "none" else 0.0
        empty = dict.fromkeys(names(), math.nan)
        return [
            empty | {"reward_mean": base + rng.gauss(0, 0.004) + (force if step >= trial.onset else 0.0)}
            for step in range(1, trial.steps + 1)
        ]

    monkeypatch.setattr(pilot, "trained", trained)
    return done


def searched(folder, design: Design):
    for place in range(6):
        assert pilot._healthy(folder, no_compose, place) == place
    return pilot._searched(folder, no_compose, design, 6)


def test_what_it_writes_is_what_campaigns_read(tmp_path, made):
    design = design_of("episode_spike")
    found = searched(tmp_path, design)
    body = pilot._body({design.mechanism: found}, 6)
    path = tmp_path / pilot.NAME
    path.write_text(written(body), encoding="utf-8")
    assert frozen(path) == body and body["measured"] and len(set(body["seeds"])) == 6
    assert (found["quantity"], found["knob"], found["floor"]) == ("reward_mean", "strength", 0.0)
    for mode in MODES:
        values = injection("reward_spike", "episode_spike", mode, path)
        assert 0 < values["strength"] <= 1 and found["modes"][mode]["reached"], mode
    assert injection("reward_spike", "episode_spike", "easy", path)["probability"] == 0.5
    assert found["modes"]["easy"]["d"] > 4 > found["modes"]["weak"]["d"]
    assert "episode_spike [reward_mean]: easy" in pilot._line(design, found)


def test_a_pilot_that_was_interrupted_goes_on(tmp_path, made):
    design = design_of("zeroed_episodes")
    with_fall = Design(design.fault, "zeroed_episodes", "reward_mean", 1, design.knob)
    first = searched(tmp_path, with_fall)
    count = len(made)
    assert searched(tmp_path, with_fall) == first and len(made) == count, "everything was read"
    lines = (tmp_path / "zeroed_episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "zeroed_episodes.jsonl").write_text("".join(lines[:-2]))
    assert searched(tmp_path, with_fall) == first and len(made) == count + 2
    assert sum(trial.steps for trial in made if trial.fault == "none") == 6 * STEPS


def test_a_mechanism_that_cannot_be_measured_is_named(tmp_path, made):
    with pytest.raises(ConfigError, match="pilot of episode_spike: 0 healthy runs observed 'kl_old'"):
        searched(tmp_path, Design("reward_spike", "episode_spike", "kl_old", 1))
    with pytest.raises(ConfigError, match="unknown mechanism 'spike'"):
        pilot.run_pilot(tmp_path, no_compose, 1, ["spike"])
