"""How often each claim of the paper is supported or contradicted if the paper's numbers are true.

The paper's printed numbers are the true means of all runs of its sweeps at full scale. Every run
adds independent normal noise, so nothing is trained. A claim that is true in this world must not be
contradicted in more than 5% of the replications.

    python -m benchmarks.claims [REPLICATIONS]     # by default 200; one minute on one core
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from ascl_sweep.analysis.comparison import REGION
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.reproduction.claims import CLAIMS, Claim
from ascl_sweep.reproduction.compare import TABLES, find_cell
from ascl_sweep.reproduction.duels import Side, group_sides
from ascl_sweep.reproduction.judge import Outcome, judge_claim
from ascl_sweep.search.study import Study
from ascl_sweep.spec.sweep import load_sweep

SPACES = Path(__file__).resolve().parent.parent / "search_spaces"
SD = 0.2
"""Standard deviation over seeds, in points."""
SEEDS = (3, 10)
REPLICATIONS = 200
NOISELESS = 1e-6
OUTCOMES: tuple[Outcome, ...] = ("supported", "contradicted", "inconclusive")


@dataclass(frozen=True)
class Frequencies:
    """Shares of the outcomes of a claim over the replications."""

    claim: Claim
    is_true: bool
    """Whether the paper's own numbers agree with the claim."""
    shares: dict[Outcome, float]


def printed_claims() -> list[Claim]:
    """List the claims that the paper's printed numbers decide."""
    return [claim for claim in CLAIMS if claim.score == "probe_top1" and not claim.settled]


def simulate(
    claim: Claim, seeds: int, replications: int, sd: float = SD, region: float = REGION
) -> Frequencies:
    """Judge a claim on simulated runs.

    Args:
        claim: A claim of `printed_claims`.
        seeds: Number of seeds of every arm.
        replications: Number of simulated stores.
        sd: Standard deviation over seeds, in points.
        region: Half-width of the equivalence region, in points.

    Returns:
        How often the claim had each outcome.
    """
    sides = _true_sides(claim)
    rng = np.random.default_rng([seeds, *claim.text.encode()])

    def judge(spread: float) -> Outcome:
        noise = spread * rng.standard_normal((len(sides), seeds))
        drawn = [_add_noise(*pair) for pair in zip(sides, noise.tolist(), strict=True)]
        return judge_claim(claim, drawn, region).outcome

    counts = Counter(judge(sd) for _ in range(replications))
    shares = {outcome: counts[outcome] / replications for outcome in OUTCOMES}
    return Frequencies(claim, judge(NOISELESS) == "supported", shares)


def _add_noise(side: Side, noise: Sequence[float]) -> Side:
    return replace(side, scores={i: side.scores[0] + x for i, x in enumerate(noise)})


def _true_sides(claim: Claim) -> list[Side]:
    """Return the arms of a claim's sweeps, with the paper's value as the score of seed 0."""
    rows: dict[str, RunRow] = {}
    for name in claim.sweeps:
        for row in _planned(name):
            cell = find_cell(TABLES[name], row.config, row.idle)
            if cell is not None:
                known = rows.get(row.run_id, replace(row, probe_top1=cell.value / 100))
                rows[row.run_id] = known
    return group_sides(rows.values(), claim, {})


@cache
def _planned(name: str) -> tuple[RunRow, ...]:
    tasks = Study(load_sweep(SPACES / f"{name}.yaml"), {}, {}).wanted()
    rows = (
        RunRow(
            task.run_id,
            (name,),
            task.config.flat_values(),
            task.phase,
            "full",
            RunState.DONE,
            idle=task.config.idle_keys(),
        )
        for task in tasks
    )
    return tuple(row for row in rows if row.config["seed"] == 0)


def main() -> None:
    replications = int(sys.argv[1]) if len(sys.argv) > 1 else REPLICATIONS
    print(f"Shares of {replications} replications: supported / contradicted / inconclusive\n")
    print("| claim | true there |", *(f"n = {seeds} |" for seeds in SEEDS))
    print("|---|---|" + "---|" * len(SEEDS), flush=True)
    for claim in printed_claims():
        found = [simulate(claim, seeds, replications) for seeds in SEEDS]
        shown = [" / ".join(f"{f.shares[o]:.3f}" for o in OUTCOMES) for f in found]
        true = "yes" if found[0].is_true else "no"
        print(f"| {claim.text} | {true} |", *(f"{text} |" for text in shown), flush=True)


if __name__ == "__main__":
    main()
