"""Sweeps on Ray Tune: hands it the agenda's runs, records what comes back, stops what should stop.

Tune starts processes, retries what died and reuses workers; which run is next and which is over is
the agenda's to say, and what happened is the ledger's to keep. Tune's own state goes to a temporary
folder and is never read.
"""

import contextlib
import platform
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascl.datasets import DATASETS
from ascl.faults import unknown_name
from ascl_sweep import __version__
from ascl_sweep.agenda import OVER, Agenda, Task, config_values, curves_of
from ascl_sweep.cluster import Cluster, connected, ray_options, resources_of_a_run
from ascl_sweep.ledger import Ledger, RunRow, SweepRow, Writer
from ascl_sweep.live import Display
from ascl_sweep.plan import planned_runs, varied
from ascl_sweep.spec import SweepSpec

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.tune.experiment import Trial

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


def run_sweeps(
    specs: Sequence[SweepSpec],
    ledger: Ledger,
    display: Display,
    *,
    address: str | None = None,
    concurrency: int | None = None,
    wait: bool = False,
    loggers: Sequence[str] = (),
) -> End:
    """Run what the sweeps want and the ledger lacks, one sweep after the other."""
    with ledger.writer(wait=wait, on_wait=display.waiting) as writer:
        ledger.clear_stop()
        agendas = [_record_plan(spec, ledger, writer) for spec in specs]
        if all(agenda.finished for agenda in agendas):
            return _verdict(specs, ledger)
        several = any(spec.resources.workers > 1 for spec in specs)
        display.note("starting Ray …" if address is None else f"connecting to Ray at {address} …")
        with connected(address, dashboard=several) as cluster:
            for spec in specs:
                cluster.room(spec.resources)  # what can never run shows before anything does
            warm_up(cluster, specs[0])
            shared = SharedData(cluster)
            with signals() as interrupts:
                for spec in specs:
                    driver = Driver(
                        spec, ledger, writer, display, cluster, shared, interrupts, tuple(loggers)
                    )
                    end = driver.run(concurrency)
                    if end is not End.DONE:
                        return end
    return _verdict(specs, ledger)


def _verdict(specs: Sequence[SweepSpec], ledger: Ledger) -> End:
    rows = ledger.runs()
    wanted = {row.run_id for row in rows.values() if {s.name for s in specs} & set(row.sweeps)}
    bad = any(rows[run_id].state == "failed" for run_id in wanted)
    return End.FAILED if bad else End.DONE


def _record_plan(spec: SweepSpec, ledger: Ledger, writer: Writer) -> Agenda:
    """Note the sweep and that it wants what is there already; what is left to do."""
    rows, curves = ledger.runs(), curves_of(ledger)
    for row in complete_but_not_said(rows, ledger):
        rows[row.run_id] = row
        writer.put_run(row)
    agenda = Agenda(spec, rows, curves)
    writer.put_sweep(
        SweepRow(
            name=spec.name,
            text=spec.text,
            file=spec.file,
            overrides=spec.overrides,
            scale=spec.scale,
            started=time.time(),
            planned=planned_runs(spec),
        )
    )
    for task in agenda.wanted():
        known = rows.get(task.run_id)
        if known is not None and spec.name not in known.sweeps:
            writer.put_run(replace(known, sweeps=(*known.sweeps, spec.name)))
    writer.flush()
    return agenda


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
        device_hours=(train + evaluation) / 3600 * row.workers,
    )


# ---------------------------------------------------------------- one sweep


@dataclass
class Driver:
    """One sweep while it runs."""

    spec: SweepSpec
    ledger: Ledger
    writer: Writer
    display: Display
    cluster: Cluster
    shared: "SharedData"
    interrupts: "Interrupts"
    loggers: tuple[str, ...] = ()
    draining: End | None = None
    limit: int = 1
    epochs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Those of the runs that train now."""

    def run(self, concurrency: int | None) -> End:
        spec = self.spec
        room = self.cluster.room(spec.resources)
        self.limit = min(room, concurrency or room)
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
            return End.DONE
        self.display.sweep(spec, planned_runs(spec), self.limit)
        try:
            _tune(self)
        finally:
            for run_id in list(self.agenda.running):  # a second Ctrl-C: their checkpoints remain
                self._end(run_id, "planned")
            self.flush(last=True)
        if self.draining:
            return self.draining
        if self.agenda.hopeless:
            raise SweepFailed(self.agenda.hopeless)
        return End.DONE

    # ------------------------------------------------------------ what Tune asks

    def next(self) -> dict[str, Any] | None:
        """The next run as a worker's task; None if there is none now."""
        if self.draining or self.agenda.hopeless or len(self.agenda.running) >= self.limit:
            return None
        task = self.agenda.next()
        if task is None:
            return None
        row = self._row(task)
        recorded = self.ledger.epochs([task.run_id]).get(task.run_id, []) if row.epochs else []
        self.epochs[task.run_id] = recorded
        self._put(replace(row, state="running", started=time.time(), ended=None, error=None))
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
            elif self.ledger.stop_requested() and not self.draining:
                self.ledger.clear_stop()
                self.drain(End.STOPPED, "asked to stop: letting each run finish its epoch")
        if now - self._drawn >= DRAW_SECONDS:
            self._drawn = now
            self.display.tick(*self.agenda.work_left(), self.limit)

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
        for run_id in self._to_delete:
            self.ledger.delete_work(run_id)
        self._to_delete.clear()

    def tune_folder(self) -> Path:
        """Where Tune writes: nowhere that lasts, unless TensorBoard is to read there."""
        if "tensorboard" not in self.loggers:
            return self.cluster.scratch / "tune"
        if "://" in self.ledger.address:
            raise ValueError("--log tensorboard needs a store on this machine's disks")
        return Path(self.ledger.address).absolute() / "tensorboard"

    # ------------------------------------------------------------ rows and tasks

    def _row(self, task: Task) -> RunRow:
        row = self.rows.get(task.run_id)
        if row is None:
            row = RunRow(
                task.run_id,
                (),
                config_values(task.config),
                phase=task.phase,
                scale=self.spec.scale,
                created=time.time(),
            )
        sweeps = row.sweeps if self.spec.name in row.sweeps else (*row.sweeps, self.spec.name)
        return replace(
            row,
            sweeps=sweeps,
            workers=self.spec.resources.workers,
            log=f"{self.ledger.work(task.run_id)}/log.txt",
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
            "scratch": str(self.cluster.scratch / "train"),
            "keep_best": self.spec.ladder is not None and task.phase == "final",
            "data": self.shared.get(config["data"]),
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
        self.display.ended(row, self._tail(row) if state == "failed" else [])
        self.epochs.pop(run_id, None)
        if state == "stopped":
            self._to_delete.append(run_id)

    def _tail(self, row: RunRow) -> list[str]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return Path(row.log or "").read_text(errors="replace").splitlines()[-TAIL:]
        return []


def _curve(epochs: Sequence[Mapping[str, Any]]) -> list[float]:
    return [e["knn_top1"] for e in epochs if e["knn_top1"] is not None]


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


# ---------------------------------------------------------------- Ray


@dataclass
class SharedData:
    """One copy of each dataset per node: loaded by one task, kept in Ray's object store."""

    cluster: Cluster
    references: dict[tuple[Any, ...], "ObjectRef[Any]"] = field(default_factory=dict)

    def get(self, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a worker finds the images with; None for those that are read from disk as needed."""
        if DATASETS[data["name"]].streams:
            return None
        key = tuple(data[k] for k in ("name", "root", "train_size", "holdout"))
        if key not in self.references:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            from ascl.worker import load_packed

            best = max(self.cluster.nodes, key=lambda node: (node.gpus, node.cpus))
            there = NodeAffinitySchedulingStrategy(best.node_id, soft=True)
            load = ray.remote(load_packed).options(num_cpus=0, scheduling_strategy=there)
            self.references[key] = load.remote(*key)
        return {"ref": self.references[key]}


def warm_up(cluster: Cluster, spec: SweepSpec) -> None:
    """Let Ray's idle processes load what workers need, while the driver still loads Tune."""
    if spec.resources.workers > 1:
        return
    import ray

    from ascl.worker import ready

    load = ray.remote(ready).options(**ray_options(spec.resources))
    for _ in range(cluster.room(spec.resources)):
        load.remote()


def _tune(driver: Driver) -> None:
    """Let Ray Tune run a sweep."""
    from ray import tune
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler
    from ray.tune.search import Searcher

    from ascl.worker import OneWorker, several_workers

    class Runs(Searcher):
        """Hands out the agenda's runs."""

        def suggest(self, trial_id: str) -> Any:
            task = driver.next()
            return Searcher.FINISHED if task is None and driver.over else task

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            pass

        def save_to_dir(self, *args: Any, **kwargs: Any) -> None:
            pass  # the ledger is the only state

        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return _nothing, ()

    class Gate(FIFOScheduler):
        """Shows every message to the driver, and stops what it says."""

        def on_trial_result(self, controller: Any, trial: "Trial", result: dict[str, Any]) -> str:
            stop = driver.told(trial.config["run_id"], nested(result))
            return TrialScheduler.STOP if stop else TrialScheduler.CONTINUE

        def on_trial_complete(
            self, controller: Any, trial: "Trial", result: dict[str, Any]
        ) -> None:
            driver.told(trial.config["run_id"], nested(result))

        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return _nothing, ()

    class Watch(tune.Callback):
        """Tells the driver of what went away, and that time passes."""

        def on_step_end(self, iteration: int, trials: list["Trial"], **info: Any) -> None:
            driver.tick()

        def on_trial_error(self, iteration: int, trials: Any, trial: "Trial", **i: Any) -> None:
            driver.lost(trial.config["run_id"], _last_line(trial))

        def get_state(self) -> None:
            return None

        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return _nothing, ()

    class Halt(tune.Stopper):
        """Ends the experiment once nothing that matters is running."""

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return driver.over and not driver.agenda.running

        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return _nothing, ()

    resources = driver.spec.resources
    trainable = OneWorker if resources.workers == 1 else several_workers
    tuner = tune.Tuner(
        tune.with_resources(trainable, dict(resources_of_a_run(resources))),
        tune_config=tune.TuneConfig(
            search_alg=Runs(),
            scheduler=Gate(),  # type: ignore[no-untyped-call]
            num_samples=-1,
            reuse_actors=resources.workers == 1,
        ),
        run_config=tune.RunConfig(
            name=driver.spec.name,
            storage_path=str(driver.tune_folder()),
            verbose=0,
            callbacks=[Watch(), *(LOGGERS[name](driver.spec.name) for name in driver.loggers)],
            stop=Halt(),
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=False if resources.workers == 1 else None
            ),
        ),
    )
    tuner.fit()


def _tensorboard(name: str) -> Any:
    from ray.tune.logger import TBXLoggerCallback

    return TBXLoggerCallback()  # type: ignore[no-untyped-call]


def _wandb(name: str) -> Any:
    from ray.air.integrations.wandb import WandbLoggerCallback

    return WandbLoggerCallback(project=name)


def _mlflow(name: str) -> Any:
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    return MLflowLoggerCallback(experiment_name=name)


LOGGERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
"""Ray's own callbacks; each needs its package."""
LOGGER_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}


def check_loggers(names: Sequence[str]) -> None:
    """Raise ValueError for a logger that there is not, or whose package is missing."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(unknown_name("logger", name, LOGGERS))
        package = LOGGER_PACKAGES[name]
        if find_spec(package) is None:
            raise ValueError(f"--log {name} needs the package {package}; pip install {package}")


def _nothing() -> None:
    """What Tune gets to pickle in place of what belongs to the driver."""


def nested(result: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the worker sent it: Tune hands it over with flattened keys."""
    plain = {k: v for k, v in result.items() if "/" not in k}
    metrics = {k[8:]: v for k, v in result.items() if k.startswith("metrics/")}
    return plain | ({"metrics": metrics} if metrics else {})


def _last_line(trial: "Trial") -> str:
    """Why a trial failed, as far as Ray knows."""
    with contextlib.suppress(Exception):
        lines = [x.strip() for x in Path(trial.error_file).read_text().splitlines() if x.strip()]
        return lines[-1][:200]
    return "Ray does not say why"


# ---------------------------------------------------------------- signals


@dataclass
class Interrupts:
    """How often the user has asked to stop."""

    count: int = 0


@contextlib.contextmanager
def signals() -> Iterator[Interrupts]:
    """Count the first Ctrl-C (or a polite kill); let the second one through."""
    seen = Interrupts()

    def handle(signum: int, frame: object) -> None:
        seen.count += 1
        if seen.count > 1:
            raise KeyboardInterrupt

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
