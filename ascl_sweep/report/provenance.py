"""Provenance of a report: the command that recreates it, and a checksum of its content.

Every format starts with the command. It names sweeps and options, but neither the store nor the
time, so that the same runs give the same file.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ascl.errors import ConfigError
from ascl.yaml_io import parse_yaml
from ascl_sweep.analysis.comparison import Options
from ascl_sweep.contracts import Scalar
from ascl_sweep.errors import UsageError
from ascl_sweep.report.report import Report

COMMAND = ("ascl-sweep", "report")
_SUM = re.compile(r"(?P<command>.*) # sha256 (?P<sum>[0-9a-f]{16})")


class NotAReport(UsageError):
    """A file that is not a report, or that is truncated."""


@dataclass(frozen=True)
class StoredReport:
    """The parts of a rendered report."""

    format: str
    header: str
    """The command that made it, with its checksum."""
    covered: str
    """The text that the checksum covers besides the command."""
    body: str
    """The text that is compared with a new report, line by line."""


@dataclass(frozen=True)
class Origin:
    """The parsed command of a report."""

    format: str
    sweeps: tuple[str, ...]
    options: Options


def build_command(report: Report, format: str) -> str:
    """Return the command that recreates this report."""
    options = report.options
    # No valid name is changed; any other could end the comment that the command stands in.
    names = (re.sub(r"[^\w.-]", "?", each.sweep.name, flags=re.ASCII) for each in report.sweeps)
    words = [*COMMAND, *names, "--format", format]
    words += ["--metric", options.metric] if options.metric else []
    words += ["--epoch", options.epoch, "--region", f"{options.region!r}"]
    for key, value in (options.baseline or {}).items():
        words += ["--baseline", f"{key}={_yaml(value)}"]
    return " ".join(map(shlex.quote, words))


def _yaml(value: Scalar) -> str:
    """Write a value for `parse_value`, on one line and without the end of a comment."""
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[A-Za-z0-9_.]+", value) and parse_value(value) == value:
        return value
    plain = "".join(
        c if re.match(r"[\w .,:;/+*()-]", c, re.ASCII) else f"\\U{ord(c):08x}" for c in value
    )
    return f'"{plain}"'


def parse_value(text: str) -> Scalar:
    """Parse a YAML scalar; raise UsageError for any other value."""
    value = parse_yaml(text)[0] if text.strip() else None
    if not isinstance(value, Scalar):
        raise UsageError(f"a value must be a word or a number, got {text!r}")
    return value


def parse_baseline(given: Sequence[str]) -> Mapping[str, Scalar] | None:
    """Parse KEY=VALUE texts; None if there are none."""
    baseline: dict[str, Scalar] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--baseline must be KEY=VALUE, got {text!r}; try method.relabel=none")
        if key.strip() in baseline:
            raise UsageError(f"--baseline must give each key once, got {key.strip()} twice")
        try:
            baseline[key.strip()] = parse_value(value)
        except ConfigError as error:
            raise UsageError(f"--baseline {text}: {error}") from error
    return baseline or None


def parse_command(text: str) -> Origin:
    """Parse the output of `build_command`; raise ValueError or KeyError for other text."""
    words = shlex.split(text)
    if tuple(words[:2]) != COMMAND:
        raise UsageError("it does not start with the command that made the report")
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


def seal(command: str, body: str) -> str:
    """Append a checksum of the command and the body to the command."""
    return f"{command} # sha256 {_checksum(command, body)}"


def open_seal(line: str, body: str) -> tuple[str, bool] | None:
    """Return the command of a sealed line and whether the checksum matches; None if unsealed."""
    found = _SUM.fullmatch(line.strip())
    return (found["command"], _checksum(found["command"], body) == found["sum"]) if found else None


def _checksum(command: str, body: str) -> str:
    """Ignore line endings and trailing spaces, which editors change."""
    lines = [line.rstrip() for line in f"{command}\n{body}".splitlines()]
    return hashlib.sha256("\n".join(lines).rstrip().encode()).hexdigest()[:16]
