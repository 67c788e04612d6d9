import pytest

from robustops.errors import ConfigError
from robustops.monitor.importers import FORMATS, load
from robustops.settings import MonitorCommandSettings


def test_a_log_of_ones_own(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "reward": 1.5, "tool_reward": 0.5, "speed": 3}\nhello\n{"step": 2, "reward": 1}\n'
    )
    found = load(path)
    assert (found.format, found.names, found.panel.steps.tolist()) == ("jsonl", "other", [1, 2])
    assert found.panel["rewards.tool.mean"][0] == 0.5 and found.unmapped["speed"] == "not in the key map"
    assert found.notes == ("1 lines are no JSON objects, the first is line 2: passed over",)


def test_named_infinities_are_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward": 1, "grad_norm": "Infinity"}\n')
    assert load(path).panel["grad_nonfinite"].tolist() == [1.0]


def test_a_format_can_be_forced_and_must_be_known(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward": 1.5, "kl": 0.5}\n')
    assert load(path, "trl").panel["kl_ref_k3"].tolist() == [0.5]
    for format, message in (("nix", "unknown source_format 'nix'"), ("wandb", "no run-")):
        with pytest.raises(ConfigError, match=message):
            load(path, format)
    with pytest.raises(ConfigError, match="is a folder; for source_format=verl name a file"):
        load(tmp_path, "verl")
    with pytest.raises(ConfigError, match="there is no"):
        load(tmp_path / "nix")


def test_the_settings_offer_the_formats_that_exist():
    choices = {field.name: field.metadata for field in MonitorCommandSettings.__dataclass_fields__.values()}
    assert set(choices["source_format"]["choices"]) == set(FORMATS)
