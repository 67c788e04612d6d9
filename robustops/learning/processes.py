"""The processes of one training run: who this one is, and what they tell each other.

A run on several devices is several processes, each started by torchrun (or by `commands.launch`). Objects
travel over gloo on the CPU, also where gradients travel over NCCL. Outside `connected` a process is alone:
`world()` is (0, 1) and every function below is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, TypeVar

import torch
from torch import distributed

from robustops.errors import ConfigError

T = TypeVar("T")

#: How long a process waits for the others. One may sample for hours while the others have finished; whoever
#: dies is noticed by the process that started them all, not by this.
PATIENCE = timedelta(days=7)


#: The connection of `gather_aside`, while there is one.
_aside: list[distributed.ProcessGroup] = []


class World(NamedTuple):
    """rank: number of this process, from 0; size: number of processes."""

    rank: int
    size: int


def world() -> World:
    """This process among those that are connected."""
    if distributed.is_available() and distributed.is_initialized():
        return World(distributed.get_rank(), distributed.get_world_size())
    return World(0, 1)


def rank() -> int:
    """Number of this process in the run that started it, connected or not."""
    return int(os.environ.get("RANK", "0"))


def leads() -> bool:
    """Whether this process is the one of its run that writes, prints and evaluates."""
    return rank() == 0


def check_started(size: int) -> None:
    """ConfigError unless this is one of `size` processes that were started together (0: one alone)."""
    started = int(os.environ.get("WORLD_SIZE", "0"))
    if size > 0 and started != size:
        raise ConfigError(
            f"the hardware profile asks for {size} connected processes, {started or 'none'} were started; "
            "use `robustops train`, or torchrun with nnodes x nproc-per-node = num_nodes x devices"
        )


@contextmanager
def connected(accelerator: str, size: int) -> Iterator[World]:
    """Connect the processes that the environment names (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    accelerator: `gpu` moves tensors of the device over NCCL, everything else goes over gloo; size: number
    of processes that the run needs, 0: it needs no connection, and nothing happens.

    Raises:
        ConfigError: other processes than `size` were started.
    """
    check_started(size)
    if size == 0:
        yield world()
        return
    if accelerator == "gpu":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if accelerator == "gpu" else "gloo"
    distributed.init_process_group(backend, timeout=PATIENCE)
    _aside.append(distributed.new_group(backend="gloo", timeout=PATIENCE))
    try:
        yield world()
    finally:
        _aside.clear()
        distributed.destroy_process_group()


def partitioned(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Parameters of which each process holds a part alone (DeepSpeed marks them, under ZeRO-3)."""
    return [parameter for parameter in module.parameters() if hasattr(parameter, "ds_id")]


def gather_objects(items: Sequence[T]) -> list[list[T]]:
    """The items of every process, in order of rank; each process gets the same lists.

    Items must be picklable. Every process must call it, as often as the others.
    """
    if world().size == 1:
        return [list(items)]
    return _gather(items, None)


def gather_aside(items: Sequence[T]) -> list[list[T]]:
    """`gather_objects` for another thread: over a connection of its own, so that the order in which the
    threads of a process come to their calls does not matter.
    """
    return [list(items)] if world().size == 1 else _gather(items, _aside[0])


def _gather(items: Sequence[T], group: distributed.ProcessGroup | None) -> list[list[T]]:
    parts: list[list[T]] = [[] for _ in range(world().size)]
    distributed.all_gather_object(parts, list(items), group=group)
    return parts


def total(values: Sequence[float]) -> list[float]:
    """Sums over all processes, number by number, in float64 and in order of rank."""
    return [sum(numbers) for numbers in zip(*gather_objects(values), strict=True)]


def barrier() -> None:
    """Wait until every process is here."""
    gather_objects([None])
