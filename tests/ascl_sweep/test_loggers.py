"""`--log`: what loggers are told, that none can harm a sweep, and what the real ones keep."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascl_sweep import loggers
from ascl_sweep.ledger import Ledger, RunRow
from ascl_sweep.loggers import Copies, check_loggers, copies
from tests.sweeps import GRID, ascl_sweep, write

ROW = RunRow("a1", ("it",), {"seed": 0, "optim.lr": 0.1}, "final", "full", state="running")


class Noted:
    """A logger that remembers, and may fail from some epoch on."""

    def __init__(self, fails_at: int = 99) -> None:
        self.told: list[Any] = []
        self.fails_at = fails_at

    def started(self, sweep: str, row: RunRow) -> None:
        self.told.append((sweep, row.run_id))

    def epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        if epoch >= self.fails_at:
            raise RuntimeError("the server is away\nand this is how")
        self.told.append((run_id, epoch, metrics))

    def ended(self, row: RunRow) -> None:
        self.told.append((row.run_id, row.state))


def tell(made: Copies) -> None:
    made.started("it", ROW)
    for epoch in (1, 2, 3):
        made.epoch("a1", {"epoch": epoch, "loss": 1 / epoch, "probe_top1": None})
    made.ended(replace(ROW, state="done"))
    made.close()


def test_a_logger_is_told_of_each_run_by_its_id_and_of_what_was_measured() -> None:
    logger = Noted()
    tell(Copies({"noted": logger}))
    epochs = [("a1", epoch, {"loss": 1 / epoch}) for epoch in (1, 2, 3)]
    assert logger.told == [("it", "a1"), *epochs, ("a1", "done")]


def test_a_logger_that_fails_is_left_off_and_the_others_go_on() -> None:
    said: list[str] = []
    bad, good = Noted(fails_at=2), Noted()
    tell(Copies({"bad": bad, "good": good}, said.append))
    assert said == ["--log bad is left off, the store has everything: the server is away"]
    assert len(bad.told) == 2 and len(good.told) == 5


def test_a_logger_that_hangs_holds_up_nothing() -> None:
    said: list[str] = []
    until = threading.Event()

    class Hanging(Noted):
        def started(self, sweep: str, row: RunRow) -> None:
            until.wait(60)

    made = Copies({"hanging": Hanging()}, said.append)
    made.started("it", ROW)
    made.close(patience=0.1)
    assert said == ["--log hanging: not all is copied yet, and we wait no more"]
    until.set()


def test_no_loggers_is_no_thread() -> None:
    before = threading.active_count()
    tell(Copies())
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("name", "store", "said"),
    [
        ("wnadb", "results", "no logger named 'wnadb'"),
        ("wandb", "results", "--log wandb needs the package wandb; pip install wandb"),
        ("tensorboard", "s3://bucket/results", "must be a folder, got s3://bucket/results"),
    ],
)
def test_what_cannot_be_logged_to_is_refused(
    name: str, store: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"tensorboardX": object()}
    monkeypatch.setattr(loggers, "find_spec", there.get)
    with pytest.raises(ValueError, match=said):
        check_loggers([name], store)


def test_a_logger_that_cannot_be_opened_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(store: str) -> Noted:
        raise KeyError("no key\nat all")

    monkeypatch.setattr(loggers, "LOGGERS", {"broken": broken})
    with (
        pytest.raises(ValueError, match=r"--log broken cannot be used: 'no key.*"),
        copies(["broken"], "results", print),
    ):
        pass


def test_tensorboard_has_an_event_file_for_each_run(tmp_path: Path) -> None:
    with copies(["tensorboard"], str(tmp_path), print) as made:
        tell(made)
    (events,) = (tmp_path / "tensorboard" / "it" / "a1").iterdir()
    assert events.read_bytes().count(b"loss") == 3 and b"optim.lr: 0.1" in events.read_bytes()


# --- for those who have them: wandb and mlflow are no dependencies of the tests -------------------


def test_mlflow_has_a_run_that_goes_on_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    status = {}
    for epochs, state in ((2, "planned"), (5, "done")):
        with copies(["mlflow"], "results", pytest.fail) as made:
            made.started("it", ROW)
            for epoch in range(epochs - 1, epochs + 1):
                made.epoch("a1", {"epoch": epoch, "loss": 1 / epoch})
            made.ended(replace(ROW, state=state))
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
    assert said.returncode == 0 and "left off" not in said.stderr, said.stderr
    recorded = Ledger(tmp_path / "store").epochs()
    assert len(recorded) == 4
    assert recorded == (in_mlflow if name == "mlflow" else in_wandb)(tmp_path, recorded)


def in_mlflow(folder: Path, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Each run's epochs as MLflow has them, of the metrics that the ledger has."""
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
    """The recorded runs whose every loss is in their offline file, which is not ours to parse."""
    found = {}
    for run_id, epochs in recorded.items():
        (file,) = folder.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb")
        data = file.read_bytes()
        if all(str(epoch["loss"]).encode() in data for epoch in epochs):
            found[run_id] = epochs
    return found
