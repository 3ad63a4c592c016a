"""The findings of a sweep in at most three sentences, which open its section.

The first states what is decided, the second the largest effect that is not, and the third what
would decide the rest.
"""

from collections.abc import Iterator, Sequence

from ascl_sweep.analysis.comparison import Arm, Comparison
from ascl_sweep.analysis.inference import FEWEST, Verdict
from ascl_sweep.analysis.labels import join_names
from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.report.sweep_tables import effect_text
from ascl_sweep.text import plural

LISTED = 3
"""Comparisons of one verdict that a sentence lists, those with the largest effects."""
ORDER: tuple[Verdict, ...] = ("better", "worse", "equivalent")
Compared = tuple[Arm, Comparison]


def describe_findings(table: AblationTable) -> tuple[str, ...]:
    """Describe what a table decides, with simultaneous intervals.

    Args:
        table: The table of a sweep.

    Returns:
        At most three sentences.
    """
    found = [(arm, arm.comparison) for arm in table.arms if arm.comparison is not None]
    if not any(arm.n for arm in table.arms):
        return ("Nothing is decided: no run is complete.",)
    if not found:
        return ("Nothing is decided: no arm is compared with a baseline.",)
    decided = [each for each in found if each[1].verdict in ORDER]
    undecided = [each for each in found if each[1].verdict not in ORDER]
    return (
        _decided(table, found, decided),
        *_largest_undecided(table, undecided, decided),
        *_needed(table, undecided),
    )


def _decided(table: AblationTable, found: Sequence[Compared], decided: Sequence[Compared]) -> str:
    families = [c.inference.family for _, c in found if not c.taken_from]
    family = max([len(found), *families])
    comparisons = plural(family, "planned comparison")
    bases = {comparison.baseline for _, comparison in found}
    against = f" with {bases.pop()}" if len(bases) == 1 else ""
    look = _look(table, [comparison for _, comparison in found])
    if not decided:
        return _capitalized(f"{look}nothing is decided yet ({comparisons}{against}).")
    count = f"{len(decided)} of {comparisons}"
    if len(decided) == family:
        count = f"all {comparisons}" if family > 1 else "the planned comparison"
    are = "is" if len(decided) == 1 else "are"
    unit = "Δ in points, " if table.metric.percent else "Δ, "
    parts = [
        f"{verdict}: {_listed(table, own)}"
        for verdict in ORDER
        if (own := [each for each in decided if each[1].verdict == verdict])
    ]
    return _capitalized(
        f"{look}{count}{against} {are} decided ({unit}simultaneous intervals): {'; '.join(parts)}."
    )


def _capitalized(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _look(table: AblationTable, found: Sequence[Comparison]) -> str:
    """Return the start of a sentence on an interim look; empty if no look follows."""
    looks = table.design.looks
    waiting = [c.planned for c in found if c.verdict not in ORDER and c.planned]
    if not looks or not waiting or (max(waiting) >= looks[-1] and _is_complete(found)):
        return ""
    now = max(waiting)
    fewest = min(c.estimate.n for c in found if c.verdict not in ORDER)
    state = "" if _is_complete(found) else f" (so far {fewest})"
    return f"interim look at {now} of at most {looks[-1]} seeds{state}: "


def _is_complete(found: Sequence[Comparison]) -> bool:
    return all(c.complete or c.lost for c in found)


def _listed(table: AblationTable, found: Sequence[Compared]) -> str:
    shown = sorted(found, key=lambda each: -abs(each[1].estimate.mean))[:LISTED]
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return ", ".join(f"{arm.label} ({effect_text(table, c)})" for arm, c in shown) + more


def _largest_undecided(
    table: AblationTable, undecided: Sequence[Compared], decided: Sequence[Compared]
) -> Iterator[str]:
    if not undecided:
        return
    arm, found = max(undecided, key=lambda each: abs(each[1].estimate.mean))
    which = "largest undecided difference" if decided else "largest difference"
    units = "" if decided or not table.metric.percent else " points"
    n = "" if found.inference.interval else f" (n = {found.estimate.n})"
    yield f"The {which} is {arm.label}: {effect_text(table, found)}{units}{n}."


def _needed(table: AblationTable, undecided: Sequence[Compared]) -> Iterator[str]:
    """Yield what would decide the rest: missing seeds, then further ones."""
    missing = _missing(table)
    waiting = any(found.inference.waiting for _, found in undecided)
    parts = []
    if missing:
        wait = ", which the verdicts wait for" if waiting else ""
        are = "is" if missing == 1 else "are"
        parts.append(f"{plural(missing, 'planned seed')} {are} missing{wait}")
    lost = [arm.label for arm, found in undecided if found.lost]
    if lost:
        parts.append(f"diverged or failed seeds prevent a verdict on {join_names(lost)}")
    few = [found for _, found in undecided if found.estimate.n < FEWEST]
    needed = sorted(
        (found.inference.seeds_needed, arm.label)
        for arm, found in undecided
        if found.inference.seeds_needed is not None and not found.inference.waiting
    )
    if needed:
        least, label = needed[0]
        rest = f" (up to {needed[-1][0]} for the others)" if len(needed) > 1 else ""
        parts.append(
            f"about {plural(least or 0, 'further seed')} per arm would decide {label}{rest}, if "
            "the estimates stay the same"
        )
    elif few:
        parts.append(f"a verdict needs at least {FEWEST} paired seeds")
    elif undecided and not lost and not waiting:
        looks = table.design.looks
        more = f"no look up to {looks[-1]} seeds" if looks else "no realistic number of seeds"
        parts.append(f"{more} would decide the rest")
    text = "; ".join(parts)
    if text:
        yield _capitalized(f"{text}.")


def _missing(table: AblationTable) -> int:
    """Return the number of planned seeds without a score, and not diverged or failed."""
    return sum(max(0, arm.planned - arm.n - arm.lost_seeds) for arm in table.arms)
