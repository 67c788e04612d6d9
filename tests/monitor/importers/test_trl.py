import json
import math

import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers import load
from robustops.monitor.importers.log import Source
from robustops.monitor.importers.trl import matches, read

PRINTED = """Starting
{'loss': 0.01, 'grad_norm': 1.5, 'learning_rate': 1e-06, 'reward': 0.5, 'kl': 0.001, 'epoch': 0.1}

  2%|# | 10/405 [03:44<2:26:29, 22.25s/it]
{'loss': nan, 'grad_norm': np.float64(2.5), 'learning_rate': 1e-06, 'reward': 0.25, 'kl': nan, 'epoch': 0.2}
{'eval_loss': 0.5, 'eval_reward': 0.9}
{'loss': '0.03', 'grad_norm': 'inf', 'learning_rate': '1e-06', 'reward': tensor(0.75), 'kl': -0.0}
{'train_runtime': 12.0, 'train_loss': 0.1}
"""
SWIFT = (
    '{"loss": 0.0, "grad_norm": 0.1, "reward": 0.3, "reward_std": 0.4, "entropy/mean": 0.8, "kl": 0.0, '
    '"global_step/max_steps": "%d/3766", "elapsed_time": "1m 29s", "memory(GiB)": 56.7}'
)


def test_printed_dicts_between_progress_bars(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(PRINTED)
    found = load(path)
    assert (found.format, found.names, len(found.panel)) == ("trl", "trl", 3)
    assert found.panel["reward_mean"].tolist() == [0.5, 0.25, 0.75]
    assert found.panel["grad_norm"].tolist() == [1.5, 2.5, float("inf")]
    assert found.panel["nan_count"][1] == 2 and found.panel["grad_nonfinite"].tolist() == [0, 0, 1]
    assert found.unmapped["eval_reward"] == "of an evaluation, not of training"


def test_a_torn_last_dict_is_passed_over_with_a_note(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(PRINTED + "{'loss': 0.01, 'grad_no")
    found = load(path)
    assert len(found.panel) == 3 and "torn or still being written" in found.notes[0]


def test_a_dict_that_python_does_not_read_is_passed_over_with_a_note(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(PRINTED + "{'loss': <object>, 'reward': 1.0}\n")
    assert "1 printed dicts are not readable: passed over" in load(path).notes


def test_a_trainer_state(tmp_path):
    path = tmp_path / "trainer_state.json"
    history = [
        {"step": 1, "reward": 0.5, "kl": 0.001, "grad_norm": 1.0},
        {"step": 1, "eval_reward": 0.9},
        {"step": 2, "reward": None, "kl": 0.002, "grad_norm": 1.0},
        {"step": 2, "train_runtime": 1.0, "total_flos": 0.0},
    ]
    path.write_text(json.dumps({"global_step": 2, "log_history": history}))
    found = load(path)
    assert found.panel.steps.tolist() == [1, 2] and found.panel["kl_ref_k3"].tolist() == [0.001, 0.002]
    assert math.isnan(found.panel["reward_mean"][1])  # null: not observed
    assert "nan_count" not in found.panel.columns


def test_the_newest_checkpoint_of_an_output_folder(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        rows = [{"step": s, "reward": 0.5, "kl": 0.1} for s in range(1, step + 1)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    found = load(tmp_path)
    assert len(found.panel) == 10 and found.notes[0] == "read checkpoint-10/trainer_state.json"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no trainer_state\.json"):
        read(Source(tmp_path / "empty"))


def test_json_lines_of_ms_swift_have_their_step(tmp_path):
    path = tmp_path / "logging.jsonl"
    path.write_text("".join(SWIFT % step + "\n" for step in (5, 6, 7)) + '{"loss": 0.0, "gr')
    for source in (path, tmp_path):
        found = load(source)
        assert (found.format, found.panel.steps.tolist()) == ("trl", [5, 6, 7])
        assert found.panel["entropy"].tolist() == [0.8] * 3
        assert any("torn" in note for note in found.notes)


def test_other_text_is_not_taken_for_trl(tmp_path):
    path = tmp_path / "notes.txt"
    for text in ("hello {'name': 'x'}", "{}", "step:1 - actor/lr:0.1", "[1, 2]"):
        path.write_text(text)
        assert not matches(Source(path))
