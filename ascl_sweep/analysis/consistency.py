"""Notes on arms that differ from the others in something the sweep does not vary.

For example, a table must state that it compares 200 epochs with 100, or two commits, and which arms
had diverged seeds or a smaller tuning budget.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import Arm
from ascl_sweep.contracts import LOST_STATES, RunRow, RunState
from ascl_sweep.spec.metrics import Metric
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.text import plural

_KEYS = ("epochs", "batch_size", "runtime.precision", "data.train_size", "data.holdout")
_PROTOCOLS = {
    "knn": ("eval.knn_k", "eval.knn_temperature"),
    "probe": ("eval.probe", "eval.probe_epochs", "eval.probe_nesterov"),
}
_FACTS = {
    "commit": "commit",
    "device": "device",
    "workers": "workers",
    "torch": "torch",
    "dirty": "uncommitted changes",
}
Values = frozenset[str]


def mark_differences(
    arms: list[Arm], rows: Sequence[RunRow], digest: SweepSummary, metric: Metric
) -> tuple[list[Arm], dict[str, str]]:
    """Mark arms that differ from most others in something the sweep does not vary.

    Args:
        arms: The arms of one table.
        rows: The runs of these arms.
        digest: The sweep, whose axes may differ.
        metric: The metric of the table, whose evaluation protocol must not differ.

    Returns:
        The arms with the letters of their notes, and the notes by letter.
    """
    letters: dict[str, str] = {}
    marks: list[list[str]] = [[] for _ in arms]
    for sentences in _differences(arms, rows, digest, metric):
        for own, sentence in zip(marks, sentences, strict=True):
            if sentence is not None:
                own.append(letters.setdefault(sentence, letter(len(letters))))
    notes = {mark: sentence for sentence, mark in letters.items()}
    return [replace(arm, marks=tuple(m)) for arm, m in zip(arms, marks, strict=True)], notes


def _differences(
    arms: list[Arm], rows: Sequence[RunRow], digest: SweepSummary, metric: Metric
) -> Iterator[list[str | None]]:
    """Yield, for each property, a note for every arm that differs in it from most others."""
    by_id = {row.run_id: row for row in rows}
    complete = [
        [by_id[run_id] for run_id in arm.run_ids if by_id[run_id].state == RunState.DONE]
        for arm in arms
    ]
    protocol = _PROTOCOLS.get(metric.name.split("_")[0], ())
    for key in (*_KEYS, *protocol):
        if key not in digest.axes:
            counting = [[row for row in runs if key not in row.idle] for runs in complete]
            found = [{row.config.get(key) for row in runs} for runs in counting]
            shown = [frozenset(labels.value_label(key, v) for v in values) for values in found]
            yield _unlike(labels.name_of(key), shown)
    for fact, name in _FACTS.items():
        yield _unlike(name, [frozenset(_fact(r, fact) for r in runs) - {""} for runs in complete])
    tried = ["" if arm.tried is None else str(arm.tried) for arm in arms]
    yield _unlike("configurations tried", [frozenset({n} - {""}) for n in tried])
    yield [_describe_loss(arm) for arm in arms]
    yield ["reference, outside the comparisons" if arm.is_reference else None for arm in arms]
    yield _other_seeds([frozenset(map(str, arm.scores)) for arm in arms])


def _describe_loss(arm: Arm) -> str | None:
    """Describe the seeds that diverged or failed, which are evidence against an arm."""
    counts = Counter(arm.unscored.values())
    lost = [f"{counts[state]} {state}" for state in LOST_STATES if counts[state]]
    return f"{', '.join(lost)} of {plural(arm.planned, 'seed')}" if lost else None


def _unlike(what: str, found: Sequence[Values]) -> list[str | None]:
    counted = Counter(values for values in found if values)
    # The most common value; ties are broken by value, so that the order of arms does not matter.
    usual = min(counted, key=lambda v: (-counted[v], sorted(v)), default=frozenset())
    others = _listed(usual)

    def sentence(values: Values) -> str | None:
        if len(values) > 1:
            return f"{what}: mixed within the arm ({_listed(values)})"
        if values and values != usual:
            return f"{what}: {_listed(values)} (other arms: {others})"
        return None

    return [sentence(values) for values in found]


def _other_seeds(found: Sequence[Values]) -> list[str | None]:
    most = min(filter(None, found), key=lambda v: (-len(v), sorted(v)), default=frozenset())
    return [
        f"complete seeds: {_listed(seeds)} (other arms: {_listed(most)})"
        if seeds and seeds != most
        else None
        for seeds in found
    ]


def _fact(row: RunRow, name: str) -> str:
    value = getattr(row, name)
    if name == "dirty":
        return "" if value is None else "yes" if value else "no"
    return "" if value is None else str(value)[:12]


def _listed(values: Collection[str]) -> str:
    return ", ".join(sorted(values, key=lambda v: (len(v), v)))


def letter(index: int) -> str:
    """Return the letter of a note: a, b, …, z, aa, ab, …"""
    head, tail = divmod(index, 26)
    return (letter(head - 1) if head else "") + chr(ord("a") + tail)
