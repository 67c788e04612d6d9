"""Turns Hydra's and OmegaConf's complaints about a request into one line that names what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from robustops.errors import ConfigError
from robustops.resources import conf_dir
from robustops.settings import TrainSettings

#: What Hydra, OmegaConf and the YAML reader raise over a wrong request.
COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
_PLAIN_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def explain(error: Exception, root: type) -> ConfigError:
    """The error as a ConfigError. root: the command's settings class."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, MissingConfigException):
        return _unknown_choice(error)
    if isinstance(error, OverrideParseException):
        return ConfigError(
            f"cannot read '{error.override}': write key=value or group=choice, lists as key=[a,b]"
        )
    if isinstance(cause, ConfigKeyError) or _is_key_error(cause):
        return _unknown_key(cause, root)
    if isinstance(cause, ValidationError):
        return _wrong_type(error, cause)
    text = str(error)
    if text.startswith("Ambiguous value"):
        override = text.split("'")[1]
        return ConfigError(
            f"{override} has several values; add --multirun to sweep over them, or write a list [a,b]"
        )
    if isinstance(error, ConfigCompositionException) and text.startswith("Could not override"):
        return ConfigError(f"{_first_line(text).rstrip('.')}; {_allowed(_names(root))}")
    detail = f"{text} {cause}" if cause is not None and cause is not error else text
    return ConfigError(" ".join(detail.split()))


def explain_value(error: ValueError, overrides: Iterable[str]) -> ConfigError:
    """A bare ValueError of Hydra: a group that was given something other than a name, or flags that clash."""
    for override in overrides:
        group, _, given = override.partition("=")
        if _files(group) and given not in _files(group):
            return ConfigError(f"unknown choice {group}={given}; {_allowed(_files(group))}")
    return ConfigError(" ".join(str(error).split()))


def unknown_keys(config: Any, root: type, path: str = "") -> Iterator[str]:
    """Dotted names in a composed config that the settings do not have (added with `+name=...`)."""
    known = {field.name: field for field in dataclasses.fields(root)}
    hints = typing.get_type_hints(root)
    for name, value in config.items():
        if name not in known:
            yield f"{path}{name}"
        elif dataclasses.is_dataclass(hints[name]) and isinstance(value, dict):
            yield from unknown_keys(value, typing.cast(type, hints[name]), f"{path}{name}.")


def refuse_unknown_keys(config: dict[str, Any], root: type) -> None:
    """ConfigError at the first key that was added and that no setting takes."""
    for key in unknown_keys(config, root):
        parent = key.rpartition(".")[0]
        raise _no_such_key(key, parent, _names(_descend(root, parent)), root)


# ------------------------------------------------------------------------------------------------
def _unknown_choice(error: MissingConfigException) -> ConfigError:
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    if not group:
        return ConfigError(f"no config named '{choice}'; {_allowed(error.options or ())}")
    options = [str(option) for option in error.options or ()] or _files(group)
    return ConfigError(f"unknown choice {group}={choice}{_close(choice, options)}; {_allowed(options)}")


def _is_key_error(cause: object) -> bool:
    return isinstance(cause, OmegaConfBaseException) and isinstance(cause, AttributeError)


def _unknown_key(cause: Any, root: type) -> ConfigError:
    key, owner = str(cause.full_key), cause.object_type
    names = _names(owner) if dataclasses.is_dataclass(owner) else []
    return _no_such_key(key, key.rpartition(".")[0], names, root)


def _no_such_key(key: str, parent: str, names: list[str], root: type) -> ConfigError:
    if parent and not names:  # a mapping with keys of its own
        return ConfigError(f"'{parent}' has no key '{key.rpartition('.')[2]}'; write +{key}=VALUE to add it")
    where = f" of '{parent}'" if parent else ""
    if not parent and root is TrainSettings:
        names = ["experiment", *names]  # a group that sets other groups, not a setting of its own
    name = key.rpartition(".")[2]
    elsewhere = [path for path in _paths(root) if path.rpartition(".")[2] == name]
    near = [".".join(filter(None, (parent, found))) for found in difflib.get_close_matches(name, names, n=1)]
    hint = "".join(f" (did you mean '{path}'?)" for path in [*elsewhere, *near][:1])
    return ConfigError(f"unknown key '{key}'{hint}; keys{where}: {', '.join(names)}")


def _wrong_type(error: Exception, cause: Any) -> ConfigError:
    """A value that the key's type does not take."""
    key, owner = str(cause.full_key or ""), cause.object_type
    given = str(error).removeprefix("Error merging override ") if "merging override" in str(error) else key
    name = key.rpartition(".")[2].partition("[")[0]
    hint = typing.get_type_hints(owner).get(name) if dataclasses.is_dataclass(owner) else None
    if hint is None:
        return ConfigError(f"{given} is refused: {_first_line(str(cause))}")
    allowed = f"{expected(hint)}{_choices(owner, name)}{_relocated(owner, name)}"
    return ConfigError(f"{given} has the wrong type; {key} takes {allowed}")


def _relocated(owner: Any, name: str) -> str:
    """How to choose for a section that takes its choices from the group of another one."""
    hints = typing.get_type_hints(owner)
    groups = [other for other in hints if hints[other] is hints[name] and other != name and _files(other)]
    if not dataclasses.is_dataclass(hints[name]) or not groups:
        return ""
    return f"; choose a whole one with {groups[0]}@{name}=CHOICE"


def expected(hint: Any) -> str:
    """A type hint in words."""
    if hint in _PLAIN_TYPES:
        return _PLAIN_TYPES[hint]
    if dataclasses.is_dataclass(hint):
        return f"keys: {', '.join(_names(hint))}"
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is list:
        items = "" if arguments[0] is Any else f", each item {expected(arguments[0])}"
        return f"a list, written [a,b]{items}"
    if typing.get_origin(hint) is dict:
        return "a mapping, written {key: value}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [expected(argument) for argument in arguments if argument is not type(None)]
        return " or ".join([*inner, "null"])
    return str(hint)


def _choices(owner: Any, name: str) -> str:
    choices = next((f.metadata.get("choices") for f in dataclasses.fields(owner) if f.name == name), None)
    return f": {', '.join(choices)}" if choices else ""


def _names(root: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(root)]


def _paths(root: Any, path: str = "") -> Iterator[str]:
    """Dotted names of all settings."""
    hints = typing.get_type_hints(root)
    for name in _names(root):
        yield f"{path}{name}"
        if dataclasses.is_dataclass(hints[name]):
            yield from _paths(hints[name], f"{path}{name}.")


def _descend(root: type, path: str) -> type:
    for name in filter(None, path.split(".")):
        root = typing.get_type_hints(root)[name]
    return root


def _files(group: str) -> list[str]:
    """Choices of a group that ship with the package."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def _close(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def _allowed(names: Iterable[str]) -> str:
    return f"choose one of: {', '.join(names)}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown error")
