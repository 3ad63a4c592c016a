"""What a sweep comes to before anything runs: runs, what is there already, cost, and what the seeds
can show."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ascl.config import RunConfig
from ascl_sweep.agenda import FINAL, OVER, Agenda, Phase, config_values, idle_keys
from ascl_sweep.ledger import RunRow
from ascl_sweep.spec import SweepSpec
from ascl_sweep.stats import smallest_p

POWER, ALPHA = 0.8, 0.05
FEW = 4  # times ASHA's factor: with fewer runs it can hardly stop any

# What makes two runs cost alike per epoch.
COST_KEYS = (
    *("method.name", "data.name", "data.train_size", "data.holdout", "batch_size"),
    *("encoder.name", "encoder.width", "encoder.stem", "runtime.precision", "runtime.compile"),
)


@dataclass(frozen=True)
class PlannedRun:
    """A run that sweeps want."""

    run_id: str
    sweeps: tuple[str, ...]
    phase: Phase
    seed: int
    epochs: int
    changes: Mapping[str, Any]
    """How it differs from its sweep's base."""
    state: str
    """As the ledger has it; `planned` if it does not."""
    seconds: float | None
    """What it takes of its devices together, from runs that cost alike."""
    checkpoint_bytes: int


@dataclass(frozen=True)
class SweepPlan:
    """What one sweep adds."""

    name: str
    scale: str
    runs: int
    later: int
    """Of those, runs that a search will name: proposals and finalists."""
    smallest_p: float | None
    smallest_effect: float | None
    """In standard deviations of the paired difference, at 80% power; None with one seed."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Several sweeps together: each run once."""

    sweeps: tuple[SweepPlan, ...]
    runs: tuple[PlannedRun, ...]
    asked: int
    """Runs if each sweep trained its own."""
    epochs: int
    """Still to be trained, at most; those of later runs included."""
    device_hours: float | None
    """For those; None where no run like them was ever timed."""
    disk_bytes: int


def make_plan(
    specs: Sequence[SweepSpec],
    rows: Mapping[str, RunRow],
    curves: Mapping[str, dict[int, float | None]],
    timings: Mapping[tuple[Any, ...], float] | None = None,
) -> Plan:
    """Plan sweeps over a ledger; `timings` are seconds per epoch from a calibration."""
    known = dict(timings or {}) | seconds_per_epoch(rows.values())
    runs: dict[str, PlannedRun] = {}
    sweeps = []
    asked = later_epochs = later_bytes = 0
    later_seconds: list[float | None] = []
    for spec in specs:
        agenda = Agenda(spec, rows, {k: dict(v) for k, v in curves.items()})
        base = spec.base_values
        wanted = {task.run_id: task for task in agenda.wanted()}
        for task in wanted.values():
            values = config_values(task.config)
            row = rows.get(task.run_id)
            rate = known.get(cost_key(values))
            before = runs.get(task.run_id)
            runs[task.run_id] = PlannedRun(
                run_id=task.run_id,
                sweeps=(*(before.sweeps if before else ()), spec.name),
                phase=task.phase,
                seed=task.config.seed,
                epochs=task.config.epochs,
                changes=varied(spec, task.config),
                state=row.state if row else "planned",
                seconds=None if rate is None else rate * task.config.epochs,
                checkpoint_bytes=checkpoint_bytes(task.config),
            )
        total = planned_runs(spec)
        later = max(0, total - len(wanted))
        asked += total
        later_epochs += later * int(base["epochs"])
        rate = known.get(cost_key(base))
        later_seconds += [None if rate is None else rate * int(base["epochs"])] * later
        later_bytes += later * checkpoint_bytes(spec.config({}, seed=spec.seeds[0]))
        sweeps.append(_sweep_plan(spec, total, later))
    closed = {"search": OVER, "final": FINAL}
    left = [run for run in runs.values() if run.state not in closed[run.phase]]
    seconds = [run.seconds for run in left] + later_seconds
    return Plan(
        sweeps=tuple(sweeps),
        runs=tuple(runs.values()),
        asked=asked,
        epochs=sum(run.epochs for run in left) + later_epochs,
        device_hours=None
        if any(s is None for s in seconds)
        else sum(s for s in seconds if s is not None) / 3600,
        disk_bytes=sum(run.checkpoint_bytes for run in runs.values()) + later_bytes,
    )


def planned_runs(spec: SweepSpec) -> int:
    """How many runs a sweep wants at most: of a search, its configurations and its finalists."""
    seeds = len(spec.seeds)
    if not spec.is_search:
        return len(spec.cells()[: spec.budget.trials]) * seeds
    cells = len(spec.cells()) if not spec.domains else spec.budget.trials or 0
    tried = min(cells, spec.budget.trials or cells)
    if spec.ladder is None:
        return tried
    groups = len(_values(spec, spec.ladder.per)) if spec.ladder.per else 1
    return tried + min(tried, spec.ladder.finalists * groups) * seeds


def _values(spec: SweepSpec, key: str) -> set[Any]:
    if key in spec.domains:
        return set(spec.domains[key].choices) or {None}
    return {cell.changes.get(key, spec.base_values.get(key)) for cell in spec.cells()}


def axes(spec: SweepSpec) -> list[str]:
    """The keys that a sweep varies, in file order."""
    keys = dict.fromkeys(spec.domains)
    for cell in spec.cells() if not spec.domains else ():
        keys |= dict.fromkeys(cell.changes)
    return list(keys)


def varied(spec: SweepSpec, config: RunConfig) -> dict[str, Any]:
    """A run's values at the keys its sweep varies; not τ' for a method that has none."""
    values, idle = config_values(config), idle_keys(config)
    return {key: values[key] for key in axes(spec) if key in values and key not in idle}


def _sweep_plan(spec: SweepSpec, total: int, later: int) -> SweepPlan:
    seeds = len(spec.seeds)
    listed = 1 if spec.is_search else len(spec.cells())
    arms = spec.ladder.finalists if spec.ladder else listed
    return SweepPlan(
        name=spec.name,
        scale=spec.scale,
        runs=total,
        later=later,
        smallest_p=smallest_p(seeds),
        smallest_effect=smallest_effect(seeds, max(1, arms - 1)),
        warnings=tuple(warnings(spec)),
    )


def warnings(spec: SweepSpec) -> Iterable[str]:
    """What a user should know before a night is spent."""
    seeds = len(spec.seeds)
    if seeds == 1:
        yield "one seed shows no spread: no interval and no test; three or more do"
    elif 2 ** (1 - seeds) > ALPHA:
        yield (
            f"with {seeds} seeds no sign-flip p can fall below {2 ** (1 - seeds):g}; "
            "six reach 0.031"
        )
    if spec.is_search and spec.ladder is None:
        yield "a search without a ladder selects but has no runs for a table; add `ladder`"
    if spec.stop is None:
        return
    epochs, stop = int(spec.base_values["epochs"]), spec.stop
    first = stop.at_epochs(epochs) if stop.rule == "keep_top" else stop.grace_epochs(epochs)
    tried = spec.budget.trials or len(spec.cells())
    if first >= epochs:
        yield f"runs of {epochs} epochs are too short for {stop.rule} to stop any"
    elif stop.rule == "asha" and tried < FEW * stop.factor:
        yield (
            f"ASHA can save little with {tried} runs: the first to arrive at a rung always pass; "
            f"it pays from about {math.ceil(FEW * stop.factor)}"
        )


# ---------------------------------------------------------------- what the seeds can show


def smallest_effect(seeds: int, comparisons: int) -> float | None:
    """The paired difference found with 80% power, in its standard deviations.

    Paired t, two-sided 5%, Holm's first step over the comparisons.
    """
    if seeds < 2:
        return None
    from scipy.special import nctdtr, stdtrit  # scipy.stats takes a second to load

    freedom = seeds - 1
    cut = float(stdtrit(freedom, 1 - ALPHA / comparisons / 2))

    def power(effect: float) -> float:
        """The other tail has no part in it worth counting."""
        return 1 - float(nctdtr(freedom, effect * math.sqrt(seeds), cut))

    low, high = 0.0, 2 * cut / math.sqrt(seeds) + 10
    if not power(high) >= POWER:
        return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


# ---------------------------------------------------------------- cost


def cost_key(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values.get(key) for key in COST_KEYS)


def seconds_per_epoch(rows: Iterable[RunRow]) -> dict[tuple[Any, ...], float]:
    """What an epoch of each kind of run has taken, times its workers."""
    seen: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row.epochs:
            per_epoch = (row.train_seconds + row.eval_seconds) / row.epochs * row.workers
            seen.setdefault(cost_key(row.config), []).append(per_epoch)
    return {key: median(values) for key, values in seen.items()}


def kinds(specs: Sequence[SweepSpec]) -> dict[tuple[Any, ...], RunConfig]:
    """One run of each kind, as far as cost goes."""
    found: dict[tuple[Any, ...], RunConfig] = {}
    for spec in specs:
        for task in Agenda(spec, {}, {}).wanted():
            found.setdefault(cost_key(config_values(task.config)), task.config)
        if spec.domains:
            config = spec.config({}, seed=spec.seeds[0], phase="search")
            found.setdefault(cost_key(config_values(config)), config)
    return found


def calibrate(config: RunConfig, *, steps: int = 4) -> float:
    """Seconds per epoch of a run on this machine, from its first steps (evaluation left out)."""
    import time

    import torch

    from ascl.train import build, train

    run = build(config)
    marks: list[float] = []

    class Enough(Exception):
        pass

    def mark(phase: str, step: int, of: int) -> None:
        if run.pixels.device.type == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
        if len(marks) > steps:
            raise Enough

    with contextlib.suppress(Enough):
        next(train(run, mark))
    return (marks[-1] - marks[0]) / max(1, len(marks) - 1) * run.steps_per_epoch


# Of the published networks, without their classifier; building one would load torchvision.
PARAMETERS = {"resnet18": 11.2e6, "resnet34": 21.3e6, "resnet50": 23.5e6}


def checkpoint_bytes(config: RunConfig) -> int:
    """About the size of a run's checkpoint: weights, their copy, SGD's momentum, the bank."""
    sizes = config.encoder
    features = sizes.width * 8 * (4 if sizes.name == "resnet50" else 1)
    weights = PARAMETERS[sizes.name] * (sizes.width / 64) ** 2
    weights += (features + sizes.projector_dim) * sizes.projector_hidden
    copies = 3 if config.method.cost().ema else 2
    bank = getattr(config.method, "queue_size", 0) * sizes.projector_dim
    return round(4 * (copies * weights + bank))
