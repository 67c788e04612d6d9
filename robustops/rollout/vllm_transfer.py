"""How new weights get into running vLLM servers: over a shared folder, or from GPU to GPU over NCCL."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.replicas import Replicas, Reply
from robustops.rollout.vllm_serve import free_port
from robustops.rollout.weights import write_weights

TRANSFERS = ("disk", "nccl")


class WeightTransfer(Protocol):
    """One way to hand weights to all replicas, none of which works on a request meanwhile."""

    def send(self, weights: Mapping[str, torch.Tensor], label: str) -> None:
        """Every replica holds these weights when this returns; SamplerError if one does not."""

    def close(self) -> None:
        """Give back files and connections."""


class DiskTransfer:
    """Writes a folder of weights, from which every replica reloads in place.

    folder: seen under the same path by trainer and servers; a file system in memory (/dev/shm) is the
    fastest. It holds the weights that the servers have, and no others.
    """

    def __init__(self, replicas: Replicas, folder: Path) -> None:
        self._replicas = replicas
        self._folder = folder.resolve()
        self._current: Path | None = None

    def send(self, weights: Mapping[str, torch.Tensor], label: str) -> None:
        target = self._folder / f"weights-{label}"
        try:
            write_weights(weights, target)
        except OSError as error:
            raise SamplerError(
                f"weights for the vLLM servers cannot be written to {self._folder}: {error}; choose another "
                "sampler.sync_folder"
            ) from error
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(target)}}
        try:
            self._replicas.post("/collective_rpc", reload)
        except SamplerError as error:
            shutil.rmtree(target, ignore_errors=True)
            raise SamplerError(f"{error}; start the vLLM servers anew, their weights may be mixed") from error
        self.close()
        self._current = target

    def close(self) -> None:
        if self._current is not None:
            shutil.rmtree(self._current, ignore_errors=True)
            self._current = None


class NCCLTransfer:
    """Broadcasts from this process's GPU to the workers of all replicas, in one NCCL group.

    The servers are started with --weight-transfer-config '{"backend": "nccl"}'. The group is made at the
    first transfer, with this process as rank 0 and vLLM's own trainer side of the protocol.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._source = _Weights()
        self._engine: Any = None

    def send(self, weights: Mapping[str, torch.Tensor], label: str) -> None:
        self._source.tensors = dict(weights)
        try:
            if self._engine is None:
                self._engine = self._connect()
            self._engine.send_weights()
        except SamplerError:
            raise
        except Exception as error:
            raise SamplerError(
                f"weights could not be sent over NCCL: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._source.tensors = {}

    def close(self) -> None:
        if self._engine is not None:
            with suppress(SamplerError):  # a server that is gone has nothing to give back
                self._replicas.post("/shutdown_weight_transfer_engine")
            self._engine.shutdown()
            self._engine = None

    def _connect(self) -> Any:
        try:
            from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
        except ImportError as error:
            raise ConfigError(
                f"sampler.weight_transfer=nccl needs vLLM beside the trainer ({error}); "
                "pip install 'robustops[vllm]', or choose disk"
            ) from error
        sizes = [int(reply["world_size"]) for reply in self._replicas.get("/get_world_size")]
        host = _address_towards(self._replicas.urls[0])
        info = NCCLTrainerInitInfo(host, free_port(""), 1 + sum(sizes), rank=0)
        return WeightTransferTrainerFactory.trainer_init(
            info, client=_AllReplicas(self._replicas, sizes), source=self._source.as_vllm()
        )


class _Weights:
    """What vLLM calls a weight source: names, types and shapes first, then the tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def as_vllm(self) -> Any:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

        held = self

        class Source(WeightSource):
            def metadata(self) -> list[ParamMeta]:
                return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in held.tensors.items()]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(held.tensors.items())

        return Source()


class _AllReplicas:
    """The four calls that vLLM's trainer side makes, each to every replica at once.

    sizes: workers of each replica, which follow one another in the group after the trainer.
    """

    def __init__(self, replicas: Replicas, sizes: list[int]) -> None:
        self._replicas = replicas
        self._sizes = sizes

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        offset = int(init_info["rank_offset"])
        bodies: list[Reply | None] = []
        for size in self._sizes:
            bodies.append({"init_info": {**init_info, "rank_offset": offset}})
            offset += size
        self._replicas.post_each("/init_weight_transfer_engine", bodies)

    def start_weight_update(self) -> None:
        self._replicas.post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._replicas.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._replicas.post("/finish_weight_update", {"weight_version": weight_version})


def _address_towards(url: str) -> str:
    """This machine's address as the server sees it; nothing is sent."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))
        return str(probe.getsockname()[0])
