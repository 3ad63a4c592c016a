"""The report: what a store's sweeps came to, as one value that every format is drawn from."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ascl.faults import suggestion, unknown_name
from ascl_sweep import labels
from ascl_sweep.claims import EARLY_SWEEPS, SWEEPS
from ascl_sweep.digest import Digest
from ascl_sweep.ledger import Ledger, RunRow, Scalar, SweepRow
from ascl_sweep.report.ablation import METRICS, AblationTable, Arm, Options
from ascl_sweep.report.arms import has
from ascl_sweep.report.judged import Finding, early, findings
from ascl_sweep.report.searches import SearchSummary, search_of
from ascl_sweep.report.tables import check, table_of


@dataclass(frozen=True)
class SweepReport:
    """One sweep: its table, its search, and the runs behind them."""

    sweep: SweepRow
    digest: Digest
    states: Mapping[str, int]
    table: AblationTable | None
    search: SearchSummary | None
    runs: tuple[RunRow, ...]


@dataclass(frozen=True)
class ScaleClaims:
    """What the runs of one scale say of the paper's claims."""

    scale: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Report:
    """Some sweeps of a store."""

    store: str
    options: Options
    sweeps: tuple[SweepReport, ...]
    problems: tuple[str, ...]
    """On files that could not be read."""
    claims: tuple[ScaleClaims, ...] = ()
    """The paper's, as far as these sweeps are the ones for them."""


def report_of(ledger: Ledger, names: Sequence[str] = (), options: Options | None = None) -> Report:
    """The report on these sweeps of a store, or on all; raises ValueError if there is none."""
    options = options or Options()
    check(options)
    known = ledger.sweeps()
    _refuse_newer(ledger)
    if not known:
        unread = "".join(f"; {problem}" for problem in ledger.problems)
        raise ValueError(
            f"there is no sweep in {ledger.address}; start one with `ascl-sweep run FILE`, or say "
            f"where with --store{unread}"
        )
    for name in names:
        if name not in known:
            raise ValueError(unknown_name("sweep", name, known))
    chosen = [known[name] for name in dict.fromkeys(names or known)]
    digests = [Digest.of_json(sweep.digest) for sweep in chosen]
    rows = _by_sweep(ledger.runs().values())
    asked = {options.metric} if options.metric else {(d.table or {}).get("metric") for d in digests}
    only_epochs_have = sorted(m for m in asked if m in METRICS and METRICS[m].last is None)
    last = ledger.last_epochs(only_epochs_have) if only_epochs_have else {}
    _refuse_newer(ledger)
    reports = []
    for sweep, digest in zip(chosen, digests, strict=True):
        own = rows.get((sweep.name, sweep.scale), [])
        reports.append(
            SweepReport(
                sweep=sweep,
                digest=digest,
                states=dict(Counter(row.state for row in own)),
                table=table_of(sweep, own, options, last),
                search=search_of(sweep, own),
                runs=tuple(own),
            )
        )
    if options.baseline:
        _check_baseline(options.baseline, [arm for r in reports if r.table for arm in r.table.arms])
    claims = tuple(_claims(ledger, reports, options))
    return Report(ledger.address, options, tuple(reports), tuple(ledger.problems), claims)


def _claims(ledger: Ledger, reports: Sequence[SweepReport], options: Options) -> list[ScaleClaims]:
    """What the runs of these sweeps say of the paper's claims, at each scale by itself."""
    found = []
    for scale in dict.fromkeys(report.sweep.scale for report in reports):
        own = [report for report in reports if report.sweep.scale == scale]
        names = {report.sweep.name for report in own} & SWEEPS
        rows = {row.run_id: row for report in own for row in report.runs}
        speed = {i for i, row in rows.items() if set(row.sweeps) & EARLY_SWEEPS & names}
        curves = ledger.curves(["knn_top1"]) if speed else ()
        first = {i: early(curve["epoch"], curve["knn_top1"]) for i, curve in curves if i in speed}
        known = {run_id: value for run_id, value in first.items() if value is not None}
        judged = findings(rows.values(), names, known, options.region)
        found += [ScaleClaims(scale, judged)] if judged else []
    return found


def _by_sweep(rows: Iterable[RunRow]) -> dict[tuple[str, str], list[RunRow]]:
    """Every run under each sweep that wants it, and the scale it was run at."""
    found: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        for name in row.sweeps:
            found.setdefault((name, row.scale), []).append(row)
    return found


def _refuse_newer(ledger: Ledger) -> None:
    if ledger.newer:
        raise ValueError(
            f"{ledger.address} was written by a newer version, and a report without what it wrote "
            f"would be wrong: {ledger.newer[0]}"
        )


def _check_baseline(wanted: Mapping[str, Scalar], arms: Sequence[Arm]) -> None:
    """Refuse a baseline that none of the arms is."""
    for key, value in wanted.items():
        if arms and not any(key in arm.config for arm in arms):
            keys = {key for arm in arms for key in arm.config}
            raise ValueError(
                f"--baseline must name keys that arms have, and none has {key!r}"
                f"{suggestion(key, keys)}"
            )
        if not any(has(arm, {key: value}) for arm in arms):
            there = dict.fromkeys(arm.config[key] for arm in arms if key in arm.config)
            known = f"; there are: {', '.join(map(labels.value_of, there))}" if there else ""
            raise ValueError(f"no arm has the baseline {labels.arm({key: value})}{known}")
    if not any(has(arm, wanted) for arm in arms):
        raise ValueError(f"no arm has all of the baseline {labels.arm(wanted)}")
