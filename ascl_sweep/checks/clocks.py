"""Whether the clocks of a cluster's machines go together."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ascl_sweep.checks import Check
from ascl_sweep.lock import BEAT_SECONDS, STALE_SECONDS

# A lease in a bucket is judged by its reader's clock, when it is up to a beat old; one may be late.
SKEW_SECONDS = STALE_SECONDS - 2 * BEAT_SECONDS
PINGS = 5


@dataclass(frozen=True)
class Skew:
    """How far a machine's clock is from ours: somewhere within ± `doubt`."""

    seconds: float
    doubt: float


def skew(now: Callable[[], float], clock: Callable[[], float] = time.time) -> Skew:
    """Compare clocks: of several answers the quickest, taken as given halfway."""
    found = []
    for _ in range(PINGS):
        asked = clock()
        there = now()
        answered = clock()
        found.append(Skew(there - (asked + answered) / 2, (answered - asked) / 2))
    return min(found, key=lambda one: one.doubt)


def of_clock(node: Skew, head: Skew, at: str) -> Check:
    """Whether a machine's clock goes with the head's."""
    apart, doubt = node.seconds - head.seconds, node.doubt + head.doubt
    return Check(
        f"{at}clock",
        f"{apart:+.2f} ± {doubt:.2f} s from the head's",
        abs(apart) - doubt <= SKEW_SECONDS,
        f"set it by NTP: beyond {SKEW_SECONDS:g} s the lease of a driver that lives may look stale",
    )
