"""The sampler that the settings name, for a given policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from robustops.errors import ConfigError, SamplerError, unknown_name
from robustops.learning.adapters import merged_weights, plain_copy
from robustops.learning.policy import Policy
from robustops.learning.processes import barrier, gather_objects, world
from robustops.rollout.hooks import NO_HOOKS, RolloutHooks
from robustops.rollout.sampler import Sampler
from robustops.settings import ModelSettings, SamplerSettings
from robustops.worlds.domain import Domain

SAMPLERS = ("hf", "openai", "scripted", "vllm", "vllm_server")
#: Those that give tokens with log-probs and take new weights.
TRAINABLE = ("hf", "vllm", "vllm_server")


class SamplerPool:
    """Samplers of a run's policies. An engine that is slow to start is started once and then re-weighted.

    work_dir: where an engine that loads from disk finds its first weights.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        model: ModelSettings,
        domains: dict[str, Domain],
        work_dir: Path,
    ) -> None:
        self.settings = settings
        self.model = model
        self.domains = domains
        self.work_dir = work_dir
        self._kept: Sampler | None = None

    def of(
        self,
        policy: Policy,
        *,
        temperature: float | None = None,
        own_weights: bool = False,
        hooks: RolloutHooks = NO_HOOKS,
    ) -> Sampler:
        """A sampler that holds this policy's weights; the one returned before must be idle by now.

        temperature: overrides the settings'; own_weights: the policy's weights may change while it samples;
        hooks: for samplers that offer logits (hf).
        """
        chosen = self.settings.temperature if temperature is None else temperature
        if self.settings.name == "hf":
            from robustops.rollout.hf import HFSampler

            return HFSampler(
                plain_copy(policy.model) if own_weights else policy.model,
                policy.renderer.stop_ids,
                temperature=chosen,
                max_in_flight=self.settings.max_in_flight,
                prefill_tokens=self.settings.prefill_tokens,
                shared=not own_weights,
                hooks=hooks,
            )
        if self.settings.name == "vllm":
            return self._vllm(policy, chosen)
        if self.settings.name == "vllm_server":
            return self._vllm_server(policy, chosen)
        if self.settings.name == "openai":
            return _openai(self.settings, chosen)
        if self.settings.name == "scripted":
            return self.scripted()
        raise unknown_name("sampler", self.settings.name, SAMPLERS)

    def scripted(self) -> Sampler:
        """The scripted experts of the domains."""
        from robustops.rollout.scripted import ScriptedSampler

        return ScriptedSampler(self.domains)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _vllm(self, policy: Policy, temperature: float) -> Sampler:
        from robustops.rollout.vllm import VLLMSampler

        if isinstance(self._kept, VLLMSampler):
            self._kept.temperature = temperature
            self._kept.sync(merged_weights(policy.model), 0)
            return self._kept
        engine: dict[str, float] = {}
        if torch.cuda.is_available():
            engine["gpu_memory_utilization"] = self.settings.memory_fraction
        folder = self.work_dir / "engine_weights"
        policy.save(folder)
        self._kept = VLLMSampler(
            str(folder),
            policy.renderer.stop_ids,
            temperature=temperature,
            max_in_flight=self.settings.max_in_flight,
            max_model_len=self.model.context_tokens,
            dtype=self.model.dtype,
            sleep_level=self.settings.sleep_level,
            engine=engine,
        )
        return self._kept

    def _vllm_server(self, policy: Policy, temperature: float) -> Sampler:
        from robustops.rollout.vllm_server import ServedModel, VLLMServerSampler

        if not isinstance(self._kept, VLLMServerSampler):
            settings, config = self.settings, policy.model.config
            folder = Path(settings.sync_folder or self.work_dir / "engine_weights")
            if world().rank == 0:
                config.save_pretrained(folder)
            shapes = {name: tuple(tensor.shape) for name, tensor in merged_weights(policy.model)}
            self._kept = VLLMServerSampler(
                settings.urls,
                ServedModel(shapes, _tied(config), config.get_text_config().vocab_size),
                policy.renderer.stop_ids,
                sync_folder=folder,
                weight_transfer=settings.weight_transfer,
                max_in_flight=settings.max_in_flight,
                timeout=settings.timeout_s,
                retries=settings.retries,
                api_key=os.environ.get(settings.api_key_env),
                once=on_first_process,
            )
            if (holds := self._kept.max_model_len) < self.model.context_tokens:
                raise ConfigError(
                    f"the vLLM servers hold {holds} tokens, model.context_tokens is "
                    f"{self.model.context_tokens}; start them with --max-model-len "
                    f"{self.model.context_tokens}"
                )
        self._kept.temperature = temperature
        self._kept.sync(merged_weights(policy.model), 0)
        return self._kept


def _tied(config: PreTrainedConfig) -> bool:
    return bool(getattr(config, "tie_word_embeddings", False))


def on_first_process(act: Callable[[], str]) -> str:
    """Call `act` in one process of the run, once all have come here; each gets its result or its error."""
    if world().size == 1:
        return act()
    barrier()
    outcome: list[str | SamplerError] = []
    if world().rank == 0:
        try:
            outcome.append(act())
        except SamplerError as error:
            outcome.append(error)
    (result,) = gather_objects(outcome)[0]
    if isinstance(result, SamplerError):
        raise result
    return result


def _openai(settings: SamplerSettings, temperature: float) -> Sampler:
    from robustops.rollout.openai import OpenAISampler

    if settings.base_url is None or settings.model is None:
        raise ConfigError(
            "sampler=openai needs sampler.base_url and sampler.model, e.g. "
            "sampler.base_url=http://127.0.0.1:8000/v1 sampler.model=my-model"
        )
    if settings.api_key_env not in os.environ:
        raise ConfigError(f"sampler=openai reads its key from ${settings.api_key_env}, which is not set")
    return OpenAISampler(
        settings.model,
        settings.base_url,
        api_key_env=settings.api_key_env,
        max_in_flight=settings.max_in_flight,
        temperature=temperature,
        timeout=settings.timeout_s,
        retries=settings.retries,
    )
