"""A run as Ray executes it: one worker is a Tune trainable, several are Ray Train in a Tune trial.

Both take the same task (a mapping of plain values) and walk through the same `messages`: one per
epoch, the last with `done`. A run's own failure is a message too, so that what Ray sees fail is
only what went away: a process, a machine. The run's files lie in its folder under the store, found
by its id; a worker that is started again goes on from there.
"""

import contextlib
import gc
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray import tune
from ray.exceptions import RayError

from ascl import distributed
from ascl.checkpoint import CHECKPOINT, CheckpointError, resume, train_in, write_atomically
from ascl.config import RunConfig
from ascl.data import Data, load_data
from ascl.datasets import Images, dataset_spec
from ascl.memory import keep_freed
from ascl.patience import PATIENCE, patiently
from ascl.train import Diverged, Run, build

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.worker_group import WorkerGroup
    from ray.train.v2.api.callback import RayTrainCallback

LOG, BEST = "log.txt", "best.pt"
Message = dict[str, Any]


def begun(nodes: list[str]) -> Message:
    """A run's first message: its workers are there, by rank on these machines."""
    return {"state": "begun", "host": socket.gethostname(), "nodes": nodes, "done": False}


def node_id() -> str:
    """The machine that this process runs on, as Ray calls it."""
    return str(ray.get_runtime_context().get_node_id())


def messages(task: Mapping[str, Any]) -> Generator[Message, None, None]:
    """Train what is left of a task's run, telling of each epoch that the ledger may lack.

    With several ranks an error is raised instead of told: the others wait for this one, and it is
    Ray Train that ends them all.
    """
    try:
        with scratch(task["folder"]) as folder, logged(folder.path):
            try:
                yield from _epochs(task, folder)
            except Exception:
                with contextlib.suppress(OSError):  # a full disk has no room for its own story
                    os.write(2, traceback.format_exc().encode())
                    folder.push()
                raise
    except Diverged as error:
        yield {"state": "diverged", "error": str(error), "done": True}
    except Exception as error:
        if distributed.world_size() > 1 or isinstance(error, RayError):
            raise  # Ray's own is no fault of the run
        yield {"state": "failed", "error": sentence(error), "done": True}


def _epochs(task: Mapping[str, Any], folder: "Folder") -> Iterator[Message]:
    keep_freed()
    torch.set_num_threads(max(1, int(task["cpus_per_worker"])))
    config = RunConfig.of(task["config"])
    folder.pull()
    run = build(config, data=shared_data(task))
    note = _resume(run, folder.path)
    if task["keep_best"]:
        _keep_best(run, folder.path)  # as a worker that was killed may have been about to
    facts: Message = {
        "host": socket.gethostname(),
        "device": device_name(run.pixels.device),
        "torch": torch.__version__,
        "scored": run.data.scored,
        "note": note,
    }
    for metrics in run.history[task["recorded"] :]:
        yield _told(metrics.epoch, asdict(metrics), config.epochs) | facts
    for metrics in train_in(run, folder.path):
        if task["keep_best"]:
            _keep_best(run, folder.path)
        folder.push(last=metrics.epoch == config.epochs)
        yield _told(metrics.epoch, asdict(metrics), config.epochs) | facts


def _keep_best(run: Run, folder: Path) -> None:
    """Keep the last epoch's checkpoint if there is none better."""
    if distributed.rank() == 0 and is_best(run):
        keep(folder / CHECKPOINT, folder / BEST)


def is_best(run: Run) -> bool:
    """Whether the last epoch's kNN is the best so far."""
    scores = [metrics.knn_top1 for metrics in run.history if metrics.knn_top1 is not None]
    return bool(scores) and run.history[-1].knn_top1 == max(scores)


def keep(checkpoint: Path, place: Path) -> None:
    """Keep a checkpoint that the next epoch will replace, in one step."""
    write_atomically(place, lambda temporary: shutil.copyfile(checkpoint, temporary))


def _told(epoch: int, metrics: Message, epochs: int) -> Message:
    last = epoch == epochs
    return {"state": "done" if last else "running", "metrics": metrics, "done": last}


def _resume(run: Run, folder: Path) -> str | None:
    """Go on from the run's checkpoint; one that is damaged is put away, and said so."""
    if distributed.rank() == 0 and not (folder / CHECKPOINT).exists():
        (folder / "config.yaml").unlink(missing_ok=True)  # of a folder that was half deleted
    try:
        resume(run, folder)
    except CheckpointError as error:
        if distributed.rank() == 0:
            (folder / CHECKPOINT).unlink()
            (folder / "config.yaml").unlink(missing_ok=True)
        return f"its checkpoint could not be used and it starts over: {error}"
    return None


def sentence(error: BaseException) -> str:
    """An error as one line; Ray's wrappers taken off."""
    error = getattr(error, "cause", None) or getattr(error, "_base_exc", None) or error
    text = str(error).strip().splitlines()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, ValueError) and text:
        return text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


# ---------------------------------------------------------------- the run's files


class Folder:
    """A run's folder on this machine, and its twin in a remote store if the store is remote."""

    def __init__(self, path: Path, address: str | None) -> None:
        self.path, self.address = path, address
        self._pushed: dict[str, int] = {}  # file → when it was last changed
        self._behind_since: float | None = None  # when the store first lacked a checkpoint

    def pull(self) -> None:
        """Fetch what an earlier worker left."""
        if self.address and distributed.rank() == 0:
            patiently(partial(self._pull, self.address))

    def push(self, *, last: bool = True) -> None:
        """Leave the epoch's checkpoint where the next worker finds it.

        While a far store is away the run trains on, and leaves a later epoch's. It waits with its
        last one, and once the store has lacked any for as long as we are patient.
        """
        if not self.address or distributed.rank() != 0:
            return
        sys.stdout.flush()
        since = self._behind_since
        wait = last or (since is not None and time.monotonic() - since > PATIENCE)
        try:
            patiently(partial(self._push, self.address), seconds=PATIENCE if wait else 0)
            self._behind_since = None
        except FileNotFoundError:
            raise
        except OSError:
            if wait:
                raise
            self._behind_since = time.monotonic() if since is None else since

    def _pull(self, address: str) -> None:
        from pyarrow import fs

        store, place = fs.FileSystem.from_uri(address)
        if store.get_file_info(place).type == fs.FileType.Directory:
            fs.copy_files(place, str(self.path), source_filesystem=store)

    def _push(self, address: str) -> None:
        from pyarrow import fs

        store, place = fs.FileSystem.from_uri(address)
        if store.type_name == "local":  # a bucket has no folders, and rights on files may be all
            store.create_dir(place)
        # The checkpoint first: the rest of a run without one is taken for another's.
        for path in sorted(self.path.iterdir(), key=lambda path: path.name != CHECKPOINT):
            changed = path.stat().st_mtime_ns
            if self._pushed.get(path.name) != changed:
                self._upload(path, store, f"{place}/{path.name}")
                self._pushed[path.name] = changed

    def _upload(self, path: Path, store: Any, place: str) -> None:
        """Put a file into the store; raises OSError if it is not there whole.

        `copy_files` does not: it says nothing of what goes wrong once an upload has begun.
        """
        from pyarrow import fs

        with fs.LocalFileSystem().open_input_file(str(path)) as file:
            whole = file.read_buffer()
        # In one piece: what fails between two would leave a part in place of the file.
        with store.open_output_stream(place) as far:
            far.write(whole)


@contextlib.contextmanager
def scratch(address: str) -> Iterator[Folder]:
    """The folder to work in: the store's own, or a temporary one for a store that is no disk."""
    if "://" not in address:
        yield Folder(Path(address), None)
        return
    with tempfile.TemporaryDirectory(prefix="ascl-") as path:
        yield Folder(Path(path), address)


@contextlib.contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Send this process's output to the run's log, also that of libraries in C."""
    rank = distributed.rank()
    path = folder / (LOG if rank == 0 else f"{LOG}.{rank}")
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, old in zip((1, 2), before, strict=True):
            os.dup2(old, fd)
            os.close(old)
        os.close(log)


# ---------------------------------------------------------------- one copy of the data per node


def pack(data: Data) -> dict[str, Any]:
    """A run's images as arrays, which Ray keeps once per node for all processes on it."""
    parts = {"train": data.train, "test": data.test}
    if data.reference is not data.train:
        parts["reference"] = data.reference
    packed: dict[str, Any] = {"name": data.spec.name, "scored": data.scored}
    for name, part in parts.items():
        assert isinstance(part, Images)
        packed[name] = part.images.numpy(), part.labels.numpy()
    return packed


def unpack(packed: Mapping[str, Any]) -> Data:
    """The images of `pack`, without a copy."""

    def part(name: str) -> Images:
        with warnings.catch_warnings():  # they are read-only, and nothing writes to them
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return Images(*map(torch.from_numpy, packed[name]))

    train = part("train")
    reference = part("reference") if "reference" in packed else train
    return Data(dataset_spec(packed["name"]), train, reference, part("test"), packed["scored"])


def load_packed(name: str, root: str, train_size: int | None, holdout: float) -> dict[str, Any]:
    """What a task of its own does on some node of the cluster, once for all runs that want it."""
    return pack(load_data(name, root, train_size=train_size, holdout=holdout))


def shared_data(task: Mapping[str, Any]) -> Data | None:
    """The images that are held for all runs; None if a run is to load its own."""
    if (reference := task.get("data")) is None:
        return None
    try:
        return unpack(ray.get(reference["ref"]))
    except RayError as error:
        # It may be the fault of the machine that loaded them; if not, loading shows it again.
        note = f"the images could not be shared ({sentence(error)}); loading them here\n"
        os.write(2, note.encode())
        return None


# ---------------------------------------------------------------- one worker


class OneWorker(tune.Trainable):
    """A run in one process, which the next run takes over.

    A class rather than a function: Tune runs functions in a thread of their own, and each thread
    would start a new pool of compute threads.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._messages = self._told(config)

    @staticmethod
    def _told(task: Mapping[str, Any]) -> Generator[Message, None, None]:
        yield begun([node_id()])
        yield from messages(task)

    def step(self) -> Message:
        return next(self._messages)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._messages = self._told(new_config)
        return True

    def get_auto_filled_metrics(self, *args: Any, **options: Any) -> Message:
        """What Tune adds to each message; not the config, which the driver has."""
        added: Message = super().get_auto_filled_metrics(*args, **options)
        return {key: value for key, value in added.items() if key != "config"}

    def cleanup(self) -> None:
        self._messages.close()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# ---------------------------------------------------------------- several workers


def any_workers(task: dict[str, Any]) -> None:
    """A run of a sweep in which some have several workers: a Tune trial in a process of its own."""
    if task["workers"] > 1:
        several_workers(task)
        return
    tune.report(begun([node_id()]))
    for message in messages(task):
        tune.report(message)


def several_workers(task: dict[str, Any]) -> None:
    """A run on several workers: Ray Train inside a Tune trial."""
    from ray.train.v2.api.callback import RayTrainCallback
    from ray.train.v2.api.config import FailureConfig, ScalingConfig
    from ray.train.v2.api.config import RunConfig as TrainRunConfig
    from ray.train.v2.api.exceptions import TrainingFailedError
    from ray.train.v2.torch.torch_trainer import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    to_tune = TuneReportCallback()  # type: ignore[no-untyped-call]

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[RayTrainCallback]:
            # First, so that it knows of the workers before anything can fail.
            tell = to_tune._training_actor_item_queue.put
            return [of_the_group(tell), *super()._create_default_callbacks()]

    def rank(task: dict[str, Any]) -> None:
        # Sent as it stands, not by its name: a machine on which our code cannot be loaded then
        # shows as a failure of the rank there.
        from ascl.worker import of_a_rank

        of_a_rank(task)

    avoid = task["avoid"]
    trainer = Trainer(
        rank,
        train_loop_config=task,
        scaling_config=ScalingConfig(
            num_workers=task["workers"],
            use_gpu=bool(task["gpus_per_worker"]),
            resources_per_worker=of_a_worker(task),
            label_selector=elsewhere(avoid) if avoid else None,
        ),
        run_config=TrainRunConfig(
            name=task["run_id"],  # stable, so that a retried trial finds its own
            storage_path=task["scratch"],
            callbacks=[to_tune],
            # Trying again is the driver's to decide: here a run would wait for machines that may
            # never come, while others could use those that are there.
            failure_config=FailureConfig(
                max_failures=0, controller_failure_limit=0, max_preemption_failures=0
            ),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        failures: Mapping[int, BaseException] = getattr(error, "worker_failures", {})
        own = {rank: failure for rank, failure in failures.items() if not went_away(failure)}
        if not own:
            raise  # seen by Tune as a trial that died, and so by the driver
        where, cause = next(iter(own.items()))
        tune.report({"state": "failed", "error": sentence(cause), "rank": where, "done": True})


def of_the_group(tell: Callable[[Message], None]) -> "RayTrainCallback":
    """Says on which machines a run's workers are."""
    from ray.train.v2._internal.execution.callback import WorkerGroupCallback

    class OfTheGroup(WorkerGroupCallback):
        def after_worker_group_start(self, worker_group: "WorkerGroup") -> None:
            tell(begun([worker.metadata.node_id for worker in worker_group.get_workers()]))

    return OfTheGroup()


def of_a_worker(task: Mapping[str, Any]) -> dict[str, float]:
    """What each worker of a run asks of Ray."""
    gpus = task["gpus_per_worker"]
    return {"CPU": task["cpus_per_worker"]} | ({"GPU": gpus} if gpus else {})


def elsewhere(avoid: Sequence[str]) -> dict[str, str]:
    """What Ray is told of where a worker may be put: on none of these machines."""
    return {"ray.io/node-id": f"!in({','.join(avoid)})"}


def went_away(error: BaseException) -> bool:
    """Whether a rank's error says that a process or machine is gone, its own or another's."""
    from ray.train.v2._internal.exceptions import RayTrainError  # it has no public name

    error = getattr(error, "_base_exc", None) or error
    # Ray Train's own errors are those of its workers' health: dead, or silent for minutes.
    if isinstance(error, (RayError, RayTrainError, torch.distributed.DistError, ConnectionError)):
        return True
    # What a rank sees of another that died in the midst of a gloo collective.
    return isinstance(error, RuntimeError) and bool(_PEER_GONE.search(str(error)))


_PEER_GONE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|peer|timed out", re.IGNORECASE
)


def of_a_rank(task: dict[str, Any]) -> None:
    """What each worker of a run does."""
    import ray.train

    for message in messages(task):
        ray.train.report(message)
