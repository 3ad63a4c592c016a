"""Error rates, coverage and power of the tables' inference, by simulation.

    python -m benchmarks.statistics                     # 40,000 tables per cell; a few minutes
    python -m benchmarks.statistics --tables 2000       # a quick look

`docs/statistics.md` has the output and explains it.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ascl_sweep.analysis.assumptions import LEVEL, baseline_excess, find_outlier
from ascl_sweep.analysis.comparison import Design
from ascl_sweep.analysis.inference import ALPHA
from benchmarks.simulation import (
    COLLAPSE,
    ODD,
    OURS,
    SPREADS,
    Floats,
    Formula,
    draw,
    follow_looks,
    holm,
    significant,
)

TABLES = 40_000
SWEEPS = 10_000
WARNED = 2_000
"""Tables per cell whose warnings are counted; these checks are not vectorized."""
SIZES = tuple(product((3, 5, 10), (4, 12, 24)))
"""Seeds and comparisons of a table."""
OTHER = 2
"""An ordinary arm, where another one differs."""
EFFECTS = (
    ("equal", ODD, "any"),
    ("one arm 3×", ODD, "the noisy one"),
    ("one arm 3×", OTHER, "another one"),
    ("baseline 3×", ODD, "any"),
    ("stored spreads", ODD, "any"),
    ("one arm collapses", ODD, "the collapsing one"),
    ("one arm collapses", OTHER, "another one"),
    ("one arm skewed", ODD, "the skewed one"),
    ("one arm skewed", OTHER, "another one"),
)
"""Spreads and the arm with an effect: its index, and in words."""
LOOKS = (3, 5, 8, 10)


@dataclass(frozen=True)
class Pair:
    """Shares of tables: by our inference, and by paired t-tests with Holm's correction."""

    ours: float
    theirs: float

    def __str__(self) -> str:
        return f"{100 * self.ours:.1f} ({100 * self.theirs:.1f})"

    @property
    def ratio(self) -> str:
        return f"{self.ours / self.theirs:.1f}×" if self.theirs else "–"


def wrong_tables(kind: str, seeds: int, comparisons: int, tables: int) -> Pair:
    """Return the share of tables without effects that decide something."""
    drawn = draw(kind, tables, comparisons, seeds)
    ours, theirs = significant(drawn).any(axis=1), holm(drawn).any(axis=1)
    return Pair(float(ours.mean()), float(theirs.mean()))


def power(
    kind: str, arm: int, seeds: int, comparisons: int, correlation: float, tables: int
) -> Pair:
    """Return how often the one arm with an effect of two SD of a seed is found."""
    drawn = draw(kind, tables, comparisons, seeds, arm=arm, effect=2.0, correlation=correlation)
    ours, theirs = significant(drawn)[:, arm - 1], holm(drawn)[:, arm - 1]
    return Pair(float(ours.mean()), float(theirs.mean()))


@dataclass(frozen=True)
class Sequential:
    """Results of sweeps that run until decided, with an effect in one arm or none."""

    wrong: float
    """Share of sweeps that decide an arm without effect."""
    found: float
    """Share of sweeps that decide the arm with the effect."""
    seeds: float
    """Mean number of seeds of that arm, when it is decided or at the end."""
    early: float
    """Mean estimate of the effect where the first look decided it."""


def sequential(
    kind: str,
    comparisons: int,
    effect: float,
    sweeps: int,
    looks: Sequence[int] = LOOKS,
    alphas: Sequence[float] | None = None,
) -> Sequential:
    """Simulate sweeps whose arms have a correlation of 0.5.

    Args:
        kind: Key of `SPREADS`.
        comparisons: Number of comparisons of a sweep.
        effect: True difference of one arm, in SD of a seed; 0 for none.
        sweeps: Number of simulated sweeps.
        looks: Numbers of seeds at which comparisons are decided.
        alphas: Family-wise error of each look; by default the package's spending.
    """
    drawn = draw(kind, sweeps, comparisons, looks[-1], effect=effect, correlation=0.5)
    found = follow_looks(drawn, looks, alphas)
    decided = found.decided > 0
    first = found.decided[:, 0] == looks[0]
    return Sequential(
        wrong=float(decided[:, 1 if effect else 0 :].any(axis=1).mean()),
        found=float(decided[:, 0].mean()),
        seeds=float(found.spent[:, 0].mean()),
        early=float(drawn[first, 0, : looks[0]].mean()) if first.any() else math.nan,
    )


def without_any_seed(kind: str, comparisons: int, seeds: int, alpha: float, sweeps: int) -> float:
    """Return the share of sweeps without effects that decide something with one seed removed."""
    drawn = draw(kind, sweeps, comparisons, seeds)
    wrong = significant(drawn).any(axis=1)
    for seed in range(seeds):
        wrong |= significant(np.delete(drawn, seed, axis=2), alpha).any(axis=1)
    return float(wrong.mean())


def variants() -> Iterator[Formula]:
    """Yield other constants of the moderated test."""
    for given in product((3, 4, 6, 12, 1e9), (0.0, 0.3, 0.5, 0.7), (0.0, 0.5, 1.0), (True, False)):
        yield Formula(*given)


def frontier(tables: int) -> Iterator[tuple[float, float, Formula]]:
    """Yield the error and the power of all formulas (n = 3, m = 4).

    The error is the largest over unequal spreads, with four times as many tables. The power is that
    for equal spreads without correlation, relative to Holm's.
    """
    kinds = ("one arm 3×", "baseline 3×", "stored spreads")
    nulls = [draw(kind, 4 * tables, 4, 3) for kind in kinds]
    drawn = draw("equal", tables, 4, 3, effect=2.0)
    base = holm(drawn)[:, 0].mean()
    for formula in dict.fromkeys((OURS, *variants())):
        wrong = max(significant(null, formula=formula).any(axis=1).mean() for null in nulls)
        power = significant(drawn, formula=formula)[:, 0].mean()
        yield float(wrong), float(power / base), formula


# ---------------------------------------------------------------- warnings


def warns(scores: Floats) -> tuple[bool, bool]:
    """Return whether a report warns about the baseline of a table (A, N), and about a run."""
    p = baseline_excess(scores, 0)
    return p is not None and p < LEVEL, find_outlier(scores, range(scores.shape[1])) is not None


def warnings(
    kind: str, seeds: int, comparisons: int, tables: int, low: float = 0.0
) -> tuple[float, float, float]:
    """Return how often a report warns about the baseline, about a run, and about either.

    Args:
        kind, seeds, comparisons: As above.
        tables: Number of simulated tables.
        low: How many standard deviations one run of an arm is lowered.
    """
    scores = SPREADS[kind](np.random.default_rng(0), tables, 1 + comparisons, seeds)
    scores[:, ODD, 0] -= low
    found = np.array([warns(table) for table in scores])
    either = found.any(axis=1).mean()
    return float(found[:, 0].mean()), float(found[:, 1].mean()), float(either)


def warned_errors(seeds: int, comparisons: int, tables: int) -> tuple[int, int, int]:
    """Return the number of wrong tables with a collapsing arm, without a collapsed seed, warned."""
    kind = "one arm collapses"
    scores = SPREADS[kind](np.random.default_rng(0), tables, 1 + comparisons, seeds)
    wrong = scores[significant(scores[:, 1:] - scores[:, :1]).any(axis=1)]
    collapsed = (wrong[:, ODD] < -COLLAPSE / 2).any(axis=1)
    return len(wrong), int((~collapsed).sum()), sum(any(warns(table)) for table in wrong)


# ---------------------------------------------------------------- report


def report(tables: int) -> Iterator[str]:
    """Yield the lines of the report."""
    sweeps, warned = min(tables, SWEEPS), min(tables, WARNED)
    yield from report_errors(tables)
    yield from report_power(tables)
    yield from report_looks(sweeps)
    yield from report_warnings(sweeps, warned)


def report_errors(tables: int) -> Iterator[str]:
    error = math.sqrt(ALPHA * (1 - ALPHA) / tables)
    yield f"{tables:,} simulated tables a cell (standard error at 5%: {100 * error:.1f} points)\n"
    yield "Tables without effects that contain a wrong decision, % (paired t + Holm):\n"
    yield "| spreads | " + " | ".join(f"n={n}, m={m}" for n, m in SIZES) + " |"
    yield "|---|" + "---:|" * len(SIZES)
    for kind in SPREADS:
        cells = [str(wrong_tables(kind, n, m, tables)) for n, m in SIZES]
        yield f"| {kind} | {' | '.join(cells)} |"
    worst = wrong_tables("baseline 3×", 3, 4, 10 * tables).ours
    error = math.sqrt(worst * (1 - worst) / (10 * tables))
    yield f"\nBaseline 3×, n=3, m=4, {10 * tables:,} tables: {100 * worst:.2f} ± {100 * error:.2f}%"


def report_power(tables: int) -> Iterator[str]:
    sizes = tuple(product((4, 12, 24), (0.0, 0.5)))
    for seeds in (3, 5):
        yield f"\nPower with {seeds} seeds for one arm better by two SD of a seed, %:\n"
        yield "| spreads | better arm | " + " | ".join(f"m={m}, r={r:g}" for m, r in sizes) + " |"
        yield "|---|---|" + "---:|" * len(sizes)
        for kind, arm, words in EFFECTS if seeds == 3 else EFFECTS[:1]:
            cells = [power(kind, arm, seeds, m, r, tables) for m, r in sizes]
            yield f"| {kind} | {words} | {' | '.join(f'{c} {c.ratio}' for c in cells)} |"
    found = list(frontier(tables))
    (wrong, ratio), *_ = (each[:2] for each in found)
    yield f"\nAll {len(found)} formulas, n=3, m=4 (ours: {100 * wrong:.2f}%, {ratio:.1f}×):\n"
    limits = (0.05, 0.055, 0.06, 0.065, 0.07, 0.1)
    yield "| largest error | " + " | ".join(f"{100 * limit:g}%" for limit in limits) + " |"
    yield "|---|" + "---:|" * len(limits)
    best = [max(ratio for wrong, ratio, _ in found if wrong <= limit) for limit in limits]
    yield "| best power | " + " | ".join(f"{ratio:.1f}×" for ratio in best) + " |"


def report_looks(sweeps: int) -> Iterator[str]:
    looks = ", ".join(map(str, LOOKS))
    yield f"\nRun until decided, {sweeps:,} sweeps a cell, looks at {looks} seeds:\n"
    yield "| sweeps without effects with a wrong decision, % | m=4 | m=12 | m=24 |"
    yield "|---|---:|---:|---:|"
    for kind in SPREADS:
        cells = [f"{100 * sequential(kind, m, 0.0, sweeps).wrong:.1f}" for m in (4, 12, 24)]
        yield f"| {kind} | {' | '.join(cells)} |"
    yield "\n| m | effect in SD | decided, % | mean seeds | mean estimate at the first look |"
    yield "|---:|---:|---:|---:|---:|"
    for m, effect in product((4, 12), (1.0, 2.0, 3.0)):
        found = sequential("equal", m, effect, sweeps)
        cells = (f"{100 * found.found:.0f}", f"{found.seeds:.1f}", f"{found.early:.2f}")
        yield f"| {m} | {effect:g} | {' | '.join(cells)} |"
    plans = [Design(extensions=number) for number in range(3)]
    total = plans[-1].total_alpha
    assert total is not None
    yield f"\nSeeds changed by hand, m=4, equal spreads (bound {100 * total:.3g}%):\n"
    added = sequential("equal", 4, 0.0, sweeps, (3, 5, 8), [plan.alpha for plan in plans]).wrong
    yield f"- 3 seeds, then 5, then 8: {100 * added:.1f}% wrong"
    removed = without_any_seed("equal", 4, 5, plans[1].alpha, sweeps)
    yield f"- 5 seeds, then any 4 of them: {100 * removed:.1f}% wrong"


def report_warnings(tables: int, warned: int) -> Iterator[str]:
    yield f"\nWarnings, {warned:,} tables a cell: about the baseline, about a run, either, %:\n"
    yield "| tables | n=3, m=4 | n=5, m=4 | n=10, m=4 | n=3, m=12 | n=10, m=24 |"
    yield "|---|" + "---:|" * 5
    cells = ((3, 4), (5, 4), (10, 4), (3, 12), (10, 24))
    for words, kind, low in (
        ("equal spreads", "equal", 0.0),
        ("baseline 3×", "baseline 3×", 0.0),
        ("one arm 3×", "one arm 3×", 0.0),
        ("one run 10 SD low", "equal", 10.0),
        ("one run 12 SD low", "equal", 12.0),
    ):
        found = [warnings(kind, n, m, warned, low) for n, m in cells]
        shown = (" / ".join(f"{100 * share:.1f}" for share in each) for each in found)
        yield f"| {words} | {' | '.join(shown)} |"
    yield "\n| wrong tables, one arm collapses | of | without a collapsed seed | with a warning |"
    yield "|---|---:|---:|---:|"
    for n, m in ((5, 4), (10, 4), (10, 12)):
        wrong, unseen, warned_of = warned_errors(n, m, tables)
        yield f"| n={n}, m={m}: {wrong:,} | {tables:,} | {unseen:,} | {warned_of:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tables", type=int, default=TABLES, help="simulated tables per cell")
    for line in report(parser.parse_args().tables):
        print(line, flush=True)


if __name__ == "__main__":
    main()
