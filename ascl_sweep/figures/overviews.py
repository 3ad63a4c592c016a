"""Figures of a sweep as a whole: all parameters at once, which of them matter, what arms cost."""

from collections.abc import Mapping, Sequence

from ascl_sweep import labels, stats
from ascl_sweep.figures.panels import Figure, Panel, Parallel, Series
from ascl_sweep.figures.shown import (
    HOLDOUT,
    Scored,
    Shown,
    around,
    axes,
    complete_trials,
    counted,
    is_wide,
    measured,
    name,
    number,
    scored_arms,
    scored_on,
    spread,
)
from ascl_sweep.ledger import Scalar
from ascl_sweep.report.report import SweepReport

PATHS = 300  # configurations in parallel coordinates


def parallel(report: SweepReport) -> Figure | None:
    """Each configuration as a line across all parameters: of a search, or of a table of many."""
    complete: list[Scored] = [(trial.values, score) for trial, score in complete_trials(report)]
    what, label, least = "complete trials on the holdout, one seed each", HOLDOUT, 2
    if not complete and report.table is not None:
        complete = [(arm.values, arm.mean) for arm in scored_arms(report) if arm.mean is not None]
        what, label, least = f"arms on {scored_on(report)}", measured(report.table), 3
    keys = [k for k in axes(report) if len({values.get(k) for values, _ in complete}) > 1]
    if len(keys) < least or len(complete) < 3:
        return None
    best = sorted(complete, key=lambda found: found[1])[::-1]
    shown = spread(best, PATHS)
    wide = {
        key
        for key in keys
        if is_wide(x for values, _ in shown if (x := number(values.get(key))) is not None)
    }
    some = f"; {len(shown)} of them, evenly from the best to the worst" * (len(shown) < len(best))
    return Figure(
        name(report, "parallel"),
        "All parameters together",
        f"Each line is a configuration, coloured by its score: n = {len(best)} {what}{some}. "
        "–: the parameter has no part in it.",
        (
            Panel(
                parallel=Parallel(
                    axes=tuple(labels.name_of(key) for key in keys),
                    values=tuple(
                        tuple(_shown_value(key, values.get(key)) for key in keys)
                        for values, _ in shown
                    ),
                    score=tuple(score for _, score in shown),
                    label=label,
                    log=tuple(labels.name_of(key) for key in keys if key in wide),
                )
            ),
        ),
    )


def _shown_value(key: str, value: Scalar) -> float | str | None:
    found = number(value)
    return found if found is not None or value is None else labels.value_label(key, value)


def importances(report: SweepReport) -> Figure | None:
    """What share of a search's success hangs on each parameter."""
    if report.search is None or not report.search.importances:
        return None
    keys, shares = zip(*report.search.importances, strict=True)
    n = len(complete_trials(report))
    bars = Series("importance", keys, tuple(100 * share for share in shares), kind="bars")
    return Figure(
        name(report, "importances"),
        "What matters",
        f"Importance of each parameter for reaching the best trials (PED-ANOVA, n = {n} complete "
        "trials, one seed, on the holdout); the shares add up to 100%.",
        (Panel("", "importance (%)", "", (bars,)),),
    )


def cost(report: SweepReport, shown: Sequence[Shown], done: Mapping[str, float]) -> Figure | None:
    """The score of each arm against the device-hours of its runs (`done`: those of each)."""
    panels, counts = [], []
    for part in shown:
        arms = [(a, label) for a, label in zip(part.arms, part.names, strict=True) if a.n]
        series = []
        for arm, label in arms:
            hours, sd = stats.mean_sd([done[run_id] for run_id in arm.run_ids if run_id in done])
            low, high = around([arm])
            spent = f"{hours:.3g} ± {sd:.2g} device-hours" if sd else f"{hours:.3g} device-hours"
            text = (f"{spent}, n = {arm.n}",)
            series.append(Series(label, (hours,), (arm.mean,), low, high, "points", text))
        if len(series) > 1:
            assert report.table is not None
            counts += [arm.n for arm, _ in arms]
            log = is_wide(s.x[0] for s in series)  # type: ignore[misc]
            y_label = measured(report.table)
            panel = Panel(part.dataset, "device-hours per run", y_label, tuple(series), log_x=log)
            panels.append(panel)
    if not panels:
        return None
    bars = "one seed per arm" if max(counts) == 1 else f"bars ± 1 sd, {counted(counts)} per arm"
    some = "; the best arms and the baseline" if any(len(p.arms) < p.of for p in shown) else ""
    return Figure(
        name(report, "cost"),
        "Score against cost",
        f"Mean score on {scored_on(report)} against the mean device-hours of the complete runs; "
        f"{bars}{some}.",
        tuple(panels),
    )
