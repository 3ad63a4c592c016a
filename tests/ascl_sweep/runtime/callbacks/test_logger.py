"""`--log`: events that loggers receive, errors of loggers, and the results in real loggers."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.errors import UsageError
from ascl_sweep.runtime import callbacks
from ascl_sweep.runtime.callbacks import logger as loggers
from ascl_sweep.runtime.callbacks import logger_names
from ascl_sweep.runtime.callbacks.logger import (
    LoggerCallback,
    check_loggers,
    open_logger,
)
from ascl_sweep.store.store import Store
from tests.sweeps import GRID, ascl_sweep, write

ROW = RunRow("a1", ("it",), {"seed": 0, "optim.lr": 0.1}, "final", "full", state=RunState.RUNNING)


class Noted:
    """Logger that records its events and fails from epoch `fails_at`."""

    package, needs_local_store = "noted", False

    def __init__(self, fails_at: int = 99) -> None:
        self.events: list[Any] = []
        self.fails_at = fails_at

    def on_run_start(self, sweep: str, row: RunRow) -> None:
        self.events.append((sweep, row.run_id))

    def on_epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        if epoch >= self.fails_at:
            raise RuntimeError("server unreachable\nin detail")
        self.events.append((run_id, epoch, metrics["loss"]))

    def on_run_end(self, row: RunRow) -> None:
        self.events.append((row.run_id, row.state))


def metrics(epoch: int) -> EpochMetrics:
    return EpochMetrics(epoch, loss=1 / epoch, lr=0.1)


def tell(callback: LoggerCallback, *epochs: int, state: RunState = RunState.DONE) -> None:
    callback.on_run_start("it", ROW, {}, [])
    for epoch in epochs:
        callback.on_epoch(ROW, metrics(epoch), [])
    callback.on_run_end(replace(ROW, state=state), [])
    callback.close()


def test_a_logger_hears_of_each_run_by_its_id_and_of_what_was_measured() -> None:
    logger = Noted()
    tell(LoggerCallback("noted", logger, pytest.fail), 1, 2, 3)
    epochs = [("a1", epoch, 1 / epoch) for epoch in (1, 2, 3)]
    assert logger.events == [("it", "a1"), *epochs, ("a1", "done")]


def test_a_logger_that_fails_is_disabled_with_a_note() -> None:
    said: list[str] = []
    bad = Noted(fails_at=2)
    tell(LoggerCallback("bad", bad, said.append), 1, 2, 3)
    assert len(bad.events) == 2
    assert said == [
        "--log bad is disabled after an error (the store keeps all results): server unreachable"
    ]


def test_a_logger_that_hangs_delays_nothing() -> None:
    said: list[str] = []
    until = threading.Event()

    class Hanging(Noted):
        def on_run_start(self, sweep: str, row: RunRow) -> None:
            until.wait(60)

    callback = LoggerCallback("hanging", Hanging(), said.append)
    callback.on_run_start("it", ROW, {}, [])
    callback.close(seconds=0.1)
    assert said == ["--log hanging: timed out before all results were copied"]
    until.set()


@pytest.mark.parametrize(
    ("name", "store", "said"),
    [
        ("wnadb", "results", "no logger named 'wnadb'"),
        (
            "wandb",
            "results",
            "--log wandb needs the package wandb; install it with `pip install wandb`",
        ),
        ("tensorboard", "s3://bucket/results", "must be a local folder, got s3://bucket/results"),
    ],
)
def test_what_cannot_be_logged_to_is_refused(
    name: str, store: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"tensorboardX": object()}
    monkeypatch.setattr(loggers, "find_spec", there.get)
    with pytest.raises(ValueError, match=said):
        check_loggers([name], store)


OWN = """
class Logger:
    package, needs_local_store = "math", False

    def __init__(self, store):
        if store == "bad":
            raise KeyError("no key\\nat all")
        self.heard = []

    def on_run_start(self, sweep, row):
        self.heard.append(row.run_id)

    def on_epoch(self, run_id, epoch, metrics):
        self.heard.append(epoch)

    def on_run_end(self, row):
        self.heard.append(str(row.state))
"""


@pytest.fixture
def own_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logger in one file outside the package."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.setattr(callbacks, "__path__", [*callbacks.__path__, str(tmp_path)])


@pytest.mark.usefixtures("own_logger")
def test_adding_a_logger_is_adding_one_file() -> None:
    assert logger_names() == ["mlflow", "own", "tensorboard", "wandb"]
    check_loggers(["own"], "results")
    callback = open_logger("own", "results", pytest.fail)
    tell(callback, 1)
    assert callback._logger.heard == ["a1", 1, "done"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("own_logger")
def test_a_logger_that_cannot_be_opened_gets_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"--log own cannot be used: 'no key.*"):
        open_logger("own", "bad", print)


def test_tensorboard_has_an_event_file_for_each_run(tmp_path: Path) -> None:
    tell(open_logger("tensorboard", str(tmp_path), pytest.fail), 1, 2, 3)
    (events,) = (tmp_path / "tensorboard" / "it" / "a1").iterdir()
    assert events.read_bytes().count(b"loss") == 3 and b"optim.lr: 0.1" in events.read_bytes()


# --- if installed: wandb and mlflow are not dependencies of the tests -----------------------------


def test_mlflow_has_a_run_that_goes_on_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    status = {}
    for epochs, state in ((2, "planned"), (5, "done")):
        callback = open_logger("mlflow", "results", pytest.fail)
        tell(callback, epochs - 1, epochs, state=RunState(state))
        client = mlflow.MlflowClient()
        (run,) = client.search_runs([client.get_experiment_by_name("it").experiment_id])
        status[state] = run.info.status
    assert status == {"planned": "KILLED", "done": "FINISHED"}
    assert run.info.run_name == "a1" and run.data.params == {"seed": "0", "optim.lr": "0.1"}
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 4, 5]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_sweep_is_copied_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    said = ascl_sweep("run", write(tmp_path, GRID), "--store", tmp_path / "store", "--log", name)
    assert said.returncode == 0 and "disabled after" not in said.stderr, said.stderr
    epochs = Store(tmp_path / "store").epochs()
    recorded = {run_id: [vars(e) for e in found] for run_id, found in epochs.items()}
    assert len(recorded) == 4
    assert recorded == (in_mlflow if name == "mlflow" else in_wandb)(tmp_path, recorded)


def in_mlflow(folder: Path, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return each run's epochs in MLflow, with the metrics of the store."""
    import mlflow

    client, found = mlflow.MlflowClient(), {}
    for run in client.search_runs([client.get_experiment_by_name("grid").experiment_id]):
        epochs = [dict.fromkeys(e) | {"epoch": e["epoch"]} for e in recorded[run.info.run_name]]
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                epochs[metric.step - 1][name] = metric.value
        found[run.info.run_name] = epochs
    return found


def in_wandb(folder: Path, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the runs whose losses are all in their offline file, whose format is not public."""
    found = {}
    for run_id, epochs in recorded.items():
        (file,) = folder.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")
        data = file.read_bytes()
        if all(str(epoch["loss"]).encode() in data for epoch in epochs):
            found[run_id] = epochs
    return found
