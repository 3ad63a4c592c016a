"""`ascl-sweep report`: report the results of the sweeps in a store."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from ascl_sweep.cli.common import Names, StoreOption, data, interruptible, talk, warn
from ascl_sweep.cli.errors import BAD_INPUT, fail
from ascl_sweep.errors import UsageError
from ascl_sweep.text import plural, printable

if TYPE_CHECKING:
    from ascl_sweep.analysis.comparison import Options
    from ascl_sweep.report.figures.model import Figure
    from ascl_sweep.report.formats.base import Format, Picture
    from ascl_sweep.report.report import Report
    from ascl_sweep.store.store import Store

CHANGED = 1


def report(
    names: Names = None,
    store_address: StoreOption = "results",
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Output format, e.g. md, latex, html or csv. Default: from the suffix of --out; "
            "without --out, tables on a terminal and Markdown otherwise.",
            metavar="FORMAT",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: stdout.", metavar="FILE")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric to report, e.g. purity. Default: table.metric of the sweep."),
    ] = None,
    epoch: Annotated[
        Literal["last", "best"], typer.Option(help="Epoch of each run to report.")
    ] = "last",
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="Arm to compare the others with, e.g. method.relabel=none. Repeatable. "
            "Default: table.baseline of the sweep.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    region: Annotated[
        float | None, typer.Option(help="Equivalence margin in percentage points. Default: 0.5.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write all figures to this folder (SVG and PNG).", metavar="DIR"),
    ] = None,
    checklist: Annotated[
        str | None,
        typer.Option(
            help="Answer a conference's checklist instead: neurips (error bars, compute).",
            metavar="NAME",
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(help="Recompute a report file and list all changes.", metavar="FILE"),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Serve the HTML page on this machine and update it while sweeps run."
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of --watch. Default: a free one."),
    ] = None,
) -> None:
    """Report results: means over seeds, differences with simultaneous intervals, verdicts, and
    published values.
    """
    from ascl_sweep.analysis.comparison import REGION, Options
    from ascl_sweep.report.checklist import render_checklist
    from ascl_sweep.report.formats.base import Target, load_formats
    from ascl_sweep.report.provenance import parse_baseline
    from ascl_sweep.report.report import build_report
    from ascl_sweep.reproduction.section import PAPER
    from ascl_sweep.store.store import Store

    store = Store(store_address)
    if verify is not None:
        others = (names, form, out, metric, baseline, region, figures, checklist)
        if epoch != "last" or watch or any(value is not None for value in others):
            raise UsageError("--verify reads its options from the file; give no other but --store")
        _verify(verify, store)
        return
    chosen = REGION if region is None else region
    options = Options(metric, epoch, parse_baseline(baseline or []), chosen)
    if port is not None and not watch:
        raise UsageError("--port needs --watch")
    if watch:
        if form not in (None, "html") or any(x is not None for x in (out, figures, checklist)):
            raise UsageError(
                "--watch serves the HTML page; omit --format, --out, --figures and --checklist"
            )
        _watch(store, names or (), options, port)
        return
    if checklist is not None and (form is not None or figures is not None):
        raise UsageError("--checklist writes Markdown text; remove --format and --figures")
    format = None if checklist else _choose_format(form, out, load_formats())
    made = build_report(store, names or (), options, [PAPER])
    for problem in made.problems:
        warn(problem)
    pictures = draw(made, store, figures) if figures else []
    target = Target(store, out.parent if out else Path(), pictures)
    text = format.render(made, target) if format else render_checklist(checklist or "", made)
    if out is None:
        typer.echo(text.encode(), nl=False)
    else:
        put(out, text)


def _choose_format(name: str | None, out: Path | None, formats: "Mapping[str, Format]") -> "Format":
    if name is not None and name not in formats:
        raise UsageError(f"--format must be one of {', '.join(formats)}, got {name!r}")
    if out is None:
        return formats[name or ("term" if data.is_terminal else "md")]
    if out.is_dir():
        raise UsageError(f"--out must be a file, got the folder {out}")
    if name is not None:
        if not formats[name].suffixes:
            raise UsageError(f"--format {name} is for terminals; choose another one for --out")
        return formats[name]
    by_suffix = {suffix: format for format in formats.values() for suffix in format.suffixes}
    if out.suffix.lower() not in by_suffix:
        raise UsageError(
            f"--out must end in {', '.join(by_suffix)}, got {out.name!r}; rename the file or "
            "add --format"
        )
    return by_suffix[out.suffix.lower()]


def draw(
    made: "Report",
    store: "Store",
    folder: Path,
    more: "Mapping[str, Sequence[Figure]] | None" = None,
) -> "list[Picture]":
    """Write the figures of a report.

    Args:
        made: The report.
        store: The store of its sweeps.
        folder: Where the files are written.
        more: Additional figures by sweep name.

    Returns:
        The pictures for Markdown.
    """
    from ascl_sweep.report.figures import build_figures
    from ascl_sweep.report.figures.matplotlib_backend import write_figures
    from ascl_sweep.report.formats.base import Picture

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--figures must be a folder, got the file {folder}")
    figures = [
        figure
        for sweep in made.sweeps
        for figure in (*build_figures(sweep, store), *(more or {}).get(sweep.sweep.name, ()))
    ]
    files = write_figures(figures, folder)
    talk.print(f"wrote {plural(len(files), 'file')} to {escape(str(folder))}")
    shown = {file.stem: file for file in files if file.suffix == ".svg"}
    return [Picture(f.title, f.caption, shown[f.name]) for f in figures if f.name in shown]


def put(out: Path, text: str) -> None:
    """Write a text file atomically, replacing an existing one."""
    from ascl_sweep.store.filesystem import StoreFiles

    StoreFiles(out.parent).write(out.name, text.encode())
    talk.print(f"wrote {escape(str(out))}")


def _watch(store: "Store", names: "Sequence[str]", options: "Options", port: int | None) -> None:
    """Serve the live page until Ctrl-C."""
    from ascl_sweep.report.live import LivePage, LiveServer
    from ascl_sweep.reproduction.section import PAPER

    server = LiveServer(LivePage(store, names, options, [PAPER]), port)
    if server.page.is_empty:
        talk.print(f"no sweep in {escape(store.address)} yet; the page shows the first one")
    typer.echo(server.url)
    talk.print("serving the report at this URL, on this machine only; press Ctrl-C to stop")
    with suppress(KeyboardInterrupt), interruptible():
        server.serve()
    talk.print("stopped")


def _verify(file: Path, store: "Store") -> None:
    from ascl_sweep.report.provenance import NotAReport
    from ascl_sweep.report.verify import verify
    from ascl_sweep.reproduction.section import PAPER

    try:
        text = file.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    try:
        found = verify(text, store, [PAPER])
    except NotAReport as error:
        raise UsageError(f"{file} is not a report that can be verified: {error}") from error
    for change in found.changes:
        typer.echo(printable(str(change)))  # the file may be foreign
    if found.edited:
        fail(
            f"{file} was edited or truncated after it was written: its checksum does not match its "
            "text; regenerate it with the command in its first line",
            BAD_INPUT,
        )
    if found.changes:
        changes = plural(len(found.changes), "change")
        talk.print(f"{changes}, {plural(found.numbers, 'number')} recomputed")
        raise typer.Exit(CHANGED)
    talk.print(f"nothing changed: {plural(found.numbers, 'number')} recomputed")
