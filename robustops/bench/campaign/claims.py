"""Who makes which run: one lock file a run, so that two processes, or two campaigns, never make the same one.

The lock is the kernel's (`flock`): it ends with the process that holds it, however that ends, so no lock is
ever stale. The file itself means nothing and is removed with the run that it was for.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robustops.bench.campaign.folders import CLAIMS, RUNS


@contextmanager
def claimed(campaign: Path, run_id: str) -> Iterator[bool]:
    """Whether the run is this process's for as long as the block lasts; False: another one has it."""
    path = campaign / CLAIMS / run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        # Whoever waits for this inode finds the run complete; after a failure nobody has to wait.
        path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def held(campaign: Path, run_id: str) -> bool:
    """Whether some process makes this run right now."""
    path = campaign / CLAIMS / run_id
    if not path.exists():
        return False
    with claimed(campaign, run_id) as mine:
        return not mine


def clear_leftovers(campaign: Path, run_id: str) -> None:
    """Remove what killed attempts at a run left behind. Call it with the run claimed."""
    for folder in (campaign / RUNS).glob(f".{run_id}.*"):
        shutil.rmtree(folder, ignore_errors=True)
