"""Lightning loggers (CSV, TensorBoard, Weights & Biases) that cannot stop a run.

Each is wrapped in a `SafeLogger`: at its first failure it says so once and is silent from then on. The
run's own record is `telemetry.jsonl` and `run.db`; these are for people's dashboards.
"""

from __future__ import annotations

import csv
import io
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import rank_zero_only

from robustops.errors import unknown_name
from robustops.files import atomic_write_text

PROJECT = "robustops"
#: logger, table name, columns, rows
TableWriter = Callable[[Any, str, Sequence[str], Sequence[Sequence[Any]]], None]


class SafeLogger(Logger):
    """A logger whose failures are warned of once and then end it, never the run.

    kind: its name in messages; make: builds the wrapped logger (a failure there counts too); write_table
    and close: what the wrapped logger does for `log_table` and `close`.
    """

    def __init__(
        self,
        kind: str,
        make: Callable[[], Logger],
        *,
        write_table: TableWriter | None = None,
        close: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.failed = False
        self._write_table = write_table
        self._close = close
        self.inner: Any = None
        self.inner = self._try(make)

    def _try(self, action: Callable[[], Any], default: Any = None) -> Any:
        """The action's value, or the default once the logger has failed."""
        if self.failed:
            return default
        try:
            return action()
        except Exception as error:
            self.failed = True
            warnings.warn(
                f"logger '{self.kind}' failed and is off from now on; the run goes on "
                f"({type(error).__name__}: {error})",
                RuntimeWarning,
                stacklevel=3,
            )
            return default

    # what Lightning asks for -----------------------------------------------------------------------
    @property
    def name(self) -> str | None:
        return self._try(lambda: self.inner.name, self.kind)  # type: ignore[no-any-return]

    @property
    def version(self) -> int | str | None:
        return self._try(lambda: self.inner.version)  # type: ignore[no-any-return]

    @property
    def save_dir(self) -> str | None:
        return self._try(lambda: self.inner.save_dir)  # type: ignore[no-any-return]

    @property
    def root_dir(self) -> str | None:
        return self._try(lambda: self.inner.root_dir)  # type: ignore[no-any-return]

    @property
    def group_separator(self) -> str:
        return self._try(lambda: self.inner.group_separator, "/")  # type: ignore[no-any-return]

    @property
    def experiment(self) -> Any:
        """The wrapped logger's own object; unlike the methods, what is called on it may raise."""
        return self._try(lambda: self.inner.experiment, DummyLogger().experiment)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:  # type: ignore[override]
        self._try(lambda: self.inner.log_metrics(dict(metrics), step))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self._try(lambda: self.inner.log_hyperparams(params, *args, **kwargs))

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        self._try(lambda: self.inner.log_graph(model, input_array))

    def save(self) -> None:
        self._try(lambda: self.inner.save())

    def finalize(self, status: str) -> None:
        """End of one fit; a run has several, so the logger stays usable. See `close`."""
        self._try(lambda: self.inner.finalize(status))

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self._try(lambda: self.inner.after_save_checkpoint(checkpoint_callback))

    # ours --------------------------------------------------------------------------------------------
    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table, such as that of an evaluation (`tables.evaluation_cells`)."""
        if self._write_table is not None:
            write = self._write_table
            self._try(lambda: write(self.inner, name, columns, rows))

    def close(self, status: str = "success") -> None:
        """End of the run: everything is on disk afterwards, and the next run of a sweep starts afresh."""
        self.finalize(status)
        if self._close is not None:
            end = self._close
            self._try(lambda: end(self.inner))


def make_loggers(
    kind: str | Sequence[str],
    run_dir: str | Path,
    config: Mapping[str, Any],
    *,
    group: str | None = None,
    name: str | None = None,
    offline: bool = True,
    project: str = PROJECT,
) -> list[SafeLogger]:
    """The loggers of a run, each told the config.

    Args:
        kind: `csv`, `tensorboard`, `wandb`, or several of them.
        run_dir: where they write.
        config: the run's composed config, plain values.
        group: name that all runs of a sweep share (W&B group).
        name: the run's name, default the run folder's.
        offline: W&B writes files only, to be sent later with `wandb sync`.
        project: W&B project.

    Raises:
        ConfigError: unknown kind.
    """
    run_dir = Path(run_dir)
    label = name or run_dir.name
    makers: dict[str, Callable[[], SafeLogger]] = {
        "csv": lambda: _csv(run_dir),
        "tensorboard": lambda: _tensorboard(run_dir),
        "wandb": lambda: _wandb(run_dir, dict(config), group, label, offline, project),
    }
    kinds = [kind] if isinstance(kind, str) else list(dict.fromkeys(kind))
    for given in kinds:
        if given not in makers:
            raise unknown_name("logger", given, makers)
    loggers = [makers[given]() for given in kinds]
    for logger in loggers:
        logger.log_hyperparams(dict(config))
    return loggers


def log_table(
    loggers: Iterable[Logger], name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Log a table to every logger that takes one."""
    for logger in loggers:
        if isinstance(logger, SafeLogger):
            logger.log_table(name, columns, rows)


def close_loggers(loggers: Iterable[Logger], status: str = "success") -> None:
    """Close every logger of a run; call it once, after the last stage. status: success or failed."""
    for logger in loggers:
        if isinstance(logger, SafeLogger):
            logger.close(status)


def _csv(run_dir: Path) -> SafeLogger:
    def write(_: Any, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([columns, *rows])
        atomic_write_text(run_dir / "tables" / f"{name.replace('/', '_')}.csv", text.getvalue())

    return SafeLogger("csv", lambda: CSVLogger(run_dir, name="csv"), write_table=write)


def _tensorboard(run_dir: Path) -> SafeLogger:
    def write(logger: Any, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        text = "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
        logger.experiment.add_text(name, text)

    def close(logger: Any) -> None:
        logger.experiment.close()

    return SafeLogger(
        "tensorboard",
        lambda: TensorBoardLogger(run_dir, name="tensorboard"),
        write_table=write,
        close=close,
    )


def _wandb(
    run_dir: Path, config: dict[str, Any], group: str | None, name: str, offline: bool, project: str
) -> SafeLogger:
    def make() -> Logger:
        if getattr(rank_zero_only, "rank", 0):
            return DummyLogger()
        import wandb

        # `create_new`: a sweep runs many of our runs in one process, and none may write into another's.
        run = wandb.init(
            project=project,
            name=name,
            group=group,
            dir=str(run_dir),
            config=config,
            mode="offline" if offline else "online",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return WandbLogger(name=name, save_dir=run_dir, project=project, offline=offline, experiment=run)

    def write(logger: Any, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        logger.log_table(name, columns=list(columns), data=[list(row) for row in rows])

    return SafeLogger("wandb", make, write_table=write, close=lambda logger: logger.experiment.finish())
