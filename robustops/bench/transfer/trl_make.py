"""What makes a run of set trl; TRL is loaded only where a run is made."""

from __future__ import annotations

from pathlib import Path

from robustops.bench.campaign.plan import PlannedRun
from robustops.bench.campaign.worker import Compose, train_overrides


def make_trl(planned: PlannedRun, folder: Path, compose: Compose) -> None:
    """A `campaign.worker.Make`: the planned run by TRL's trainer, its log in the folder."""
    from robustops.bench.transfer.trl_run import train

    settings, _ = compose(train_overrides(planned, folder))
    train(settings, planned.seed, folder)
