"""One sweep while it runs: between the agenda, the workers' messages, the ledger and the display.

Knows nothing of Ray: it is asked for the next run, told what comes back, and says what to stop.
"""

import contextlib
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ascl_sweep import __version__
from ascl_sweep.agenda import OVER, Agenda, Task, config_values, curves_of, idle_keys
from ascl_sweep.cluster import NoResources
from ascl_sweep.ledger import Ledger, RunRow, Writer
from ascl_sweep.live import Display
from ascl_sweep.loggers import Copies
from ascl_sweep.plan import planned_runs, varied
from ascl_sweep.spec import SweepSpec

FLUSH_SECONDS = 1.0
DRAW_SECONDS = 0.25
RETRIES = 3  # of a run whose process or machine went away
TAIL = 12  # lines of a failed run's log that are shown


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
    room: int
    """Runs that may train at once."""
    copies: Copies = field(default_factory=Copies)
    draining: End | None = None
    epochs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Those of the runs that train now."""

    def run(self, execute: Callable[["Driver"], None]) -> End:
        """Let `execute` run what this hands out, to the end."""
        spec = self.spec
        self.rows = self.ledger.runs()
        self.agenda = Agenda(spec, dict(self.rows), curves_of(self.ledger))
        self.facts = provenance()
        self.deadline = time.monotonic() + (spec.budget.hours or 1e9) * 3600
        self._flushed = time.monotonic()
        self._polled = self._drawn = 0.0
        self._to_delete: list[str] = []
        self._noted: set[str] = set()
        self._deaths: Counter[str] = Counter()
        if self.agenda.finished:
            self._claim()
            return End.FAILED if self._wanted_states()["failed"] else End.DONE
        self.display.sweep(spec, planned_runs(spec), self.room)
        try:
            execute(self)
        finally:
            for run_id in list(self.agenda.running):  # a second Ctrl-C: their checkpoints remain
                self._end(run_id, "planned")
            self._claim()
            self.flush(last=True)
        if self.draining:
            return self.draining
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
        if self.draining or self.agenda.hopeless or len(self.agenda.running) >= self.room:
            return None
        task = self.agenda.next()
        if task is None:
            return None
        row = self._row(task)
        recorded = self.ledger.epochs([task.run_id]).get(task.run_id, []) if row.epochs else []
        self.epochs[task.run_id] = recorded
        self._put(replace(row, state="running", started=time.time(), ended=None, error=None))
        self.copies.started(self.spec.name, self.rows[task.run_id])
        values = varied(self.spec, task.config)
        self.display.started(self.rows[task.run_id], values, _curve(recorded))
        return self._task(task, len(recorded))

    @property
    def over(self) -> bool:
        return bool(self.draining) or self.agenda.finished or bool(self.agenda.hopeless)

    def told(self, run_id: str, result: Mapping[str, Any]) -> bool:
        """A worker's message has come in; whether its run is to be stopped."""
        if run_id not in self.agenda.running:
            return True
        row = self.rows[run_id]
        note = result.get("note")
        if note and run_id not in self._noted:
            self._noted.add(run_id)
            self.display.note(f"{run_id}: {note}")
        metrics = result.get("metrics")
        if not metrics:
            self._end(run_id, result["state"], result.get("error"))
            return True
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

    def lost(self, run_id: str, error: str) -> None:
        """A run's process or machine went away: it is started again, unless that keeps happening.

        Not by Tune, which gives up at once on a run whose worker dies while it is being reused.
        """
        if run_id not in self.agenda.running:
            return
        self._deaths[run_id] += 1
        if self._deaths[run_id] > RETRIES:
            times = self._deaths[run_id]
            self._end(run_id, "failed", f"its process or machine went away {times} times ({error})")
            return
        self._put(replace(self.rows[run_id], state="lost"))
        self.agenda.put_back(run_id)
        self.display.lost(self.rows[run_id])

    def tick(self) -> None:
        """Now and then: save, look whether somebody wants us to stop, draw."""
        now = time.monotonic()
        if now - self._flushed >= FLUSH_SECONDS:
            self.flush()
        if now - self._polled >= 1:
            self._polled = now
            if self.interrupts.count and not self.draining:
                self.drain(End.INTERRUPTED, "interrupted: letting each run finish its epoch")
            elif now > self.deadline and not self.draining:
                self.drain(End.BUDGET, f"budget.hours={self.spec.budget.hours:g} are over")
            elif not self.draining and self._stop_requested():
                self.ledger.clear_stop()
                self.drain(End.STOPPED, "asked to stop: letting each run finish its epoch")
        if now - self._drawn >= DRAW_SECONDS:
            self._drawn = now
            self.display.tick(*self.agenda.work_left(), self.room)

    def drain(self, end: End, why: str) -> None:
        self.draining = end
        self.display.note(why)

    def flush(self, *, last: bool = False) -> None:
        """Save what happened; then what nobody needs any more may go."""
        self._flushed = time.monotonic()
        try:
            self.writer.flush()
        except OSError as error:
            if last:
                raise
            if not self.draining:
                where = error.filename or self.ledger.address
                self.drain(End.NO_DISK, f"{where}: {error.strerror or error}; ending the sweep")
            return
        # What cannot be deleted now is tried again: a stopped run's workers may still be writing.
        self._to_delete = [run_id for run_id in self._to_delete if not self._deleted(run_id)]

    def _deleted(self, run_id: str) -> bool:
        with contextlib.suppress(OSError):
            self.ledger.delete_work(run_id)
            return True
        return False

    def _stop_requested(self) -> bool:
        with contextlib.suppress(OSError):  # a far store that does not answer asks for nothing
            return self.ledger.stop_requested()
        return False

    # ------------------------------------------------------------ rows and tasks

    def _row(self, task: Task) -> RunRow:
        row = self.rows.get(task.run_id)
        row = claimed(row, task, self.spec.name) if row else planned_row(task, self.spec)
        return replace(
            row,
            workers=self.spec.resources.workers,
            log=self.ledger.log(task.run_id),
            stopped_because=None,
            **self.facts,
        )

    def _task(self, task: Task, recorded: int) -> dict[str, Any]:
        resources = self.spec.resources
        config = task.config.model_dump(mode="json")
        config["data"]["root"] = str(Path(config["data"]["root"]).expanduser().absolute())
        return {
            "run_id": task.run_id,
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


def claims(agenda: Agenda, rows: Mapping[str, RunRow]) -> Iterator[RunRow]:
    """The rows that change so that a sweep's name stands on what it wants, and on nothing else.

    What it wants and nobody has started gets a row: a table then shows what is missing. What a
    former edition of the file wanted is the sweep's no more, though it stays in the ledger.
    """
    name = agenda.spec.name
    for task in agenda.wanted():
        row = rows.get(task.run_id)
        if row is None:
            yield planned_row(task, agenda.spec)
        elif (now := claimed(row, task, name)) != row:
            yield now
    own = agenda.own()
    for row in list(rows.values()):
        if name in row.sweeps and row.run_id not in own:
            yield replace(row, sweeps=tuple(other for other in row.sweeps if other != name))


def claimed(row: RunRow, task: Task, sweep: str) -> RunRow:
    """A run's row with a sweep's name on it, and with what an older version did not note.

    A run that lacks a key would stand apart from its like in a table.
    """
    lacking = {k: v for k, v in config_values(task.config).items() if k not in row.config}
    sweeps = row.sweeps if sweep in row.sweeps else (*row.sweeps, sweep)
    return replace(row, sweeps=sweeps, config={**row.config, **lacking}, **method_cost(task))


def planned_row(task: Task, spec: SweepSpec) -> RunRow:
    """A run that is wanted and not started."""
    return RunRow(
        task.run_id,
        (spec.name,),
        config_values(task.config),
        phase=task.phase,
        scale=spec.scale,
        idle=idle_keys(task.config),
        created=time.time(),
        **method_cost(task),
    )


def method_cost(task: Task) -> dict[str, Any]:
    """What a run's row says of its method's cost."""
    cost = task.config.method.cost()
    return {"backprops": cost.backprops, "ema": cost.ema}


def provenance() -> dict[str, Any]:
    """Which code ran: commit, whether it was changed since, versions."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    tracked = git("ls-files", "--error-unmatch", __file__)  # not of a repository we are merely in
    status = git("status", "--porcelain", "--", str(here.parent / "ascl"), str(here))
    return {
        "commit": git("rev-parse", "HEAD") if tracked else None,
        "dirty": bool(status) if tracked and status is not None else None,
        "python": platform.python_version(),
        "ray": version("ray"),
        "ascl_sweep": __version__,
    }


def complete_but_not_said(rows: Mapping[str, RunRow], ledger: Ledger) -> Iterator[RunRow]:
    """Runs whose last epoch was recorded by a driver that died before it could say so."""
    unsaid = [r for r in rows.values() if r.state in ("running", "planned", "lost") and r.epochs]
    epochs = ledger.epochs([row.run_id for row in unsaid]) if unsaid else {}
    for row in unsaid:
        found = epochs.get(row.run_id, [])
        if found and found[-1]["epoch"] == row.config["epochs"] == len(found):
            yield replace(summed_up(row, found), state="done", ended=time.time())


def summed_up(row: RunRow, epochs: Sequence[Mapping[str, Any]]) -> RunRow:
    """A run's row with what its epochs come to."""
    knn = [e["knn_top1"] for e in epochs if e["knn_top1"] is not None]
    last = epochs[-1]
    train = sum(e["train_seconds"] for e in epochs)
    evaluation = sum(e["eval_seconds"] for e in epochs)
    # An epoch may come from an older version; a run that went on counts its memory anew.
    memory = [gb for e in epochs if (gb := e.get("peak_memory_gb")) is not None]
    return replace(
        row,
        epochs=len(epochs),
        knn_last_top1=knn[-1] if knn else None,
        knn_best_top1=max(knn, default=None),
        probe_top1=last["probe_top1"],
        probe_best_top1=last["probe_best_top1"],
        train_seconds=train,
        eval_seconds=evaluation,
        images_per_second=sum(e["images_per_second"] for e in epochs) / len(epochs),
        peak_memory_gb=max(memory, default=None),
        device_hours=(train + evaluation) / 3600 * row.workers,
    )
