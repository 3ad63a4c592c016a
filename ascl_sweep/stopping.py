"""Early stopping of a search's runs by their rank: ASHA, the median rule, keep the best share.

One object serves a live sweep, its rebuilding from the ledger (the recorded epochs are told again)
and `replay`. Higher values are better; values are shares, such as the online kNN accuracy.
"""

import hashlib
import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Protocol, cast, get_args

Kind = Literal["asha", "median", "keep_top"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MEDIAN_OF = 3  # how many others the median rule waits for; Ray's default
PARTS: dict[float, str] = {2: "half", 3: "third", 4: "quarter", 8: "eighth"}


@dataclass(frozen=True)
class Rule:
    """When a run of a search may be ended early; epochs count from 1."""

    kind: Kind
    grace: int = 1  # asha, median: no run is stopped before this epoch
    factor: float = 3.0  # asha: one in so many passes a rung; rungs at grace × factor^k
    share: float = 0.125  # keep_top: the part of the runs that passes
    at: int = 1  # keep_top: the epoch at which it looks
    audit: float = 0.05  # part of the would-be-stopped that is let through, to count false stops

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no stopping rule named {self.kind!r}; there are: {', '.join(KINDS)}")
        if self.grace < 1:
            raise ValueError(f"grace is an epoch, 1 or later, got grace={self.grace}; try 1")
        if not 1 < self.factor < math.inf:
            raise ValueError(
                f"one in `factor` runs passes a rung, so factor > 1, got factor={self.factor}; "
                "try 3"
            )
        if not 0 < self.share <= 1:
            raise ValueError(
                f"share is the part of the runs kept, above 0 and at most 1, "
                f"got share={self.share}; try 0.125"
            )
        if self.at < 1:
            raise ValueError(f"at is an epoch, 1 or later, got at={self.at}; try 1")
        if not 0 <= self.audit <= 1:
            raise ValueError(
                f"audit is a part of the stopped runs, 0 to 1, got audit={self.audit}; try 0.05"
            )


@dataclass(frozen=True)
class Decision:
    """What becomes of a run after an epoch, and why."""

    stop: bool
    because: str = ""
    audited: bool = False  # it would have been stopped, here or earlier, and was let through
    diverged: bool = False


class Stopper:
    """The runs of one search, ranked as their values arrive."""

    def __init__(self, rule: Rule, epochs: int) -> None:
        start, name = (rule.at, "at") if rule.kind == "keep_top" else (rule.grace, "grace")
        if start > epochs:
            raise ValueError(
                f"{rule.kind} must look within the run's epochs, got {name}={start}, "
                f"epochs={epochs}; try {name}={max(1, epochs // 10)}"
            )
        self.rule, self.epochs = rule, epochs
        self._ranks: _Ranks
        match rule.kind:
            case "asha":
                self._ranks = _Asha(rule, epochs)
            case "median":
                self._ranks = _Median(rule, epochs)
            case "keep_top":
                self._ranks = _KeepTop(rule)
        self._last: dict[str, int] = {}  # the latest epoch told
        self._failed: dict[tuple[str, int], Decision] = {}  # where the rule said stop
        self._audited: dict[str, int] = {}  # since which epoch

    @property
    def looks(self) -> tuple[int, ...]:
        """Epochs at which a run can be stopped by its rank, if it tells a value there."""
        return tuple(epoch for epoch in self._ranks.looks if epoch < self.epochs)

    @property
    def rungs(self) -> dict[float, dict[str, float]]:
        """What the runs are ranked by: milestone → run → value."""
        return {milestone: dict(values) for milestone, values in self._ranks.rungs.items()}

    def decide(self, run_id: str, epoch: int, value: float | None) -> Decision:
        """Whether the run ends here. Tell each *measured* epoch, a run's own in rising order.

        None is a value that should be there and is not: epochs which `eval.knn_every` leaves out
        are not told at all. Being told again changes nothing and is answered as before, so a
        retried run may repeat itself; an earlier epoch that comes to light late ranks nowhere. A
        stopped run may speak again (rebuilding tells the runs in another order than they ran in).
        """
        audited = self._audited.get(run_id, epoch) < epoch
        if value is None or not math.isfinite(value):
            # By the value alone. Ray would go on: `nan < cut` is False, and None raises.
            return Decision(
                stop=epoch < self.epochs,
                because=f"diverged at epoch {epoch}: kNN is {_missing(value)}",
                audited=audited,
                diverged=True,
            )
        if (run_id, epoch) in self._failed:
            return self._failed[run_id, epoch]
        because = ""
        # A value of the full length has nothing to be stopped from, and would lift the cut of a
        # rung far below it.
        if self._last.get(run_id, 0) < epoch < self.epochs:
            self._last[run_id] = epoch
            because = self._ranks.tell(run_id, epoch, float(value))
        if not because:
            return AUDITED if audited else GO
        if draws_audit(run_id, self.rule.audit):
            self._audited.setdefault(run_id, epoch)
            decision = Decision(False, f"let through as an audit; {because}", audited=True)
        else:
            decision = Decision(True, because)
        self._failed[run_id, epoch] = decision
        return decision


GO = Decision(stop=False)
AUDITED = Decision(stop=False, audited=True)


def draws_audit(run_id: str, share: float) -> bool:
    """Whether a run is one of those let through; by its id, so that a rebuilt sweep agrees."""
    digest = hashlib.sha256(f"audit {run_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


class _Ranks(Protocol):
    """A rule's memory. `tell` gives the reason to stop, or nothing; it is told an epoch once."""

    looks: tuple[int, ...]

    @property
    def rungs(self) -> dict[float, dict[str, float]]: ...

    def tell(self, run_id: str, epoch: int, value: float) -> str: ...


class _Asha:
    """Ray's ASHA with one bracket: below the cut of a rung's best 1/factor so far, a run ends."""

    def __init__(self, rule: Rule, epochs: int) -> None:
        from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

        self._stop = TrialScheduler.STOP
        self._scheduler = AsyncHyperBandScheduler(
            time_attr="epoch",
            metric="value",
            mode="max",
            max_t=epochs,
            grace_period=rule.grace,
            reduction_factor=rule.factor,
            # True would end full-length runs, and enters a late value into rungs it jumped over.
            stop_last_trials=False,
        )
        self._factor = rule.factor
        # Ray offers no view of its rungs; the reasons, `looks` and the quick way below need one.
        (self._bracket,) = cast(Any, self._scheduler)._brackets
        self.rungs: dict[float, dict[str, float]] = dict(reversed(self._bracket._rungs))
        self._milestones = list(self.rungs)
        self.looks = tuple(math.ceil(milestone) for milestone in self._milestones)
        self._added: set[str] = set()

    def tell(self, run_id: str, epoch: int, value: float) -> str:
        passed = bisect_right(self._milestones, epoch)
        if not passed or run_id in (rung := self.rungs[self._milestones[passed - 1]]):
            return ""  # as Ray would say, without the cost of asking
        trial = cast(Any, SimpleNamespace(trial_id=run_id))  # all that this scheduler reads of it
        nobody = cast(Any, None)  # the controller, which it does not read
        if run_id not in self._added:
            self._added.add(run_id)
            self._scheduler.on_trial_add(nobody, trial)
        action = self._scheduler.on_trial_result(nobody, trial, {"epoch": epoch, "value": value})
        if action != self._stop:
            return ""
        others = {run: theirs for run, theirs in rung.items() if run != run_id}
        mine, cut = _apart(value, float(self._bracket.cutoff(others)))
        best = PARTS.get(self._factor, f"{1 / self._factor:.0%}")
        return (
            f"ASHA at epoch {epoch}: kNN {mine} is below {cut}, "
            f"the cut of the best {best} of {len(others)}"
        )


class _Median:
    """A run ends whose best value is below the median of the others' running means.

    As Ray's MedianStoppingRule, which cannot be driven from outside Tune: where few runs have come
    as far it asks the controller who is waiting; a stopped run that speaks again (an audit, a
    rebuilt sweep) fails its assert, or with hard_stop=False loses its later values; and each call
    reads every result of every run again.
    """

    def __init__(self, rule: Rule, epochs: int) -> None:
        self.looks = tuple(range(rule.grace, epochs))
        self.rungs: dict[float, dict[str, float]] = defaultdict(dict)
        self._grace = rule.grace
        self._best: dict[str, float] = {}
        self._sums: dict[str, tuple[float, int]] = {}

    def tell(self, run_id: str, epoch: int, value: float) -> str:
        best = self._best[run_id] = max(value, self._best.get(run_id, value))
        if epoch < self._grace:
            return ""
        total, count = self._sums.get(run_id, (0.0, 0))
        total, count = self._sums[run_id] = total + value, count + 1
        others = list(self.rungs[epoch].values())
        # Rounding must not lift a mean above its run's best: of equal runs all would end.
        self.rungs[epoch][run_id] = min(total / count, best)
        if len(others) < MEDIAN_OF or best >= (median := statistics.median(others)):
            return ""
        mine, cut = _apart(best, median)
        return (
            f"median rule at epoch {epoch}: the best kNN so far, {mine}, is below {cut}, "
            f"the median of {len(others)} runs' means"
        )


class _KeepTop:
    """At one epoch, a run ends that is not among the best share of those seen there so far."""

    def __init__(self, rule: Rule) -> None:
        self.looks: tuple[int, ...] = (rule.at,)
        self.rungs: dict[float, dict[str, float]] = {rule.at: {}}
        self._at, self._share = rule.at, rule.share

    def tell(self, run_id: str, epoch: int, value: float) -> str:
        seen = self.rungs[self._at]
        if epoch < self._at or run_id in seen:
            return ""
        seen[run_id] = value
        # None is kept, and so none is stopped, before 1 / share runs were seen.
        kept = math.floor(self._share * len(seen) + 1e-9)
        if not kept or value >= (cut := sorted(seen.values())[-kept]):
            return ""
        mine, needed = _apart(value, cut)
        return (
            f"keep_top at epoch {epoch}: kNN {mine} is below {needed}, "
            f"the least of the best {kept} of {len(seen)}"
        )


def _apart(value: float, cut: float) -> tuple[str, str]:
    """Both as percentages, with as many digits as it takes to tell them apart."""
    for digits in range(1, 16):
        texts = f"{value:.{digits}%}", f"{cut:.{digits}%}"
        if texts[0] != texts[1]:
            return texts
    return repr(value), repr(cut)


def _missing(value: float | None) -> str:
    return "missing" if value is None else str(value)
