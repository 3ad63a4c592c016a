"""Comparisons under a plan of seeds: one look at all of them, or several planned looks.

The study and the report decide by the same functions, from the same rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.arms import LastEpochs, baseline_values, build_arms
from ascl_sweep.analysis.comparison import (
    Arm,
    Comparison,
    Design,
    Options,
    Pair,
    decide_pairs,
    find_baselines,
    pair_arms,
    seed_correlations,
    wait_for_runs,
)
from ascl_sweep.analysis.inference import spend_alpha
from ascl_sweep.analysis.labels import join_names
from ascl_sweep.contracts import RunRow, Scalar
from ascl_sweep.spec.metrics import Metric, find_metric
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.text import plural


def compare_arms(
    arms: Sequence[Arm],
    wanted: Mapping[str, Scalar],
    metric: Metric,
    options: Options,
    design: Design | None = None,
) -> tuple[list[Arm], list[str]]:
    """Compare each arm with its baseline, paired by seed.

    Args:
        arms: The arms of one table.
        wanted: The config values of the baseline.
        metric: The metric that scores the arms.
        options: The region of equivalence.
        design: The plan of the comparisons.

    Returns:
        The arms with their comparisons, and remarks on arms that are not compared.
    """
    design = design or Design()
    baselines = find_baselines(arms, wanted)
    named = {id(baseline) for baseline in baselines if baseline is not None}
    pairs = pair_arms(arms, baselines)
    found = _decide(pairs, metric, options, design)
    remarks = []
    if len(arms) > 1:
        alone = [a for a, b in zip(arms, baselines, strict=True) if b is None]
        apart = [pair.arm for pair in pairs if pair.is_apart]
        remarks = list(_uncompared(alone, apart, len(arms), wanted))
    out = [
        replace(arm, is_baseline=id(arm) in named, comparison=found.get(id(arm))) for arm in arms
    ]
    return out, remarks


def _decide(
    pairs: Sequence[Pair], metric: Metric, options: Options, design: Design
) -> dict[int, Comparison]:
    """Decide every comparison; return them by the id of their arm."""
    if design.looks:
        return follow_looks(pairs, metric, options, design).found
    every: dict[int, Sequence[int] | None] = {id(pair): None for pair in pairs}
    found = decide_pairs(
        pairs, every, pairs, len(design.seeds), design.alpha, metric, options, design
    )
    # A comparison borrows the variances of its pool, so all planned seeds of the pool must end.
    open_pools = {pair.dataset for pair in pairs if not pair.has_ended(design.seeds)}
    waiting = {id(pair.arm) for pair in pairs if pair.dataset in open_pools}
    return {key: wait_for_runs(each) if key in waiting else each for key, each in found.items()}


@dataclass(frozen=True)
class _Looks:
    """The state of planned looks."""

    found: dict[int, Comparison]
    """Comparisons by the id of their arm."""
    open: list[Pair]
    """The comparisons that further seeds may decide."""
    wanted: dict[int, int]
    """Number of seeds that the looks have asked for, by the id of the arm."""
    made: int
    """Number of complete looks."""


def follow_looks(pairs: Sequence[Pair], metric: Metric, options: Options, design: Design) -> _Looks:
    """Decide the comparisons look by look.

    A look waits until every open comparison has its seeds. A decided comparison stays so: it keeps
    the seeds of its look, also where other comparisons borrow its variance. The decisions thus
    depend on nothing but the scores of the runs that the looks asked for.
    """
    found: dict[int, Comparison] = {}
    used: dict[int, Sequence[int] | None] = {}
    wanted: dict[int, int] = {}
    open_pairs = list(pairs)
    looks = zip(design.looks, spend_alpha(design.looks, design.alpha), strict=True)
    for made, (count, alpha) in enumerate(looks):
        seeds = design.seeds[:count]
        used |= {id(pair): seeds for pair in open_pairs}
        wanted |= {id(side): count for pair in open_pairs for side in (pair.arm, pair.baseline)}
        now = decide_pairs(pairs, used, open_pairs, count, alpha, metric, options, design)
        if not all(pair.has_ended(seeds) for pair in open_pairs):
            # Show the available results, but decide nothing before the look is complete.
            now = {
                key: wait_for_runs(comparison)
                for key, comparison in now.items()
                if key not in found or comparison.estimate.n > found[key].estimate.n
            }
            return _Looks(found | now, open_pairs, wanted, made)
        found |= now
        open_pairs = [pair for pair in open_pairs if is_open(found.get(id(pair.arm)))]
        if not open_pairs:
            return _Looks(found, [], wanted, made + 1)
    return _Looks(found, open_pairs, wanted, len(design.looks))


def is_open(comparison: Comparison | None) -> bool:
    """Whether further seeds may decide a comparison whose runs have ended.

    They cannot if no seed has a score on both sides, if both sides lost seeds, or if the scores
    already give a verdict that lost seeds rule out.
    """
    if comparison is None or len(comparison.lost) > 1 or comparison.inference.blocked:
        return False
    return comparison.verdict in (None, "undecided")


def _uncompared(
    alone: Sequence[Arm], apart: Sequence[Arm], total: int, wanted: Mapping[str, Scalar]
) -> Iterator[str]:
    """Explain which arms are not compared: without a baseline, or without a common seed."""
    if len(alone) == total:
        why = "no baseline is set"
        if wanted:
            why = f"no unique baseline arm ({labels.conditions(wanted)})"
        yield f"No arms are compared: {why}. Set table.baseline in the sweep file or --baseline."
    elif alone:
        names = join_names(arm.label for arm in alone)
        yield f"{names}: not compared; no unique baseline arm ({labels.conditions(wanted)})."
    if apart:
        names = join_names(arm.label for arm in apart)
        yield f"{names}: not compared; no seed is complete in both the arm and its baseline."


# ---------------------------------------------------------------- the plan of a sweep


@dataclass(frozen=True)
class PlannedTable:
    """The arms of a sweep's table, without comparisons, and how they are to be compared."""

    metric: Metric
    arms: list[Arm]
    baseline: Mapping[str, Scalar]
    """The config values of the baseline."""
    design: Design


def plan_table(
    digest: SweepSummary,
    rows: Sequence[RunRow],
    options: Options | None = None,
    last_epochs: LastEpochs | None = None,
) -> PlannedTable:
    """Arrange the table of a sweep.

    Args:
        digest: The sweep.
        rows: Its final runs, started or not.
        options: Options of the user, which take precedence over the sweep file.
        last_epochs: Last-epoch metrics of each run, needed if the table shows one of them.
    """
    options, asked = options or Options(), digest.table or {}
    measured = any(row.probe_top1 is not None for row in rows)
    default = "probe_top1" if measured else "knn_top1"
    metric = find_metric(options.metric or asked.get("metric") or default, options.epoch)
    arms = build_arms(rows, digest, metric, options, last_epochs or {})
    baseline = baseline_values(options.baseline or asked.get("baseline"), arms, digest)
    return PlannedTable(metric, arms, baseline, design_of(digest, len(arms)))


def design_of(digest: SweepSummary, arms: int = 0) -> Design:
    """Return the plan of a sweep's comparisons, given the number of arms that have rows."""
    # Finalists get their rows when they start; until then only their number is known.
    finalists = (digest.finalists or 0) if digest.search and digest.per is None else 0
    comparisons = finalists if arms < finalists else 0
    plan = digest.seed_plan
    return Design(plan.seeds, plan.looks, comparisons, plan.extensions, plan.removed)


@dataclass(frozen=True)
class LookStatus:
    """What planned looks have decided, and what the next one needs."""

    comparisons: int
    """Number of comparisons of the table."""
    decided: int
    seeds: int
    """Number of seeds of the last complete look; 0 before the first."""
    following: int | None
    """Number of seeds of the next look; None if the last one was made or nothing is open."""
    open: tuple[tuple[str, str], ...]
    """Arm and baseline of each open comparison, as the ids of their first runs."""
    wanted: Mapping[str, int]
    """Number of seeds that each arm needs up to the next look, by the ids of its runs."""
    needed: Mapping[str, int]
    """Further seeds that would decide each undecided comparison, by the label of its arm."""
    beyond: tuple[str, ...] = ()
    """Arms of comparisons that no look would decide if their estimates stay the same."""

    def to_dict(self) -> dict[str, object]:
        """Return what `status --json` shows."""
        return {
            "comparisons": self.comparisons,
            "decided": self.decided,
            "seeds": self.seeds,
            "next_look": self.following,
            "seeds_needed": dict(self.needed),
            "summary": self.describe(),
        }

    def describe(self) -> str:
        """Describe decided comparisons, the next look and the seeds still needed in a line."""
        if not self.comparisons:
            parts = ["no comparisons to decide"]
        else:
            when = f"at {self.seeds} seeds" if self.seeds else "before the first look"
            parts = [f"{self.decided} of {plural(self.comparisons, 'comparison')} decided {when}"]
        if self.following is not None:
            parts.append(f"next look at {self.following} seeds")
        elif self.decided < self.comparisons:
            parts.append("no look is left")
        if self.needed:
            each = ", ".join(f"{label} +{seeds}" for label, seeds in self.needed.items())
            parts.append(f"seeds still needed: {each}")
        if self.beyond and self.following is not None:
            names = join_names(self.beyond)
            parts.append(f"no look would decide {names} if the estimates stay the same")
        return "; ".join(parts)


def looks_of(digest: SweepSummary, rows: Sequence[RunRow]) -> LookStatus:
    """Return the state of a sweep's planned looks.

    Args:
        digest: A sweep that runs until decided.
        rows: Its final runs, started or not.
    """
    table = plan_table(digest, rows)
    arms, design = table.arms, table.design
    pairs = pair_arms(arms, find_baselines(arms, table.baseline))
    looks = follow_looks(pairs, table.metric, Options(), design)
    more = bool(looks.open) and looks.made < len(design.looks)
    if not pairs:  # every arm gets the seeds of the first look
        more = any(not a.has_ended(s) for a in arms for s in design.seeds[: design.looks[0]])
    needed: dict[str, int] = {}
    beyond = []
    for pair in looks.open:
        comparison = looks.found.get(id(pair.arm))
        if comparison is not None and comparison.inference.seeds_needed is not None:
            needed[pair.arm.label] = comparison.inference.seeds_needed
        elif comparison is not None:
            beyond.append(pair.arm.label)
    verdicts = [found.verdict for found in looks.found.values()]
    return LookStatus(
        comparisons=len(pairs),
        decided=sum(verdict not in (None, "undecided") for verdict in verdicts),
        seeds=design.looks[looks.made - 1] if looks.made else 0,
        following=design.looks[looks.made] if more else None,
        open=tuple((pair.arm.run_ids[0], pair.baseline.run_ids[0]) for pair in looks.open),
        wanted={
            run_id: looks.wanted.get(id(arm), design.looks[0])
            for arm in arms
            for run_id in arm.run_ids
        },
        needed=needed,
        beyond=tuple(beyond),
    )


def planned_comparisons(digest: SweepSummary, rows: Sequence[RunRow]) -> int:
    """Return the number of comparisons in the table of these planned runs."""
    table = plan_table(digest, rows)
    pairs = pair_arms(table.arms, find_baselines(table.arms, table.baseline))
    return max(len(pairs), table.design.comparisons)


@dataclass(frozen=True)
class Noise:
    """The variation between seeds in finished runs."""

    sd: float | None
    """Median standard deviation of the paired differences."""
    correlation: float | None
    """Mean correlation of runs with the same seed, see `seed_correlations`."""


def measure_noise(digest: SweepSummary, rows: Sequence[RunRow]) -> Noise:
    """Measure the variation between seeds in a sweep's finished runs."""
    table = plan_table(digest, rows)
    if table.metric.last is None:
        return Noise(None, None)
    compared, _ = compare_arms(table.arms, table.baseline, table.metric, Options())
    found = [arm.comparison.estimate for arm in compared if arm.comparison]
    sds = [e.se * math.sqrt(e.n) for e in found if e.se is not None]
    correlations = seed_correlations(table.arms).values()
    return Noise(
        sd=median(sds) if sds else None,
        correlation=fmean(correlations) if correlations else None,
    )
