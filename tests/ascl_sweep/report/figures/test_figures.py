"""Figures as values: they show exactly the data in the store."""

import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascl_sweep.contracts import RunRow, Scalar, SweepRow
from ascl_sweep.report.figures import Figure, Panel, Series, build_figures
from ascl_sweep.report.figures.curves import TRIALS, band
from ascl_sweep.report.figures.selection import ARMS, spread
from ascl_sweep.report.report import SweepReport, build_report
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.store.store import Store
from tests.paths import ROOT

TAU, RELABEL, DATA = "method.target_temperature", "method.relabel", "data.name"
K, LR = "method.num_neighbours", "optim.lr"
CONFIG: dict[str, Scalar] = {
    "epochs": 4, "data.name": "cifar10", "data.holdout": 0.0, "method.name": "moco",
    "method.relabel": "ascl", "method.target_temperature": 0.05,
}  # fmt: skip
ASHA = {"rule": "asha", "grace": 1, "factor": 3.0, "at": 1, "share": 0.1}


class Runs:
    """A sweep of runs with known curves."""

    def __init__(self, folder: Path, **digest: Any) -> None:
        self.store = Store(folder)
        self.digest = SweepSummary(**digest)
        self.rows: list[RunRow] = []
        self.curves: dict[str, list[dict[str, Any]]] = {}

    def add(
        self, values: Mapping[str, Scalar], seed: int = 0, curve: Iterable[float] = (), **more: Any
    ) -> RunRow:
        """Add a run with these kNN accuracies in percent and more `metrics` by name."""
        metrics: Mapping[str, Iterable[float]] = more.pop("metrics", {})
        knn = [value / 100 for value in curve]
        run_id = f"run{len(self.rows):04d}"
        config = {**CONFIG, **values, "seed": seed}
        idle = (TAU, K) if config[RELABEL] == "none" else ()
        row = RunRow(
            run_id, ("it",), config, more.pop("phase", "final"), "full", more.pop("state", "done"),
            epochs=len(knn), knn_last_top1=knn[-1] if knn else None, created=float(len(self.rows)),
            device_hours=more.pop("device_hours", 1.0), idle=idle,
        )  # fmt: skip
        self.rows.append(replace(row, **more))
        self.curves[run_id] = [
            {"epoch": e + 1, "knn_top1": value, **{k: list(v)[e] for k, v in metrics.items()}}
            for e, value in enumerate(knn)
        ]
        return self.rows[-1]

    def report(self) -> SweepReport:
        with self.store.writer() as writer:
            planned = len(self.rows)
            writer.put_sweep(
                SweepRow("it", "", "it.yaml", (), "full", 1.0, planned, self.digest.to_json())
            )
            for row in self.rows:
                writer.put_run(row)
                for epoch in self.curves[row.run_id]:
                    writer.put_epoch(row.run_id, epoch)
        (report,) = build_report(self.store).sweeps
        return report

    def figures(self) -> dict[str, Figure]:
        return {f.name.removeprefix("it-"): f for f in build_figures(self.report(), self.store)}


def the(figure: Figure, label: str, panel: int = 0) -> Series:
    """Return the first series of a figure with this label."""
    return next(s for s in figure.panels[panel].series if s.label == label)


def labels(panel: Panel) -> set[str]:
    return {series.label for series in panel.series}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """ASCL with two τ' and MoCo, three seeds each."""
    baseline = {"baseline": {RELABEL: "none"}}
    made = Runs(tmp_path, axes=(RELABEL, TAU), seeds=(0, 1, 2), table=baseline)
    rng = random.Random(0)
    for values in ({RELABEL: "none"}, {TAU: 0.05}, {TAU: 0.1}):
        for seed in range(3):
            labels = {} if RELABEL in values else {"confidence": [0.1, 0.2, 0.3, 0.4]}
            curve = [rng.uniform(10, 90) for _ in range(4)]
            made.add(values, seed, curve, metrics=labels, device_hours=1 + seed)
    return made


# ---------------------------------------------------------------- curves


@given(
    st.lists(
        st.dictionaries(st.integers(1, 6), st.floats(0, 100), max_size=6), min_size=1, max_size=5
    )
)
def test_a_band_is_mean_and_deviation_of_the_seeds(curves: list[dict[int, float]]) -> None:
    found = band("arm", curves)
    measured = [curve for curve in curves if curve]
    shared = [e for e in range(1, 7) if measured and all(e in curve for curve in measured)]
    if not shared:
        assert found is None
        return
    assert found is not None
    series, n = found
    assert n == len(measured) and list(series.x) == shared
    for i, epoch in enumerate(shared):
        values = [curve[epoch] for curve in measured]
        mean = sum(values) / len(values)
        assert series.y[i] == pytest.approx(mean)
        if n == 1:
            assert series.low is None and series.high is None
        else:
            assert series.low is not None and series.high is not None
            assert series.low[i] == pytest.approx(mean - statistics.stdev(values), abs=1e-6)
            assert series.high[i] == pytest.approx(mean + statistics.stdev(values), abs=1e-6)


def test_curves_are_the_stores_values_in_percent(runs: Runs) -> None:
    curves = runs.figures()["curves"]
    assert labels(curves.panels[0]) == {"MoCo", "ASCL, τ' = 0.05", "ASCL, τ' = 0.1"}
    own = [row.run_id for row in runs.rows if row.config[RELABEL] == "none"]
    for i in range(4):
        values = [100 * runs.curves[run_id][i]["knn_top1"] for run_id in own]
        assert the(curves, "MoCo").y[i] == pytest.approx(sum(values) / 3)
    assert the(curves, "MoCo").x == (1, 2, 3, 4)
    assert "n = 3 seeds" in curves.caption and "± 1 sd" in curves.caption


@pytest.mark.parametrize("state", ["stopped", "failed", "running", "diverged"])
def test_only_complete_runs_are_in_a_tables_curves(runs: Runs, state: str) -> None:
    before = runs.figures()
    runs.add({TAU: 0.05}, seed=3, curve=[1, 1, 1, 1], state=state)
    after = runs.figures()
    assert after["curves"].panels == before["curves"].panels
    assert after["cost"].panels == before["cost"].panels


def test_a_searchs_runs_are_not_in_a_tables_curves(runs: Runs) -> None:
    before = runs.figures()["curves"]
    runs.add({TAU: 0.05}, seed=0, curve=[1, 1, 1, 1], phase="search")
    assert runs.figures()["curves"].panels == before.panels


def test_what_was_not_measured_is_no_number(runs: Runs) -> None:
    for epochs in runs.curves.values():
        epochs[1]["knn_top1"] = None
        epochs[2]["knn_top1"] = math.nan
    assert the(runs.figures()["curves"], "MoCo").x == (1, 4)


def test_the_order_of_rows_does_not_matter(runs: Runs) -> None:
    report = runs.report()
    figures = build_figures(report, runs.store)
    turned = replace(report, runs=tuple(reversed(report.runs)))
    assert len(figures) > 3
    assert build_figures(turned, runs.store) == figures


def test_two_datasets_have_a_panel_each_and_names_in_common(runs: Runs, tmp_path: Path) -> None:
    made = Runs(tmp_path / "two", axes=(DATA, TAU), seeds=(0, 1))
    for i, data in enumerate(("cifar10", "cifar100")):
        for tau in (0.05, 0.1):
            for seed in range(2):
                made.add({DATA: data, TAU: tau}, seed, [20 * i + 9 * tau, 20 * i + 10])
    figures = made.figures()
    for kind in ("curves", "cost", "parameter_method_target_temperature"):
        assert [panel.title for panel in figures[kind].panels] == ["CIFAR-10", "CIFAR-100"], kind
    first, second = figures["curves"].panels
    assert labels(first) == labels(second) == {"τ' = 0.05", "τ' = 0.1"}
    assert all(y is not None and y < 15 for series in first.series for y in series.y)


def test_of_many_arms_the_best_and_the_baseline_are_shown(tmp_path: Path) -> None:
    made = Runs(tmp_path, axes=(TAU,), seeds=(0, 1), table={"baseline": {TAU: 0.01}})
    for i in range(20):
        for seed in range(2):
            made.add({TAU: 0.01 * (i + 1)}, seed, [1.0 * i, 2.0 * i + seed])
    curves = made.figures()["curves"]
    best = {f"τ' = {0.01 * (i + 1):g}" for i in range(20 - ARMS + 1, 20)}
    assert labels(curves.panels[0]) == best | {"τ' = 0.01"}
    assert "12 of 20 arms" in curves.caption


def test_soft_labels_are_shown_where_there_are_some(runs: Runs) -> None:
    (confidence,) = runs.figures()["labels"].panels
    assert confidence.y_label == "confidence c"
    assert labels(confidence) == {"ASCL, τ' = 0.05", "ASCL, τ' = 0.1"}
    assert confidence.series[0].y == pytest.approx((0.1, 0.2, 0.3, 0.4)), "no percent"


# ---------------------------------------------------------------- parameters


def test_a_parameters_line_is_the_means_and_its_points_the_runs(runs: Runs) -> None:
    (panel,) = runs.figures()["parameter_method_target_temperature"].panels
    line, points, level = panel.series
    assert line.label == points.label == "ASCL"
    assert line.x == (0.05, 0.1) and points.kind == "points" and not panel.log_x
    last = {
        tau: [
            100 * (r.knn_last_top1 or 0) for r in runs.rows if r.config[TAU] == tau and not r.idle
        ]
        for tau in (0.05, 0.1)
    }
    assert line.y == pytest.approx([statistics.fmean(last[tau]) for tau in (0.05, 0.1)])
    for tau, scores in last.items():
        shown = [y for x, y in zip(points.x, points.y, strict=True) if x == tau]
        assert shown == pytest.approx(scores)
    assert level.label == "MoCo (no τ')" and level.x == (0.05, 0.1)
    assert level.y[0] == level.y[1]


def test_a_line_joins_only_arms_that_are_alike_in_all_else(tmp_path: Path) -> None:
    made = Runs(tmp_path, axes=(TAU, LR), seeds=(0, 1))
    for tau in (0.01, 0.2):
        for lr in (0.1, 0.3):
            for seed in range(2):
                made.add({TAU: tau, LR: lr}, seed, [0, 100 * lr + tau])
    (panel,) = made.figures()["parameter_method_target_temperature"].panels
    assert panel.log_x, "from 0.01 to 0.2 is more than tenfold"
    lines = {s.label: s.y for s in panel.series if s.kind == "line"}
    assert lines == {
        "lr = 0.1": pytest.approx((10.01, 10.2)),
        "lr = 0.3": pytest.approx((30.01, 30.2)),
    }


def test_parameters_that_only_change_together_have_no_figure(tmp_path: Path) -> None:
    made = Runs(tmp_path, axes=(TAU, LR), seeds=(0, 1))
    for tau, lr in ((0.01, 0.1), (0.1, 0.3), (0.2, 0.5)):
        for seed in range(2):
            made.add({TAU: tau, LR: lr}, seed, [0, 10])
    assert set(made.figures()) == {"curves", "cost"}


def test_a_heat_map_is_the_mean_of_each_cell(tmp_path: Path) -> None:
    made = Runs(tmp_path, axes=(TAU, K, LR), seeds=(0, 1))
    scores: dict[tuple[float, int], list[float]] = {}
    rng = random.Random(1)
    for tau in (0.01, 0.1, 0.5):
        for k in (1, 5):
            for lr in (0.1, 0.2):
                for seed in range(2):
                    if (tau, k) != (0.5, 5):
                        scores.setdefault((tau, k), []).append(rng.uniform(0, 90))
                        made.add({TAU: tau, K: k, LR: lr}, seed, [0, scores[tau, k][-1]])
    (panel,) = made.figures()["heatmap"].panels
    assert panel.heat is not None and (panel.x_label, panel.y_label) == ("τ'", "K")
    assert panel.heat.columns == ("0.01", "0.1", "0.5") and panel.heat.rows == ("1", "5")
    for row, k in enumerate((1, 5)):
        for column, tau in enumerate((0.01, 0.1, 0.5)):
            cell = scores.get((tau, k))
            expected = None if cell is None else pytest.approx(statistics.fmean(cell))
            assert panel.heat.values[row][column] == expected


# ---------------------------------------------------------------- searches


def a_search(folder: Path, trials: int = 30) -> Runs:
    """A random search with ASHA: two thirds stop after one epoch, one run is audited."""
    made = Runs(folder, axes=(RELABEL, TAU, LR), seeds=(0, 1), search=True, stop=ASHA, finalists=2)
    rng = random.Random(2)
    for i in range(trials):
        values = {
            RELABEL: "none" if i % 5 == 0 else "ascl",
            TAU: math.exp(rng.uniform(math.log(0.01), math.log(0.5))),
            LR: rng.uniform(0.1, 0.3),
            "data.holdout": 0.1,
        }
        curve = sorted(rng.uniform(0, 90) for _ in range(4))
        if i % 3 and i != 1:
            because = "ASHA at epoch 1: too low"
            made.add(values, 0, curve[:1], phase="search", state="stopped", stopped_because=because)
        else:
            made.add(values, 0, curve, phase="search", audit=i == 1)
    return made


@pytest.fixture
def search(tmp_path: Path) -> Runs:
    return a_search(tmp_path)


def bundled(series: Series) -> list[list[tuple[float | str, float]]]:
    """Return the lines of one series."""
    lines: list[list[tuple[float | str, float]]] = [[]]
    for x, y in zip(series.x, series.y, strict=True):
        if y is None:
            lines.append([])
        else:
            lines[-1].append((x, y))
    return lines


def test_every_trial_is_a_line_and_a_stopped_one_is_marked_where_it_ended(search: Runs) -> None:
    (panel,) = search.figures()["rungs"].panels
    by_label = {series.label: series for series in panel.series}
    assert set(by_label) == {
        "rungs", "stopped (19)", "complete (10)", "audited (not stopped) (1)", "stopped here"
    }  # fmt: skip
    drawn = [line for s in panel.series[1:-1] for line in bundled(s)]
    curves = [
        [(e["epoch"], pytest.approx(100 * e["knn_top1"])) for e in epochs]
        for epochs in search.curves.values()
    ]
    assert all(line in curves for line in drawn) and len(drawn) == len(curves)
    stopped = [row for row in search.rows if row.state == "stopped"]
    ends = by_label["stopped here"]
    assert sorted(ends.y) == pytest.approx(  # type: ignore[type-var]
        sorted(100 * (row.knn_last_top1 or 0) for row in stopped)
    )
    assert set(ends.x) == {1} and ends.text is not None
    assert all("ASHA at epoch 1: too low" in text for text in ends.text)
    assert set(by_label["rungs"].x) == {1, 3}


def test_what_was_stopped_has_no_final_score_in_any_figure(search: Runs) -> None:
    complete = {100 * (r.knn_last_top1 or 0) for r in search.rows if r.state == "done"}
    figures = search.figures()
    (panel,) = figures["parameter_optim_lr"].panels
    assert panel.title == "search: holdout, one seed" and labels(panel) == {"MoCo", "ASCL"}
    shown = [y for series in panel.series for y in series.y]
    assert sorted(shown) == pytest.approx(sorted(complete))  # type: ignore[type-var]
    assert "n = 11 complete trials" in figures["parameter_optim_lr"].caption


def test_many_trials_are_sampled_evenly_and_the_caption_states_it(tmp_path: Path) -> None:
    made = Runs(tmp_path, axes=(TAU,), search=True)
    for i in range(TRIALS + 50):
        made.add({TAU: 0.01 * (i + 1)}, 0, [i / 4, i / 2], phase="search")
    figure = made.figures()["rungs"]
    lines = bundled(figure.panels[0].series[0])
    assert len(lines) == TRIALS and f"{TRIALS} of {TRIALS + 50} trials" in figure.caption
    ends = [line[-1][1] for line in lines]
    assert max(ends) == pytest.approx((TRIALS + 49) / 2) and min(ends) == 0


@given(st.integers(0, 300), st.integers(2, 50))
def test_an_even_choice_has_both_ends_and_keeps_the_order(size: int, most: int) -> None:
    chosen = spread(range(size), most)
    assert chosen == sorted(set(chosen)) and len(chosen) == min(size, most)
    if size:
        assert chosen[0] == 0 and chosen[-1] == size - 1


# ---------------------------------------------------------------- the whole


def test_cost_is_the_mean_of_the_complete_runs(runs: Runs) -> None:
    cost = runs.figures()["cost"]
    assert {series.x for series in cost.panels[0].series} == {(2.0,)}, "seeds took 1, 2, 3 hours"
    curve = [100 * (r.knn_last_top1 or 0) for r in runs.rows if r.config[RELABEL] == "none"]
    moco = the(cost, "MoCo")
    assert moco.y[0] == pytest.approx(statistics.fmean(curve))
    assert moco.low is not None
    assert moco.low[0] == pytest.approx(statistics.fmean(curve) - statistics.stdev(curve))


def test_a_sweep_that_has_not_begun_has_no_figures(tmp_path: Path) -> None:
    made = Runs(tmp_path, axes=(TAU,), seeds=(0, 1))
    for seed in range(2):
        made.add({TAU: 0.1}, seed, state="planned")
    assert made.figures() == {}


def test_names_are_words_and_captions_say_their_n(runs: Runs, search: Runs) -> None:
    figures = list(runs.figures().items()) + list(search.figures().items())
    for name, figure in figures:
        assert name.replace("_", "").isalnum(), name
        assert figure.title and ("n = " in figure.caption or "every trial" in figure.caption)


def test_figures_load_nothing_that_is_slow() -> None:
    code = (
        "import sys; from ascl_sweep.report.figures import plotly_backend, tsne\n"
        "assert not {'torch', 'ray', 'optuna', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "import ascl_sweep.report.figures.matplotlib_backend\n"
        "assert not {'torch', 'ray', 'matplotlib.pyplot', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
