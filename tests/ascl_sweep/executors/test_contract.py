"""Contract of all executors; adding an executor means adding one file."""

from collections import Counter
from pathlib import Path

import pytest

import ascl_sweep
from ascl_sweep import executors
from ascl_sweep.contracts import RunState
from ascl_sweep.errors import ResourceError, UsageError
from ascl_sweep.executors import executor_names, make_executor
from ascl_sweep.runtime.controller import End
from ascl_sweep.search.study import Study
from ascl_sweep.spec.resources import Resources
from ascl_sweep.store.store import Store
from tests import sweeps
from tests.sweeps import GRID, TWO_WORKERS, write

SEARCH = GRID.replace("name: grid", "name: search").replace("[0.02, 0.1]", "[0.01, 0.02, 0.05]") + (
    "stop: {asha: {grace: 1, factor: 2}, audit: 0}\nladder: {finalists: 1}\n"
)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store of both sweeps, run by the local executor."""
    return run_both(tmp_path_factory.mktemp("local"), "local")


def run_both(folder: Path, executor: str) -> Path:
    files = [folder / "grid.yaml", folder / "search.yaml"]
    for file, text in zip(files, (GRID, SEARCH), strict=True):
        file.write_text(text)
    words = ("--store", folder / "store", "--executor", executor, "--concurrency", 1)
    done = sweeps.ascl_sweep("run", *files, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    return folder / "store"


@pytest.mark.slow
def test_the_local_executor_runs_a_grid_and_a_search_to_their_ends(local: Path) -> None:
    rows = Store(local).runs().values()
    assert {row.state for row in rows if "grid" in row.sweeps} == {RunState.DONE}
    searched = [row for row in rows if row.phase == "search"]
    assert {row.state for row in searched} == {RunState.DONE, RunState.STOPPED}
    finals = [row for row in rows if row.phase == "final" and "search" in row.sweeps]
    assert {row.state for row in finals} == {RunState.DONE} and len(finals) in (2, 4)
    for row in rows:
        there = (local / "work" / row.run_id / "checkpoint.pt").exists()
        assert there == (row.state is RunState.DONE), row.state


@pytest.mark.slow  # a start of Ray takes most of a minute
def test_ray_decides_and_measures_the_same_as_the_local_executor(
    local: Path, tmp_path: Path
) -> None:
    ours = run_both(tmp_path, "ray")
    assert sweeps.numbers(ours) == sweeps.numbers(local)
    states = {i: row.state for i, row in Store(ours).runs().items()}
    assert states == {i: row.state for i, row in Store(local).runs().items()}


def test_runs_of_several_workers_are_refused_by_the_local_executor(tmp_path: Path) -> None:
    sweep = ascl_sweep.load_sweep(write(tmp_path, TWO_WORKERS))
    with pytest.raises(ResourceError, match=r"got resources\.workers=2; use --executor ray"):
        ascl_sweep.run([sweep], tmp_path / "store", executor="local")


def test_an_unknown_executor_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no executor named 'locla' \(did you mean 'local'\?\)"):
        make_executor("locla")
    with pytest.raises(UsageError, match="takes no --address, got auto; use --executor ray"):
        make_executor("local", "auto")


INSTANT = '''
from contextlib import contextmanager

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunResult, RunState
from ascl_sweep.runtime.cluster import Cluster, Node


class Instant:
    """Trains nothing and reports immediately."""

    opening = "ready"

    @contextmanager
    def open(self, kinds):
        yield self

    def read_cluster(self):
        return Cluster((Node("here", 8, 0),))

    def execute(self, source):
        while not source.is_over:
            task = source.next_task()
            attempt = task.run_id, task.attempt
            source.on_result(*attempt, RunResult(RunState.RUNNING, nodes=("here",)))
            epochs = task.config["epochs"]
            for epoch in range(1, epochs + 1):
                state = RunState.DONE if epoch == epochs else RunState.RUNNING
                metrics = EpochMetrics(epoch, loss=1.0, lr=0.1, knn_top1=epoch / epochs)
                if source.on_result(*attempt, RunResult(state, metrics)):
                    break


def make_executor(address):
    return Instant()
'''


@pytest.fixture
def instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add an executor from outside the package."""
    (tmp_path / "instant.py").write_text(INSTANT)
    monkeypatch.setattr(executors, "__path__", [*executors.__path__, str(tmp_path)])


@pytest.mark.usefixtures("instant")
def test_adding_an_executor_is_adding_one_file(tmp_path: Path) -> None:
    assert executor_names() == ["instant", "local", "ray"]
    sweep = ascl_sweep.load_sweep(write(tmp_path, GRID))
    assert ascl_sweep.run([sweep], tmp_path / "store", executor="instant") is End.DONE
    rows = Store(tmp_path / "store").runs().values()
    assert {(row.state, row.knn_last_top1) for row in rows} == {(RunState.DONE, 1.0)}


def test_two_stopped_runs_of_a_search_are_completed_as_audits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search itself draws no audit; a repeat of the command audits no more runs."""
    value = "1 / (1 + 100 * task.config['method']['target_temperature'])"
    code = INSTANT.replace("knn_top1=epoch / epochs", f"knn_top1={value}")
    (tmp_path / "falling.py").write_text(code)
    monkeypatch.setattr(executors, "__path__", [*executors.__path__, str(tmp_path)])
    text = SEARCH.replace("[0.01, 0.02, 0.05]", "[0.06, 0.07, 0.08, 0.09]")
    sweep = ascl_sweep.load_sweep(write(tmp_path, text.replace("audit: 0", "audit: 0.000001")))
    for _ in range(2):
        assert ascl_sweep.run([sweep], tmp_path / "store", executor="falling") is End.DONE
        rows = Store(tmp_path / "store").runs().values()
        search = sorted((r for r in rows if r.phase == "search"), key=lambda r: r.created or 0)
        assert search[0].run_id == sweep.run_id({}) and search[0].state is RunState.DONE
        audited = [row for row in search if row.audit]
        stopped = [row for row in search if row.state is RunState.STOPPED]
        assert (len(audited), len(stopped), len(search)) == (2, 2, 5)
        for row in audited:
            assert row.state is RunState.DONE and row.epochs == 5
            assert (row.stopped_because or "").startswith("continues as an audit; ASHA at epoch 1")


@pytest.mark.usefixtures("instant")
def test_sweeps_read_the_store_once_and_build_one_study_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def count(cls: type, method: str) -> None:
        original = getattr(cls, method)

        def counted(self: object, *args: object, **options: object) -> object:
            counts[method] += 1
            return original(self, *args, **options)

        monkeypatch.setattr(cls, method, counted)

    for method in ("snapshot", "runs", "epochs_table"):
        count(Store, method)
    count(Study, "__init__")
    specs = [
        ascl_sweep.load_sweep(write(tmp_path, GRID.replace("name: grid", f"name: {name}")))
        for name in ("one", "two")
    ]
    assert ascl_sweep.run(specs, tmp_path / "store", executor="instant") is End.DONE
    assert counts == {"snapshot": 1, "runs": 1, "epochs_table": 1, "__init__": 2}


def test_every_run_fits_the_one_slot_of_the_local_executor() -> None:
    kinds = [Resources(cpus_per_worker=1), Resources(cpus_per_worker=64)]
    with make_executor("local").open(kinds) as session:
        for kind in kinds:
            session.read_cluster().check(kind)
            assert session.read_cluster().count_slots(kind) == 1
            assert session.read_cluster().count_slots(kind, taken=kinds[:1]) == 0
