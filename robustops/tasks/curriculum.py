"""Which templates training draws its cases from, by step: a curriculum, or a changed mix of requests.

    [{step: 1, weights: {chain: 1, sum_times: 1}}, {step: 12, weights: {nested: 3, chain: 1}}]

From its step on a phase holds until the next one begins. Weights say how often cases of a template come;
those of templates that are not named do not come. Before the first phase every case has its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustops.errors import ConfigError, unknown_name

_FORM = "give phases such as {step: 12, weights: {template: 1.0}}"


@dataclass(frozen=True)
class Phase:
    """step: the first one, from 1; weights: of templates, at least one above 0."""

    step: int
    weights: Mapping[str, float]

    def shares(self, templates: Collection[str]) -> dict[str, float]:
        """Which share of each template's cases is taken, in [0, 1]; all of the heaviest one's.

        (By how often cases come: templates with as many cases each come as often as their weights say.)
        """
        most = max(self.weights.values())
        return {template: self.weights.get(template, 0.0) / most for template in templates}


def parse_curriculum(phases: Sequence[Any]) -> tuple[Phase, ...]:
    """The phases of a setting; ConfigError where it is none, or where steps do not rise."""
    found: list[Phase] = []
    for phase in phases:
        if not isinstance(phase, Mapping) or set(phase) != {"step", "weights"}:
            raise ConfigError(f"grpo.curriculum has {phase!r}; {_FORM}")
        step, weights = phase["step"], phase["weights"]
        if not isinstance(step, int) or step < 1:
            raise ConfigError(f"grpo.curriculum has a phase with step={step!r}; steps count from 1")
        numbers = isinstance(weights, Mapping) and all(_is_weight(value) for value in weights.values())
        if not numbers or not any(value > 0 for value in weights.values()):
            raise ConfigError(
                f"grpo.curriculum has weights {weights!r}; give 0 or more, at least one above 0"
            )
        if found and step <= found[-1].step:
            raise ConfigError(f"grpo.curriculum has step {step} after {found[-1].step}; put phases in order")
        found.append(Phase(step, {str(name): float(value) for name, value in weights.items()}))
    return tuple(found)


def check_templates(phases: Sequence[Phase], templates: Collection[str]) -> None:
    """ConfigError for a template that the tasks do not have."""
    for phase in phases:
        for name in phase.weights:
            if name not in templates:
                raise unknown_name("template in grpo.curriculum", name, templates)


def phase_at(phases: Sequence[Phase], step: int) -> Phase | None:
    """The phase of a step (from 1); None before the first."""
    begun = [phase for phase in phases if phase.step <= step]
    return begun[-1] if begun else None


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
