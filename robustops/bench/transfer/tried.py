"""The runs of a set as detectors see them, and what they really are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from robustops.bench.campaign.folders import PLANNED, folder_of
from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.campaign.recorded import EXPOSURES
from robustops.bench.run_faults.exposure import read_exposure
from robustops.errors import DatasetError
from robustops.files import read_json
from robustops.monitor.importers import load
from robustops.monitor.panel import Panel

_TRL, _OURS = "trainer_state.json", "telemetry.jsonl"


@dataclass(frozen=True)
class Tried:
    """planned: what it is; panel: its telemetry, steps from 1; onset: first step at which the fault struck
    anything, 0: none did.
    """

    planned: PlannedRun
    panel: Panel
    onset: int

    @property
    def faulty(self) -> bool:
        return self.planned.kind == "fault"


def read_tried(folder: Path, runs: Sequence[PlannedRun]) -> Iterator[Tried]:
    """Those of the runs that are complete, in order; DatasetError where one has no log."""
    for run in runs:
        place = folder_of(folder, run.run_id)
        if (place / PLANNED).is_file():
            planned = PlannedRun.from_dict(read_json(place / PLANNED, what="planned run"))
            yield Tried(planned, panel_of(place), _struck(place))


def panel_of(place: Path) -> Panel:
    """The telemetry of a run folder, ours or TRL's, by the importers that `robustops monitor` reads with.

    TRL counts updates, of which a step of ours has several: its rows are numbered by what lies between two.
    """
    if (place / _TRL).is_file():
        panel = load(place / _TRL, "trl").panel
        return Panel(panel.steps // panel.steps[0], panel.columns, panel.source)
    if (place / _OURS).is_file():
        return load(place / _OURS, "ours").panel
    raise DatasetError(f"{place} has neither {_OURS} nor {_TRL}; remove the folder and make the run again")


def _struck(place: Path) -> int:
    lines = read_exposure(place / EXPOSURES[0])
    return min((line["step"] for line in lines if line["touched"]), default=0)
