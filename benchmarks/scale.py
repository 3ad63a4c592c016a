"""Print the tables of docs/scale.md: GPU time and memory of the paper's sweeps, as Markdown.

    python -m benchmarks.scale [STORE]

Counts (`counting.py`) are exact and hold on any device; times are modeled (`gpu_model.py`). Given a
store with runs on a CPU, compare their relative training times with the counted FLOPs. This command
measures no times itself, and takes about four minutes on one core.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ascl.config import RunConfig, Tree, nested
from ascl_sweep.contracts import RunRow
from ascl_sweep.search.study import Study
from ascl_sweep.spec.sweep import SweepSpec, load_sweep
from ascl_sweep.store.store import Store
from benchmarks.counting import SIZES, Step, size_of
from benchmarks.gpu_model import (
    ASHA_SPENDS,
    LOAD_SECONDS,
    LOAD_SECONDS_KEPT,
    SYSTEMS,
    Machine,
    bytes_sent,
    cached_forward,
    cached_step,
    device_bytes,
    evaluation,
    feature_dim,
    hours,
    knn_bytes,
    machines,
    paper,
    pictures,
    seconds_per_step,
    seconds_to_send,
)

# lightly's CIFAR-10 benchmark at batch 512 (docs/source/getting_started/benchmarks.rst at 0243660):
# minutes for 200 epochs with kNN after each epoch, and GB, on a GPU that lightly does not name.
LIGHTLY: Mapping[str, tuple[Tree, float, float]] = {
    "SimCLR": (SYSTEMS["SimCLR"], 87.1, 4.9),
    "SimSiam": (SYSTEMS["SimSiam"], 87.8, 5.0),
    "SwAV": (SYSTEMS["SwAV"], 88.7, 4.9),
    "NNCLR": (SYSTEMS["NNCLR"], 88.1, 5.0),
    "BYOL": (SYSTEMS["BYOL"], 108.3, 5.6),
    "MoCo, symmetric": ({"name": "moco", "symmetric": True}, 112.2, 5.6),
}
GPU_COUNTS = (1, 2, 4, 8, 16, 32)
SETTINGS = (("cifar10", 1), ("tiny_imagenet", 1), ("imagenet", 8))  # dataset, number of GPUs
Kind = tuple[str, int]
"""Precision and micro-batches."""
MOCO_HOURS = 53  # on 8 V100, for 200 epochs on ImageNet: facebookresearch/moco, README at 5670021


def table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def gb(size: float) -> str:
    return f"{size / 1e9:.1f}"


def mb(size: float) -> str:
    return f"{size / 1e6:,.0f}" if size >= 0.5e6 else "0" if not size else "< 1"


def counts() -> Iterator[str]:
    """Tabulate the counts of a step.

    FLOPs and bytes saved for the backward pass are per image, for each setting. Memory held and
    bytes sent are per GPU, on ImageNet with 8 GPUs.
    """

    def row(system: str) -> Iterator[str]:
        yield system
        steps = [cached_step(paper(system, data), n) for data, n in SETTINGS]
        yield " / ".join(f"{step.flops / step.images / 1e9:.2f}" for step in steps)
        for precision in ("fp32", "bf16"):
            runtime = {"precision": precision}
            steps = [cached_step(paper(system, data, runtime=runtime), n) for data, n in SETTINGS]
            yield " / ".join(f"{step.saved / step.images / 1e6:.1f}" for step in steps)
        step = steps[-1]
        yield from (mb(step.weights), mb(step.copy), mb(step.bank))
        gradients = replace(step, gathered=0, exchanged=0, reduced=step.weights)
        images = replace(step, gathered=0, reduced=0)
        features = bytes_sent(step, 8) - bytes_sent(gradients, 8) - bytes_sent(images, 8)
        yield from map(mb, (bytes_sent(gradients, 8), features, bytes_sent(images, 8)))

    titles = ["system", "GFLOP", "MB saved, fp32", "MB saved, bf16", "weights", "copy", "bank"]
    titles += ["sends gradients", "features", "images"]
    yield from table(titles, map(row, SYSTEMS))


def one_run(both: Sequence[Machine]) -> Iterator[str]:
    """Tabulate the peak memory of one GPU in GB, and the device-hours of a run."""

    def size(system: str, data: str, workers: int, splits: int, kinds: Sequence[Kind]) -> str:
        sizes = []
        for precision, parts in kinds:
            runtime = {"precision": precision, "micro_batches": parts}
            config = paper(system, data, encoder={"bn_splits": splits}, runtime=runtime)
            step = cached_step(config, workers)
            sizes.append(gb(device_bytes(step, workers, pictures(config))))
        return " / ".join(sizes)

    def row(system: str) -> Iterator[str]:
        yield system
        small, large = (("fp32", 1), ("bf16", 1), ("fp32", 4)), (("bf16", 1), ("bf16", 4))
        yield from (size(system, data, 1, 8, small) for data in ("cifar10", "stl10"))
        yield str(paper(system, "imagenet").batch_size)
        yield size(system, "imagenet", 8, 32, large)
        for data, workers in (("cifar10", 1), ("stl10", 1), ("tiny_imagenet", 1), ("imagenet", 8)):
            config = paper(system, data)
            took = [workers * hours(config, workers, machine).total for machine in both]
            yield " / ".join(f"{t:.1f}" if t < 50 else f"{t:,.0f}" for t in took)

    titles = ["system", "GB, CIFAR", "GB, STL-10", "batch, ImageNet", "GB, ImageNet"]
    titles += ["hours, CIFAR", "STL-10", "Tiny ImageNet", "ImageNet"]
    yield from table(titles, map(row, SYSTEMS))
    knn = [
        gb(knn_bytes(size_of(config).labeled, size_of(config).test, feature_dim(config), workers))
        for config, workers in ((paper("ASCL", data), n) for data, n in SETTINGS)
    ]
    yield f"\nPeak memory of online kNN, GB: {' / '.join(knn)}."


def on_n_gpus(machine: Machine) -> Iterator[str]:
    """Tabulate one ASCL run split over an increasing number of GPUs."""

    def row(data: str, workers: int, bf16: bool) -> Iterator[str]:
        precision = "bf16" if bf16 else "fp32"
        splits = {"bn_splits": max(8, workers)}
        config = paper("ASCL", data, encoder=splits, runtime={"precision": precision})
        step, took = cached_step(config, workers), hours(config, workers, machine)
        yield from (data, precision, str(workers), str(step.images))
        yield f"{1000 * step.flops / machine.rate(precision):.0f}"
        yield f"{1000 * step.calls * machine.call:.0f}"
        yield f"{1000 * seconds_to_send(step, workers, machine):.0f}"
        yield from (f"{took.train:.1f}", f"{took.evaluate:.1f}", f"{workers * took.total:.1f}")

    settings = [("cifar10", n, False) for n in (1, 2, 4, 8)] + [("cifar10", 1, True)]
    settings += [("tiny_imagenet", n, False) for n in (1, 8)]
    settings += [("imagenet", n, True) for n in GPU_COUNTS]
    titles = ["data", "precision", "GPUs", "images each", "ms computing", "ms issuing"]
    titles += ["ms sending", "hours training", "hours evaluating", "device-hours"]
    yield from table(titles, (row(*setting) for setting in settings))


def runs_of(spec: SweepSpec) -> tuple[dict[str, RunConfig], float]:
    """Return the runs that a sweep lists, and the cost of its search in runs of its base config."""
    listed = {task.run_id: task.config for task in Study(spec, {}, {}).wanted()}
    later = spec.planned_runs - len(listed)
    tried = min(later, spec.budget.trials or 0)
    return listed, later - tried + ASHA_SPENDS * tried


def sweeps(both: Sequence[Machine], files: Sequence[Path]) -> Iterator[str]:
    """Tabulate the device-hours of each sweep file, and of all files, each run once."""
    seen: dict[str, list[float]] = {}
    everything = [0.0 for _ in both]
    rows: list[list[str]] = []
    max_workers = 1
    for file in files:
        spec = load_sweep(file)
        workers = spec.resources.workers
        max_workers = max(max_workers, workers)
        listed, later = runs_of(spec)
        base = spec.config({}, seed=spec.seed_list[0]) if later else None
        rest = [later * workers * hours(base, workers, m).total if base else 0.0 for m in both]
        costs = {
            run: seen.get(run) or [workers * hours(config, workers, m).total for m in both]
            for run, config in listed.items()
        }
        new = costs.keys() - seen.keys()
        alone = [sum(cost[i] for cost in costs.values()) + rest[i] for i in range(len(both))]
        added = [sum(costs[run][i] for run in new) + rest[i] for i in range(len(both))]
        everything = [a + b for a, b in zip(everything, added, strict=True)]
        seen |= costs
        runs = spec.planned_runs
        rows.append(
            [spec.name, f"{runs}", f"{runs - len(listed) + len(new)}"]
            + [f"{alone[i]:,.0f}" for i in range(len(both))]
            + [f"{added[0]:,.0f}"]
            + ["–" if n < workers else f"{alone[0] / n / 24:.1f}" for n in GPU_COUNTS]
        )
    total = f"{sum(int(r[1]) for r in rows)}", f"{sum(int(r[2]) for r in rows)}"
    last = [f"{x:,.0f}" for x in everything]
    days = ["–" if n < max_workers else f"{everything[0] / n / 24:.1f}" for n in GPU_COUNTS]
    rows.append(["each run once", *total, *last, last[0], *days])
    titles = ["file", "runs", "not in files above", *(f"{m.name}-hours" for m in both)]
    titles += [f"new {both[0].name}-hours", *(f"days on {n}" for n in GPU_COUNTS)]
    yield from table(titles, rows)


def loaders(machine: Machine) -> Iterator[str]:
    """Tabulate the cores needed to feed each of 8 GPUs on ImageNet."""

    def row(system: str) -> Iterator[str]:
        step = cached_step(paper(system, "imagenet"), 8)
        speed = step.images / seconds_per_step(step, 8, machine, precision="bf16")
        yield from (system, f"{speed:,.0f}")
        yield from (f"{speed * each:.1f}" for each in (LOAD_SECONDS, LOAD_SECONDS_KEPT))

    titles = ["system", "images/s", "cores, JPEG", "cores, cached pixels"]
    systems = ("supervised", "ASCL", "SimCLR", "BYOL")
    yield from table(titles, (row(system) for system in systems))


def against_published(both: Sequence[Machine]) -> Iterator[str]:
    """Compare the counts with published runs: times relative to SimCLR, and memory."""

    def predicted(method: Tree) -> tuple[float, float]:
        config = RunConfig.of({"batch_size": 512, "method": method, "eval": {"probe": "none"}})
        step, rest = cached_step(config, 1), evaluation(config, cached_forward(config))
        steps = config.epochs * (SIZES["cifar10"].train // config.batch_size)
        return steps * step.flops + rest.flops, device_bytes(step, 1, 0)

    first, _ = predicted(LIGHTLY["SimCLR"][0])
    measured = LIGHTLY["SimCLR"][1]

    def row(name: str) -> Iterator[str]:
        method, minutes, memory = LIGHTLY[name]
        flops, size = predicted(method)
        yield from (name, f"{minutes:.0f}", f"{minutes / measured:.2f}", f"{flops / first:.2f}")
        yield from (f"{flops / (60 * minutes) / 1e12:.1f}", f"{memory:.1f}", gb(size))

    titles = ["lightly's run", "minutes", "ratio to SimCLR", "ratio, counted", "TFLOP/s"]
    yield from table([*titles, "GB", "GB, counted"], map(row, LIGHTLY))
    v100 = next(machine for machine in both if machine.name == "V100")
    config = paper("MoCo", "imagenet", runtime={"precision": "fp32"})
    ours = hours(config, 8, v100).train
    yield f"\nMoCo's 200 epochs on 8 V100: {MOCO_HOURS} hours published, {ours:.0f} in the model."


def against_store(rows: Iterable[RunRow]) -> Iterator[str]:
    """Compare times of finished runs, relative to MoCo with the same seed, with counted FLOPs."""
    seconds: dict[str, dict[int, float]] = {}
    steps: dict[str, Step] = {}
    for run in rows:
        if run.state == "done" and run.images_per_second:
            # The store keeps lists as JSON text.
            values = {
                key: json.loads(value) if isinstance(value, str) and value[:1] == "[" else value
                for key, value in run.config.items()
            }
            config = RunConfig.of(nested(values))
            kind = getattr(config.method, "relabel", "none")
            name = config.method.name + ("" if kind == "none" else f" {kind}")
            seconds.setdefault(name, {})[config.seed] = 1 / run.images_per_second
            steps.setdefault(name, cached_step(config, 1))
    if "moco" not in steps:
        raise ValueError(
            f"the store must contain finished MoCo runs (it has {sorted(steps)}); "
            "use a store of compare_methods.yaml"
        )
    base = steps["moco"]

    errors: list[float] = []

    def row(name: str) -> Iterator[str]:
        mine, moco = seconds[name], seconds["moco"]
        ratios = [mine[seed] / moco[seed] for seed in mine.keys() & moco.keys()]
        work, measured = steps[name].flops / base.flops, median(ratios)
        errors.append(work / measured - 1)
        yield from (name, str(len(ratios)), f"{min(ratios):.2f}–{max(ratios):.2f}")
        yield from (f"{measured:.2f}", f"{work:.2f}", f"{errors[-1]:+.0%}")

    titles = ["system", "seeds", "time ratio to MoCo", "median", "FLOP ratio to MoCo", "error"]
    yield from table(titles, (row(name) for name in seconds if name != "moco"))
    half = median(map(abs, errors))
    yield f"\nErrors {min(errors):+.0%} to {max(errors):+.0%}; half are within {half:.0%}."


def main() -> None:
    both = machines()
    files = sorted(Path("search_spaces").glob("*.yaml"))
    files = [file for file in files if file.stem != "quickstart"]  # made for a CPU
    print(f"One GPU sustains, in TFLOP/s (fp32, half): {_rates(both)}\n")
    sections: dict[str, Iterator[str]] = {
        "Counts": counts(),
        "One run": one_run(both),
        "ASCL on N A100": on_n_gpus(both[0]),
        "Sweeps": sweeps(both, files),
        "Loaders": loaders(both[0]),
        "Published timings": against_published(both),
    }
    if len(sys.argv) > 1:
        sections["Runs of the given store"] = against_store(Store(sys.argv[1]).runs().values())
    for title, lines in sections.items():
        print(f"## {title}\n", flush=True)
        for line in lines:
            print(line, flush=True)
        print()


def _rates(both: Sequence[Machine]) -> str:
    return "; ".join(f"{m.name} {m.fp32 / 1e12:.1f}, {m.half / 1e12:.1f}" for m in both)


if __name__ == "__main__":
    main()
