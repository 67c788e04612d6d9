"""Random generators depend on the root seed and the names, and on nothing else."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robustops.seeding import array_generator, child_seed, generator, shuffled_passes

NAMES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x1f")) | st.integers(), max_size=4)


def test_a_known_value_never_moves() -> None:
    """Published task ids and manifests hang on these numbers."""
    assert [child_seed(0, "task", 1), child_seed(1, "task", 1), child_seed(0, "task", 2)] == KNOWN


KNOWN = [7904526932975963967, 4457862458732507504, 7593703937840950052]


@given(st.integers(), NAMES)
def test_seeds_are_63_bit_and_repeatable(seed: int, names: list[str | int]) -> None:
    value = child_seed(seed, *names)
    assert 0 <= value < 2**63
    assert value == child_seed(seed, *names)
    assert generator(seed, *names).random() == random.Random(value).random()
    assert array_generator(seed, *names).random() == np.random.Generator(np.random.PCG64(value)).random()


@given(NAMES, NAMES)
def test_other_names_give_other_seeds(one: list[str | int], other: list[str | int]) -> None:
    same = list(map(str, one)) == list(map(str, other))
    assert (child_seed(3, *one) == child_seed(3, *other)) == same


def test_names_are_kept_apart() -> None:
    assert child_seed(0, "ab", "c") != child_seed(0, "a", "bc")
    assert child_seed(0, "a", "b") != child_seed(0, "b", "a")
    assert child_seed(1, 2) != child_seed(12)


def test_drawing_from_one_generator_moves_no_other() -> None:
    first = generator(7, "a").random()
    noisy = generator(7, "b")
    for _ in range(100):
        noisy.random()
    random.seed(1)
    np.random.seed(1)
    assert generator(7, "a").random() == first


def test_another_process_draws_the_same() -> None:
    code = "from robustops.seeding import child_seed; print(child_seed(5, 'worker', 3))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == child_seed(5, "worker", 3)


def test_child_seeds_are_spread_evenly() -> None:
    """4096 children over 16 bins of their top bits: chi-square with 15 degrees of freedom."""
    bins = np.bincount([child_seed(0, "spread", i) >> 59 for i in range(4096)], minlength=16)
    assert ((bins - 256) ** 2 / 256).sum() < 37.7  # 99.9 % quantile


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 30), st.integers())
def test_shuffled_passes_visit_everything_once_a_pass(size: int, first: int, count: int, seed: int) -> None:
    everything = shuffled_passes(range(5 * size), size, seed, "cases", "clean")
    for number in range(5):
        own = everything[number * size : (number + 1) * size]
        order = list(range(size))
        random.Random(child_seed(seed, "cases", "clean", number)).shuffle(order)
        assert own == order
    part = range(first, first + count)
    longer = shuffled_passes(range(first + count), size, seed, "x")
    assert shuffled_passes(part, size, seed, "x") == longer[first:], "where one begins changes nothing"
