"""One exception per boundary; each message says what was given, what is allowed and what to do.

A `RobustOpsError` is an expected failure: commands turn it into one line and an exit status. Anything
else is a bug and keeps its traceback. A failure *inside an episode* is recorded on the episode (see
`records.EpisodeError`); an injected tool fault is not an error at all but an observation.
"""

from __future__ import annotations

from collections.abc import Iterable


class RobustOpsError(Exception):
    """Base of all expected failures."""

    exit_status = 1


class ConfigError(RobustOpsError):
    """The request was wrong: unknown name, wrong type, values that do not go together."""

    exit_status = 2


class TaskError(RobustOpsError):
    """A task file or task generator broke its contract."""


class WorldError(RobustOpsError):
    """A world could not be built, restored or evaluated."""


class ToolError(RobustOpsError):
    """A tool refused a call. The agent sees it as a structured error result.

    code: upper-case identifier such as NOT_FOUND; field: argument at fault, if one is;
    allowed: admissible values, if the argument is an enumeration.
    """

    def __init__(
        self, code: str, message: str, field: str | None = None, allowed: Iterable[str] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.allowed = sorted(allowed) if allowed is not None else None


class TransportError(WorldError):
    """A world served over MCP or HTTP could not be reached, or answered outside its protocol."""


class SamplerError(RobustOpsError):
    """The sampling engine or endpoint failed; the episode it served is invalid."""


class RewardError(RobustOpsError):
    """A reward part could not be computed; the episode is invalid, never worth 0."""


class TrainingError(RobustOpsError):
    """Training cannot go on: nothing completed, or a value is not finite."""


class RunPaused(RobustOpsError):
    """The run monitor stopped a run for a person to look; it can be gone on with."""


class DatasetError(ConfigError):
    """A data set on disk cannot be used, or cannot be made from what is there."""


def unknown_name(kind: str, given: str, known: Iterable[str]) -> ConfigError:
    """A uniform message for a name that is not in a registry."""
    return ConfigError(f"unknown {kind} '{given}'; choose one of: {', '.join(sorted(known))}")
