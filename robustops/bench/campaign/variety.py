"""What differs between seed groups beside the seed: a healthy profile of seeds alone would be too narrow.

Learning rate, KL weight and token budget of a message are drawn once for a group and hold for its control and
all of its faults (RFT-FM research note, section 1.1: a narrow profile gives false claims of transfer).
"""

from __future__ import annotations

import itertools

from robustops.seeding import shuffled_passes

#: Factors on the learning rate of experiment=faultbench, weights of the KL, tokens of a message.
RATES = {"slow": 0.7, "usual": 1.0, "fast": 1.4}
LEARNING_RATE = 3e-4
KL_WEIGHTS = {"loose": 0.005, "middle": 0.01, "tight": 0.02}
BUDGETS = (12, 16)
_ALL = tuple(itertools.product(RATES, KL_WEIGHTS, BUDGETS))


def variety(root: int, group: int) -> tuple[str, tuple[str, ...]]:
    """Name and overrides of a seed group's variety; each is as frequent as another."""
    (place,) = shuffled_passes(range(group, group + 1), len(_ALL), root, "variety")
    rate, kl, budget = _ALL[place]
    overrides = (
        f"grpo.learning_rate={LEARNING_RATE * RATES[rate]:.6g}",
        f"grpo.kl={KL_WEIGHTS[kl]}",
        f"model.answer_tokens={budget}",
    )
    return f"{rate}-{kl}-{budget}", overrides
