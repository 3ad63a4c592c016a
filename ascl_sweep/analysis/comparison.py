"""Arms, their baselines, and one look at their differences, paired by seed. Accuracies are in
percent. `looks.py` compares arms under a plan, which may have several looks.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ascl_sweep.analysis import stats
from ascl_sweep.analysis.inference import (
    ALPHA,
    FEWEST,
    LATER_SHARE,
    Chance,
    Differences,
    Estimate,
    Inference,
    Verdict,
    decide,
    estimate_pool,
    later_chances,
    spend_alpha,
)
from ascl_sweep.contracts import LOST_STATES, RunState, Scalar
from ascl_sweep.spec.metrics import Metric
from ascl_sweep.spec.summary import SweepSummary

REGION = 0.5
"""Half-width of the equivalence region, in percentage points."""
DATASET = "data.name"
REFERENCES = frozenset({"supervised"})
"""Methods whose arms are references: outside the family of comparisons, the bold and the ranks."""


@dataclass(frozen=True)
class Options:
    """Options of a table."""

    metric: str | None = None
    epoch: str = "last"
    baseline: Mapping[str, Scalar] | None = None
    region: float = REGION


@dataclass(frozen=True)
class Design:
    """The plan of a table's comparisons, which fixes their number and the looks at the data."""

    seeds: tuple[int, ...] = ()
    """The planned seeds in their order; empty if unknown."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which comparisons are decided; empty for one look at all seeds."""
    comparisons: int = 0
    """Planned comparisons, if more than the table has arms for yet."""
    extensions: int = 0
    """How often seeds were added or removed after results were known."""
    removed: tuple[int, ...] = ()
    """Seeds that were removed after their results were known, also if they were added again."""

    @property
    def alpha(self) -> float:
        """Family-wise error of all looks of this plan: half that of the plan that it replaced."""
        return ALPHA * LATER_SHARE**self.extensions

    @property
    def total_alpha(self) -> float | None:
        """Largest family-wise error of this plan and those that it replaced, together.

        The plan before this one has spent its whole error, so this one adds to it: 5% + 2.5% + …,
        which is less than 10%. None if seeds were removed: then there is no bound.
        """
        if self.removed:
            return None
        return ALPHA * sum(LATER_SHARE**plan for plan in range(self.extensions + 1))

    @property
    def alpha_per_look(self) -> float:
        """Error of a test without looks of its own, which a reader may repeat at every look."""
        return self.alpha / max(1, len(self.looks))

    def chances(self, n: int) -> tuple[Chance, ...]:
        """Return when more than `n` seeds may decide a comparison.

        With planned looks only these count. Else the planned seeds come first, and then seeds that
        a change of the plan would add.
        """
        if self.looks:
            spent = zip(self.looks, spend_alpha(self.looks, self.alpha), strict=True)
            return tuple(Chance(range(seeds, seeds + 1), alpha) for seeds, alpha in spent)
        planned = range(n + 1, len(self.seeds) + 1)
        return (Chance(planned, self.alpha), *later_chances(max(n, len(self.seeds)), self.alpha))


@dataclass(frozen=True)
class Comparison:
    """An arm compared with its baseline, paired by seed."""

    baseline: str
    inference: Inference
    unpaired: tuple[int, ...]
    """Seeds that are complete in only one of the two arms."""
    runs: frozenset[str]
    """Ids of the arm's runs."""
    baseline_runs: frozenset[str]
    planned: int
    """Number of seeds that this look needs."""
    lost: tuple[str, ...] = ()
    """Labels of the sides with a diverged or failed seed."""
    taken_from: str | None = None
    """Sweep whose table has the same comparison in a larger family, from which this one is."""

    @property
    def estimate(self) -> Estimate:
        return self.inference.estimate

    @property
    def verdict(self) -> Verdict | None:
        return self.inference.verdict

    @property
    def complete(self) -> bool:
        """Whether all seeds of this look are paired."""
        return self.estimate.n >= self.planned


@dataclass(frozen=True)
class PaperValue:
    """The value that the paper reports for an arm."""

    value: float
    notes: tuple[str, ...]
    """Letters of the table's notes."""
    difference: float | None
    """Our mean minus the paper's value; None if our mean is missing."""
    inside: bool | None
    """Whether the paper's value lies in the 95% prediction interval of a single run of ours; None
    with fewer than two seeds."""


@dataclass(frozen=True)
class StepCost:
    """Cost of a training step of an arm; None where the store has no value."""

    backprops: int | None
    ema: bool | None
    step_ms: float | None
    """Milliseconds per step, mean over complete runs."""
    memory_gb: float | None
    """Largest peak memory of its runs."""


@dataclass(frozen=True)
class Arm:
    """One configuration with all its seeds."""

    label: str
    values: Mapping[str, Scalar]
    """Values of the keys that differ between the sweep's arms, without idle keys."""
    config: Mapping[str, Scalar]
    idle: tuple[str, ...]
    scores: Mapping[int, float]
    """Score of each complete run, by seed."""
    planned: int
    """Number of planned seeds."""
    mean: float | None
    sd: float | None
    interval: stats.Interval | None
    states: Mapping[RunState, int]
    """Number of its runs that have no score, by state: stopped, diverged, failed, lost."""
    unscored: Mapping[int, RunState] = field(default_factory=dict, kw_only=True)
    """State of each run without a score, by seed."""
    epochs: int
    device_hours: float
    run_ids: tuple[str, ...]
    marks: tuple[str, ...] = ()
    """Letters of the notes on how it differs from the other arms."""
    is_baseline: bool = False
    comparison: Comparison | None = None
    paper: PaperValue | None = None
    cost: StepCost | None = None
    """Only in tables that compare several methods."""
    tried: int | None = None
    """Number of configurations that a search tried for its system; None without a search."""

    @property
    def n(self) -> int:
        return len(self.scores)

    @property
    def is_reference(self) -> bool:
        return self.config.get("method.name") in REFERENCES

    @property
    def lost_seeds(self) -> int:
        """Number of seeds that diverged, failed or have no finite score."""
        return sum(state in LOST_STATES for state in self.unscored.values())

    def has_lost(self, seeds: Collection[int] | None) -> bool:
        """Whether one of these seeds, or of all seeds, diverged or failed."""
        lost = {seed for seed, state in self.unscored.items() if state in LOST_STATES}
        return bool(lost if seeds is None else lost & set(seeds))

    def has_ended(self, seed: int) -> bool:
        """Whether the run of a seed has its score, or will have none."""
        ends = (RunState.DONE, *LOST_STATES)
        return seed in self.scores or self.unscored.get(seed) in ends

    @property
    def bold(self) -> bool:
        """Whether the arm is significantly better; the largest mean alone is not bold."""
        return self.comparison is not None and self.comparison.verdict == "better"


# ---------------------------------------------------------------- comparing


def base_values(digest: SweepSummary, arms: Sequence[Arm]) -> Mapping[str, Scalar]:
    """Return the sweep's base values of the keys that differ between arms, except the dataset."""
    varied = dict.fromkeys(key for arm in arms for key in arm.values if key != DATASET)
    return {key: digest.base[key] for key in varied if key in digest.base}


def matches(arm: Arm, wanted: Mapping[str, Scalar]) -> bool:
    """Return whether an arm has these values; a key that is idle in the arm matches any value."""
    return all(_agree(arm, key, value) for key, value in wanted.items())


def _agree(arm: Arm, key: str, value: Scalar) -> bool:
    return key in arm.idle or (key in arm.config and _same(arm.config[key], value))


def _same(a: Scalar, b: Scalar) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def find_baselines(arms: Sequence[Arm], wanted: Mapping[str, Scalar]) -> list[Arm | None]:
    """Find the baseline of each arm: equal in all other keys, or else the only candidate.

    A baseline always has the same dataset as the arm.
    """
    fitting: dict[Scalar, list[Arm]] = {}
    for arm in arms if wanted else ():
        if matches(arm, wanted):
            fitting.setdefault(arm.config.get(DATASET), []).append(arm)
    exactly: dict[frozenset[tuple[str, Scalar]], list[Arm]] = {}
    for found in fitting.values():
        for arm in found:
            exactly.setdefault(_rest(arm, wanted), []).append(arm)
    out = []
    for arm in arms:
        found = fitting.get(arm.config.get(DATASET), [])
        # Most arms have a baseline that agrees in every key; this lookup avoids trying them all.
        alike = exactly.get(_rest(arm, wanted), [])
        if not alike:
            rest = {key: value for key, value in arm.values.items() if key not in wanted}
            alike = [a for a in found if matches(a, rest)] or found
        out.append(alike[0] if len(alike) == 1 else None)
    return out


def _rest(arm: Arm, wanted: Mapping[str, Scalar]) -> frozenset[tuple[str, Scalar]]:
    return frozenset((key, value) for key, value in arm.values.items() if key not in wanted)


def pair_arms(arms: Sequence[Arm], baselines: Sequence[Arm | None]) -> "list[Pair]":
    """Pair each arm that is compared with its baseline."""
    return [
        Pair(arm, baseline)
        for arm, baseline in zip(arms, baselines, strict=True)
        if baseline is not None and baseline is not arm and not arm.is_reference
    ]


@dataclass(frozen=True)
class Pair:
    """An arm and its baseline."""

    arm: Arm
    baseline: Arm

    @property
    def dataset(self) -> Scalar:
        return self.arm.config.get(DATASET)

    def differences(self, seeds: Collection[int] | None = None) -> Differences:
        """Return the differences over the seeds that both arms have."""
        a, b = self.arm.scores, self.baseline.scores
        common = sorted(a.keys() & b.keys())
        return {s: a[s] - b[s] for s in common if seeds is None or s in seeds}

    @property
    def is_apart(self) -> bool:
        """Whether both sides have scores, but for no common seed."""
        return bool(self.arm.scores and self.baseline.scores and not self.differences())

    def has_ended(self, seeds: Sequence[int]) -> bool:
        """Whether the runs of these seeds have ended. A diverged or failed seed has no score."""
        return all(side.has_ended(seed) for side in (self.arm, self.baseline) for seed in seeds)


def wait_for_runs(comparison: Comparison) -> Comparison:
    """Return a comparison without a decision, while planned runs have not ended."""
    missing = max(0, comparison.planned - comparison.estimate.n)
    return replace(comparison, inference=comparison.inference.wait(missing))


def decide_pairs(
    pairs: Sequence[Pair],
    used: Mapping[int, Sequence[int] | None],
    open_pairs: Sequence[Pair],
    planned: int,
    alpha: float,
    metric: Metric,
    options: Options,
    design: Design,
) -> dict[int, Comparison]:
    """Decide the open comparisons; all comparisons share the variances of the seeds `used`.

    Args:
        pairs: All comparisons of the table.
        used: The seeds of each comparison, by its id; None for all seeds.
        open_pairs: The comparisons to decide.
        planned: Number of seeds of this look.
        alpha: Family-wise error that this look may spend.
        metric, options, design: As in `looks.compare_arms`.

    Returns:
        The comparisons by the id of their arm.
    """
    family = max(len(pairs), design.comparisons)
    pools: dict[Scalar, list[Pair]] = {}
    for pair in pairs:
        pools.setdefault(pair.dataset, []).append(pair)
    wanted = {id(pair) for pair in open_pairs}
    found: dict[int, Comparison] = {}
    for pool in pools.values():
        estimates = estimate_pool([pair.differences(used[id(pair)]) for pair in pool])
        for pair, estimate in zip(pool, estimates, strict=True):
            if estimate is None or id(pair) not in wanted:
                continue
            seeds = used[id(pair)]
            if not metric.higher_is_better:
                losses = sum(value < 0 for value in pair.differences(seeds).values())
                estimate = replace(estimate, wins=losses)
            arm, baseline = pair.arm, pair.baseline
            found[id(arm)] = Comparison(
                baseline=baseline.label,
                inference=decide(
                    estimate,
                    family,
                    options.region if metric.percent else 0.0,
                    alpha=alpha,
                    higher_is_better=metric.higher_is_better,
                    arm_lost_seeds=arm.has_lost(seeds),
                    baseline_lost_seeds=baseline.has_lost(seeds),
                    chances=design.chances(estimate.n),
                ),
                unpaired=tuple(sorted(arm.scores.keys() ^ baseline.scores.keys())),
                runs=frozenset(arm.run_ids),
                baseline_runs=frozenset(baseline.run_ids),
                planned=planned,
                lost=tuple(side.label for side in (arm, baseline) if side.has_lost(seeds)),
            )
    return found


def seed_correlations(arms: Sequence[Arm]) -> dict[Scalar, float]:
    """Estimate the correlation of runs with the same seed, which pairing removes, per dataset.

    It is the mean over pairs of arms, over the seeds that all arms have. A dataset with fewer than
    two arms of three common seeds has none.
    """
    found: dict[Scalar, float] = {}
    own = [arm for arm in arms if arm.n >= FEWEST and not arm.is_reference]
    for dataset in dict.fromkeys(arm.config.get(DATASET) for arm in own):
        rows = [arm.scores for arm in own if arm.config.get(DATASET) == dataset]
        seeds = sorted(set.intersection(*map(set, rows)))
        if len(rows) > 1 and len(seeds) >= FEWEST:
            values = np.array([[scores[seed] for seed in seeds] for scores in rows])
            correlation = stats.mean_correlation(values)
            if correlation is not None:
                found[dataset] = correlation
    return found
