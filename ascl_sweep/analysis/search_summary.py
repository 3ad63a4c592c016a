"""Summary of a search: best configurations, epochs saved by early stopping, false stops."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ascl_sweep.analysis import labels, stats
from ascl_sweep.analysis.arms import NOT_IN_ARM, seed_of
from ascl_sweep.analysis.comparison import Arm
from ascl_sweep.analysis.false_stops import FalseStops, estimate_false_stops
from ascl_sweep.contracts import LOST_STATES, RunRow, RunState, Scalar, SweepRow
from ascl_sweep.spec.selection import RankedTrial, rank_trials
from ascl_sweep.spec.summary import SweepSummary

TOP = 10
IMPORTANCE_TRIALS = 10  # complete trials that importances need at least


@dataclass(frozen=True)
class FinalistScore:
    """Online kNN accuracy of a finalist on the test set, in percent."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class ExpectedBest:
    """Expected best holdout score of one system for each number of configurations tried."""

    system: str
    trials: int
    """Number of complete trials that the expectation is computed from."""
    scores: Mapping[int, float]
    """Number of configurations → expected best score, in percent."""


@dataclass(frozen=True)
class SearchRun:
    """A configuration that a search tried, with one seed and scored on the holdout."""

    run_id: str
    label: str
    system: str
    """Method and relabeling."""
    values: Mapping[str, Scalar]
    score: float | None
    """Online kNN accuracy after the last epoch, in percent."""
    epochs: int
    state: str
    audit: bool
    because: str | None
    """Why the scheduler stopped the run, or would have stopped it."""
    test: FinalistScore | None = None
    """Score of the same configuration as a finalist; None if it is no finalist."""


@dataclass(frozen=True)
class SearchSummary:
    """The current state of a search."""

    sweep: str
    scale: str
    rule: str
    planned: int | None
    trials: tuple[SearchRun, ...]
    best: tuple[SearchRun, ...]
    """The best complete trials, best first."""
    states: Mapping[str, int]
    axes: tuple[str, ...]
    """The keys that the search varies."""
    epochs_spent: int
    epochs_full: int
    """Epochs of the same trials without early stopping."""
    all_epochs: int
    """Epochs of the search and the finalists together."""
    grid_epochs: int | None
    """Epochs of every trial at full length with every seed; None until all finalists have ended."""
    importances: tuple[tuple[str, float], ...]
    """Label of a key and its importance, largest first; only keys that exceed chance."""
    has_importances: bool
    """Whether there are enough complete trials to compute importances."""
    audits: int
    """Number of audited runs that have ended; the scheduler would have stopped them."""
    false_stops: FalseStops | None
    """None with fewer than two audited runs."""
    expected_best: tuple[ExpectedBest, ...]
    shared_seed: int | None
    """Seed of the search if the table uses it too, as in older versions; else None."""
    finalists: int
    per: str | None
    """Label of a key, if each of its values has that many finalists."""
    stops: bool
    """Whether the search stops runs early."""
    draws: bool
    """Whether Optuna samples the configurations, so that importances can be computed."""


def summarize_search(sweep: SweepRow, rows: Iterable[RunRow]) -> SearchSummary | None:
    """Summarize the search of a sweep; None if the sweep is not a search."""
    digest = SweepSummary.of_json(sweep.digest)
    everything = [row for row in rows if row.scale == sweep.scale and sweep.name in row.sweeps]
    everything.sort(key=lambda row: (row.created or 0.0, row.run_id))
    if not digest.search:
        return None
    own = [row for row in everything if row.phase == "search"]
    tried = [row for row in own if row.state != RunState.PLANNED or row.epochs]
    finals = [row for row in everything if row.phase == "final"]
    tests = _test_scores(finals)
    trials = {row.run_id: _trial(row, digest.axes, tests) for row in tried}
    complete = [_ranked(row, digest.per) for row in tried if _is_complete(row)]
    ranked = [trials[trial.run_id] for trial in rank_trials(complete)]
    places = digest.finalists or 1
    diverged = sum(row.audit and row.state == RunState.DIVERGED for row in tried)
    audited = {trial.run_id for trial in ranked if trial.audit}
    over = bool(finals) and all(row.state in (RunState.DONE, *LOST_STATES) for row in finals)
    # Seeds of later looks run only where a comparison needs them.
    seeds = max(1, len(set(map(seed_of, finals)))) if digest.looks else len(digest.seeds)
    shared = sorted({seed_of(row) for row in own} & set(digest.seeds))
    importances = _importances(digest, own)
    # Early stopping saved nothing on trials that diverged, failed or are still running.
    lengths = [
        int(row.config.get("epochs") or 0) if row.state == RunState.STOPPED else row.epochs
        for row in tried
    ]
    return SearchSummary(
        sweep=sweep.name,
        scale=sweep.scale,
        rule=digest.stop.describe() if digest.stop else "no early stopping",
        planned=digest.trials,
        trials=tuple(trials.values()),
        best=tuple(ranked[:TOP]),
        states=dict(Counter(row.state for row in own)),
        axes=digest.axes,
        epochs_spent=sum(row.epochs for row in tried),
        epochs_full=sum(lengths),
        all_epochs=sum(row.epochs for row in everything),
        grid_epochs=sum(lengths) * seeds if over else None,
        importances=importances or (),
        has_importances=importances is not None,
        audits=len(audited) + diverged,
        false_stops=estimate_false_stops(
            complete,
            audited,
            diverged=diverged,
            stopped=sum(row.audit or row.state == RunState.STOPPED for row in tried),
            places=places,
        ),
        expected_best=tuple(_expected_best(ranked)),
        shared_seed=shared[0] if shared else None,
        finalists=places,
        per=labels.title_of(digest.per) if digest.per else None,
        stops=digest.stop is not None or any(row.state == RunState.STOPPED for row in own),
        draws=bool(digest.distributions),
    )


def _is_complete(row: RunRow) -> bool:
    score = row.knn_last_top1
    return row.state == RunState.DONE and score is not None and math.isfinite(score)


def _ranked(row: RunRow, per: str | None) -> RankedTrial:
    group = row.config.get(per) if per else None
    return RankedTrial(row.run_id, True, row.epochs, row.knn_last_top1 or 0.0, group)


def configuration(row: RunRow | Arm) -> frozenset[tuple[str, Scalar]]:
    """Return what a trial and the finals of its configuration have in common."""
    own = row.config.keys() - NOT_IN_ARM - set(row.idle) - {"data.holdout"}
    return frozenset((key, row.config[key]) for key in own)


def _test_scores(finals: Iterable[RunRow]) -> dict[frozenset[tuple[str, Scalar]], FinalistScore]:
    """Return the scores of the finalists' complete runs on the test set, by configuration."""
    scores: dict[frozenset[tuple[str, Scalar]], list[float]] = defaultdict(list)
    for row in finals:
        if _is_complete(row):
            scores[configuration(row)].append(100 * (row.knn_last_top1 or 0.0))
    return {key: FinalistScore(*stats.mean_sd(own), len(own)) for key, own in scores.items()}


def _expected_best(ranked: Sequence[SearchRun]) -> Iterator[ExpectedBest]:
    """Yield the expected best score of each system against the number of configurations tried."""
    systems: dict[str, list[float]] = defaultdict(list)
    for trial in ranked:
        assert trial.score is not None
        systems[trial.system].append(trial.score)
    for system, scores in systems.items():
        if len(scores) > 1:
            budgets = [2**i for i in range(len(scores).bit_length())]
            found = {budget: expected_maximum(scores, budget) for budget in budgets}
            yield ExpectedBest(system, len(scores), found)


def expected_maximum(scores: Sequence[float], budget: int) -> float:
    """Return the expected maximum of `budget` scores drawn without replacement.

    The unbiased form of the expected validation performance of Dodge et al. (arXiv:1909.03004).
    """
    ordered, n = sorted(scores), len(scores)
    # The i-th smallest of n scores is the maximum of C(i - 1, budget - 1) of C(n, budget) subsets.
    total = sum(math.comb(i, budget - 1) * score for i, score in enumerate(ordered))
    return total / math.comb(n, budget)


def _trial(
    row: RunRow, axes: Sequence[str], tests: Mapping[frozenset[tuple[str, Scalar]], FinalistScore]
) -> SearchRun:
    keys = [key for key in axes if key in row.config and key not in row.idle]
    knn = row.knn_last_top1
    return SearchRun(
        run_id=row.run_id,
        label=labels.system_arm(row.config, keys),
        system=labels.system(row.config),
        values={key: row.config[key] for key in keys},
        score=None if knn is None or not math.isfinite(knn) else 100 * knn,
        epochs=row.epochs,
        state=row.state,
        audit=row.audit,
        because=row.stopped_because,
        test=tests.get(configuration(row)),
    )


def _importances(digest: SweepSummary, rows: list[RunRow]) -> tuple[tuple[str, float], ...] | None:
    if not digest.distributions:
        return None
    from ascl_sweep.analysis.importance import importances  # slow import

    found = importances(digest.distributions, rows)
    return (
        None
        if found is None
        else tuple((labels.title_of(key), share) for key, share in found.items())
    )
