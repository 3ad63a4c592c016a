"""The report as a value: notebooks, pandas and extensions."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ascl_sweep.analysis.table import AblationTable
from ascl_sweep.contracts import SweepRow
from ascl_sweep.errors import UsageError
from ascl_sweep.report.document import Section, Text, build_document
from ascl_sweep.report.report import Appendix, Extension, Report, build_report
from ascl_sweep.report.tables import Table
from ascl_sweep.store.store import Store
from tests import stores
from tests.ascl_sweep.report.formats.test_html import Outline
from tests.stores import ASCL, MOCO, RELABEL, in_order, sweep, write


def test_a_data_frame_has_a_row_for_each_arm(report: Report) -> None:
    frame = report.to_pandas()
    arms = [(s.sweep.name, a) for s in report.sweeps if s.table for a in s.table.arms]
    assert list(zip(frame["sweep"], frame["arm"], strict=True)) == [(s, a.label) for s, a in arms]
    for row, (_, arm) in zip(frame.itertuples(), arms, strict=True):
        assert row.n == arm.n and (row.mean == arm.mean or arm.mean is None)


def test_a_data_frame_may_have_a_row_for_each_run(report: Report) -> None:
    frame = report.to_pandas(per="run")
    assert len(frame) == sum(len(found.runs) for found in report.sweeps)
    means = frame[frame["phase"] == "final"].groupby(["sweep", "arm"])["score"].mean()
    assert abs(means["neighbours", "MoCo"] - 88.51) < 1e-9
    with pytest.raises(UsageError, match="must be arm or run"):
        report.to_pandas(per="seed")  # type: ignore[arg-type]


def test_missing_pandas_is_reported_with_a_fix(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        report.to_pandas()


def test_a_notebook_shows_every_table_and_nothing_that_runs(report: Report) -> None:
    found = Outline(report._repr_html_())
    tables = [b for s in build_document(report) for b in s.blocks if isinstance(b, Table)]
    assert len(found.all("table")) == len(tables)
    assert not found.all("script", "style", "html", "img", "link")
    for table in tables:
        for cell in (cell for row in table.rows for cell in row):
            assert not cell.text or cell.text in found.words
    hostile = replace(report, problems=("x",), sweeps=())
    assert "<script" not in replace(hostile, store="<script>")._repr_html_()


def test_markdown_is_that_of_the_command(report: Report) -> None:
    golden = Path(__file__).parent / "golden" / "report.md"
    assert report.to_markdown() == golden.read_text(encoding="utf-8")


def test_the_core_knows_no_paper(store: Store) -> None:
    plain = build_report(store)
    assert plain.appendices == ()
    for found in plain.sweeps:
        assert found.table is not None
        assert found.table.paper is None and all(arm.paper is None for arm in found.table.arms)


def test_an_extension_adds_remarks_and_a_section(store: Store) -> None:
    def annotate(table: AblationTable, sweep: SweepRow) -> AblationTable:
        return replace(table, remarks=(*table.remarks, f"Seen: {sweep.name}."))

    section = Section("", "Ours", (Text(("A sentence.",)),))
    extension = Extension(annotate, lambda *_: Appendix("ours", (section,), ({"a": 1},)))
    text = build_report(store, ["once"], extensions=[extension]).to_markdown()
    assert "## Ours\n\n- A sentence." in text and "- Seen: once." in text


def test_an_error_of_another_sweep_does_not_break_a_report(tmp_path: Path) -> None:
    """The other sweep shares runs, so its table is built too; its table section is wrong."""
    rows = [
        replace(row, sweeps=("it", "other"))
        for row in [
            *stores.arm("it", MOCO, [88.0, 88.1, 88.4]),
            *stores.arm("it", ASCL, [90.0, 90.1, 90.5]),
        ]
    ]
    asked = [
        sweep("it", (RELABEL,), table=stores.table(RELABEL, baseline=MOCO)),
        sweep("other", (RELABEL,), table=stores.table("no.such_key", baseline=MOCO)),
    ]
    store = write(tmp_path, asked, in_order(rows))
    (found,) = build_report(store, ["it"]).sweeps
    assert found.table is not None and found.table.arms[1].comparison is not None
    with pytest.raises(UsageError, match=r"no\.such_key"):
        build_report(store, ["other"])
