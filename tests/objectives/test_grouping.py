from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from robustops.objectives.grouping import sampled_together
from tests.learning.support import made_episode

EPISODE = made_episode([(4, 9)], 12, seed=0)


def of(case: str, condition: str, index: int):
    return dataclasses.replace(EPISODE, case_id=case, condition=condition, index=index)


def test_a_group_ends_where_case_condition_or_numbering_do():
    batch = [
        *(of("a", "clean", n) for n in (0, 1, 3)),
        *(of("a", "fault", n) for n in (4, 5)),
        *(of("b", "fault", n) for n in (6, 7)),
        *(of("b", "fault", n) for n in (0, 1)),
    ]
    assert sampled_together(batch) == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert sampled_together([]) == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["clean", "fault"]), st.integers(1, 4))))
def test_batches_of_whole_groups_are_told_apart(groups):
    """Equal cases may follow each other: a case is drawn again where there are few of them."""
    batch = [of(case, condition, index) for case, condition, size in groups for index in range(size)]
    expected = [number for number, (_, _, size) in enumerate(groups) for _ in range(size)]
    assert sampled_together(batch) == expected
