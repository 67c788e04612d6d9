"""Random generators seeded by (root seed, names): order and worker count change nothing."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

import numpy as np


def child_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends only on the root seed and the names."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> random.Random:
    """Standard-library generator for the given names."""
    return random.Random(child_seed(seed, *names))


def shuffled_passes(places: range, size: int, seed: int, *names: str | int) -> list[int]:
    """Items at the given places of an endless sequence of passes over 0 .. size - 1.

    Every pass is a permutation of its own, which depends on the root seed, the names and its number only.
    """
    return [_order(size, seed, (*names, place // size))[place % size] for place in places]


@lru_cache(maxsize=8)
def _order(size: int, seed: int, names: tuple[str | int, ...]) -> tuple[int, ...]:
    order = list(range(size))
    generator(seed, *names).shuffle(order)
    return tuple(order)


def array_generator(seed: int, *names: str | int) -> np.random.Generator:
    """Numpy generator for the given names."""
    return np.random.Generator(np.random.PCG64(child_seed(seed, *names)))
