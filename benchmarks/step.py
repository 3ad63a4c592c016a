"""The training step (views, both encoders, loss, EMA) against peers fed by PIL; ASCL's overhead.

All sides use the same network and batch size, and each runs in a separate process. The PIL peer is
our method with PIL views: once with PyTorch's defaults (contiguous layout, freed memory returned to
the system) and once with ours (channels last, freed memory kept). The second row therefore isolates
the effect of the views. lightly's peer is its MoCo v2 recipe with its own transform. The workers of
a peer end before the other side runs, and batches that they prefetched are not timed.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from PIL import Image
from torchvision.transforms.functional import to_pil_image

from ascl.config import RunConfig
from ascl.distributed import plan_shuffle
from ascl.losses import bank_logits, info_nce, unit
from ascl.memory import keep_freed
from ascl.methods.base import Batch
from ascl.models.resnet import ResNet
from ascl.relabel import Relabel, label_diagnostics, relabel
from ascl.sections import EncoderConfig
from ascl.train import DIAGNOSE_EVERY, Run, build, train
from benchmarks.peers import WORKERS, LightlyMoCo, PilViews, lightly_transform, loader_batches
from benchmarks.timing import Measure, Ratio, SeparateProcesses, alternate, timed

QUEUE = 4096
SKIP = 2 * WORKERS + 2  # prefetched batches and a warm-up


def a_run(width: int, batch: int, relabel: str, steps: int, *, channels_last: bool = True) -> Run:
    return build(
        RunConfig.of(
            {
                "epochs": 1000,
                "batch_size": batch,
                "data": {"name": "shapes", "train_size": max(batch * steps, QUEUE)},
                "encoder": {"width": width},
                "method": {"relabel": relabel, "queue_size": QUEUE},
                "eval": {"probe": "none", "knn_every": 1000},
                "runtime": {"channels_last": channels_last},
            }
        )
    )


def per_step(run: Run) -> Measure:
    """Make a measure of the seconds per step in one epoch of real training, without the first step.

    An epoch has at least as many images as the bank: 16 steps at batch 256.
    """
    marks: list[float] = []

    def mark(phase: str, step: int, steps: int) -> None:
        if phase == "train":
            marks.append(time.perf_counter())

    epochs = train(run, mark)

    def measure() -> float:
        marks.clear()
        next(epochs)
        return (marks[-1] - marks[0]) / (len(marks) - 1)

    return measure


def fed(dataset: PilViews, batch: int, steps: int, step: Callable[..., None]) -> Measure:
    """Make a measure of the seconds per step of a function fed by a fresh loader."""

    def measure() -> float:
        batches = loader_batches(dataset, batch)
        start = 0.0
        for i, views in enumerate(batches):
            if i == SKIP:
                start = time.perf_counter()
            if i == SKIP + steps:
                break
            step(*views)
        seconds = (time.perf_counter() - start) / steps
        batches.close()
        return seconds

    return measure


def method_step(run: Run) -> Callable[..., None]:
    """Return a function that takes a step of our method on given views."""
    channels_last = run.config.runtime.channels_last
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def step(query: torch.Tensor, key: torch.Tensor) -> None:
        views = tuple(v.contiguous(memory_format=layout) for v in (query, key))
        labels = torch.zeros(len(query), dtype=torch.long)
        run.optimizer.zero_grad(set_to_none=True)
        order = torch.randperm(len(query))
        batch = Batch(
            views,
            labels,
            indices=order,
            shuffle=plan_shuffle(order, 0, 1),
            diagnose=False,
            progress=0.0,
            draws=(),
        )
        output = run.model(batch)
        output.loss.backward()
        run.optimizer.step()
        run.method.after_backward(output)

    run.model.train()
    return step


def ours(width: int, batch: int, relabel: str, steps: int) -> Measure:
    keep_freed()
    return per_step(a_run(width, batch, relabel, steps + 1))


def pictures_of(run: Run) -> list[Image.Image]:
    return [to_pil_image(x) for x in run.data.train.images]  # type: ignore[union-attr]


def fed_by_pil(width: int, batch: int, steps: int, *, our_settings: bool) -> Measure:
    if our_settings:
        keep_freed()
    run = a_run(width, batch, "none", 2, channels_last=our_settings)
    return fed(PilViews(pictures_of(run)), batch, steps, method_step(run))


def lightly_moco(width: int, batch: int, steps: int) -> Measure:
    pictures = pictures_of(a_run(width, batch, "none", 2))
    backbone = ResNet(EncoderConfig(width=width, bn_splits=1))
    recipe = LightlyMoCo(backbone, backbone.feature_dim)
    return fed(PilViews(pictures, lightly_transform()), batch, steps, recipe.step)


def loss_alone(kind: Relabel) -> Measure:
    """Make a measure of the loss and its gradient on given features: batch 256, bank 4096."""
    generator = torch.Generator().manual_seed(0)
    query, key, bank = (unit(torch.randn(n, 128, generator=generator)) for n in (256, 256, QUEUE))

    def step() -> None:
        leaf = query.clone().requires_grad_()
        labels = None
        if kind != "none":
            labels = relabel(key @ bank.T, kind, num_neighbours=1, temperature=0.05)
        info_nce(bank_logits(leaf, key, bank, 0.1), labels).backward()

    return timed(step, 20)


def run() -> Iterator[Ratio]:
    steps, rounds = 8, 3
    for width, batch, goal in ((16, 256, "≥ 2"), (64, 64, "≥ 1.2")):
        name = f"step, {width}-wide ResNet-18, batch {batch}"
        fed_model = f"{name}: same model fed by PIL, {WORKERS} workers"
        peers = {
            f"{fed_model}, PyTorch's defaults": (partial(fed_by_pil, our_settings=False), goal),
            f"{fed_model}, our layout and memory": (partial(fed_by_pil, our_settings=True), "–"),
            f"{name}: lightly's MoCo v2, {WORKERS} workers": (lightly_moco, goal),
        }
        with SeparateProcesses() as processes:
            own = processes.start(partial(ours, width, batch, "none", steps))
            for what, (peer, peer_goal) in peers.items():
                with SeparateProcesses() as peer_processes:
                    other = peer_processes.start(partial(peer, width, batch, steps))
                    a, b = alternate(own, other, rounds=rounds)
                yield Ratio(what, a, b, peer_goal)

    # The difference is about as small as measurement noise, so alternate often and briefly.
    moco, ascl = (ours(16, 256, kind, 6) for kind in ("none", "ascl"))
    moco(), ascl()
    b, a = alternate(moco, ascl, rounds=15)
    yield Ratio("ASCL step over MoCo step, 16-wide, batch 256", a, b, "≤ 1.03", speedup=False)

    with_labels, plain = alternate(loss_alone("ascl"), loss_alone("none"), rounds=15)
    yield Ratio(
        "the same, estimated from the time that relabeling adds to the loss",
        b + with_labels - plain,
        b,
        "≤ 1.03",
        speedup=False,
        note=f"{1000 * (with_labels - plain):.1f} ms per step",
    )

    similarity = torch.randn(256, 4096) / 10
    labels = relabel(similarity, "ascl", num_neighbours=1, temperature=0.05)
    classes = torch.randint(0, 10, (256,)), torch.randint(0, 10, (4096,))
    diagnose = timed(
        lambda: label_diagnostics(similarity, labels, *classes, kind="ascl", temperature=0.05), 5
    )
    diagnose()
    cost, step = alternate(diagnose, ascl, rounds=3)
    yield Ratio(
        "step with diagnostics over step without",
        step + cost / DIAGNOSE_EVERY,
        step,
        "≤ 1.01",
        speedup=False,
        note=f"{1000 * cost:.1f} ms every {DIAGNOSE_EVERY} steps",
    )
