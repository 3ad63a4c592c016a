"""The paragraph on statistical methods: once, and only what the report uses."""

from ascl_sweep.analysis.table import AblationTable, build_table
from ascl_sweep.report.document import build_document
from ascl_sweep.report.methods_text import TITLE, describe_methods
from ascl_sweep.report.report import Report
from tests.stores import EXAMPLE_ROWS, EXAMPLE_SWEEPS, MOCO, RELABEL, arm, in_order, sweep
from tests.stores import table as file_table


def built(**digest: object) -> AblationTable:
    rows = [*arm("it", MOCO, [88.0, 88.2, 88.1]), *arm("it", {RELABEL: "ascl"}, [89.0, 88.2, 89.1])]
    asked = sweep("it", (RELABEL,), table=file_table(RELABEL, baseline=MOCO), **digest)
    found = build_table(asked, in_order(rows))
    assert found is not None
    return found


def test_the_methods_are_stated_once_after_the_sweeps(report: Report) -> None:
    titles = [section.title for section in build_document(report)]
    assert titles.count(TITLE) == 1
    appendices = [i for i, section in enumerate(build_document(report)) if section.appendix]
    sweeps = [i for i, s in enumerate(build_document(report)) if s.sweep and not s.appendix]
    assert max(sweeps) < titles.index(TITLE) < min(appendices)


def test_planned_looks_and_extensions_are_stated_where_they_are_used() -> None:
    assert "planned looks" not in " ".join(describe_methods([built()]))
    looks = built(seeds=tuple(range(5)), looks=(3, 5))
    assert "alpha spending" in " ".join(describe_methods([looks]))
    assert "half the error of the table before" in " ".join(describe_methods([built(extensions=1)]))


def test_a_report_without_tests_states_no_methods() -> None:
    once = next(asked for asked in EXAMPLE_SWEEPS if asked.name == "once")
    found = build_table(once, EXAMPLE_ROWS)
    assert found is not None and describe_methods([found]) == ()


def test_intervals_cover_training_seeds_only() -> None:
    assert "training seeds only" in " ".join(describe_methods([built()]))
    assert "training seeds only" in built().caption[1]
