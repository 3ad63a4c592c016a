"""The tables of a sweep: the main table, all statistics, and the comparison with the paper."""

from collections.abc import Iterable, Iterator, Sequence

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.caption import common_n
from ascl_sweep.analysis.comparison import DATASET, Arm, Comparison
from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.contracts import RunState
from ascl_sweep.report.tables import (
    NONE,
    VERDICT_SIGNS,
    Cell,
    Precision,
    Table,
    effect,
    mean_sd,
    number,
    precision_of,
    probability,
    signed,
    significant,
)

ADJUSTED = "*"
"""Sign of a mean that is adjusted for missing seeds."""
ROUNDING = 1e-9
METHOD_COSTS = ("BackProp", "EMA")
COSTS = (*METHOD_COSTS, "ms/step", "memory")
ABOUT_COSTS = "ms/step is a mean over runs, memory the largest peak of a device in GB"


def build_tables(table: AblationTable) -> Iterator[Table]:
    """Yield the tables of a sweep's section; `arms_table` belongs to the appendix."""
    yield means_table(table)
    if any(arm.paper for arm in table.arms):
        yield paper_table(table)
    if table.orderings:
        yield order_table(table)


def means_table(table: AblationTable) -> Table:
    """Build the main table, as in a paper: one mean per cell of the grid."""
    grid = table.grid
    costs = METHOD_COSTS if table.has_costs else ()
    cells = [_main_cell(table, arm) for arm in table.arms]
    rows = []
    for i, row in enumerate(grid.rows):
        own = [
            cells[grid.places[i, j]] if (i, j) in grid.places else Cell("") for j in _columns(table)
        ]
        rows.append((Cell(row), *_row_costs(table, i), *own))
    return Table(
        name=f"{table.sweep}-means",
        title=f"{table.sweep}: {table.metric.label}",
        header=(grid.corner, *costs, *grid.columns),
        align="l" + "l" * len(costs) + "r" * len(grid.columns),
        rows=tuple(rows),
        caption=table.caption,
        notes=(
            *_legend(table, cells),
            *_notes(table, (m for arm in table.arms for m in arm.marks)),
        ),
    )


def _columns(table: AblationTable) -> range:
    return range(len(table.grid.columns))


def _main_cell(table: AblationTable, arm: Arm) -> Cell:
    """Build an arm's cell: its mean, its verdict's sign, and n unless all arms have the same."""
    mean = mean_sd(consistent_mean(table, arm), arm.sd, table_precision(table))
    n = "" if common_n(table.arms) else f" ({_n(arm)})"
    signs = []
    if arm.comparison is not None and arm.comparison.verdict in VERDICT_SIGNS:
        signs.append(VERDICT_SIGNS[arm.comparison.verdict])
    if is_adjusted(table, arm):
        signs.append(ADJUSTED)
    muted = arm.comparison is not None and arm.comparison.verdict not in VERDICT_SIGNS
    return Cell(f"{mean}{n}", arm.bold, (*signs, *arm.marks), muted, mean)


def is_adjusted(table: AblationTable, arm: Arm) -> bool:
    """Return whether the shown mean differs from that of the arm's own seeds."""
    return consistent_mean(table, arm) != arm.mean


def consistent_mean(table: AblationTable, arm: Arm) -> float | None:
    """Return an arm's mean that agrees with its Δ where seeds are missing.

    It is the baseline's mean plus Δ. If Δ has all seeds of both sides, that is the arm's mean.
    """
    if arm.comparison is None or arm.mean is None:
        return arm.mean
    (baseline,) = (a.mean for a in table.arms if a.label == arm.comparison.baseline)
    if baseline is None:
        return arm.mean
    found = baseline + arm.comparison.estimate.mean
    return arm.mean if abs(found - arm.mean) < ROUNDING else found


def _legend(table: AblationTable, cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    used = {mark for cell in cells for mark in cell.marks}
    texts = {
        VERDICT_SIGNS["better"]: "significantly better than the baseline (bold)",
        VERDICT_SIGNS["worse"]: "significantly worse than the baseline",
        VERDICT_SIGNS["equivalent"]: f"equivalent to the baseline, within ±{table.region:g} points",
        ADJUSTED: "the baseline's mean plus Δ over the seeds that both have",
    }
    found = [(sign, text) for sign, text in texts.items() if sign in used]
    signed_cells = used & set(VERDICT_SIGNS.values())
    for i, (sign, text) in enumerate(found):
        rest = "; arms without a sign are undecided" if i == 0 and signed_cells else ""
        yield sign, text + (rest if any(cell.muted for cell in cells) else "")


def arms_table(table: AblationTable) -> Table:
    """Build the long table: statistics and cost of each arm."""
    precision = table_precision(table)
    columns = {
        "arm": "l",
        "seeds": "r",
        "mean ± SD": "r",
        "Δ": "r",
        "interval": "r",
        "wins": "r",
        "p": "r",
        "df": "r",
        "verdict": "l",
        "seeds needed": "r",
        **({"tried": "r"} if table.has_budgets else {}),
        **(dict(zip(COSTS, "llrr", strict=True)) if table.has_costs else {}),
        "device-hours": "r",
        "epochs": "r",
        "stopped, diverged, failed": "l",
    }
    rows = []
    for arm in table.arms:
        mean = mean_sd(arm.mean, arm.sd, precision)
        own = {
            "seeds": Cell(f"{arm.n}/{arm.planned}"),
            "mean ± SD": Cell(str(mean), arm.bold, number=mean),
            "verdict": Cell(_role(arm)),
            "tried": Cell(NONE if arm.tried is None else str(arm.tried)),
            "device-hours": Cell(f"{arm.device_hours:.2f}"),
            "epochs": Cell(str(arm.epochs)),
            "stopped, diverged, failed": Cell(_states(arm)),
            **_comparison(arm, precision),
            **_costs(arm),
        }
        name = Cell(arm.label, marks=arm.marks)
        rows.append((name, *(own.get(column, Cell(NONE)) for column in list(columns)[1:])))
    return Table(
        name=f"{table.sweep}-arms",
        title=f"{table.sweep}: {table.metric.label} per arm",
        header=tuple(columns),
        align="".join(columns.values()),
        rows=tuple(rows),
        caption=tuple(_arms_caption(table)),
        notes=_notes(table, (mark for arm in table.arms for mark in arm.marks)),
    )


def _arms_caption(table: AblationTable) -> Iterator[str]:
    compared = any(arm.comparison for arm in table.arms)
    paired = ", paired seeds in Δ, its simultaneous interval, wins and p" if compared else ""
    costs = f"; {ABOUT_COSTS}" if table.has_costs else ""
    yield f"All complete seeds of an arm count in mean ± SD{paired}{costs}"
    if compared:
        yield (
            "Seeds needed is the number of further seeds that would decide a comparison if its "
            f"estimates stay the same{_correlation(table)}"
        )


def _correlation(table: AblationTable) -> str:
    """Describe the correlation of runs with the same seed, which pairing removes."""
    found = {
        labels.value_label(DATASET, dataset): f"{number(r, 2)}"
        for dataset, r in table.correlations.items()
    }
    if not found:
        return ""
    listed = ", ".join(f"{r} on {name}" if len(found) > 1 else r for name, r in found.items())
    return f"; runs with the same seed have a correlation of {listed}"


def _role(arm: Arm) -> str:
    return "baseline" if arm.is_baseline else "reference" if arm.is_reference else NONE


def _comparison(arm: Arm, precision: Precision) -> dict[str, Cell]:
    found = arm.comparison
    if found is None:
        return {}
    estimate, needed = found.estimate, found.inference.seeds_needed
    delta, interval = effect(estimate.mean, found.inference.interval, precision)
    taken = f" (from {found.taken_from})" if found.taken_from else ""
    return {
        "Δ": Cell(delta),
        "interval": Cell(interval),
        "wins": Cell(f"{estimate.wins}/{estimate.n}"),
        "p": Cell(probability(found.inference.p)),
        "df": Cell(NONE if estimate.df is None else f"{estimate.df:.1f}"),
        "verdict": Cell(f"{found.verdict or NONE}{taken}"),
        "seeds needed": Cell(NONE if needed is None else f"+{needed}"),
    }


def _costs(arm: Arm) -> dict[str, Cell]:
    cost = arm.cost
    if cost is None:
        return {}
    return {
        "BackProp": Cell(NONE if cost.backprops is None else f"{cost.backprops}x"),
        "EMA": Cell({True: "Yes", False: "No", None: NONE}[cost.ema]),
        "ms/step": Cell(significant(cost.step_ms)),
        "memory": Cell(significant(cost.memory_gb)),
    }


def _row_costs(table: AblationTable, row: int) -> Iterator[Cell]:
    """Yield the costs of the methods in a row of the grid; several values if they differ."""
    if table.has_costs:
        places = sorted(place for place in table.grid.places if place[0] == row)
        found = [_costs(table.arms[table.grid.places[place]]) for place in places]
        for name in METHOD_COSTS:
            yield Cell(", ".join(dict.fromkeys(costs[name].text for costs in found)))


def _states(arm: Arm) -> str:
    given = [(arm.states[state], state) for state in RunState if state in arm.states]
    return ", ".join(f"{n} {state}" for n, state in given) or "none"


def paper_table(table: AblationTable) -> Table:
    """Build the table that compares the paper's values with ours."""
    precision = table_precision(table)
    rows = []
    marks: list[str] = []
    for arm in table.arms:
        if arm.paper is None:
            continue
        inside = {True: "yes", False: "no", None: NONE}[arm.paper.inside]
        difference, paper = arm.paper.difference, arm.paper.value
        decimals = precision.decimals(arm.sd)
        marks += arm.paper.notes
        rows.append(
            (
                Cell(arm.label),
                Cell(number(paper, precision.plain), marks=arm.paper.notes),
                Cell(f"{mean_sd(arm.mean, arm.sd, precision)} ({_n(arm)})"),
                Cell(NONE if difference is None else signed(difference, decimals)),
                Cell(inside),
            )
        )
    return Table(
        name=f"{table.sweep}-paper",
        title=f"{table.sweep}: comparison with the paper",
        header=("arm", "paper", "ours", "ours − paper", "in prediction interval"),
        align="lrrrl",
        rows=tuple(rows),
        caption=(
            f"The paper's table “{table.paper}” beside our {table.metric.label} "
            f"({table.metric.unit}), mean ± SD (number of seeds)",
            "The last column states whether the paper's value, a single run, lies in the 95% "
            "prediction interval of a single run of ours",
        ),
        notes=_notes(table, marks),
    )


def order_table(table: AblationTable) -> Table:
    """Build the table of rank agreement, for settings whose values are not comparable."""
    return Table(
        name=f"{table.sweep}-order",
        title=f"{table.sweep}: rank agreement with the paper",
        header=("paper's dataset", "arms", "Kendall's τ", "p"),
        align="lrrr",
        rows=tuple(
            (
                Cell(order.data or "all datasets"),
                Cell(str(order.arms)),
                Cell(NONE if order.tau is None else signed(order.tau, 2)),
                Cell(probability(order.p)),
            )
            for order in table.orderings
        ),
        caption=(
            f"Order of the arms compared with the paper's table “{table.paper}”: τ is 1 for the "
            "same order and −1 for the reverse order",
            "p is that of a two-sided permutation test, not corrected for the number of datasets",
        ),
    )


def _notes(table: AblationTable, marks: Iterable[str]) -> tuple[tuple[str, str], ...]:
    used = set(marks)
    return tuple((mark, text) for mark, text in table.notes.items() if mark in used)


def table_precision(table: AblationTable) -> Precision:
    """Return the precision of a table's scores and differences."""
    return precision_of(table.metric, [arm.mean for arm in table.arms])


def effect_text(table: AblationTable, found: Comparison) -> str:
    """Format a difference with its interval, such as +0.45 [+0.21, +0.69]."""
    interval = found.inference.interval
    delta, between = effect(found.estimate.mean, interval, table_precision(table))
    return f"{delta} {between}" if interval else delta


def _n(arm: Arm) -> str:
    return str(arm.n) if arm.n == arm.planned else f"{arm.n}/{arm.planned}"
