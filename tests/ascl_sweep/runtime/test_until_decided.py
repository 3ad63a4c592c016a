"""Sweeps that run until decided, with a real store: from the first look to the report."""

import re
from collections import Counter
from pathlib import Path

import pytest

import ascl_sweep
from ascl_sweep import executors
from ascl_sweep.contracts import RunState
from ascl_sweep.runtime.callbacks.base import Callback
from ascl_sweep.runtime.controller import End
from ascl_sweep.runtime.sweeps import prepare_sweeps
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.spec.sweep import Scale, SweepSpec, load_sweep
from ascl_sweep.store.store import Store
from tests import sweeps
from tests.ascl_sweep.executors.test_contract import INSTANT
from tests.sweeps import GRID, write

TAU = "method.target_temperature"
LISTED = GRID.replace("{method.target_temperature: [0.02, 0.1]}", f"{{{TAU}: [0.05, 0.02, 0.1]}}")
UNTIL = LISTED.replace("[0, 1]", "{until: decided, at_most: 8}") + (
    f"table: {{rows: {TAU}, metric: knn_top1, baseline: {{{TAU}: 0.05}}}}\n"
)
SCORES = """
import os
import random
from pathlib import Path


def score(config):
    tau, seed = config['method']['target_temperature'], config['seed']
    noise = random.Random(f"{tau} {seed}").gauss(0, 0.003)
    return 0.5 + {0.05: 0.0, 0.02: 0.1, 0.1: 0.004}[tau] + noise


def count_down():
    file = Path(os.environ["STOP_AFTER"])
    left = int(file.read_text())
    file.write_text(str(left - 1))
    if not left:
        raise RuntimeError("killed")
"""
BY_SEED = {0.05: 8, 0.02: 3, 0.1: 8}
"""0.02 is decided at the first look."""


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add an executor whose runs end at once, with a score that depends on the arm and seed.

    It dies after as many runs as its file `stop_after` says.
    """
    code = INSTANT.replace("class Instant", SCORES + "\n\nclass Instant").replace(
        "knn_top1=epoch / epochs", "knn_top1=score(task.config)"
    )
    code = code.replace(
        "            task = source.next_task()\n",
        "            task = source.next_task()\n            count_down()\n",
    )
    (tmp_path / "scored.py").write_text(code)
    (tmp_path / "stop_after").write_text("1000")
    monkeypatch.setenv("STOP_AFTER", str(tmp_path / "stop_after"))
    monkeypatch.setattr(executors, "__path__", [*executors.__path__, str(tmp_path)])


def run(folder: Path, text: str, *overrides: str, scale: Scale = "full") -> SweepSpec:
    spec = load_sweep(write(folder, text), overrides, scale)
    assert ascl_sweep.run([spec], folder / "store", executor="scored") is End.DONE
    return spec


def seeds(folder: Path) -> dict[float, int]:
    rows = Store(folder / "store").runs().values()
    return dict(Counter(float(r.config[TAU] or 0) for r in rows if r.state is RunState.DONE))


def digest(folder: Path) -> SweepSummary:
    return SweepSummary.of_json(Store(folder / "store").sweeps()["grid"].digest)


@pytest.mark.usefixtures("scored")
def test_a_sweep_adds_seeds_until_its_comparisons_are_decided(tmp_path: Path) -> None:
    run(tmp_path, UNTIL)
    assert seeds(tmp_path) == BY_SEED
    assert (digest(tmp_path).looks, digest(tmp_path).extensions) == ((3, 5, 8), 0)
    (found,) = ascl_sweep.build_report(tmp_path / "store").sweeps
    assert found.table is not None
    by_seeds = {
        float(arm.config[TAU] or 0): (arm.n, arm.planned, arm.comparison)
        for arm in found.table.arms
    }
    assert {tau: n for tau, (n, _, _) in by_seeds.items()} == BY_SEED
    assert all(n == planned for n, planned, _ in by_seeds.values()), "no seed is missing"
    decided = by_seeds[0.02][2]
    assert decided is not None and (decided.verdict, decided.estimate.n) == ("better", 3)
    assert "at looks after 3, 5, 8 seeds that share the 5% error" in " ".join(found.table.caption)


class Notes(Callback):
    """Keeps what the driver reports."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_note(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.usefixtures("scored")
def test_the_driver_reports_its_looks(tmp_path: Path) -> None:
    spec, notes = load_sweep(write(tmp_path, UNTIL)), Notes()
    ascl_sweep.run([spec], tmp_path / "store", executor="scored", callbacks=[notes])
    assert notes.texts[-1].startswith(
        "grid: 1 of 2 comparisons decided at 8 seeds; no look is left"
    )


@pytest.mark.usefixtures("scored")
@pytest.mark.parametrize("runs", [2, 9, 10, 14])
def test_a_sweep_that_is_killed_adds_the_same_seeds(tmp_path: Path, runs: int) -> None:
    (tmp_path / "stop_after").write_text(str(runs))
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path, UNTIL)
    assert sum(seeds(tmp_path).values()) == runs
    (tmp_path / "stop_after").write_text("1000")
    run(tmp_path, UNTIL)
    assert seeds(tmp_path) == BY_SEED
    assert int((tmp_path / "stop_after").read_text()) == 1000 - (19 - runs), "none runs twice"
    run(tmp_path, UNTIL)
    assert seeds(tmp_path) == BY_SEED and digest(tmp_path).extensions == 0


@pytest.mark.usefixtures("scored")
def test_two_sweeps_of_one_driver_share_the_runs_of_their_looks(tmp_path: Path) -> None:
    texts = [UNTIL, UNTIL.replace("name: grid", "name: other").replace(", 0.02, 0.1]", ", 0.1]")]
    specs = [load_sweep(write(tmp_path, text)) for text in texts]
    assert ascl_sweep.run(specs, tmp_path / "store", executor="scored") is End.DONE
    rows = Store(tmp_path / "store").runs().values()
    assert Counter(name for row in rows for name in row.sweeps)["grid"] == sum(BY_SEED.values())
    alone = tmp_path / "alone"
    assert ascl_sweep.run(specs[1:], alone, executor="scored") is End.DONE
    expected = {row.run_id for row in Store(alone).runs().values()}
    assert {row.run_id for row in rows if "other" in row.sweeps} == expected


# ---------------------------------------------------------------- extensions outside a plan


@pytest.mark.usefixtures("scored")
def test_seeds_that_change_after_results_count_as_extensions(tmp_path: Path) -> None:
    for listed, extensions, removed in (
        ("[0, 1]", 0, ()),
        ("[0, 1]", 0, ()),
        ("[0, 1, 2]", 1, ()),
        ("[1, 0, 2]", 1, ()),  # another order
        ("[0, 2]", 2, (1,)),
        ("[0, 1, 2]", 3, (1,)),
        ("[0, 1, 2, 3]", 4, (1,)),
        ("[0, 1, 2, 4]", 5, (1, 3)),
    ):
        run(tmp_path, LISTED.replace("[0, 1]", listed))
        assert (digest(tmp_path).extensions, digest(tmp_path).removed) == (extensions, removed)
    (found,) = ascl_sweep.build_report(tmp_path / "store").sweeps
    assert found.table is not None
    alphas = {a.comparison.inference.alpha for a in found.table.arms if a.comparison}
    assert alphas == {0.05 / 2**5}
    assert "Removed after results were known: seed 3." in "\n".join(found.table.remarks)


@pytest.mark.usefixtures("scored")
def test_seeds_of_one_scale_are_no_extension_of_another(tmp_path: Path) -> None:
    """A check at laptop scale between two starts neither adds to the count nor resets it."""
    more = LISTED.replace("[0, 1]", "[0, 1, 2]")
    most = LISTED.replace("[0, 1]", "[0, 1, 2, 3]")
    starts: list[tuple[str, Scale, int]] = [
        (LISTED, "full", 0),
        (more, "laptop", 0),
        (more, "full", 1),
        (LISTED, "laptop", 1),
        (most, "full", 2),
        (most, "laptop", 2),
    ]
    for text, scale, extensions in starts:
        run(tmp_path, text, scale=scale)
        assert digest(tmp_path).extensions == extensions
    assert digest(tmp_path).other_scales["full"].seeds == (0, 1, 2, 3)


@pytest.mark.usefixtures("scored")
def test_a_plan_of_looks_that_follows_results_counts_as_an_extension(tmp_path: Path) -> None:
    run(tmp_path, LISTED.replace("[0, 1]", "[0, 1, 2]"))
    run(tmp_path, UNTIL)
    assert digest(tmp_path).extensions == 1
    (found,) = ascl_sweep.build_report(tmp_path / "store").sweeps
    assert found.table is not None and found.table.design.alpha == 0.025
    spent = [a.comparison.inference.alpha for a in found.table.arms if a.comparison]
    assert all(alpha < 0.025 for alpha in spent)
    caption = " ".join(found.table.caption)
    assert "at an error of 2.5%, at looks after 3, 5, 8 seeds that share the 2.5% error" in caption
    assert "error of 2.5% (with the table before: at most 7.5%)" in " ".join(found.table.remarks)
    run(tmp_path, UNTIL.replace("at_most: 8", "at_most: 10"))
    assert digest(tmp_path).extensions == 2


@pytest.mark.usefixtures("scored")
def test_seeds_added_before_any_result_are_no_extension(tmp_path: Path) -> None:
    (tmp_path / "stop_after").write_text("0")
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path, LISTED)
    (tmp_path / "stop_after").write_text("1000")
    run(tmp_path, LISTED.replace("[0, 1]", "[0, 1, 2]"))
    assert digest(tmp_path).extensions == 0


@pytest.mark.usefixtures("scored")
def test_results_of_shorter_runs_make_no_extension(tmp_path: Path) -> None:
    run(tmp_path, LISTED, "epochs=2")
    run(tmp_path, LISTED.replace("[0, 1]", "[0, 1, 2]"))
    assert digest(tmp_path).extensions == 0


@pytest.mark.usefixtures("scored")
def test_a_plan_records_no_extension(tmp_path: Path) -> None:
    run(tmp_path, LISTED)
    longer = load_sweep(write(tmp_path, LISTED.replace("[0, 1]", "[0, 1, 2]")))
    for _ in range(2):
        prepared = prepare_sweeps([longer], Store(tmp_path / "store"))
        (study,) = prepared.studies
        assert study.digest.extensions == 1
        (notes,) = (sweep.warnings for sweep in prepared.plan().sweeps)
        assert any("level 0.025 instead of 0.05" in note for note in notes)
    assert digest(tmp_path).extensions == 0


# ---------------------------------------------------------------- real runs

REAL = re.sub(r"space: .*", "space: {grid: {optim.lr: [0.06, 0.0000001]}}", GRID)
REAL = REAL.replace("[0, 1]", "{until: decided, at_most: 4}").replace("epochs: 5", "epochs: 3")
"""A good config against one with a learning rate of almost 0."""


@pytest.mark.slow
def test_the_local_executor_runs_until_decided_through_a_kill(tmp_path: Path) -> None:
    file, whole, killed = write(tmp_path, REAL), tmp_path / "whole", tmp_path / "killed"
    spec = load_sweep(file)
    assert ascl_sweep.run([spec], whole, executor="local") is End.DONE
    (study,) = prepare_sweeps([spec], Store(whole)).studies
    status = study.look_status()
    assert status is not None and status.seeds in (3, 4) and study.finished
    assert set(Store(whole).runs()) == {run.run_id for run in study.finals()}

    words = ("run", file, "--store", killed, "--executor", "local", "--yes")
    driver = sweeps.start(*words, log=tmp_path / "log.txt")
    sweeps.wait_until(lambda: sweeps.states(killed).count("done") >= 2, tmp_path / "log.txt")
    sweeps.kill(driver.pid)
    driver.wait()
    done = sweeps.ascl_sweep(*words)
    assert done.returncode == 0, done.stderr
    assert sweeps.numbers(killed) == sweeps.numbers(whole)
    shown = sweeps.ascl_sweep("status", "--store", killed).stdout
    assert f"{status.decided} of 1 comparison decided at {status.seeds} seeds" in shown
