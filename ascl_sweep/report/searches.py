"""What a search came to: its best configurations, what stopping saved and what it may have cost."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ascl_sweep import labels, stats
from ascl_sweep.digest import Digest
from ascl_sweep.ledger import RunRow, Scalar, SweepRow
from ascl_sweep.report.arms import varied_keys

TOP = 10


@dataclass(frozen=True)
class Trial:
    """A configuration that a search tried with one seed, scored on the holdout."""

    run_id: str
    label: str
    system: str
    """Its method with its relabelling."""
    values: Mapping[str, Scalar]
    score: float | None
    """Online kNN after its last epoch, in percent."""
    epochs: int
    state: str
    audit: bool
    because: str | None
    """Why it was stopped, or would have been."""


@dataclass(frozen=True)
class SearchSummary:
    """A search, as far as it has come."""

    sweep: str
    scale: str
    rule: str
    planned: int | None
    trials: tuple[Trial, ...]
    best: tuple[Trial, ...]
    """The best complete ones, best first."""
    states: Mapping[str, int]
    axes: tuple[str, ...]
    """The keys that it varies."""
    epochs_spent: int
    epochs_full: int
    """What the same trials would have taken without stopping."""
    all_epochs: int
    """With those of the finalists."""
    grid_epochs: int | None
    """Of every trial to its end with every seed; None while finalists are to come, or without."""
    importances: tuple[tuple[str, float], ...]
    """Label of a key and its share, largest first."""
    audits: int
    """Runs that would have been stopped, were let through, and are complete."""
    false_stops: int
    """Of those, the ones that ended among the finalists' places."""
    false_stop_rate: stats.Interval | None
    """95% interval."""
    finalists: int
    per: str | None
    """Label of a key, if there are that many finalists for each of its values."""
    stops: bool
    """Whether there is a rule that stops runs."""
    draws: bool
    """Whether Optuna draws its configurations, so that it can say which keys matter."""


def search_of(sweep: SweepRow, rows: Iterable[RunRow]) -> SearchSummary | None:
    """The summary of a sweep's search; None if it is not a search."""
    digest = Digest.of_json(sweep.digest)
    everything = [row for row in rows if row.scale == sweep.scale and sweep.name in row.sweeps]
    everything.sort(key=lambda row: (row.created or 0.0, row.run_id))
    own = [row for row in everything if row.phase == "search"]
    # Not only by the digest: a sweep that an older version started has none.
    if not digest.search and not own:
        return None
    axes = digest.axes or tuple(varied_keys(own, ()))
    tried = [row for row in own if row.state != "planned" or row.epochs]
    trials = {row.run_id: _trial(row, axes) for row in tried}
    complete = [t for t in trials.values() if t.state == "done" and t.score is not None]
    ranked = sorted(complete, key=lambda trial: -(trial.score or 0.0))
    places = digest.finalists or 1
    chosen = _first(places, ranked, {row.run_id: row.config.get(digest.per or "") for row in own})
    audited = [trial for trial in ranked if trial.audit]
    false = [trial for trial in audited if trial.run_id in chosen]
    finals = [row for row in everything if row.phase == "final"]
    over = bool(finals) and all(row.state in ("done", "diverged", "failed") for row in finals)
    lengths = [int(row.config.get("epochs") or 0) for row in tried]
    return SearchSummary(
        sweep=sweep.name,
        scale=sweep.scale,
        rule=_rule(digest),
        planned=digest.trials,
        trials=tuple(trials.values()),
        best=tuple(ranked[:TOP]),
        states=dict(Counter(row.state for row in own)),
        axes=axes,
        epochs_spent=sum(row.epochs for row in tried),
        # What diverged, failed or is still running was not saved by stopping.
        epochs_full=sum(
            length if row.state == "stopped" else row.epochs
            for row, length in zip(tried, lengths, strict=True)
        ),
        all_epochs=sum(row.epochs for row in everything),
        grid_epochs=sum(lengths) * len(digest.seeds) if over else None,
        importances=_importances(digest, own),
        audits=len(audited),
        false_stops=len(false),
        false_stop_rate=stats.proportion_interval(len(false), len(audited)) if audited else None,
        finalists=places,
        per=labels.title_of(digest.per) if digest.per else None,
        stops=digest.stop is not None or any(row.state == "stopped" for row in own),
        draws=bool(digest.distributions),
    )


def _first(places: int, ranked: list[Trial], groups: Mapping[str, Scalar]) -> set[str]:
    """The runs in the finalists' places, which each group has of its own."""
    taken: Counter[Scalar] = Counter()
    chosen = set()
    for trial in ranked:
        group = groups[trial.run_id]
        taken[group] += 1
        if taken[group] <= places:
            chosen.add(trial.run_id)
    return chosen


def _trial(row: RunRow, axes: Sequence[str]) -> Trial:
    keys = [key for key in axes if key in row.config and key not in row.idle]
    knn = row.knn_last_top1
    return Trial(
        run_id=row.run_id,
        label=labels.system_arm(row.config, keys),
        system=labels.system(row.config),
        values={key: row.config[key] for key in keys},
        score=None if knn is None or not math.isfinite(knn) else 100 * knn,
        epochs=row.epochs,
        state=row.state,
        audit=row.audit,
        because=row.stopped_because,
    )


def _rule(digest: Digest) -> str:
    stop = digest.stop
    if not digest.search:
        return "started by an older version, which did not note its rule"
    if not stop:
        return "no early stopping"
    match stop["rule"]:
        case "asha":
            return f"ASHA, grace {stop['grace']} epochs, factor {stop['factor']:g}, one bracket"
        case "median":
            return f"median rule, grace {stop['grace']} epochs"
        case _:
            return f"the best {stop['share']:.3g} after epoch {stop['at']}"


def _importances(digest: Digest, rows: list[RunRow]) -> tuple[tuple[str, float], ...]:
    if not digest.distributions:
        return ()
    from ascl_sweep.report.study import importances  # Optuna takes a while to load

    found = importances(digest.distributions, rows)
    return tuple((labels.title_of(key), share) for key, share in found.items())
