"""The paper's numbers beside ours: by value where the setting is the paper's, else by order."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ascl_sweep import labels, paper, stats
from ascl_sweep.ledger import Scalar, SweepRow
from ascl_sweep.report.ablation import METRICS, Arm, Metric, Ordering, PaperValue
from ascl_sweep.report.alike import letter

_SMALL_KEYS = ("epochs", "batch_size")  # which `--scale laptop` shrinks, in the same order


def beside_paper(
    arms: list[Arm],
    notes: dict[str, str],
    printed: paper.PaperTable,
    metric: Metric,
    sweep: SweepRow,
    remarks: list[str],
) -> tuple[list[Arm], dict[str, str], tuple[Ordering, ...], bool]:
    remarks.append(paper.COMMON)
    why = _unlike_paper(arms, printed, metric, sweep)
    if why:
        remarks.append(
            f"This is not the paper's setting ({'; '.join(why)}): only the order of the arms is "
            "held against the paper's, not their values."
        )
        return arms, notes, tuple(_orderings(arms, printed, sweep)), False
    found = [paper.find(printed, arm.config, arm.idle) for arm in arms]
    letters: dict[str, str] = {}
    notes = dict(notes)
    out = []
    for arm, cell in zip(arms, found, strict=True):
        if cell is None:
            out.append(arm)
            continue
        for key in cell.notes:
            if key not in letters:
                letters[key] = letter(len(notes))
                notes[letters[key]] = printed.footnotes[key]
        value = PaperValue(
            value=cell.value,
            notes=tuple(letters[key] for key in cell.notes),
            difference=None if arm.mean is None else arm.mean - cell.value,
            inside=None if arm.interval is None else cell.value in arm.interval,
        )
        out.append(replace(arm, paper=value))
    if not any(arm.paper for arm in out):
        remarks.append(f"None of the arms is in the paper's table “{printed.title}”.")
    return out, notes, (), True


def _unlike_paper(
    arms: Sequence[Arm], printed: paper.PaperTable, metric: Metric, sweep: SweepRow
) -> list[str]:
    """Why our numbers are not of the paper's kind."""
    why = ["laptop scale"] if sweep.scale == "laptop" else []
    if metric.name != printed.metric:
        why.append(f"{metric.label} instead of {METRICS[printed.metric].label}")
    asked = {key for cell in printed.cells for key in cell.where}
    usual: dict[str, Scalar] = {"encoder.width": 64, "data.train_size": None, "data.holdout": 0.0}
    if not printed.settings:  # where there are, each row of the paper's has its own
        usual |= {k: v for k, v in (("epochs", 200), ("batch_size", 256)) if k not in asked}
    for key, value in usual.items():
        others = {arm.config.get(key) for arm in arms if arm.config.get(key) != value}
        if others and sweep.scale != "laptop":
            seen = ", ".join(sorted(map(labels.value_of, others)))
            wanted = "all" if value is None else labels.value_of(value)
            why.append(f"{labels.name_of(key)} {seen} instead of {wanted}")
    return why


def _orderings(
    arms: Sequence[Arm], printed: paper.PaperTable, sweep: SweepRow
) -> Iterable[Ordering]:
    """Per dataset of the paper's, the rank correlation of its values with ours."""
    datasets = dict.fromkeys(str(cell.where.get("data.name", "")) for cell in printed.cells)
    own = {str(arm.config.get("data.name")) for arm in arms}
    theirs: dict[str, dict[Scalar, Scalar]] = {}
    for key in _SMALL_KEYS if sweep.scale == "laptop" else ():
        small = sorted({_number(arm.config[key]) for arm in arms if key in arm.config})
        full = sorted({_number(cell.where[key]) for cell in printed.cells if key in cell.where})
        theirs[key] = dict(zip(small, full, strict=False)) if len(small) == len(full) else {}
    for data in datasets:
        # Where the data are not among the paper's, its order on each dataset is held against ours.
        if data in own or not own & set(datasets):
            pairs = []
            for arm in arms:
                if arm.mean is None or (data in own and arm.config.get("data.name") != data):
                    continue
                asked = {**arm.config, **({"data.name": data} if data else {})}
                asked |= {k: theirs[k].get(asked.get(k), asked.get(k)) for k in theirs}
                cell = paper.find(printed, asked, arm.idle)
                if cell is not None:
                    pairs.append((arm.mean, cell.value))
            ours, published = [a for a, _ in pairs], [b for _, b in pairs]
            if pairs:
                yield Ordering(
                    data=labels.value_label("data.name", data),
                    arms=len(pairs),
                    tau=stats.rank_correlation(ours, published),
                    p=stats.rank_correlation_p(ours, published),
                )


def _number(value: Scalar) -> float:
    assert isinstance(value, int | float)
    return value
