import csv
import json
import struct
import time
import warnings
import zlib

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from robustops.errors import ConfigError
from robustops.tracking.loggers import SafeLogger, close_loggers, log_table, make_loggers

CONFIG = {"seed": 7, "grpo": {"learning_rate": 0.001, "stages": ["sft", "grpo"]}}
COLUMNS = ["policy", "success_rate", "n"]
ROWS = [["base", 0.25, 240], ["grpo", 0.75, 240]]


class OneWeight(LightningModule):
    """Two steps on one weight; logs `loss` = 1, then 0."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.0))

    def training_step(self, batch, index):
        self.log("loss", 1.0 - index)
        return self.weight * 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class BrokenLogger(Logger):
    """Works until `log_metrics` is called for the second time."""

    def __init__(self):
        super().__init__()
        self.logged = []

    name = "broken"
    version = 1
    experiment = None

    def log_metrics(self, metrics, step=None):
        if self.logged:
            raise OSError("no space left on device")
        self.logged.append((metrics, step))

    def log_hyperparams(self, params, *args, **kwargs):
        pass


def fit(loggers, folder):
    trainer = Trainer(
        max_epochs=1,
        logger=loggers,
        log_every_n_steps=1,
        default_root_dir=folder,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(OneWeight(), torch.utils.data.DataLoader([0, 1]))


def wandb_records(path):
    """The records of a `.wandb` file: LevelDB log format (32 KiB blocks, fragments with a masked CRC)
    after a header of 7 bytes, each record a protobuf.
    """
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, parts = 7, []
    while place + 7 <= len(data):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        crc, size, kind = struct.unpack("<IHB", data[place : place + 7])
        body = data[place + 7 : place + 7 + size]
        if len(body) < size:
            return  # is being written
        assert crc == zlib.crc32(bytes([kind]) + body)
        parts.append(body)
        place += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def finished_records(path, patience=120):
    """The records of a run that has ended. W&B's service writes in a process of its own, on a busy machine
    some seconds after `finish` has returned.
    """
    deadline = time.monotonic() + patience
    while True:
        records = list(wandb_records(path))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < deadline, f"{path} has no end, {len(records)} records in {patience} s"
        time.sleep(0.1)


def read_offline_run(folder):
    """(run, config, history rows) of the offline run in a run folder."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    run, config, history = None, {}, []
    for record in finished_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
        updates = run.config if kind == "run" else record.config if kind == "config" else None
        for item in updates.update if updates else []:
            config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if kind == "history":
            items = record.history.item
            history.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return run, config, history


def test_an_offline_wandb_run_reads_back(tmp_path):
    folders = [tmp_path / "run_a", tmp_path / "run_b"]
    for folder in folders:
        folder.mkdir()
        loggers = make_loggers("wandb", folder, {**CONFIG, "run": folder.name}, group="sweep_1")
        fit(loggers, folder)
        log_table(loggers, "evaluation", COLUMNS, ROWS)
        close_loggers(loggers)
        assert not loggers[0].failed
    seen = {}
    for folder in folders:
        run, config, history = read_offline_run(folder)
        assert (run.run_group, run.display_name, run.project) == ("sweep_1", folder.name, "robustops")
        assert config["grpo"] == CONFIG["grpo"]
        assert (config["seed"], config["run"]) == (7, folder.name)
        losses = [(row["trainer/global_step"], row["loss"]) for row in history if "loss" in row]
        assert losses == [(0, 1.0), (1, 0.0)]
        (table,) = [row["evaluation/path"] for row in history if "evaluation/path" in row]
        (files,) = folder.glob("wandb/offline-run-*/files")
        stored = json.loads((files / table).read_text())
        assert (stored["columns"], stored["data"]) == (COLUMNS, ROWS)
        seen[folder.name] = run.run_id
    assert len(set(seen.values())) == 2


def test_csv_and_tensorboard_hold_metrics_config_and_table(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = make_loggers(["csv", "tensorboard"], tmp_path, CONFIG)
    fit(loggers, tmp_path)
    fit(loggers, tmp_path)  # a run has several fits on the same loggers
    log_table(loggers, "evaluation/test", COLUMNS, ROWS)
    close_loggers(loggers)
    assert not any(logger.failed for logger in loggers)
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = [(row["step"], row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    assert rows == [("0", "1.0"), ("1", "0.0")] * 2
    assert "learning_rate: 0.001" in (tmp_path / "csv" / "version_0" / "hparams.yaml").read_text()
    with (tmp_path / "tables" / "evaluation_test.csv").open() as file:
        assert list(csv.reader(file)) == [COLUMNS, *[[str(cell) for cell in row] for row in ROWS]]
    events = EventAccumulator(str(tmp_path / "tensorboard" / "version_0")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(0, 1.0), (1, 0.0)] * 2
    (text,) = events.Tensors("evaluation/test/text_summary")
    assert b"| grpo | 0.75 | 240 |" in text.tensor_proto.string_val[0]


def test_a_logger_that_fails_is_told_of_once_and_stops_nothing(tmp_path):
    broken = BrokenLogger()
    safe = SafeLogger("broken", lambda: broken, write_table=lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match=r"'broken' failed .* no space left on device") as caught:
        fit([safe], tmp_path)
        safe.log_metrics({"loss": 3.0}, 9)
        log_table([safe], "evaluation", COLUMNS, ROWS)
        close_loggers([safe])
    assert sum("no space left" in str(one.message) for one in caught) == 1
    assert [metrics["loss"] for metrics, _ in broken.logged] == [1.0]
    assert safe.failed
    assert safe.name == "broken"
    safe.experiment.anything(1)


def test_a_logger_that_cannot_be_made_stops_nothing(tmp_path):
    def refuse():
        raise ModuleNotFoundError("No module named 'wandb'")

    with pytest.warns(RuntimeWarning, match="No module named 'wandb'"):
        safe = SafeLogger("wandb", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fit([safe], tmp_path)
        close_loggers([safe])


def test_an_interrupt_is_not_swallowed():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SafeLogger("csv", interrupt)


def test_an_unknown_kind_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="unknown logger 'mlflow'; choose one of: csv, tensorboard, wandb"):
        make_loggers(["csv", "mlflow"], tmp_path, {})
    assert list(tmp_path.iterdir()) == []
