"""Section of a live page: the runs that train now, with their curves so far."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.report.figures import Figure, Panel, Series
from ascl_sweep.report.figures.curves import curve
from ascl_sweep.report.figures.style import COLORS
from ascl_sweep.report.formats.html.page import render_figure
from ascl_sweep.report.formats.html.runs import name_arms
from ascl_sweep.report.formats.html.tables import escape_text, render_cells
from ascl_sweep.report.report import Report
from ascl_sweep.store.store import Store
from ascl_sweep.text import plural

SHOWN = len(COLORS)  # each run has its own color


def render_running(report: Report, store: Store, has_driver: bool) -> str:
    """Render the section.

    Args:
        report: The report.
        store: The store that the report was built from.
        has_driver: Whether a process writes to the store. Without one, no run trains.

    Returns:
        The section as HTML.
    """
    rows = {
        row.run_id: row
        for sweep in report.sweeps
        for row in sweep.runs
        if row.state == RunState.RUNNING
    }
    shown = sorted(rows.values(), key=lambda row: (row.created, row.run_id))[:SHOWN]
    if not report.sweeps:
        return _section("No results yet. The page shows the first sweep as soon as it starts.")
    if not has_driver:
        hint = "; repeat the command of the sweep to resume them" if rows else ""
        interrupted = f" {plural(len(rows), 'run')} did not end{hint}." if rows else ""
        return _section(f"No process writes to the store, so no run trains.{interrupted}")
    if not rows:
        return _section("No run trains at the moment.")
    more = f", {len(shown)} of them shown here" if len(shown) < len(rows) else ""
    names = _name_runs(report, shown)
    parts = [_table(shown, names), _figure(report, store, shown, names)]
    return _section(f"{plural(len(rows), 'run')} in training{more}.", *parts)


def _section(sentence: str, *parts: str) -> str:
    return (
        '<section id="running" aria-labelledby="running-title">'
        f'<h2 id="running-title">Running now</h2><p class="said">{escape_text(sentence)}</p>'
        f"{''.join(parts)}</section>"
    )


def _name_runs(report: Report, rows: Sequence[RunRow]) -> dict[str, str]:
    """Name each run by its arm and seed, and by its id if another run has the same name."""
    arms = name_arms(report.sweeps)
    names = {row.run_id: f"{arms[row.run_id]}, seed {row.config.get('seed')}" for row in rows}
    counts = Counter(names.values())
    return {i: f"{name} ({i})" if counts[name] > 1 else name for i, name in names.items()}


def _table(rows: Sequence[RunRow], names: Mapping[str, str]) -> str:
    attributes = ['scope="col"'] * 3 + ['scope="col" class="number"'] * 2
    head = render_cells("th", attributes, ("run", "arm and seed", "sweep", "epochs", "kNN %"))
    lines = []
    for row in rows:
        knn = "–" if row.knn_last_top1 is None else f"{100 * row.knn_last_top1:.2f}"
        epochs = f"{row.epochs} of {row.config.get('epochs')}"
        cells = render_cells(
            "td",
            ['class="arm"', "", 'class="number"', 'class="number"'],
            (names[row.run_id], ", ".join(row.sweeps), epochs, knn),
        )
        lines.append(f'<tr><th scope="row" class="path">{escape_text(row.run_id)}</th>{cells}</tr>')
    return (
        '<div class="table"><div class="scroll" role="group" aria-label="Running now" '
        'tabindex="0"><table class="short"><caption class="unseen">Runs that train now</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></div>"
    )


def _figure(report: Report, store: Store, rows: Sequence[RunRow], names: Mapping[str, str]) -> str:
    """Render the curves of the runs, with a panel for each sweep; empty before the first epoch."""
    ids = {row.run_id for row in rows}
    epochs = {i: found for i, found in store.curves(["knn_top1"]) if i in ids}
    panels: dict[str, list[Series]] = {}
    for row in rows:
        if line := curve(epochs.get(row.run_id), "knn_top1"):
            series = Series(names[row.run_id], tuple(line), tuple(line.values()))
            panels.setdefault(row.sweeps[0], []).append(series)
    if not panels:
        return ""
    figure = Figure(
        "running",
        "Curves so far",
        "Online kNN top-1 of each run by epoch; trials of a search are scored on the holdout.",
        tuple(
            Panel(name if len(panels) > 1 else "", "epoch", "online kNN top-1 (%)", tuple(series))
            for name, series in panels.items()
        ),
    )
    return f'<div class="figures">{render_figure("figure-running", figure)}</div>'
