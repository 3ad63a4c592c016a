"""Run sweeps: read the store, plan, open an executor, and run the sweeps one after the other."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ascl_sweep.analysis.arms import seed_of
from ascl_sweep.clock import read_clock, unix_time
from ascl_sweep.contracts import RunState, SweepRow
from ascl_sweep.runtime.callbacks.base import Callback, Callbacks
from ascl_sweep.runtime.callbacks.logger import check_loggers, open_logger
from ascl_sweep.runtime.controller import Controller, End, History
from ascl_sweep.runtime.executor import Executor
from ascl_sweep.runtime.health import ClusterHealth
from ascl_sweep.runtime.records import claim_runs, looks_complete, summarize_epochs
from ascl_sweep.runtime.recovery import lost_rows, rebuild_rows
from ascl_sweep.runtime.signals import handle_signals
from ascl_sweep.search.plan import Plan, make_plan
from ascl_sweep.search.study import Study
from ascl_sweep.spec.summary import SeedPlan, SweepSummary
from ascl_sweep.spec.sweep import SweepSpec
from ascl_sweep.store.store import LeaseHolder, Store, Writer


@dataclass
class PreparedSweeps:
    """Sweeps with one study each, based on a snapshot of the store."""

    store: Store
    specs: tuple[SweepSpec, ...]
    retry: frozenset[RunState]
    """Runs of the sweeps in these states are retried."""

    def __post_init__(self) -> None:
        self.read_store()

    def read_store(self) -> None:
        """Read the store and rebuild the studies."""
        snapshot = self.store.snapshot()
        self.store.check_readable()  # unread rows would be planned and trained again
        self._version = snapshot.version
        self.history = History(snapshot.runs, snapshot.curves, {})
        self.rebuilt = self._rebuild_rows()
        rows, names = self.history.rows, {spec.name for spec in self.specs}
        self.reset = [
            row.run_id
            for row in rows.values()
            if row.state in self.retry and names & set(row.sweeps)
        ]
        for run_id in self.reset:
            rows[run_id] = replace(rows[run_id], state=RunState.PLANNED, error=None)
        self.studies = [
            Study(
                *(spec, rows, self.history.curves),
                *seed_plans(spec, snapshot.sweeps.get(spec.name), self.history),
            )
            for spec in self.specs
        ]

    def _rebuild_rows(self) -> list[str]:
        """Rebuild the rows of runs that have only epochs, so that these are not planned again."""
        history = self.history
        lost = lost_rows(history.rows, history.curves)
        epochs = self.store.epochs(lost) if lost else {}
        rebuilt = rebuild_rows(self.store, history.rows, epochs, self.specs) if lost else {}
        history.rows.update(rebuilt)
        return list(rebuilt)

    def read_changes(self) -> None:
        """Read the store again if it has changed. The caller holds the store's lock."""
        if self.store.version() != self._version:
            self.read_store()

    def plan(self, timings: Mapping[tuple[object, ...], float] | None = None) -> Plan:
        """Plan the sweeps: the runs to train and their cost."""
        return make_plan(self.studies, self.history.rows, timings)


def seed_plans(
    spec: SweepSpec, old: SweepRow | None, history: History
) -> tuple[SeedPlan, dict[str, SeedPlan]]:
    """Return a sweep's plan of seeds with its changes, and the last plan at each other scale.

    A user who adds seeds after a look at the results has one more chance of a wrong decision, and
    so has one who removes seeds. Changes before any result do not count.

    Args:
        spec: The sweep as it runs now.
        old: The sweep as it was last started, at any scale; None if it was not.
        history: All runs of the store.
    """
    now = SeedPlan(spec.seed_list, spec.looks)
    if old is None:
        return now, {}
    digest = SweepSummary.of_json(old.digest)
    plans = {**digest.other_scales, old.scale: digest.seed_plan}
    before = plans.pop(spec.scale, now)
    now = replace(now, extensions=before.extensions, removed=before.removed)
    # A plan without seeds was recorded by an older version.
    if not before.seeds or (set(now.seeds), now.looks) == (set(before.seeds), before.looks):
        return now, plans
    # Results of another definition of the sweep, such as of shorter runs, tell nothing. The runs of
    # this one may have lost the sweep's name to a start at another scale.
    same = spec.model_copy(update={"seeds": before.seeds})
    own = Study(same, history.rows, dict(history.curves)).own()
    known = {
        seed_of(row)
        for row in history.rows.values()
        if row.phase == "final" and row.run_id in own and row.state is RunState.DONE
    }
    if known:
        removed = {*before.removed, *known.intersection(before.seeds).difference(now.seeds)}
        now = replace(now, extensions=before.extensions + 1, removed=tuple(sorted(removed)))
    return now, plans


def prepare_sweeps(
    specs: Sequence[SweepSpec], store: Store, retry: Collection[RunState] = ()
) -> PreparedSweeps:
    """Read a store and build a study for each sweep. Writes nothing."""
    return PreparedSweeps(store, tuple(specs), frozenset(retry))


def run_sweeps(
    prepared: PreparedSweeps,
    executor: Executor,
    callback: Callback,
    *,
    concurrency: int | None = None,
    wait: bool = False,
    loggers: Sequence[str] = (),
) -> End:
    """Run every run that is not in the store yet, one sweep after the other.

    Args:
        prepared: The sweeps; the store is read again if it has changed.
        executor: Executor of the runs.
        callback: Receives every event.
        concurrency: Maximum number of parallel runs; None for as many as fit.
        wait: Whether to wait for another driver of the store instead of raising StoreBusyError.
        loggers: Names of experiment loggers that receive a copy of the results.

    Returns:
        Why the last sweep ended.
    """
    store = prepared.store
    check_loggers(loggers, store.address)
    read_clock()

    def on_wait(driver: LeaseHolder) -> None:
        callback.on_note(f"another driver is writing to the store ({driver}); waiting")

    with ExitStack() as stack:
        interrupts = stack.enter_context(handle_signals())
        opened = [open_logger(name, store.address, callback.on_note) for name in loggers]
        for logger in opened:  # closed after the store's lock is released
            stack.push(lambda kind, *_, each=logger: each.close(1.0) if kind else each.close())
        callback = Callbacks([callback, *opened])
        writer = stack.enter_context(store.writer(wait=wait, on_wait=on_wait))
        store.clear_stop()
        prepared.read_changes()
        _record_plans(prepared, writer)
        if all(study.finished for study in prepared.studies):
            return End.DONE
        callback.on_note(executor.opening)
        kinds = [kind for spec in prepared.specs for kind in spec.resources.kinds()]
        with interrupts.defer():
            session = stack.enter_context(executor.open(kinds))
        if interrupts.count:
            return End.INTERRUPTED
        writer.beat()  # opening may have taken minutes: fails if the lock is lost
        cluster = session.read_cluster()
        for kind in kinds:
            cluster.check(kind)  # fail before any run starts
        ends, health = [], ClusterHealth()
        with interrupts.defer():
            for study in prepared.studies:
                controller = Controller(
                    *(study, prepared.history, store, writer, session.read_cluster, callback),
                    interrupts=interrupts,
                    concurrency=concurrency,
                    other_studies=prepared.studies,
                    health=health,
                )
                ends.append(controller.run(session.execute))
                if ends[-1] not in (End.DONE, End.FAILED):
                    break
    return ends[-1] if ends[-1] is not End.DONE else max(ends, key=lambda end: end is End.FAILED)


def _record_plans(prepared: PreparedSweeps, writer: Writer) -> None:
    """Record the sweeps and their runs; recover finished runs that a dead driver did not record."""
    history, store = prepared.history, prepared.store
    rows = history.rows
    unfinished = [row.run_id for row in rows.values() if row.epochs and not row.state.is_over]
    history.epochs.update(store.epochs(unfinished) if unfinished else {})
    store.check_readable()  # this read more columns than the snapshot
    for run_id in unfinished:
        if looks_complete(rows[run_id], history.curves.get(run_id, {})):
            row = summarize_epochs(rows[run_id], history.epochs.pop(run_id))
            ended = max(unix_time(), row.started or 0.0)  # the clock may have been set back
            rows[run_id] = replace(row, state=RunState.DONE, ended=ended)
            writer.put_run(rows[run_id])
            for study in prepared.studies:
                study.observe(run_id, RunState.DONE)
    for run_id in [*prepared.rebuilt, *prepared.reset]:
        writer.put_run(rows[run_id])
    for study in prepared.studies:
        spec = study.spec
        writer.put_sweep(
            SweepRow(
                name=spec.name,
                text=spec.text,
                file=spec.file,
                overrides=spec.overrides,
                scale=spec.scale,
                started=unix_time(),
                planned=spec.planned_runs,
                digest=study.digest.to_json(),
            )
        )
        for row in claim_runs(study, rows):
            rows[row.run_id] = row
            writer.put_run(row)
    writer.flush()
