"""Group a sweep's runs into arms, score them and name them.

Only complete runs count: a stopped run has no final score.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import yaml

from ascl.keys import keys_outside_arms
from ascl_sweep.analysis import labels, stats
from ascl_sweep.analysis.comparison import Arm, Options, StepCost, base_values, matches
from ascl_sweep.contracts import UNSCORED_STATES, RunRow, RunState, Scalar, SweepRow
from ascl_sweep.errors import UsageError
from ascl_sweep.spec.metrics import METRICS, Metric
from ascl_sweep.spec.summary import SweepSummary

NOT_IN_ARM = keys_outside_arms()
FEW = 3  # keys besides the method's that an arm's name may list
LastEpochs = Mapping[str, Mapping[str, float | None]]
"""Last-epoch metrics by run id, for metrics that are not columns of the runs table."""


@dataclass(frozen=True)
class RunGroup:
    """The runs of one arm."""

    values: Mapping[str, Scalar]
    """Values of the keys that differ between arms, without idle keys."""
    rows: tuple[RunRow, ...]

    @property
    def config(self) -> Mapping[str, Scalar]:
        return self.rows[0].config


def group_into_arms(
    rows: Iterable[RunRow], axes: Sequence[str] = (), ignore: Collection[str] = ()
) -> list[RunGroup]:
    """Group runs that differ only in the seed and in keys that cannot change results.

    Args:
        rows: The runs to group.
        axes: The keys that the sweep varies; they come first in the groups' values.
        ignore: More keys that do not separate arms.

    Returns:
        The groups, in the order of their first runs. A single group has its values at `axes`, so
        that its name says what it is although there is nothing to distinguish it from.
    """
    rows = list(rows)
    varied = [key for key in varied_keys(rows, axes) if key not in ignore]
    groups: dict[tuple[tuple[str, Scalar], ...], list[RunRow]] = {}
    for row in rows:
        values = {k: row.config[k] for k in varied if k in row.config and k not in row.idle}
        groups.setdefault(tuple(values.items()), []).append(row)
    if len(groups) == 1:
        first = rows[0]
        active = first.config.keys() - first.idle - NOT_IN_ARM
        return [RunGroup({k: first.config[k] for k in axes if k in active}, tuple(rows))]
    return [RunGroup(dict(key), tuple(group)) for key, group in groups.items()]


def varied_keys(rows: Sequence[RunRow], axes: Sequence[str]) -> list[str]:
    """List the keys that differ between runs, the sweep's axes first. Idle keys do not count."""
    seen: dict[str, set[Scalar]] = {}
    having: Counter[str] = Counter()
    for row in rows:
        active = row.config.keys() - row.idle
        having.update(active)
        for key in active:
            seen.setdefault(key, set()).add(row.config[key])
    # A key that only some runs have separates them from the others.
    varied = {k for k in seen if len(seen[k]) > 1 or having[k] < len(rows)} - NOT_IN_ARM
    return [*(k for k in axes if k in varied), *sorted(varied - set(axes))]


def build_arms(
    rows: Sequence[RunRow],
    digest: SweepSummary,
    metric: Metric,
    options: Options,
    last_epochs: LastEpochs,
) -> list[Arm]:
    """Score and name a sweep's arms, in the order of the sweep file.

    Args:
        rows: The final runs of the sweep.
        digest: The sweep's axes, base values, seeds and run order.
        metric: The metric that scores the arms.
        options: The epoch to score.
        last_epochs: Last-epoch metrics of each run.

    Returns:
        The arms, without comparisons.
    """
    groups = group_into_arms(rows, digest.axes)
    arms = [_score_arm(group, metric, options, last_epochs, digest) for group in groups]
    if len({group.config.get("method.name") for group in groups}) > 1:
        costs = [_cost(group.rows) for group in groups]
        arms = [replace(arm, cost=cost) for arm, cost in zip(arms, costs, strict=True)]
    # Sort by planned order: a run shared with an earlier sweep is older than arms listed first.
    places = {run_id: place for place, run_id in enumerate(digest.order)}
    arms.sort(key=lambda arm: min(places.get(run_id, len(places)) for run_id in arm.run_ids))
    return _name_arms(arms, digest)


def _score_arm(
    group: RunGroup,
    metric: Metric,
    options: Options,
    last_epochs: LastEpochs,
    digest: SweepSummary,
) -> Arm:
    scores: dict[int, float] = {}
    unscored: dict[int, RunState] = {}
    for row in group.rows:
        value = _score(row, metric, options, last_epochs)
        if row.state == RunState.DONE and value is not None and math.isfinite(value):
            scores[seed_of(row)] = value * (100 if metric.percent else 1)
        else:
            lost = value is not None and not math.isfinite(value)
            unscored[seed_of(row)] = RunState.DIVERGED if lost else row.state
    values = list(scores.values())
    # Seeds of later looks are planned, and have rows, only where a comparison needs them.
    planned = digest.seeds[: digest.looks[0]] if digest.looks else digest.seeds
    mean, sd = stats.mean_sd(values) if values else (None, None)
    states = Counter(row.state for row in group.rows if row.state in UNSCORED_STATES)
    return Arm(
        label="",
        values=group.values,
        config=group.config,
        idle=group.rows[0].idle,
        scores=dict(sorted(scores.items())),
        planned=len({*planned, *map(seed_of, group.rows)}),
        mean=mean,
        sd=sd,
        interval=stats.interval_of_mean(values) if values else None,
        states=dict(states),
        unscored={seed: state for seed, state in unscored.items() if seed not in scores},
        epochs=sum(row.epochs for row in group.rows),
        device_hours=sum(row.device_hours for row in group.rows),
        run_ids=tuple(row.run_id for row in group.rows),
    )


def _cost(rows: Sequence[RunRow]) -> StepCost:
    times = [
        1000 * float(row.config["batch_size"] or 0) / row.images_per_second
        for row in rows
        if row.state == RunState.DONE and row.images_per_second and "batch_size" in row.config
    ]
    memory = [row.peak_memory_gb for row in rows if row.peak_memory_gb is not None]
    return StepCost(
        backprops=next((r.backprops for r in rows if r.backprops is not None), None),
        ema=next((r.ema for r in rows if r.ema is not None), None),
        step_ms=sum(times) / len(times) if times else None,
        memory_gb=max(memory, default=None),
    )


def seed_of(row: RunRow) -> int:
    return int(row.config.get("seed") or 0)


def _score(row: RunRow, metric: Metric, options: Options, last_epochs: LastEpochs) -> float | None:
    column = metric.last if options.epoch == "last" else metric.best
    if column is None:
        return last_epochs.get(row.run_id, {}).get(metric.name)
    value: float | None = getattr(row, column)
    return value


def baseline_values(
    asked: Mapping[str, Scalar] | None, arms: Sequence[Arm], digest: SweepSummary
) -> Mapping[str, Scalar]:
    """Return the config values that identify the baseline: those asked for, or else the base's.

    A key that separates no arms, such as `preset`, names several arms. If one of them is the
    sweep's base, it is the baseline.
    """
    base = base_values(digest, arms)
    if not asked or not asked.keys() & NOT_IN_ARM:
        return asked or base
    both = {**base, **asked}
    return both if any(matches(arm, both) for arm in arms) else asked


# ---------------------------------------------------------------- names


def naming_keys(arms: Sequence[Arm], axes: Sequence[str]) -> list[str]:
    """Return the keys that name arms: the sweep's axes, and others needed for unique names."""
    varied = list(dict.fromkeys(key for arm in arms for key in arm.values))
    keys = [key for key in axes if key in varied] or varied[:1]
    distinct = len({_name(arm, keys) for arm in arms})
    for key in varied:
        if distinct == len(arms):
            break
        better = len({_name(arm, [*keys, key]) for arm in arms})
        if better > distinct:
            keys, distinct = [*keys, key], better
    return keys


def _name(arm: Arm, keys: Sequence[str]) -> str:
    return labels.system_arm(arm.config, [k for k in keys if k in arm.values])


def label_keys(arm: Arm, keys: Sequence[str], digest: SweepSummary) -> list[str]:
    """Return the keys that name an arm; if many, only those that differ from the sweep's base."""
    own = [key for key in keys if key in arm.values]
    if digest.search or sum(key not in labels.SYSTEM_KEYS for key in own) <= FEW:
        return own
    return [k for k in own if k in labels.SYSTEM_KEYS or arm.config[k] != digest.base.get(k)]


def _name_arms(arms: list[Arm], digest: SweepSummary) -> list[Arm]:
    keys = naming_keys(arms, digest.axes)
    names = [_name(arm, label_keys(arm, keys, digest)) for arm in arms]
    twice = {name for name, count in Counter(names).items() if count > 1}  # names have six digits
    return [
        replace(arm, label=f"{name} ({arm.run_ids[0]})" if name in twice else name)
        for arm, name in zip(arms, names, strict=True)
    ]


def runs_to_select_from(rows: Iterable[RunRow], sweeps: Iterable[SweepRow]) -> list[RunRow]:
    """Return one complete run per arm, as a search would compare them.

    Of a search these are the complete runs of its search phase; its finalists are selected already.
    Of another sweep they are the runs of one seed: the smallest of those with the most arms. With
    several seeds per arm, the best run would be the luckiest seed.
    """
    rows = list(rows)
    chosen: dict[str, RunRow] = {}
    for sweep in sweeps:
        digest = SweepSummary.of_json(sweep.digest)
        phase = "search" if digest.search else "final"
        own = [
            row
            for row in rows
            if sweep.name in row.sweeps and row.scale == sweep.scale and row.phase == phase
            if row.state == RunState.DONE
        ]
        arms = Counter(map(seed_of, own))
        seed = min(arms, key=lambda seed: (-arms[seed], seed), default=0)
        chosen |= {row.run_id: row for row in own if seed_of(row) == seed}
    return list(chosen.values())


# ---------------------------------------------------------------- the best arm


@dataclass(frozen=True)
class BestArm:
    """An arm as `ascl-sweep best` shows it. Accuracies are fractions of 1."""

    config: Mapping[str, Scalar]
    differs: Mapping[str, Scalar]
    """Values of the keys that differ between the sweep's arms."""
    mean: float
    sd: float | None
    n: int
    scored: str


def metric_to_rank(digest: SweepSummary) -> str:
    """Return the metric that ranks a sweep's arms: its table's, but kNN for a search."""
    metric = str((digest.table or {}).get("metric") or "knn_top1")
    return metric if not digest.search and METRICS[metric].best else "knn_top1"


def best_arms(
    rows: Iterable[RunRow],
    sweep: str,
    metric: str,
    scale: str = "full",
    axes: Sequence[str] = (),
    looks: Sequence[int] = (),
) -> list[BestArm]:
    """Rank a sweep's arms, best first. A search is ranked on the holdout, never on test.

    Args:
        rows: Runs, also those of other sweeps.
        sweep: Name of the sweep.
        metric: Name of the metric to rank by.
        scale: Only runs of this scale count.
        axes: The keys that the sweep varies.
        looks: Numbers of seeds at which the sweep decides; the first suffices for an arm.

    Returns:
        The arms with complete runs; arms with fewer seeds come last. Of a search, only trials
        with its current number of epochs count.
    """
    known = [m.name for m in METRICS.values() if m.best]
    if metric not in known:
        raise UsageError(f"--metric must be one of {', '.join(known)}, got {metric!r}")
    own = [row for row in rows if sweep in row.sweeps and row.scale == scale]
    done = [row for row in own if row.state == RunState.DONE]
    searched = [row for row in own if row.phase == "search"]
    if searched:
        newest = max(searched, key=lambda row: row.created or 0).config.get("epochs")
        searched = [r for r in done if r.phase == "search" and r.config.get("epochs") == newest]
    arms = []
    # Search runs and final runs of the same configuration differ in the holdout.
    for group in group_into_arms(searched or done, axes, ignore=("data.holdout",)):
        column = METRICS[metric].last or ""
        scores = [getattr(row, column) for row in group.rows]
        values = [score for score in scores if score is not None and math.isfinite(score)]
        if values:
            arms.append(
                BestArm(
                    config=group.config,
                    differs=group.values,
                    mean=fmean(values),
                    sd=stdev(values) if len(values) > 1 else None,
                    n=len(values),
                    scored="holdout" if group.config.get("data.holdout") else "test",
                )
            )
    enough = looks[0] if looks else max((arm.n for arm in arms), default=0)
    return sorted(arms, key=lambda arm: (-min(arm.n, enough), -arm.mean))


def export_yaml(arm: BestArm, path: Path) -> None:
    """Write an arm as a config for `ascl-sweep train` that uses the full training set."""
    tree: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {"data": {}}
    for key, value in arm.config.items():
        section, _, name = key.rpartition(".")
        # `RunConfig.flat_values` writes a method's lists as JSON.
        is_list = section == "method" and str(value).startswith("[")
        place = sections.setdefault(section, {}) if section else tree
        place[name] = json.loads(str(value)) if is_list else value
    sections["data"]["holdout"] = 0.0
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**tree, **sections}, sort_keys=False), encoding="utf-8")
