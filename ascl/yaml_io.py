"""YAML parsing with YAML 1.2 numbers and the line of every key."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ascl.errors import ConfigError, Issue


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with numbers as in YAML 1.2."""


# Unlike in YAML 1.1, 1e-3 is a number (not a string) and 1:30 is a string (not the number 90).
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
    """Return the value of a YAML text, and the line of every key ("a.b.0.c" → 7)."""
    lines: dict[str, int] = {}
    issues: list[Issue] = []

    def walk(node: yaml.Node, path: str) -> None:
        if path:
            lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key_node, value_node in node.value:
                line = key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    issues.append(Issue(path, "a key must be a scalar", line=line))
                    continue
                key = f"{path}.{key_node.value}" if path else str(key_node.value)
                if key_node.value in seen:
                    first = seen[key_node.value]
                    issues.append(Issue(key, f"given twice, first on line {first}", line=line))
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
            if issues:
                raise ConfigError(issues)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise ConfigError([Issue("", f"not YAML: {error.problem}", line=line)]) from error
    except (yaml.YAMLError, ValueError, OverflowError, KeyError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError([Issue("", f"not YAML: {error}".splitlines()[0])]) from error
    except RecursionError as error:
        raise ConfigError(
            [Issue("", "nested too deeply, or a YAML alias refers to itself")]
        ) from error


def read_yaml(path: str | Path) -> tuple[Any, dict[str, int]]:
    """Parse a file with `parse_yaml`; every issue names the file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([Issue("", f"cannot be read: {reason}", file=str(path))]) from error
    try:
        return parse_yaml(text)
    except ConfigError as config_error:
        raise ConfigError(
            replace(issue, file=str(path)) for issue in config_error.issues
        ) from config_error
