"""How much of the contexts a sampler took from its prefix cache instead of reading it again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PrefixStats:
    """Counts context tokens of requests between two calls of `take`."""

    queried: int = 0
    hit: int = 0

    def add(self, queried: int, hit: int) -> None:
        """A request with `queried` tokens of context, of which the cache held `hit`."""
        self.queried += queried
        self.hit += hit

    def take(self) -> dict[str, float]:
        """queried_tokens, hit_tokens and hit_rate, empty where nothing was counted; counts from 0 again."""
        queried, hit = float(self.queried), float(self.hit)
        self.queried = self.hit = 0
        if not queried:
            return {}
        return {"queried_tokens": queried, "hit_tokens": hit, "hit_rate": hit / queried}
