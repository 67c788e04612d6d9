"""Overrides that a command takes over from a finished or interrupted run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from robustops.errors import ConfigError
from robustops.tracking.run_record import leaves, read_record

#: Sections of a run that `evaluate run=...` takes over.
SECTIONS = ("domain", "fault", "model", "reward", "evaluation")
#: Keys of `evaluation` that the root of evaluate sets itself.
_ROOT_KEYS = ("evaluation.policies", "evaluation.split")


def value_of(overrides: Sequence[str], key: str) -> str | None:
    """The last plain value given to a key on the command line."""
    found = [text.partition("=")[2] for text in overrides if text.partition("=")[0] == key]
    return found[-1].strip("'\"") if found and found[-1] not in ("", "null") else None


def resumed(overrides: Sequence[str]) -> list[str]:
    """With `resume=FOLDER`: the run's own overrides, then those given now, in the run's own folder."""
    folder = value_of(overrides, "resume")
    if folder is None:
        return list(overrides)
    path = Path(folder)
    saved = _overrides(path)
    now = {name_of(text) for text in overrides}
    kept = [text for text in saved if name_of(text) not in now | {"resume", "dry_run"}]
    # The run may be a point of a sweep that its experiment asks for.
    return [*kept, *overrides, f"hydra.run.dir={quote(str(path))}", "hydra.mode=RUN"]


def branched(overrides: Sequence[str]) -> list[str]:
    """With `branch=FOLDER`: the overrides of that run, then those given now, in a folder of its own."""
    folder = value_of(overrides, "branch")
    if folder is None:
        return list(overrides)
    if value_of(overrides, "resume") is not None:
        raise ConfigError("branch= begins a run of its own, resume= goes on with one; give one of them")
    now = {name_of(text) for text in overrides} | {"resume", "branch", "branch_step", "dry_run"}
    return [*(text for text in _overrides(Path(folder)) if name_of(text) not in now), *overrides]


def evaluated(overrides: Sequence[str]) -> list[str]:
    """With `run=FOLDER`: that run's domain, fault, model, reward and evaluation unless given now."""
    folder = value_of(overrides, "run")
    if folder is None:
        return list(overrides)
    values = _settings(Path(folder))
    choices = _load(Path(folder), "hydra.yaml")["hydra"]["runtime"]["choices"]
    given = {name_of(text) for text in overrides}
    taken: list[str] = []
    for section in SECTIONS:
        own = [f"{key}={quote(value)}" for key, value in values.items() if key.startswith(f"{section}.")]
        if section in given or not own:
            continue
        if section in choices:
            taken.append(f"{section}={choices[section]}")
        taken += own
    return [*(text for text in taken if name_of(text) not in {*given, *_ROOT_KEYS}), *overrides]


def name_of(override: str) -> str:
    """The key or group that an override sets; the package of `group@package`."""
    group, _, package = override.partition("=")[0].lstrip("+~").partition("@")
    return package or group


def quote(value: Any) -> str:
    """A value in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(quote(item) for item in value)}]"
    if isinstance(value, str):
        text = value.replace("\\'", "\\\\'").replace("'", "\\'")
        return f"'{text}'"
    return str(value)


def _overrides(folder: Path) -> list[str]:
    """The overrides of the folder's last accepted start, else those that its only start asked for."""
    record = read_record(folder)
    saved = record.get("overrides") if record is not None else None
    if saved is None:
        saved = _load(folder, "overrides.yaml")
    if not isinstance(saved, list):
        raise ConfigError(f"the run in '{folder}' was stopped before it began; start it again")
    return [str(text) for text in saved]


def _settings(folder: Path) -> dict[str, Any]:
    """Dotted key -> value of the folder's last accepted start, else of its only start."""
    record = read_record(folder)
    return record["settings"] if record is not None else dict(leaves(_load(folder, "config.yaml")))


def _load(folder: Path, name: str) -> Any:
    file = folder / ".hydra" / name
    if not file.is_file():
        raise ConfigError(
            f"no run in '{folder}' ({Path('.hydra') / name} is absent); give a run folder under outputs/"
        )
    return OmegaConf.to_container(OmegaConf.load(file), resolve=False)
