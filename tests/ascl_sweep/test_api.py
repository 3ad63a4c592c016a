"""Python API: the example script runs, and a report can be displayed in a notebook."""

import subprocess
import sys
from pathlib import Path

import pytest

import ascl_sweep
from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.errors import ResourceError
from ascl_sweep.runtime import sweeps
from ascl_sweep.runtime.callbacks.base import Callback
from ascl_sweep.runtime.controller import End
from tests.paths import ROOT
from tests.sweeps import environment

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store that the example script has written."""
    store = tmp_path_factory.mktemp("api") / "store"
    command = [sys.executable, str(ROOT / "examples" / "python_api.py"), str(store)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert "6 runs, 18 epochs to train" in done.stdout and "ended: done" in done.stdout
    return store


def test_the_example_trains_every_run(store: Path) -> None:
    runs = ascl_sweep.open_store(store).runs().values()
    assert [run.state for run in runs] == [RunState.DONE] * 6


def test_a_second_call_has_nothing_to_do(store: Path) -> None:
    sweep = ascl_sweep.load_sweep(ROOT / "examples" / "sweeps" / "moco_vs_ascl.yaml")
    assert ascl_sweep.plan([sweep], store).epochs == 0
    heard: list[str] = []

    class Heard(Callback):
        def on_note(self, text: str) -> None:
            heard.append(text)

    assert ascl_sweep.run([sweep], store, executor="local", callbacks=[Heard()]) is End.DONE
    assert heard == []


def test_a_report_is_a_table_in_pandas_and_in_a_notebook(store: Path) -> None:
    report = ascl_sweep.build_report(store)
    table = report.to_pandas()
    assert len(table) == 2 and set(table["n"]) == {3}
    html = report._repr_html_()
    assert "ASCL" in html and "<table" in html and "<script" not in html


def test_a_report_scores_the_chosen_epoch_in_the_chosen_region(store: Path) -> None:
    last = ascl_sweep.build_report(store)
    best = ascl_sweep.build_report(store, epoch="best", region=2.0)
    assert (last.options.epoch, last.options.region) == ("last", 0.5)
    assert (best.options.epoch, best.options.region) == ("best", 2.0)
    assert all(best.to_pandas()["mean"] >= last.to_pandas()["mean"])


def test_diverged_runs_are_retried_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ascl_sweep.load_sweep(ROOT / "examples/sweeps/moco_vs_ascl.yaml")
    lost = ascl_sweep.plan([sweep], tmp_path).runs[0]
    with ascl_sweep.open_store(tmp_path).writer() as writer:
        writer.put_run(RunRow(lost.run_id, (sweep.name,), {}, "final", "full", RunState.DIVERGED))
    reset = []
    monkeypatch.setattr(sweeps, "run_sweeps", lambda made, *_, **__: reset.append(made.reset))
    for retry in (False, True):
        ascl_sweep.run([sweep], tmp_path, executor="local", retry_diverged=retry)
    assert reset == [[], [lost.run_id]]


def test_missing_data_are_reported_before_anything_starts(tmp_path: Path) -> None:
    overrides = ["data.name=cifar10", f"data.root={tmp_path}"]
    sweep = ascl_sweep.load_sweep(ROOT / "examples/sweeps/moco_vs_ascl.yaml", overrides)
    with pytest.raises(ResourceError, match="fetch cifar10"):
        ascl_sweep.run([sweep], tmp_path / "store")
    assert not (tmp_path / "store").exists()
