"""Checkpoints: one file per run, written atomically, read without unpickling code.

It holds what training changes: weights, bank, optimiser, scaler, epoch and history. Random streams
are made anew from the seed each epoch, so there is none to save.
"""

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ascl import distributed
from ascl.train import EpochMetrics, OnProgress, Run, no_progress, train

FORMAT = 1
CHECKPOINT, CONFIG, METRICS = "checkpoint.pt", "config.yaml", "metrics.jsonl"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, in one sentence with the way out."""


def save(run: Run, path: Path) -> None:
    """Write the run's state; a reader sees the old file or the new one, never a part."""
    state = {
        "format": FORMAT,
        "identity": run.config.identity(),
        "config": run.config.model_dump(mode="json"),
        "epoch": run.epoch,
        "history": [asdict(metrics) for metrics in run.history],
        "method": run.method.state_dict(),
        "optimiser": run.optimiser.state_dict(),
        "scaler": run.scaler.state_dict(),
    }

    def write(temporary: Path) -> None:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # how torch reports a full disk
            raise OSError(errno.EIO, "cannot be written; disk full?", path) from error

    write_atomically(path, write)


def restore(run: Run, path: Path) -> bool:
    """Put a run back to where its checkpoint was written, if there is one.

    Rank 0 reads it for all, so that every rank goes on from the same epoch whatever its own disk
    holds.
    """
    content = None
    if distributed.rank() == 0 and path.exists():
        content = path.read_bytes()
    content = distributed.from_first(content)
    if content is None:
        return False
    state = read(content, path, run.pixels.device)
    if state["identity"] != run.config.identity():
        raise CheckpointError(
            f"{path} belongs to another run ({state['identity']}, this one is "
            f"{run.config.identity()}); use another --out, or delete it to start over"
        )
    run.method.load_state_dict(state["method"])
    run.optimiser.load_state_dict(state["optimiser"])
    run.scaler.load_state_dict(state["scaler"])
    run.epoch = state["epoch"]
    run.history = [EpochMetrics(**metrics) for metrics in state["history"]]
    return True


def read(content: bytes, path: Path, device: torch.device) -> dict[str, Any]:
    """What a checkpoint's bytes mean; damage and foreign files get a sentence."""
    try:
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
        found = state["format"]
    except (MemoryError, torch.OutOfMemoryError):
        raise  # the file may be good: nothing to delete
    except Exception as error:  # torch.load names no common base for what a bad file can raise
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint; delete it to start over"
        ) from error
    if found != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {found}, this version reads {FORMAT}; "
            "use the version that wrote it, or delete it to start over"
        )
    assert isinstance(state, dict)
    return state


def resume(run: Run, folder: Path) -> None:
    """Put a run back to where its folder says it was; a fresh folder leaves it at the start."""
    keeper = distributed.rank() == 0
    if keeper:
        for half in folder.glob(".*.[0-9]*.half"):  # of a process that was killed while writing
            half.unlink()
    if restore(run, folder / CHECKPOINT):
        if keeper:
            _write_readable(run, folder)
    elif keeper and (folder / CONFIG).exists():
        raise ValueError(
            f"{folder / CONFIG} would be overwritten, and is not of a run that was trained here; "
            "use another --out"
        )


def train_in(
    run: Run, folder: Path, on_progress: OnProgress = no_progress
) -> Iterator[EpochMetrics]:
    """Train what is left of a run, saving every epoch; `resume` comes first.

    Besides the checkpoint the folder gets `config.yaml`, and `metrics.jsonl` with a line per epoch.
    """
    keeper = distributed.rank() == 0
    if keeper:
        folder.mkdir(parents=True, exist_ok=True)  # what cannot be written shows before an epoch
    for metrics in train(run, on_progress):
        if keeper:
            # The checkpoint first: it is the truth, from which the others can be written again.
            save(run, folder / CHECKPOINT)
            _write_readable(run, folder)
        yield metrics


def _write_readable(run: Run, folder: Path) -> None:
    write_text(folder / CONFIG, run.config.to_yaml())
    lines = [json.dumps(asdict(metrics)) + "\n" for metrics in run.history]
    write_text(folder / METRICS, "".join(lines))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write(temporary)` make a file, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
