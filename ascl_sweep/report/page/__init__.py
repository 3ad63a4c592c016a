"""The report as one HTML file that needs no network and opens from disk.

    page.html page.css      what is there and how it looks
    theme.js page.js        light and dark · copying, the choice of a sweep
    figures.js runs.js      figures, drawn when they come into sight · the list of runs
    runs.py                 the runs as data, small

Tables are written here, from the same sheets as every other format; runs and figures by the script.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from ascl_sweep import __version__
from ascl_sweep.figures import interactive
from ascl_sweep.figures.figures import Figure, figures_of
from ascl_sweep.figures.looks import columns_of
from ascl_sweep.ledger import STATES, Ledger
from ascl_sweep.report import render
from ascl_sweep.report.blocks import Cell, Section, Sentences, Sheet, counted
from ascl_sweep.report.document import document_of, opening
from ascl_sweep.report.page.runs import runs_of
from ascl_sweep.report.report import Report, SweepReport

SCRIPTS = ("page.js", "figures.js", "runs.js")
SHORT = 28  # letters in the names of rows up to which they are kept on one line
WORDY = 45  # letters of a legend that do not fit in half the page's width
PANEL = 300  # pixels that a panel takes at least; what is wider than the screen scrolls


def page(report: Report, ledger: Ledger, more: Mapping[str, Sequence[Figure]] | None = None) -> str:
    """The whole report: tables, figures, runs, and the numbers themselves as JSON.

    `more` are figures of a sweep besides those that follow from the ledger.
    """
    theme, script, plotly = _asset("theme.js"), "\n".join(map(_asset, SCRIPTS)), _plotly()
    sections = document_of(report)
    names = [sweep.sweep.name for sweep in report.sweeps]
    return Template(_asset("page.html")).substitute(
        policy=escape(_policy(theme, script, plotly)),
        title=_text(f"ascl-sweep report: {report.store}"),
        style=_asset("page.css"),
        theme=theme,
        script=script,
        plotly=plotly,
        choices="".join(f'<option value="{_text(name)}">{_text(name)}</option>' for name in names),
        body="\n".join(
            [
                *_opening(report),
                *(_claims(i, s) for i, s in enumerate(sections) if not s.sweep),
                *(
                    _sweep(i, section, sweep, ledger, (more or {}).get(section.sweep, ()))
                    for i, (section, sweep) in enumerate(
                        zip((s for s in sections if s.sweep), report.sweeps, strict=True)
                    )
                ),
            ]
        ),
        footer=_footer(),
        report=_in_script(render.json(report)),
        runs=_json(runs_of(report, ledger)),
    )


# ---------------------------------------------------------------- text, safely


def _text(text: str) -> str:
    """Text as HTML, also in an attribute; nothing of a ledger gets into the page otherwise."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "\ufffd", text))


def _json(value: object) -> str:
    """A value for a script element; what is not a number is null there, as JSON has no NaN."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return _json(_finite(value))
    return _in_script(text)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _in_script(json_text: str) -> str:
    """JSON in which no `<` can end the element that it stands in."""
    return json_text.replace("<", "\\u003c")


def _policy(*scripts: str) -> str:
    """No network at all, and no script but our own: not one that a ledger's text might smuggle in.

    Plotly compiles its shaders (eval) and sets styles.
    """
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (files("ascl_sweep.report.page") / name).read_text("utf-8")


def _plotly() -> str:
    # Here, as it loads all of plotly.
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


# ---------------------------------------------------------------- the top and the bottom


def _opening(report: Report) -> Iterator[str]:
    runs = {row.run_id: row for sweep in report.sweeps for row in sweep.runs}.values()
    hours = sum(row.device_hours for row in runs)
    ended = max((row.ended for row in runs if row.ended is not None), default=None)
    said = [
        counted(len(report.sweeps), "sweep"),
        counted(len(runs), "run"),
        f"{hours:,.1f} device-hours",
    ]
    if ended is not None:
        said.append(f"last run ended {datetime.fromtimestamp(ended, UTC):%Y-%m-%d %H:%M} UTC")
    yield f'<h1>Report <span class="path">{_text(report.store)}</span></h1>'
    yield f'<p class="facts">{_text(" · ".join(said))}</p>'
    if first := opening(report):
        problems = "".join(f"<li>{_text(problem)}</li>" for problem in report.problems)
        yield f'<div class="problem"><p>{_text(first)}</p><ul>{problems}</ul></div>'
    if len(report.sweeps) > 1:
        yield _overview(report.sweeps)


def _overview(sweeps: Iterable[SweepReport]) -> str:
    sweeps = list(sweeps)
    states = [state for state in STATES if any(sweep.states.get(state) for sweep in sweeps)]
    titles = ["sweep", "planned", *("waiting" if s == "planned" else s for s in states), "device h"]
    head = _cells(
        "th", ['scope="col"'] + ['scope="col" class="number"'] * (len(titles) - 1), titles
    )
    rows = []
    for i, sweep in enumerate(sweeps):
        numbers = [sweep.sweep.planned, *(sweep.states.get(state, 0) for state in states)]
        hours = sum(row.device_hours for row in sweep.runs)
        name = _text(sweep.sweep.name)
        texts = [*(f"{n:,}" if n else "–" for n in numbers), f"{hours:,.2f}"]
        cells = _cells("td", ['class="number"'] * len(texts), texts)
        rows.append(
            f'<tr data-sweep="{name}"><th scope="row"><a href="#sweep-{i}">{name}</a></th>'
            f"{cells}</tr>"
        )
    return (
        '<div class="scroll" role="group" aria-label="Sweeps" tabindex="0"><table id="overview">'
        f'<caption class="unseen">Sweeps and the states of their runs</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(tag: str, attributes: Iterable[str], texts: Iterable[str]) -> str:
    both = zip(attributes, texts, strict=True)
    return "".join(f"<{tag} {attribute}>{_text(text)}</{tag}>" for attribute, text in both)


def _footer() -> str:
    return (
        f"<p>Made by ascl-sweep {__version__}. This file holds every number of the report; "
        "<code>ascl-sweep report --verify</code> computes them anew from the ledger and names what "
        "changed.</p>"
    )


# ---------------------------------------------------------------- one sweep


def _sweep(
    i: int, section: Section, found: SweepReport, ledger: Ledger, more: Sequence[Figure]
) -> str:
    """A sweep's part of the page."""
    parts = [f'<h2 id="sweep-{i}">{_text(section.title)}</h2>', *_blocks(section)]
    figures = (*figures_of(found, ledger), *more)
    drawn = [_figure(f"figure-{i}-{j}", figure) for j, figure in enumerate(figures)]
    if drawn:
        parts.append(f'<h3>Figures</h3><div class="figures">{"".join(drawn)}</div>')
    optuna = list(_optuna(i, found))
    if optuna:
        parts.append(
            f"<details><summary><h3>Optuna’s own plots</h3></summary>"
            f'<div class="figures">{"".join(optuna)}</div></details>'
        )
    parts.append(
        f"<details><summary><h3>Sweep file</h3></summary>"
        f'<p class="path">{_text(" ".join((found.sweep.file, *found.sweep.overrides)))}</p>'
        f'<pre tabindex="0" aria-label="Sweep file">{_text(found.sweep.text)}</pre></details>'
    )
    name = _text(section.sweep)
    inside = "\n".join(parts)
    return (
        f'<section class="sweep" data-sweep="{name}" aria-labelledby="sweep-{i}">{inside}</section>'
    )


def _claims(i: int, section: Section) -> str:
    """The first page: it is of no one sweep, and shown whichever is chosen."""
    inside = "\n".join(_blocks(section))
    return (
        f'<section class="claims" aria-labelledby="claims-{i}">'
        f'<h2 id="claims-{i}">{_text(section.title)}</h2>{inside}</section>'
    )


def _blocks(section: Section) -> Iterator[str]:
    for block in section.blocks:
        if isinstance(block, Sentences):
            yield from [f"<h3>{_text(block.title)}</h3>"] if block.title else []
            yield from (f'<p class="said">{_text(sentence)}</p>' for sentence in block.items)
        else:
            yield _table(block, section.sweep)


def _table(sheet: Sheet, sweep: str) -> str:
    """A sheet with what is said of it, and itself in the formats that papers are written in."""
    title = _text(sheet.title.removeprefix(f"{sweep}: "))
    numbers = ["number" if side == "r" else "" for side in sheet.align]
    head = _cells("th", [f'scope="col" class="{kind}"' for kind in numbers], sheet.header)
    rows = []
    for first, *rest in sheet.rows:
        cells = [f'<th scope="row" class="{numbers[0]}">{_cell(first)}</th>']
        cells += [
            f'<td class="{kind}">{_cell(cell)}</td>'
            for kind, cell in zip(numbers[1:], rest, strict=True)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(
        f"<li><sup>{_text(mark)}</sup> {_text(sentence)}</li>" for mark, sentence in sheet.notes
    )
    short = "short" if all(len(row[0].text) <= SHORT for row in sheet.rows) else ""
    copies = {"latex": render.latex_sheet(sheet), "markdown": render.markdown_sheet(sheet)}
    return (
        f'<div class="table" id="table-{_text(sheet.name)}">'
        f'<div class="scroll" role="group" aria-label="{title}" tabindex="0">'
        f'<table class="{short}">'
        f"<caption><span>{title}</span></caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        + (f'<p class="caption">{_text("; ".join(sheet.caption))}.</p>' if sheet.caption else "")
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + '<p class="copying">Copy as <button type="button" data-copy="latex">LaTeX</button> '
        '<button type="button" data-copy="markdown">Markdown</button></p>'
        f'<script type="application/json" class="copies">{_json(copies)}</script></div>'
    )


def _cell(cell: Cell) -> str:
    marks = f"<sup>{_text(','.join(cell.marks))}</sup>" if cell.marks else ""
    text = f"<strong>{_text(cell.text)}</strong>" if cell.bold else _text(cell.text)
    return text + marks


# ---------------------------------------------------------------- figures


def _figure(name: str, figure: Figure) -> str:
    drawn = interactive.plotly(figure)
    parallel = any(panel.parallel for panel in figure.panels)
    wordy = any(len(s.label) > WORDY for panel in figure.panels for s in panel.series)
    columns = max(columns_of(len(figure.panels)), 2 if parallel or wordy else 1)
    height = drawn["layout"]["height"]
    return _plotted(name, figure.title, figure.caption, _json(drawn), columns, height)


def _optuna(i: int, found: SweepReport) -> Iterator[str]:
    """Optuna's own figures of a search."""
    trials = [row for row in found.runs if row.phase == "search"]
    if found.search is None or not found.digest.distributions or not trials:
        return
    from ascl_sweep.report.study import plots  # Optuna takes a while to load

    ranked = [title for title, _ in found.search.importances]
    drawn = plots(found.digest.distributions, trials, ranked)
    for j, (title, text) in enumerate(drawn.items()):
        caption = f"{title}, drawn by Optuna: online kNN top-1 on the holdout, one seed a trial."
        height = 640 if title.startswith("Contours") else 400
        yield _plotted(f"optuna-{i}-{j}", title, caption, _in_script(text), 2, height)


def _plotted(
    name: str, title: str, caption: str, figure_json: str, columns: int, height: int
) -> str:
    """A figure that the script draws when it comes into sight, into a place of its size."""
    size = f"min-width:{PANEL * columns}px;height:{height}px"
    return (
        f'<figure class="plotted{" wide" if columns > 1 else ""}" id="{name}">'
        f"<h4>{_text(title)}</h4>"
        f'<div class="scroll" tabindex="0" role="group" aria-label="{_text(title)}">'
        f'<div class="plot" role="img" aria-label="{_text(caption)}" style="{size}"></div></div>'
        f"<figcaption>{_text(caption)}</figcaption>"
        '<p class="copying"><button type="button" data-reset>Reset view</button> '
        '<button type="button" data-save>Save as SVG</button></p>'
        f'<script type="application/json">{figure_json}</script></figure>'
    )
