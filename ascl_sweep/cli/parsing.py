"""Command classes: help without Python types, and errors of the command line in plain English.

Typer 0.29 shows `<bool>` beside flags and `<list[str]>` beside texts, and quotes pydantic.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from ascl.errors import suggestion

_VALUE_NAMES = {"str": "TEXT", "path": "PATH", "int": "INTEGER", "float": "NUMBER"}


class _PlainHelp:
    """Mixin of commands: help and usage name values as the documentation does."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param.display_type_rich = partial(_name_of_value, param)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in pieces]


class Command(_PlainHelp, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _explain(error)
            raise
        except typer.TyperException as error:
            option = getattr(error, "option_name", None)
            if option and (hint := self._hint(option, given)):
                error.message += f"; {hint}"
                if hasattr(error, "possibilities"):
                    error.possibilities = None  # similar names would only distract
            raise

    def _hint(self, option: str, given: Sequence[str]) -> str | None:
        """Return what to use instead of an unknown option; None if that is not known."""
        if option == "--debug":
            return f"--debug goes before the command: ascl-sweep --debug {self.name}"
        if any("--set" in param.opts for param in self.params):
            key = _config_key(option.removeprefix("--").replace("-", "_"))
            return key and f"use --set {key}={_value_after(option, given)}"
        return None


class Group(_PlainHelp, TyperGroup):
    """The group of all commands."""

    command_class = Command


def _name_of_value(param: Any, ctx: Any) -> str | None:
    """Return the name of a parameter's value in help; None for flags and arguments."""
    if param.param_type_name == "argument" or param.is_flag:
        return None
    if param.metavar is not None:
        return str(param.metavar)
    text = param.display_type(ctx=ctx).strip("<>")
    text = re.sub(r"^list\[(.*)\]$", r"\1", text).removesuffix(" range")
    return _VALUE_NAMES.get(text, text)


def _config_key(name: str) -> str | None:
    """Return the only config key with this name, or whose last part is this name."""
    from ascl.config import RunConfig

    keys = list(RunConfig.of({"data": {"name": "shapes"}}).flat_values())
    found = [key for key in keys if key == name] or [k for k in keys if k.endswith(f".{name}")]
    return found[0] if len(found) == 1 else None


def _value_after(option: str, given: Sequence[str]) -> str:
    for word, following in zip(given, [*given[1:], ""], strict=True):
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
        if word == option and following and not following.startswith("-"):
            return following
    return "VALUE"


def _explain(error: typer.BadParameter) -> str:
    """Return the message of an invalid value: the rule and the value given."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return error.message
    item = cause.errors(include_url=False)[0]
    given = item["input"]
    limits = item.get("ctx", {})
    if item["type"] == "greater_than_equal":
        return f"must be {limits['ge']} or more, got {given}"
    if item["type"] == "less_than_equal":
        return f"must be {limits['le']} or less, got {given}"
    message = item["msg"].removeprefix("Value error, ").removesuffix(".")
    if match := re.fullmatch(r"(.+) is not one of (.+)", message):
        choices = [choice.strip("'") for choice in match[2].split(", ")]
        near = suggestion(str(given), choices)
        return f"{match[1]} is not one of {', '.join(choices)}{near}"
    rule = re.sub(r"^Input should be |, unable to parse.*$", "", message)
    if rule == message:
        return message
    rule = rule.replace("a valid integer", "a whole number").replace("valid ", "")
    return f"must be {rule}, got {given!r}"
