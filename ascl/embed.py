"""Features of a trained run: what its frozen encoder makes of un-augmented images.

Shapes: N = images, D = feature.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from ascl.batches import EVAL_BATCH
from ascl.checkpoint import CheckpointError, read
from ascl.config import RunConfig, merge
from ascl.evaluate import features
from ascl.train import OnProgress, Run, build, no_progress, pick_device

Split = Literal["test", "train"]


@dataclass(frozen=True, eq=False)
class Features:
    """A run's view of some images."""

    config: RunConfig
    epoch: int
    """After which they were computed."""
    split: str
    """Which images: "test", "holdout" for a run that was scored on one, or "train"."""
    values: Tensor
    """float32 (N, D)."""
    labels: Tensor
    """int64 (N,)."""


def embed(
    checkpoint: Path,
    split: Split = "test",
    *,
    root: Path | None = None,
    on_progress: OnProgress = no_progress,
) -> Features:
    """Features of the images that a run is scored on, or of the labelled ones it trained on.

    The checkpoint says all of the run; `root` is where the datasets lie if they have moved.
    """
    device = pick_device("auto")  # a run may have been trained on one that is not here
    state = read(checkpoint.read_bytes(), checkpoint, device)
    moved = {"data": {"root": str(root)}} if root else {}
    try:
        tree, weights, epoch = state["config"], state["method"], int(state["epoch"])
    except KeyError as error:
        raise _misfit(checkpoint, error) from error
    run = build(RunConfig.of(merge(tree, moved)), device=device)
    try:
        run.method.load_state_dict(weights)
    except RuntimeError as error:  # how torch says that weights do not fit
        raise _misfit(checkpoint, error) from error
    run.epoch = epoch
    return of_run(run, split, on_progress)


def _misfit(checkpoint: Path, error: Exception) -> CheckpointError:
    reason = str(error).splitlines()[0].rstrip(":")
    return CheckpointError(
        f"{checkpoint} does not fit this version ({reason}); use the one that wrote it"
    )


def of_run(run: Run, split: Split = "test", on_progress: OnProgress = no_progress) -> Features:
    """As `embed`, of a run as it stands."""
    images = run.data.test if split == "test" else run.data.reference
    steps, done = -(-len(images) // EVAL_BATCH), 0

    def encode(batch: Tensor) -> Tensor:
        nonlocal done
        done += 1
        on_progress("features", done, steps)
        return run.encode(batch)

    run.model.eval()
    return Features(
        config=run.config,
        epoch=run.epoch,
        split=run.data.scored if split == "test" else "train",
        values=features(encode, images, run.pixels).cpu(),
        labels=images.labels.cpu(),
    )
