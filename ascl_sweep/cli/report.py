"""`ascl-sweep report`: what the sweeps of a store came to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ascl_sweep.cli.app import BAD_INPUT, Names, StoreOption, app, data, fail, sentences, talk

if TYPE_CHECKING:
    from ascl_sweep.figures.panels import Figure
    from ascl_sweep.ledger import Ledger
    from ascl_sweep.report.render import Picture
    from ascl_sweep.report.report import Report

CHANGED = 1
FORMATS = ("md", "latex", "csv", "json", "html", "term")
ENDINGS = {
    ".md": "md",
    ".markdown": "md",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
    ".html": "html",
    ".htm": "html",
}


@app.command()
def report(
    names: Names = None,
    store: StoreOption = "results",
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="If absent by the ending of --out; else tables on a terminal, Markdown elsewhere.",
            metavar="|".join(FORMATS),
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write to a file instead of stdout.", metavar="FILE")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="knn_top1, probe_top1, purity, …; if absent, as the sweep file says."),
    ] = None,
    epoch: Annotated[
        str, typer.Option(help="Which epoch's numbers are reported.", metavar="last|best")
    ] = "last",
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="What the others are compared with: --baseline method.relabel=none.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    region: Annotated[
        float | None,
        typer.Option(help="Points within which arms are equivalent; 0.5 if absent."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write the figures there, as SVG and PNG.", metavar="DIR"),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(help="Recompute an earlier report and name what changed.", metavar="FILE"),
    ] = None,
) -> None:
    """Tables that hold up: means over seeds, paired tests, the paper's numbers beside ours."""
    with sentences():
        from ascl_sweep.ledger import Ledger
        from ascl_sweep.report.ablation import REGION, Options
        from ascl_sweep.report.origin import parse_baseline
        from ascl_sweep.report.report import report_of

        ledger = Ledger(store)
        if verify is not None:
            others = (names, form, out, metric, baseline, region, figures)
            if epoch != "last" or any(value is not None for value in others):
                raise ValueError(
                    "--verify takes everything but --store from the file; give no more"
                )
            _verify(verify, ledger)
            return
        chosen = REGION if region is None else region
        options = Options(metric, epoch, parse_baseline(baseline or []), chosen)
        form = _format(form, out)
        made = report_of(ledger, names or (), options)
        for problem in made.problems:
            talk.print(f"[yellow]warning:[/] {escape(problem)}")
        pictures = draw(made, ledger, figures) if figures else []
        if form == "term":
            from ascl_sweep.report.term import term

            for part in term(made):
                data.print(part)
            return
        text = _text(made, ledger, form, pictures, out)
        if out is not None:
            put(out, text)
            return
    # Out here, where a reader that has seen enough and closes the pipe is none of our errors.
    typer.echo(text.encode(), nl=False)


def _format(form: str | None, out: Path | None) -> str:
    if form is not None and form not in FORMATS:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, got {form!r}")
    if out is None:
        return form or ("term" if data.is_terminal else "md")
    if out.is_dir():
        raise ValueError(f"--out must be a file, and {out} is a folder")
    if form == "term":
        raise ValueError("--format term is for a terminal; choose another for a file")
    if form is None and out.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"--out must end in {', '.join(ENDINGS)}, or --format say what it is, got {out.name!r}"
        )
    return form or ENDINGS[out.suffix.lower()]


def _text(
    made: "Report", ledger: "Ledger", form: str, pictures: "Sequence[Picture]", out: Path | None
) -> str:
    from ascl_sweep.report.render import WRITERS, markdown

    if form == "html":
        from ascl_sweep.report.page import page

        return page(made, ledger)
    if form == "md":
        return markdown(made, pictures, out.parent if out else Path())
    if form == "csv" and any(sweep.search for sweep in made.sweeps):
        talk.print("note: CSV has the tables only; searches are in the other formats")
    return WRITERS[form](made)


def draw(
    made: "Report",
    ledger: "Ledger",
    folder: Path,
    more: "Mapping[str, Sequence[Figure]] | None" = None,
) -> "list[Picture]":
    """Write the figures, and say what Markdown shows of them; `more` are of each sweep besides."""
    from ascl_sweep.figures.draw import write_figures
    from ascl_sweep.figures.figures import figures_of
    from ascl_sweep.report.render import Picture

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--figures must be a folder, and {folder} is a file")
    figures = [
        figure
        for sweep in made.sweeps
        for figure in (*figures_of(sweep, ledger), *(more or {}).get(sweep.sweep.name, ()))
    ]
    files = write_figures(figures, folder)
    talk.print(f"wrote {len(files)} files to {escape(str(folder))}")
    shown = {file.stem: file for file in files if file.suffix == ".svg"}
    return [Picture(f.title, f.caption, shown[f.name]) for f in figures if f.name in shown]


def put(out: Path, text: str) -> None:
    """Put the file in place whole, over what may be there."""
    from ascl_sweep.store import Store

    Store(out.parent).write(out.name, text.encode())
    talk.print(f"wrote {escape(str(out))}")


def _verify(file: Path, ledger: "Ledger") -> None:
    from ascl_sweep.report.verify import NotAReport, verify

    try:
        text = file.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    try:
        found = verify(text, ledger)
    except NotAReport as error:
        raise ValueError(f"{file} is no report that can be verified: {error}") from error
    for change in found.changes:
        typer.echo(str(change))
    if found.edited:
        fail(
            f"{file} was edited or cut short after it was written: its checksum is not that of its "
            "text; make it anew with the command in its first line",
            BAD_INPUT,
        )
    if found.changes:
        talk.print(f"{len(found.changes)} changes, {found.numbers} numbers recomputed")
        raise typer.Exit(CHANGED)
    talk.print(f"nothing changed: {found.numbers} numbers recomputed")
