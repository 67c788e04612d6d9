"""Which episodes are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence

from robustops.records import Episode


def sampled_together(episodes: Sequence[Episode]) -> list[int]:
    """(episodes,) number of each episode's group, from 0, by what the episodes say of themselves.

    Members of a group stand side by side and are numbered upwards: a new group begins where the case or the
    condition changes, or where the number does not grow. So neither ids that a batch was given nor prompts
    that happen to be equal can put episodes together that were not sampled together.
    """
    numbers: list[int] = []
    for place, episode in enumerate(episodes):
        before = episodes[place - 1] if place else episode
        same = (before.case_id, before.condition) == (episode.case_id, episode.condition)
        new = place > 0 and not (same and episode.index > before.index)
        numbers.append((numbers[-1] + new) if numbers else 0)
    return numbers
