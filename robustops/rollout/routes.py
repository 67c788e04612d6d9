"""Which of several engines of the same model gets an episode."""

from __future__ import annotations

from robustops.rollout.sampler import Request


class Routes:
    """Which replica gets a session: the one that had its start before, else the one with the fewest."""

    def __init__(self, replicas: int) -> None:
        self._sessions: list[int] = [0] * replicas
        self._homes: dict[int, int] = {}
        self._starts: dict[tuple[int, ...], int] = {}

    def of(self, request: Request) -> int:
        home = self._homes.get(request.session)
        if home is None:
            fewest = min(range(len(self._sessions)), key=self._sessions.__getitem__)
            home = self._starts.setdefault(request.token_ids, fewest)
            self._homes[request.session] = home
            self._sessions[home] += 1
        return home

    def forget(self, session: int) -> None:
        if (home := self._homes.pop(session, None)) is not None:
            self._sessions[home] -= 1
        if not self._homes:
            self._starts.clear()
