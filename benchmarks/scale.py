"""What the paper's sweeps take of GPUs: prints the tables of docs/scale.md, as Markdown.

    python -m benchmarks.scale [LEDGER]

Counts (`counting.py`) are exact and the same on any device; times are a model (`gpu_model.py`). A
ledger of runs on this CPU, if given, is compared with what the counts say of its methods. Nothing
here is timed, and it takes about three minutes on one core.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ascl.config import RunConfig, Tree
from ascl_sweep.agenda import Agenda
from ascl_sweep.ledger import Ledger, RunRow
from ascl_sweep.plan import planned_runs
from ascl_sweep.space import nested
from ascl_sweep.spec import SweepSpec, load_spec
from benchmarks.counting import SIZES, Step
from benchmarks.gpu_model import (
    ASHA_SPENDS,
    CALL_SECONDS,
    LOAD_SECONDS,
    LOAD_SECONDS_KEPT,
    SYSTEMS,
    Machine,
    counted,
    counted_forward,
    device_bytes,
    evaluation,
    hours,
    machines,
    paper,
    pictures,
    seconds_per_step,
    sent,
)

# lightly's CIFAR-10 benchmark at batch 512 (its cifar10_benchmark.py at 0351a52): minutes for 200
# epochs with kNN after each, and GB, of one RTX A6000.
LIGHTLY: Mapping[str, tuple[Tree, float, float]] = {
    "SimCLR": (SYSTEMS["SimCLR"], 158.2, 7.5),
    "SimSiam": (SYSTEMS["SimSiam"], 159.0, 7.6),
    "SwAV": (SYSTEMS["SwAV"], 158.4, 7.5),
    "NNCLR": (SYSTEMS["NNCLR"], 164.7, 7.6),
    "BYOL": (SYSTEMS["BYOL"], 188.5, 7.7),
    "MoCo, symmetric": ({"name": "moco", "symmetric": True}, 196.8, 7.8),
}
MOCO_HOURS = 53  # of 8 V100 for 200 epochs on ImageNet: facebookresearch/moco, README at 5670021


def table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def gb(size: float) -> str:
    return f"{size / 1e9:.1f}"


def mb(size: float) -> str:
    return f"{size / 1e6:,.0f}" if size >= 0.5e6 else "0" if not size else "< 1"


def per_image() -> Iterator[str]:
    """FLOPs, and what is saved for the backward pass, of one image in each setting."""

    def row(system: str) -> Iterator[str]:
        yield system
        settings = [("cifar10", 1), ("tiny_imagenet", 1), ("imagenet", 8)]
        for data, workers in settings:
            step = counted(paper(system, data), workers)
            yield f"{step.flops / step.images / 1e9:.2f}"
        for data, workers in settings:
            for precision in ("fp32", "bf16"):
                config = paper(system, data, runtime={"precision": precision})
                step = counted(config, workers)
                yield f"{step.saved / step.images / 1e6:.1f}"

    titles = ["system", *(f"GFLOP, {x}" for x in ("32 px", "64 px", "224 px"))]
    titles += [f"MB, {x}, {p}" for x in ("32 px", "64 px", "224 px") for p in ("fp32", "bf16")]
    yield from table(titles, map(row, SYSTEMS))


def on_the_device() -> Iterator[str]:
    """GB of one GPU, whole and in four micro-batches."""

    def size(config: RunConfig, workers: int) -> str:
        data = config.data.name
        return gb(device_bytes(counted(config, workers), workers, pictures(data)))

    def row(system: str) -> Iterator[str]:
        yield system
        for data in ("cifar10", "stl10"):
            for precision, parts in (("fp32", 1), ("bf16", 1), ("fp32", 4)):
                runtime = {"precision": precision, "micro_batches": parts}
                yield size(paper(system, data, encoder={"bn_splits": 8}, runtime=runtime), 1)
        whole = paper(system, "imagenet")
        yield str(whole.batch_size)
        for precision, parts in (("fp32", 1), ("bf16", 1), ("bf16", 4)):
            runtime = {"precision": precision, "micro_batches": parts}
            yield size(paper(system, "imagenet", encoder={"bn_splits": 32}, runtime=runtime), 8)

    kinds = ("fp32", "bf16", "fp32, ÷4")
    titles = ["system", *(f"CIFAR {k}" for k in kinds), *(f"STL-10 {k}" for k in kinds)]
    titles += ["ImageNet batch", *(f"ImageNet {k}" for k in ("fp32", "bf16", "bf16, ÷4"))]
    yield from table(titles, map(row, SYSTEMS))


def constants_and_traffic() -> Iterator[str]:
    """MB of ImageNet's networks, and what a rank of 8 sends in a step."""

    def row(system: str) -> Iterator[str]:
        step = counted(paper(system, "imagenet"), 8)
        yield from (system, mb(step.weights), mb(3 * step.weights), mb(step.copy), mb(step.bank))
        shared = replace(step, reduced=0)
        images = replace(shared, gathered=step.images_gathered)
        features = sent(shared, 8) - sent(images, 8)
        of_losses = sent(replace(step, gathered=0, reduced=step.reduced - step.weights), 8)
        yield mb(sent(replace(step, gathered=0, reduced=step.weights), 8))
        yield mb(features + of_losses)
        yield mb(sent(images, 8))

    titles = ["system", "weights", "gradients, momentum, DDP", "copy", "bank"]
    titles += ["sent: gradients", "sent: features", "sent: images"]
    yield from table(titles, map(row, SYSTEMS))


def on_n_gpus(machine: Machine) -> Iterator[str]:
    """ASCL on more and more GPUs, a run being split over all of them."""

    def row(data: str, workers: int, bf16: bool) -> Iterator[str]:
        precision = "bf16" if bf16 else "fp32"
        splits = {"bn_splits": max(8, workers)}
        config = paper("ASCL", data, encoder=splits, runtime={"precision": precision})
        step, took = counted(config, workers), hours(config, workers, machine)
        yield from (data, precision, str(workers), str(step.images))
        yield f"{1000 * step.flops / machine.rate(precision):.0f}"
        yield f"{1000 * step.calls * machine.call:.0f}"
        yield f"{1000 * sent(step, workers) / machine.bandwidth(workers):.0f}"
        yield from (f"{took.train:.1f}", f"{took.evaluate:.1f}", f"{workers * took.total:.1f}")

    settings = [(d, n, False) for d in ("cifar10", "tiny_imagenet") for n in (1, 2, 4, 8)]
    settings += [("cifar10", 1, True), ("imagenet", 1, True)]
    settings += [("imagenet", n, True) for n in (8, 16, 32)]
    titles = ["data", "precision", "GPUs", "images each", "ms computing", "ms issuing"]
    titles += ["ms sending", "hours training", "hours evaluating", "device-hours"]
    yield from table(titles, (row(*setting) for setting in settings))


def one_run(both: Sequence[Machine]) -> Iterator[str]:
    """Device-hours of one run of each system."""

    def row(system: str) -> Iterator[str]:
        yield system
        for data, workers in (("cifar10", 1), ("stl10", 1), ("tiny_imagenet", 1), ("imagenet", 8)):
            config = paper(system, data)
            took = [workers * hours(config, workers, machine).total for machine in both]
            yield " / ".join(f"{t:.1f}" if t < 100 else f"{t:,.0f}" for t in took)

    titles = ["system", "CIFAR", "STL-10", "Tiny ImageNet", "ImageNet, 8 GPUs"]
    yield from table(titles, map(row, SYSTEMS))


def runs_of(spec: SweepSpec) -> tuple[dict[str, RunConfig], float]:
    """The runs that a sweep lists, and how many of its base a search comes to beside them."""
    listed = {task.run_id: task.config for task in Agenda(spec, {}, {}).wanted()}
    later = planned_runs(spec) - len(listed)
    tried = min(later, spec.budget.trials or 0)
    return listed, later - tried + ASHA_SPENDS * tried


def sweeps(both: Sequence[Machine], files: Sequence[Path]) -> Iterator[str]:
    """Device-hours of the sweep files, and of all together with each run once."""
    seen: dict[str, list[float]] = {}
    everything = [0.0 for _ in both]
    rows: list[list[str]] = []
    for file in files:
        spec = load_spec(file)
        workers = spec.resources.workers
        listed, later = runs_of(spec)
        base = spec.config({}, seed=spec.seeds[0]) if later else None
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
        runs = planned_runs(spec)
        rows.append(
            [spec.name, f"{runs}", f"{runs - len(listed) + len(new)}"]
            + [f"{alone[i]:,.0f}" for i in range(len(both))]
            + [f"{added[0]:,.0f}"]
            + [f"{alone[0] / n / 24:.1f}" for n in (1, 2, 4, 8, 32)]
        )
    total = f"{sum(int(r[1]) for r in rows)}", f"{sum(int(r[2]) for r in rows)}"
    last = [f"{x:,.0f}" for x in everything]
    days = [f"{everything[0] / n / 24:.1f}" for n in (1, 2, 4, 8, 32)]
    rows.append(["each run once", *total, *last, last[0], *days])
    titles = ["file", "runs", "not in files above", *(f"{m.name}-hours" for m in both)]
    titles += [f"new {both[0].name}-hours", *(f"days on {n}" for n in (1, 2, 4, 8, 32))]
    yield from table(titles, rows)


def loaders(both: Sequence[Machine]) -> Iterator[str]:
    """Cores that keep a GPU of 8 fed on ImageNet."""

    def row(system: str, machine: Machine) -> Iterator[str]:
        config = paper(system, "imagenet")
        step = counted(config, 8)
        speed = step.images / seconds_per_step(step, 8, machine, precision="bf16")
        yield from (system, machine.name, f"{speed:,.0f}")
        yield from (f"{speed * each:.1f}" for each in (LOAD_SECONDS, LOAD_SECONDS_KEPT))
        yield f"{8 * speed * LOAD_SECONDS:.0f}"

    titles = ["system", "GPU", "images/s of a GPU", "cores, JPEG", "cores, kept pixels"]
    titles += ["cores of 8 GPUs, JPEG"]
    systems = ("supervised", "ASCL", "SimCLR", "BYOL")
    yield from table(titles, (row(s, machine) for machine in both for s in systems))


def against_published(both: Sequence[Machine]) -> Iterator[str]:
    """What the counts say of others' measured runs: times relative to SimCLR's, and memory."""

    def predicted(method: Tree) -> tuple[float, float]:
        config = RunConfig.of({"batch_size": 512, "method": method, "eval": {"probe": "none"}})
        step, rest = counted(config, 1), evaluation(config, counted_forward(config))
        steps = config.epochs * (SIZES["cifar10"].train // config.batch_size)
        return steps * step.flops + rest.flops, device_bytes(step, 1, 0)

    first, _ = predicted(LIGHTLY["SimCLR"][0])
    measured = LIGHTLY["SimCLR"][1]

    def row(name: str) -> Iterator[str]:
        method, minutes, memory = LIGHTLY[name]
        flops, size = predicted(method)
        yield from (name, f"{minutes:.0f}", f"{minutes / measured:.2f}", f"{flops / first:.2f}")
        yield from (f"{flops / (60 * minutes) / 1e12:.1f}", f"{memory:.1f}", gb(size))

    titles = ["lightly's run", "minutes", "× SimCLR's", "× SimCLR's, counted", "TFLOP/s"]
    yield from table([*titles, "GB", "GB, counted"], map(row, LIGHTLY))
    v100 = next(machine for machine in both if machine.name == "V100")
    config = paper("MoCo", "imagenet", runtime={"precision": "fp32"})
    ours = hours(config, 8, v100).train
    yield f"\nMoCo's 200 epochs on 8 V100: {MOCO_HOURS} hours published, {ours:.0f} in the model."


def against_ledger(rows: Iterable[RunRow]) -> Iterator[str]:
    """Times of finished runs relative to MoCo's with the same seed, and what the counts say."""
    seconds: dict[str, dict[int, float]] = {}
    steps: dict[str, Step] = {}
    for run in rows:
        if run.state == "done" and run.images_per_second:
            config = RunConfig.of(nested(dict(run.config)))
            name = " ".join(
                str(run.config.get(f"method.{key}") or "") for key in ("name", "relabel")
            )
            name = name.removesuffix(" none").strip()
            seconds.setdefault(name, {})[config.seed] = 1 / run.images_per_second
            steps.setdefault(name, counted(config, 1))
    base = steps["moco"]
    rate = base.flops / (base.images * median(seconds["moco"].values()) - base.calls * CALL_SECONDS)

    def row(name: str) -> Iterator[str]:
        step, mine = steps[name], seconds[name]
        ratios = [mine[seed] / seconds["moco"][seed] for seed in mine if seed in seconds["moco"]]
        measured = median(ratios)
        by_flops = step.flops / base.flops
        both = (step.flops / rate + step.calls * CALL_SECONDS) / (
            base.images * median(seconds["moco"].values())
        )
        yield from (name, str(len(ratios)), f"{min(ratios):.2f}–{max(ratios):.2f}")
        yield from (f"{measured:.2f}", f"{by_flops:.2f}", f"{by_flops / measured - 1:+.0%}")
        yield from (f"{both:.2f}", f"{both / measured - 1:+.0%}")

    titles = ["run here", "seeds", "× MoCo's, range", "median", "FLOPs", "off", "FLOPs and calls"]
    yield from table([*titles, "off"], map(row, seconds))


def main() -> None:
    both = machines()
    files = sorted(Path("search_spaces").glob("*.yaml"))
    files = [file for file in files if file.stem != "quickstart"]  # for a CPU
    print(f"One GPU sustains, in TFLOP/s (fp32, half): {_rates(both)}\n")
    sections: dict[str, Iterator[str]] = {
        "Per image": per_image(),
        "GB on a GPU": on_the_device(),
        "MB on a GPU, and sent by it in a step": constants_and_traffic(),
        "ASCL on N A100": on_n_gpus(both[0]),
        "Device-hours of a run, A100 / V100": one_run(both),
        "Sweeps": sweeps(both, files),
        "Loaders": loaders(both),
        "Others' timings": against_published(both),
    }
    if len(sys.argv) > 1:
        sections["A ledger"] = against_ledger(Ledger(sys.argv[1]).runs().values())
    for title, lines in sections.items():
        print(f"## {title}\n", flush=True)
        for line in lines:
            print(line, flush=True)
        print()


def _rates(both: Sequence[Machine]) -> str:
    return "; ".join(f"{m.name} {m.fp32 / 1e12:.1f}, {m.half / 1e12:.1f}" for m in both)


if __name__ == "__main__":
    main()
