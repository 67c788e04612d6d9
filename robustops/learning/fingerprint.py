"""What a run was made with, in a form in which a later start can be held against it.

Settings by key, digests of what settings only point to (tasks, a database file, weights), and versions. Two
runs with equal fingerprints compute the same; where a file lies plays no part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from robustops.records import Task, canonical_json
from robustops.resources import model_folder
from robustops.settings import TrainSettings
from robustops.tasks.catalog import Catalog
from robustops.tracking.run_record import leaves

#: Settings that name a place; what lies there is in `contents`.
PLACES = (
    *("domain.database", "fault.manifest", "model.checkpoint", "model.hub_id", "paths.run_dir"),
    *("resume", "branch", "branch_step"),
)
#: Keys of `contents` -> what a message calls them.
TRAIN_TASKS, EVALUATION_TASKS = "domain tasks (training split)", "domain tasks (evaluation split)"
DATABASE, MANIFEST = "domain.database (content)", "fault.manifest (content)"
WEIGHTS, TOKENIZER = "model.checkpoint (weights)", "model.checkpoint (tokenizer)"
PACKAGES = ("robustops", "torch", "transformers", "lightning", "vllm")

_WEIGHT_FILES = ("config.json", "*.safetensors", "*.bin", "*.gguf")
_TOKENIZER_FILES = ("*token*.json", "vocab*", "merges.txt", "*.model", "*.jinja", "*.gguf")
#: Files up to this size are read whole; of larger ones, the head and evenly spaced blocks.
WHOLE_FILE = 64 * 2**20
HEAD, BLOCK, BLOCKS = 2**20, 2**16, 256


@dataclass(frozen=True)
class Fingerprint:
    """settings: dotted key -> plain value, `PLACES` included; contents: digests by the names above (None:
    absent, or not known); versions: package -> version.
    """

    settings: Mapping[str, Any]
    contents: Mapping[str, str | None]
    versions: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        return {name: dict(getattr(self, name)) for name in ("settings", "contents", "versions")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """KeyError where a part is missing."""
        return cls(data["settings"], data["contents"], data["versions"])


def fingerprint(settings: TrainSettings, catalog: Catalog) -> Fingerprint:
    """The fingerprint of a training run. Draws the tasks that the run needs."""
    model = model_folder(settings.model)
    split = settings.evaluation.split
    contents = {
        TRAIN_TASKS: tasks_digest(catalog.tasks("train")) if settings.stages else None,
        EVALUATION_TASKS: tasks_digest(catalog.tasks(split)) if settings.evaluation.policies else None,
        DATABASE: _file_digest(settings.domain.database),
        MANIFEST: _file_digest(settings.fault.manifest),
        WEIGHTS: folder_digest(model, _WEIGHT_FILES),
        TOKENIZER: folder_digest(model, _TOKENIZER_FILES),
    }
    return Fingerprint(flat_settings(settings), contents, dict(_versions()))


def flat_settings(settings: TrainSettings) -> dict[str, Any]:
    """Dotted key -> value as JSON has it."""
    return dict(leaves(json.loads(json.dumps(dataclasses.asdict(settings)))))


def tasks_digest(tasks: Iterable[Task]) -> str:
    """Digest of everything that tasks consist of: prompts, policies, tools, checks, start databases.

    A database file enters by its own digest, see `fingerprint`, not by its path.
    """
    digest = hashlib.sha256()
    for task in tasks:
        body = task.to_dict()
        body["database"]["path"] = None
        digest.update(canonical_json(body).encode() + b"\n")
    return digest.hexdigest()


def folder_digest(folder: Path | None, patterns: Iterable[str]) -> str | None:
    """Digest of names and contents of the files that match; None where there are none.

    Of files larger than `WHOLE_FILE`: size, head (with the index of a safetensors file) and 256 blocks. A
    training step changes every block of a weight file, so that the sample finds it.
    """
    files = {path for pattern in patterns for path in folder.glob(pattern)} if folder is not None else set()
    if not files:
        return None
    digest = hashlib.sha256()
    for path in sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for start, length in _spans(size):
                file.seek(start)
                digest.update(file.read(length))
    return digest.hexdigest()


def _spans(size: int) -> list[tuple[int, int]]:
    if size <= WHOLE_FILE:
        return [(0, size)]
    step = (size - HEAD - BLOCK) // (BLOCKS - 1)
    return [(0, HEAD), *((HEAD + number * step, BLOCK) for number in range(BLOCKS))]


def _file_digest(path: str | None) -> str | None:
    if path is None or not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
