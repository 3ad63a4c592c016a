"""Small version of the benchmark of many runs: the real driver with replayed runs."""

from pathlib import Path

import pytest

from ascl_sweep.store.store import Store
from benchmarks.many_runs import Setting, measure_sweep


@pytest.mark.long
def test_all_replayed_runs_finish_and_every_epoch_is_recorded(tmp_path: Path) -> None:
    measure_sweep(Setting(runs=30, slots=8, epochs=4, seconds=0.2), tmp_path)
    store = Store(tmp_path / "store")
    assert [run.state for run in store.runs().values()] == ["done"] * 30
    assert {len(epochs) for epochs in store.epochs().values()} == {4}
