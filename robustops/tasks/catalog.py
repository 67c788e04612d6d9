"""Task catalog: requests drawn from templates, split by task id, expanded into tool configurations.

A task is a function of (seed, domain, split, its place) only: neither the order in which splits are asked
for nor the number of workers changes it. A catalog is made on the fly or read from a folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustops.errors import ConfigError, TaskError, unknown_name
from robustops.records import Task
from robustops.tasks.enterpriseops import from_enterpriseops, to_enterpriseops
from robustops.tasks.maker import SPLITS, TaskMaker
from robustops.worlds.checks import run_checks, validate_graph
from robustops.worlds.domain import Domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.scripted import run_expert

TOOL_CONFIGS = ("oracle", "plus5")
DEFAULT_COUNTS = {"train": 400, "val": 60, "test": 150}


class Catalog:
    """The tasks of one domain by split. Splits are made or read when first asked for, then kept.

    skipped: template name -> why a given database has no (more) tasks of it.
    """

    def __init__(
        self,
        domain: str,
        counts: Mapping[str, int],
        load: Callable[[str], Sequence[Task]],
        *,
        seed: int | None = None,
        skipped: dict[str, str] | None = None,
    ) -> None:
        self.domain = domain
        self.counts = dict(counts)
        self.seed = seed
        self.skipped = skipped if skipped is not None else {}
        self._load = load
        self._tasks: dict[str, tuple[Task, ...]] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.counts)

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The split's tasks in their `oracle` form, templates in turn."""
        if split not in self.counts:
            raise unknown_name("split", split, self.counts)
        if split not in self._tasks:
            self._tasks[split] = tuple(self._load(split))
        return self._tasks[split]

    def cases(self, split: str, tool_configs: Sequence[str] = TOOL_CONFIGS) -> tuple[Task, ...]:
        """Each task in each tool configuration, the configurations of a task side by side."""
        for name in tool_configs:
            if name not in TOOL_CONFIGS:
                raise unknown_name("tool configuration", name, TOOL_CONFIGS)
        return tuple(replace(task, tool_config=name) for task in self.tasks(split) for name in tool_configs)


def build_catalog(
    domain: Domain,
    *,
    seed: int = 0,
    counts: Mapping[str, int] = DEFAULT_COUNTS,
    database: str | None = None,
    size: str = "small",
    templates: Sequence[str] | None = None,
) -> Catalog:
    """A catalog that draws its tasks from the domain's templates.

    counts: tasks a split. database: path of a start database for all tasks, default the domain's own
    path; without one every split has generated worlds of its own, of the given size. With one, a
    request (template and facts) belongs to one split by its hash, so that rewordings do not cross over.
    templates: names, default all.

    Raises:
        ConfigError: unknown split or template. TaskError (on use): a template found no fitting rows, or
        the given database has too few different requests.
    """
    for split in counts:
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
    names = sorted(domain.templates) if templates is None else list(dict.fromkeys(templates))
    for name in names:
        if name not in domain.templates:
            raise unknown_name(f"template of domain {domain.name}", name, domain.templates)
    if not names:
        raise ConfigError(f"domain {domain.name}: no task templates chosen; name at least one")
    maker = TaskMaker(domain, seed, dict(counts), database or domain.path, names, size)
    return Catalog(domain.name, counts, maker.split, seed=seed, skipped=maker.skipped)


# files --------------------------------------------------------------------------------------------
_CATALOG_FILE = "catalog.json"
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]+")


def write_catalog(catalog: Catalog, folder: str | Path) -> Path:
    """Write `<folder>/<domain>/<split>/<id>.json`, one task a file; returns `<folder>/<domain>`.

    The domain's folder is swapped in whole once all its files are written, so that it never holds a
    mixture of two catalogs.
    """
    target = Path(folder) / catalog.domain
    fresh = target.with_name(f".{catalog.domain}.{os.getpid()}.new")
    old = target.with_name(f".{catalog.domain}.{os.getpid()}.old")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        for split in catalog.splits:
            (fresh / split).mkdir(parents=True)
            for task in catalog.tasks(split):
                if not _SAFE_ID.fullmatch(task.id):
                    raise TaskError(f"task id '{task.id}' is no file name; use letters, digits, . _ -")
                _dump(fresh / split / f"{task.id}.json", to_enterpriseops(task))
        about = {"domain": catalog.domain, "seed": catalog.seed, "counts": catalog.counts}
        _dump(fresh / _CATALOG_FILE, {**about, "skipped": catalog.skipped})
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return target


def read_catalog(folder: str | Path, domain: Domain | str) -> Catalog:
    """The catalog that `write_catalog` wrote for this domain; tasks are read when asked for."""
    name = domain if isinstance(domain, str) else domain.name
    root = Path(folder) / name
    if not (root / _CATALOG_FILE).is_file():
        raise ConfigError(f"{root} holds no task catalog ({_CATALOG_FILE} is absent); write one first")
    about = _load(root / _CATALOG_FILE)

    def read(split: str) -> list[Task]:
        paths = sorted((root / split).glob("*.json"))
        if len(paths) != about["counts"][split]:
            raise TaskError(
                f"{root / split} holds {len(paths)} tasks, its catalog says {about['counts'][split]}; "
                "write the catalog again"
            )
        return [from_enterpriseops(_load(path), name, task_id=path.stem) for path in paths]

    return Catalog(name, about["counts"], read, seed=about["seed"], skipped=about["skipped"])


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(f"task file {path} cannot be read: {error}") from error


# verification -------------------------------------------------------------------------------------
def verify_catalog(catalog: Catalog, domain: Domain, *, splits: Sequence[str] | None = None) -> int:
    """Hold every task to its contract; returns how many were verified.

    The graph is valid, the start never passes, the scripted expert always does with the tools of the
    `oracle` row, and no id or prompt occurs twice.

    Raises:
        TaskError: the message lists the first tasks at fault.
    """
    world = LocalWorld(domain, tool_timeout_s=None)
    faults: list[str] = []
    ids: set[str] = set()
    prompts: set[str] = set()
    for split in splits if splits is not None else catalog.splits:
        for task in catalog.tasks(split):
            fault = _fault(world, domain, task)
            if task.id in ids or task.prompt in prompts:
                fault = "id or prompt occurs twice"
            ids.add(task.id)
            prompts.add(task.prompt)
            if fault is not None:
                faults.append(f"{task.id} ({task.template}): {fault}")
    world.close()
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise TaskError(f"{len(faults)} tasks of {domain.name} are broken: {'; '.join(faults[:5])}{more}")
    return len(ids)


def _fault(world: LocalWorld, domain: Domain, task: Task) -> str | None:
    """What is wrong with one task, or None."""
    try:
        validate_graph([check.name for check in task.checks], task.prerequisites)
        if not task.checks:
            return "it has no state checks"
        database = domain.open(task.database)
        passed = run_checks(database, task.checks)
        database.close()
        if all(passed):
            return "its start state passes all checks"
        if not run_expert(world, domain, task).success:
            return "the scripted expert does not pass all checks"
    except TaskError as error:
        return str(error)
    return None
