"""The oracle recovers for the right reason: a knob that the catalogue names stands against the mechanism,
which goes on striking; without that knob the run stays as it was.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from robustops.bench.campaign.designs import design_of
from robustops.bench.campaign.folders import folder_of
from robustops.bench.campaign.plan import fault_overrides, planned
from robustops.bench.campaign.strengths import guessed
from robustops.bench.campaign.worker import run_one
from robustops.bench.remediation.case import CaseMaker, planned_case, read_journal
from robustops.bench.run_faults.catalog import CATALOG, all_mechanisms
from robustops.commands.composition import composed_training
from robustops.monitor.intervention.report import interventions
from robustops.monitor.panel import Panel
from robustops.monitor.telemetry import read_telemetry
from robustops.monitor.verdict import Verdict

STEPS, ONSET = 5, 3
SMALL = (
    *(f"grpo.steps={STEPS}", "grpo.groups=2", "grpo.group_size=4", "grpo.warmup_steps=0"),
    *("domain.train=40", "domain.val=2", "domain.test=2", "monitor.episodes=0"),
)
BOUNDS = ("monitor.canary=2", "monitor.cooldown=1", "monitor.budget=40")
#: Strong faults, and what no sound run shows: column, least and largest value; "of": the column it is held
#: against, in the same step, or "first": its own first value, as a factor.
SIGNS = {
    "episode_spike": ("reward_max", -math.inf, 1.4 + 1e-6, ""),
    "verifier_down": ("rewards.success.mean", -1e-6, 1e-6, "success_mean"),
    "lenient_verifier": ("rewards.success.mean", -1e-6, 1e-6, "success_mean"),
    "stop_at_once": ("empty_frac", -math.inf, 0.0, ""),
    "repetition_reward": ("rewards.progress.mean", -math.inf, 1.0, ""),
    "brevity_reward": ("rewards.progress.mean", -math.inf, 1.0, ""),
    "length_reward": ("rewards.progress.mean", -math.inf, 1.0, ""),
    "aggressive_updates": ("update_norm_rel", 0.0, 4.0, "first"),
    "skipped_updates": ("update_norm_rel", 1e-9, math.inf, ""),
    "stale_sampler": ("policy_lag_max", -math.inf, 0.0, ""),
    "swapped_baseline": ("adv_group_mean_absmax", -math.inf, 1e-4, ""),
    "sign_flips": ("adv_reward_corr", 0.5, math.inf, ""),
    "late_credit": ("adv_token_gap", -math.inf, 0.05, ""),
    "lagged_advantages": ("adv_reward_corr", 0.5, math.inf, ""),
    "repeat_last": ("rep4", -math.inf, 0.2, ""),
    "rejected_call": ("invalid_call_frac", -math.inf, 0.5, ""),
    "digit_noise": ("obs_roundtrip_mismatch_frac", -math.inf, 0.0, ""),
    "early_done": ("early_term_frac", -math.inf, 0.0, ""),
}
INFOS = {info.name: (fault, info) for fault, info in all_mechanisms()}


@dataclasses.dataclass(frozen=True)
class BySign:
    """A judge that knows one sign, and no cause."""

    column: str
    low: float
    high: float
    of: str

    def broken(self, panel: Panel) -> np.ndarray:
        values = panel[self.column]
        if self.of == "first":
            values = values / values[0]
        elif self.of:
            values = values - panel[self.of]
        return (values < self.low) | (values > self.high)

    def __call__(self, panel: Panel) -> Verdict:
        broken = self.broken(panel)
        if not broken[-1]:
            return Verdict("healthy")
        return Verdict("anomalous", int(panel.steps[broken.argmax()]), p_value=0.01)


def faulty(mechanism):
    """A planned run with the mechanism at full strength, short."""
    fault, _ = INFOS[mechanism]
    control = planned(seeds=1)[0]
    values = guessed(design_of(mechanism), "easy")
    injected = fault_overrides("run_fault", fault.name, mechanism, values, ONSET, 7)
    return dataclasses.replace(
        control,
        run_id=f"{control.run_id[:4]}{mechanism.replace('_', '')}",
        kind="fault",
        fault=fault.name,
        mechanism=mechanism,
        overrides=(*control.overrides, *SMALL, *injected),
        onset=ONSET,
    )


def panel_of(folder):
    return Panel.of(read_telemetry(folder / "telemetry.jsonl"))


def case(folder, run, arm, judge):
    planned_ = planned_case(run, arm, BOUNDS)
    run_one(planned_, folder / "cases", composed_training, CaseMaker(folder, judge))
    return folder_of(folder / "cases", planned_.run_id)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", SIGNS)
def test_the_oracle_recovers_by_a_knob_that_counters_the_mechanism_and_nobody_else_does(tmp_path, mechanism):
    run, judge = faulty(mechanism), BySign(*SIGNS[mechanism])
    run_one(run, tmp_path, composed_training)
    assert judge.broken(panel_of(folder_of(tmp_path, run.run_id))).any(), "the fault shows"

    mended = case(tmp_path, run, "oracle", judge)
    found = interventions(read_journal(mended))
    _, info = INFOS[mechanism]
    assert found["state"] == "repaired", [(e.kind, dict(e.changes), e.reason) for e in read_journal(mended)]
    assert found["in_force"].keys() & {counter.key for counter in info.countered_by}
    strikes = [json.loads(line)["touched"] for line in (mended / "exposure.jsonl").read_text().splitlines()]
    assert any(strikes[ONSET - 1 :]) and not any(strikes[: ONSET - 1]), "the mechanism strikes on"
    assert len(panel_of(mended)) == STEPS and not judge.broken(panel_of(mended)).any()

    unmended = case(tmp_path, run, "noop", judge)
    assert interventions(read_journal(unmended))["state"] == "untouched"
    assert (unmended / "telemetry.jsonl").read_bytes() == (
        folder_of(tmp_path, run.run_id) / "telemetry.jsonl"
    ).read_bytes()


def test_every_family_has_an_oracle_that_recovers_and_most_types_have():
    types = {INFOS[name][0].name for name in SIGNS}
    assert {INFOS[name][0].family for name in SIGNS} == {fault.family for fault in CATALOG.values()}
    assert set(CATALOG) - types == {"entropy_collapse"}, "its bonus weakens, at a strength that has to fit"
