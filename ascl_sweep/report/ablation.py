"""The value that every table is drawn from: arms, comparisons, marks, and the paper's numbers.

Nothing is computed here; `tables.table_of` makes one. Scores of accuracies are in percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ascl_sweep import stats
from ascl_sweep.ledger import Scalar

REGION = 0.5
"""Points within which two arms are taken for practically the same."""


@dataclass(frozen=True)
class Metric:
    """A number of a run that a table can be of."""

    name: str
    label: str
    last: str | None = None
    """The column of a run that has it after the last epoch; if none, its last epoch's row has."""
    best: str | None = None
    """The column that has it at its best epoch."""
    percent: bool = True
    higher_is_better: bool = True

    @property
    def unit(self) -> str:
        return "%" if self.percent else ""


METRICS = {
    metric.name: metric
    for metric in (
        Metric("knn_top1", "online kNN top-1", "knn_last_top1", "knn_best_top1"),
        Metric("probe_top1", "linear-probe top-1", "probe_top1", "probe_best_top1"),
        Metric("test_top1", "test top-1 of its own classifier"),
        Metric("purity", "label purity"),
        Metric("neighbour_top1", "nearest neighbours of the same class"),
        Metric("confidence", "confidence c", percent=False),
        Metric("effective_neighbours", "effective neighbours", percent=False),
        Metric("spread", "feature spread", percent=False),
        Metric("loss", "training loss", percent=False, higher_is_better=False),
        Metric("images_per_second", "images/s", "images_per_second", percent=False),
        Metric(
            "peak_memory_gb",
            "peak memory in GB",
            "peak_memory_gb",
            percent=False,
            higher_is_better=False,
        ),
    )
}


@dataclass(frozen=True)
class Comparison:
    """An arm against its baseline, seed by seed."""

    baseline: str
    result: stats.Paired
    corrected_p: float | None
    """Holm, over all comparisons of the table."""
    verdict: stats.Verdict | None
    unpaired: tuple[int, ...]
    """Seeds that only one of the two has complete."""
    bootstrap: stats.Interval | None = None
    """BCa interval of the difference, from ten pairs on."""


@dataclass(frozen=True)
class PaperValue:
    """What the paper printed for an arm."""

    value: float
    notes: tuple[str, ...]
    """Marks of the table's notes."""
    difference: float | None
    """Ours less the paper's; None where the two are not of one kind, or ours is missing."""
    inside: bool | None
    """Whether the paper's value lies in our 95% interval; None without one."""


@dataclass(frozen=True)
class StepCost:
    """What a step of an arm takes; None where the ledger does not say."""

    backprops: int | None
    ema: bool | None
    step_ms: float | None
    """Milliseconds, mean over complete runs."""
    memory_gb: float | None
    """The largest peak of its runs."""


@dataclass(frozen=True)
class Arm:
    """One configuration with all its seeds."""

    label: str
    values: Mapping[str, Scalar]
    """At the keys in which the sweep's arms differ; those that are idle left out."""
    config: Mapping[str, Scalar]
    idle: tuple[str, ...]
    scores: Mapping[int, float]
    """By seed, of complete runs."""
    planned: int
    """Seeds that the sweep wants."""
    mean: float | None
    sd: float | None
    interval: stats.Interval | None
    states: Mapping[str, int]
    """Of its runs, those that came to no number: stopped, diverged, failed, lost."""
    epochs: int
    device_hours: float
    run_ids: tuple[str, ...]
    marks: tuple[str, ...] = ()
    """Of notes on what sets it apart from the others."""
    is_baseline: bool = False
    comparison: Comparison | None = None
    paper: PaperValue | None = None
    cost: StepCost | None = None
    """Only in a table whose arms are of several methods: of one method it says nothing."""

    @property
    def n(self) -> int:
        return len(self.scores)

    @property
    def bold(self) -> bool:
        """Only where the verdict holds, never merely the largest mean."""
        return self.comparison is not None and self.comparison.verdict == "better"


@dataclass(frozen=True)
class Ordering:
    """How far the paper's order of some arms is ours."""

    data: str
    arms: int
    tau: float | None
    """Kendall's."""
    p: float | None


@dataclass(frozen=True)
class Grid:
    """The compact shape, as a paper prints it: which arm stands where."""

    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    places: Mapping[tuple[int, int], int]
    """(row, column) → index of the arm; an arm without the columns' key stands in all of them."""


@dataclass(frozen=True)
class AblationTable:
    """A sweep's complete runs, as a claim that holds up."""

    sweep: str
    scale: str
    metric: Metric
    epoch: str
    arms: tuple[Arm, ...]
    grid: Grid
    caption: tuple[str, ...]
    notes: Mapping[str, str]
    """Mark → sentence."""
    remarks: tuple[str, ...]
    """Sentences on the table as a whole."""
    region: float
    paper: str | None = None
    """Title of the paper's table beside it."""
    like_the_paper: bool = False
    """Whether the numbers, and not only their order, can be held against the paper's."""
    orderings: tuple[Ordering, ...] = ()

    @property
    def has_costs(self) -> bool:
        return any(arm.cost is not None for arm in self.arms)


@dataclass(frozen=True)
class Options:
    """What a user may ask of a table."""

    metric: str | None = None
    epoch: str = "last"
    baseline: Mapping[str, Scalar] | None = None
    region: float = REGION
