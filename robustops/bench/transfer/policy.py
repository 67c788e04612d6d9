"""The policy that itsm runs begin with: the quickstart's, trained once on expert demonstrations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustops.bench.campaign.claims import claimed
from robustops.bench.campaign.worker import Compose
from robustops.errors import ConfigError
from robustops.files import atomic_write_json, read_json
from robustops.learning.pipeline import run_training
from robustops.settings import TrainSettings

#: The quickstart's demonstrations alone, with one thread, as all work of the benchmark.
OVERRIDES = (
    *("experiment=quickstart", "stages=[sft]", "evaluation.policies=[]", "logger=none", "monitor=off"),
    *("hardware.threads=1", "progress=false"),
)
_POLICY = Path("checkpoints") / "sft" / "policy"
_WEIGHTS = "config.json"
NOTE = "policy.json"


@dataclass(frozen=True)
class WithPolicy:
    """`Compose` for runs that begin with the weights in a folder. compose: another process can import it."""

    compose: Compose
    policy: Path

    def __call__(self, overrides: Sequence[str]) -> tuple[TrainSettings, dict[str, Any]]:
        return self.compose([*overrides, f"model.checkpoint='{self.policy}'"])


def starting_policy(
    folder: Path, given: str | None, compose: Compose, overrides: Sequence[str] = OVERRIDES
) -> Path:
    """Folder of the weights.

    Args:
        folder: where the policy is trained if none is given; what was trained there is used again, and
            what was begun is gone on with.
        given: folder of weights, or of a run of experiment=quickstart.
        compose: as of the campaign.
        overrides: of the training run.

    Raises:
        ConfigError: there are no weights in the given folder, or another process is at training some.
    """
    if given is not None:
        places = [Path(given).absolute(), Path(given).absolute() / _POLICY]
        found = next((place for place in places if (place / _WEIGHTS).is_file()), None)
        if found is None:
            raise ConfigError(
                f"transfer.policy={given} holds no weights; give the folder of a run of "
                "experiment=quickstart, or of a model, or null to train one"
            )
        return found
    if not (folder / _POLICY / _WEIGHTS).is_file():
        with claimed(folder.parent, folder.name) as mine:
            if not mine:
                raise ConfigError(
                    f"another start trains the policy in {folder}; wait for it, or give transfer.policy="
                )
            line = [*overrides, f"paths.run_dir='{folder}'"]
            settings, config = compose(line)
            run_training(settings, folder, config, line)
    return folder / _POLICY


def remember(folder: Path, policy: Path) -> None:
    """Note which weights a set's runs begin with; ConfigError where they began with others before."""
    digest = hashlib.sha256()
    for path in sorted(policy.glob("*.safetensors")):
        digest.update(path.read_bytes())
    note, body = folder / NOTE, {"sha256": digest.hexdigest()}
    if not note.is_file():
        atomic_write_json(note, body)
    elif read_json(note, what="note of the policy") != body:
        raise ConfigError(
            f"the runs in {folder} begin with other weights than those in {policy} ({note}); give the same "
            "transfer.policy=, or remove the folder"
        )
