"""Ablation tables: one frozen value, built from the store's rows, that every format renders.

Only complete runs count. Arms are compared seed by seed, every mean has its n, and a note marks
arms that differ in something the sweep does not vary.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.arms import (
    FEW,
    LastEpochs,
    label_keys,
    naming_keys,
    seed_of,
)
from ascl_sweep.analysis.assumptions import check_assumptions
from ascl_sweep.analysis.caption import build_caption, describe_extensions, describe_provenance
from ascl_sweep.analysis.comparison import (
    Arm,
    Comparison,
    Design,
    Options,
    base_values,
    seed_correlations,
)
from ascl_sweep.analysis.consistency import mark_differences
from ascl_sweep.analysis.datasets import DatasetRanks, rank_systems
from ascl_sweep.analysis.factorial import Factorial, factorials
from ascl_sweep.analysis.labels import join_names
from ascl_sweep.analysis.looks import compare_arms, plan_table
from ascl_sweep.contracts import RunRow, RunState, Scalar, SweepRow
from ascl_sweep.errors import UsageError
from ascl_sweep.spec.metrics import Metric, find_metric
from ascl_sweep.spec.summary import SweepSummary


@dataclass(frozen=True)
class Ordering:
    """Rank agreement between the paper's values and ours on one dataset."""

    data: str
    arms: int
    tau: float | None
    """Kendall's τ."""
    p: float | None


@dataclass(frozen=True)
class Grid:
    """Layout of the compact table: which arm is in which cell."""

    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    places: Mapping[tuple[int, int], int]
    """(row, column) → index of the arm; an arm without the columns' key is in every column."""


@dataclass(frozen=True)
class AblationTable:
    """Results of a sweep's complete runs."""

    sweep: str
    scale: str
    metric: Metric
    epoch: str
    arms: tuple[Arm, ...]
    grid: Grid
    caption: tuple[str, ...]
    """What is shown and how it is compared: sentences without their final periods."""
    provenance: str
    """Software and hardware of the runs."""
    notes: Mapping[str, str]
    """Letter → note."""
    remarks: tuple[str, ...]
    """Sentences on the table as a whole."""
    region: float
    design: Design
    paper: str | None = None
    """Title of the paper's table that it reproduces."""
    like_the_paper: bool = False
    """Whether values, not only their order, are comparable with the paper's."""
    orderings: tuple[Ordering, ...] = ()
    factorials: tuple[Factorial, ...] = ()
    """Main effects and interactions per dataset, if the arms form a grid."""
    ranks: DatasetRanks | None = None
    """Ranks of the systems over several datasets."""
    correlations: Mapping[Scalar, float] = field(default_factory=dict)
    """Correlation of runs with the same seed, by dataset."""

    @property
    def has_costs(self) -> bool:
        return any(arm.cost is not None for arm in self.arms)

    @property
    def has_budgets(self) -> bool:
        """Whether a search chose its arms, so that each has a tuning budget."""
        return any(arm.tried is not None for arm in self.arms)


Annotate = Callable[[AblationTable, SweepRow], AblationTable]
"""Adds published values and remarks to a table."""


def build_table(
    sweep: SweepRow,
    rows: Iterable[RunRow],
    options: Options | None = None,
    last_epochs: LastEpochs | None = None,
    annotators: Sequence[Annotate] = (),
) -> AblationTable | None:
    """Build the table of a sweep's complete runs.

    Args:
        sweep: The sweep.
        rows: Runs, also those of other sweeps.
        options: Options of the user, which take precedence over the sweep file.
        last_epochs: Last-epoch metrics of each run, needed if the table shows one of them.
        annotators: Functions that add published values to the table.

    Returns:
        The table; None for a search that has no final runs yet.
    """
    options = options or Options()
    check_options(options)
    digest = SweepSummary.of_json(sweep.digest)
    theirs = [row for row in rows if row.scale == sweep.scale and sweep.name in row.sweeps]
    own = [row for row in theirs if row.phase == "final"]
    if not own:
        return None
    own.sort(key=lambda row: (row.created or 0.0, row.run_id))
    _check_keys(digest, own, sweep.name)
    planned = plan_table(digest, own, options, last_epochs)
    metric, baseline, design = planned.metric, planned.baseline, planned.design
    arms, remarks = compare_arms(planned.arms, baseline, metric, options, design)
    if digest.search:
        arms = _count_trials(arms, [row for row in theirs if row.phase == "search"])
    arms, notes = mark_differences(arms, own, digest, metric)
    grid, on_grid = _lay_out(arms, digest, metric)
    table = AblationTable(
        sweep=sweep.name,
        scale=sweep.scale,
        metric=metric,
        epoch=options.epoch,
        arms=tuple(arms),
        grid=grid,
        caption=build_caption(arms, own, metric, options, sweep.scale, baseline, design),
        provenance=describe_provenance(own),
        notes=notes,
        remarks=tuple(remarks),
        region=options.region,
        design=design,
        factorials=_effects(arms, baseline, digest, metric, options, design),
        ranks=rank_systems(arms, metric),
        correlations=seed_correlations(arms),
    )
    for annotate in annotators:
        table = annotate(table, sweep)
    more = (
        *on_grid,
        *_remark_gaps(arms, own, metric, options),
        *_remark_selection(arms),
        *_remark_changes(design),
        *check_assumptions(arms),
    )
    return replace(table, remarks=(*table.remarks, *more))


def _effects(
    arms: Sequence[Arm],
    baseline: Mapping[str, Scalar],
    digest: SweepSummary,
    metric: Metric,
    options: Options,
    design: Design,
) -> tuple[Factorial, ...]:
    """Estimate the effects of a grid, unless its arms have different numbers of looks."""
    if digest.search or design.looks or design.extensions:
        return ()
    base = {**base_values(digest, arms), **baseline}
    return factorials(arms, base, metric, options.region, design.seeds)


def share_comparisons(tables: Sequence[AblationTable]) -> list[AblationTable]:
    """Give a comparison that several tables contain one result: that of the largest family.

    Two tables contain the same comparison if both sides have the same runs and the same metric.
    """
    owners: dict[object, tuple[int, str, Comparison]] = {}
    for table in tables:
        for key, found in _comparisons(table):
            own = (found.inference.family, table.sweep, found)
            if key not in owners or (own[0], owners[key][1]) > (owners[key][0], own[1]):
                owners[key] = own
    shared = [
        replace(table, arms=tuple(_take_shared(arm, table, owners) for arm in table.arms))
        for table in tables
    ]
    return [
        replace(table, remarks=(*table.remarks, *_remark_other_plans(table, shared)))
        for table in shared
    ]


def _remark_other_plans(table: AblationTable, tables: Sequence[AblationTable]) -> Iterator[str]:
    """Report comparisons that another table decides with other seeds or looks.

    They cannot have one result, because each table decides with the error of its own plan.
    """
    for other in tables:
        if other.sweep == table.sweep or _scope(other) != _scope(table):
            continue
        found = [
            arm.label
            for arm in table.arms
            if arm.comparison is not None
            and any(
                key != _key_of(table, arm.comparison) and _overlap(arm.comparison, theirs)
                for key, theirs in _comparisons(other)
            )
        ]
        if found:
            yield (
                f"{join_names(found)}: the table of {other.sweep} has the same comparison with "
                "other seeds or looks, so p, interval and verdict may differ. Report one of them."
            )


def _overlap(one: Comparison, other: Comparison) -> bool:
    """Whether two comparisons have runs in common on both sides, in either order."""
    straight = (one.runs & other.runs, one.baseline_runs & other.baseline_runs)
    turned = (one.runs & other.baseline_runs, one.baseline_runs & other.runs)
    return all(straight) or all(turned)


def _take_shared(
    arm: Arm, table: AblationTable, owners: Mapping[object, tuple[int, str, Comparison]]
) -> Arm:
    if arm.comparison is None:
        return arm
    _, sweep, shared = owners[_key_of(table, arm.comparison)]
    if sweep == table.sweep:
        return arm
    inference = shared.inference
    if shared.runs != arm.comparison.runs:  # there our arm is the baseline
        inference = inference.mirrored
    estimate = replace(inference.estimate, wins=arm.comparison.estimate.wins)
    inference = replace(inference, estimate=estimate)
    return replace(arm, comparison=replace(arm.comparison, inference=inference, taken_from=sweep))


def _comparisons(table: AblationTable) -> Iterator[tuple[object, Comparison]]:
    for arm in table.arms:
        if arm.comparison is not None:
            yield _key_of(table, arm.comparison), arm.comparison


def _key_of(table: AblationTable, found: Comparison) -> object:
    """Identify a comparison across tables, whichever side is the baseline."""
    sides = frozenset((found.runs, found.baseline_runs))
    plan = (table.design.seeds, table.design.looks, table.design.extensions)
    return (sides, plan, table.region, _scope(table))


def _scope(table: AblationTable) -> object:
    """Return what comparisons of two tables must share to be about the same scores."""
    return (table.scale, table.metric.name, table.epoch)


def check_options(options: Options) -> None:
    """Raise UsageError for invalid options."""
    if options.epoch not in ("last", "best"):
        raise UsageError(f"--epoch must be last or best, got {options.epoch!r}")
    if not 0 <= options.region < math.inf:
        raise UsageError(f"--region must be 0 points or more, got {options.region}")
    if options.metric is not None:
        find_metric(options.metric, options.epoch)


def _check_keys(digest: SweepSummary, rows: Sequence[RunRow], sweep: str) -> None:
    for place in ("rows", "columns"):
        key = (digest.table or {}).get(place)
        if key and not any(key in row.config for row in rows):
            raise UsageError(
                f"table.{place} must be a config key of the runs (got {key!r}, which no run of "
                f"{sweep} has). Fix the sweep file and repeat `ascl-sweep run`; finished runs are "
                "skipped."
            )


# ---------------------------------------------------------------- layout


def _lay_out(arms: Sequence[Arm], digest: SweepSummary, metric: Metric) -> tuple[Grid, list[str]]:
    """Lay the arms out: the file's column key across, its row key and all other keys down."""
    asked = digest.table or {}
    across: str = asked.get("columns") or ""
    named = naming_keys(arms, digest.axes)
    down = [k for k in dict.fromkeys([asked.get("rows") or "", *named]) if k and k != across]
    columns = list(dict.fromkeys(arm.config[across] for arm in arms if _has(arm, across)))
    number = {value: place for place, value in enumerate(columns)}
    rows: dict[str, int] = {}
    places: dict[tuple[int, int], int] = {}
    spanning: dict[str, None] = {}
    for i, arm in enumerate(arms):
        varied = any(key in arm.values for key in down)
        keys = label_keys(arm, down, digest) if varied else [k for k in down if k in arm.config]
        title = labels.system_arm(arm.config, keys)
        spots = [number[arm.config[across]]] if _has(arm, across) else range(len(columns))
        if columns and not _has(arm, across):
            spanning[title] = None
        spots = spots if columns else [0]
        if title in rows and any((rows[title], column) in places for column in spots):
            title = f"{title} ({arm.run_ids[0]})"  # two arms must not share a cell
        row = rows.setdefault(title, len(rows))
        places |= {(row, column): i for column in spots}
    first = {row for (row, _), i in places.items() if arms[i].is_baseline}
    order = sorted(rows.values(), key=lambda row: row not in first)
    moved = {row: place for place, row in enumerate(order)}
    places = {(moved[row], column): i for (row, column), i in places.items()}
    remarks = []
    if spanning:
        one = len(spanning) == 1
        remarks = [
            f"{join_names(spanning)} {'does' if one else 'do'} not use {labels.name_of(across)}; "
            f"{'its result is' if one else 'their results are'} repeated in every column."
        ]
    titles = dict.fromkeys(labels.title_of(key) for key in down)
    many = sum(key not in labels.SYSTEM_KEYS for key in down) > FEW
    corner = "arm" if many or not titles else " / ".join(titles)
    shown = tuple(labels.key_value(across, value) for value in columns)
    grid = Grid(
        corner=corner,
        rows=tuple(sorted(rows, key=lambda title: moved[rows[title]])),
        columns=shown or (f"{metric.label}{f' ({metric.unit})' if metric.unit else ''}",),
        places=places,
    )
    return grid, remarks


def _has(arm: Arm, key: str) -> bool:
    """Return whether an arm uses a key."""
    return key in arm.config and key not in arm.idle


# ---------------------------------------------------------------- remarks and caption


def _remark_gaps(
    arms: Sequence[Arm], rows: Sequence[RunRow], metric: Metric, options: Options
) -> Iterator[str]:
    """Report missing scores and seeds, and which statistics they prevent."""
    most = max(arm.n for arm in arms)
    done = {row.run_id: seed_of(row) for row in rows if row.state == RunState.DONE}
    lacking = [a.label for a in arms if {done.get(i) for i in a.run_ids} - {None, *a.scores}]
    if not done:
        yield "No run of this sweep is complete yet, so there are no scores."
    elif lacking:
        best = " at the best epoch" if options.epoch == "best" else ""
        yield (
            f"{join_names(lacking)}: some complete runs have no {metric.label}{best}. Choose "
            "another metric with --metric."
        )
    if most == 1:
        yield (
            "One seed per arm: no standard deviation, interval, test or verdict. Use three or more "
            "seeds."
        )
    unpaired = [a.label for a in arms if a.comparison and a.comparison.unpaired]
    if unpaired:
        yield (
            f"{join_names(unpaired)}: seeds that are complete only in the arm or only in its "
            "baseline do not count in Δ, wins and p. The mean in the main table is the baseline's "
            "mean plus Δ; the long table has the mean over all seeds of the arm."
        )
    missing = [f"{a.label} ({a.n}/{a.planned})" for a in arms if a.n < a.planned]
    if missing and done:
        yield f"Incomplete arms (complete/planned seeds): {join_names(missing)}."


def _remark_changes(design: Design) -> Iterator[str]:
    """Report changes of the seeds after their results were known."""
    if design.extensions:
        yield describe_extensions(design)
    gone = [str(seed) for seed in design.removed if seed not in design.seeds]
    if gone:
        yield (
            f"Removed after results were known: seed{'' if len(gone) == 1 else 's'} "
            f"{join_names(gone)}. No correction covers a choice of seeds by their results; add the "
            f"seed{'' if len(gone) == 1 else 's'} again, or state the reason."
        )


def _remark_selection(arms: Sequence[Arm]) -> Iterator[str]:
    """Report that a search chose the arms, and an unequal tuning budget."""
    budgets = {labels.system(arm.config): arm.tried for arm in arms if arm.tried is not None}
    if not budgets:
        return
    yield (
        "The arms are the finalists of a search with one seed per configuration, scored on the "
        f"holdout. Configurations tried: {', '.join(f'{s} {n}' for s, n in budgets.items())}."
    )
    if len(set(budgets.values())) > 1:
        yield "The tuning budgets are unequal, which favors the systems with more configurations."


def _count_trials(arms: Sequence[Arm], trials: Sequence[RunRow]) -> list[Arm]:
    """Give each arm the number of configurations that the search tried for its system."""
    tried = Counter(labels.system(row.config) for row in trials if row.epochs)
    if not tried:
        return list(arms)
    return [replace(arm, tried=tried[labels.system(arm.config)]) for arm in arms]
