"""One sweep while it runs: between the agenda, the workers' messages, the ledger and the display.

Knows nothing of Ray: it is asked for the next run, told what comes back, and says what to stop.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from ascl.patience import LONGEST_PAUSE, PATIENCE, patiently
from ascl_sweep.agenda import OVER, Agenda, Task, curves_of
from ascl_sweep.ledger import Ledger, RunRow, Writer
from ascl_sweep.live import Display
from ascl_sweep.loggers import Copies
from ascl_sweep.places import Places
from ascl_sweep.plan import planned_runs, varied
from ascl_sweep.room import NoResources
from ascl_sweep.rows import claimed, claims, planned_row, provenance, summed_up
from ascl_sweep.spec import SweepSpec

FLUSH_SECONDS = 1.0
PROGRESS_SECONDS = 1.0  # how often all runs are looked through for what is left to do
LOOK_SECONDS = 5.0  # how often the cluster is looked at: machines come and go
RETRIES = 3  # of a run whose process goes away before it has finished another epoch
MACHINES = 10  # that a run may lose before it has: spot machines go, but one may also end them all
TAIL = 12  # lines of a failed run's log that are shown
T = TypeVar("T")


class End(Enum):
    """Why a sweep came to its end."""

    DONE = "done"
    FAILED = "failed"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    NO_DISK = "no disk"


class SweepFailed(RuntimeError):
    """Every run fails alike: the sweep ends rather than burn its budget."""


@dataclass
class Interrupts:
    """How often the user has asked to stop."""

    count: int = 0


@dataclass
class Driver:
    """One sweep while it runs."""

    spec: SweepSpec
    ledger: Ledger
    writer: Writer
    display: Display
    interrupts: Interrupts
    share: Callable[[Mapping[str, Any]], object]
    """Makes a data section into what a worker finds its images with."""
    scratch: Path
    """For what Ray writes and nobody reads."""
    places: Places
    """Where runs may go."""
    copies: Copies = field(default_factory=Copies)
    draining: End | None = None
    epochs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Those of the runs that train now."""

    def run(self, execute: Callable[["Driver"], None]) -> End:
        """Let `execute` run what this hands out, to the end."""
        spec = self.spec
        self.rows = self._patiently(self.ledger.runs)
        curves = self._patiently(lambda: curves_of(self.ledger))
        self.agenda = Agenda(spec, dict(self.rows), curves)
        self.facts = provenance()
        self.deadline = time.monotonic() + (spec.budget.hours or 1e9) * 3600
        self._flushed = time.monotonic()
        self._polled = self._drawn = 0.0
        self._looked = time.monotonic()
        self._away_since: float | None = None
        """Since when a far store does not answer."""
        self._to_delete: list[str] = []
        self._noted: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._tasks: dict[str, Task] = {}
        """What was handed out."""
        self._stranded: str | None = None
        if self.agenda.finished:
            self._claim()
            return End.FAILED if self._wanted_states()["failed"] else End.DONE
        self.display.sweep(spec, planned_runs(spec), self.places.room)
        try:
            execute(self)
        finally:
            for run_id in list(self.agenda.running):  # a second Ctrl-C: their checkpoints remain
                self._end(run_id, "planned")
            self._claim()
            self.flush(last=True)
        if self.draining:
            return self.draining
        if self._stranded:
            raise NoResources(self._stranded)
        if self.agenda.hopeless:
            raise SweepFailed(self.agenda.hopeless)
        if not self.agenda.finished:
            raise NoResources("Ray ended before the sweep did; the same command goes on")
        return End.FAILED if self._wanted_states()["failed"] else End.DONE

    def _claim(self) -> None:
        """Put the sweep's name on the runs that it has come to want."""
        for row in claims(self.agenda, self.rows):
            self._put(row)

    def _wanted_states(self) -> Counter[str]:
        wanted = {task.run_id for task in self.agenda.wanted()}
        return Counter(self.rows[run_id].state for run_id in wanted if run_id in self.rows)

    # ------------------------------------------------------------ what Tune asks

    def next(self) -> dict[str, Any] | None:
        """The next run as a worker's task; None if there is none now."""
        if self.over or not self.places.free:
            return None
        if self._away_since is not None:  # a worker could not fetch what is there of its run
            return None
        task = self.agenda.next()
        if task is None:
            return None
        if not self.places.takes(self.spec.resources_of(task.config)):
            self.agenda.put_off(task.run_id)
            return None
        row = self._row(task)
        try:
            recorded = self.ledger.epochs([task.run_id]).get(task.run_id, []) if row.epochs else []
        except OSError:  # of a far store; `flush` will meet it too, and say so
            self.agenda.put_off(task.run_id)
            return None
        self.epochs[task.run_id] = recorded
        self._put(replace(row, ended=None, error=None))
        self._tasks[task.run_id] = task
        return self._task(task, len(recorded))

    def _began(self, run_id: str, result: Mapping[str, Any]) -> None:
        """A run's worker is there."""
        self.places.began(run_id, result["nodes"])
        row = replace(self.rows[run_id], state="running", started=time.time(), host=result["host"])
        self._put(row)
        self.copies.started(self.spec.name, row)
        values = varied(self.spec, self._tasks[run_id].config)
        self.display.started(row, values, _curve(self.epochs[run_id]))

    @property
    def over(self) -> bool:
        ended = self.draining or self._stranded or self.agenda.hopeless
        return bool(ended) or self.agenda.finished

    def withdrawn(self, run_id: str, attempt: int) -> bool:
        """Whether a run is no longer wanted from who was handed it."""
        return run_id not in self.agenda.running or not self.places.is_current(run_id, attempt)

    def told(self, run_id: str, attempt: int, result: Mapping[str, Any]) -> bool:
        """A worker's message has come in; whether its run is to be stopped."""
        if self.withdrawn(run_id, attempt):
            return True
        if run_id in self.places.waiting and "nodes" in result:
            self._began(run_id, result)
        if result["state"] == "begun":
            return False
        row = self.rows[run_id]
        note = result.get("note")
        if note and run_id not in self._noted:
            self._noted.add(run_id)
            self.display.note(f"{run_id}: {note}")
        metrics = result.get("metrics")
        if not metrics:
            if result["state"] == "failed":
                self._failed(run_id, result)
            else:
                self._end(run_id, result["state"], result.get("error"))
            return True
        self._deaths.pop(run_id, None)
        self._losses.pop(run_id, None)
        self._leave_out(self.places.got_on(run_id))
        epochs = self.epochs[run_id]
        epoch = metrics["epoch"]
        del epochs[epoch - 1 :]  # a retried run says some again
        epochs.append(metrics)
        self.writer.put_epoch(run_id, metrics)
        self.copies.epoch(run_id, metrics)
        row = replace(summed_up(row, epochs), host=result["host"], device=result["device"])
        row = replace(row, torch=result["torch"])
        if result["state"] == "done":
            self._put(row)
            self.agenda.told(run_id, epoch, metrics["knn_top1"], measured=True)
            self._end(run_id, "done")
            return True
        measured = epoch % int(row.config["eval.knn_every"] or 1) == 0
        decision = self.agenda.told(run_id, epoch, metrics["knn_top1"], measured=measured)
        if decision.audited and not row.audit:
            row = replace(row, audit=True, stopped_because=decision.because)
            self.display.note(f"{run_id}: {decision.because}")
        self._put(row)
        self.display.epoch(row, _curve(epochs))
        if decision.diverged:
            self._end(run_id, "diverged", decision.because)
        elif decision.stop:
            self._put(replace(row, stopped_because=decision.because))
            self._end(run_id, "stopped")
        elif self.draining:
            self._end(run_id, "planned")
        return run_id not in self.agenda.running

    def lost(self, run_id: str, attempt: int, error: str) -> None:
        """A run's process or machine went away: it is started again, unless that keeps happening.

        Not by Tune, which gives up at once on a run whose worker dies while it is being reused.
        Machines of a cloud come and go: only what goes away without having got on counts.
        """
        if self.withdrawn(run_id, attempt):
            return
        gone = self.places.machine_is_gone(run_id)
        deaths, most = (self._losses, MACHINES) if gone else (self._deaths, RETRIES)
        deaths[run_id] += 1
        if deaths[run_id] > most:
            times = deaths[run_id]
            self._end(run_id, "failed", f"its process or machine went away {times} times ({error})")
            return
        if not gone:
            self._leave_out(self.places.died(run_id))
        self._put_back(run_id)
        self.display.lost(self.rows[run_id], f"its process or machine went away ({error})")

    def _failed(self, run_id: str, result: Mapping[str, Any]) -> None:
        """A run has failed; it may have been the machine's fault, if there are others."""
        error = result.get("error")
        if self._away_since is not None:  # for want of the store, it may be; if not, it fails again
            self._put_back(run_id)
            self.display.lost(self.rows[run_id], f"{error}; trying it again once the store answers")
            return
        self._leave_out(self.places.failed(run_id, result.get("rank")))
        if self.places.another(run_id):
            self._put_back(run_id, error)
            self.display.lost(self.rows[run_id], f"{error}; trying it on another machine")
        else:
            self._end(run_id, "failed", error)

    def _put_back(self, run_id: str, error: str | None = None) -> None:
        """A run is to be started again."""
        self.places.ended(run_id)
        self._put(replace(self.rows[run_id], state="lost"))
        self.agenda.put_back(run_id, error)

    def _leave_out(self, nodes: Collection[str]) -> None:
        for node in nodes:
            self.display.note(f"runs keep failing on node {node[:8]}…: it is left out from now on")

    def _look(self) -> None:
        """See what machines there are, and take back what was handed out for others."""
        for run_id in self.places.refresh():
            self._put_back(run_id)
        if self.places.without_room > PATIENCE and not self._stranded:
            self._stranded = (
                f"there has been no room for a run for {PATIENCE / 60:.0f} minutes: machines went "
                "away and none came; see `ray status`, then the same command goes on"
            )

    def tick(self) -> None:
        """Now and then: save, look whether somebody wants us to stop, draw."""
        now = time.monotonic()
        # Asking a store that is away takes seconds, in which no run is told to go on.
        pause = FLUSH_SECONDS if self._away_since is None else LONGEST_PAUSE
        if now - self._flushed >= pause:
            self.flush()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        if now - self._polled >= 1:
            self._polled = now
            if self.interrupts.count and not self.draining:
                self.drain(End.INTERRUPTED, "interrupted: letting each run finish its epoch")
            elif now > self.deadline and not self.draining:
                self.drain(End.BUDGET, f"budget.hours={self.spec.budget.hours:g} are over")
            elif not self.draining and self._stop_requested():
                with contextlib.suppress(OSError):  # the next driver clears it, too
                    self.ledger.clear_stop()
                self.drain(End.STOPPED, "asked to stop: letting each run finish its epoch")
        if now - self._drawn >= PROGRESS_SECONDS:
            self._drawn = now
            self.display.tick(*self.agenda.work_left(), self.places.room)

    def drain(self, end: End, why: str) -> None:
        self.draining = end
        self.display.note(why)
        for run_id in list(self.places.waiting):  # for a place, it may be for hours
            self._end(run_id, "planned")

    def flush(self, *, last: bool = False) -> None:
        """Save what happened; then what nobody needs any more may go."""
        self._flushed = time.monotonic()
        try:
            self._patiently(self.writer.flush) if last else self.writer.flush()
        except OSError as error:
            if last:
                raise
            self._not_saved(error)
            return
        if self._away_since is not None:
            self.display.note(f"{self.ledger.address} answers again: all is saved")
            self._away_since = None
        # What cannot be deleted now is tried again: a stopped run's workers may still be writing.
        self._to_delete = [run_id for run_id in self._to_delete if not self._deleted(run_id)]

    def _not_saved(self, error: OSError) -> None:
        """The store cannot be written: a far one may come back, a full disk does not."""
        where = self._where(error)
        self._flushed = now = time.monotonic()  # it may have taken long to find out
        if self.ledger.far and self._away_since is None:
            self._away_since = now
            self.display.note(
                f"{where}; runs go on, and what they come to is kept until it answers"
            )
        over = self._away_since is None or now - self._away_since > PATIENCE
        if over and not self.draining:
            self.drain(End.NO_DISK, f"{where}; ending the sweep")

    def _patiently(self, action: Callable[[], T]) -> T:
        """What an action on the store comes to; a far one that is away is waited for."""
        return patiently(
            action,
            seconds=PATIENCE if self.ledger.far else 0,
            on_wait=lambda error: self.display.note(f"{self._where(error)}; waiting for it"),
        )

    def _where(self, error: OSError) -> str:
        return f"{error.filename or self.ledger.address}: {error.strerror or error}"

    def _deleted(self, run_id: str) -> bool:
        with contextlib.suppress(OSError):
            self.ledger.delete_work(run_id)
            return True
        return False

    def _stop_requested(self) -> bool:
        if self._away_since is not None:
            return False
        with contextlib.suppress(OSError):  # a far store that does not answer asks for nothing
            return self.ledger.stop_requested()
        return False

    # ------------------------------------------------------------ rows and tasks

    def _row(self, task: Task) -> RunRow:
        row = self.rows.get(task.run_id)
        row = claimed(row, task, self.spec.name) if row else planned_row(task, self.spec)
        return replace(
            row,
            workers=self.spec.resources_of(task.config).workers,
            log=self.ledger.log(task.run_id),
            stopped_because=None,
            **self.facts,
        )

    def _task(self, task: Task, recorded: int) -> dict[str, Any]:
        resources = self.spec.resources_of(task.config)
        attempt, avoid = self.places.hand_out(task.run_id, resources)
        config = task.config.model_dump(mode="json")
        config["data"]["root"] = str(Path(config["data"]["root"]).expanduser().absolute())
        return {
            "run_id": task.run_id,
            "attempt": attempt,
            "avoid": avoid,
            "config": config,
            "folder": self.ledger.work(task.run_id),
            "recorded": recorded,
            "workers": resources.workers,
            "cpus_per_worker": resources.cpus_per_worker,
            "gpus_per_worker": resources.gpus_per_worker,
            "scratch": str(self.scratch / "train"),
            "keep_best": self.spec.ladder is not None and task.phase == "final",
            "data": self.share(config["data"]),
        }

    def _put(self, row: RunRow) -> None:
        self.rows[row.run_id] = row
        self.writer.put_run(row)

    def _end(self, run_id: str, state: str, error: str | None = None) -> None:
        over = state in OVER or state == "failed"
        row = replace(
            self.rows[run_id], state=state, error=error, ended=time.time() if over else None
        )
        self._put(row)
        self.places.ended(run_id)
        self.agenda.ended(run_id, state, error)
        self.copies.ended(row)
        self.display.ended(row, self._tail(row) if state == "failed" else [])
        self.epochs.pop(run_id, None)
        if state == "stopped":
            self._to_delete.append(run_id)

    def _tail(self, row: RunRow) -> list[str]:
        with contextlib.suppress(OSError):
            return (self.ledger.log_text(row.run_id) or "").splitlines()[-TAIL:]
        return []


def _curve(epochs: Sequence[Mapping[str, Any]]) -> list[float]:
    return [e["knn_top1"] for e in epochs if e["knn_top1"] is not None]
