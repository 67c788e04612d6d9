"""What is new about a run after each of its steps: alerts for a person, and the newest verdict."""

from __future__ import annotations

from robustops.monitor.alerts import Alert
from robustops.monitor.fitted import FittedMonitor
from robustops.monitor.judge import findings, verdict_of
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import Verdict
from robustops.monitor.wording import headline

#: Rows up to which every step is judged; of longer runs every second, third, ... one is, so that watching
#: costs no more of a step the longer a run gets.
EVERY_ROW = 128


class Observer:
    """Judges a growing run. fitted: by its healthy runs, None: by rules. verdict: the newest one, None before
    any.
    """

    def __init__(self, fitted: FittedMonitor | None = None) -> None:
        self.fitted = fitted
        self.verdict: Verdict | None = None
        #: What was said: rules, or causes.
        self.told: set[str] = set()

    def look(self, panel: Panel, stage: str) -> list[Alert]:
        """Judge after the panel's last row; what was not said before."""
        rows = len(panel)
        if rows % (1 + rows // EVERY_ROW):
            return []
        return self._by_rules(panel, stage) if self.fitted is None else self._by_healthy_runs(panel, stage)

    def _by_rules(self, panel: Panel, stage: str) -> list[Alert]:
        found = findings(panel, growing=True)
        self.verdict = verdict_of(panel, found)
        new = [one for one in found if one.rule not in self.told]
        self.told |= {one.rule for one in new}
        return [Alert(stage, one.evidence.step, one.rule, one.severity, one.evidence.text) for one in new]

    def _by_healthy_runs(self, panel: Panel, stage: str) -> list[Alert]:
        assert self.fitted is not None
        self.verdict = verdict = self.fitted.judge(panel, growing=True)
        kind = f"{verdict.family}/{verdict.type}"
        if verdict.verdict != "anomalous" or kind in self.told:
            return []
        self.told.add(kind)
        because = "".join(f"; {one.text}" for one in verdict.evidence[:2])
        text = f"{headline(verdict)} (p {verdict.p_value:.3g}){because}"
        return [Alert(stage, int(panel.steps[-1]), kind, verdict.severity, text)]
