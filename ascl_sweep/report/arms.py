"""From a sweep's runs to its arms: grouped, scored, named, and compared seed by seed.

Only complete runs count: a run that was stopped has no final number.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ascl_sweep import labels, stats
from ascl_sweep.digest import Digest
from ascl_sweep.ledger import RunRow, Scalar
from ascl_sweep.report.ablation import Arm, Comparison, Metric, Options, StepCost

OF_NO_ARM = ("seed", "data.root", "preset", "runtime.device")  # what identifies no configuration
DATA, METHOD = "data.name", "method.name"
FEW = 3  # keys beside the method's that a name has without being tiresome
MANY = 12  # arms that a sentence names before it counts the rest
BOOTSTRAPPED = 200  # comparisons above which their bootstraps would take seconds
ENDED_BADLY = ("stopped", "diverged", "failed", "lost")
LastEpochs = Mapping[str, Mapping[str, float | None]]
"""The metrics of each run's last epoch, for those that are no columns of runs."""


@dataclass(frozen=True)
class _Group:
    """An arm's runs before anything is computed of them."""

    values: Mapping[str, Scalar]
    rows: tuple[RunRow, ...]

    @property
    def first(self) -> RunRow:
        return self.rows[0]


def arms_of(
    rows: Sequence[RunRow],
    digest: Digest,
    metric: Metric,
    options: Options,
    last_epochs: LastEpochs,
) -> list[Arm]:
    """A sweep's arms in the order of its file, or else as they were planned, scored and named."""
    varied = varied_keys(rows, digest.axes)
    arms = [_arm(g, metric, options, last_epochs, digest) for g in _groups(rows, varied)]
    # A run that another sweep had planned before is older than the arms that stand before it.
    places = {run_id: place for place, run_id in enumerate(digest.order)}
    arms.sort(key=lambda arm: min(places.get(run_id, len(places)) for run_id in arm.run_ids))
    return _labelled(_with_costs(arms, rows), digest)


def varied_keys(rows: Sequence[RunRow], axes: Sequence[str]) -> list[str]:
    """The keys in which runs differ, the sweep's axes first; a key idle in a run does not count."""
    seen: dict[str, set[Any]] = {}
    having: Counter[str] = Counter()
    for row in rows:
        active = row.config.keys() - row.idle
        having.update(active)
        for key in active:
            seen.setdefault(key, set()).add(row.config[key])
    # A key that some runs lack sets them apart from those that have it.
    varied = {k for k in seen if len(seen[k]) > 1 or having[k] < len(rows)} - set(OF_NO_ARM)
    return [*(k for k in axes if k in varied), *sorted(varied - set(axes))]


def _groups(rows: Sequence[RunRow], varied: Sequence[str]) -> list[_Group]:
    groups: dict[Any, list[RunRow]] = {}
    for row in rows:
        values = _values(row, varied)
        groups.setdefault(tuple(values.items()), []).append(row)
    return [_Group(dict(key), tuple(group)) for key, group in groups.items()]


def _values(row: RunRow, keys: Sequence[str]) -> dict[str, Scalar]:
    return {k: row.config[k] for k in keys if k in row.config and k not in row.idle}


def _arm(
    group: _Group,
    metric: Metric,
    options: Options,
    last_epochs: LastEpochs,
    digest: Digest,
) -> Arm:
    scores: dict[int, float] = {}
    for row in group.rows:
        value = _score(row, metric, options, last_epochs)
        if row.state == "done" and value is not None and math.isfinite(value):
            scores[seed_of(row)] = value * (100 if metric.percent else 1)
    values = list(scores.values())
    mean, sd = stats.mean_sd(values) if values else (None, None)
    states = Counter(row.state for row in group.rows if row.state in ENDED_BADLY)
    return Arm(
        label="",
        values=group.values,
        config=group.first.config,
        idle=group.first.idle,
        scores=dict(sorted(scores.items())),
        planned=len({*digest.seeds, *map(seed_of, group.rows)}),
        mean=mean,
        sd=sd,
        interval=stats.interval_of_mean(values) if values else None,
        states=dict(states),
        epochs=sum(row.epochs for row in group.rows),
        device_hours=sum(row.device_hours for row in group.rows),
        run_ids=tuple(row.run_id for row in group.rows),
    )


def _with_costs(arms: list[Arm], rows: Sequence[RunRow]) -> list[Arm]:
    """What a step of each arm takes, where they are of several methods."""
    if len({arm.config.get(METHOD) for arm in arms}) < 2:
        return arms
    by_id = {row.run_id: row for row in rows}
    return [replace(arm, cost=_cost([by_id[i] for i in arm.run_ids])) for arm in arms]


def _cost(rows: Sequence[RunRow]) -> StepCost:
    times = [
        1000 * float(row.config["batch_size"] or 0) / row.images_per_second
        for row in rows
        if row.state == "done" and row.images_per_second and "batch_size" in row.config
    ]
    memory = [row.peak_memory_gb for row in rows if row.peak_memory_gb is not None]
    return StepCost(
        # Alike in all of them; an older version's rows have none.
        backprops=next((r.backprops for r in rows if r.backprops is not None), None),
        ema=next((r.ema for r in rows if r.ema is not None), None),
        step_ms=sum(times) / len(times) if times else None,
        memory_gb=max(memory, default=None),
    )


def seed_of(row: RunRow) -> int:
    return int(row.config.get("seed") or 0)


def _score(
    row: RunRow,
    metric: Metric,
    options: Options,
    last_epochs: LastEpochs,
) -> float | None:
    column = metric.last if options.epoch == "last" else metric.best
    if column is None:
        return last_epochs.get(row.run_id, {}).get(metric.name)
    value: float | None = getattr(row, column)
    return value


# ---------------------------------------------------------------- names


def naming_keys(arms: Sequence[Arm], axes: Sequence[str]) -> list[str]:
    """The keys that arms are named by: the sweep's axes, and those it takes to tell them apart."""
    varied = list(dict.fromkeys(key for arm in arms for key in arm.values))
    keys = [key for key in axes if key in varied] or varied[:1]
    told_apart = len({_name(arm, keys) for arm in arms})
    for key in varied:
        if told_apart == len(arms):
            break
        better = len({_name(arm, [*keys, key]) for arm in arms})
        if better > told_apart:
            keys, told_apart = [*keys, key], better
    return keys


def _name(arm: Arm, keys: Sequence[str]) -> str:
    return labels.system_arm(arm.config, [k for k in keys if k in arm.values])


def telling_keys(arm: Arm, keys: Sequence[str], digest: Digest) -> list[str]:
    """Those that an arm is named by: of many only where it departs from the sweep's base."""
    own = [key for key in keys if key in arm.values]
    if digest.search or sum(key not in labels.SYSTEM_KEYS for key in own) <= FEW:
        return own
    return [k for k in own if k in labels.SYSTEM_KEYS or arm.config[k] != digest.base.get(k)]


def _labelled(arms: list[Arm], digest: Digest) -> list[Arm]:
    keys = naming_keys(arms, digest.axes)
    names = [_name(arm, telling_keys(arm, keys, digest)) for arm in arms]
    twice = {name for name, count in Counter(names).items() if count > 1}  # in the seventh digit
    return [
        replace(arm, label=f"{name} ({arm.run_ids[0]})" if name in twice else name)
        for arm, name in zip(arms, names, strict=True)
    ]


# ---------------------------------------------------------------- comparisons


def the_base(digest: Digest, arms: Sequence[Arm]) -> Mapping[str, Scalar]:
    """The sweep's base, at the keys in which its arms differ; on whichever data."""
    varied = dict.fromkeys(key for arm in arms for key in arm.values if key != DATA)
    return {key: digest.base[key] for key in varied if key in digest.base}


def has(arm: Arm, wanted: Mapping[str, Scalar]) -> bool:
    """Whether an arm has these values; at a key that has no part in it any will do."""
    return all(_agree(arm, key, value) for key, value in wanted.items())


def _agree(arm: Arm, key: str, value: Scalar) -> bool:
    return key in arm.idle or (key in arm.config and _same(arm.config[key], value))


def _same(a: Scalar, b: Scalar) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _baselines(arms: Sequence[Arm], wanted: Mapping[str, Scalar]) -> list[Arm | None]:
    """For each arm the one with the baseline's values that is otherwise alike; else the only one.

    Never one on other data, whose scores are of another kind.
    """
    fitting: dict[Scalar, list[Arm]] = {}
    for arm in arms if wanted else ():
        if has(arm, wanted):
            fitting.setdefault(arm.config.get(DATA), []).append(arm)
    exactly: dict[frozenset[tuple[str, Scalar]], list[Arm]] = {}
    for found in fitting.values():
        for arm in found:
            exactly.setdefault(_rest(arm, wanted), []).append(arm)
    out = []
    for arm in arms:
        found = fitting.get(arm.config.get(DATA), [])
        # With many arms most have a baseline that agrees in every key: no need to try them all.
        alike = exactly.get(_rest(arm, wanted), [])
        if not alike:
            rest = {key: value for key, value in arm.values.items() if key not in wanted}
            alike = [a for a in found if has(a, rest)] or found
        out.append(alike[0] if len(alike) == 1 else None)
    return out


def _rest(arm: Arm, wanted: Mapping[str, Scalar]) -> frozenset[tuple[str, Scalar]]:
    return frozenset((key, value) for key, value in arm.values.items() if key not in wanted)


def compared(
    arms: list[Arm],
    wanted: Mapping[str, Scalar],
    metric: Metric,
    options: Options,
    remarks: list[str],
) -> list[Arm]:
    """Hold each arm against its baseline, seed by seed; Holm over all of them."""
    baselines = _baselines(arms, wanted)
    named = {id(baseline) for baseline in baselines if baseline is not None}
    pairs = list(zip(arms, baselines, strict=True))
    differences = [_differences(arm, baseline) for arm, baseline in pairs]
    results = [_paired(found, metric) if found else None for found in differences]
    if len(arms) > 1:
        remarks += _uncompared(pairs, results, wanted)
    corrected = stats.holm([result.p if result else None for result in results])
    region = options.region if metric.percent else 0.0
    few = sum(result is not None for result in results) <= BOOTSTRAPPED
    out = []
    for i, (arm, baseline) in enumerate(pairs):
        comparison, result, p = None, results[i], corrected[i]
        if result is not None and baseline is not None:
            comparison = Comparison(
                baseline=baseline.label,
                result=result,
                corrected_p=p,
                verdict=stats.verdict(result, p, region, higher_is_better=metric.higher_is_better),
                unpaired=tuple(sorted(arm.scores.keys() ^ baseline.scores.keys())),
                bootstrap=stats.bca(differences[i]) if few else None,
            )
        out.append(replace(arm, is_baseline=id(arm) in named, comparison=comparison))
    return out


def _differences(arm: Arm, baseline: Arm | None) -> list[float]:
    """Seed by seed; of seeds that only one of the two has, none."""
    if baseline is None or baseline is arm:
        return []
    common = sorted(arm.scores.keys() & baseline.scores.keys())
    return [arm.scores[seed] - baseline.scores[seed] for seed in common]


def _paired(differences: Sequence[float], metric: Metric) -> stats.Paired:
    result = stats.paired(differences)
    if metric.higher_is_better:
        return result
    return replace(result, wins=sum(difference < 0 for difference in differences))


def _uncompared(
    pairs: Sequence[tuple[Arm, Arm | None]],
    results: Sequence[stats.Paired | None],
    wanted: Mapping[str, Scalar],
) -> Iterator[str]:
    """Which arms are held against nothing, and why."""
    asked = labels.arm(wanted) if wanted else "none is named"
    alone = [arm for arm, baseline in pairs if baseline is None]
    if len(alone) == len(pairs):
        yield (
            f"No arm is compared with another: there is no one baseline ({asked}); name one with "
            "table.baseline in the sweep file or --baseline."
        )
    elif alone:
        yield f"{some(arm.label for arm in alone)}: not compared, for want of a baseline ({asked})."
    apart = [
        arm.label
        for (arm, baseline), result in zip(pairs, results, strict=True)
        if baseline is not None and baseline is not arm and result is None
        if arm.scores and baseline.scores
    ]
    if apart:
        yield f"{some(apart)}: not compared, for no seed is complete there and in the baseline."


def some(names: Iterable[str]) -> str:
    """Names for a sentence; of very many the first ones."""
    listed = list(names)
    more = f" and {len(listed) - MANY} more" if len(listed) > MANY else ""
    between = "; " if any("," in name for name in listed) else ", "
    return between.join(listed[:MANY]) + more
