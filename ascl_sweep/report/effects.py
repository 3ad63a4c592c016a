"""Tables of factorial effects and of ranks over datasets."""

from collections.abc import Sequence

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import DATASET
from ascl_sweep.analysis.datasets import DatasetRanks, Improvement
from ascl_sweep.analysis.factorial import Effect, Factorial
from ascl_sweep.report.tables import NONE, Cell, Table, precision_of, probability
from ascl_sweep.report.tables import effect as shown_effect
from ascl_sweep.spec.metrics import Metric
from ascl_sweep.text import plural

INTERACTION_VERDICTS = {
    "better": "better than additive",
    "worse": "worse than additive",
    "equivalent": "additive",
}
LOST = "a"  # letter of the note on diverged and failed runs


def effects_table(sweep: str, factorials: Sequence[Factorial], metric: Metric) -> Table | None:
    """Build the table of main effects and interactions; None if no arms form a grid."""
    if not factorials:
        return None
    shown = len(factorials) > 1
    rows = [
        ((Cell(_dataset(grid)),) if shown else ()) + _effect(effect, metric)
        for grid in factorials
        for effect in grid.effects
    ]
    columns = {
        **({"dataset": "l"} if shown else {}),
        **{"effect": "l", "kind": "l", "seeds": "r", "Δ": "r"},
        **{"95% interval": "r", "p": "r", "verdict": "l", "seeds needed": "r"},
    }
    families = [_family(factorials, kind) for kind in ("main", "interaction")]
    sizes = plural(families[0], "main effect")
    if families[1]:
        sizes += f" and, separately, over {plural(families[1], 'interaction')}"
    else:  # every grid has interactions
        sizes += " (there are too many interactions to list)"
    region = factorials[0].region
    within = f"; equivalent or additive: within ±{region:g} points" if region else ""
    return Table(
        name=f"{sweep}-effects",
        title=f"{sweep}: effects on {metric.label}",
        header=tuple(columns),
        align="".join(columns.values()),
        rows=tuple(rows),
        caption=(
            "Main effects are differences from the factor's base level, averaged over the other "
            "factors, interactions differences of such differences (0 if effects add up)" + within,
            f"Moderated t-tests with the seed as block, corrected over {sizes}{_about(factorials)}",
        ),
    )


def _dataset(grid: Factorial) -> str:
    return labels.value_label(DATASET, grid.dataset)


def _effect(effect: Effect, metric: Metric) -> tuple[Cell, ...]:
    name, kind = Cell(effect.name), Cell("main effect" if effect.kind == "main" else effect.kind)
    found = effect.inference
    if found is None:
        return (name, kind, Cell("0"), *[Cell(NONE)] * 5)
    delta, bounds = shown_effect(found.estimate.mean, found.interval, precision_of(metric))
    verdict: str | None = found.verdict
    if verdict and effect.kind == "interaction":
        verdict = INTERACTION_VERDICTS.get(verdict, verdict)
    return (
        name,
        kind,
        Cell(str(found.estimate.n)),
        Cell(delta, bold=found.verdict == "better"),
        Cell(bounds),
        Cell(probability(found.p)),
        Cell(verdict or NONE),
        Cell(NONE if found.seeds_needed is None else f"+{found.seeds_needed}"),
    )


def _family(factorials: Sequence[Factorial], kind: str) -> int:
    return sum(effect.kind == kind for grid in factorials for effect in grid.effects)


def _about(factorials: Sequence[Factorial]) -> str:
    """Describe the grids and the arms outside them."""
    shapes = dict.fromkeys(
        " × ".join(f"{factor.title} ({len(factor.levels)})" for factor in grid.factors)
        for grid in factorials
    )
    text = f"; grid: {' and '.join(shapes)}"
    excluded = dict.fromkeys(name for grid in factorials for name in grid.excluded)
    return text + (f", without {labels.join_names(excluded)}" if excluded else "")


# ---------------------------------------------------------------- ranks


def ranks_table(sweep: str, ranks: DatasetRanks, metric: Metric) -> Table:
    """Build the table of mean ranks and of the probability of improvement."""
    improvements = any(system.improvement for system in ranks.systems)
    lost = any(system.lost_seeds for system in ranks.systems)
    rows = [
        (
            Cell(system.label, marks=(LOST,) if system.lost_seeds else ()),
            Cell(f"{system.mean_rank:.2f}"),
            *(Cell(f"{rank:g}") for rank in system.ranks),
            *(_improvement(system.improvement) if improvements else ()),
        )
        for system in ranks.systems
    ]
    more = ("baseline", "P(improvement)", "95% bootstrap") if improvements else ()
    note = "Diverged or failed seeds: ranks use complete runs only, which flatters this system"
    if improvements:
        note += "; P(improvement) counts such a seed as worse than any score"
    return Table(
        name=f"{sweep}-ranks",
        title=f"{sweep}: ranks over {len(ranks.datasets)} datasets",
        header=("system", "mean rank", *ranks.datasets, *more),
        align="lr" + "r" * len(ranks.datasets) + ("lrr" if improvements else ""),
        rows=tuple(rows),
        caption=tuple(_caption(ranks, metric, improvements)),
        notes=((LOST, note),) if lost else (),
    )


def _improvement(found: Improvement | None) -> tuple[Cell, ...]:
    if found is None:
        return (Cell(NONE),) * 3
    bounds = found.interval
    return (
        Cell(found.baseline),
        Cell(f"{found.probability:.2f}"),
        Cell(f"[{bounds.low:.2f}, {bounds.high:.2f}]" if bounds else NONE),
    )


def _caption(ranks: DatasetRanks, metric: Metric, improvements: bool) -> list[str]:
    n, k = len(ranks.datasets), len(ranks.systems)
    first = f"Ranks of {k} systems by mean {metric.label} on {n} datasets (1 is the best)"
    if ranks.test is None:
        first += "; no test with fewer than 3 datasets or 3 systems"
    else:
        first += (
            f"; Friedman test: χ² = {ranks.test.statistic:.2f}, p = {probability(ranks.test.p)}; "
            f"Nemenyi critical difference at 5%: {ranks.test.critical_difference:.2f}"
        )
    if ranks.excluded:
        first += f"; without {labels.join_names(ranks.excluded)}, not scored on every dataset"
    if not improvements:
        return [first]
    return [
        first,
        "P(improvement): probability that a run scores higher than one of the baseline, mean over "
        "datasets; its bootstrap interval over seeds is too narrow with fewer than 10 seeds, and "
        "missing where all bootstrap samples agree",
    ]
