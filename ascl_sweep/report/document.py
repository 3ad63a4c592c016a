"""A report laid out once, a section for each sweep; every format writes these sections.

Every sweep has its table in two shapes: *means*, rows × columns as a paper prints it, and *arms*,
a line for each arm with all that is claimed of it. A search has sentences and its best trials.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from ascl_sweep import labels
from ascl_sweep.claims import Outcome
from ascl_sweep.ledger import STATES
from ascl_sweep.report.alike import letter
from ascl_sweep.report.blocks import NONE, Cell, Section, Sentences, Sheet, counted, signed
from ascl_sweep.report.judged import Finding
from ascl_sweep.report.report import Report, ScaleClaims, SweepReport
from ascl_sweep.report.searches import SearchSummary, Trial
from ascl_sweep.report.sheets import sheets_of

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

__all__ = ["Cell", "Section", "Sentences", "Sheet", "document_of", "opening"]


def document_of(report: Report) -> tuple[Section, ...]:
    """What the paper claims, where the runs can tell, and a section for each sweep."""
    first = [_claims(part, report.options.region) for part in report.claims]
    return (*first, *map(_section, report.sweeps))


def _claims(part: ScaleClaims, region: float) -> Section:
    """Which claims of the paper hold, which do not, and which these runs cannot decide."""
    counts = Counter(finding.outcome for finding in part.findings)
    said = ", ".join(f"{outcome} {counts[outcome]}" for outcome in OUTCOMES if counts[outcome])
    laptop = part.scale == "laptop"
    scale = [
        "These are runs at laptop scale (small data, net and epochs): what holds or does not hold "
        "here is said of that scale, not of the paper's own setting."
    ]
    reasons = dict.fromkeys(found.why for found in part.findings if found.why)
    marks = {why: letter(place) for place, why in enumerate(reasons)}
    sheet = Sheet(
        name=f"claims-{part.scale}",
        title="claims: what our runs say",
        header=("claim", "source", "our runs", "on its side", "for it", "against it", "Δ", "seeds"),
        align="lllrrrrr",
        rows=tuple(_claim_row(found, marks) for found in part.findings),
        caption=(
            "on its side: comparisons, all else alike, whose mean is on the claim's side; for it: "
            "those that are decidedly so; against it: those decidedly worse or equivalent (paired "
            f"t by seed, 5%, Holm within a claim, equivalent within ±{region:g} points); Δ: the "
            "least and the greatest mean difference, in points",
            "a claim holds if every comparison is for it, and does not hold if one is against it",
        ),
        notes=tuple((mark, f"{why[0].upper()}{why[1:]}.") for why, mark in marks.items()),
    )
    blocks = (
        Sentences(
            (f"Of {counted(len(part.findings), 'claim')}: {said}.", *(scale if laptop else ()))
        ),
        sheet,
    )
    title = f"Claims of the paper{' (laptop scale)' if laptop else ''}"
    return Section("", title, blocks)


def _claim_row(found: Finding, marks: Mapping[str, str]) -> tuple[Cell, ...]:
    means = [duel.result.mean for duel in found.duels]
    verdicts = [duel.verdict for duel in found.duels]
    lost = sum(verdict in ("worse", "equivalent") for verdict in verdicts)
    seeds = [duel.result.n for duel in found.duels]
    span = "" if not means else " to ".join(signed(x, 2) for x in dict.fromkeys(_ends(means)))
    return (
        Cell(found.claim.text),
        Cell(found.claim.source),
        Cell(found.outcome, marks=(marks[found.why],) if found.why else ()),
        Cell(f"{found.agreeing}/{len(means)}" if means else NONE),
        Cell(str(verdicts.count("better")) if means else NONE),
        Cell(str(lost) if means else NONE),
        Cell(span or NONE),
        Cell("–".join(map(str, dict.fromkeys(_ends(seeds)))) if seeds else NONE),
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def opening(report: Report) -> str | None:
    """What must be said before anything else."""
    unread = len(report.problems)
    if not unread:
        return None
    return f"{counted(unread, 'file')} of the ledger could not be read: runs may be missing here."


def _section(found: SweepReport) -> Section:
    laptop = found.sweep.scale == "laptop"
    title = found.sweep.name + (" (laptop scale: small data, net and epochs)" if laptop else "")
    said = [_runs(found)]
    if found.table is None and found.search is None:
        said.append("There is nothing to show of it yet.")
    blocks: list[Sheet | Sentences] = [Sentences(tuple(said))]
    if found.table is not None:
        blocks += sheets_of(found.table)
        blocks += [Sentences(found.table.remarks)] if found.table.remarks else []
    if found.search is not None:
        blocks += _search(found.search)
    return Section(found.sweep.name, title, tuple(blocks))


def _runs(found: SweepReport) -> str:
    given = [(found.states[state], state) for state in STATES if state in found.states]
    states = ", ".join(f"{n} {'waiting' if state == 'planned' else state}" for n, state in given)
    total = sum(found.states.values())
    return f"{counted(total, 'run')}: {states}." if total else "It has no runs yet."


# ---------------------------------------------------------------- searches


def _search(found: SearchSummary) -> Iterator[Sheet | Sentences]:
    yield Sentences(tuple(_search_sentences(found)), "The search")
    if found.best:
        yield top_sheet(found)
    if found.importances:
        yield importance_sheet(found)


def _search_sentences(found: SearchSummary) -> Iterator[str]:
    tried = len(found.trials)
    of = f" of {found.planned}" if found.planned else ""
    yield (
        f"{tried}{of} configurations tried, each with one seed and scored on the holdout, so that "
        f"none of these numbers belongs in a table; {found.rule}."
    )
    if found.best:
        best = found.best[0]
        yield f"Best configuration: {best.label}, {_score(best)}% (n = 1, run {best.run_id})."
    else:
        yield "No configuration of the search is complete yet."
    if found.epochs_full:
        saved = 1 - found.epochs_spent / found.epochs_full
        yield (
            f"Epochs spent: {found.epochs_spent} of the {found.epochs_full} that the same "
            f"configurations take to their end, {labels.percent(saved)} saved by stopping."
        )
    if found.grid_epochs:
        saved = 1 - found.all_epochs / found.grid_epochs
        yield (
            f"With the finalists: {found.all_epochs} of the {found.grid_epochs} epochs of the full "
            f"grid, which is every configuration with every seed, {labels.percent(saved)} saved."
        )
    yield from _false_stops(found)
    if not found.importances and found.draws:
        yield "Too few configurations are complete to say which keys matter."


def _false_stops(found: SearchSummary) -> Iterator[str]:
    if found.false_stop_rate is None:
        if found.stops:
            yield (
                "No audited run is complete, so how often a good configuration was stopped is not "
                "known."
            )
        return
    low, high = (labels.percent(x) for x in (found.false_stop_rate.low, found.false_stop_rate.high))
    rate = labels.percent(found.false_stops / found.audits)
    group = " of their kind" if found.per else ""
    yield (
        f"False stops: {found.false_stops} of {counted(found.audits, 'audited run')}, which the "
        f"rule would have stopped, ended among the best {found.finalists}{group}: {rate} (95% "
        f"interval {low} to {high})."
    )


def top_sheet(found: SearchSummary) -> Sheet:
    """The best configurations, a column for each key that they differ in."""
    keys = [key for key in found.axes if any(key in trial.values for trial in found.best)]
    system = any(key in labels.SYSTEM_KEYS for key in keys)
    others = [key for key in keys if key not in labels.SYSTEM_KEYS]
    rows = []
    for rank, trial in enumerate(found.best, 1):
        values = [Cell(_value(trial, key)) for key in others]
        systems = [Cell(trial.system)] if system else []
        rows.append(
            (
                Cell(str(rank)),
                Cell(_score(trial)),
                Cell(str(trial.epochs)),
                Cell("yes" if trial.audit else "no"),
                *systems,
                *values,
                Cell(trial.run_id),
            )
        )
    titles = [*(["method"] if system else []), *map(labels.title_of, others)]
    return Sheet(
        name=f"{found.sweep}-search",
        title=f"{found.sweep}: the search's best complete configurations",
        header=("rank", "kNN", "epochs", "audited", *titles, "run"),
        align="rrrl" + "l" * len(titles) + "l",
        rows=tuple(rows),
        caption=(
            "kNN: online kNN top-1 on the holdout, %, after the last epoch, n = 1; audited: would "
            "have been stopped, and was let through",
        ),
    )


def importance_sheet(found: SearchSummary) -> Sheet:
    """What share of the search's success hangs on each key."""
    complete = sum(t.state == "done" and t.score is not None for t in found.trials)
    return Sheet(
        name=f"{found.sweep}-importances",
        title=f"{found.sweep}: what the search's success hangs on",
        header=("key", "importance"),
        align="lr",
        rows=tuple((Cell(key), Cell(labels.percent(x))) for key, x in found.importances),
        caption=(f"PED-ANOVA, over {counted(complete, 'complete configuration')}",),
    )


def _value(trial: Trial, key: str) -> str:
    return labels.value_label(key, trial.values[key]) if key in trial.values else NONE


def _score(trial: Trial) -> str:
    return NONE if trial.score is None else f"{trial.score:.2f}"
