"""The paragraph on statistical methods, once per report and in every format."""

from collections.abc import Iterator, Sequence

from ascl_sweep.analysis.inference import ALPHA, FEWEST, MOST_BORROWED
from ascl_sweep.analysis.table import AblationTable

TITLE = "Statistical methods"
DECISION_RULE = "An arm is called better or worse if its simultaneous interval excludes 0."
LOST_SEEDS_RULE = (
    "An arm with a diverged or failed seed is never called better or equivalent, and an arm whose "
    "baseline has such a seed never worse or equivalent."
)


def equivalence_rule(regions: Sequence[float]) -> str:
    """State when an arm is called equivalent to its baseline."""
    return (
        "It is called equivalent if two one-sided tests at 5% each (TOST), corrected in the same "
        f"way, place the difference within ±{', ±'.join(f'{region:g}' for region in regions)} "
        "percentage points; equivalence takes precedence over better and worse."
    )


def describe_methods(tables: Sequence[AblationTable]) -> tuple[str, ...]:
    """Describe how the comparisons of these tables are decided.

    Args:
        tables: The tables of a report.

    Returns:
        Sentences for a paper's appendix; empty if nothing is tested.
    """
    arms = [arm for table in tables for arm in table.arms]
    if not any(arm.comparison and arm.comparison.inference.p is not None for arm in arms):
        return ()
    return tuple(_sentences(tables))


def _sentences(tables: Sequence[AblationTable]) -> Iterator[str]:
    compared = [arm for table in tables for arm in table.arms if arm.comparison]
    level = f"{100 * ALPHA:g}%"
    yield (
        "Each arm is compared with its baseline by a two-sided t-test of the differences between "
        "runs with the same seed."
    )
    yield (
        "The variance of a comparison is moderated by that of the other comparisons on the same "
        "dataset (Smyth, 2004), is never smaller than its own, and has its own plus at most "
        f"{MOST_BORROWED:g} borrowed degrees of freedom."
    )
    yield (
        "p-values and intervals are corrected over all planned comparisons of a table, finished or "
        f"not (Šidák, single-step), which controls the family-wise error at {level} and gives the "
        f"intervals simultaneous coverage of {100 - 100 * ALPHA:g}%."
    )
    regions = sorted({table.region for table in tables if table.metric.percent})
    if regions:
        yield f"{DECISION_RULE} {equivalence_rule(regions)}"
    yield f"There is no verdict with fewer than {FEWEST} paired seeds. {LOST_SEEDS_RULE}"
    if any(table.design.looks for table in tables):
        yield (
            f"Where seeds are added until a comparison is decided, the planned looks share the "
            f"{level} error by alpha spending (Kim and DeMets, 1987)."
        )
    if any(table.design.extensions for table in tables):
        yield (
            "Where the plan of the seeds was changed after results were known, a table has half "
            "the error of the table before, so that the sum over its tables stays below "
            f"{2 * 100 * ALPHA:g}% if seeds were only added; no correction covers removed seeds."
        )
    if any(table.design.looks or table.design.extensions for table in tables):
        yield (
            f"There, p-values are divided by the share of the {level} error that the test may "
            f"spend, so that p < {ALPHA:g} wherever the interval excludes 0."
        )
    if any(arm.comparison and arm.comparison.taken_from for arm in compared):
        yield (
            "A comparison that several tables contain has one result: that of its largest family."
        )
    if any(arm.is_reference for table in tables for arm in table.arms):
        yield "Reference arms are outside the comparisons and their correction."
    yield (
        "Intervals cover the variation between training seeds only: all seeds share the training "
        "and test images."
    )
