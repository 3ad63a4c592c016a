"""Captions of tables: what is shown, how it is compared, and which software made the runs."""

from collections.abc import Mapping, Sequence

from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import Arm, Design, Options
from ascl_sweep.contracts import RunRow, RunState, Scalar
from ascl_sweep.spec.metrics import Metric

_PROBES = {"paper": "on augmented views (paper protocol)", "cached": "on cached features"}


def build_caption(
    arms: Sequence[Arm],
    rows: Sequence[RunRow],
    metric: Metric,
    options: Options,
    scale: str,
    baseline: Mapping[str, Scalar],
    design: Design,
) -> tuple[str, ...]:
    """Describe a table in at most two sentences.

    Args:
        arms: The arms of the table, compared.
        rows: The runs of the arms.
        metric: The metric of the scores.
        options: Epoch and region of equivalence.
        scale: Scale of the sweep.
        baseline: The config values of the baseline.
        design: The plan of the comparisons.

    Returns:
        What is shown and how it is compared, without final periods.
    """
    shown = _describe_scores(arms, rows, metric, options, scale)
    compared = _describe_comparisons(arms, metric, options, baseline, design)
    return (shown, compared) if compared else (shown,)


def common_n(arms: Sequence[Arm]) -> tuple[int, int] | None:
    """Return the number of complete and planned seeds if they are equal for all arms, and not 0."""
    counts = {(arm.n, arm.planned) for arm in arms}
    n, planned = counts.pop()
    return (n, planned) if n and not counts else None


def _describe_scores(
    arms: Sequence[Arm], rows: Sequence[RunRow], metric: Metric, options: Options, scale: str
) -> str:
    done = _complete(rows)
    shares = {row.config.get("data.holdout") or 0 for row in done}
    split = "test set" if shares == {0} else "holdout" if 0 not in shares else "test set or holdout"
    plural = "s" if len({row.config.get("data.name") for row in done}) > 1 else ""
    unit = f" in {metric.unit}" if metric.unit else ""
    epochs = _all("epochs", done, " or ")
    last = options.epoch == "last"
    when = f"after {epochs} epochs" if last else f"at the best of {epochs} epochs on these images"
    costs = "; BackProp: encoder gradients per image, EMA: momentum encoder"
    return "".join(
        (
            f"Mean ± SD{unit} ({_count(arms)}) on the {_all('data.name', done)} {split}{plural} ",
            f"{when} (batch {_all('batch_size', done)}, {_all('runtime.precision', done)})",
            _describe_protocol(done, metric),
            " at laptop scale (reduced data, network and epochs)" if scale == "laptop" else "",
            costs if any(arm.cost for arm in arms) else "",
        )
    )


def _describe_protocol(done: Sequence[RunRow], metric: Metric) -> str:
    if metric.name.startswith("knn"):
        temperature = _all("eval.knn_temperature", done)
        return f", kNN with k = {_all('eval.knn_k', done)} and weights exp(cos/{temperature})"
    if metric.name.startswith("probe"):
        probes = dict.fromkeys(str(row.config.get("eval.probe")) for row in done)
        protocol = " or ".join(_PROBES.get(probe, probe) for probe in probes)
        return f", probe {protocol} for {_all('eval.probe_epochs', done)} epochs"
    return ""


def _count(arms: Sequence[Arm]) -> str:
    common = common_n(arms)
    if common is None:
        return "number of seeds in parentheses"
    n, planned = common
    of = "" if n == planned else f" of {planned}"
    return f"n = {n}{of} seed{'' if planned == 1 else 's'}"


def _describe_comparisons(
    arms: Sequence[Arm],
    metric: Metric,
    options: Options,
    baseline: Mapping[str, Scalar],
    design: Design,
) -> str:
    found = [arm.comparison for arm in arms if arm.comparison]
    if not found:
        return ""
    named = {comparison.baseline for comparison in found}
    against = named.pop() if len(named) == 1 else f"{labels.conditions(baseline)} (all else equal)"
    if not any(c.inference.p is not None for c in found):
        return f"Differences are from {against}, paired by seed, without a test"
    family = max(c.inference.family for c in found)
    over = f", corrected for {family} planned comparisons" if family > 1 else ""
    error = f" at an error of {percent(design.alpha)}" if design.extensions else ""
    within = f", with equivalence within ±{options.region:g} points" if metric.percent else ""
    looks = ""
    if design.looks:
        counts = ", ".join(map(str, design.looks))
        looks = f", at looks after {counts} seeds that share the {percent(design.alpha)} error"
    return (
        f"Compared with {against} by moderated t-tests paired by seed{over}{error}{looks}{within}; "
        "intervals cover training seeds only"
    )


def describe_extensions(design: Design) -> str:
    """Describe changes of the seeds after results were known in a sentence."""
    times = "once" if design.extensions == 1 else f"{design.extensions} times"
    total = design.total_alpha
    earlier = "the table before" if design.extensions == 1 else "the tables before"
    bound = "" if total is None else f" (with {earlier}: at most {percent(total)})"
    return (
        f"The plan of the seeds was changed {times} after results were known, so this table has an "
        f"error of {percent(design.alpha)}{bound}."
    )


def percent(alpha: float) -> str:
    return f"{100 * alpha:.3g}%"


def describe_provenance(rows: Sequence[RunRow]) -> str:
    """Describe the software and hardware of a table's complete runs, without a final period."""
    done = _complete(rows)
    facts = {
        "commit": sorted({(r.commit or "?")[:7] + ("+" if r.dirty else "") for r in done}),
        "ascl-sweep": sorted({r.ascl_sweep for r in done if r.ascl_sweep}),
        "torch": sorted({r.torch for r in done if r.torch}),
        "ray": sorted({r.ray for r in done if r.ray}),
        "device": sorted({r.device for r in done if r.device}),
    }
    shown = (f"{name} {', '.join(values)}" for name, values in facts.items() if values)
    dirty = " (+: with uncommitted changes)" if any(r.dirty for r in done) else ""
    return f"Software and hardware: {', '.join(shown)}{dirty}"


def _complete(rows: Sequence[RunRow]) -> list[RunRow]:
    return [row for row in rows if row.state == RunState.DONE] or list(rows)


def _all(key: str, rows: Sequence[RunRow], separator: str = ", ") -> str:
    """Join a config key's distinct values among runs."""
    values = dict.fromkeys(row.config.get(key) for row in rows)
    return separator.join("–" if v is None else labels.value_label(key, v) for v in values)
