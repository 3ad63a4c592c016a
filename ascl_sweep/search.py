"""Sweeps on Ray Tune: hands it the driver's runs, and the driver what comes back.

Tune starts processes and reuses them; which run is next and which is over is not its to say, and
what happened is the ledger's to keep. Its own state goes to a temporary folder and is never read.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascl.datasets import DATASETS
from ascl_sweep.agenda import Agenda, curves_of
from ascl_sweep.cluster import connected, free_what_the_dead_hold, look
from ascl_sweep.digest import digest_of
from ascl_sweep.driver import Driver, End, Interrupts
from ascl_sweep.ledger import Ledger, SweepRow, Writer
from ascl_sweep.live import Display
from ascl_sweep.loggers import copies
from ascl_sweep.places import Places
from ascl_sweep.plan import planned_runs
from ascl_sweep.room import Cluster, Node, NoResources
from ascl_sweep.rows import claims, complete_but_not_said
from ascl_sweep.spec import SweepSpec

if TYPE_CHECKING:
    from ray import ObjectRef, tune
    from ray.tune.experiment import Trial


def run_sweeps(
    specs: Sequence[SweepSpec],
    ledger: Ledger,
    display: Display,
    *,
    address: str | None = None,
    concurrency: int | None = None,
    wait: bool = False,
    loggers: Sequence[str] = (),
    one_worker: "Callable[[], type[tune.Trainable]] | None" = None,
) -> End:
    """Run what the sweeps want and the ledger lacks, one sweep after the other.

    `one_worker` makes what takes the place of `OneWorker`, once Ray is loaded.
    """
    with (
        copies(loggers, ledger.address, display.note) as copied,  # waited for without the lock
        ledger.writer(wait=wait, on_wait=display.waiting) as writer,
    ):
        ledger.clear_stop()
        agendas = [_record_plan(spec, ledger, writer) for spec in specs]
        if all(agenda.finished for agenda in agendas):
            return End.DONE
        several = any(kind.workers > 1 for spec in specs for kind in spec.resources.kinds())
        display.note("starting Ray …" if address is None else f"connecting to Ray at {address} …")
        with connected(address, dashboard=several) as cluster:
            writer.beat()  # it may have taken minutes: is the store still ours?
            for spec in specs:
                for kind in spec.resources.kinds():
                    cluster.check(kind)  # what can never run shows before anything does

            def see() -> Cluster:
                if several:
                    free_what_the_dead_hold()
                return look(cluster.scratch, private=cluster.private)

            shared = SharedData(see)
            ends: list[End] = []
            with signals() as interrupts:
                for spec in specs:
                    driver = Driver(
                        *(spec, ledger, writer, display, interrupts),
                        share=shared.get,
                        scratch=cluster.scratch,
                        places=Places(see, spec.resources, concurrency),
                        copies=copied,
                    )
                    ends.append(driver.run(partial(_tune, one_worker=one_worker)))
                    if ends[-1] not in (End.DONE, End.FAILED):
                        break
    return ends[-1] if ends[-1] is not End.DONE else max(ends, key=lambda end: end is End.FAILED)


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
            digest=digest_of(spec).to_json(),
        )
    )
    for row in claims(agenda, rows):
        writer.put_run(row)
    writer.flush()
    return agenda


# ---------------------------------------------------------------- Ray


@dataclass
class SharedData:
    """One copy of each dataset per node, in Ray's object store; loaded once, where the data lie."""

    look: Callable[[], Cluster]
    references: dict[tuple[Any, ...], "ObjectRef[Any]"] = field(default_factory=dict)

    def get(self, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a worker finds the images with; None for those that are read from disk as needed."""
        if DATASETS[data["name"]].streams:
            return None
        key = tuple(data[k] for k in ("name", "root", "train_size", "holdout"))
        if key not in self.references:
            cluster = self.look()
            able = [node for node in cluster.nodes if node.cpus]
            if not able:  # an autoscaler has yet to bring machines: the first runs load their own
                return None
            try:
                self.references[key] = (
                    self._load_here(*key) if cluster.private else self._load_there(able, *key)
                )
            except (ValueError, OSError):
                return None  # the worker finds the same, and its run says so
        return {"ref": self.references[key]}

    def _load_here(self, *key: Any) -> "ObjectRef[Any]":
        """In this process, which has PyTorch loaded: another would first have to load it."""
        import ray

        from ascl.worker import load_packed

        return ray.put(load_packed(*key))

    def _load_there(self, nodes: Sequence[Node], *key: Any) -> "ObjectRef[Any]":
        """By a task on the cluster, where runs train: the data need not lie on this machine."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from ascl.worker import load_packed

        best = max(nodes, key=lambda node: (node.gpus, node.cpus))
        there = NodeAffinitySchedulingStrategy(best.node_id, soft=True)
        # Without a CPU of its own, for runs that wait for it may have them all; and done again if
        # what it came to goes away with its machine.
        load = ray.remote(load_packed).options(
            num_cpus=0, scheduling_strategy=there, max_retries=-1
        )
        reference: ObjectRef[Any] = load.remote(*key)
        return reference


def _tune(driver: Driver, one_worker: "Callable[[], type[tune.Trainable]] | None" = None) -> None:
    """Let Ray Tune run a sweep."""
    import ray
    from ray import tune
    from ray.exceptions import RayError
    from ray.tune.error import TuneError
    from ray.tune.experiment import Trial
    from ray.tune.progress_reporter import TrialProgressCallback
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler
    from ray.tune.search import Searcher

    from ascl.worker import OneWorker, any_workers

    # A process that the next run takes over saves seconds; one that starts others cannot be.
    reused = all(kind.workers == 1 for kind in driver.spec.resources.kinds())

    class Runs(Searcher):
        """Hands out the agenda's runs."""

        def suggest(self, trial_id: str) -> Any:
            task = driver.next()
            # While a run trains there may be more to do: Tune never asks again after FINISHED.
            idle = task is None and not driver.agenda.running
            if idle:
                driver.tick()  # for ten minutes Tune does nothing but ask again
            return Searcher.FINISHED if idle and driver.over else task

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            pass

        def save_to_dir(self, *args: Any, **kwargs: Any) -> None:
            pass  # the ledger is the only state

        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return _nothing, ()

    ended = (Trial.TERMINATED, Trial.ERROR)
    live: dict[Trial, None] = {}  # handed out and not over, first come first

    class Gate(FIFOScheduler):
        """Shows every message to the driver, and stops what it says."""

        def on_trial_add(self, controller: Any, trial: Trial) -> None:
            live[trial] = None

        def on_trial_result(self, controller: Any, trial: "Trial", result: dict[str, Any]) -> str:
            stop = driver.told(*_attempt(trial), nested(result))
            return TrialScheduler.STOP if stop else TrialScheduler.CONTINUE

        def choose_trial_to_run(self, controller: Any) -> "Trial | None":
            # Asked at every step: Tune's own way is to look through all trials there ever were.
            for trial in list(live):
                if trial.status not in ended and driver.withdrawn(*_attempt(trial)):
                    # Now, for while it waits for a place no result comes to stop it by.
                    process = trial.temporary_state.ray_actor
                    _unstage(controller._tune_controller, trial)
                    controller.stop_trial(trial)
                    if process is not None and not reused:
                        ray.kill(process)  # its own would first wait for its workers
                if trial.status in ended:
                    del live[trial]
            return next((trial for trial in live if trial.status == Trial.PENDING), None)

        def on_trial_complete(
            self, controller: Any, trial: "Trial", result: dict[str, Any]
        ) -> None:
            if "state" in result:
                driver.told(*_attempt(trial), nested(result))
            driver.lost(*_attempt(trial), "it ended without saying how")  # if it is not over

        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return _nothing, ()

    class Watch(TrialProgressCallback):
        """Tells the driver of what went away, and that time passes.

        In the place of Tune's own, which prints.
        """

        def on_step_end(self, iteration: int, trials: list["Trial"], **info: Any) -> None:
            driver.tick()

        def on_trial_result(self, *args: Any, **info: Any) -> None:
            pass

        def on_trial_complete(self, *args: Any, **info: Any) -> None:
            pass

        def on_trial_error(self, iteration: int, trials: Any, trial: "Trial", **i: Any) -> None:
            driver.lost(*_attempt(trial), _last_line(trial))

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

    single = one_worker() if one_worker else OneWorker
    tuner = tune.Tuner(
        tune.with_resources(single if reused else any_workers, _placement),
        tune_config=tune.TuneConfig(
            search_alg=Runs(),
            scheduler=Gate(),  # type: ignore[no-untyped-call]
            num_samples=-1,
            trial_name_creator=_run_id,
            trial_dirname_creator=_run_id,
            reuse_actors=reused,
        ),
        run_config=tune.RunConfig(
            name=driver.spec.name,
            storage_path=str(driver.scratch / "tune"),
            verbose=0,
            callbacks=[Watch()],
            stop=Halt(),
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False if reused else None),
        ),
    )
    try:
        tuner.fit()
    except (RayError, TuneError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise NoResources(
            f"Ray gave up ({reason}); nothing is lost, and the same command goes on"
        ) from error


def _unstage(controller: Any, trial: "Trial") -> None:
    """Take a trial off those that wait: Tune 2.60 forgets to if it is stopped before it begins.

    For each it would keep one idle process for the rest of the sweep, and what that holds.
    """
    if trial in controller._staged_trials:
        controller._unstage_trial_with_resources(trial)
    controller._resetting_trials.discard(trial)


def _placement(task: Mapping[str, Any]) -> "tune.PlacementGroupFactory":
    """Where Tune is to put a run's trial."""
    from ray import tune

    from ascl.worker import elsewhere, of_a_worker

    if task["workers"] > 1:  # its workers ask for their own; it stays off spot machines
        return tune.PlacementGroupFactory([{"node:__internal_head__": 0.001}])
    avoid = task["avoid"]
    where: dict[str, Any] = {"bundle_label_selector": [elsewhere(avoid)]} if avoid else {}
    return tune.PlacementGroupFactory([of_a_worker(task)], **where)


def _attempt(trial: "Trial") -> tuple[str, int]:
    return trial.config["run_id"], trial.config["attempt"]


def _run_id(trial: "Trial") -> str:
    return str(trial.config["run_id"])


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
