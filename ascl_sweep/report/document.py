"""Layout of a report, which every format renders.

The section of a sweep has its findings, one main table as in a paper, remarks and the summary of a
search, and ends with the provenance. The statistical methods follow once; an appendix per sweep has
the long table with all statistics and the tables of the search.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.search_summary import IMPORTANCE_TRIALS, SearchRun, SearchSummary
from ascl_sweep.contracts import RunState
from ascl_sweep.report.effects import effects_table, ranks_table
from ascl_sweep.report.findings import describe_findings
from ascl_sweep.report.methods_text import TITLE, describe_methods
from ascl_sweep.report.sweep_tables import arms_table, build_tables
from ascl_sweep.report.tables import NONE, PERCENT, Cell, Table, mean_sd
from ascl_sweep.text import percent, plural

if TYPE_CHECKING:
    from ascl_sweep.report.report import Report, SweepReport


@dataclass(frozen=True)
class Text:
    """Text between tables."""

    items: tuple[str, ...]
    title: str = ""
    kind: Literal["list", "paragraph", "footer"] = "list"


@dataclass(frozen=True)
class Section:
    """The part of a report on one sweep, or on something that concerns all of them."""

    sweep: str
    """Empty for a section that does not belong to one sweep."""
    title: str
    blocks: tuple[Table | Text, ...]
    appendix: bool = False
    """Whether it is the appendix of a sweep, at the end of the report."""


def build_document(report: "Report") -> tuple[Section, ...]:
    """Build the sections of a report.

    Those of extensions come first, then one per sweep, the statistical methods and the appendices.
    """
    first = [section for appendix in report.appendices for section in appendix.sections]
    methods = describe_methods([found.table for found in report.sweeps if found.table])
    return (
        *first,
        *map(_section, report.sweeps),
        *([Section("", TITLE, (Text(methods, kind="paragraph"),))] if methods else []),
        *(section for found in report.sweeps for section in _appendix(found)),
    )


def opening(report: "Report") -> str | None:
    """Return a warning for the top of the report, or None."""
    unread = len(report.problems)
    if not unread:
        return None
    return f"{plural(unread, 'file')} of the store could not be read; runs may be missing here."


def _section(found: "SweepReport") -> Section:
    small = found.sweep.scale == "laptop"
    scale = " (laptop scale: reduced data, network and epochs)" if small else ""
    blocks: list[Table | Text] = []
    footer = [_runs(found)]
    if found.table is not None:
        blocks.append(Text(describe_findings(found.table), kind="paragraph"))
        blocks += build_tables(found.table)
        if found.table.ranks is not None:
            blocks.append(ranks_table(found.table.sweep, found.table.ranks, found.table.metric))
        blocks += [Text(found.table.remarks)] if found.table.remarks else []
        footer.append(f"{found.table.provenance}.")
    elif found.search is None:
        blocks.append(Text(("No results yet.",), kind="paragraph"))
    if found.search is not None:
        blocks.append(Text(tuple(_search_sentences(found.search)), "Search"))
    blocks.append(Text(tuple(footer), kind="footer"))
    return Section(found.sweep.name, f"{found.sweep.name}{scale}", tuple(blocks))


def _appendix(found: "SweepReport") -> Iterator[Section]:
    """Yield the section with the long tables of a sweep, if it has one."""
    blocks = []
    if found.table is not None:
        table = found.table
        effects = effects_table(table.sweep, table.factorials, table.metric)
        blocks += [arms_table(table), *([effects] if effects else [])]
    if found.search is not None:
        blocks += _search_tables(found.search)
    if blocks:
        yield Section(found.sweep.name, f"Appendix: {found.sweep.name}", tuple(blocks), True)


def _runs(found: "SweepReport") -> str:
    given = [(found.states[state], state) for state in RunState if state in found.states]
    states = ", ".join(f"{n} {state}" for n, state in given)
    total = sum(found.states.values())
    return f"{plural(total, 'run')}: {states}." if total else "No runs yet."


# ---------------------------------------------------------------- searches


def _search_tables(found: SearchSummary) -> Iterator[Table]:
    if found.best:
        yield _best_table(found)
    if found.expected_best:
        yield _expected_best_table(found)
    if found.importances:
        yield _importance_table(found)


def _search_sentences(found: SearchSummary) -> Iterator[str]:
    tried = len(found.trials)
    of = f" of {found.planned}" if found.planned else ""
    yield (
        f"{tried}{of} configurations tried with one seed each and scored on the holdout, so these "
        f"scores are not comparable with the tables; {found.rule}."
    )
    if found.shared_seed is not None:
        yield (
            f"An older version of the tool ran this search with seed {found.shared_seed}, which "
            "the tables also use: their means for the finalists are too high."
        )
    if found.best:
        best = found.best[0]
        yield (
            f"Best configuration: {best.label}, {_score(best)}% on the holdout (n = 1, run "
            f"{best.run_id}). This score is optimistic: it is the highest of "
            f"{plural(found.states.get(RunState.DONE, 0), 'complete trial')}. {_on_test(best)}"
        )
    else:
        yield "No configuration of the search is complete yet."
    if found.epochs_full:
        saved = 1 - found.epochs_spent / found.epochs_full
        yield (
            f"Search epochs: {found.epochs_spent} instead of {found.epochs_full} without early "
            f"stopping ({percent(saved)} saved)."
        )
    if found.grid_epochs:
        saved = 1 - found.all_epochs / found.grid_epochs
        yield (
            f"Epochs including finalists: {found.all_epochs} instead of {found.grid_epochs} for "
            f"every configuration with every seed ({percent(saved)} saved)."
        )
    yield from _false_stops(found)
    if found.draws and not found.has_importances:
        yield (
            "Too few complete trials to compute hyperparameter importance (at least "
            f"{IMPORTANCE_TRIALS})."
        )
    elif found.draws and not found.importances:
        yield "No hyperparameter's importance exceeds chance (PED-ANOVA, permuted scores)."


def _on_test(best: SearchRun) -> str:
    """Return a sentence on the best configuration's score on the test set."""
    if best.test is None:
        return "No complete run has scored it on the test set."
    return f"On the test set: {_test(best)}% (n = {best.test.n})."


def _false_stops(found: SearchSummary) -> Iterator[str]:
    stops = found.false_stops
    if stops is None:
        if found.stops:
            yield (
                "The rate of false stops is unknown: fewer than two audited runs have ended "
                f"({found.audits} so far)."
            )
        return
    low, high = (percent(x) for x in (stops.rate.low, stops.rate.high))
    rate = percent(stops.false / stops.audited)
    group = f" per {found.per}" if found.per else ""
    yield (
        f"False stops: {stops.false} of {plural(stops.audited, 'audited run')} (stopped by the "
        f"rule, but run to completion) scored above the last of the best {found.finalists}{group} "
        f"that were never stopped: {rate} (95% interval {low} to {high} of the "
        f"{plural(stops.stopped, 'stopped run')})."
    )
    unseen = stops.stopped - stops.audited
    yield (
        f"Expected false stops among the {plural(unseen, 'stopped run')} without audit: "
        f"{stops.lost:.1f} (95% interval {stops.lost_interval.low:.0f} to "
        f"{stops.lost_interval.high:.0f}). At most as many finalists were lost."
    )


def _best_table(found: SearchSummary) -> Table:
    """Build the table of best configurations, with a column for each varied key."""
    keys = [key for key in found.axes if any(key in trial.values for trial in found.best)]
    system = any(key in labels.SYSTEM_KEYS for key in keys)
    others = [key for key in keys if key not in labels.SYSTEM_KEYS]
    tested = any(trial.test for trial in found.best)
    rows = []
    for rank, trial in enumerate(found.best, 1):
        values = [Cell(_value(trial, key)) for key in others]
        systems = [Cell(trial.system)] if system else []
        rows.append(
            (
                Cell(str(rank)),
                Cell(_score(trial)),
                *([Cell(_test(trial))] if tested else []),
                Cell(str(trial.epochs)),
                Cell("yes" if trial.audit else "no"),
                *systems,
                *values,
                Cell(trial.run_id),
            )
        )
    titles = [*(["method"] if system else []), *map(labels.title_of, others)]
    return Table(
        name=f"{found.sweep}-search",
        title=f"{found.sweep}: best complete configurations of the search",
        header=(
            *("rank", "kNN"),
            *(["test"] if tested else []),
            "epochs",
            "audited",
            *titles,
            "run",
        ),
        align="rr" + "r" * tested + "rl" + "l" * len(titles) + "l",
        rows=tuple(rows),
        caption=(
            "kNN: online kNN top-1 (%) on the holdout after the final epoch, n = 1, optimistic for "
            "the best; "
            + ("test: the same on the test set, mean ± SD over the finalist's seeds; " * tested)
            + "audited: would have been stopped, but ran to completion",
        ),
    )


def _expected_best_table(found: SearchSummary) -> Table:
    """Build the table of the expected best score against the number of configurations tried."""
    budgets = sorted({budget for system in found.expected_best for budget in system.scores})
    rows = [
        (
            Cell(system.system),
            Cell(str(system.trials)),
            *(Cell(f"{system.scores[b]:.2f}" if b in system.scores else NONE) for b in budgets),
        )
        for system in found.expected_best
    ]
    return Table(
        name=f"{found.sweep}-expected-best",
        title=f"{found.sweep}: expected best score against the number of configurations tried",
        header=("method", "trials", *map(str, budgets)),
        align="lr" + "r" * len(budgets),
        rows=tuple(rows),
        caption=(
            "Expected highest online kNN top-1 (%) on the holdout of 1, 2, 4, … complete trials "
            "drawn at random (Dodge et al. 2019)"
            + ("; runs that were stopped early are excluded, so it is optimistic" * found.stops),
        ),
    )


def _importance_table(found: SearchSummary) -> Table:
    complete = sum(t.state == RunState.DONE and t.score is not None for t in found.trials)
    return Table(
        name=f"{found.sweep}-importances",
        title=f"{found.sweep}: hyperparameter importance",
        header=("hyperparameter", "importance"),
        align="lr",
        rows=tuple((Cell(key), Cell(f"{100 * x:.0f}%")) for key, x in found.importances),
        caption=(
            f"PED-ANOVA over {plural(complete, 'complete configuration')}; only hyperparameters "
            "above the 95% quantile for permuted scores",
        ),
    )


def _value(trial: SearchRun, key: str) -> str:
    return labels.value_label(key, trial.values[key]) if key in trial.values else NONE


def _test(trial: SearchRun) -> str:
    return str(mean_sd(trial.test.mean, trial.test.sd, PERCENT)) if trial.test else NONE


def _score(trial: SearchRun) -> str:
    return NONE if trial.score is None else f"{trial.score:.2f}"
