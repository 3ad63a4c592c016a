"""The benchmark of many runs, small: the real driver bears runs that are only replayed."""

from pathlib import Path

import pytest

from ascl_sweep.ledger import Ledger
from benchmarks.many_runs import Setting, measured


@pytest.mark.slow
def test_replayed_runs_are_all_done_and_every_epoch_of_theirs_recorded(tmp_path: Path) -> None:
    measured(Setting(runs=30, places=8, epochs=4, seconds=0.2), tmp_path)
    ledger = Ledger(tmp_path / "store")
    assert [run.state for run in ledger.runs().values()] == ["done"] * 30
    assert {len(epochs) for epochs in ledger.epochs().values()} == {4}
