"""Comparison with the paper's tables: by value in the paper's setting, else by rank order.

`reference_tables.yaml` has the numbers as printed; its footnotes list known discrepancies.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import yaml

from ascl.errors import unknown_name
from ascl_sweep.analysis import labels, stats
from ascl_sweep.analysis.comparison import Arm, PaperValue
from ascl_sweep.analysis.consistency import letter
from ascl_sweep.analysis.table import AblationTable, Ordering
from ascl_sweep.contracts import Scalar, SweepRow
from ascl_sweep.errors import UsageError
from ascl_sweep.spec.metrics import METRICS
from ascl_sweep.spec.summary import SweepSummary

Data = Mapping[str, Any]
"""A mapping of a YAML file."""
Where = Mapping[str, str | int | float]
FEWEST_RANKED = 3
_SMALL_KEYS = ("epochs", "batch_size")  # `--scale laptop` shrinks these and keeps their order


@dataclass(frozen=True)
class PaperCell:
    """One printed number and the config values of the matching runs."""

    where: Where
    value: float
    """In percent."""
    row: str
    column: str
    notes: tuple[str, ...] = ()
    """Keys of the table's footnotes."""
    matched: bool = True
    """False if another cell is the fairer comparison for the same run."""


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper, its cells in printed order."""

    name: str
    title: str
    label: str
    """Its label in the paper's TeX."""
    cells: tuple[PaperCell, ...]
    footnotes: Mapping[str, str]
    metric: str = "probe_top1"
    """Our metric of the same kind; a footnote names the cells of another kind."""
    costs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """BackProp and EMA of each row, if printed."""
    settings: Mapping[str, Where] = field(default_factory=dict)
    """Training settings of each row, if printed; runs need not match them."""


def load_data(name: str) -> Any:
    """Read one of this package's YAML files."""
    return yaml.safe_load((files("ascl_sweep.reproduction") / name).read_text("utf-8"))


def _load_table(name: str, data: Data) -> PaperTable:
    rows = [row for part in data["parts"] for row in part["rows"]]
    return PaperTable(
        name=name,
        title=data["title"],
        label=data["label"],
        cells=tuple(cell for part in data["parts"] for cell in _load_cells(part)),
        footnotes=data["footnotes"],
        costs={row["row"]: (row["backprop"], row["ema"]) for row in rows if "ema" in row},
        settings={
            row["row"]: {
                "encoder.name": "resnet50",
                "batch_size": row["batch_size"],
                "epochs": row["epochs"],
            }
            for row in rows
            if "batch_size" in row
        },
    )


def _load_cells(part: Data) -> Iterator[PaperCell]:
    for row in part["rows"]:
        own = row.get("where") or SYSTEMS[row["row"]]
        for column, text in zip(part["columns"], row["values"], strict=True):
            number, *marks = str(text).split()
            yield PaperCell(
                where={**own, **part["columns"][column]},
                value=float(number),
                row=row["row"],
                column=column,
                notes=tuple(*marks),
                matched=row.get("fairer", True),
            )


_DATA = load_data("reference_tables.yaml")
COMMON: str = _DATA["common"]
"""Remark on every table that is compared with the paper."""
SYSTEMS: Mapping[str, Where] = _DATA["systems"]
TABLES = {name: _load_table(name, table) for name, table in _DATA["tables"].items()}
"""The paper's tables, by the value of a sweep's `table.paper`."""


def find_table(name: str) -> PaperTable:
    """Return the paper's table with this name."""
    if name not in TABLES:
        raise UsageError(unknown_name("table of the paper", name, TABLES))
    return TABLES[name]


def find_cell(
    table: PaperTable, config: Mapping[str, object], idle: Collection[str] = ()
) -> PaperCell | None:
    """Find the cell that matches a run's config; None if there is no unique one.

    `idle` lists keys that cannot change the run's results, such as K in MoCo; they match any
    value. Several matching cells are accepted only if they have the same number.
    """

    def fits(key: str, wanted: object) -> bool:
        if key == "method.relabel" and key in idle:  # idle only if nothing is relabeled (K = 0)
            return wanted == "none"
        given = config.get(key)
        alike = given == wanted and not isinstance(given, bool)  # True must not match K = 1
        return alike or key in idle

    cells = [c for c in table.cells if c.matched and all(fits(*item) for item in c.where.items())]
    return cells[0] if len({cell.value for cell in cells}) == 1 else None


# ---------------------------------------------------------------- comparison with our tables


def annotate_table(table: AblationTable, sweep: SweepRow) -> AblationTable:
    """Add the paper's values to a table if its sweep file names a table of the paper."""
    name = (SweepSummary.of_json(sweep.digest).table or {}).get("paper")
    if not name:
        return table
    printed = find_table(name)
    why = _differences_from_paper(table, printed, sweep)
    if why:
        remark = (
            f"The setting differs from the paper's ({'; '.join(why)}), so only the order of the "
            "arms is compared with the paper, not their values."
        )
        ranked = [arm for arm in table.arms if not arm.is_reference]
        orderings = tuple(_compare_orders(ranked, printed, sweep))
        remarks = (*table.remarks, COMMON, remark)
        single = [arm.label for arm in ranked if arm.n == 1]
        if orderings and single:
            remarks += (
                f"Arms with one seed count as much as others in Kendall's τ: "
                f"{labels.join_names(single)}.",
            )
        return replace(table, remarks=remarks, paper=printed.title, orderings=orderings)
    notes = dict(table.notes)
    letters: dict[str, str] = {}
    arms = []
    for arm in table.arms:
        cell = find_cell(printed, arm.config, arm.idle)
        if cell is None:
            arms.append(arm)
            continue
        for key in cell.notes:
            if key not in letters:
                letters[key] = letter(len(notes))
                notes[letters[key]] = printed.footnotes[key]
        predicted = predict_run(list(arm.scores.values()))
        value = PaperValue(
            value=cell.value,
            notes=tuple(letters[key] for key in cell.notes),
            difference=None if arm.mean is None else arm.mean - cell.value,
            inside=None if predicted is None else cell.value in predicted,
        )
        arms.append(replace(arm, paper=value))
    remarks = (*table.remarks, COMMON)
    if not any(arm.paper for arm in arms):
        remarks += (f"The paper's table “{printed.title}” contains none of these arms.",)
    return replace(
        table,
        arms=tuple(arms),
        notes=notes,
        remarks=remarks,
        paper=printed.title,
        like_the_paper=True,
    )


def predict_run(scores: Sequence[float]) -> stats.Interval | None:
    """Return the 95% prediction interval of one more run: mean ± t·sd·√(1 + 1/n).

    The paper's values are single runs, so an interval of our mean would be too narrow for them.
    None with fewer than two scores, or if all are equal.
    """
    n = len(scores)
    mean, sd = stats.mean_sd(scores) if n else (0.0, None)
    if not sd:
        return None
    from scipy.special import stdtrit  # slow import

    half = float(stdtrit(n - 1, (1 + stats.LEVEL) / 2)) * sd * math.sqrt(1 + 1 / n)
    return stats.Interval(mean - half, mean + half)


def _differences_from_paper(
    table: AblationTable, printed: PaperTable, sweep: SweepRow
) -> list[str]:
    """List the differences between our setting and the paper's."""
    why = ["laptop scale"] if sweep.scale == "laptop" else []
    if table.metric.name != printed.metric:
        why.append(f"{table.metric.label} instead of {METRICS[printed.metric].label}")
    asked = {key for cell in printed.cells for key in cell.where}
    usual: dict[str, Scalar] = {"encoder.width": 64, "data.train_size": None, "data.holdout": 0.0}
    if not printed.settings:  # else each row has its own settings
        usual |= {k: v for k, v in (("epochs", 200), ("batch_size", 256)) if k not in asked}
    for key, value in usual.items():
        others = {arm.config.get(key) for arm in table.arms if arm.config.get(key) != value}
        if others and sweep.scale != "laptop":
            seen = ", ".join(sorted(map(labels.value_of, others)))
            wanted = "all" if value is None else labels.value_of(value)
            why.append(f"{labels.name_of(key)} {seen} instead of {wanted}")
    return why


def _compare_orders(
    arms: Sequence[Arm], printed: PaperTable, sweep: SweepRow
) -> Iterable[Ordering]:
    """Yield the rank correlation of the paper's values with ours, per dataset of the paper.

    Two arms have no order worth a number.
    """
    datasets = dict.fromkeys(str(cell.where.get("data.name", "")) for cell in printed.cells)
    own = {str(arm.config.get("data.name")) for arm in arms}
    theirs: dict[str, dict[Scalar, Scalar]] = {}
    for key in _SMALL_KEYS if sweep.scale == "laptop" else ():
        small = sorted({_number(arm.config[key]) for arm in arms if key in arm.config})
        full = sorted({_number(cell.where[key]) for cell in printed.cells if key in cell.where})
        theirs[key] = dict(zip(small, full, strict=False)) if len(small) == len(full) else {}
    for data in datasets:
        # If the paper does not use our dataset, compare with its order on each of its datasets.
        if data in own or not own & set(datasets):
            pairs = []
            for arm in arms:
                if arm.mean is None or (data in own and arm.config.get("data.name") != data):
                    continue
                asked = {**arm.config, **({"data.name": data} if data else {})}
                asked |= {k: theirs[k].get(asked.get(k), asked.get(k)) for k in theirs}
                cell = find_cell(printed, asked, arm.idle)
                if cell is not None:
                    pairs.append((arm.mean, cell.value))
            ours, published = [a for a, _ in pairs], [b for _, b in pairs]
            if len(pairs) >= FEWEST_RANKED:
                yield Ordering(
                    data=labels.value_label("data.name", data),
                    arms=len(pairs),
                    tau=stats.rank_correlation(ours, published),
                    p=stats.rank_correlation_p(ours, published),
                )


def _number(value: Scalar) -> float:
    assert isinstance(value, int | float)
    return value
