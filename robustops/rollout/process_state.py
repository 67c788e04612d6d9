"""Keeps what belongs to the trainer from an engine in the same process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Undo what vLLM does to the process: it seeds the generators and replaces set_num_threads."""
    python, array = random.getstate(), np.random.get_state()
    setter, threads, dtype = torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()), device_type="cuda"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
        torch.set_num_threads = setter
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
