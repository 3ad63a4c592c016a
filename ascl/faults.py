"""Faults: what is wrong with something a user wrote, all of it at once, in sentences.

A file is read with `read_yaml`, which remembers the line of every key; checks produce `Fault`s
that name the key; `Faulty` carries them all, and says `file:line: key: what is wrong`.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

Lines = Mapping[str, int]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the key it sits at ("" for the whole file), and the sentence."""

    key: str
    message: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = self.file and (f"{self.file}:{self.line}" if self.line else self.file)
        return ": ".join(part for part in (place, self.key, self.message) if part)


class Faulty(ValueError):
    """Raised with every fault of an input; its text has one line for each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))

    def at(self, file: str, lines: Lines) -> "Faulty":
        """The same faults with the file and the line where each key stands."""

        def located(fault: Fault) -> Fault:
            key = fault.key
            while key and key not in lines:  # a missing key is reported where its parent stands
                key = key.rpartition(".")[0]
            return replace(fault, file=file, line=lines.get(key))

        return Faulty(sorted(map(located, self.faults), key=lambda f: f.line or 0))

    def except_at(self, keys: Iterable[str], file: str, lines: Lines) -> "Faulty":
        """As `at`, but what stands at `keys` was said elsewhere and has no place in the file."""
        keys = set(keys)

        def said_there(fault: Fault) -> bool:
            parts = fault.key.split(".")
            own = {".".join(parts[: i + 1]) for i in range(len(parts))}
            return bool(own & keys) or any(key.startswith(f"{fault.key}.") for key in keys)

        elsewhere = [fault for fault in self.faults if said_there(fault)]
        rest = Faulty(fault for fault in self.faults if not said_there(fault))
        return Faulty([*elsewhere, *rest.at(file, lines).faults])


def suggestion(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """The sentence for a name that is not among the known ones, which it lists."""
    known = sorted(known)
    return f"no {kind} named {name!r}{suggestion(str(name), known)}; there are: {', '.join(known)}"


class _Loader(yaml.SafeLoader):
    """YAML as people write it: `1e-3` is a number, where YAML 1.1 sees a string."""


# Numbers are YAML 1.2's: 1e-3 is one, and 1:30 is not the 90 that YAML 1.1 takes it for.
_NUMBERS = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""^[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?
        |[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+0123456789."),
)


def parse_yaml(text: str) -> tuple[Any, dict[str, int]]:
    """The value of a YAML text, and the line of every key in it ("a.b.0.c" → 7)."""
    lines: dict[str, int] = {}
    faults: list[Fault] = []

    def walk(node: yaml.Node, path: str) -> None:
        if path:
            lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key_node, value_node in node.value:
                line = key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    faults.append(Fault(path, "a key must be a plain word", line=line))
                    continue
                key = f"{path}.{key_node.value}" if path else str(key_node.value)
                if key_node.value in seen:
                    first = seen[key_node.value]
                    faults.append(Fault(key, f"given twice, first on line {first}", line=line))
                seen[key_node.value] = line
                lines[key] = line
                walk(value_node, key)
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                walk(item, f"{path}.{i}" if path else str(i))

    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return {}, {}
            walk(node, "")
            if faults:
                raise Faulty(faults)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise Faulty([Fault("", f"not YAML: {error.problem}", line=line)]) from error
    except (yaml.YAMLError, ValueError, OverflowError, KeyError, AttributeError) as error:
        if isinstance(error, Faulty):
            raise
        raise Faulty([Fault("", f"not YAML: {error}".splitlines()[0])]) from error
    except RecursionError as error:
        raise Faulty([Fault("", "nested too deeply, or a YAML alias inside itself")]) from error


def read_yaml(path: str | Path) -> tuple[Any, dict[str, int]]:
    """`parse_yaml` of a file, with the file named in every fault."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Faulty([Fault("", f"cannot be read: {reason}", file=str(path))]) from error
    try:
        return parse_yaml(text)
    except Faulty as faulty:
        raise Faulty(replace(fault, file=str(path)) for fault in faulty.faults) from faulty


def of_validation(error: ValidationError, prefix: str, model: type[BaseModel]) -> list[Fault]:
    """pydantic's errors as our sentences: the rule, what was given, the way out."""
    faults = []
    for item in error.errors(include_url=False):
        path = [str(part) for part in item["loc"]]
        key = ".".join([*([prefix] if prefix else []), *path])
        given = item.get("input")
        if item["type"] == "extra_forbidden":
            message = f"no such field{suggestion(path[-1], _fields_at(model, path[:-1]))}"
        elif item["type"] == "missing":
            message = "must be given"
        elif item["type"] == "value_error":
            message = str(item["ctx"]["error"])
        else:
            rule = item["msg"].removeprefix("Input should be ")
            rule = rule.replace("a valid integer", "an integer").replace("valid ", "")
            rule = rule.replace("a tuple", "a list")  # YAML has no tuples
            message = f"must be {rule}, got {given!r}"
        faults.append(Fault(key, message))
    return faults


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The field names of the (nested) model at a path."""
    for part in path:
        field = model.model_fields.get(part)
        inner = field and field.annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
