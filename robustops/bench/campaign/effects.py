"""Effect sizes: how far a fault moves its mechanism's own quantity, in units of what healthy runs differ by.

    d = direction * mean over seeds (faulty - control) / unit

faulty, control: means of one telemetry column over the steps from the onset to the last, of two runs with
the same seed; unit: sample deviation of the same means over healthy runs of different seeds, or the column's
floor where that is larger. Difficulty is defined by d: easy >= 4, hard 0.8 to 1.5.

Rows are the metrics of a run's steps in order: row 0 is step 1. NaN was not observed and takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from robustops.errors import ConfigError
from robustops.monitor.moments import deviation, mean

Rows = Sequence[Mapping[str, float]]

#: Mean change, in units, of an easy fault, and of a hard one.
EASY, HARD = 4.0, (0.8, 1.5)

#: Least unit of columns that hardly vary in healthy runs, where any change would be an infinite effect. A
#: unit below it would call faults hard that touch next to nothing.
FLOORS: dict[str, float] = {
    # Shares that are 0, or some thousandths, in healthy runs: of 64 episodes a step, three.
    **dict.fromkeys(
        (
            "empty_frac",
            "trunc_frac",
            "early_term_frac",
            "no_answer_frac",
            "tool_error_frac",
            "invalid_call_frac",
            "obs_roundtrip_mismatch_frac",
            "rep4",
        ),
        0.05,
    ),
    # Correlations that are 1 but for rounding and the normalisation of reward parts.
    **dict.fromkeys(("adv_reward_corr", "reward_success_corr"), 0.05),
    # Group-relative advantages have mean 0 by construction and a deviation of about 1.
    **dict.fromkeys(("adv_mean", "adv_group_mean_absmax"), 0.1),
    # A sampler that is given new weights before every step lags by nothing: one update.
    **dict.fromkeys(("policy_lag_mean", "policy_lag_max"), 1.0),
}


@dataclass(frozen=True)
class Effect:
    """d: see the module; error: its standard error over seeds (NaN for one pair); change: mean paired change
    in the column's own unit; unit: what it is divided by; pairs: number of seeds.
    """

    d: float
    error: float
    change: float
    unit: float
    pairs: int


def window_mean(rows: Rows, column: str, onset: int, end: int | None = None) -> float:
    """Mean of a column over steps onset .. end - 1 (None: to the last), NaN left out; NaN where none is left.

    Raises:
        ConfigError: the rows have no such column, or no step in the window.
    """
    window = rows[onset - 1 : None if end is None else end - 1]
    if onset < 1 or not window:
        raise ConfigError(f"no step from {onset} on in {len(rows)} rows; give an onset from 1 to {len(rows)}")
    if any(column not in row for row in window):
        raise ConfigError(f"a row has no column '{column}'; it is no GRPO line of telemetry schema 1")
    return mean([value for row in window if not math.isnan(value := float(row[column]))])


def unit_of(column: str, healthy: Sequence[Rows], onset: int, end: int | None = None) -> float:
    """Deviation over healthy runs of a column's mean in the window, at least the column's floor.

    Raises:
        ConfigError: fewer than two healthy runs observed the column, or they agree and it has no floor.
    """
    means = [value for rows in healthy if not math.isnan(value := window_mean(rows, column, onset, end))]
    unit = max(deviation(means) if len(means) > 1 else math.nan, FLOORS.get(column, 0.0))
    if math.isnan(unit):
        raise ConfigError(f"{len(means)} healthy runs observed '{column}'; give at least two")
    if unit == 0:
        raise ConfigError(f"'{column}' is the same in all healthy runs; give it a floor in effects.FLOORS")
    return unit


def change_of(column: str, faulty: Rows, control: Rows, onset: int, end: int | None = None) -> float:
    """Mean of the faulty run minus that of its control, over the same steps. NaN if either saw nothing."""
    return window_mean(faulty, column, onset, end) - window_mean(control, column, onset, end)


def paired_effect(column: str, direction: int, changes: Sequence[float], unit: float) -> Effect:
    """The effect of a mechanism. changes: of `change_of`, one for each seed, NaN left out; direction: 1 or -1
    as the catalogue declares it, so that d > 0 is what it promises.

    Raises:
        ConfigError: the direction is neither, or no seed observed the column.
    """
    if direction not in (1, -1):
        raise ConfigError(f"the direction of '{column}' is {direction}; it is 1 (up) or -1 (down)")
    seen = [change for change in changes if not math.isnan(change)]
    if not seen:
        raise ConfigError(f"no pair of runs observed '{column}'; choose a quantity that the fault leaves")
    middle = mean(seen)
    error = deviation(seen) / math.sqrt(len(seen)) / unit if len(seen) > 1 else math.nan
    return Effect(direction * middle / unit, error, middle, unit, len(seen))
