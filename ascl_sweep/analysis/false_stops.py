"""Estimate of what early stopping cost a search, from its audited runs.

A scheduler stops N runs; n of them, chosen by the hash of their ids, continue as audits. They are a
random sample, so n and the number of false stops among them estimate those among all N without
bias, with an exact hypergeometric interval.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ascl_sweep.analysis.stats import LEVEL, Interval
from ascl_sweep.contracts import Scalar
from ascl_sweep.spec.selection import RankedTrial, rank_trials

FEWEST = 2  # audited runs


@dataclass(frozen=True)
class FalseStops:
    """False stops of a search.

    A false stop is a stopped run that, at full length, scores above the last finalist: above the
    worst of the best complete runs that were never stopped. Other stopped runs do not raise this
    cut, so the number of finalists that stopping lost is at most the number of false stops.
    """

    stopped: int
    """Number of runs that the scheduler chose to stop, audited ones included."""
    audited: int
    """Number of audited runs that have ended."""
    false: int
    """Number of false stops among the audited runs."""
    rate: Interval
    """95% interval of the share of false stops."""
    lost: float
    """Expected number of false stops among the runs that were not audited."""
    lost_interval: Interval


def estimate_false_stops(
    complete: Iterable[RankedTrial],
    audited: Collection[str],
    *,
    diverged: int,
    stopped: int,
    places: int,
) -> FalseStops | None:
    """Estimate the false stops of a search.

    Args:
        complete: The complete trials, audited ones included.
        audited: Run ids of the audited trials.
        diverged: Number of audited runs that diverged; they are no false stops.
        stopped: Number of runs that the scheduler chose to stop, audited ones included.
        places: Number of finalists, per group.

    Returns:
        The estimate; None with fewer than two audited runs.
    """
    ahead: dict[Scalar, int] = defaultdict(int)  # per group, complete runs that were not stopped
    seen = false = 0
    for trial in rank_trials(complete):
        if trial.run_id in audited:
            seen += 1
            false += ahead[trial.group] < places
        else:
            ahead[trial.group] += 1
    seen += diverged
    if seen < FEWEST:
        return None
    low, high = _count_interval(false, seen, stopped)
    return FalseStops(
        stopped=stopped,
        audited=seen,
        false=false,
        rate=Interval(low / stopped, high / stopped),
        lost=false / seen * (stopped - seen),
        lost_interval=Interval(low - false, high - false),
    )


def _count_interval(hits: int, drawn: int, of: int) -> tuple[int, int]:
    """Return the exact interval of the number of hits among all, from a sample without return."""
    from scipy.stats import hypergeom

    tail = (1 - LEVEL) / 2
    possible = [
        count
        for count in range(hits, of - drawn + hits + 1)
        if hypergeom.cdf(hits, of, count, drawn) > tail
        and hypergeom.sf(hits - 1, of, count, drawn) > tail
    ]
    return possible[0], possible[-1]
