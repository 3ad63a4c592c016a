"""Adapters for Ray Tune: searcher, heartbeat, and a process that executes several runs."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.executors.ray import compat, trainable
from ascl_sweep.executors.ray.trainable import Assignment, OneWorker
from ascl_sweep.executors.ray.tune import (
    ControllerErrors,
    Heartbeat,
    ResultScheduler,
    TaskSearcher,
)
from ascl_sweep.executors.worker import started
from tests.ascl_sweep.executors.test_worker import task


def assigned(task: RunTask) -> dict[str, Any]:
    return {"assignment": Assignment(task, None, "/nowhere")}


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What Ray tells a process without a GPU."""
    context = Mock()
    context.get_node_id.return_value = "here"
    context.get_accelerator_ids.return_value = {"GPU": []}
    return context


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch, context: Mock) -> type[OneWorker]:
    monkeypatch.setattr(compat, "make_heartbeat", lambda *attempt: lambda *progress: None)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    return OneWorker


def test_a_process_takes_one_run_after_the_other(
    one_worker: type[OneWorker], tmp_path: Path
) -> None:
    worker = one_worker.__new__(one_worker)
    worker.setup(assigned(task(tmp_path / "a")))
    start = worker.step()["result"]
    assert start.state is RunState.RUNNING and start.nodes == ("here",)
    first = worker.step()["result"]
    assert worker.reset_config(assigned(task(tmp_path / "b")))
    assert worker.step()["result"].nodes == ("here",)
    assert worker.step()["result"].metrics.loss == first.metrics.loss
    worker.cleanup()


def test_a_process_in_which_one_run_after_the_other_fails_early_ends(
    one_worker: type[OneWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(task(tmp_path), config={})
    worker = one_worker(assigned(broken))
    assert worker.step()["result"].devices, "the start"
    assert worker.step()["result"].state is RunState.FAILED
    worker.reset_config(assigned(task(tmp_path / "works")))
    worker.step(), worker.step()
    worker.reset_config(assigned(broken))
    worker.step()
    assert worker.step()["result"].state is RunState.FAILED, "not in a row"
    worker.reset_config(assigned(broken))
    worker.step()
    with pytest.raises(RuntimeError, match="2 runs in a row failed at their start"):
        worker.step()
    monkeypatch.setattr(trainable, "EARLY_SECONDS", 0.0)
    worker.reset_config(assigned(broken))
    worker.step()
    assert worker.step()["result"].state is RunState.FAILED, "not early"
    worker.cleanup()


def test_a_worker_names_its_gpu_without_touching_it_and_holds_it_if_it_must_not_use_it(
    one_worker: type[OneWorker], context: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faulty GPU may hang when CUDA is initialized."""
    context.get_accelerator_ids.return_value = {"GPU": ["3"]}
    monkeypatch.setattr(torch.cuda, "_lazy_init", Mock(side_effect=AssertionError("it hangs")))
    name = f"GPU 3 of {socket.gethostname()}, node here…"
    asked = replace(task(tmp_path), gpus_per_worker=1, avoid_devices=(name,))
    worker = one_worker(assigned(asked))
    start = worker.step()["result"]
    assert start.nodes == ("here",) and start.devices == (name,)
    monkeypatch.setattr(trainable.time, "sleep", Mock(side_effect=[None, None, InterruptedError]))
    with pytest.raises(InterruptedError):
        worker.step()


def test_a_process_without_a_gpu_in_which_runs_keep_failing_ends(
    one_worker: type[OneWorker], tmp_path: Path
) -> None:
    name = f"process {os.getpid()} of {socket.gethostname()}"
    worker = one_worker(assigned(replace(task(tmp_path), avoid_devices=(name,))))
    assert worker.step()["result"].devices == (name,)
    with pytest.raises(RuntimeError, match="runs keep failing in this process"):
        worker.step()


def test_a_heartbeat_counts_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Mock(silent_attempts=lambda: [("x", 1)])
    beats = iter([None, b"1", b"1", b"2"])
    monkeypatch.setattr(compat, "read_heartbeat", lambda *attempt: next(beats))
    monkeypatch.setattr("ascl_sweep.executors.ray.tune.LOOK_SECONDS", 0.0)
    heartbeat = Heartbeat(source, ControllerErrors())
    counts = []
    for _ in range(4):
        heartbeat.on_step_end(1, [])
        counts.append(source.on_heartbeat.call_count)
    assert counts == [0, 1, 1, 2] and source.tick.call_count == 4


def test_a_silent_trial_is_reported_as_waiting_or_once_as_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Mock(silent_attempts=lambda: [("x", 1)])
    source.is_withdrawn.return_value = False
    trial = Mock(spec=Trial, config=assigned(task(tmp_path)), status=Trial.PENDING)
    nodes: list[tuple[str, ...] | None] = [(), None, ("n",), ("n",), (), ("n",)]
    monkeypatch.setattr(compat, "trial_nodes", lambda controller, trial: nodes.pop(0))
    monkeypatch.setattr("ascl_sweep.executors.ray.tune.LOOK_SECONDS", 0.0)
    scheduler = ResultScheduler(source, ControllerErrors(), reused=True)
    scheduler.on_trial_add(None, trial)
    counts = []
    while nodes:
        assert scheduler.choose_trial_to_run(None) is trial
        counts.append((source.on_heartbeat.call_count, source.on_result.call_count))
    assert counts == [(1, 0), (1, 0), (1, 1), (1, 1), (2, 1), (2, 1)]
    source.on_result.assert_called_once_with("x", 1, RunResult(RunState.RUNNING, nodes=("n",)))
    source.on_result.return_value = False
    scheduler.on_trial_result(None, trial, {"result": started(("n",))})
    scheduler.choose_trial_to_run(None)  # its own results and heartbeats count from now on


def test_a_trial_whose_process_was_killed_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, process, other = Mock(silent_attempts=list), Mock(), Mock()
    trial = Mock(spec=Trial, config=assigned(task(tmp_path)), status=Trial.PENDING)
    actors = iter([process, process, other])
    monkeypatch.setattr(compat, "trial_actor", lambda controller, trial: next(actors))
    monkeypatch.setattr("ray.kill", kill := Mock())
    scheduler = ResultScheduler(source, ControllerErrors(), reused=True)
    scheduler.on_trial_add(None, trial)
    counts = []
    for _ in range(3):
        assert scheduler.choose_trial_to_run(None) is None
        counts.append(kill.call_count)
    assert counts == [1, 1, 2], "once for each process"


def test_a_process_that_ran_out_of_memory_is_reported_as_such(tmp_path: Path) -> None:
    source, error = Mock(), tmp_path / "error.txt"
    error.write_text(
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        "To disable worker killing, set RAY_memory_monitor_refresh_ms to zero.\n"
    )
    trial = Mock(spec=Trial, config=assigned(task(tmp_path)), error_file=str(error))
    Heartbeat(source, ControllerErrors()).on_trial_error(1, [], trial)
    (reason,) = source.on_lost.call_args.args[2:]
    assert reason.startswith("Ray's memory monitor ended it, because its node ran out of memory")


def test_a_report_is_small_however_large_the_config(
    one_worker: type[OneWorker], tmp_path: Path
) -> None:
    report = one_worker(assigned(task(tmp_path))).train()
    assert report["result"].nodes == ("here",) and report["training_iteration"] == 1
    assert "config" not in report and report["done"] is False


def test_time_passes_for_the_controller_while_nothing_runs_and_tune_only_asks(
    tmp_path: Path,
) -> None:
    source = Mock(is_over=False, is_idle=True)
    source.next_task.side_effect = [None, task(tmp_path), None, None]
    source.tick.side_effect = lambda: setattr(source, "is_over", source.tick.call_count == 3)
    searcher = TaskSearcher(source, Mock(get=lambda data: None), "/nowhere")
    asked = [searcher.suggest("a trial") for _ in range(4)]
    assert asked[0] is None and asked[2] is None and asked[3] == Searcher.FINISHED
    assert asked[1]["assignment"].task.run_id == "x"


def test_the_heartbeat_is_a_plain_callback_which_tune_keeps_whatever_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.tune.experimental.output import AirVerbosity
    from ray.tune.utils.callback import _create_default_callbacks

    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    beat = Heartbeat(Mock(), ControllerErrors())
    for verbosity in (None, AirVerbosity.DEFAULT):  # old output, then RAY_AIR_NEW_OUTPUT=1
        assert beat in _create_default_callbacks([beat], air_verbosity=verbosity)
    assert isinstance(beat, tune.Callback)


def test_a_process_that_died_is_reported_with_the_last_line_of_its_error(tmp_path: Path) -> None:
    source, error = Mock(), tmp_path / "error.txt"
    error.write_text("Traceback\n\nActorDiedError: killed\n")
    trial = Mock(spec=Trial, config=assigned(task(tmp_path)), error_file=str(error))
    Heartbeat(source, ControllerErrors()).on_trial_error(1, [], trial)
    source.on_lost.assert_called_once_with("x", 1, "ActorDiedError: killed")
