"""The whole training step (views, both encoders, loss, EMA) against PIL-fed peers, and ASCL's own.

All sides have the same network and batch. The PIL side is our method with everything but the views,
once in torch's default memory layout (what a loader hands over) and once in ours, channels last:
the second row shows what the views alone bring. lightly's is its MoCo v2 recipe with its own
transform. Workers of a peer are ended before the other
side runs, and the batches they had ready are not counted.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torchvision.transforms.functional import to_pil_image

from ascl.config import EncoderConfig, RunConfig
from ascl.encoders import ResNet
from ascl.methods import Batch
from ascl.relabel import label_diagnostics, relabel
from ascl.train import DIAGNOSE_EVERY, Run, build, train
from benchmarks.peers import WORKERS, LightlyMoCo, PilViews, lightly_transform, loader_batches
from benchmarks.timing import Ratio, in_turns, timed

SKIP = 2 * WORKERS + 2  # batches that a loader may have had ready, and a warm-up


def a_run(width: int, batch: int, relabel: str, steps: int, *, channels_last: bool = True) -> Run:
    return build(
        RunConfig.of(
            {
                "epochs": 1000,
                "batch_size": batch,
                "data": {"name": "shapes", "train_size": batch * steps},
                "encoder": {"width": width},
                "method": {"relabel": relabel},
                "eval": {"probe": "none", "knn_every": 1000},
                "runtime": {"channels_last": channels_last},
            }
        )
    )


def per_step(run: Run) -> Callable[[], float]:
    """Seconds per step of one epoch of the run, as it really trains, its first step left out."""
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


def fed(
    dataset: PilViews, batch: int, steps: int, step: Callable[..., None]
) -> Callable[[], float]:
    """Seconds per step of a function fed by a fresh loader."""

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
    """A step of our own method on views that come from elsewhere."""
    channels_last = run.config.runtime.channels_last
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def step(query: torch.Tensor, key: torch.Tensor) -> None:
        views = tuple(v.contiguous(memory_format=layout) for v in (query, key))
        labels = torch.zeros(len(query), dtype=torch.long)
        run.optimiser.zero_grad(set_to_none=True)
        output = run.model(Batch(views, labels, torch.randperm(len(query)), diagnose=False))
        output.loss.backward()
        run.optimiser.step()
        run.method.after_backward(output)

    run.model.train()
    return step


def run() -> Iterator[Ratio]:
    for width, batch, steps, rounds, goal in ((16, 256, 8, 3, "≥ 2"), (64, 64, 8, 3, "≥ 1.2")):
        ours = per_step(a_run(width, batch, "none", steps + 1))
        name = f"step, {width}-wide ResNet-18, batch {batch}"
        for layout, wanted in (("default", goal), ("our", "–")):
            peer = a_run(width, batch, "none", 2, channels_last=layout == "our")
            pictures = [to_pil_image(x) for x in peer.data.train.images]  # type: ignore[union-attr]
            a, b = in_turns(
                ours, fed(PilViews(pictures), batch, steps, method_step(peer)), rounds=rounds
            )
            what = f"{name}: same model in {layout} layout fed by PIL, {WORKERS} workers"
            yield Ratio(what, a, b, wanted)
        backbone = ResNet(EncoderConfig(width=width, bn_splits=1))
        recipe = LightlyMoCo(backbone, backbone.feature_dim)
        data = PilViews(pictures, lightly_transform())
        a, b = in_turns(ours, fed(data, batch, steps, recipe.step), rounds=rounds)
        yield Ratio(f"{name}: lightly's MoCo v2, {WORKERS} workers", a, b, goal)

    moco, ascl = (per_step(a_run(16, 256, kind, 7)) for kind in ("none", "ascl"))
    moco(), ascl()
    b, a = in_turns(moco, ascl, rounds=7)
    yield Ratio("ASCL step over MoCo step, 16-wide, batch 256", a, b, "≤ 1.03", speedup=False)

    similarity = torch.randn(256, 4096) / 10
    labels = relabel(similarity, "ascl", num_neighbours=1, temperature=0.05)
    classes = torch.randint(0, 10, (256,)), torch.randint(0, 10, (4096,))
    look = timed(
        lambda: label_diagnostics(similarity, labels, *classes, kind="ascl", temperature=0.05), 5
    )
    look()
    cost, step = in_turns(look, ascl, rounds=3)
    yield Ratio(
        "step with diagnostics over step without",
        step + cost / DIAGNOSE_EVERY,
        step,
        "≤ 1.01",
        speedup=False,
        note=f"{1000 * cost:.1f} ms each {DIAGNOSE_EVERY} steps",
    )
