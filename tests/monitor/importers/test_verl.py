import numpy as np
import pytest

from robustops.monitor.importers import load

LINE = (
    "\x1b[36m(TaskRunner pid=1)\x1b[0m step:%d - actor/entropy:0.5 - actor/kl_loss:np.float64(0.002) - "
    "actor/grad_norm:np.float64(0.25) - actor/pg_loss:-0.01 - critic/rewards/mean:%s - "
    "response_length/mean:18.0 - perf/throughput:30.5\n"
)


def test_console_lines_with_colours_numpy_numbers_and_nan(tmp_path):
    path = tmp_path / "verl.log"
    path.write_text("Training Progress:  0%|\r" + LINE % (1, "0.5") + "WARNING step:x\n" + LINE % (2, "nan"))
    found = load(path)
    assert (found.format, found.panel.steps.tolist()) == ("verl", [1, 2])
    assert found.panel["entropy"].tolist() == [0.5, 0.5] and found.panel["policy_loss"][0] == -0.01
    assert found.panel["reward_mean"][0] == 0.5 and np.isnan(found.panel["reward_mean"][1])
    assert "kl_ref_k3" not in found.panel.columns and "kl_estimator" in found.unmapped["actor/kl_loss"]
    assert found.notes == ()


@pytest.mark.parametrize(
    ("printed", "column"),
    [
        ("'kl_loss_type': 'low_var_kl',\n", "kl_ref_k3"),
        ("  kl_loss_type: kl\n", "kl_ref_k1"),
        ("kl_loss_type=low_var_kl+ ", "kl_ref_k3"),
        ("'kl_loss_type': 'mse'", None),
    ],
)
def test_the_estimator_is_read_where_the_configuration_was_printed(printed, column, tmp_path):
    path = tmp_path / "verl.log"
    path.write_text(printed + "\n" + LINE % (1, "0.5"))
    assert [name for name in load(path).panel.columns if name.startswith("kl_ref")] == (
        [column] if column else []
    )
    assert load(path, kl_estimator="k1").panel["kl_ref_k1"].tolist() == [0.002]


def test_a_line_that_does_not_end_loses_its_last_value_as_half_a_number_is_one(tmp_path):
    path = tmp_path / "verl.log"
    path.write_text(LINE % (1, "0.5") + "step:2 - actor/entropy:0.5 - critic/rewards/mean:0.7")
    found = load(path)
    assert found.panel["reward_mean"][0] == 0.5 and np.isnan(found.panel["reward_mean"][1])
    assert found.panel["entropy"].tolist() == [0.5, 0.5]
    assert found.notes[0].startswith("the last line does not end: its last value (critic/rewards/mean:0.7)")


def test_validation_of_a_step_is_joined_and_left_out(tmp_path):
    path = tmp_path / "verl.log"
    path.write_text(
        "step:0 - val-core/gsm8k/acc/mean@1:0.1\n" + LINE % (1, "0.5") + "step:1 - val-aux/x:0.2\n"
    )
    found = load(path)
    assert found.panel.steps.tolist() == [1] and found.unmapped["val-aux/x"].startswith("of an evaluation")


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "under data"])
def test_json_lines(nested, tmp_path):
    body = '"actor/entropy": 0.5, "critic/rewards/mean": %s, "response_length/mean": 10.0'
    row = '{"step": %d, "data": {' + body + "}}" if nested else '{"step": %d, ' + body + "}"
    path = tmp_path / "verl.jsonl"
    path.write_text("\n".join(row % (step, value) for step, value in ((1, "0.5"), (2, "NaN"))) + "\n")
    found = load(path)
    assert (found.format, found.panel.steps.tolist()) == ("verl", [1, 2])
    assert found.panel["len_mean"].tolist() == [10.0, 10.0]


def test_a_printed_configuration_does_not_make_it_a_log_of_trl(tmp_path):
    path = tmp_path / "verl.log"
    config = "{'actor': {'clip_ratio': 0.2, 'entropy': 0, 'lr': 1e-06, 'grad_norm': 1.0, 'reward': 1}}\n"
    path.write_text(config + LINE % (1, "0.5"))
    assert load(path).format == "verl"
