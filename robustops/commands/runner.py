"""Composes a command's config and runs the command: the one place that drives Hydra."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hydra import version
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from robustops.cli import report_error
from robustops.commands.explain import COMPOSE_ERRORS, explain, explain_value, refuse_unknown_keys
from robustops.commands.saved import branched, evaluated, resumed, value_of
from robustops.errors import ConfigError, RobustOpsError
from robustops.resources import conf_dir
from robustops.schema import ROOTS, register
from robustops.validation import validate

_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
#: Longest name of a sweep's run folder; file systems allow 255 bytes.
_SLUG_LENGTH = 120


#: Environment of a process that `commands.launch` started: id of the process that prints its results.
LAUNCHER = "ROBUSTOPS_LAUNCHER"


def prints_results() -> bool:
    """Whether standard output of this process is for results: no other process of the job prints them."""
    return LAUNCHER not in os.environ and os.environ.get("RANK", "0") == "0"


def slug(text: str) -> str:
    """Text as a folder name that needs no quoting in a shell or in an override."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")[:_SLUG_LENGTH]


# Registered at import, so that launchers that start other processes have it when they load `Job`.
OmegaConf.register_new_resolver("slug", slug, replace=True)


@dataclass(frozen=True)
class Context:
    """What a command knows of its run beside the settings.

    config: resolved, in plain values; flags: Hydra's flags that the same job needs when it is started
    again; multirun: it is a point of a sweep; fixed_dir: the command line names the run folder.
    """

    run_dir: Path
    config: dict[str, Any]
    overrides: tuple[str, ...]
    flags: tuple[str, ...] = ()
    multirun: bool = False
    fixed_dir: bool = False


@dataclass
class Job:
    """The task function that Hydra calls, once or once for every point of a sweep."""

    command: str
    status: int = 0
    multirun: bool = False
    run_dir: Path | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, config: DictConfig) -> None:
        hydra = HydraConfig.get()
        self.multirun = hydra.mode == RunMode.MULTIRUN  # a flag, or of an experiment that is a sweep
        try:
            self.reports.append(self._run(config))
        except RobustOpsError as error:
            if self.multirun and hydra.launcher._target_ != _BASIC_LAUNCHER:
                raise  # another process: only an exception gets through to the caller
            # The other points of a sweep still run.
            report_error(error, as_json=False)
            self.status = max(self.status, error.exit_status)
            self.reports.append({"error": _error_body(error)})
        if self.multirun:
            self.reports[-1] = {
                "overrides": list(hydra.overrides.task),
                "run_dir": hydra.runtime.output_dir,
                **self.reports[-1],
            }

    def _run(self, config: DictConfig) -> dict[str, Any]:
        root, hydra = ROOTS[self.command], HydraConfig.get()
        self.run_dir = Path(hydra.runtime.output_dir)
        try:
            plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
            refuse_unknown_keys(plain, root)  # type: ignore[arg-type]
            settings = OmegaConf.to_object(config)
        except COMPOSE_ERRORS as error:
            raise explain(error, root) from error
        validate(settings)
        module = importlib.import_module(f"robustops.commands.{self.command}")
        return module.run(settings, self._context(plain, hydra))  # type: ignore[no-any-return]

    def _context(self, config: Any, hydra: Any) -> Context:
        assert self.run_dir is not None
        flags: list[str] = []
        for source in hydra.runtime.config_sources:
            if source.provider == "command-line":
                flags += ["--config-dir", source.path]
        if hydra.job.config_name != self.command:
            flags += ["--config-name", hydra.job.config_name]
        return Context(
            self.run_dir,
            config,
            tuple(hydra.overrides.task),
            tuple(flags),
            self.multirun,
            any(text.startswith("hydra.run.dir=") for text in hydra.overrides.hydra),
        )


def run_command(command: str, arguments: Sequence[str]) -> int:
    """Run a command with Hydra's flags and overrides; returns the exit status.

    Raises:
        ConfigError: the request is wrong: flags, keys, choices, types.
    """
    version.setbase("1.3")
    register()
    parser, options = _parse(command, arguments)
    job = Job(command)
    try:
        with _interrupts(), _plain_exceptions():
            _run_hydra(options, parser, job, str(conf_dir()), command)
    except KeyboardInterrupt:
        return _say_interrupted(command, job.run_dir)
    except SystemExit as stop:
        return int(stop.code or 0)
    except COMPOSE_ERRORS as error:
        raise explain(error, ROOTS[command]) from error
    except ValueError as error:
        if _from_override(error):
            raise explain_value(error, options.overrides) from error
        raise
    if "format=json" in options.overrides and prints_results():
        _print_json(job)
    return job.status


def _parse(command: str, arguments: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Hydra's own flags; overrides may stand before and after them."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; see robustops {command} --help and --hydra-help")

    parser.error = refuse  # type: ignore[method-assign]
    options = parser.parse_intermixed_args(list(arguments))
    if value_of(options.overrides, "resume") and options.multirun:
        raise ConfigError("resume goes on with one run; leave out --multirun")
    if command == "train":
        options.overrides = resumed(branched(options.overrides))
    elif command == "evaluate":
        options.overrides = evaluated(options.overrides)
    return parser, options


@contextmanager
def _plain_exceptions() -> Iterator[None]:
    """Let Hydra pass exceptions on instead of printing them and exiting."""
    name = "HYDRA_FULL_ERROR"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextmanager
def _interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where whoever started this process had it ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _say_interrupted(command: str, run_dir: Path | None) -> int:
    """The last line after Ctrl-C; 130 as shells expect of SIGINT."""
    how = ""
    if command == "train" and run_dir is not None:
        place = run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir
        how = f"; resume with: robustops train resume={place}"
    sys.stderr.write(f"robustops: interrupted{how}\n")
    return 130


def _from_override(error: ValueError) -> bool:
    """Hydra raises a bare ValueError for a few wrong requests (a group given a number, two flags)."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_globals.get("__name__", "").startswith("hydra.")


def _print_json(job: Job) -> None:
    report: Any = {"runs": job.reports} if job.multirun else (job.reports or [{}])[-1]
    sys.stdout.write(json.dumps(_finite(report), ensure_ascii=False, allow_nan=False, default=str) + "\n")


def _error_body(error: RobustOpsError) -> dict[str, Any]:
    message = " ".join(str(error).split())
    return {"kind": type(error).__name__, "message": message, "exit_status": error.exit_status}


def _finite(value: Any) -> Any:
    """JSON has no NaN: such numbers become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
