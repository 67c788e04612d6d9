"""One number from the three reward parts: R = S + 0.3 P + 0.1 Q (RobustOps)."""

from __future__ import annotations

from dataclasses import dataclass

from robustops.records import RewardParts


@dataclass(frozen=True)
class RewardWeights:
    """Weights of success, progress and quality; 0 switches a part off."""

    success: float = 1.0
    progress: float = 0.3
    quality: float = 0.1


def total(parts: RewardParts, weights: RewardWeights | None = None) -> float:
    """The weighted sum R of raw parts, before any normalisation."""
    weights = weights or RewardWeights()
    return (
        weights.success * parts.success + weights.progress * parts.progress + weights.quality * parts.quality
    )
