import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers import load

writers = pytest.importorskip("torch.utils.tensorboard")
pytest.importorskip("tensorboard")


def write(folder, rows, prefix="train/"):
    with writers.SummaryWriter(str(folder)) as writer:
        for step, row in rows:
            for key, value in row.items():
                writer.add_scalar(prefix + key, value, step)


ROWS = [(step, {"reward": 0.1 * step, "kl": 0.01, "completions/mean_length": 50.0}) for step in (1, 2, 3)]


def test_scalars_by_step(tmp_path):
    write(tmp_path / "runs" / "first", ROWS)
    (file,) = (tmp_path / "runs" / "first").iterdir()
    for source in (tmp_path, tmp_path / "runs" / "first", file):
        found = load(source)
        assert (found.format, found.names, found.panel.steps.tolist()) == ("tensorboard", "trl", [1, 2, 3])
        assert found.panel["reward_mean"].tolist() == pytest.approx([0.1, 0.2, 0.3])
        assert found.panel["len_mean"].tolist() == [50.0] * 3


def test_a_file_that_is_being_written_is_read_up_to_its_last_whole_record(tmp_path):
    write(tmp_path, ROWS)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert len(load(tmp_path).panel) == 3  # the last record was one scalar of step 3


def test_several_runs_are_named(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, ROWS)
    with pytest.raises(ConfigError, match=r"holds 2 runs \(a, b, ...\); name one of them"):
        load(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="holds no event file"):
        load(tmp_path / "none", "tensorboard")
