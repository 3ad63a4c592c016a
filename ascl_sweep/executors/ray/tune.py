"""Ray Tune as the process pool of a sweep.

Tune starts trials and reuses their processes. The controller decides which run starts next and
which run stops; the store keeps all results. Tune writes its own state to a temporary folder, which
is never read. Import this module only after `compat.apply_settings` has set Ray's environment.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.error import TuneError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from ascl_sweep.contracts import RunResult, RunState
from ascl_sweep.errors import ResourceError
from ascl_sweep.executors.ray import compat
from ascl_sweep.executors.ray.shared_data import DataKey, SharedData
from ascl_sweep.executors.ray.train import node_selector, worker_resources
from ascl_sweep.executors.ray.trainable import (
    Assignment,
    Report,
    assignment_of,
    run_any_workers,
)
from ascl_sweep.runtime.executor import RunSource

LOOK_SECONDS = 2.0  # interval at which heartbeats and nodes of silent runs are read


def run_tune(
    source: RunSource, shared_data: SharedData, scratch: Path, trainable: type[tune.Trainable]
) -> None:
    """Execute the tasks of a source with Ray Tune until the source is over and idle.

    Args:
        source: The controller.
        shared_data: Datasets in Ray's object store.
        scratch: Folder for temporary files of Ray.
        trainable: Trainable of sweeps whose runs all have one worker.
    """
    # Reusing processes saves seconds per run. A process that starts workers cannot be reused.
    reused = all(kind.workers == 1 for kind in source.kinds)
    errors = ControllerErrors()
    tuner = tune.Tuner(
        tune.with_resources(trainable if reused else run_any_workers, _placement),
        tune_config=tune.TuneConfig(
            search_alg=TaskSearcher(source, shared_data, str(scratch / "train")),
            scheduler=ResultScheduler(source, errors, reused),
            num_samples=-1,
            trial_name_creator=_run_id,
            trial_dirname_creator=_run_id,
            reuse_actors=reused,
        ),
        run_config=tune.RunConfig(
            name=source.name,
            storage_path=str(scratch / "tune"),
            verbose=0,
            callbacks=[Heartbeat(source, errors), compat.quiet_progress_callback()],
            stop=EndOfSweep(source, errors),
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False if reused else None),
        ),
    )
    try:
        with compat.keep_signal_handlers(), compat.dead_actors_recognized():
            tuner.fit()
    except (RayError, TuneError) as error:
        if errors.first is None:
            reason = str(error).strip().splitlines()[-1]
            raise ResourceError(
                f"Ray Tune failed ({reason}); no results are lost, repeat the command to resume"
            ) from error
    if errors.first is not None:
        raise errors.first


# ---------------------------------------------------------------- adapters in the driver


class _NotPickled:
    """Pickles as None. Tune snapshots its components, but the store is the only state."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()


def _nothing() -> None:
    """Return None when Tune unpickles a component."""


@dataclass
class ControllerErrors:
    """Keeps the first error of the controller when Tune reports to it.

    Tune would replace the error by a TuneError with its traceback as text, or only log it.
    """

    first: Exception | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.first = self.first or error
            raise


class TaskSearcher(_NotPickled, Searcher):
    """Passes the controller's tasks to Tune."""

    def __init__(self, source: RunSource, shared_data: SharedData, scratch: str) -> None:
        super().__init__()
        self._source, self._shared_data, self._scratch = source, shared_data, scratch

    def suggest(self, trial_id: str) -> dict[str, Assignment] | str | None:  # type: ignore[override]
        source = self._source
        task = source.next_task()
        if task is not None:
            data = task.config["data"]
            key = DataKey(data["name"], data["root"], data["train_size"], data["holdout"])
            images = self._shared_data.get(key)
            return {"assignment": Assignment(task, images, self._scratch)}
        if not source.is_idle:
            return None  # more tasks may follow; FINISHED would end the search for good
        source.tick()  # without trials, Tune calls only this method
        return str(Searcher.FINISHED) if source.is_over else None

    def on_trial_complete(self, trial_id: str, result: object = None, error: bool = False) -> None:
        pass

    def save_to_dir(self, *args: object, **kwargs: object) -> None:
        pass


class ResultScheduler(_NotPickled, FIFOScheduler):
    """Passes every result to the controller and stops the trials that the controller ends."""

    def __init__(self, source: RunSource, errors: ControllerErrors, reused: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source, self._errors, self._reused = source, errors, reused
        self._live: dict[Trial, None] = {}  # trials that have not ended, in order
        self._reported: set[Trial] = set()  # those of them that have reported a result
        self._started: set[Trial] = set()  # those that `_look_for_starts` has reported as started
        self._killed: dict[Trial, object] = {}  # the process that was killed last
        self._looked = 0.0

    def on_trial_add(self, tune_controller: object, trial: Trial) -> None:
        self._live[trial] = None

    def on_trial_result(self, tune_controller: object, trial: Trial, result: Report) -> str:
        self._reported.add(trial)
        with self._errors.kept():
            stop = self._source.on_result(*_attempt(trial), _result(result))
        return TrialScheduler.STOP if stop else TrialScheduler.CONTINUE

    def choose_trial_to_run(self, tune_controller: object) -> Trial | None:
        """Return the next pending trial. FIFOScheduler (Ray 2.60) would scan all past trials."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._look_for_starts(tune_controller)
        ended = (Trial.TERMINATED, Trial.ERROR)
        for trial in list(self._live):
            if trial.status not in ended and self._source.is_withdrawn(*_attempt(trial)):
                # Stop the trial here: a trial that waits for a slot or hangs reports no result.
                self._end(tune_controller, trial)
            if trial.status in ended:
                del self._live[trial]
                self._reported.discard(trial)
                self._started.discard(trial)
                self._killed.pop(trial, None)
        pending = (trial for trial in self._live if trial.status == Trial.PENDING)
        return next((trial for trial in pending if trial not in self._killed), None)

    def _look_for_starts(self, tune_controller: object) -> None:
        """Report which silent trials wait for capacity, and which have it but report nothing."""
        silent = set(self._source.silent_attempts())
        for trial in self._live if silent else ():
            attempt = _attempt(trial)
            if attempt not in silent or trial in self._reported:
                continue
            nodes = compat.trial_nodes(tune_controller, trial)
            if nodes == ():
                self._source.on_heartbeat(*attempt)
            elif nodes is not None and trial not in self._started:
                self._started.add(trial)
                self._source.on_result(*attempt, RunResult(RunState.RUNNING, nodes=nodes))

    def _end(self, tune_controller: object, trial: Trial) -> None:
        process = compat.trial_actor(tune_controller, trial)
        if process is None or not self._reused:
            compat.stop_trial(tune_controller, trial)
        if process is not None and self._killed.get(trial) is not process:
            # A graceful stop would wait for the process or its workers. Tune would also keep a
            # reusable process, which may hang; so let Tune find out that the process died.
            ray.kill(process)
            self._killed[trial] = process

    def on_trial_complete(self, tune_controller: object, trial: Trial, result: Report) -> None:
        with self._errors.kept():
            if "result" in result:
                self._source.on_result(*_attempt(trial), _result(result))
            # Has no effect if the result above ended the attempt.
            self._source.on_lost(*_attempt(trial), "the trial ended without a final result")


class Heartbeat(_NotPickled, tune.Callback):
    """Calls the controller's `tick` and reports trials whose process died.

    Not a TrialProgressCallback: Tune 2.60 drops these if RAY_AIR_NEW_OUTPUT=1.
    """

    def __init__(self, source: RunSource, errors: ControllerErrors) -> None:
        self._source, self._errors = source, errors
        self._looked = 0.0
        self._seen: dict[tuple[str, int], bytes] = {}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._look_for_progress()
        self._source.tick()

    def _look_for_progress(self) -> None:
        """Report heartbeats of the runs that are suspiciously silent."""
        for attempt in self._source.silent_attempts():
            beat = compat.read_heartbeat(*attempt)
            if beat is not None and beat != self._seen.get(attempt):
                self._seen[attempt] = beat
                self._source.on_heartbeat(*attempt)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **i: object
    ) -> None:
        with self._errors.kept():
            self._source.on_lost(*_attempt(trial), _reason(trial))


class EndOfSweep(_NotPickled, tune.Stopper):
    """Ends the experiment once the sweep is over and no run is live, or after an error."""

    def __init__(self, source: RunSource, errors: ControllerErrors) -> None:
        self._source, self._errors = source, errors

    def __call__(self, trial_id: str, result: Report) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._errors.first is not None or (self._source.is_over and self._source.is_idle)


def _attempt(trial: Trial) -> tuple[str, int]:
    task = assignment_of(trial.config).task
    return task.run_id, task.attempt


def _run_id(trial: Trial) -> str:
    return assignment_of(trial.config).task.run_id


def _result(report: Report) -> RunResult:
    found = report["result"]
    assert isinstance(found, RunResult)
    return found


def _placement(config: Mapping[str, object]) -> tune.PlacementGroupFactory:
    """Return the resources of a run's trial and the nodes that it avoids."""
    task = assignment_of(config).task
    if task.workers > 1:  # Ray Train requests the workers; the trial stays on the head node
        return tune.PlacementGroupFactory([{compat.HEAD_RESOURCE: 0.001}])
    if not task.avoid:
        return tune.PlacementGroupFactory([worker_resources(task)])
    elsewhere = [node_selector(task.avoid)]
    return tune.PlacementGroupFactory([worker_resources(task)], bundle_label_selector=elsewhere)


def _reason(trial: Trial) -> str:
    """Return why a trial's process died, from Ray's error: one line."""
    text = compat.read_error(trial).strip()
    if compat.MEMORY_MONITOR in text:
        return (
            "Ray's memory monitor ended it, because its node ran out of memory; train fewer runs "
            "per node (raise resources.cpus_per_worker), or lower batch_size"
        )
    return text.splitlines()[-1].strip()[:200] if text else "Ray gave no reason"
