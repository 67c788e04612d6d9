"""What a data set teaches, as a fitted monitor: the profile that comes with the package is made by this.

Of the first partition, without the final seed groups: healthy runs of set profile are learned from, those of
set calibration calibrate, and all faulty runs of one fault teach the diagnoser, whichever their mechanism. It
also learns from the runs as they were after some steps, and as other trainers would log them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robustops.bench.evaluation.protocol import partitions
from robustops.bench.evaluation.runs import Runs
from robustops.errors import DatasetError
from robustops.monitor.diagnose.diagnosis import OwnDiagnosis
from robustops.monitor.fitted import FittedMonitor
from robustops.monitor.profiles import alike

#: Steps after which the diagnoser sees its runs as well: a growing run is diagnosed soon after its onset.
PREFIXES = (10, 20)
TIER, HORIZON = "P+I", 40


def fit_monitor(runs: Runs, settings: Mapping[str, Any], seed: int = 0) -> FittedMonitor:
    """settings: of the runs by dotted key, see `monitor.profiles.ALIKE`.

    Raises:
        DatasetError: the data set has no runs to learn from.
    """
    splits = runs.dataset.splits.to_pylist()
    deal = partitions(splits, runs.labels, 1)[0]
    healthy = [runs.panel(name, HORIZON, TIER) for name in deal.profile]
    calibration = [runs.panel(name, HORIZON, TIER) for name in deal.calibration]
    open_ones = {row["run_id"] for row in splits if not row["final"]}
    chosen = (one for one in runs.labels.values() if one.kind == "fault" and one.run_id in open_ones)
    faulty = sorted(chosen, key=lambda one: one.run_id)
    if not faulty:
        raise DatasetError("the data set has no faulty run; make them: robustops bench stage=campaign")
    diagnoser = OwnDiagnosis(prefixes=PREFIXES, portable=True, seed=seed)
    panels = [runs.panel(one.run_id, HORIZON, TIER) for one in faulty]
    diagnoser.fit(panels, [one.fault for one in faulty], healthy)
    about = {
        "settings": alike(settings),
        "runs": {"profile": len(healthy), "calibration": len(calibration), "faulty": len(faulty)},
    }
    return FittedMonitor.fit(healthy, calibration, diagnoser, about)
