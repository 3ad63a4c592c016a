"""The HTML page: tables, figures, runs, and the whole report as JSON.

Tables are rendered here, from the same document as in every other format. Scripts draw the figures
and the list of runs.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from ascl_sweep import __version__
from ascl_sweep.contracts import RunState
from ascl_sweep.report.document import Section, build_document, opening
from ascl_sweep.report.figures import Figure, build_figures
from ascl_sweep.report.figures.plotly_backend import plotly as plotly_json
from ascl_sweep.report.figures.style import columns_of
from ascl_sweep.report.formats.html.runs import encode_runs
from ascl_sweep.report.formats.html.tables import (
    escape_script,
    escape_text,
    render_blocks,
    render_cells,
    script_json,
)
from ascl_sweep.report.formats.json import FORMAT as JSON
from ascl_sweep.report.report import Report, SweepReport
from ascl_sweep.store.store import Store
from ascl_sweep.text import duration, plural

SCRIPTS = ("page.js", "figures.js", "runs.js")
WORDY = 45  # longer legends do not fit in half the page's width
PANEL = 300  # minimum width of a panel in pixels; wider figures scroll


@dataclass(frozen=True)
class Content:
    """The parts of a page that change while a sweep runs, as escaped text."""

    choices: str
    """Options of the sweep filter."""
    body: str
    report: str
    """The report as JSON."""
    runs: str
    """The encoded runs as JSON."""


def render_page(report: Report, store: Store, more: Mapping[str, Sequence[Figure]]) -> str:
    """Render the page; `more` has additional figures by sweep."""
    return render_content(build_content(report, store, more), report.store)


def build_content(
    report: Report, store: Store, more: Mapping[str, Sequence[Figure]], lead: str = ""
) -> Content:
    """Build the content of a page; `lead` is HTML that precedes the sections of the report."""
    names = [sweep.sweep.name for sweep in report.sweeps]
    return Content(
        choices="".join(
            f'<option value="{escape_text(name)}">{escape_text(name)}</option>' for name in names
        ),
        body="\n".join(
            [
                *_opening(report),
                *([lead] if lead else []),
                *_sections(report, store, more),
            ]
        ),
        report=escape_script(JSON.render(report)),
        runs=script_json(encode_runs(report, store)),
    )


def render_content(content: Content, store: str, version: str | None = None) -> str:
    """Render a page with this content; one with a version is live and asks its server for more."""
    live = version is not None
    theme, plotly = _asset("theme.js"), _plotly()
    script = "\n".join(map(_asset, (*SCRIPTS, *(["live.js"] if live else []))))
    return Template(_asset("page.html")).substitute(
        policy=escape(_policy(theme, script, plotly) + ("; connect-src 'self'" if live else "")),
        title=escape_text(f"ascl-sweep report: {store}"),
        style=_asset("page.css") + (_asset("live.css") if live else ""),
        theme=theme,
        script=script,
        plotly=plotly,
        choices=content.choices,
        body=content.body,
        version=__version__,
        report=content.report,
        runs=content.runs,
        live=f'\n<script type="application/json" id="live">{script_json(version)}</script>'
        if live
        else "",
    )


def _policy(*scripts: str) -> str:
    """Return a content security policy that allows no network and only our own scripts.

    Text from a store can therefore not inject a script. Plotly needs eval and inline styles.
    """
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (files("ascl_sweep.report.formats.html") / name).read_text("utf-8")


@cache
def _plotly() -> str:
    # Slow import: loads all of plotly.
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


# ---------------------------------------------------------------- top of the page


def _opening(report: Report) -> Iterator[str]:
    runs = {row.run_id: row for sweep in report.sweeps for row in sweep.runs}.values()
    hours = sum(row.device_hours for row in runs)
    ended = max((row.ended for row in runs if row.ended is not None), default=None)
    facts = [
        plural(len(report.sweeps), "sweep"),
        plural(len(runs), "run"),
        f"{duration(3600 * hours)} of device time",
    ]
    if ended is not None:
        facts.append(f"last run ended {datetime.fromtimestamp(ended, UTC):%Y-%m-%d %H:%M} UTC")
    yield f'<h1>Report <span class="path">{escape_text(report.store)}</span></h1>'
    yield f'<p class="facts">{escape_text(" · ".join(facts))}</p>'
    if first := opening(report):
        problems = "".join(f"<li>{escape_text(problem)}</li>" for problem in report.problems)
        yield f'<div class="problem"><p>{escape_text(first)}</p><ul>{problems}</ul></div>'
    if len(report.sweeps) > 1:
        yield _overview(report.sweeps)


def _overview(sweeps: Iterable[SweepReport]) -> str:
    sweeps = list(sweeps)
    states = [state for state in RunState if any(sweep.states.get(state) for sweep in sweeps)]
    titles = ["sweep", "runs", *states, "device h"]
    head = render_cells(
        "th", ['scope="col"'] + ['scope="col" class="number"'] * (len(titles) - 1), titles
    )
    rows = []
    for i, sweep in enumerate(sweeps):
        numbers = [sweep.sweep.planned, *(sweep.states.get(state, 0) for state in states)]
        hours = sum(row.device_hours for row in sweep.runs)
        name = escape_text(sweep.sweep.name)
        texts = [*(f"{n:,}" if n else "–" for n in numbers), f"{hours:,.2f}"]
        cells = render_cells("td", ['class="number"'] * len(texts), texts)
        rows.append(
            f'<tr data-sweep="{name}"><th scope="row"><a href="#sweep-{i}">{name}</a></th>'
            f"{cells}</tr>"
        )
    return (
        '<div class="scroll" role="group" aria-label="Sweeps" tabindex="0"><table id="overview">'
        f'<caption class="unseen">Sweeps and the states of their runs</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


# ---------------------------------------------------------------- one sweep


def _sections(report: Report, store: Store, more: Mapping[str, Sequence[Figure]]) -> Iterator[str]:
    """Render the sections in the order of the document; links count sweeps only."""
    numbers = {found.sweep.name: i for i, found in enumerate(report.sweeps)}
    for i, section in enumerate(build_document(report)):
        if section.appendix:
            yield _appendix(numbers[section.sweep], section)
        elif section.sweep:
            number = numbers[section.sweep]
            found = report.sweeps[number]
            yield _sweep(number, section, found, store, more.get(section.sweep, ()))
        else:
            yield _general(i, section)


def _sweep(
    i: int, section: Section, found: SweepReport, store: Store, more: Sequence[Figure]
) -> str:
    """Render the section of a sweep."""
    figures = (*build_figures(found, store), *more)
    forests = [render_figure(f"forest-{i}", each, "h3") for each in figures if _is_forest(each)]
    others = [figure for figure in figures if not _is_forest(figure)]
    drawn = [render_figure(f"figure-{i}-{j}", figure) for j, figure in enumerate(others)]
    parts = [
        f'<h2 id="sweep-{i}">{escape_text(section.title)}</h2>',
        *render_blocks(section, "".join(forests)),
    ]
    if drawn:
        parts.append(f'<h3>Figures</h3><div class="figures">{"".join(drawn)}</div>')
    optuna = list(_optuna(i, found))
    if optuna:
        parts.append(
            f"<details><summary><h3>Optuna plots</h3></summary>"
            f'<div class="figures">{"".join(optuna)}</div></details>'
        )
    parts.append(
        f"<details><summary><h3>Sweep file</h3></summary>"
        f'<p class="path">{escape_text(" ".join((found.sweep.file, *found.sweep.overrides)))}</p>'
        f'<pre tabindex="0" aria-label="Sweep file">{escape_text(found.sweep.text)}</pre></details>'
    )
    name = escape_text(section.sweep)
    inside = "\n".join(parts)
    return (
        f'<section class="sweep" data-sweep="{name}" aria-labelledby="sweep-{i}">{inside}</section>'
    )


def _is_forest(figure: Figure) -> bool:
    return any(panel.forest is not None for panel in figure.panels)


def _general(i: int, section: Section) -> str:
    """Render a section that does not belong to one sweep; the sweep filter never hides it."""
    inside = "\n".join(render_blocks(section))
    return (
        f'<section class="claims" aria-labelledby="claims-{i}">'
        f'<h2 id="claims-{i}">{escape_text(section.title)}</h2>{inside}</section>'
    )


def _appendix(i: int, section: Section) -> str:
    """Render the appendix of a sweep."""
    inside = "\n".join(render_blocks(section))
    return (
        f'<section class="sweep appendix" data-sweep="{escape_text(section.sweep)}" '
        f'aria-labelledby="appendix-{i}">'
        f'<h2 id="appendix-{i}">{escape_text(section.title)}</h2>{inside}</section>'
    )


# ---------------------------------------------------------------- figures


def render_figure(name: str, figure: Figure, heading: str = "h4") -> str:
    """Render a figure; `name` is the id of its element."""
    drawn = plotly_json(figure)
    wordy = any(len(s.label) > WORDY for panel in figure.panels for s in panel.series)
    columns = max(columns_of(figure), 2 if wordy else 1)
    height = drawn["layout"]["height"]
    text = script_json(drawn)
    return _plotted(name, figure.title, figure.caption, text, columns, height, heading)


def _optuna(i: int, found: SweepReport) -> Iterator[str]:
    """Render Optuna's plots of a search."""
    trials = [row for row in found.runs if row.phase == "search"]
    if found.search is None or not found.digest.distributions or not trials:
        return
    from ascl_sweep.analysis.importance import plots  # slow import

    ranked = [title for title, _ in found.search.importances]
    drawn = plots(found.digest.distributions, trials, ranked)
    for j, (title, text) in enumerate(drawn.items()):
        caption = f"{title} (Optuna): online kNN top-1 on the holdout, one seed per trial."
        height = 640 if title.startswith("Contours") else 400
        yield _plotted(f"optuna-{i}-{j}", title, caption, escape_script(text), 2, height)


def _plotted(
    name: str,
    title: str,
    caption: str,
    figure_json: str,
    columns: int,
    height: int,
    heading: str = "h4",
) -> str:
    """Render a placeholder of the figure's size; the script draws it when it scrolls into view."""
    size = f"min-width:{PANEL * columns}px;height:{height}px"
    return (
        f'<figure class="plotted{" wide" if columns > 1 else ""}" id="{name}">'
        f"<{heading}>{escape_text(title)}</{heading}>"
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape_text(title)}">'
        f'<div class="plot" role="img" aria-label="{escape_text(caption)}" style="{size}"></div>'
        "</div>"
        f"<figcaption>{escape_text(caption)}</figcaption>"
        '<p class="copying"><button type="button" data-reset>Reset view</button> '
        '<button type="button" data-save>Save as SVG</button></p>'
        f'<script type="application/json">{figure_json}</script></figure>'
    )
