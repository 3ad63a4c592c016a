"""The report: the results of a store's sweeps as one value that every format renders."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ascl.errors import suggestion
from ascl_sweep.analysis import labels
from ascl_sweep.analysis.comparison import Arm, Options, matches
from ascl_sweep.analysis.search_summary import SearchSummary, summarize_search
from ascl_sweep.analysis.table import (
    AblationTable,
    Annotate,
    build_table,
    check_options,
    share_comparisons,
)
from ascl_sweep.contracts import RunRow, Scalar, SweepRow
from ascl_sweep.errors import StoreError, UsageError
from ascl_sweep.report.document import Section
from ascl_sweep.spec.metrics import METRICS
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.store.store import Store

if TYPE_CHECKING:
    import pandas

PlainData = dict[str, object]
"""A JSON object."""


@dataclass(frozen=True)
class SweepReport:
    """The part of a report on one sweep: table, search and runs."""

    sweep: SweepRow
    digest: SweepSummary
    states: Mapping[str, int]
    table: AblationTable | None
    search: SearchSummary | None
    runs: tuple[RunRow, ...]


@dataclass(frozen=True)
class Appendix:
    """Sections and data that an extension adds to a report."""

    name: str
    """Its key in JSON."""
    sections: tuple[Section, ...]
    """Shown before the sweeps."""
    data: tuple[PlainData, ...]


@dataclass(frozen=True)
class Extension:
    """Additions of a project to reports: published values in tables, and more sections."""

    annotate: Annotate
    build_appendix: Callable[[Store, Sequence[SweepReport], Options], Appendix]


@dataclass(frozen=True)
class Report:
    """The results of some sweeps of a store.

    Notebooks display a report as tables. Example:

        report = build_report(Store("results"), ["tau_prime"])
        report.to_pandas().sort_values("mean")
    """

    store: str
    options: Options
    sweeps: tuple[SweepReport, ...]
    problems: tuple[str, ...]
    """Files that could not be read, with reasons."""
    appendices: tuple[Appendix, ...] = ()

    def to_pandas(self, per: Literal["arm", "run"] = "arm") -> "pandas.DataFrame":
        """Return the results of all sweeps as one `pandas.DataFrame`.

        Args:
            per: One row per arm, with its statistics, or one row per run, as in CSV.
        """
        from ascl_sweep.report import rows

        try:
            import pandas as pd
        except ImportError as error:
            raise UsageError("to_pandas needs pandas: pip install pandas") from error
        if per == "run":
            return pd.DataFrame(list(rows.run_rows(self)), columns=list(rows.run_columns(self)))
        if per != "arm":
            raise UsageError(f"per must be arm or run, got {per!r}")
        return pd.DataFrame(list(rows.arm_rows(self)), columns=list(rows.arm_columns(self)))

    def to_markdown(self) -> str:
        """Return the report as Markdown, as `ascl-sweep report --format md` prints it."""
        from ascl_sweep.report.formats.markdown import FORMAT

        return FORMAT.render(self)

    def _repr_html_(self) -> str:
        """Return the tables as HTML without styles or scripts, for notebooks."""
        from ascl_sweep.report.formats.html.tables import render_notebook

        return render_notebook(self)


def build_report(
    store: Store,
    sweeps: Sequence[str] = (),
    options: Options | None = None,
    extensions: Sequence[Extension] = (),
) -> Report:
    """Build the report on sweeps of a store.

    Args:
        store: The store to read.
        sweeps: Names of sweeps, in the order of the report; all if empty.
        options: Metric, epoch, baseline and region of equivalence of the tables.
        extensions: Additions to the report; `reproduction.section.PAPER` adds the ASCL paper.

    Returns:
        The report.

    Raises:
        UsageError: A sweep does not exist, or an option is invalid.
        StoreError: A newer version wrote the store.
    """
    options = options or Options()
    check_options(options)
    known = store.sweeps()
    _refuse_newer(store)
    chosen = list(store.select_sweeps(known, sweeps).values())
    digests = [SweepSummary.of_json(sweep.digest) for sweep in chosen]
    rows = _by_sweep(store.runs().values())
    asked = {options.metric} if options.metric else {(d.table or {}).get("metric") for d in digests}
    only_epochs_have = sorted(m for m in asked if m in METRICS and METRICS[m].last is None)
    last = store.last_epochs(only_epochs_have) if only_epochs_have else {}
    _refuse_newer(store)
    annotators = [extension.annotate for extension in extensions]
    owned = {key: rows.get(key, []) for key in map(_key, known.values())}
    # Sweeps that share runs with the chosen ones may own some of their comparisons.
    ids = {row.run_id for sweep in chosen for row in owned[_key(sweep)]}
    shared = [
        sweep
        for sweep in known.values()
        if sweep not in chosen and any(row.run_id in ids for row in owned[_key(sweep)])
    ]
    tables = {
        sweep.name: table
        for sweep in chosen
        if (table := build_table(sweep, owned[_key(sweep)], options, last, annotators))
    }
    for sweep in shared:
        with suppress(UsageError):  # the options may not fit a sweep that is not reported
            table = build_table(sweep, owned[_key(sweep)], options, last)
            tables |= {sweep.name: table} if table else {}
    tables = {table.sweep: table for table in share_comparisons(list(tables.values()))}
    reports = [
        SweepReport(
            sweep=sweep,
            digest=digest,
            states=dict(Counter(row.state for row in owned[_key(sweep)])),
            table=tables.get(sweep.name),
            search=summarize_search(sweep, owned[_key(sweep)]),
            runs=tuple(owned[_key(sweep)]),
        )
        for sweep, digest in zip(chosen, digests, strict=True)
    ]
    if options.baseline:
        _check_baseline(options.baseline, [arm for r in reports if r.table for arm in r.table.arms])
    appendices = tuple(e.build_appendix(store, reports, options) for e in extensions)
    return Report(store.address, options, tuple(reports), tuple(store.problems), appendices)


def _key(sweep: SweepRow) -> tuple[str, str]:
    return sweep.name, sweep.scale


def _by_sweep(rows: Iterable[RunRow]) -> dict[tuple[str, str], list[RunRow]]:
    """Group runs by sweep and scale; a run may belong to several sweeps."""
    found: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        for name in row.sweeps:
            found.setdefault((name, row.scale), []).append(row)
    return found


def _refuse_newer(store: Store) -> None:
    if store.newer:
        raise StoreError(
            f"{store.address} was written by a newer version, and a report that skips its files "
            f"would be wrong: {store.newer[0]}"
        )


def _check_baseline(wanted: Mapping[str, Scalar], arms: Sequence[Arm]) -> None:
    """Raise UsageError if no arm matches the baseline."""
    for key, value in wanted.items():
        if arms and not any(key in arm.config for arm in arms):
            keys = {key for arm in arms for key in arm.config}
            raise UsageError(
                f"--baseline must name config keys of the arms, got {key!r}{suggestion(key, keys)}"
            )
        if not any(matches(arm, {key: value}) for arm in arms):
            there = dict.fromkeys(arm.config[key] for arm in arms if key in arm.config)
            known = f"; known values: {', '.join(map(labels.value_of, there))}" if there else ""
            raise UsageError(f"no arm matches --baseline {key}={labels.value_of(value)}{known}")
    if not any(matches(arm, wanted) for arm in arms):
        given = ", ".join(f"{key}={labels.value_of(value)}" for key, value in wanted.items())
        raise UsageError(f"no arm matches all of --baseline {given}")
