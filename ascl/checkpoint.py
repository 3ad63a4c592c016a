"""Checkpoints: files of a run, written atomically, read without unpickling code.

A checkpoint holds the state that training changes: weights, memory bank, optimizer, scaler, epoch
and history. Random generators are derived from the seed at every epoch, so none is saved.

    checkpoint.pt            after an epoch, or after the training of the last epoch
    checkpoint.previous.pt   the checkpoint before that one, while the run trains
    evaluation.pt            what is done of the evaluation of the last epoch, while it is evaluated
    config.yaml              the config
    metrics.jsonl            one line per epoch
"""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ascl import distributed
from ascl.errors import CheckpointError, DamagedCheckpointError
from ascl.eval.linear_probe import ProbeState
from ascl.files import write_atomically, write_text
from ascl.metrics import EpochMetrics
from ascl.progress import OnProgress, no_progress
from ascl.train import Evaluation, Run, Stage, TrainedEpoch, advance

FORMAT = 1
UNSCORED_FORMAT = 2  # of a run that is trained but not scored: format 1 has no such state
CHECKPOINT, PREVIOUS, EVALUATION = "checkpoint.pt", "checkpoint.previous.pt", "evaluation.pt"
CONFIG, METRICS = "config.yaml", "metrics.jsonl"
Check = Callable[[], None]
"""Called before a file is replaced; raises if this process must not write any more."""


def no_check() -> None:
    """Allow every write."""


def save(run: Run, path: Path, check: Check = no_check) -> None:
    """Write the run's state atomically: a reader sees either the old file or the new one.

    The old file is kept as `checkpoint.previous.pt`.
    """
    state = {
        "format": FORMAT,
        "identity": run.config.identity(),
        "config": run.config.model_dump(mode="json"),
        "epoch": run.epoch,
        "history": [asdict(metrics) for metrics in run.history],
        "method": run.method.state_dict(),
        "optimiser": run.optimizer.state_dict(),  # spelled as in files of earlier versions
        "scaler": run.scaler.state_dict(),
    }
    if run.trained is not None:
        state |= {"format": UNSCORED_FORMAT, "trained": asdict(run.trained)}

    def keep_previous() -> None:
        check()
        if path.exists():
            os.replace(path, path.with_name(PREVIOUS))

    _write(state, path, keep_previous)


def _save_evaluation(run: Run, path: Path, check: Check) -> None:
    """Write `run.evaluation`: a small file, unlike the whole run."""
    assert run.trained is not None
    _write({"token": run.trained.token, **_fields(run.evaluation)}, path, check)


def _fields(evaluation: Evaluation) -> dict[str, Any]:
    probe = evaluation.probe
    return {**vars(evaluation), "probe": None if probe is None else vars(probe)}


def _write(state: dict[str, Any], path: Path, before_replace: Check) -> None:
    def write(temporary: Path) -> None:
        try:
            with temporary.open("wb") as file:
                torch.save(state, file)
        except RuntimeError as error:  # torch 2.15 hides the error of the disk
            cause = error.__context__
            if not isinstance(cause, OSError):
                raise
            raise OSError(cause.errno, f"cannot be written: {cause.strerror}", path) from error

    write_atomically(path, write, before_replace=before_replace)


def restore(run: Run, path: Path) -> bool:
    """Restore a run from its checkpoint. Return False if the checkpoint does not exist.

    Rank 0 reads the file for all ranks, so that they resume from the same epoch even if their disks
    hold different files.
    """
    content = _read_for_all_ranks(path)
    if content is None:
        return False
    state = read(content, path, run.pixels.device)
    if state["identity"] != run.config.identity():
        raise CheckpointError(
            f"{path} belongs to run {state['identity']}, but this config is run "
            f"{run.config.identity()}; use another --out, or delete the file to start over"
        )
    run.method.load_state_dict(state["method"])
    run.optimizer.load_state_dict(state["optimiser"])
    run.scaler.load_state_dict(state["scaler"])
    run.epoch = state["epoch"]
    run.history = [EpochMetrics(**metrics) for metrics in state["history"]]
    trained = state.get("trained")
    run.trained = None if trained is None else TrainedEpoch(**trained)
    return True


def _restore_evaluation(run: Run, path: Path) -> None:
    """Restore what is done of the evaluation, unless the file is of other weights or damaged."""
    content = _read_for_all_ranks(path)
    if content is None or run.trained is None:
        return
    try:
        state = _load(content, path, run.pixels.device)
    except DamagedCheckpointError:
        return
    if state.pop("token") == run.trained.token:
        probe = state.pop("probe")
        run.evaluation = Evaluation(**state, probe=None if probe is None else ProbeState(**probe))


def _read_for_all_ranks(path: Path) -> bytes | None:
    content = None
    if distributed.rank() == 0 and path.exists():
        content = path.read_bytes()
    return distributed.broadcast_bytes(content)


def read(content: bytes, path: Path, device: torch.device) -> dict[str, Any]:
    """Deserialize a checkpoint; raise `CheckpointError` if it is damaged or of another format."""
    state = _load(content, path, device)
    if "format" not in state:
        raise _damaged(path)
    if state["format"] not in (FORMAT, UNSCORED_FORMAT):
        raise CheckpointError(
            f"{path} has checkpoint format {state['format']}, but this version reads formats up to "
            f"{UNSCORED_FORMAT}; use the version that wrote the file, or delete the file to start "
            "over"
        )
    return state


def _load(content: bytes, path: Path, device: torch.device) -> dict[str, Any]:
    try:
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise  # the file may be intact, so do not suggest deleting it
    except Exception as error:  # torch.load documents no common base class for its errors
        raise _damaged(path) from error
    if not isinstance(state, dict):
        raise _damaged(path)
    return state


def _damaged(path: Path) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"{path} is damaged or not a checkpoint; delete it to start over")


def resume(run: Run, folder: Path) -> str | None:
    """Restore a run from its folder; with an empty folder the run starts from the beginning.

    Returns a note if the newest checkpoint is damaged and the previous one is used.
    """
    writes = distributed.rank() == 0
    if writes:
        for half in folder.glob(".*.[0-9]*.half"):  # left by a process killed while writing
            half.unlink()
    found, note = _restore_newest(run, folder)
    if found:
        _restore_evaluation(run, folder / EVALUATION)
        if writes:
            _write_readable(run, folder)
    elif writes and (folder / CONFIG).exists():
        raise CheckpointError(
            f"{folder / CONFIG} would be overwritten, but the folder has no checkpoint of a run; "
            "use another --out"
        )
    return note


def _restore_newest(run: Run, folder: Path) -> tuple[bool, str | None]:
    """Restore the newest checkpoint that can be read; return whether there is one, and a note."""
    newest, previous = folder / CHECKPOINT, folder / PREVIOUS
    note = None
    try:
        if restore(run, newest):
            return True, None
    except DamagedCheckpointError:
        if not _restore_previous(run, previous):
            raise
        note = f"{newest} is damaged; resuming from the previous checkpoint, epoch {run.epoch}"
    else:  # a process may have been killed between the renames in `save`
        if not restore(run, previous):
            return False, None
    if distributed.rank() == 0:
        os.replace(previous, newest)
    return True, note


def _restore_previous(run: Run, path: Path) -> bool:
    with contextlib.suppress(DamagedCheckpointError):
        return restore(run, path)
    return False


def discard(folder: Path) -> None:
    """Delete the checkpoints of a run, so that it starts over."""
    for name in (CHECKPOINT, PREVIOUS, EVALUATION, CONFIG):
        (folder / name).unlink(missing_ok=True)


def train_in(
    run: Run, folder: Path, on_progress: OnProgress = no_progress
) -> Iterator[EpochMetrics]:
    """Train the remaining epochs of a run and save each of them. Call `resume` first.

    Besides the checkpoint, write `config.yaml`, and `metrics.jsonl` with one line per epoch.
    """
    for step in advance_in(run, folder, on_progress):
        if isinstance(step, EpochMetrics):
            yield step


def advance_in(
    run: Run, folder: Path, on_progress: OnProgress = no_progress, check: Check = no_check
) -> Iterator[EpochMetrics | Stage]:
    """Train like `train_in`; yield also after the saves within the last epoch, as `advance`."""
    writes = distributed.rank() == 0
    if writes:
        folder.mkdir(parents=True, exist_ok=True)  # a read-only folder fails before any training
    for step in advance(run, on_progress):
        if writes and step is Stage.EVALUATING:
            _save_evaluation(run, folder / EVALUATION, check)
        elif writes:
            # The checkpoint first: the other files can be rebuilt from it after a kill.
            save(run, folder / CHECKPOINT, check)
            _write_readable(run, folder)
            if run.epoch == run.config.epochs:
                for name in (PREVIOUS, EVALUATION):
                    (folder / name).unlink(missing_ok=True)
        yield step


def _write_readable(run: Run, folder: Path) -> None:
    write_text(folder / CONFIG, run.config.to_yaml())
    lines = [json.dumps(asdict(metrics)) + "\n" for metrics in run.history]
    write_text(folder / METRICS, "".join(lines))
