"""Several sweeps of one driver."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ascl_sweep
from ascl_sweep import clock
from ascl_sweep.contracts import RunTask
from ascl_sweep.runtime.cluster import Cluster, Node
from ascl_sweep.runtime.controller import End
from ascl_sweep.runtime.executor import RunSource
from ascl_sweep.spec.sweep import Resources
from ascl_sweep.store.store import Store
from tests.ascl_sweep.runtime.test_controller import Worker
from tests.ascl_sweep.search.test_study import GRID
from tests.sweeps import write


class Broken:
    """Executor with two nodes; every run fails on one of them."""

    opening = "ready"

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self.first: dict[str, RunTask] = {}

    @contextmanager
    def open(self, kinds: Sequence[Resources]) -> Iterator["Broken"]:
        yield self

    def read_cluster(self) -> Cluster:
        return Cluster((Node("good", 1, 0), Node("bad", 1, 0)))

    def execute(self, source: RunSource) -> None:
        controller: Any = source
        while not source.is_over:
            task = source.next_task()
            assert task is not None
            self.first.setdefault(source.name, task)
            if "bad" in task.avoid:
                Worker(controller, "good", task).begin().finish()
            else:
                self.failures[source.name] = self.failures.get(source.name, 0) + 1
                Worker(controller, "bad", task).begin().fail("a dead disk")


def test_a_node_that_one_sweep_has_excluded_gets_no_run_of_the_next(tmp_path: Path) -> None:
    texts = (GRID + "seeds: [0]\n", GRID.replace("name: it", "name: next") + "seeds: [1]\n")
    specs = [ascl_sweep.load_sweep(write(tmp_path, text)) for text in texts]
    broken = Broken()
    assert ascl_sweep.run(specs, tmp_path / "store", executor=broken) is End.DONE
    assert {row.state for row in Store(tmp_path / "store").runs().values()} == {"done"}
    assert broken.first[specs[1].name].avoid == ("bad",)
    assert broken.failures == {specs[0].name: 3}


def test_an_old_process_reads_the_clock_again_when_it_runs_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook was opened before the machine's clock was set."""
    monkeypatch.setattr(clock, "_start", clock._start - 3600)
    spec = ascl_sweep.load_sweep(write(tmp_path, GRID))
    before = time.time()
    assert ascl_sweep.run([spec], tmp_path / "store", executor=Broken()) is End.DONE
    (row, *_) = Store(tmp_path / "store").runs().values()
    assert row.started is not None and before - 1 < row.started < time.time() + 1
