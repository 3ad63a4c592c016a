"""Checkpoints: one file per run, written atomically, read without unpickling code.

It holds what training changes: weights, bank, optimiser, scaler, epoch and history. Random streams
are made anew from the seed each epoch, so there is none to save.
"""

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
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def restore(run: Run, path: Path) -> None:
    """Put a run back to where its checkpoint was written."""
    state = read(path, run.pixels.device)
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


def read(path: Path, device: torch.device) -> dict[str, Any]:
    """A checkpoint's contents; damage and foreign files get a sentence."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        found = state["format"]
    except FileNotFoundError:
        raise
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


def train_in(
    run: Run, folder: Path, on_progress: OnProgress = no_progress
) -> Iterator[EpochMetrics]:
    """Train a run in its folder: go on from its checkpoint if there is one, save every epoch.

    Besides `checkpoint.pt` the folder gets `config.yaml` and `metrics.jsonl`, a line per epoch.
    """
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        restore(run, checkpoint)
    keeper = distributed.rank() == 0
    if keeper:
        write_text(folder / "config.yaml", run.config.to_yaml())
        _write_metrics(run, folder)
    for metrics in train(run, on_progress):
        if keeper:
            # The checkpoint first: it is the truth, from which the metrics can be written again.
            save(run, checkpoint)
            _write_metrics(run, folder)
        yield metrics


def _write_metrics(run: Run, folder: Path) -> None:
    lines = [json.dumps(asdict(metrics)) + "\n" for metrics in run.history]
    write_text(folder / "metrics.jsonl", "".join(lines))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write(temporary)` make a file, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
