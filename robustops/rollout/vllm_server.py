"""Sampling from running vLLM servers: token ids in, sampled ids and their log-probs out.

The servers are the user's to start (`robustops.rollout.vllm_serve` does it, or says how). One policy may be
held by several of them, the replicas: requests of one episode, and of episodes that begin alike, go to the
same one, so that they meet its prefix cache. New weights reach all of them while nothing is in flight.
"""

from __future__ import annotations

import math
import queue
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robustops.errors import ConfigError, SamplerError, unknown_name
from robustops.rollout.limits import sampling_values, unfit
from robustops.rollout.prefix_stats import PrefixStats
from robustops.rollout.replicas import Failure, Replicas, Reply
from robustops.rollout.routes import Routes
from robustops.rollout.sampler import NOT_FINITE, Completion, NamedWeights, Request
from robustops.rollout.vllm_transfer import TRANSFERS, DiskTransfer, NCCLTransfer, WeightTransfer
from robustops.rollout.weights import Shapes, complete_weights

_GENERATE = "/inference/v1/generate"
#: Seconds that `poll` waits for the first answer.
_WAIT = 0.05
#: What vLLM sends instead of a log-prob that JSON cannot hold.
_NO_LOG_PROB = -9999.0
_LOG_PROBS = "processed_logprobs"


@dataclass(frozen=True)
class ServedModel:
    """What the servers hold. shapes: of the policy's weights by name; tied: the output head is the
    embedding; vocab_size: token ids are below it.
    """

    shapes: Shapes
    tied: bool
    vocab_size: int


class VLLMServerSampler:
    """Samples from vLLM servers; sampled ids, their log-probs under `temperature`, and nothing truncated.

    urls: of the replicas; model: what they hold; stop_ids: end-of-turn tokens; temperature: 0 is greedy;
    max_in_flight: requests sent at once (more may be queued); weight_transfer: `disk` (over sync_folder,
    which trainer and servers see under the same path) or `nccl` (from GPU to GPU); timeout, retries, pause:
    of one request, see `Replicas`; give_up_after: failed requests in a row that end the run; once: in a run
    of several processes, calls its argument in one of them and hands its result to all.
    """

    produces_tokens = True

    def __init__(
        self,
        urls: Sequence[str],
        model: ServedModel,
        stop_ids: Collection[int],
        *,
        sync_folder: Path,
        weight_transfer: str = "disk",
        temperature: float = 1.0,
        max_in_flight: int = 64,
        timeout: float = 120.0,
        retries: int = 3,
        pause: float = 0.5,
        api_key: str | None = None,
        give_up_after: int = 16,
        once: Callable[[Callable[[], str]], str] = lambda act: act(),
    ) -> None:
        if weight_transfer not in TRANSFERS:
            raise unknown_name("sampler.weight_transfer", weight_transfer, TRANSFERS)
        self.model = model
        self.stop_ids = sorted(stop_ids)
        self.temperature = temperature
        self.weight_version = 0
        self.give_up_after = give_up_after
        self.once = once
        self._replicas = Replicas(
            urls, api_key=api_key, max_in_flight=max_in_flight, timeout=timeout, retries=retries, pause=pause
        )
        try:
            self.max_model_len = _examine(self._replicas)
        except BaseException:
            self._replicas.close()
            raise
        self._transfer: WeightTransfer = (
            DiskTransfer(self._replicas, sync_folder)
            if weight_transfer == "disk"
            else NCCLTransfer(self._replicas)
        )
        self._routes = Routes(len(urls))
        self._open: dict[int, tuple[Request, Future[None]]] = {}
        self._done: queue.Queue[tuple[Request, Reply | Failure]] = queue.Queue()
        self._refused: list[Completion] = []
        self._label: str | None = None
        self._failed_in_a_row = 0
        self._prefixes = PrefixStats()

    # the contract -------------------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        remedy = "start the servers with a larger --max-model-len"
        reason = unfit(request, holds=self.max_model_len, vocab_size=self.model.vocab_size, remedy=remedy)
        if reason is not None:
            self._refused.append(Completion(request.session, error=reason))
            return
        replica = self._routes.of(request)
        work = self._replicas.send(
            replica, _GENERATE, self._body(request), lambda outcome: self._done.put((request, outcome))
        )
        self._open[request.session] = (request, work)

    def poll(self) -> list[Completion]:
        """Return the answers that have come; waits a moment for the first if there is none yet."""
        done, self._refused = self._refused, []
        until = time.monotonic() + (_WAIT if self._open and not done else 0.0)
        while self._open:
            try:
                request, outcome = self._done.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if (held := self._open.get(request.session)) is None or held[0] is not request:
                continue  # released meanwhile
            del self._open[request.session]
            done.append(self._completion(request, outcome))
            until = 0.0
        return done

    def release(self, session: int) -> None:
        """Close the connection of what is in flight, upon which the server drops it."""
        self._refused = [c for c in self._refused if c.session != session]
        self._routes.forget(session)
        if (held := self._open.pop(session, None)) is not None:
            held[1].cancel()

    def sync(self, weights: NamedWeights, version: int) -> None:
        """Load weights by their transformers names into every replica; none of the model's may be missing.

        Requests of other clients end before; caches of the old weights are dropped. SamplerError if one
        replica did not take the weights.
        """
        if self._open or self._refused:
            raise SamplerError("weights cannot change while requests are in flight; poll until none is left")
        named = complete_weights(dict(weights), self.model.shapes, tied=self.model.tied)
        # Versions may repeat over policies and runs; a label never does. If this fails, no answer has it.
        label = self._label = f"{version}-{uuid.uuid4().hex[:12]}"
        self._label = self.once(lambda: self._replace(named, label))
        self._routes = Routes(len(self._replicas.urls))
        self.weight_version = version

    def close(self) -> None:
        """Give up what is in flight and remove files; the servers go on."""
        for _, work in self._open.values():
            work.cancel()
        self._open.clear()
        self._refused.clear()
        self._transfer.close()
        self._replicas.close()

    def prefix_cache_stats(self) -> dict[str, float]:
        """Context tokens asked for and found in the prefix caches since the last call; see `PrefixStats`.

        Servers tell if started with --enable-prompt-tokens-details; the result is empty otherwise.
        """
        return self._prefixes.take()

    # ---------------------------------------------------------------------------------------------
    def _replace(self, weights: dict[str, torch.Tensor], label: str) -> str:
        """Put the weights into all replicas; the label that they carry from then on."""
        with self._paused():
            # Whatever is answered if this fails half-way must not pass for an answer of either weights.
            self._replicas.post("/update_weight_version", {"new_version": f"unfinished {label}"})
            self._transfer.send(weights, label)
            # Cached keys and values belong to the old weights.
            if not all(reply.get("success") for reply in self._replicas.post("/reset_prefix_cache")):
                raise SamplerError("a vLLM server could not reset its prefix cache; restart it")
            self._replicas.post("/update_weight_version", {"new_version": label})
        for url, reply in zip(self._replicas.urls, self._replicas.get("/weight_info"), strict=True):
            if reply.get("weight_version") != label:
                raise SamplerError(
                    f"{url} holds weights '{reply.get('weight_version')}' after '{label}' were sent; no "
                    "other run may use the same server"
                )
        return label

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """No replica works on a request in here; those of other clients end before."""
        self._replicas.post("/pause", mode="wait")
        try:
            yield
        except BaseException:
            with suppress(SamplerError):  # a failed reload may have ended the server
                self._replicas.post("/resume")
            raise
        self._replicas.post("/resume")

    def _body(self, request: Request) -> Reply:
        sampling = sampling_values(request, self.temperature, self.stop_ids)
        return {"token_ids": list(request.token_ids), "sampling_params": sampling}

    def _completion(self, request: Request, outcome: Reply | Failure) -> Completion:
        """The answer, or its failure; SamplerError if there is no point in going on."""
        if isinstance(outcome, Failure):
            self._failed_in_a_row += 1
            if outcome.gone:
                raise SamplerError(f"a vLLM server is gone: {outcome.message}; start it again and resume")
            if self._failed_in_a_row >= self.give_up_after:
                raise SamplerError(
                    f"{self._failed_in_a_row} requests in a row failed; last: {outcome.message}"
                )
            return Completion(request.session, error=outcome.message)
        self._failed_in_a_row = 0
        try:
            choice = outcome["choices"][0]
            self._check_label(choice)
            self._count_prefix(outcome)
            return _read(request.session, choice)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SamplerError(
                f"a vLLM server gave an answer of an unknown form ({type(error).__name__}: {error}); it must "
                "be vLLM 0.32 or later"
            ) from error

    def _check_label(self, choice: Reply) -> None:
        """All tokens must come from the weights of the last `sync`."""
        versions = {span["version"] for span in choice.get("weight_versions") or ()}
        if self._label is not None and versions - {self._label}:
            raise SamplerError(
                f"a vLLM server answered with weights '{min(versions - {self._label})}' instead of "
                f"'{self._label}': it was restarted, or another run uses it; give each run its own servers"
            )

    def _count_prefix(self, reply: Reply) -> None:
        usage = reply.get("usage") or {}
        if (details := usage.get("prompt_tokens_details")) is not None:
            self._prefixes.add(usage["prompt_tokens"], details.get("cached_tokens") or 0)


def _examine(replicas: Replicas) -> int:
    """Refuse servers that cannot serve a trainer; the smallest number of tokens that one of them holds."""
    lengths = [int(reply["data"][0]["max_model_len"]) for reply in replicas.get("/v1/models")]
    for url, info in zip(replicas.urls, replicas.get("/server_info", config_format="json"), strict=True):
        mode = info["vllm_config"]["model_config"].get("logprobs_mode")
        if mode != _LOG_PROBS:
            raise ConfigError(
                f"the vLLM server at {url} gives '{mode}', log-probs that leave out the temperature; start "
                f"it with --logprobs-mode {_LOG_PROBS}"
            )
    return min(lengths)


def _read(session: int, choice: dict[str, Any]) -> Completion:
    reason = choice["finish_reason"]
    if reason not in ("stop", "length"):
        return Completion(session, error=f"vLLM ended the request with '{reason}'")
    ids = tuple(choice["token_ids"])
    tokens = choice["logprobs"]["content"]
    if tuple(token["token_id"] for token in tokens) != ids:
        raise ValueError("log-probs belong to other tokens than those sampled")
    log_probs = tuple(float(token["logprob"]) for token in tokens)
    if not all(math.isfinite(value) and value > _NO_LOG_PROB for value in log_probs):
        return Completion(session, error=NOT_FINITE)
    return Completion(session, ids, log_probs, finished=reason == "stop")
