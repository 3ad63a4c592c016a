"""Test the paper's claims, listed in `claims.yaml`, on our runs.

Each contest of a claim is tested in every setting of the runs, paired by seed, with standard errors
that are moderated over the claim's comparisons on the same dataset. A claim is supported if every
planned comparison is significant in its direction, each at 5% (an intersection-union test needs no
correction). It is contradicted if a comparison is significant in the opposite direction after
correction over the planned comparisons. Equivalence is reported and contradicts nothing. Where the
results themselves decided on the seeds of a sweep, its claims are tested at less than 5%.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ascl_sweep.analysis.inference import (
    ALPHA,
    FEWEST,
    Estimate,
    decide,
    estimate_pool,
    later_chances,
    seeds_needed,
)
from ascl_sweep.contracts import RunRow
from ascl_sweep.reproduction.claims import ACCURACIES, CLAIMS, Claim, CurveScores
from ascl_sweep.reproduction.duels import Gain, Side, group_sides, plan_gains

Outcome = Literal["supported", "contradicted", "inconclusive", "not tested", "settled"]


@dataclass(frozen=True)
class Duel:
    """The comparison of a contest in one setting."""

    label: str
    result: Estimate
    """Mean difference in points; for speed 100 times the log of the ratio."""
    p: float | None
    """Two-sided p of the single test; for `no worse` of a deficit as large as the margin. Like
    `Inference.p`, it is to be compared with 5%, also if the claim is tested at less."""
    corrected_p: float | None
    """p, corrected over the planned comparisons of the claim."""
    supports: bool
    """Significant in the claimed direction (p)."""
    opposes: bool
    """Significant in the opposite direction (corrected p)."""
    equivalent: bool
    """Significantly inside the region of equivalence, whatever its sign."""
    lost: bool = False
    """Whether seeds diverged or failed on a side: the winner's prevent support, the loser's
    contradiction."""
    waiting: bool = False
    """Whether planned seeds have not ended, which prevents any decision on its dataset."""
    seeds_needed: int | None = None
    """Further seeds with which it would support the claim if its estimates stay the same."""


@dataclass(frozen=True)
class Finding:
    """The test result of a claim."""

    claim: Claim
    outcome: Outcome
    duels: tuple[Duel, ...] = ()
    why: str = ""
    missing: int = 0
    """Number of planned comparisons without complete runs on both sides."""
    level: float = ALPHA
    """Significance level of the claim."""

    @property
    def seeds_needed(self) -> int | None:
        """Further seeds with which the claim would be supported if its estimates stay the same."""
        needed = [duel.seeds_needed for duel in self.duels if not duel.supports]
        if self.outcome != "inconclusive" or self.missing or any(n is None for n in needed):
            return None
        return max(n for n in needed if n is not None)

    @property
    def agreeing(self) -> int:
        """Number of duels whose mean difference has the claimed sign."""
        return sum(duel.result.mean > 0 for duel in self.duels)


def judge_claims(
    rows: Iterable[RunRow],
    levels: Mapping[str, float],
    curve_scores: CurveScores,
    region: float,
) -> tuple[Finding, ...]:
    """Test every claim that depends on these sweeps only.

    Args:
        rows: Runs of the sweeps.
        levels: Significance level of each sweep, see `Design.alpha_per_look`. A claim over several
            sweeps is tested at the smallest level.
        curve_scores: Scores that need all epochs of a run, see `claims.CURVES`.
        region: Half-width of the equivalence region, in percentage points.

    Returns:
        A finding for each claim.
    """
    final = [row for row in rows if row.phase == "final"]
    return tuple(
        judge_claim(
            claim,
            group_sides(final, claim, curve_scores),
            region,
            min(levels[sweep] for sweep in claim.sweeps),
        )
        for claim in CLAIMS
        if set(claim.sweeps) <= set(levels)
    )


def judge_claim(
    claim: Claim, sides: Sequence[Side], region: float, level: float = ALPHA
) -> Finding:
    """Test one claim on its sides, see `judge_claims`."""
    if claim.settled:
        return Finding(claim, "settled", why=claim.settled, level=level)
    gains, planned = plan_gains(claim, sides)
    # A comparison borrows the variances of its pool, so all planned seeds of the pool must end.
    open_pools = {gain.dataset for gain in gains if gain.waiting}
    gains = [gain for gain in gains if gain.differences]
    if not gains:
        why = "no complete runs to compare on both sides"
        return Finding(claim, "not tested", why=why, missing=planned, level=level)
    estimates = _estimate(gains)
    duels = tuple(
        _decide(gain, estimate, claim, planned, region, level, gain.dataset in open_pools)
        for gain, estimate in zip(gains, estimates, strict=True)
    )
    missing, why = planned - len(duels), ""
    outcome: Outcome = "inconclusive"
    if any(duel.opposes for duel in duels):
        outcome = "contradicted"
    elif not missing and all(duel.supports for duel in duels):
        outcome = "supported"
    else:
        why = _why_inconclusive(duels, planned)
    return Finding(claim, outcome, duels, why, missing, level)


def _estimate(gains: Sequence[Gain]) -> list[Estimate]:
    """Estimate each gain, with a standard error moderated over the gains on its dataset."""
    found: dict[int, Estimate] = {}
    for dataset in dict.fromkeys(gain.dataset for gain in gains):
        places = [i for i, gain in enumerate(gains) if gain.dataset == dataset]
        pool = estimate_pool([gains[i].differences for i in places])
        found |= {i: made for i, made in zip(places, pool, strict=True) if made is not None}
    return [found[i] for i in range(len(gains))]


def _decide(
    gain: Gain,
    estimate: Estimate,
    claim: Claim,
    planned: int,
    region: float,
    level: float,
    waiting: bool,
) -> Duel:
    region = region if claim.score in ACCURACIES else 0.0
    shifted = estimate
    if claim.kind == "no worse":
        margin = region if claim.margin is None else claim.margin
        if claim.score == "speed":
            margin = 100 * math.log1p(margin / 100)
        shifted = replace(estimate, mean=estimate.mean + margin)
    judge = partial(
        decide,
        family=planned,
        alpha=level,
        arm_lost_seeds=gain.winner_lost,
        baseline_lost_seeds=gain.loser_lost,
    )
    corrected = judge(shifted, region=0.0)
    single = shifted.interval(level) if estimate.n >= FEWEST else None
    supports = single is not None and single.low > 0 and not (gain.winner_lost or waiting)
    needed = None
    if not (supports or waiting or gain.winner_lost) and shifted.mean > 0:
        needed = seeds_needed(shifted, 1, 0.0, later_chances(estimate.n, level))
    return Duel(
        label=gain.label,
        result=estimate,
        p=None if shifted.p is None else min(1.0, shifted.p * (ALPHA / level)),
        corrected_p=corrected.p,
        supports=supports,
        opposes=corrected.verdict == "worse" and not waiting,
        equivalent=not waiting and judge(estimate, region=region).verdict == "equivalent",
        waiting=gain.waiting,
        lost=gain.winner_lost or gain.loser_lost,
        seeds_needed=needed,
    )


def _why_inconclusive(duels: Sequence[Duel], planned: int) -> str:
    reasons = {
        "no complete runs yet": planned - len(duels),
        "diverged or failed seeds": sum(duel.lost for duel in duels),
        "planned seeds that have not ended": sum(duel.waiting for duel in duels),
        f"fewer than {FEWEST} paired seeds": sum(duel.result.n < FEWEST for duel in duels),
    }
    return "; ".join(
        f"{text} in {count} of {planned} comparisons" for text, count in reasons.items() if count
    )
