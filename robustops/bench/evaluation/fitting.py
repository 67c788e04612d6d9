"""What a data set teaches, as a fitted monitor: for cases of remediation, and for the profile of the package.

Healthy runs of set profile are learned from, those of set calibration calibrate, and faulty runs of one fault
teach the diagnoser, whichever their mechanism. It also learns from runs as they were after some steps, for
growing runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robustops.bench.evaluation.protocol import Partition, partitions
from robustops.bench.evaluation.runs import HORIZONS, Runs
from robustops.errors import DatasetError
from robustops.monitor.diagnose.diagnosis import OwnDiagnosis
from robustops.monitor.fitted import FittedMonitor
from robustops.monitor.profiles import alike

#: Steps after which the diagnoser sees its runs as well: a growing run is diagnosed soon after its onset.
PREFIXES = (8, 12, 20)
TIER = "P+I"
#: The methods of the registry that it is made of.
METHODS = ("own", "own_diagnosis")


def fit_on(
    runs: Runs,
    partition: Partition,
    faulty: Sequence[str],
    seed: int = 0,
    *,
    portable: bool = False,
    about: Mapping[str, Any] | None = None,
) -> FittedMonitor:
    """faulty: run_ids of faulty runs to learn from; portable: the diagnoser also learns from what other
    trainers would log of them.

    Raises:
        DatasetError: there is no faulty run to learn from.
        ConfigError: too few runs to learn from.
    """
    if not faulty:
        raise DatasetError("the data set has no faulty run; make them: robustops bench stage=campaign")
    length = max(HORIZONS)

    def panels(names: Sequence[str]) -> list[Any]:
        return [runs.panel(name, length, TIER) for name in names]

    healthy = panels(partition.profile)
    diagnoser = OwnDiagnosis(prefixes=PREFIXES, portable=portable, seed=seed)
    diagnoser.fit(panels(faulty), [runs.labels[name].fault for name in faulty], healthy)
    return FittedMonitor.fit(healthy, panels(partition.calibration), diagnoser, about)


def fit_monitor(runs: Runs, settings: Mapping[str, Any], seed: int = 0) -> FittedMonitor:
    """On the first partition and all faulty runs whose seed group is not final. settings: of the runs by
    dotted key, see `monitor.profiles.ALIKE`. Errors as of `fit_on`.
    """
    rows = runs.dataset.splits.to_pylist()
    (partition,) = partitions(rows, runs.labels, 1)
    faulty = sorted(
        {row["run_id"] for row in rows if not row["final"] and runs.labels[row["run_id"]].kind == "fault"}
    )
    counts = {
        "profile": len(partition.profile),
        "calibration": len(partition.calibration),
        "faulty": len(faulty),
    }
    about = {"settings": alike(settings), "runs": counts}
    return fit_on(runs, partition, faulty, seed, portable=True, about=about)
