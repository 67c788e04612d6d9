"""Sampling from the task templates' scripted experts: demonstrations, and an upper bound for agents."""

from __future__ import annotations

from collections.abc import Mapping

from robustops.errors import SamplerError, TaskError
from robustops.records import ToolCall
from robustops.rollout.sampler import Completion, NamedWeights, Request
from robustops.worlds.domain import Domain
from robustops.worlds.scripted import next_call


class ScriptedSampler:
    """Answers each request with what the template's expert does next, given the replies so far.

    domains: by name; they must include every task's domain. The expert sees the task's plan and the
    replies only, as an agent would, and recovers from tool faults. An expert that meets a reply it has
    no answer to gives a completion with `error`.
    """

    produces_tokens = False

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self.domains = domains
        self.weight_version = 0
        self._queue: list[Request] = []

    def submit(self, request: Request) -> None:
        self._queue.append(request)

    def poll(self) -> list[Completion]:
        queue, self._queue = self._queue, []
        return [self._answer(request) for request in queue]

    def release(self, session: int) -> None:
        self._queue = [request for request in self._queue if request.session != session]

    def sync(self, weights: NamedWeights, version: int) -> None:
        raise SamplerError("a scripted expert has no weights to train; choose sampler=hf or sampler=vllm")

    def close(self) -> None:
        self._queue.clear()

    # ---------------------------------------------------------------------------------------------
    def _answer(self, request: Request) -> Completion:
        task = request.task
        if task is None:
            raise SamplerError("a scripted expert needs the task; set Request.task and Request.history")
        domain = self.domains.get(task.domain)
        if domain is None:
            known = ", ".join(sorted(self.domains))
            raise SamplerError(
                f"no domain '{task.domain}' was given to the scripted sampler; it has: {known}"
            )
        try:
            move = next_call(domain, task, request.history)
        except TaskError as error:
            return Completion(request.session, error=f"scripted expert, task {task.id}: {error}")
        if isinstance(move, ToolCall):
            return Completion(request.session, call=move)
        return Completion(request.session, text=move)
