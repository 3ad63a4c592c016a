"""Ablation tables: from the ledger's rows to one frozen value that every format is drawn from.

The rules are those a reviewer would ask for. Only complete runs count; arms are compared seed by
seed; every mean has its n; what is not alike is marked.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ascl.faults import unknown_name
from ascl_sweep import labels, paper, stats
from ascl_sweep.digest import Digest
from ascl_sweep.ledger import RunRow, Scalar, SweepRow
from ascl_sweep.report.ablation import METRICS, AblationTable, Arm, Grid, Metric, Options, Ordering
from ascl_sweep.report.alike import marked
from ascl_sweep.report.arms import (
    FEW,
    LastEpochs,
    arms_of,
    compared,
    naming_keys,
    seed_of,
    some,
    telling_keys,
    the_base,
)
from ascl_sweep.report.beside import beside_paper


def table_of(
    sweep: SweepRow,
    rows: Iterable[RunRow],
    options: Options | None = None,
    last_epochs: LastEpochs | None = None,
) -> AblationTable | None:
    """The table of a sweep's complete runs; None if it is a search that has none for a table."""
    options = options or Options()
    check(options)
    digest = Digest.of_json(sweep.digest)
    theirs = [row for row in rows if row.scale == sweep.scale and sweep.name in row.sweeps]
    own = [row for row in theirs if row.phase == "final"]
    if not own:
        return None
    own.sort(key=lambda row: (row.created or 0.0, row.run_id))
    asked = digest.table or {}
    _check_keys(asked, own, sweep.name)
    metric = _metric(options.metric or asked.get("metric") or _measured(own), options)
    remarks: list[str] = []
    arms = arms_of(own, digest, metric, options, last_epochs or {})
    baseline = options.baseline or asked.get("baseline") or the_base(digest, arms)
    arms = compared(arms, baseline, metric, options, remarks)
    arms, notes = marked(arms, own, digest, metric)
    printed = paper.table(asked["paper"]) if asked.get("paper") else None
    orderings: tuple[Ordering, ...] = ()
    like_the_paper = False
    if printed:
        arms, notes, orderings, like_the_paper = beside_paper(
            arms, notes, printed, metric, sweep, remarks
        )
    grid = _grid(arms, asked, digest, metric, remarks)
    remarks += _on_gaps(arms, own, metric, options)
    remarks += _on_selection([row for row in theirs if row.phase == "search"])
    return AblationTable(
        sweep=sweep.name,
        scale=sweep.scale,
        metric=metric,
        epoch=options.epoch,
        arms=tuple(arms),
        grid=grid,
        caption=tuple(_caption(arms, own, metric, options, sweep, baseline)),
        notes=notes,
        remarks=tuple(remarks),
        region=options.region,
        paper=printed.title if printed else None,
        like_the_paper=like_the_paper,
        orderings=orderings,
    )


def check(options: Options) -> None:
    """Refuse what no table can be made of; raises ValueError."""
    if options.epoch not in ("last", "best"):
        raise ValueError(f"--epoch must be last or best, got {options.epoch!r}")
    if not 0 <= options.region < math.inf:
        raise ValueError(f"--region must be 0 points or more, got {options.region}")
    if options.metric is not None:
        _metric(options.metric, options)


def _metric(name: str, options: Options) -> Metric:
    if name not in METRICS:
        raise ValueError(unknown_name("metric", name, METRICS))
    metric = METRICS[name]
    if options.epoch == "best" and metric.best is None:
        known = ", ".join(m.name for m in METRICS.values() if m.best)
        raise ValueError(f"--epoch best goes with {known}, got the metric {name}")
    return metric


def _measured(rows: Sequence[RunRow]) -> str:
    return "probe_top1" if any(row.probe_top1 is not None for row in rows) else "knn_top1"


def _check_keys(table: Mapping[str, Any], rows: Sequence[RunRow], sweep: str) -> None:
    for place in ("rows", "columns"):
        key = table.get(place)
        if key and not any(key in row.config for row in rows):
            raise ValueError(
                f"table.{place} must be a key that runs have, and no run of {sweep} has {key!r}; "
                "mend the sweep file and call `ascl-sweep run` on it, which trains nothing twice"
            )


# ---------------------------------------------------------------- the compact shape


def _grid(
    arms: Sequence[Arm],
    table: Mapping[str, Any],
    digest: Digest,
    metric: Metric,
    remarks: list[str],
) -> Grid:
    """Lay the arms out as the file asks: one key down, one across, all others down too."""
    across: str = table.get("columns") or ""
    named = naming_keys(arms, digest.axes)
    down = [k for k in dict.fromkeys([table.get("rows") or "", *named]) if k and k != across]
    columns = list(dict.fromkeys(arm.config[across] for arm in arms if _has(arm, across)))
    number = {value: place for place, value in enumerate(columns)}
    rows: dict[str, int] = {}
    places: dict[tuple[int, int], int] = {}
    spanning: dict[str, None] = {}
    for i, arm in enumerate(arms):
        varied = any(key in arm.values for key in down)
        keys = telling_keys(arm, down, digest) if varied else [k for k in down if k in arm.config]
        title = labels.system_arm(arm.config, keys)
        spots = [number[arm.config[across]]] if _has(arm, across) else range(len(columns))
        if columns and not _has(arm, across):
            spanning[title] = None
        spots = spots if columns else [0]
        if title in rows and any((rows[title], column) in places for column in spots):
            title = f"{title} ({arm.run_ids[0]})"  # arms must not hide each other
        row = rows.setdefault(title, len(rows))
        places |= {(row, column): i for column in spots}
    if spanning:
        name = labels.name_of(across)
        remarks.append(f"{name} has no part in {some(spanning)}: one arm, in every column.")
    titles = dict.fromkeys(labels.title_of(key) for key in down)
    many = sum(key not in labels.SYSTEM_KEYS for key in down) > FEW
    corner = "arm" if many or not titles else " / ".join(titles)
    shown = tuple(labels.key_value(across, value) for value in columns)
    return Grid(
        corner=corner,
        rows=tuple(rows),
        columns=shown or (f"{metric.label}{f' ({metric.unit})' if metric.unit else ''}",),
        places=places,
    )


def _has(arm: Arm, key: str) -> bool:
    """Whether a key has a part in an arm."""
    return key in arm.config and key not in arm.idle


# ---------------------------------------------------------------- words


def _on_gaps(
    arms: Sequence[Arm], rows: Sequence[RunRow], metric: Metric, options: Options
) -> Iterator[str]:
    """What is missing, and what cannot be said for want of it."""
    most = max(arm.n for arm in arms)
    done = {row.run_id: seed_of(row) for row in rows if row.state == "done"}
    lacking = [a.label for a in arms if {done.get(i) for i in a.run_ids} - {None, *a.scores}]
    if not done:
        yield "No run of this sweep is complete: there are no numbers yet."
    elif lacking:
        best = " at its best epoch" if options.epoch == "best" else ""
        yield (
            f"{some(lacking)}: runs are complete without a number for {metric.label}{best}; "
            "--metric shows another."
        )
    if most == 1:
        yield (
            "One seed per arm: no spread, no interval, no test, and so no verdict; three or more "
            "seeds give them."
        )
    unpaired = [a.label for a in arms if a.comparison and a.comparison.unpaired]
    if unpaired:
        yield (
            f"{some(unpaired)}: seeds that are complete only there or only in the baseline are in "
            "the means and left out of Δ, wins and p."
        )
    missing = [f"{a.label} ({a.n}/{a.planned})" for a in arms if a.n < a.planned]
    if missing and done:
        yield f"Incomplete arms, seeds done/planned: {some(missing)}."


def _on_selection(trials: Sequence[RunRow]) -> Iterator[str]:
    """How many configurations each system was given before its finalists were chosen (rule 10)."""
    tried = Counter(labels.system(row.config) for row in trials if row.epochs)
    if tried:
        each = ", ".join(f"{system} {count}" for system, count in tried.items())
        yield (
            "The arms are finalists of a search on a holdout with one seed; configurations tried "
            f"there: {each}."
        )


def _caption(
    arms: Sequence[Arm],
    rows: Sequence[RunRow],
    metric: Metric,
    options: Options,
    sweep: SweepRow,
    baseline: Mapping[str, Scalar],
) -> Iterator[str]:
    """What the numbers are (rule 8)."""
    done = [row for row in rows if row.state == "done"] or list(rows)
    shares = {row.config.get("data.holdout") or 0 for row in done}
    split = "test" if shares == {0} else "the holdout" if 0 not in shares else "test or holdout"
    data = _all("data.name", done)
    scale = " (laptop scale: small data, net and epochs)" if sweep.scale == "laptop" else ""
    yield (
        f"{metric.label}{f', {metric.unit}' if metric.unit else ''}, on {split} of {data}{scale}, "
        "mean ± sd over seeds; in brackets n, or n/planned where seeds are missing"
    )
    if metric.name.startswith("knn"):
        temperature = _all("eval.knn_temperature", done)
        yield (
            f"kNN: k = {_all('eval.knn_k', done)}, weight exp(cos/{temperature}), exact, "
            "bank of the training labels"
        )
    elif metric.name.startswith("probe"):
        yield (
            f"linear probe: {_all('eval.probe', done)} protocol, {_all('eval.probe_epochs', done)} "
            "epochs"
        )
    which = (
        "the last epoch" if options.epoch == "last" else "the best epoch, chosen on what is scored"
    )
    yield (
        f"{which} of {_all('epochs', done)}; batch {_all('batch_size', done)}, "
        f"{_all('runtime.precision', done)}"
    )
    if any(arm.cost for arm in arms):
        yield (
            "BackProp: gradients through the encoder per image; EMA: whether a momentum encoder "
            "goes along"
        )
    if any(arm.comparison for arm in arms):
        yield "; ".join(_about_comparisons(arms, metric, options, baseline))
    facts = {
        "commit": sorted({(r.commit or "?")[:7] + ("+" if r.dirty else "") for r in done}),
        "ascl-sweep": sorted({r.ascl_sweep for r in done if r.ascl_sweep}),
        "torch": sorted({r.torch for r in done if r.torch}),
        "ray": sorted({r.ray for r in done if r.ray}),
        "device": sorted({r.device for r in done if r.device}),
    }
    yield ", ".join(f"{name} {', '.join(values)}" for name, values in facts.items() if values)


def _about_comparisons(
    arms: Sequence[Arm], metric: Metric, options: Options, baseline: Mapping[str, Scalar]
) -> Iterator[str]:
    found = [arm.comparison for arm in arms if arm.comparison]
    named = {comparison.baseline for comparison in found}
    against = named.pop() if len(named) == 1 else f"{labels.arm(baseline)}, all else alike"
    yield f"Δ: difference from the baseline ({against}), paired by seed"
    tests = sum(comparison.result.p is not None for comparison in found)
    if not tests:
        return
    bootstrap = any(comparison.bootstrap for comparison in found)
    also = ", and a BCa bootstrap where ten or more seeds are paired" if bootstrap else ""
    yield f"95% interval: paired t{also}"
    family = f"Holm-corrected over {tests} comparisons" if tests > 1 else "one comparison"
    yield f"p: two-sided paired t, {family}"
    pairs = max(comparison.result.n for comparison in found)
    yield f"a sign-flip test with {pairs} pairs cannot go below p = {stats.smallest_p(pairs):.2g}"
    region = f"equivalent within ±{options.region:g} points" if metric.percent else "no equivalence"
    yield f"verdicts at 5%, {region}; bold: better"


def _all(key: str, rows: Sequence[RunRow]) -> str:
    """A config key's values among runs, for a caption."""
    values = dict.fromkeys(row.config.get(key) for row in rows)
    return ", ".join("–" if v is None else labels.value_label(key, v) for v in values)
