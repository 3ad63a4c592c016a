"""Ranking of a search's trials and selection of its finalists, for the study and the report."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ascl_sweep.contracts import Scalar


@dataclass(frozen=True)
class RankedTrial:
    """A scored trial of a search."""

    run_id: str
    complete: bool
    """Whether the run reached its full length; otherwise it was stopped early."""
    epochs: int
    score: float
    """Score on the holdout after the last epoch; higher is better."""
    group: Scalar = None
    """Value of `ladder.per`; None without groups."""


def rank_trials(trials: Iterable[RankedTrial]) -> list[RankedTrial]:
    """Rank trials, best first.

    Complete runs rank first, by score. Stopped runs follow, those with more epochs first, then by
    score. Equal scores rank by run id, which depends on neither the order nor the time of the runs.
    """
    return sorted(
        trials, key=lambda t: (not t.complete, 0 if t.complete else -t.epochs, -t.score, t.run_id)
    )


def choose_finalists(
    trials: Iterable[RankedTrial], count: int, base: str | None = None
) -> list[str]:
    """Return the run ids of the best `count` trials of each group, best first.

    The run of the base config is added at the end if it is not among the best, whatever its score.
    """
    chosen = [trial.run_id for trial in best_of_groups(rank_trials(trials), count)]
    return chosen if base is None or base in chosen else [*chosen, base]


def best_of_groups(ranked: Sequence[RankedTrial], count: int) -> list[RankedTrial]:
    """Return the first `count` trials of each group, in rank order."""
    taken: Counter[Scalar] = Counter()
    chosen = []
    for trial in ranked:
        taken[trial.group] += 1
        if taken[trial.group] <= count:
            chosen.append(trial)
    return chosen
