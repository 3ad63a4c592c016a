"""Arguments with which Ray Train is started for a run of several workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ray.tune.integration.ray_train import TuneReportCallback

from ascl_sweep.contracts import RunResult, RunState, RunTask
from ascl_sweep.executors.ray import compat, train
from tests.ascl_sweep.executors.test_worker import task


@pytest.fixture
def callback(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The callback that reports to Tune."""
    found = Mock(spec=TuneReportCallback)
    monkeypatch.setattr("ray.tune.integration.ray_train.TuneReportCallback", lambda: found)
    return found


def start(task: RunTask, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Start a run of several workers; return the arguments of Ray Train's trainer."""
    for key in compat.REQUIRED_OF_TRAIN:
        monkeypatch.setenv(key, "")
    trainer = Mock()
    monkeypatch.setattr("ray.train.torch.TorchTrainer", trainer)
    train.train_on_workers(task, None, "/nowhere")
    arguments: dict[str, Any] = trainer.call_args.kwargs
    return arguments


def worker(node: str, gpu: str) -> Mock:
    return Mock(metadata=Mock(node_id=node, hostname=f"box-{node}", gpu_ids=[gpu]))


WORKERS = [worker("a", "0"), worker("a", "5"), worker("b", "0")]
GPUS = ("GPU 0 of box-a, node a…", "GPU 5 of box-a, node a…", "GPU 0 of box-b, node b…")


def test_the_gpus_of_all_ranks_are_reported_before_they_are_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: Mock
) -> None:
    arguments = start(replace(task(tmp_path), workers=3, gpus_per_worker=1), monkeypatch)
    to_tune, at_start = arguments["run_config"].callbacks
    assert to_tune is callback
    assert at_start.before_init_train_context(WORKERS) == {}
    first = RunResult(RunState.RUNNING, nodes=("a", "a", "b"), devices=GPUS, host="box-a")
    callback.after_report.assert_called_once_with(None, [{"result": first, "done": False}], None)


def test_the_ranks_do_not_start_on_a_gpu_that_must_not_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: Mock
) -> None:
    asked = replace(task(tmp_path), workers=3, gpus_per_worker=1, avoid_devices=GPUS[1:2])
    _, at_start = start(asked, monkeypatch)["run_config"].callbacks
    monkeypatch.setattr(train.time, "sleep", Mock(side_effect=[None, None, InterruptedError]))
    with pytest.raises(InterruptedError):
        at_start.before_init_train_context(WORKERS)
    assert callback.after_report.call_count == 1


def test_ranks_without_gpus_have_no_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: Mock
) -> None:
    _, at_start = start(replace(task(tmp_path), workers=2), monkeypatch)["run_config"].callbacks
    at_start.before_init_train_context(
        [Mock(metadata=Mock(node_id=node, hostname="box", gpu_ids=[])) for node in "ab"]
    )
    (_, [report], _), _ = callback.after_report.call_args
    assert report["result"].nodes == ("a", "b") and report["result"].devices == ()
