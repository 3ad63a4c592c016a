"""Rows per arm and per run, as pandas and CSV show them."""

from ascl_sweep.report.report import Report
from ascl_sweep.report.rows import ARM_COLUMNS, arm_rows, run_columns, run_rows


def test_every_arm_has_every_column(report: Report) -> None:
    assert all(tuple(row) == ARM_COLUMNS for row in arm_rows(report))


def test_every_run_has_every_column(report: Report) -> None:
    columns = run_columns(report)
    assert all(tuple(row) == columns for row in run_rows(report))


def test_the_mean_of_an_arm_is_that_of_its_runs(report: Report) -> None:
    scores: dict[object, list[float]] = {}
    for run in run_rows(report):
        if run["phase"] == "final" and isinstance(run["score"], float):
            scores.setdefault((run["sweep"], run["arm"]), []).append(run["score"])
    for arm in arm_rows(report):
        own = scores.get((arm["sweep"], arm["arm"]), [])
        assert arm["n"] == len(own)
        if own:
            assert isinstance(arm["mean"], float)
            assert abs(arm["mean"] - sum(own) / len(own)) < 1e-9
