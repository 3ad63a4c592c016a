"""Marks on arms that differ from most in something the sweep does not vary.

A table that compares a run of 200 epochs with one of 100, or one commit with another, must say so.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ascl_sweep import labels
from ascl_sweep.digest import Digest
from ascl_sweep.ledger import RunRow
from ascl_sweep.report.ablation import Arm, Metric

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


def marked(
    arms: list[Arm], rows: Sequence[RunRow], digest: Digest, metric: Metric
) -> tuple[list[Arm], dict[str, str]]:
    """Mark arms that differ from most in what the sweep does not vary (rule 9)."""
    letters: dict[str, str] = {}
    marks: list[list[str]] = [[] for _ in arms]
    for sentences in _differences(arms, rows, digest, metric):
        for own, sentence in zip(marks, sentences, strict=True):
            if sentence is not None:
                own.append(letters.setdefault(sentence, letter(len(letters))))
    notes = {mark: sentence for sentence, mark in letters.items()}
    return [replace(arm, marks=tuple(m)) for arm, m in zip(arms, marks, strict=True)], notes


def _differences(
    arms: list[Arm], rows: Sequence[RunRow], digest: Digest, metric: Metric
) -> Iterator[list[str | None]]:
    """For each aspect a sentence on every arm that is unlike the others in it."""
    by_id = {row.run_id: row for row in rows}
    complete = [
        [by_id[run_id] for run_id in arm.run_ids if by_id[run_id].state == "done"] for arm in arms
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
    yield _other_seeds([frozenset(map(str, arm.scores)) for arm in arms])


def _unlike(what: str, found: Sequence[Values]) -> list[str | None]:
    counted = Counter(values for values in found if values)
    # The commonest; of equally common ones the first in order, whichever arm comes first.
    usual = min(counted, key=lambda v: (-counted[v], sorted(v)), default=frozenset())
    others = _listed(usual)

    def sentence(values: Values) -> str | None:
        if len(values) > 1:
            return f"{what}: mixed within the arm ({_listed(values)})"
        if values and values != usual:
            return f"{what}: {_listed(values)}, where other arms have {others}"
        return None

    return [sentence(values) for values in found]


def _other_seeds(found: Sequence[Values]) -> list[str | None]:
    most = min(filter(None, found), key=lambda v: (-len(v), sorted(v)), default=frozenset())
    return [
        f"seeds: {_listed(seeds)} complete, where others have {_listed(most)}"
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
    """a, b, …, z, aa, ab, …"""
    head, tail = divmod(index, 26)
    return (letter(head - 1) if head else "") + chr(ord("a") + tail)
