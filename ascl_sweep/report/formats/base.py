"""Base classes of report formats. To add a format, add a module with a `FORMAT` to this package."""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ascl_sweep.report import formats
from ascl_sweep.report.figures.model import Figure
from ascl_sweep.report.provenance import StoredReport, build_command, seal
from ascl_sweep.report.report import Report
from ascl_sweep.store.store import Store


@dataclass(frozen=True)
class Picture:
    """A figure in a file."""

    title: str
    caption: str
    file: Path


@dataclass(frozen=True)
class Target:
    """Inputs that some formats need besides the report."""

    store: Store | None = None
    """The store that the report was built from."""
    folder: Path = Path()
    """The folder that the report is written to."""
    pictures: Sequence[Picture] = ()
    figures: Mapping[str, Sequence[Figure]] = field(default_factory=dict)
    """Additional figures, by sweep."""


DEFAULT_TARGET = Target()


class Format(ABC):
    """One way to render a report as text."""

    name: ClassVar[str]
    """Value of `--format`."""
    suffixes: ClassVar[tuple[str, ...]]
    """File suffixes; empty for a terminal format."""

    @abstractmethod
    def render(self, report: Report, target: Target = DEFAULT_TARGET) -> str: ...

    @abstractmethod
    def read(self, text: str) -> StoredReport | None:
        """Split a rendered report for `verify`; None if the text has another format."""


class CommentedFormat(Format):
    """A format whose first line is a comment with the command that made the report."""

    comment: ClassVar[tuple[str, str]]
    """Start and end of the comment."""

    @abstractmethod
    def render_body(self, report: Report, target: Target) -> str:
        """Render everything below the first line."""

    def render(self, report: Report, target: Target = DEFAULT_TARGET) -> str:
        body = self.render_body(report, target)
        start, end = self.comment
        return f"{start} {seal(build_command(report, self.name), body)}{end}\n{body}"

    def read(self, text: str) -> StoredReport | None:
        start, end = self.comment
        if not text.startswith(start):
            return None
        line, _, rest = text.partition("\n")
        header, body = line.removeprefix(start).strip().removesuffix(end.strip()), rest.lstrip()
        return StoredReport(self.name, header, covered=body, body=body)


def load_formats() -> dict[str, Format]:
    """Import all modules of this package and return their formats by name."""
    names = (module.name for module in pkgutil.iter_modules(formats.__path__, f"{__package__}."))
    found = (getattr(importlib.import_module(name), "FORMAT", None) for name in names)
    return {format.name: format for format in found if format is not None}
