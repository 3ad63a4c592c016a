"""Text for papers, written from a table's design: its caption and its statistical methods.

The text uses typographic characters (±, τ', †); a format that cannot show them escapes them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.caption import describe_extensions, percent
from ascl_sweep.analysis.comparison import DATASET, Arm, Comparison
from ascl_sweep.analysis.inference import ALPHA, FEWEST, Verdict, spend_alpha
from ascl_sweep.analysis.labels import join_names
from ascl_sweep.analysis.search_summary import SearchSummary
from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.report.methods_text import DECISION_RULE, LOST_SEEDS_RULE, equivalence_rule
from ascl_sweep.report.tables import VERDICT_SIGNS
from ascl_sweep.text import plural

OWN_BASELINE = "its baseline"
SEEDS_VARY = (
    "Seeds vary the initialization, the order of the images and the augmentations; the training, "
    "holdout and test images are the same for every seed, so intervals cover training seeds only."
)


def describe_table(table: AblationTable) -> str:
    """Return a caption of at most two sentences for a table of means."""
    scale = " at laptop scale (reduced data, network and epochs)" if _is_small(table) else ""
    spread = "mean ± SD" if any(arm.sd is not None for arm in table.arms) else "mean"
    sentence = f"{describe_scores(table)}{scale}, {spread} over {_seeds(table)}."
    tests = describe_marks(table)
    return f"{sentence[0].upper()}{sentence[1:]}{f' {tests}' if tests else ''}"


def describe_scores(table: AblationTable) -> str:
    """Return the metric and the scored images of a table."""
    metric = table.metric
    unit = f" ({metric.unit})" if metric.unit else ""
    names = dict.fromkeys(
        labels.value_label(DATASET, arm.config[DATASET])
        for arm in table.arms
        if DATASET in arm.config
    )
    holdouts = {bool(arm.config.get("data.holdout")) for arm in table.arms}
    images = "holdout" if holdouts == {True} else "test set"
    on = f" on the {join_names(names)} {images}{'s' if len(names) > 1 else ''}" if names else ""
    best = " at the best epoch on these images" if table.epoch == "best" else ""
    return f"{metric.label}{unit}{on}{best}"


def describe_marks(table: AblationTable) -> str:
    """Explain the marks of verdicts in a table; empty if it compares nothing."""
    found = comparisons_of(table)
    verdicts = {comparison.verdict for comparison in found}
    if not any(comparison.inference.p is not None for comparison in found):
        return ""
    meanings: dict[Verdict, str] = {
        "better": "significantly better",
        "worse": "significantly worse",
        "equivalent": f"equivalent within ±{table.region:g} points",
    }
    parts = [
        f"{'bold, ' if verdict == 'better' else ''}{VERDICT_SIGNS[verdict]}: {meaning}"
        for verdict, meaning in meanings.items()
        if verdict in verdicts
    ]
    against = baseline_name(table)
    text = f"compared with {against}, {'; '.join(parts)}"
    if not parts:
        text = f"no arm differs significantly from {against}"
    family = family_of(table)
    over = f", family-wise over {plural(family, 'planned comparison')}" if family > 1 else ""
    return f"{text[0].upper()}{text[1:]} ({_test_name(found)}, 5% level{over})."


def describe_methods(table: AblationTable) -> str:
    """Return a paragraph on the statistics of a table, for the appendix of a paper."""
    return " ".join(_methods(table))


def describe_search(found: SearchSummary) -> str:
    """Return a sentence on how a search chose the configurations of a table."""
    per = f" per {found.per}" if found.per else ""
    finalists = plural(found.finalists, "best configuration")
    return (
        f"The configurations were chosen by a search: {plural(len(found.trials), 'configuration')} "
        f"with one seed each, scored by online kNN on a holdout of the training images "
        f"({found.rule}); the {finalists}{per} were trained again with the seeds of the table and "
        "scored on the test images."
    )


def comparisons_of(table: AblationTable) -> list[Comparison]:
    return [arm.comparison for arm in table.arms if arm.comparison is not None]


def family_of(table: AblationTable) -> int:
    """Return the number of planned comparisons that the table itself is corrected for."""
    own = [c.inference.family for c in comparisons_of(table) if c.taken_from is None]
    return max(own, default=max((c.inference.family for c in comparisons_of(table)), default=0))


def usual_n(arms: Sequence[Arm]) -> int:
    """Return the most frequent number of seeds among arms with scores."""
    found = Counter(arm.n for arm in arms if arm.n)
    return max(found, key=lambda n: (found[n], n), default=0)


def baseline_name(table: AblationTable) -> str:
    """Return the name of the arm that the others are compared with."""
    names = {comparison.baseline for comparison in comparisons_of(table)}
    if len(names) == 1:
        return names.pop()
    theirs = {labels.system(arm.config) for arm in table.arms if arm.is_baseline}
    ours = {labels.system(arm.config) for arm in table.arms if arm.comparison is not None}
    if len(theirs) == 1 and theirs.isdisjoint(ours):
        return f"{theirs.pop()} with all else equal"
    return OWN_BASELINE


def _methods(table: AblationTable) -> Iterator[str]:
    yield from _describe_runs(table)
    found = comparisons_of(table)
    tested = [comparison for comparison in found if comparison.inference.p is not None]
    if not tested:
        yield "No arm is compared with a baseline."
        return
    name = baseline_name(table)
    against = OWN_BASELINE if name == OWN_BASELINE else f"{OWN_BASELINE} ({name})"
    yield f"Each arm is compared with {against} by the differences of runs with the same seed."
    yield _describe_test(tested)
    yield from _describe_family(table, found)
    yield from _describe_looks(table)
    yield from _describe_verdicts(table, found)


def _describe_runs(table: AblationTable) -> Iterator[str]:
    when = "after its final epoch" if table.epoch == "last" else "at its best epoch on these images"
    scores = describe_scores(table).removesuffix(" at the best epoch on these images")
    yield f"Each run is scored by its {scores} {when}; only complete runs count."
    counts = sorted({arm.n for arm in table.arms})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = ", ".join(map(str, table.design.seeds))
    planned = f" (planned seeds: {seeds})" if seeds else ""
    what = "mean ± sample standard deviation" if counts[-1] > 1 else "score"
    yield f"We report the {what} of n = {n} seed{'' if counts == [1] else 's'} per arm{planned}."
    yield SEEDS_VARY
    references = dict.fromkeys(labels.system(a.config) for a in table.arms if a.is_reference)
    if references:
        one = len(references) == 1
        yield (
            f"{join_names(references)} {'is a reference' if one else 'are references'} outside the "
            "comparisons."
        )


def _is_moderated(comparison: Comparison) -> bool:
    estimate = comparison.estimate
    return estimate.df is not None and estimate.df > estimate.n - 1 + 1e-9


def _test_name(found: Sequence[Comparison]) -> str:
    return "moderated paired t-test" if any(map(_is_moderated, found)) else "paired t-test"


def _describe_test(tested: Sequence[Comparison]) -> str:
    df = sorted({_short(c.estimate.df) for c in tested if c.estimate.df is not None}, key=float)
    freedom = df[0] if len(df) == 1 else f"{df[0]} to {df[-1]}"
    if not any(map(_is_moderated, tested)):
        return f"The differences are tested with a two-sided paired t-test (df = {freedom})."
    return (
        "The differences are tested with a two-sided moderated paired t-test (Smyth, 2004): the "
        "variance of a comparison is combined with the mean variance of the table's other "
        "comparisons on the same dataset, weighted by their degrees of freedom, and is never "
        f"smaller than the comparison's own variance (df = {freedom})."
    )


def _describe_family(table: AblationTable, found: Sequence[Comparison]) -> Iterator[str]:
    m = family_of(table)
    if m > 1:
        yield (
            f"All m = {m} planned comparisons, finished or not, form one family: p-values and "
            "intervals are corrected for it by Šidák's method, so the intervals hold "
            "simultaneously and agree with the verdicts."
        )
    shared = Counter((c.taken_from, c.inference.family) for c in found if c.taken_from)
    for (sweep, family), count in shared.items():
        yield (
            f"{plural(count, 'comparison')} of the table {'belongs' if count == 1 else 'belong'} "
            f"to the larger family of the sweep {sweep} and {'is' if count == 1 else 'are'} "
            f"corrected for its {family} comparisons."
        )


def _describe_looks(table: AblationTable) -> Iterator[str]:
    design = table.design
    if design.looks:
        parts = ", ".join(f"{alpha:.2g}" for alpha in spend_alpha(design.looks, design.alpha))
        yield (
            f"Comparisons were decided at planned looks at {', '.join(map(str, design.looks))} "
            f"seeds, which share the family-wise error of {100 * design.alpha:.2g}% (α = {parts}; "
            "power-family spending, Kim and DeMets, 1987); only undecided comparisons received "
            "more seeds, and each interval has the level 1 − α of its look."
        )
    if design.extensions:
        yield describe_extensions(design)
        if not design.looks:
            yield f"Each interval has the level {percent(1 - design.alpha)}."
    if design.looks or design.extensions:
        yield (
            f"p-values are multiplied by {ALPHA:g}/α, where α is the error that the test may "
            f"spend, so that p < {ALPHA:g} where the interval excludes 0."
        )
    else:
        yield f"The family-wise error is α = {ALPHA:g}; intervals have the level 95%."


def _describe_verdicts(table: AblationTable, found: Sequence[Comparison]) -> Iterator[str]:
    yield DECISION_RULE
    if table.metric.percent and table.region > 0:
        yield equivalence_rule([table.region])
    few = sum(comparison.estimate.n < FEWEST for comparison in found)
    if few:
        yield (
            f"Comparisons with fewer than {FEWEST} paired seeds ({few} of {len(found)}) have no "
            "verdict."
        )
    lost = [arm.label for arm in table.arms if arm.lost_seeds]
    if lost:
        yield f"{LOST_SEEDS_RULE} This concerns {join_names(lost)}."


def _seeds(table: AblationTable) -> str:
    n = usual_n(table.arms)
    others = {arm.n for arm in table.arms} - {n}
    other = " unless given in superscript parentheses" if others else ""
    return f"n = {n} seed{'' if n == 1 else 's'}{other}"


def _is_small(table: AblationTable) -> bool:
    return table.scale == "laptop"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
