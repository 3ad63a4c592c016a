"""Errors that a user can cause, and helpers that build their messages.

Every check of user input produces `Issue`s that name the key; `ConfigError` carries all issues at
once and prints `file:line: key: message` for each.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError

Lines = Mapping[str, int]


@dataclass(frozen=True)
class Issue:
    """One problem in user input: its key ("" for the whole file) and the message."""

    key: str
    message: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = self.file and (f"{self.file}:{self.line}" if self.line else self.file)
        return ": ".join(part for part in (place, self.key, self.message) if part)


class AsclError(Exception):
    """Base class of all errors of this package that a user can cause."""


class DataError(AsclError, ValueError):
    """A dataset is missing, damaged or unreachable; the message says how to fix it."""


class CheckpointError(AsclError, ValueError):
    """A checkpoint cannot be used; the message says how to fix it."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file cannot be read, but an older checkpoint of the run may."""


class RunError(AsclError, ValueError):
    """A run cannot be built on this machine or with these images."""


class DivergedError(AsclError, RuntimeError):
    """The loss or the weights are no longer finite, so the run cannot continue."""

    def __init__(self, what: str, epoch: int, step: int, losses: list[float]) -> None:
        self.epoch, self.step, self.losses = epoch, step, losses
        trail = ", ".join(f"{x:.4g}" for x in losses) or "none"
        super().__init__(
            f"diverged: {what} at step {step} of epoch {epoch} (previous losses: {trail}); "
            "try a lower optim.lr or more optim.warmup_epochs"
        )


class ConfigError(AsclError, ValueError):
    """User input is invalid; carries every issue, and its text has one line for each."""

    def __init__(self, issues: Iterable[Issue]) -> None:
        self.issues = tuple(issues)
        super().__init__("\n".join(str(issue) for issue in self.issues))

    def at(self, file: str, lines: Lines) -> "ConfigError":
        """Return the same issues with the file and the line of each key."""

        def locate(issue: Issue) -> Issue:
            key = issue.key
            while key and key not in lines:  # report a missing key at its parent's line
                key = key.rpartition(".")[0]
            return replace(issue, file=file, line=lines.get(key))

        return ConfigError(sorted(map(locate, self.issues), key=lambda f: f.line or 0))

    def except_at(self, keys: Iterable[str], file: str, lines: Lines) -> "ConfigError":
        """Like `at`, but without a location for `keys`, which were not given in the file."""
        keys = set(keys)

        def is_elsewhere(issue: Issue) -> bool:
            parts = issue.key.split(".")
            own = {".".join(parts[: i + 1]) for i in range(len(parts))}
            return bool(own & keys) or any(key.startswith(f"{issue.key}.") for key in keys)

        elsewhere = [issue for issue in self.issues if is_elsewhere(issue)]
        rest = ConfigError(issue for issue in self.issues if not is_elsewhere(issue))
        return ConfigError([*elsewhere, *rest.at(file, lines).issues])


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)", or "" if no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


def suggest_key(word: str, known: Iterable[str]) -> str:
    """Like `suggestion`, for dotted keys: one with the same last part is the closest."""
    known = list(known)
    last = word.rpartition(".")[2]
    tails: dict[str, list[str]] = {}
    for key in known:
        tails.setdefault(key.rpartition(".")[2], []).append(key)
    if same := tails.get(last):
        close = difflib.get_close_matches(word, same, n=1, cutoff=0)
        return f" (did you mean '{close[0]}'?)"
    if near := suggestion(word, known):
        return near
    close = difflib.get_close_matches(last, tails, n=1)
    return f" (did you mean '{tails[close[0]][0]}'?)" if close else ""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with a list of the known ones."""
    known = sorted(known)
    return f"no {kind} named {name!r}{suggestion(str(name), known)}; there are: {', '.join(known)}"


FORM = "\0"
"""First character of the tag of one form of a value that has several; YAML keys do not have it."""


def explain_validation(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[Issue]:
    """Convert pydantic's errors to issues that state the rule and the value given."""
    issues = []
    for item in error.errors(include_url=False):
        path = [str(part) for part in item["loc"]]
        path = [part for part in path if not part.startswith(FORM)] or path
        key = ".".join([*([prefix] if prefix else []), *path])
        given = item.get("input")
        if item["type"] == "extra_forbidden":
            message = f"no such field{suggestion(path[-1], fields_at(model, path[:-1]))}"
        elif item["type"] == "missing":
            message = "must be given"
        elif item["type"] == "value_error":
            message = str(item["ctx"]["error"])
        else:
            rule = item["msg"].removeprefix("Input should be ")
            rule = rule.replace("a valid integer", "an integer").replace("valid ", "")
            rule = rule.replace("a tuple", "a list")  # YAML has no tuples
            hint = _as_list(given) if rule == "a list" else ""
            message = f"must be {rule}, got {'no value' if given is None else repr(given)}{hint}"
        issues.append(Issue(key, message))
    return issues


def _as_list(given: object) -> str:
    """Return a hint how to write a plain value as a list."""
    if given is None or isinstance(given, Mapping):
        return ""
    parts = given.split(",") if isinstance(given, str) else [str(given)]
    return f"; write [{', '.join(part.strip() for part in parts)}]"


def fields_at(annotation: Any, path: Sequence[object]) -> list[str]:
    """Return the field names of the model at a path; looks inside unions, lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if issubclass(annotation, RootModel):
            return fields_at(fields["root"].annotation, path)
        if not path:
            return list(fields)
        field = fields.get(str(path[0]))
        return fields_at(field.annotation, path[1:]) if field else []
    inside = get_args(annotation)
    if get_origin(annotation) in (list, dict):
        return fields_at(inside[-1], path[1:])
    if get_origin(annotation) is Annotated:
        inside = inside[:1]
    return [name for part in inside for name in fields_at(part, path)]
