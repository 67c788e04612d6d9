"""Two faults in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from robustops.bench.run_faults.exposure import log_name, read_exposure
from robustops.learning.combined_hooks import combined
from robustops.learning.hooks import TrainingHooks
from tests.bench.run_faults.support import ONSET, STEPS, Fit, fit, injector, uses_tools
from tests.learning.support import same_weights

#: First and second, in different parts of a step each.
PAIRS = [
    ("episode_spike", "noisy_gradient"),
    ("zeroed_episodes", "heavy_noise"),
    ("stop_at_once", "stale_sampler"),
    ("tool_outage", "lagged_advantages"),
    ("early_done", "digit_noise"),
]


def both(folder: Path, pair: tuple[str, str], **second) -> TrainingHooks:
    """The injectors of a pair; second: values of the second one's spec."""
    return combined(injector(folder, pair[0]), injector(folder, pair[1], number=2, **second))


def expert(pair: tuple[str, str]) -> bool:
    return any(uses_tools(name) for name in pair)


@pytest.fixture(scope="module")
def controls(tmp_path_factory) -> dict[bool, Fit]:
    return {expert: fit(tmp_path_factory.mktemp("control"), expert=expert) for expert in (False, True)}


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_each_strikes_from_its_own_onset_on_and_before_both_nothing_is_changed(tmp_path, controls, pair):
    later = ONSET + 1
    faulty = fit(tmp_path, both(tmp_path, pair, onset=later), expert=expert(pair))
    alone = fit(tmp_path / "alone", injector(tmp_path / "alone", pair[0]), expert=expert(pair))
    assert faulty.same_until(controls[expert(pair)], ONSET)
    assert faulty.same_until(alone, later) and faulty.telemetry != alone.telemetry
    logs = [read_exposure(tmp_path / log_name(number)) for number in (1, 2)]
    struck = [[line["touched"] > 0 for line in log] for log in logs]
    assert struck == [[step >= onset for step in range(1, STEPS + 1)] for onset in (ONSET, later)]
    assert logs[0][: later - 1] == alone.exposure[: later - 1]


@pytest.mark.parametrize("pair", PAIRS[:2], ids="+".join)
def test_a_fault_strikes_the_same_units_with_and_without_another(tmp_path, pair):
    """Each has its own random numbers, by its names and seed."""
    with_first = fit(tmp_path, both(tmp_path, pair, probability=0.5), expert=expert(pair))
    alone = fit(tmp_path / "b", injector(tmp_path / "b", pair[1], probability=0.5), expert=expert(pair))
    both_logs = read_exposure(tmp_path / log_name(2))
    units = ("step", "level", "eligible", "touched")
    assert [[line[name] for name in units] for line in both_logs[:ONSET]] == [
        [line[name] for name in units] for line in alone.exposure[:ONSET]
    ]
    assert with_first.telemetry != alone.telemetry


def test_a_pair_that_is_resumed_goes_on_as_if_it_had_not_been_stopped(tmp_path):
    pair, saved = ("lagged_advantages", "stale_sampler"), tmp_path / "saved"
    whole = fit(tmp_path, both(tmp_path, pair), expert=False, save=saved)
    logs = [read_exposure(tmp_path / log_name(number)) for number in (1, 2)]
    (middle,) = [path for path in saved.iterdir() if "step=2" in path.name]
    rest = fit(tmp_path, both(tmp_path, pair), expert=False, resume=middle)
    assert rest.telemetry == whole.telemetry[2:] and same_weights(rest.weights, whole.weights)
    assert [read_exposure(tmp_path / log_name(number)) for number in (1, 2)] == logs
