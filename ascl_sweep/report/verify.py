"""Recompute an earlier report from the store and compare the two line by line.

The first line of a report holds the command that made it, which also recreates it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest

from ascl_sweep.report.formats.base import load_formats
from ascl_sweep.report.provenance import (
    NotAReport,
    StoredReport,
    open_seal,
    parse_command,
)
from ascl_sweep.report.report import Extension, build_report
from ascl_sweep.store.store import Store

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-−]?\d+)?")
_PRECISE = re.compile(r"\d+\.\d{9,}(?:e-?\d+)?")


@dataclass(frozen=True)
class Change:
    """A line that differs; None if the line is missing in the old or the new report."""

    old: str | None
    new: str | None

    def __str__(self) -> str:
        lines = (("-", self.old), ("+", self.new))
        return "\n".join(f"{sign} {line}" for sign, line in lines if line is not None)


@dataclass(frozen=True)
class Verification:
    """Result of comparing an earlier report with the store."""

    numbers: int
    """Number of recomputed numbers."""
    changes: tuple[Change, ...]
    edited: bool
    """Whether the file was changed after it was written."""


def verify(text: str, store: Store, extensions: Sequence[Extension] = ()) -> Verification:
    """Compare an earlier report with the store; raise NotAReport if the text is not a report."""
    formats = load_formats()
    read = (format.read(text.removeprefix("\ufeff")) for format in formats.values())
    old = next((found for found in read if found is not None), None)
    opened = open_seal(old.header, old.covered) if old else None
    if old is None or opened is None:
        raise NotAReport("it does not start with the command that made the report")
    command, intact = opened
    try:
        made = parse_command(command)
    except (ValueError, KeyError) as error:
        raise NotAReport(f"the command in the first line was edited: {command}") from error
    report = build_report(store, made.sweeps, made.options, extensions)
    format = formats[old.format]
    new = format.read(format.render(report))
    assert new is not None
    return Verification(
        numbers=len(_NUMBER.findall(new.body)),
        changes=tuple(_compare(old, new)),
        edited=made.format != old.format or not intact,
    )


def _compare(old: StoredReport, new: StoredReport) -> Iterator[Change]:
    a, b = (found.body.splitlines() for found in (old, new))
    plain_a, plain_b = _normalize(a), _normalize(b)
    for kind, i, j, k, m in SequenceMatcher(a=plain_a, b=plain_b).get_opcodes():
        if kind != "equal":
            pairs = zip_longest(plain_a[i:j], plain_b[k:m])
            lines = zip_longest(a[i:j], b[k:m])
            yield from (
                Change(*both) for both, pair in zip(lines, pairs, strict=True) if pair[0] != pair[1]
            )


def _normalize(lines: Sequence[str]) -> list[str]:
    """Ignore trailing spaces and last digits, which differ between machines."""
    return [_PRECISE.sub(lambda found: f"{float(found[0]):.9g}", line).rstrip() for line in lines]
