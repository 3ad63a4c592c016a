"""Training of a run in a worker: results, logs, and resuming after a kill."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascl import distributed
from ascl.checkpoint import CHECKPOINT, PREVIOUS
from ascl.errors import DataError, RunError
from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.executors.worker import (
    BEST,
    LOG,
    DeviceError,
    Results,
    describe_error,
    is_device_error,
    is_no_fault,
    run_task,
)
from ascl_sweep.store.work_folder import CLAIM, SupersededError
from tests.conftest import tiny


def task(folder: Path | str, *, config: dict[str, Any] | None = None, **changes: Any) -> RunTask:
    values = config or tiny("ascl", epochs=3).model_dump(mode="json")
    return replace(RunTask("x", 1, values, str(folder), recorded=0), **changes)


def losses(results: list[RunResult]) -> list[float]:
    return [result.metrics.loss for result in results if result.metrics]


def epochs(results: list[RunResult]) -> list[int]:
    return [result.metrics.epoch for result in results if result.metrics]


def test_every_epoch_is_a_result_and_the_last_one_says_so(tmp_path: Path) -> None:
    results = list(run_task(task(tmp_path)))
    assert epochs(results) == [1, 2, 3]
    assert [result.state for result in results] == ["running"] * 3 + ["done"]
    assert [result.is_last for result in results] == [False] * 3 + [True]
    assert [result.progress for result in results] == [False, False, True, False]
    assert results[0].host and results[0].device == "cpu" and results[0].torch


def test_a_new_worker_reports_what_the_store_lacks(tmp_path: Path) -> None:
    whole = list(run_task(task(tmp_path / "a")))
    first = run_task(task(tmp_path / "b"))
    next(first), next(first)
    first.close()
    again = list(
        run_task(task(tmp_path / "b", recorded=1))
    )  # the driver died before it recorded epoch 2
    assert epochs(again) == [2, 3]
    assert losses(again) == losses(whole)[1:]


def test_a_damaged_checkpoint_is_discarded_with_a_note(tmp_path: Path) -> None:
    whole = list(run_task(task(tmp_path)))
    (tmp_path / CHECKPOINT).write_bytes(b"rubbish")
    again = list(run_task(task(tmp_path)))
    assert losses(again) == losses(whole)
    note = again[0].note or ""
    assert "the checkpoint cannot be loaded, the run starts over: " in note and "is damaged" in note


@pytest.mark.parametrize("remote", [False, True])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one_with_a_note(
    remote: bool, tmp_path: Path
) -> None:
    whole = list(run_task(task(tmp_path / "whole")))
    there = tmp_path / "store"
    address = f"file://{there}" if remote else there
    take(run_task(task(address)), 2)
    (there / CHECKPOINT).write_bytes(b"rubbish")
    again = list(run_task(task(address, recorded=2)))
    assert epochs(again) == [2, 3] and losses(again) == losses(whole)[1:]
    assert "resuming from the previous checkpoint, epoch 1" in (again[0].note or "")
    names = {CHECKPOINT, "config.yaml", "metrics.jsonl", LOG, CLAIM}
    assert {path.name for path in there.iterdir()} == names, "a finished run has one checkpoint"


def test_two_damaged_checkpoints_start_the_run_over(tmp_path: Path) -> None:
    whole = list(run_task(task(tmp_path / "whole")))
    take(run_task(task(tmp_path)), 2)
    for name in (CHECKPOINT, PREVIOUS):
        (tmp_path / name).write_bytes(b"rubbish")
    again = list(run_task(task(tmp_path)))
    assert losses(again) == losses(whole) and "starts over" in (again[0].note or "")


def take(results: Results, count: int) -> None:
    """Let a worker go as far as this many results; then it is killed."""
    for _ in range(count):
        next(results)
    results.close()


def stored(folder: Path) -> dict[str, bytes]:
    """Files of a run, without its log."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOG}


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("ahead", [1, 2])
def test_an_older_worker_ends_and_writes_nothing_once_a_newer_one_has_begun(
    remote: bool, ahead: int, tmp_path: Path
) -> None:
    """The older worker is on a node that was partitioned: it stands still, and then continues."""
    there = tmp_path / "store"
    address = f"file://{there}" if remote else there
    older, newer = run_task(task(address)), run_task(task(address, attempt=2))
    for _ in range(ahead):
        next(older)
    next(newer)
    before = stored(there)
    (lost,) = older
    assert lost.state is RunState.LOST and "another worker has taken over" in (lost.error or "")
    assert stored(there) == before
    rest = list(newer)
    assert rest[-1].state is RunState.DONE
    last = torch.load(there / CHECKPOINT, weights_only=True)["history"][-1]
    assert rest[-1].metrics == EpochMetrics(**last), "also the times: it is the newer worker's file"


def test_a_checkpoint_that_an_older_worker_is_writing_is_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = run_task(task(tmp_path)), run_task(task(tmp_path, attempt=2))
    next(older)
    torch_save = torch.save

    def save(*args: Any) -> None:
        monkeypatch.setattr(torch, "save", torch_save)
        torch_save(*args)
        next(newer)

    monkeypatch.setattr(torch, "save", save)
    (lost,) = older
    assert lost.state is RunState.LOST
    last = torch.load(tmp_path / CHECKPOINT, weights_only=True)["history"][-1]
    (result,) = [result for result in newer if result.metrics and result.metrics.epoch == 3]
    assert last["epoch"] == 1, "the newer worker resumed before the older one had saved epoch 2"
    assert result.state is RunState.DONE


def test_an_unscored_checkpoint_is_not_kept_as_the_best_epoch(tmp_path: Path) -> None:
    cut = task(tmp_path, keep_best=True, config=tiny("ascl", epochs=1).model_dump(mode="json"))
    take(run_task(cut), 1)
    take(run_task(cut), 1)
    assert torch.load(tmp_path / BEST, weights_only=True)["format"] == 1


def test_a_failed_rank_puts_its_log_in_a_remote_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    config = tiny("ascl", epochs=3).model_dump(mode="json")
    config["data"] |= {"name": "cifar10", "root": str(tmp_path / "nowhere")}
    with pytest.raises(DataError, match="cifar10 is not in"):
        list(run_task(task(f"file://{tmp_path}/store", config=config)))
    assert [path.name for path in (tmp_path / "store").iterdir()] == [f"{LOG}.1"]
    assert "Traceback" in (tmp_path / "store" / f"{LOG}.1").read_text()


def test_a_failure_is_a_result_of_one_sentence_and_its_traceback_is_in_the_log(
    tmp_path: Path,
) -> None:
    config = tiny("ascl", epochs=3).model_dump(mode="json")
    config["data"] |= {"name": "cifar10", "root": str(tmp_path / "nowhere")}
    (result,) = run_task(task(tmp_path, config=config))
    assert result.state is RunState.FAILED and result.is_last and result.error
    assert result.error.startswith("cifar10 is not in") and "\n" not in result.error
    assert "Traceback" in (tmp_path / LOG).read_text()


def test_a_divergence_is_a_result(tmp_path: Path) -> None:
    config = tiny("ascl", epochs=3).model_dump(mode="json")
    config["optim"]["lr"] = 1e30
    (result,) = run_task(task(tmp_path, config=config))
    assert result.state is RunState.DIVERGED and "the loss became nan" in (result.error or "")


def test_output_goes_to_the_log_while_a_run_trains_and_back_afterwards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_task(task(tmp_path))
    next(run)
    os.write(1, b"from a library in C\n")
    run.close()
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "after\n"
    assert "from a library in C" in (tmp_path / LOG).read_text()


def test_the_best_epoch_of_a_finalist_is_kept(tmp_path: Path) -> None:
    results = list(run_task(task(tmp_path, keep_best=True)))
    scores = [result.metrics.knn_top1 or 0 for result in results if result.metrics]
    kept = torch.load(tmp_path / BEST, weights_only=True)
    assert kept["epoch"] == max(i for i, s in enumerate(scores) if s == max(scores)) + 1


def test_the_best_epoch_is_kept_by_the_next_worker_if_the_first_could_not(tmp_path: Path) -> None:
    """The first worker was killed after it saved a checkpoint and before it copied it."""
    cut = task(tmp_path, keep_best=True)
    first = run_task(cut)
    next(first)
    first.close()
    (tmp_path / BEST).unlink()
    again = run_task(cut)
    next(again)  # the same epoch, reported again: its score is the best so far
    again.close()
    assert torch.load(tmp_path / BEST, weights_only=True)["epoch"] == 1


def test_a_folder_that_was_half_deleted_is_started_over(tmp_path: Path) -> None:
    whole = list(run_task(task(tmp_path)))
    (tmp_path / CHECKPOINT).unlink()
    assert losses(list(run_task(task(tmp_path)))) == losses(whole)


def test_an_error_of_the_executor_is_no_failure_of_the_run(tmp_path: Path) -> None:
    def lose() -> None:
        raise ConnectionError("an object was lost")

    with pytest.raises(ConnectionError):
        list(run_task(task(tmp_path), lose, raises=(ConnectionError,)))
    (result,) = run_task(task(tmp_path), lose)
    assert result.state is RunState.FAILED


DEAD = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nadvice")


def caused_by(error: Exception) -> Exception:
    full = OSError(5, "cannot be written; is the disk full?")
    full.__cause__ = error
    return full


@pytest.mark.parametrize(
    "error",
    [
        DEAD,
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("nvmlInit failed: NVML driver mismatch"),
        RuntimeError("uncorrectable ECC error encountered"),
        caused_by(DEAD),
    ],
)
def test_an_error_of_the_gpu_is_known(error: Exception) -> None:
    assert is_device_error(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        torch.distributed.DistBackendError("NCCL: CUDA error"),
        ValueError("CUDA error"),
        RuntimeError("SECC"),
        caused_by(ValueError("bad")),
    ],
)
def test_other_errors_are_the_runs_own(error: Exception) -> None:
    assert not is_device_error(error)


@pytest.mark.parametrize(
    ("error", "remote", "network", "no_fault"),
    [
        (OSError(errno.EIO, "the server is unreachable"), False, True, True),
        (OSError(errno.ESTALE, "the server is unreachable"), False, True, True),
        (OSError(errno.EIO, "a bad sector"), False, False, False),
        (OSError(errno.ENOSPC, "the disk is full"), False, True, False),
        (OSError(errno.EDQUOT, "the quota is used up"), False, True, False),
        (OSError(errno.EIO, "of a remote store"), True, True, False),
        (SupersededError("another worker"), False, False, True),
        (DeviceError("a dead GPU"), False, False, True),
        (ValueError("a bad value"), False, True, False),
    ],
)
def test_errors_that_are_no_fault_of_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    remote: bool,
    network: bool,
    no_fault: bool,
) -> None:
    monkeypatch.setattr("ascl_sweep.store.network.is_network_folder", lambda folder: network)
    address = f"file://{tmp_path}" if remote else tmp_path
    assert is_no_fault(error, task(address)) is no_fault


def test_an_error_of_the_gpu_ends_the_process(tmp_path: Path) -> None:
    def lose() -> None:
        raise DEAD

    with pytest.raises(DeviceError, match=r"^AcceleratorError: CUDA error: an illegal [ \w]+$"):
        list(run_task(task(tmp_path), lose))
    assert "illegal memory access" in (tmp_path / LOG).read_text()


def test_a_remote_store_gets_the_checkpoint_and_gives_it_back(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/store/x"
    first = run_task(task(address))
    next(first)
    first.close()
    assert (tmp_path / "store" / "x" / CHECKPOINT).exists()
    assert epochs(list(run_task(task(address, recorded=1)))) == [2, 3]


def test_an_error_is_one_line() -> None:
    assert describe_error(RunError("bad\nworse")) == "bad"
    assert describe_error(ValueError("zip() argument 2 is shorter")) == (
        "ValueError: zip() argument 2 is shorter"
    )
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(RuntimeError()) == "RuntimeError"
    assert describe_error(OSError(28, "No space left", "/x")) == "/x: No space left"
