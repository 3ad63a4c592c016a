"""Features of a trained run: outputs of its frozen encoder for un-augmented images.

Shapes: N = images, D = feature.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from ascl.checkpoint import read
from ascl.config import RunConfig, merge
from ascl.data.loader import EVAL_BATCH
from ascl.errors import CheckpointError
from ascl.eval.extract import extract_features
from ascl.progress import OnProgress, no_progress
from ascl.train import Run, build, pick_device

Split = Literal["test", "train"]


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a run, with their labels and origin."""

    config: RunConfig
    epoch: int
    """Epoch after which the features were computed."""
    split: str
    """Which images: "test", "holdout" (if the run was scored on one), or "train"."""
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
    """Compute features of the images that a run is scored on, or of its labeled training images.

    Args:
        checkpoint: Checkpoint of the run, which also contains its config.
        split: "test" for the scored images, "train" for the labeled training images.
        root: Folder of the datasets, if it has moved since training.
        on_progress: Progress callback.
    """
    device = pick_device("auto")  # the run's device may not exist on this machine
    state = read(checkpoint.read_bytes(), checkpoint, device)
    moved = {"data": {"root": str(root)}} if root else {}
    try:
        tree, weights = state["config"], state["method"]
        epoch = int(state.get("trained", state)["epoch"])  # trained, and perhaps not scored
    except KeyError as error:
        raise _misfit(checkpoint, error) from error
    run = build(RunConfig.of(merge(tree, moved)), device=device)
    try:
        run.method.load_state_dict(weights)
    except RuntimeError as error:  # torch raises it for weights of other names or shapes
        raise _misfit(checkpoint, error) from error
    run.epoch = epoch
    return embed_run(run, split, on_progress)


def _misfit(checkpoint: Path, error: Exception) -> CheckpointError:
    reason = str(error).splitlines()[0].rstrip(":")
    return CheckpointError(
        f"{checkpoint} does not fit this version ({reason}); use the version that wrote the file"
    )


def embed_run(run: Run, split: Split = "test", on_progress: OnProgress = no_progress) -> Features:
    """Compute features like `embed`, for a run in its current state."""
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
        values=extract_features(encode, images, run.pixels).cpu(),
        labels=images.labels.cpu(),
    )
