"""RunMonitor in a real `transformers.Trainer`, and in TRL's GRPOTrainer on a tiny model."""

import importlib.util
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from robustops.errors import ConfigError
from robustops.monitor.callback_transformers import RunMonitor
from tests.monitor.runs import healthy_panel, step_to
from tests.tiny_model import CHATML, tiny_model, tiny_tokenizer

MAIN = SimpleNamespace()


def rows_of(panel):
    """What TRL would log of a run."""
    keys = {"reward_mean": "reward", "kl_ref_k3": "kl", "entropy": "entropy", "grad_norm": "grad_norm"}
    keys |= {"len_mean": "completions/mean_length", "trunc_frac": "completions/clipped_ratio"}
    for row in range(len(panel)):
        yield int(panel.steps[row]), {key: float(panel[name][row]) for name, key in keys.items()}


def feed(monitor, panel, state=None, control=None):
    state, control = state or TrainerState(is_world_process_zero=True), control or TrainerControl()
    for step, logs in rows_of(panel):
        state.global_step = step
        monitor.on_log(MAIN, state, control, logs=logs)
    return control


def test_an_alert_is_reported_once_and_the_verdict_where_it_changes():
    alerts, verdicts = [], []
    monitor = RunMonitor(alerts.append, verdicts.append)
    feed(monitor, healthy_panel(40, entropy=step_to(40, 20, 0.8, 0.02)))
    assert [(alert.kind, alert.step) for alert in alerts] == [("entropy down", 21)]
    assert monitor.alerts == alerts and alerts[0].severity == 0.8
    assert [verdict.verdict for verdict in verdicts] == ["not_observed", "healthy", "anomalous"]
    assert monitor.verdict.to_dict() | {"evidence": 0} == verdicts[-1].to_dict() | {"evidence": 0}


def test_one_row_alone_is_no_verdict_on_a_run_that_goes_on():
    monitor = RunMonitor(pytest.fail)
    feed(monitor, healthy_panel(1, trunc_frac=[1.0]))
    assert monitor.verdict.verdict == "not_observed"


def test_training_is_stopped_where_that_was_asked_for():
    broken = healthy_panel(12, grad_norm=step_to(12, 6, 0.5, float("nan")))
    assert not feed(RunMonitor(lambda alert: None), broken).should_training_stop
    assert feed(RunMonitor(lambda alert: None, stop=0.9), broken).should_training_stop
    assert not feed(RunMonitor(stop=0.9), healthy_panel(40)).should_training_stop
    with pytest.raises(ConfigError, match=r"stop is 0\.2"):
        RunMonitor(stop=0.2)


def test_only_the_main_process_watches():
    monitor = RunMonitor(pytest.fail)
    feed(
        monitor,
        healthy_panel(12, grad_norm=step_to(12, 6, 0.5, float("nan"))),
        TrainerState(is_world_process_zero=False),
    )
    assert monitor.verdict is None and monitor.imported is None


def test_a_resumed_run_knows_its_history_and_does_not_report_it_again():
    panel = healthy_panel(40, entropy=step_to(40, 20, 0.8, 0.02))
    state = TrainerState(is_world_process_zero=True)
    state.log_history = [{**logs, "step": step} for step, logs in rows_of(panel)]
    monitor = RunMonitor(pytest.fail)
    monitor.on_train_begin(MAIN, state, TrainerControl())
    assert monitor.verdict.type == "entropy_collapse" and len(monitor.imported.panel) == 40
    state.global_step = 41
    monitor.on_log(MAIN, state, TrainerControl(), logs={**state.log_history[-1]})
    assert monitor.imported.panel.steps[-1] == 41


def test_without_a_listener_alerts_are_warnings(caplog):
    with caplog.at_level(logging.WARNING):
        feed(RunMonitor(), healthy_panel(3, kl_ref_k3=[20.0] * 3))
    assert "the policy has nothing in common with the reference" in caplog.text


def arguments(folder: Path, **more) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=2,
        logging_nan_inf_filter=False,
        **more,
    )


def texts(rows: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.arange(8 * rows).reshape(rows, 8) % 400 + 8
    return [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in ids]


def test_in_a_real_trainer_the_gradient_is_watched(tmp_path: Path):
    monitor = RunMonitor(pytest.fail)
    trainer = Trainer(
        tiny_model(), arguments(tmp_path, max_steps=4), train_dataset=texts(8), callbacks=[monitor]
    )
    trainer.train()
    panel = monitor.imported.panel
    assert panel.steps.tolist() == [1, 2, 3, 4] and (panel["grad_norm"] > 0).all()
    assert panel["lr"][0] > panel["lr"][-1] and panel["grad_nonfinite"].tolist() == [0.0] * 4
    assert monitor.verdict.verdict == "not_observed"


def test_in_a_real_trainer_a_gradient_that_is_not_finite_stops_it(tmp_path: Path):
    class Broken(Trainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss * float("nan") if self.state.global_step >= 2 else loss

    alerts = []
    trainer = Broken(
        tiny_model(),
        arguments(tmp_path, max_steps=8),
        train_dataset=texts(16),
        callbacks=[RunMonitor(alerts.append, stop=1.0)],
    )
    trainer.train()
    assert trainer.state.global_step == 3
    assert {alert.step for alert in alerts} == {3} and "not finite" in alerts[0].message


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
def test_in_grpo_of_trl_all_of_its_keys_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from datasets import Dataset
    from trl import import_utils

    # Where vLLM is installed, TRL's trainers load all of it.
    monkeypatch.setattr(import_utils, "is_vllm_available", lambda *args, **kwargs: False)
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tiny_tokenizer(CHATML)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = tiny_model(len(tokenizer))
    model.save_pretrained(tmp_path / "model")  # TRL loads the reference from where the model came from
    verdicts = []
    monitor = RunMonitor(lambda alert: None, verdicts.append)
    config = GRPOConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        beta=0.1,
        seed=0,
    )
    trainer = GRPOTrainer(
        str(tmp_path / "model"),
        reward_funcs=lambda completions, **_: [float(len(str(text)) % 3) for text in completions],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": f"request {n}"} for n in range(8)]),
        processing_class=tokenizer,
        callbacks=[monitor],
    )
    trainer.train()
    found = monitor.imported
    assert found.panel.steps.tolist() == [1, 2, 3]
    assert set(found.panel.columns) >= {
        *("reward_mean", "reward_std", "zero_signal_frac", "kl_ref_k3", "entropy", "clip_frac"),
        *("grad_norm", "lr", "len_mean", "len_min", "len_max", "trunc_frac"),
    }
    assert monitor.verdict.type == verdicts[-1].type
