"""Panels, verdicts and a machine to decide with, for tests of intervention."""

from __future__ import annotations

import sqlite3

import numpy as np
from sqlite_utils.db import Database

from robustops.learning.fingerprint import flat_settings
from robustops.monitor.intervention.journal import Journal
from robustops.monitor.intervention.planners import RulePlanner
from robustops.monitor.intervention.policy import Bounds, Remediation
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import Evidence, Verdict
from robustops.settings import SamplerSettings, TrainSettings

SETTINGS = flat_settings(TrainSettings(sampler=SamplerSettings("hf")))
HEALTHY = Verdict("healthy")
STEPS = 40


def evidence(column, step=5):
    return Evidence("kl", column, step, 2.0, 0.0, 1.0, 9.0, f"{column} is high")


def anomalous(kind="kl_explosion", onset=5, columns=("update_norm_rel",), **facts):
    family = "optimisation" if kind == "kl_explosion" else "reward"
    labels = facts.pop("labels", {kind: 1.0})
    return Verdict(
        "anomalous", onset, family, kind, labels, 0.9, evidence=tuple(map(evidence, columns)), **facts
    )


def panel(steps, success=0.5):
    """Steps 1 .. steps; success: a number, or one for each step."""
    rows = np.arange(1, steps + 1)
    return Panel(rows, {"success_mean": np.broadcast_to(np.asarray(success, float), rows.shape).copy()})


def journal():
    return Journal(Database(sqlite3.connect(":memory:")))


class Scripted:
    """A judge whose verdicts are given by step; the others are healthy. calls: steps it was asked about."""

    def __init__(self, **by_step):
        self.verdicts = {int(name[1:]): verdict for name, verdict in by_step.items()}
        self.calls = []

    def __call__(self, seen):
        step = int(seen.steps[-1])
        self.calls.append(step)
        return self.verdicts.get(step, HEALTHY)


def machine(judge, planner=None, settings=SETTINGS, book=None, said=None, **bounds):
    say = (lambda line: None) if said is None else said.append
    return Remediation(
        judge,
        planner or RulePlanner(),
        journal() if book is None else book,
        settings,
        STEPS,
        Bounds(**bounds),
        say,
    )
