from robustops.monitor.importers import load

STATUS = (
    "{'policy_loss': %s, 'actor_lr': 5e-07, 'ppo_kl': 0.0001, 'reward': 0.4, 'return': 0.1, 'kl': 0.02, "
    "'response_length': 210.5, 'group_reward_std': 0.3, 'actor_grad_norm': 0.8}"
)
LINE = "\x1b[36m(pid=1)\x1b[0m INFO 2026-01-01 Global step %d: " + STATUS + "\n"


def test_console_lines(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "Episode [1/2]: 0%|\r" + LINE % (3, "0.1") + LINE % (4, "nan") + "Global step 5: {'policy_"
    )
    found = load(path)
    assert (found.format, found.names, found.panel.steps.tolist()) == ("openrlhf", "openrlhf", [3, 4])
    assert found.panel["group_reward_std_mean"].tolist() == [0.3, 0.3]
    assert found.panel["grad_norm"].tolist() == [0.8, 0.8] and found.panel["nan_count"][1] == 1
    assert "kl_estimator" in found.unmapped["kl"] and "baseline" in found.unmapped["return"]
    assert "the last line is torn or still being written: passed over" in found.notes


def test_the_estimator_on_a_printed_command_line(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("--algo --kl_estimator k3 --lr 1\n" + LINE % (1, "0.1"))
    assert load(path).panel["kl_ref_k3"].tolist() == [0.02]


def test_a_line_that_cannot_be_read_is_told(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(LINE % (1, "0.1") + "Global step 2: {'policy_loss': <x>}\n" + LINE % (3, "0.1"))
    found = load(path)
    assert found.panel.steps.tolist() == [1, 3]
    assert "1 lines of global steps are not readable: passed over" in found.notes


def test_json_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    row = '{"train/global_step": %d, "train/policy_loss": 0.1, "train/actor_lr": 1e-6, "train/reward": 0.4, '
    row += '"train/response_length": 9.0, "train/ppo_kl": 0.0}\n'
    path.write_text(row % 1 + row % 2)
    found = load(path)
    assert (found.format, found.panel.steps.tolist()) == ("openrlhf", [1, 2])
