"""The sheets of a table: its means as a paper prints them, its arms one by one, and the paper's."""

from collections.abc import Iterable, Iterator

from ascl_sweep.ledger import STATES
from ascl_sweep.report.ablation import AblationTable, Arm
from ascl_sweep.report.blocks import (
    NONE,
    Cell,
    Sheet,
    digits_of,
    interval,
    probability,
    signed,
    significant,
)

METHOD_COSTS = ("BackProp", "EMA")
COSTS = (*METHOD_COSTS, "ms/step", "memory")
ABOUT_COSTS = (
    "ms/step: mean over complete runs; memory: GB of one device, or on a CPU of one process, at "
    "its highest in any run"
)


def sheets_of(table: AblationTable) -> Iterator[Sheet]:
    """Everything that is shown of a table, in order."""
    yield means_sheet(table)
    yield arms_sheet(table)
    if any(arm.paper for arm in table.arms):
        yield paper_sheet(table)
    if table.orderings:
        yield order_sheet(table)


def means_sheet(table: AblationTable) -> Sheet:
    """The compact shape: a mean for each place of the grid."""
    grid, digits = table.grid, _digits(table)
    costs = METHOD_COSTS if table.has_costs else ()
    rows = []
    for i, row in enumerate(grid.rows):
        cells = [Cell(row), *_row_costs(table, i)]
        for j in range(len(grid.columns)):
            arm = table.arms[grid.places[i, j]] if (i, j) in grid.places else None
            cells.append(
                Cell("")
                if arm is None
                else Cell(f"{_mean(arm, digits)} ({_n(arm)})", arm.bold, arm.marks)
            )
        rows.append(tuple(cells))
    return Sheet(
        name=f"{table.sweep}-means",
        title=f"{table.sweep}: {table.metric.label}",
        header=(grid.corner, *costs, *grid.columns),
        align="l" + "l" * len(costs) + "r" * len(grid.columns),
        rows=tuple(rows),
        caption=table.caption,
        notes=_notes(table, (mark for arm in table.arms for mark in arm.marks)),
    )


def arms_sheet(table: AblationTable) -> Sheet:
    """The long shape: what may be said of each arm, and what it cost."""
    digits = _digits(table)
    bootstrapped = any(arm.comparison and arm.comparison.bootstrap for arm in table.arms)
    columns = {
        "arm": "l",
        "seeds": "r",
        "mean ± sd": "r",
        "Δ": "r",
        "95% interval": "r",
        **({"BCa bootstrap": "r"} if bootstrapped else {}),
        "wins": "r",
        "p": "r",
        "verdict": "l",
        **(dict(zip(COSTS, "llrr", strict=True)) if table.has_costs else {}),
        "device-hours": "r",
        "epochs": "r",
        "stopped, diverged, failed": "l",
    }
    rows = []
    for arm in table.arms:
        own = {
            "seeds": Cell(f"{arm.n}/{arm.planned}"),
            "mean ± sd": Cell(_mean(arm, digits), arm.bold),
            "verdict": Cell("baseline" if arm.is_baseline else NONE),
            "device-hours": Cell(f"{arm.device_hours:.2f}"),
            "epochs": Cell(str(arm.epochs)),
            "stopped, diverged, failed": Cell(_states(arm)),
            **_comparison(arm, digits),
            **_costs(arm),
        }
        name = Cell(arm.label, marks=arm.marks)
        rows.append((name, *(own.get(column, Cell(NONE)) for column in list(columns)[1:])))
    return Sheet(
        name=f"{table.sweep}-arms",
        title=f"{table.sweep}: {table.metric.label}, arm by arm",
        header=tuple(columns),
        align="".join(columns.values()),
        rows=tuple(rows),
        caption=(
            "seeds: complete/planned; wins: seeds on which the arm beats its baseline; "
            "device-hours and epochs: of all its runs",
            *([ABOUT_COSTS] if table.has_costs else []),
        ),
        notes=_notes(table, (mark for arm in table.arms for mark in arm.marks)),
    )


def _comparison(arm: Arm, digits: int) -> dict[str, Cell]:
    found = arm.comparison
    if found is None:
        return {}
    result, bootstrap = found.result, found.bootstrap
    return {
        "Δ": Cell(signed(result.mean, digits)),
        "95% interval": Cell(interval(result.low, result.high, digits)),
        "BCa bootstrap": Cell(
            interval(bootstrap.low, bootstrap.high, digits) if bootstrap else NONE
        ),
        "wins": Cell(f"{result.wins}/{result.n}"),
        "p": Cell(probability(found.corrected_p)),
        "verdict": Cell(found.verdict or NONE),
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
    """What the methods in a row of the grid take; more than one value if they differ."""
    if table.has_costs:
        places = sorted(place for place in table.grid.places if place[0] == row)
        found = [_costs(table.arms[table.grid.places[place]]) for place in places]
        for name in METHOD_COSTS:
            yield Cell(", ".join(dict.fromkeys(costs[name].text for costs in found)))


def _states(arm: Arm) -> str:
    given = [(arm.states[state], state) for state in STATES if state in arm.states]
    return ", ".join(f"{n} {state}" for n, state in given) or "none"


def paper_sheet(table: AblationTable) -> Sheet:
    """The paper's numbers beside ours."""
    digits = _digits(table)
    rows = []
    marks: list[str] = []
    for arm in table.arms:
        if arm.paper is None:
            continue
        inside = {True: "yes", False: "no", None: NONE}[arm.paper.inside]
        difference = arm.paper.difference
        marks += arm.paper.notes
        rows.append(
            (
                Cell(arm.label),
                Cell(f"{arm.paper.value:.{digits}f}", marks=arm.paper.notes),
                Cell(f"{_mean(arm, digits)} ({_n(arm)})"),
                Cell(NONE if difference is None else signed(difference, digits)),
                Cell(inside),
            )
        )
    return Sheet(
        name=f"{table.sweep}-paper",
        title=f"{table.sweep}: the paper beside ours",
        header=("arm", "paper", "ours", "ours − paper", "inside"),
        align="lrrrl",
        rows=tuple(rows),
        caption=(
            f"the paper's table “{table.paper}”",
            f"{table.metric.label}, {table.metric.unit}",
            "inside: whether the paper's value lies in our 95% interval",
        ),
        notes=_notes(table, marks),
    )


def order_sheet(table: AblationTable) -> Sheet:
    """How far the paper's order is ours, where its numbers cannot be compared."""
    return Sheet(
        name=f"{table.sweep}-order",
        title=f"{table.sweep}: the paper's order of the arms against ours",
        header=("the paper's numbers on", "arms", "Kendall's τ", "p"),
        align="lrrr",
        rows=tuple(
            (
                Cell(order.data or "all data"),
                Cell(str(order.arms)),
                Cell(NONE if order.tau is None else signed(order.tau, 2)),
                Cell(probability(order.p)),
            )
            for order in table.orderings
        ),
        caption=(
            f"the paper's table “{table.paper}”",
            "Kendall's τ is 1 where both order the arms alike and −1 where they are opposed; p: "
            "two-sided, if any order were as likely",
        ),
    )


def _notes(table: AblationTable, marks: Iterable[str]) -> tuple[tuple[str, str], ...]:
    used = set(marks)
    return tuple((mark, text) for mark, text in table.notes.items() if mark in used)


def _digits(table: AblationTable) -> int:
    means = [abs(arm.mean) for arm in table.arms if arm.mean]
    return digits_of(table.metric, means)


def _mean(arm: Arm, digits: int) -> str:
    if arm.mean is None:
        return NONE
    spread = "" if arm.sd is None else f" ± {arm.sd:.{digits}f}"
    return f"{arm.mean:.{digits}f}".replace("-", "−") + spread


def _n(arm: Arm) -> str:
    return str(arm.n) if arm.n == arm.planned else f"{arm.n}/{arm.planned}"
