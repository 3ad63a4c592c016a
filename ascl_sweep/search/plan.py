"""Plan of a sweep before anything runs: runs, finished runs, cost and statistical power."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Self

from ascl.config import RunConfig
from ascl_sweep.analysis import labels
from ascl_sweep.analysis.inference import ALPHA, FEWEST, smallest_effect
from ascl_sweep.analysis.looks import design_of, measure_noise, planned_comparisons
from ascl_sweep.contracts import Phase, RunRow, RunState
from ascl_sweep.search.study import PlannedRun, Study, chance_of_seeds, is_closed
from ascl_sweep.spec.effects import find_axes_without_effect
from ascl_sweep.spec.sweep import SweepSpec

# Runs that agree in these keys cost the same per epoch.
COST_KEYS = (
    *("method.name", "data.name", "data.train_size", "data.holdout", "batch_size"),
    *("encoder.name", "encoder.width", "encoder.stem", "runtime.precision", "runtime.compile"),
)


@dataclass(frozen=True)
class RunCost:
    """Cost of a run."""

    epochs: int
    seconds: float | None
    """Device-seconds over all devices, estimated from runs of the same cost; None if unknown."""
    checkpoint_bytes: int

    @classmethod
    def of(cls, config: RunConfig, known: Mapping[tuple[object, ...], float]) -> Self:
        """Estimate the cost of a run, given the seconds per epoch by `cost_key`."""
        rate = known.get(cost_key(config.flat_values()))
        seconds = None if rate is None else rate * config.epochs
        return cls(config.epochs, seconds, checkpoint_bytes(config))


@dataclass(frozen=True)
class RunEstimate(RunCost):
    """A planned run and its cost."""

    run_id: str
    sweeps: tuple[str, ...]
    phase: Phase
    seed: int
    changes: Mapping[str, object]
    """Its values at the keys that its sweep varies."""
    arm: str
    """Its arm as reports name it."""
    state: RunState
    """State in the store; `planned` if the store does not have the run."""


@dataclass(frozen=True)
class SweepPlan:
    """The plan of one sweep."""

    name: str
    scale: str
    runs: int
    later: int
    """Runs that the search or the next looks will determine: proposals, finalists and seeds;
    included in `runs`."""
    comparisons: int
    """Number of comparisons that the table will correct for."""
    smallest_effect: float | None
    """Minimum detectable effect at 80% power, in standard deviations of the paired difference."""
    smallest_points: float | None
    """The same in the units of the metric, with the spread of the runs in the store."""
    correlation: float | None
    """Correlation of runs with the same seed in the store, which pairing removes."""
    warnings: tuple[str, ...]
    trials: int = 0
    """Maximum number of configs that a search tries; 0 if the sweep is not a search."""
    finalists: int = 0
    """Maximum number of configs that run with every seed after a search."""
    proposed: bool = False
    """Whether a searcher proposes the configs, so that there may be fewer than `trials`."""
    base_may_win: bool = False
    """Whether the base may be among the best configs, so that there is one finalist fewer."""
    seeds: int = 1
    """Largest number of seeds of an arm."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which comparisons are decided; empty if every arm gets all seeds."""
    expected_runs: float = 0.0
    """Expected number of runs: a look is assumed to decide half of the open comparisons."""


@dataclass(frozen=True)
class Plan:
    """The plan of several sweeps; shared runs count once."""

    sweeps: tuple[SweepPlan, ...]
    runs: tuple[RunEstimate, ...]
    asked: int
    """Number of runs if sweeps shared none."""
    epochs: int
    """Maximum number of epochs left to train, including `later` runs."""
    device_hours: float | None
    """Device-hours for these epochs; None if no similar run has been timed."""
    disk_bytes: int
    expected_epochs: float
    """Expected number of epochs left; below `epochs` only if sweeps run until decided."""
    expected_hours: float | None
    """Device-hours for the expected epochs."""


def make_plan(
    studies: Sequence[Study],
    rows: Mapping[str, RunRow],
    timings: Mapping[tuple[object, ...], float] | None = None,
) -> Plan:
    """Plan sweeps, given the store's rows and the calibrated seconds per epoch (`timings`)."""
    known = dict(timings or {}) | seconds_per_epoch(rows.values())
    runs: dict[str, RunEstimate] = {}
    later: dict[str, _Later] = {}
    sweeps = []
    for study in studies:
        spec = study.spec
        wanted = {task.run_id: task for task in study.wanted()}
        for task in wanted.values():
            values = task.config.flat_values()
            row = rows.get(task.run_id)
            cost = RunCost.of(task.config, known)
            before = runs.get(task.run_id)
            varied = spec.varied_values(task.config)
            runs[task.run_id] = RunEstimate(
                run_id=task.run_id,
                sweeps=(*(before.sweeps if before else ()), spec.name),
                phase=task.phase,
                seed=task.config.seed,
                changes=varied,
                arm=labels.system_arm(values, list(varied)),
                state=row.state if row else RunState.PLANNED,
                epochs=cost.epochs,
                seconds=cost.seconds,
                checkpoint_bytes=cost.checkpoint_bytes,
            )
        own = _later_runs(study, len(wanted), rows, known)
        for run_id, run in own.items():
            other = later.get(run_id)
            later[run_id] = run if other is None else max(run, other, key=lambda each: each.chance)
        sweeps.append(_sweep_plan(study, own, wanted.values(), rows))
    left = [run for run in runs.values() if not is_closed(run.state, run.phase)]
    unsure = [run for run_id, run in later.items() if run_id not in runs and not run.is_closed]
    costs: list[RunCost] = [*left, *(run.cost for run in unsure)]
    chances = [*(1.0 for _ in left), *(run.chance for run in unsure)]
    checkpoints = [*runs.values(), *(run.cost for run in unsure)]
    return Plan(
        sweeps=tuple(sweeps),
        runs=tuple(runs.values()),
        asked=sum(sweep.runs for sweep in sweeps),
        epochs=sum(cost.epochs for cost in costs),
        device_hours=_hours(costs, [1.0] * len(costs)),
        disk_bytes=sum(cost.checkpoint_bytes for cost in checkpoints),
        expected_epochs=math.fsum(
            cost.epochs * chance for cost, chance in zip(costs, chances, strict=True)
        ),
        expected_hours=_hours(costs, chances),
    )


def _hours(costs: Sequence[RunCost], chances: Sequence[float]) -> float | None:
    """Return the expected device-hours of runs; None if the time of one is unknown."""
    if any(cost.seconds is None for cost in costs):
        return None
    each = zip(costs, chances, strict=True)
    return sum((cost.seconds or 0.0) * chance for cost, chance in each) / 3600


@dataclass(frozen=True)
class _Later:
    """A run that a search or a look may ask for."""

    cost: RunCost
    chance: float
    """Chance that the run is needed."""
    is_closed: bool = False
    """Whether the store has it already."""


def _later_runs(
    study: Study,
    wanted: int,
    rows: Mapping[str, RunRow],
    known: Mapping[tuple[object, ...], float],
) -> dict[str, _Later]:
    """Return the runs that are not known to be needed yet, by run id or by another unique key."""
    spec = study.spec
    found = {}
    for run, chance in study.later_finals():
        row = rows.get(run.run_id)
        closed = row is not None and is_closed(row.state, run.phase)
        found[run.run_id] = _Later(RunCost.of(run.config, known), chance, closed)
    if study.search_is_over:
        return found
    chances = [1.0] * max(0, spec.num_trials - wanted) + _chances_of_finals(spec)
    return _unknown_runs(spec, chances, known)


def _unknown_runs(
    spec: SweepSpec, chances: Iterable[float], known: Mapping[tuple[object, ...], float]
) -> dict[str, _Later]:
    """Return runs of configs that a search will choose, at the cost of the base."""
    cost = RunCost.of(spec.config({}, seed=spec.seed_list[0]), known)
    return {f"{spec.name} {number}": _Later(cost, chance) for number, chance in enumerate(chances)}


def _chances_of_finals(spec: SweepSpec) -> list[float]:
    """Return the chance of each final run of a search whose finalists are not known.

    All finalists are assumed to have the same baseline.
    """
    looks = spec.looks or (len(spec.seed_list),)
    arms = [spec.num_arms - 1] + [1] * (spec.num_arms - 1) if spec.num_arms else []
    chances = [1.0] * (len(arms) * looks[0])
    for number, (before, count) in enumerate(pairwise(looks), start=1):
        chances += [chance_of_seeds(number, m) for m in arms for _ in range(before, count)]
    return chances


def _sweep_plan(
    study: Study,
    later: Mapping[str, _Later],
    runs: Iterable[PlannedRun],
    rows: Mapping[str, RunRow],
) -> SweepPlan:
    spec, summary = study.spec, study.digest
    seeds, runs = len(spec.seed_list), list(runs)
    trials = spec.num_trials if spec.is_search else 0
    finals = [_row_of(run, spec, rows) for run in runs if run.phase == "final"]
    comparisons = planned_comparisons(summary, finals)
    if spec.is_search:  # the finalists are not known yet
        comparisons = max(comparisons, spec.num_arms - 1)
    design = design_of(summary)
    looks = design.looks or (seeds,)
    effect = smallest_effect(looks, comparisons, design.alpha) if comparisons else None
    noise = measure_noise(summary, finals)
    total = len(runs) + len(later)
    notes = list(warnings(spec))
    if design.extensions and comparisons:
        notes.append(
            "the seeds were changed after results were known, so comparisons are decided at the "
            f"level {design.alpha:.2g} instead of {ALPHA:g}"
        )
    if spec.looks and not comparisons:
        notes.append(
            f"there are no comparisons to decide, so every arm gets {spec.looks[0]} seeds; set "
            "table.baseline"
        )
    return SweepPlan(
        name=spec.name,
        scale=spec.scale,
        runs=total,
        later=len(later),
        comparisons=comparisons,
        smallest_effect=effect,
        smallest_points=None if effect is None or noise.sd is None else effect * noise.sd,
        correlation=noise.correlation,
        warnings=tuple(notes),
        trials=trials,
        finalists=spec.num_arms if spec.is_search and spec.ladder else 0,
        proposed=bool(spec.domains),
        base_may_win=spec.base_may_be_extra,
        seeds=seeds,
        looks=spec.looks,
        expected_runs=len(runs) + math.fsum(run.chance for run in later.values()),
    )


def _row_of(run: PlannedRun, spec: SweepSpec, rows: Mapping[str, RunRow]) -> RunRow:
    """Return the row of a planned run; a new one if the store has none."""
    if run.run_id in rows:
        return rows[run.run_id]
    config, idle = run.config.flat_values(), tuple(run.config.idle_keys())
    return RunRow(run.run_id, (spec.name,), config, run.phase, spec.scale, idle=idle)


def warnings(spec: SweepSpec) -> Iterable[str]:
    """Yield warnings that a user should read before starting the sweep."""
    yield from map(str, find_axes_without_effect(spec))
    seeds = len(spec.seed_list)
    if seeds == 1:
        yield "with one seed there are no intervals and no tests; use three or more seeds"
    elif seeds < FEWEST:
        yield f"with {seeds} seeds there are no verdicts; use three or more seeds"
    if spec.is_search and spec.ladder is None:
        yield "a search without `ladder` has no final runs for a table; add `ladder`"
    if spec.stop is None:
        return
    epochs = spec.full_epochs
    scheduler = spec.stop.scheduler.in_epochs(epochs)
    if scheduler.start >= epochs:
        yield f"{spec.stop.kind} stops no runs because {epochs} epochs are too short"
    else:
        yield from scheduler.warnings(spec.num_trials)


# ---------------------------------------------------------------- cost


def cost_key(values: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(values.get(key) for key in COST_KEYS)


def seconds_per_epoch(rows: Iterable[RunRow]) -> dict[tuple[object, ...], float]:
    """Return the median device-seconds per epoch of each kind of run."""
    seen: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        if row.epochs:
            per_epoch = (row.train_seconds + row.eval_seconds) / row.epochs * row.workers
            seen.setdefault(cost_key(row.config), []).append(per_epoch)
    return {key: median(values) for key, values in seen.items()}


def kinds(specs: Sequence[SweepSpec]) -> dict[tuple[object, ...], RunConfig]:
    """Return one config of each cost key."""
    found: dict[tuple[object, ...], RunConfig] = {}
    for spec in specs:
        for task in Study(spec, {}, {}).wanted():
            found.setdefault(cost_key(task.config.flat_values()), task.config)
        phases: list[Phase] = ["search", "final"] if spec.is_search else []
        for phase in phases:  # of runs that the search has not chosen yet
            config = spec.config({}, seed=spec.seed_list[0], phase=phase)
            found.setdefault(cost_key(config.flat_values()), config)
    return found


def calibrate(config: RunConfig, *, steps: int = 4) -> float:
    """Measure the seconds per epoch of a run on this machine, from its first training steps."""
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


# Of the published networks without classifier; counting them would require torchvision.
PARAMETERS = {"resnet18": 11.2e6, "resnet34": 21.3e6, "resnet50": 23.5e6}


def checkpoint_bytes(config: RunConfig) -> int:
    """Estimate the size of a checkpoint: weights, momentum encoder, SGD momentum and bank."""
    sizes = config.encoder
    features = sizes.width * 8 * (4 if sizes.name == "resnet50" else 1)
    weights = PARAMETERS[sizes.name] * (sizes.width / 64) ** 2
    weights += (features + sizes.projector_dim) * sizes.projector_hidden
    copies = 3 if config.method.cost().ema else 2
    bank = config.method.bank_size * sizes.projector_dim
    return round(4 * (copies * weights + bank))
