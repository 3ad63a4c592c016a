"""Event loop of one sweep, between its study, the executor, the store and the callbacks.

The study owns the states of the runs, the controller owns the live attempts, the store owns the
history. Only `_finish` and `_requeue` end an attempt.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from statistics import median

from ascl.metrics import EpochMetrics
from ascl_sweep.clock import unix_time
from ascl_sweep.contracts import RunResult, RunRow, RunState, RunTask
from ascl_sweep.errors import AsclSweepError, ResourceError
from ascl_sweep.runtime.callbacks.base import Callback
from ascl_sweep.runtime.cluster import Cluster
from ascl_sweep.runtime.health import ClusterHealth
from ascl_sweep.runtime.outbox import Outbox
from ascl_sweep.runtime.placement import Attempt, Placement
from ascl_sweep.runtime.records import (
    Provenance,
    add_sweep,
    claim_runs,
    next_created,
    planned_row,
    summarize_epochs,
)
from ascl_sweep.runtime.signals import Interrupts
from ascl_sweep.search.study import PlannedRun, Study
from ascl_sweep.spec.sweep import Resources
from ascl_sweep.store.retry import PATIENCE
from ascl_sweep.store.store import Store, Writer

PROGRESS_SECONDS = 1.0  # interval of `Callback.on_progress`
CLUSTER_SECONDS = 5.0  # interval at which the cluster is read
DEATHS = 3  # retries of a run whose worker process dies before it makes progress
LOSSES = 10  # the same for losses that are no fault of the run: lost nodes, faulty devices
SILENT_EPOCHS = 10  # median epochs without progress after which a run is killed
DRIVER_PAUSE = 10.0  # seconds; a driver that was blocked for longer does not blame its runs
GRACE_EPOCHS, GRACE_SECONDS = 2, 60.0  # for which a draining sweep waits for its runs
BUDGET_GRACE = 0.1  # largest share of `budget.hours` for draining
TAIL = 12  # last lines of a failed run's log to show
DRAINING = "finishing the current epoch of each run"


class End(Enum):
    """Why a sweep ended."""

    DONE = "done"
    FAILED = "failed"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    NO_DISK = "no disk"


class SweepFailed(AsclSweepError):
    """The sweep was ended early because every run fails with the same error."""


@dataclass
class History:
    """In-memory copy of the store's runs, kept up to date; shared by all sweeps of a driver."""

    rows: dict[str, RunRow]
    curves: dict[str, dict[int, float | None]]
    """Online kNN accuracy of each run by epoch; shared with and updated by the studies."""
    epochs: dict[str, list[EpochMetrics]]
    """Metrics of the finished epochs of unfinished runs."""


class Controller:
    """Event loop of one sweep. Executors use it as a `RunSource`."""

    def __init__(
        self,
        study: Study,
        history: History,
        store: Store,
        writer: Writer,
        read_cluster: Callable[[], Cluster],
        callback: Callback,
        *,
        interrupts: Interrupts | None = None,
        concurrency: int | None = None,
        other_studies: Sequence[Study] = (),
        health: ClusterHealth | None = None,
    ) -> None:
        """Prepare to run a sweep.

        Args:
            study: The sweep's study.
            history: Runs of the store; updated with every result.
            store: Store of the work folders, logs and stop requests.
            writer: Writer of the store.
            read_cluster: Returns the current state of the cluster.
            callback: Receives every event.
            interrupts: Counter of signals such as Ctrl-C.
            concurrency: Maximum number of parallel runs; None for as many as fit.
            other_studies: Other studies of the driver, which may include the same runs.
            health: What earlier sweeps of the driver have found about the cluster.
        """
        self.study, self.spec = study, study.spec
        self._history, self._store = history, store
        self._callback, self._interrupts = callback, interrupts or Interrupts()
        self._outbox = Outbox(store, writer, callback.on_note)
        self._other_studies = [other for other in other_studies if other is not study]
        self.attempts: dict[str, Attempt] = {}
        self.placement = Placement(
            read_cluster, self.spec.resources, self.attempts, concurrency, health
        )
        self.draining: End | None = None
        self._attempt_numbers: Counter[str] = Counter()
        self._deaths: Counter[str] = Counter()  # since the run's last progress
        self._losses: Counter[str] = Counter()
        self._noted: set[str] = set()
        self._stranded: str | None = None
        self._provenance = Provenance.current()
        self._last_look = study.last_look

    # ------------------------------------------------------------ run a sweep

    def run(self, execute: Callable[["Controller"], None]) -> End:
        """Run the sweep to its end with `Session.execute`."""
        spec = self.spec
        now = time.monotonic()
        self._budget = (spec.budget.hours or 1e9) * 3600
        self._deadline = now + self._budget
        self._read = now
        self._polled, self._drawn = now - 1, 0.0
        if self.study.finished:
            self._claim()
            return self._end()
        self._callback.on_sweep_start(spec, spec.planned_runs, self.placement.slots)
        try:
            execute(self)
        finally:
            for run_id in list(self.attempts):  # after a second Ctrl-C; the checkpoints remain
                self._finish(run_id, RunState.PLANNED)
            self._claim()
            self._note_look()
            # A sweep that ends because of the store has waited long enough.
            self._outbox.flush_last(wait=self.draining is not End.NO_DISK)
        if self._stranded:
            raise ResourceError(self._stranded)
        if self.draining:
            return self.draining
        if self.study.hopeless:
            raise SweepFailed(self.study.hopeless)
        if not self.study.finished:
            raise ResourceError(
                "the executor ended before the sweep did; repeat the command to resume"
            )
        return self._end()

    def _end(self) -> End:
        rows = self._history.rows
        wanted = {run.run_id for run in self.study.wanted()}
        failed = any(rows[i].state is RunState.FAILED for i in wanted if i in rows)
        return End.FAILED if failed else End.DONE

    def _claim(self) -> None:
        """Record the sweep's name in the rows of its runs."""
        for row in claim_runs(self.study, self._history.rows):
            self._put(row)

    # ------------------------------------------------------------ RunSource: called by executors

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kinds(self) -> Sequence[Resources]:
        return self.spec.resources.kinds()

    @property
    def is_over(self) -> bool:
        ended = self.draining or self._stranded or self.study.hopeless
        return bool(ended) or self.study.finished

    @property
    def is_idle(self) -> bool:
        return not self.attempts

    def next_task(self) -> RunTask | None:
        """Return the next run to start; None if no run can start now."""
        if self.is_over or not self.placement.has_free_slot:
            return None
        if self._outbox.is_blocked:  # a worker could not download its checkpoint
            return None
        run = self.study.next_run()
        if run is None:
            return None
        resources = self.spec.resources_of(run.config)
        if not self.placement.admits(resources):
            self.study.defer(run.run_id)
            return None
        return self._start(run, resources)

    def _start(self, run: PlannedRun, resources: Resources) -> RunTask:
        self._outbox.keep_work(run.run_id)
        row = self._history.rows.get(run.run_id)
        if row is None:
            row = planned_row(run, self.spec, next_created(self._history.rows))
        else:
            row = add_sweep(row, run, self.name)
        self._put(
            replace(
                row,
                workers=resources.workers,
                log=self._store.log(run.run_id),
                stopped_because=row.stopped_because if row.audit else None,
                ended=None,
                error=None,
                **asdict(self._provenance),
            )
        )
        self._attempt_numbers[run.run_id] += 1
        attempt = Attempt(
            run=run,
            number=self._attempt_numbers[run.run_id],
            resources=resources,
            avoid=self.placement.choose_avoided(run.run_id, resources),
            avoid_devices=frozenset(self.placement.devices.excluded),
            epochs=self._history.epochs.setdefault(run.run_id, []),
            heard=time.monotonic(),
        )
        self.attempts[run.run_id] = attempt
        config = run.config.model_dump(mode="json")
        config["data"]["root"] = str(Path(config["data"]["root"]).expanduser().absolute())
        return RunTask(
            run_id=run.run_id,
            attempt=attempt.number,
            config=config,
            folder=self._store.work(run.run_id),
            recorded=len(attempt.epochs),
            keep_best=self.spec.ladder is not None and run.phase == "final",
            workers=resources.workers,
            cpus_per_worker=resources.cpus_per_worker,
            gpus_per_worker=resources.gpus_per_worker,
            avoid=tuple(sorted(attempt.avoid)),
            avoid_devices=tuple(sorted(attempt.avoid_devices)),
        )

    def is_withdrawn(self, run_id: str, attempt: int) -> bool:
        """Whether an attempt has ended or was replaced by a newer attempt."""
        if self.placement.is_parked(run_id, attempt):
            return self.is_over
        live = self.attempts.get(run_id)
        return live is None or live.number != attempt

    def on_result(self, run_id: str, attempt: int, result: RunResult) -> bool:
        """Process a worker's result; return whether the run must stop."""
        if self.is_withdrawn(run_id, attempt) or self.placement.is_parked(run_id, attempt):
            return self.is_withdrawn(run_id, attempt)
        live = self.attempts[run_id]
        live.heard = time.monotonic()
        if result.nodes:
            waited, live.nodes = live.is_waiting, result.nodes
            if waited:
                self._on_start(live, result)
        if result.devices and not live.devices:
            self._note_excluded(self.placement.on_devices(live, result.devices))
            if self.placement.must_park(live):
                return self._leave_device(live)
        if result.note and run_id not in self._noted:
            self._noted.add(run_id)
            self._callback.on_note(f"{run_id}: {result.note}")
        if result.metrics is not None:
            self._on_epoch(live, result, result.metrics)
        elif result.progress:
            self._on_progress(live)
            self._move_off_draining_node(live)
        elif result.state in (RunState.FAILED, RunState.LOST) and self._is_store_unreachable(live):
            self._requeue(run_id, f"{result.error}; retrying once the store is reachable")
        elif result.node_fault:
            self._on_node_fault(live, result)
        elif result.state is RunState.FAILED:
            self._on_failure(live, result)
        elif result.state is RunState.LOST:
            self._on_death(live, result.error or "no reason", result.rank)
        elif result.is_last:
            self._finish(run_id, result.state, result.error)
        return self.is_withdrawn(run_id, attempt)

    def _on_start(self, live: Attempt, result: RunResult) -> None:
        run_id = live.run.run_id
        row = self._history.rows[run_id]
        host = result.host or None
        live.epoch_began = time.monotonic()
        row = replace(row, state=RunState.RUNNING, started=unix_time(), host=host)
        self._put(row)
        values = self.spec.varied_values(live.run.config)
        self._callback.on_run_start(self.name, row, values, _curve(live.epochs))

    def _leave_device(self, live: Attempt) -> bool:
        """Requeue a run that was placed on an excluded device; return whether its workers stop."""
        run_id = live.run.run_id
        knew = not live.avoid_devices.isdisjoint(live.devices)
        if knew:  # its workers train nothing and hold the device
            self.placement.park(run_id, live)
        self._requeue(run_id, None)
        return not knew

    def _on_progress(self, live: Attempt) -> None:
        self._deaths.pop(live.run.run_id, None)
        self._losses.pop(live.run.run_id, None)
        self._note_excluded(self.placement.on_progress(live))
        live.epoch_began = time.monotonic()

    def _on_epoch(self, live: Attempt, result: RunResult, metrics: EpochMetrics) -> None:
        run_id = live.run.run_id
        self._on_progress(live)
        del live.epochs[metrics.epoch - 1 :]  # a retried run may repeat epochs
        live.epochs.append(metrics)
        self._outbox.put_epoch(run_id, metrics)
        row = summarize_epochs(self._history.rows[run_id], live.epochs)
        row = replace(row, host=result.host, device=result.device, torch=result.torch)
        is_done = result.state is RunState.DONE
        measured = is_done or metrics.epoch % int(row.config["eval.knn_every"] or 1) == 0
        decision = self.study.on_epoch(run_id, metrics.epoch, metrics.knn_top1, measured=measured)
        if not is_done and decision.audited and not row.audit:
            row = replace(row, audit=True, stopped_because=decision.because)
            self._callback.on_note(f"{run_id}: {decision.because}")
        elif not is_done and decision.stop and not decision.diverged:
            row = replace(row, stopped_because=decision.because)
        self._put(row)
        self._callback.on_epoch(row, metrics, _curve(live.epochs))
        if is_done:
            self._finish(run_id, RunState.DONE)
        elif decision.diverged:
            self._finish(run_id, RunState.DIVERGED, decision.because)
        elif decision.stop:
            self._finish(run_id, RunState.STOPPED)
        elif self.draining:
            self._finish(run_id, RunState.PLANNED)
        else:
            self._move_off_draining_node(live)

    def _move_off_draining_node(self, live: Attempt) -> None:
        """Requeue a run on a draining node; it has just saved its state."""
        if self.placement.seconds_to_move(live) is not None:
            self._requeue(live.run.run_id, "moved off a draining node")

    def _on_failure(self, live: Attempt, result: RunResult) -> None:
        """Mark a run as failed, or retry it on another node: the node may be the cause."""
        run_id, error, rank = live.run.run_id, result.error, result.rank
        self._note_excluded(self.placement.on_failure(run_id, live, rank, died=False))
        elsewhere = self.placement.can_retry_elsewhere(run_id, live.resources)
        if self.placement.blames_device(run_id, live, rank):
            where = "on another node" if elsewhere else "because other devices work"
            self._requeue(run_id, f"{error}; retrying {where}")
        elif elsewhere:
            self._requeue(run_id, f"{error}; retrying on another node", error)
        else:
            self.placement.devices.retract(run_id)
            self._finish(run_id, RunState.FAILED, error)

    def _on_node_fault(self, live: Attempt, result: RunResult) -> None:
        """Retry a run on another node; without one, end the sweep, because no run can succeed."""
        run_id, error = live.run.run_id, result.error
        self._note_excluded(self.placement.on_node_fault(run_id, live, result.rank))
        if self.placement.fits_elsewhere(run_id, live.resources):
            self._requeue(run_id, f"{error}; retrying on another node")
            return
        self._finish(run_id, RunState.PLANNED)
        if not self.draining:
            self._stranded = f"{error}; then repeat the command to resume"
            self.drain(End.FAILED, f"{error}: {DRAINING}")

    def on_lost(self, run_id: str, attempt: int, reason: str) -> None:
        """Retry a run whose process or node died, unless it dies repeatedly without progress."""
        if not self.placement.unpark(run_id, attempt) and not self.is_withdrawn(run_id, attempt):
            self._on_death(self.attempts[run_id], reason)

    def _on_death(self, live: Attempt, reason: str, rank: int | None = None) -> None:
        run_id = live.run.run_id
        node_lost = self.placement.has_lost_node(live.nodes)
        if not node_lost:
            self._note_excluded(self.placement.on_failure(run_id, live, rank, died=True))
        no_fault = node_lost or self.placement.blames_device(run_id, live, rank)
        deaths, most = (self._losses, LOSSES) if no_fault else (self._deaths, DEATHS)
        deaths[run_id] += 1
        if deaths[run_id] > most:
            times = f"{deaths[run_id]} times without making progress"
            error = f"worker process or node died {times} ({reason})"
            self.placement.devices.retract(run_id)
            self._finish(run_id, RunState.FAILED, error)
        else:
            self._requeue(run_id, f"worker process or node died ({reason})")

    # ------------------------------------------------------------ attempts that must end now

    def silent_attempts(self) -> list[tuple[str, int]]:
        """Return the attempts without a sign of progress for long, and those that wait for long."""
        now = time.monotonic()
        return [
            (run_id, live.number)
            for run_id, live in self.attempts.items()
            if now - live.heard > self._silence / 2
        ]

    def on_heartbeat(self, run_id: str, attempt: int) -> None:
        """Process a sign that an attempt makes progress within its epoch, or waits for capacity."""
        if not self.is_withdrawn(run_id, attempt) and run_id in self.attempts:
            self.attempts[run_id].heard = time.monotonic()

    @property
    def _silence(self) -> float:
        return self.spec.budget.silence_minutes * 60

    def _end_overdue(self, now: float) -> None:
        """End attempts that hang, that hold up the end of the sweep, or whose node ends."""
        if self._outbox.is_blocked:
            for live in self.attempts.values():  # their workers may wait for the store as well
                live.heard = now
        for run_id, live in list(self.attempts.items()):
            if live.is_waiting:  # no limit: the executor reports when its process is started
                continue
            silent, left = now - live.heard, self.placement.seconds_to_move(live)
            if self.draining and now > self._drained_by(live):
                self._finish(run_id, RunState.PLANNED)
            elif silent > self._silence and silent > SILENT_EPOCHS * self._epoch_seconds(live):
                self._on_death(live, f"killed: no progress for {silent / 60:.0f} minutes")
            elif left is not None and (left < 0 or self._rest_of_epoch(live, now) > left):
                self._requeue(run_id, "moved off a draining node before the node ends")

    def _drained_by(self, live: Attempt) -> float:
        """Return when a draining sweep no longer waits for an attempt."""
        end = self._draining_since + self._grace(live)
        return min(end, self._deadline) if self.draining is End.BUDGET else end

    def _grace(self, live: Attempt) -> float:
        return max(GRACE_SECONDS, GRACE_EPOCHS * self._epoch_seconds(live))

    def _epoch_seconds(self, live: Attempt) -> float:
        """Return the median epoch time of a run; before its first epoch, the longest known mean."""
        if live.epochs:
            return median(epoch.train_seconds + epoch.eval_seconds for epoch in live.epochs)
        rows = (row for row in self._history.rows.values() if self.name in row.sweeps)
        means = ((r.train_seconds + r.eval_seconds) / r.epochs for r in rows if r.epochs)
        return max(means, default=0.0)

    def _rest_of_epoch(self, live: Attempt, now: float) -> float:
        """Return for how long an attempt probably trains until it saves its next epoch."""
        whole = self._epoch_seconds(live) or math.inf
        return max(0.0, whole - (now - live.epoch_began))

    def _note_excluded(self, places: Collection[str]) -> None:
        for place in places:
            self._callback.on_note(f"excluding {place}: runs keep failing there")

    # ------------------------------------------------------------ end an attempt

    def _finish(self, run_id: str, state: RunState, error: str | None = None) -> None:
        """End a live attempt: the run is over, or `planned` if it was interrupted."""
        del self.attempts[run_id]
        over = state.is_over or state is RunState.FAILED
        row = self._history.rows[run_id]
        row = replace(row, state=state, error=error, ended=unix_time() if over else None)
        self._put(row)
        self.study.on_end(run_id, state, error)
        for study in self._other_studies:
            study.observe(run_id, state)
        if over:
            self._history.epochs.pop(run_id, None)
        if state is RunState.STOPPED:
            self._outbox.delete_work(run_id)
        self._callback.on_run_end(row, self._tail(run_id) if state is RunState.FAILED else [])

    def _requeue(self, run_id: str, reason: str | None, error: str | None = None) -> None:
        """End a live attempt and queue the run for a new attempt."""
        del self.attempts[run_id]
        row = replace(self._history.rows[run_id], state=RunState.LOST)
        self._put(row)
        self.study.requeue(run_id, error)
        if reason is not None:
            self._callback.on_run_lost(row, reason)

    def _put(self, row: RunRow) -> None:
        self._history.rows[row.run_id] = row
        self._outbox.put_run(row)

    def _tail(self, run_id: str) -> list[str]:
        with contextlib.suppress(OSError):
            return (self._store.log_text(run_id) or "").splitlines()[-TAIL:]
        return []

    # ------------------------------------------------------------ periodic work

    def tick(self) -> None:
        """Flush the store, read the cluster and report progress, each when it is due."""
        now = time.monotonic()
        if self._outbox.is_due(now):
            self.flush()
        if now - self._read >= CLUSTER_SECONDS:
            self._read = now
            self._read_cluster()
        if now - self._polled >= 1:
            if (pause := now - self._polled) > DRIVER_PAUSE:
                for live in self.attempts.values():  # their results were not read meanwhile
                    live.heard += pause
            self._polled = now
            self._poll_stop(now)
            self._note_look()
            self._end_overdue(now)
        if now - self._drawn >= PROGRESS_SECONDS:
            self._drawn = now
            self._callback.on_progress(*self.study.work_left(), self.placement.slots)

    def _note_look(self) -> None:
        """Report what a look of a sweep that runs until decided has decided."""
        look = self.study.last_look
        if look is not None and look != self._last_look:
            self._last_look = look
            self._callback.on_note(f"{self.name}: {look.describe()}")

    def _read_cluster(self) -> None:
        for run_id in self.placement.refresh():
            self._requeue(run_id, None)
        if self.placement.seconds_without_slots > PATIENCE and not self.is_over:
            self._stranded = (
                f"no node has had capacity for a run for {PATIENCE / 60:.0f} minutes; check the "
                "cluster with `ray status`, then repeat the command to resume"
            )

    def _poll_stop(self, now: float) -> None:
        if self.draining:
            return
        if self._interrupts.count:
            self.drain(End.INTERRUPTED, f"interrupted: {DRAINING}")
        elif now > self._deadline - self._budget_grace():
            hours = self.spec.budget.hours
            self.drain(End.BUDGET, f"budget.hours={hours:g} is used up: {DRAINING}")
        elif self._stop_requested():
            with contextlib.suppress(OSError):  # the next driver clears it as well
                self._store.clear_stop()
            self.drain(End.STOPPED, f"stop requested: {DRAINING}")

    def _budget_grace(self) -> float:
        """Return how long before the end of `budget.hours` the sweep starts to drain."""
        most = BUDGET_GRACE * self._budget
        if time.monotonic() < self._deadline - most:  # do not compute medians each second
            return most
        return min(most, max(map(self._grace, self.attempts.values()), default=0.0))

    def _stop_requested(self) -> bool:
        if self._outbox.is_blocked:
            return False
        with contextlib.suppress(OSError):  # polled again in a second
            return self._store.stop_requested()
        return False

    def drain(self, end: End, why: str) -> None:
        """Start no more runs; let each live run finish its epoch."""
        self.draining, self._draining_since = end, time.monotonic()
        self._callback.on_note(why)
        for run_id in [i for i, attempt in self.attempts.items() if attempt.is_waiting]:
            self._finish(run_id, RunState.PLANNED)

    def flush(self) -> None:
        """Write pending rows; end the sweep if they cannot be saved."""
        why = self._outbox.flush()
        if why is not None and not self.draining:
            self.drain(End.NO_DISK, f"{why}; ending the sweep")

    def _is_store_unreachable(self, live: Attempt) -> bool:
        """Whether the store is unreachable, so that this may be why a run has ended."""
        if not self._outbox.is_blocked and not live.is_waiting:
            self._put(self._history.rows[live.run.run_id])  # so that there is a row to write
            self.flush()
        return self._outbox.is_blocked


def _curve(epochs: Sequence[EpochMetrics]) -> list[float]:
    return [e.knn_top1 for e in epochs if e.knn_top1 is not None]
