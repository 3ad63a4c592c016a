"""What a report was made from: a command that makes it again, and a checksum of what it said.

The command is the first line of every format. It names sweeps and options, not the store nor the
time, so that the same runs give the same file.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ascl.faults import Faulty, parse_yaml
from ascl_sweep.ledger import Scalar
from ascl_sweep.report.ablation import Options
from ascl_sweep.report.report import Report

COMMAND = ("ascl-sweep", "report")
_SUM = re.compile(r"(?P<command>.*) # sha256 (?P<sum>[0-9a-f]{16})")


@dataclass(frozen=True)
class Origin:
    """A report's command, read."""

    format: str
    sweeps: tuple[str, ...]
    options: Options


def command(report: Report, format: str) -> str:
    """The command that makes this report again."""
    options = report.options
    words = [*COMMAND, *(sweep.sweep.name for sweep in report.sweeps), "--format", format]
    words += ["--metric", options.metric] if options.metric else []
    words += ["--epoch", options.epoch, "--region", f"{options.region!r}"]
    for key, value in (options.baseline or {}).items():
        words += ["--baseline", f"{key}={_yaml(value)}"]
    return " ".join(map(shlex.quote, words))


def _yaml(value: Scalar) -> str:
    """A value as `parse_value` reads it back, on one line and without the end of a comment."""
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[A-Za-z0-9_.]+", value) and parse_value(value) == value:
        return value
    plain = "".join(
        c if re.match(r"[\w .,:;/+*()-]", c, re.ASCII) else f"\\U{ord(c):08x}" for c in value
    )
    return f'"{plain}"'


def parse_value(text: str) -> Scalar:
    """A YAML value; raises ValueError if it is no plain one."""
    value = parse_yaml(text)[0] if text.strip() else None
    if not isinstance(value, Scalar):
        raise ValueError(f"a value must be a word or a number, got {text!r}")
    return value


def parse_baseline(given: Sequence[str]) -> Mapping[str, Scalar] | None:
    """KEY=VALUE, as many as there are."""
    baseline: dict[str, Scalar] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"--baseline must be KEY=VALUE, got {text!r}; try method.relabel=none")
        if key.strip() in baseline:
            raise ValueError(f"--baseline must give each key once, got {key.strip()} twice")
        try:
            baseline[key.strip()] = parse_value(value)
        except Faulty as error:
            raise ValueError(f"--baseline {text}: {error}") from error
    return baseline or None


def parse(text: str) -> Origin:
    """Read what `command` wrote; raises ValueError if it is not that."""
    words = shlex.split(text)
    if tuple(words[:2]) != COMMAND:
        raise ValueError("it does not start with the command that made it")
    words = words[2:]
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    names, rest = words[:first], words[first:]
    given: dict[str, list[str]] = {}
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        given.setdefault(name, []).append(value)
    options = Options(
        metric=given.get("--metric", [None])[0],
        epoch=given["--epoch"][0],
        baseline=parse_baseline(given.get("--baseline", [])),
        region=float(given["--region"][0]),
    )
    return Origin(given["--format"][0], tuple(names), options)


# ---------------------------------------------------------------- checksums


def sealed(command: str, body: str) -> str:
    """The command with a checksum of itself and the body."""
    return f"{command} # sha256 {_checksum(command, body)}"


def unsealed(line: str) -> tuple[str, str] | None:
    """The command and the checksum of a first line; None if it is no such line."""
    found = _SUM.fullmatch(line.strip())
    return (found["command"], found["sum"]) if found else None


def intact(command: str, checksum: str, body: str) -> bool:
    """Whether a body is as it was written."""
    return _checksum(command, body) == checksum


def _checksum(command: str, body: str) -> str:
    """What an editor does to the ends of lines is no change."""
    lines = [line.rstrip() for line in f"{command}\n{body}".splitlines()]
    return hashlib.sha256("\n".join(lines).rstrip().encode()).hexdigest()[:16]
