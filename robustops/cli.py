"""`robustops <command> [hydra overrides]`: names the commands and imports only the one that is asked for."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Sequence

from robustops import __version__
from robustops.errors import ConfigError, RobustOpsError

COMMANDS = {
    "train": "Base -> SFT -> GRPO -> paired evaluation",
    "evaluate": "success of policies: clean, with tool faults, with the held-out fault family",
    "collect": "demonstrations from the scripted expert or a teacher, as SFT data",
    "tasks": "generate (and verify) the task catalogue of a domain",
    "serve": "a world for other people's agents, over MCP",
    "replay": "play recorded tool calls on fresh worlds",
    "bench": "RFT-FaultBench: training runs, healthy and with injected faults, by the thousand",
    "monitor": "what a training log says, of any trainer: healthy, or which fault from which step on",
    "doctor": "what this machine can run",
}

#: Quiet and offline unless the user says otherwise; set before a command imports anything heavy.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "offline"}


def usage() -> str:
    """The text of `robustops --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: robustops <command> [key=value ...]",
            "",
            "Train language-model agents to get work done with tools that fail.",
            "",
            "commands:",
            *lines,
            "",
            "start here:  robustops train experiment=quickstart",
            "more:        robustops <command> --help   groups, choices and values of a command",
            "             robustops <command> format=json   the last line printed is one JSON object",
            "             robustops --version",
            "exit status: 0 done, 1 the work failed, 2 the request was wrong",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        sys.stderr.write(usage() + "\n")
        return 2
    if arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage() + "\n")
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        sys.stdout.write(f"robustops {__version__}\n")
        return 0
    as_json = "format=json" in arguments
    try:
        check_command(arguments[0])
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from robustops.commands.runner import run_command

        return run_command(arguments[0], arguments[1:])
    except RobustOpsError as error:
        report_error(error, as_json=as_json)
        return error.exit_status


def check_command(name: str) -> None:
    """ConfigError where there is no such command."""
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ConfigError(f"unknown command '{name}'{hint}; choose one of: {', '.join(COMMANDS)}")


def report_error(error: RobustOpsError, *, as_json: bool) -> None:
    """One line on standard error and, where JSON was asked for, one object on standard output."""
    message = " ".join(str(error).split())
    sys.stderr.write(f"robustops: error: {message}\n")
    if as_json:
        body = {"error": {"kind": type(error).__name__, "message": message, "exit_status": error.exit_status}}
        sys.stdout.write(json.dumps(body) + "\n")


if __name__ == "__main__":
    sys.exit(main())
