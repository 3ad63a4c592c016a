"""All private or undocumented names of Ray that this package uses.

As of Ray 2.60.0; pyproject.toml allows no other minor version. Each entry explains why it is needed
and what breaks without it, and has a test in tests/ascl_sweep/executors/ray/test_compat.py. Before
you raise Ray's version bounds, run that file with the new version.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ray.actor import ActorHandle
    from ray.tune import Callback
    from ray.tune.experiment import Trial

HEAD_RESOURCE = "node:__internal_head__"
"""Resource that only the head node has. Trials that only start Ray Train workers request a
thousandth of it; otherwise Ray may place them on a spot node, and they die with that node."""

# ---------------------------------------------------------------- settings
# Ray reads them from the environment when it is imported. A REQUIRED setting overrides the user's
# environment; a PREFERRED setting does not.

REQUIRED = {
    "RAY_AIR_NEW_OUTPUT": "0",  # "1" drops every TrialProgressCallback and prints to stdout
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths are relative to the user's folder
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # loggers are callbacks of the controller
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the first Ctrl-C drains, the second kills
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # not every result has a metric
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # the store is the only state
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # the controller limits the pending trials
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1000000",  # the controller limits the wait for nodes
}
PREFERRED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "TUNE_WARN_THRESHOLD_S": "1000",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # latency of a report; 2 s by default
}
REQUIRED_OF_PRIVATE = {
    "RAY_AUTH_MODE": "token",
    # Despite its name, this makes 127.0.0.1 the node's address on Linux: every socket is on the
    # loopback interface. `ray.init(_node_ip_address="127.0.0.1")` does not: Ray 2.60 replaces the
    # address by the machine's external address and listens on all interfaces.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
# Set in the process that starts Ray Train: on a joined cluster it has none of the above.
# RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR of 2.60 stays off: it is experimental, needs the `ncclras`
# program and by default only logs; the controller kills a run that makes no progress.
REQUIRED_OF_TRAIN = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # the controller moves runs off draining nodes
}
# Number of attempts to reach the head, about 40 s each; the address was probed before.
PREFERRED_OF_JOINED = {"RAY_gcs_server_port_wait_time_s": "3"}
PROBE_SETTINGS = {"RAY_gcs_server_port_wait_time_s": "1"}
# Ray hides GPUs from tasks that request none; `doctor` asks such tasks for all GPUs of a node.
SEE_GPUS = {
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Parent of Ray's folder for sockets and logs. The default is /tmp, where the folder may belong to
# another user.
FOLDER_SETTING = "RAY_TMPDIR"
# Config of the autoscaler in the home folder of a head that `ray up` created. Ray has no API for
# its limits; without them, runs that need a node which the autoscaler may add would fail at once.
BOOTSTRAP = "ray_bootstrap_config.yaml"


def apply_settings(*, private: bool) -> None:
    """Set Ray's environment. Call this before Ray is imported."""
    os.environ.update(REQUIRED | (REQUIRED_OF_PRIVATE if private else {}))
    for key, value in (PREFERRED | ({} if private else PREFERRED_OF_JOINED)).items():
        os.environ.setdefault(key, value)


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Keep Ray from replacing this process's signal handlers.

    `ray.init` replaces the handler of SIGTERM by `sys.exit`, and `Tuner.fit` that of SIGUSR1 by one
    that ends the experiment; neither can be disabled. Without this function, these signals would
    end a sweep without draining it. Setting our handlers again afterwards would be too late.
    """
    set_handler = signal.signal
    signal.signal = lambda number, handler: signal.getsignal(number)  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler


@contextmanager
def protect_from_signals() -> Iterator[None]:
    """Call `ray.init` in this context, so that a signal drains the sweep instead of ending Ray.

    - A closing terminal, a cluster scheduler and `kill -- -PGID` signal the driver's whole process
      group. SIGHUP and SIGUSR1 kill Ray's daemons and SIGTERM ends them, so no run could finish its
      epoch. Therefore each daemon gets a group of its own; Ray has no option for it. On Linux the
      kernel ends the daemons with the driver. Elsewhere Ray ends the driver's group instead, so the
      daemons stay in it.
    - Ray's core, in C++, adds its own handler of SIGTERM to ours: it prints a stack trace, and
      aborts the process 3 seconds later. No option disables it, so our handler is set again.
    """
    from ray._private import services

    popen = services.ConsolePopen
    if sys.platform == "linux":
        services.ConsolePopen = partial(popen, process_group=0)  # type: ignore[misc,assignment]
    try:
        with keep_signal_handlers():
            yield
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
            signal.alarm(0)  # of Ray's handler, if the signal has already arrived


# ---------------------------------------------------------------- Tune


def stop_trial(tune_controller: Any, trial: Trial) -> None:
    """Stop a trial, even if it has not started.

    Tune does not remove a stopped trial from its list of staged trials. For each staged trial, Tune
    keeps one idle process and its resources until the sweep ends.

    Args:
        tune_controller: The wrapper of Tune's controller that Tune passes to schedulers.
        trial: The trial to stop.
    """
    controller = tune_controller._tune_controller
    if trial in controller._staged_trials:
        controller._unstage_trial_with_resources(trial)
    controller._resetting_trials.discard(trial)
    tune_controller.stop_trial(trial)


@contextmanager
def dead_actors_recognized() -> Iterator[None]:
    """Call `Tuner.fit` in this context, so that no death of a trial's process ends the sweep.

    Tune's actor manager expects `RayActorError` of a dead process. If Ray's memory monitor killed
    the process, Ray raises `OutOfMemoryError` instead, depending on the moment; the manager then
    ends the experiment with a RuntimeError. Ray's other system errors have the same effect.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import RayActorError, RayError, RayTaskError

    failed = RayActorManager._actor_task_failed

    def on_failure(manager: Any, tracked_actor_task: Any, exception: Exception) -> None:
        known = isinstance(exception, RayTaskError | RayActorError)
        if isinstance(exception, RayError) and not known:
            exception = RayActorError(error_msg=str(exception))
        failed(manager, tracked_actor_task, exception)

    RayActorManager._actor_task_failed = on_failure  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        RayActorManager._actor_task_failed = failed  # type: ignore[method-assign]


def trial_actor(tune_controller: Any, trial: Trial) -> ActorHandle[object] | None:
    """Return the process of a trial; None if the trial waits for its resources.

    A process that hangs, or a trial that waits for its Ray Train workers, ignores a stop request,
    so it must be killed. `Trial` knows its process only once the process is ready: one that hangs
    at its start would keep its resources for ten minutes after the trial was stopped.
    """
    controller = tune_controller._tune_controller
    actors = controller._actor_manager._live_actors_to_ray_actors_resources
    actor: ActorHandle[object] | None
    actor, _ = actors.get(controller._trial_to_actor.get(trial), (None, None))
    return actor


def trial_nodes(tune_controller: Any, trial: Trial) -> tuple[str, ...] | None:
    """Return the nodes of a trial's resources; none if it waits for them, None if unknown.

    For a trial with Ray Train workers, these are the workers' nodes as soon as it has requested
    them. Tune calls `on_trial_start` once the process is ready, and Ray Train calls nothing before
    all workers are ready. Without this function, a process that hangs at its start, e.g. in an
    import from an unreachable file system, looks like one that waits for capacity.

    Args:
        tune_controller: The wrapper of Tune's controller that Tune passes to schedulers.
        trial: The trial.
    """
    from ray.exceptions import RaySystemError

    actor = trial_actor(tune_controller, trial)
    if actor is None:
        return ()
    controller = tune_controller._tune_controller
    resources = controller._actor_manager.get_actor_resources(controller._trial_to_actor[trial])
    if resources is None:  # the process has died
        return None
    try:
        process = _read_actor(actor._actor_id.binary()).address.worker_id
        nodes = train_worker_nodes(process) if process else None
        if nodes is not None:
            return nodes
        own = resources.placement_group.id.binary()
        return next((_nodes(g) for g in _placement_groups() if g.placement_group_id == own), None)
    except RaySystemError:  # not available through ray://
        return None


def train_worker_nodes(process: bytes) -> tuple[str, ...] | None:
    """Return the nodes of the Ray Train workers of a process; None if it has requested none.

    Returns no nodes while the workers wait for capacity. Ray Train's controller, an actor that the
    process owns, requests a placement group for them.
    """
    for group in _placement_groups():
        if _read_actor(group.creator_actor_id).owner_address.worker_id == process:
            return _nodes(group)
    return None


def read_error(trial: Trial) -> str:
    """Return Ray's error of a trial whose process died; empty if there is none.

    The callback for errors of trials is not given the error, and `Trial.error_file` is for
    developers only. Without it, a lost run would have no reason.
    """
    with suppress(Exception):
        return Path(trial.error_file).read_text()
    return ""


def _nodes(group: Any) -> tuple[str, ...]:
    created = group.state == group.CREATED
    return tuple(bundle.node_id.hex() for bundle in group.bundles) if created else ()


def quiet_progress_callback() -> Callback:
    """Return a callback that replaces Tune's progress callback, which prints to stdout.

    Even with `verbose=0`, Tune's callback prints a line for each trial that is stopped before its
    first result. Only a subclass replaces it, and only if RAY_AIR_NEW_OUTPUT is 0.
    """
    from ray.tune.progress_reporter import TrialProgressCallback

    class QuietProgressCallback(TrialProgressCallback):
        def log_result(self, *args: object, **options: object) -> None: ...
        def on_trial_complete(self, *args: object, **options: object) -> None: ...

    return QuietProgressCallback()


# ---------------------------------------------------------------- Train


@dataclass(frozen=True)
class Rank:
    """Where a rank of a run runs."""

    node: str
    host: str
    gpus: tuple[str, ...]
    """Its GPUs, as Ray numbers them on its node."""


def make_start_callback(on_start: Callable[[Sequence[Rank]], None]) -> object:
    """Return a callback of Ray Train that is called when the processes of all ranks are ready.

    `WorkerGroupCallback` is a developer API in a private module. A rank itself can report only
    after Ray Train has initialized its GPU, where a faulty GPU may hang.

    Args:
        on_start: Called in Ray Train's controller process. The ranks start once it returns.
    """
    from ray.train.v2._internal.execution.callback import WorkerGroupCallback
    from ray.train.v2._internal.execution.worker_group.worker import Worker

    class StartCallback(WorkerGroupCallback):
        def before_init_train_context(self, workers: list[Worker]) -> dict[str, list[Any]]:
            places = [worker.metadata for worker in workers]  # in the order of the ranks
            on_start([Rank(p.node_id, p.hostname, tuple(map(str, p.gpu_ids))) for p in places])
            return {}

    return StartCallback()


# ---------------------------------------------------------------- errors

# Error of a trial that Ray's memory monitor ended. The last line is advice on Ray's settings.
MEMORY_MONITOR = "running low on memory"
_PEER_LOST = re.compile(
    r"connection (closed|reset|refused)|broken pipe|peer|timed out", re.IGNORECASE
)


def unwrap_error(error: BaseException) -> BaseException:
    """Return the error that the user's code raised in another process.

    `RayTaskError.cause` is not documented. Without it, a run's error would be the remote traceback
    instead of one sentence. `WorkerGroupError.worker_failures` of Ray Train has unwrapped errors.
    """
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def is_lost_worker_error(error: BaseException) -> bool:
    """Whether a rank's error means that a process or node died, its own or another rank's.

    Such a run is retried; any other error is a failure of the run. Ray Train's errors about worker
    health have no public base class, so every class of Ray counts. If Ray moved these classes out
    of the package `ray`, a lost rank would be recorded as a failed run.
    """
    import torch

    if any(cls.__module__.partition(".")[0] == "ray" for cls in type(error).__mro__):
        return True
    if isinstance(error, (torch.distributed.DistError, ConnectionError)):
        return True
    # Error of a rank whose peer died during a gloo collective.
    return isinstance(error, RuntimeError) and bool(_PEER_LOST.search(str(error)))


# ---------------------------------------------------------------- clusters to connect to

# Ray's core logs the first message, Ray Client the second. The error of `ray.init` does not
# distinguish a rejected token from an unreachable head.
TOKEN_REJECTED = re.compile("InvalidAuthToken|Invalid or missing authentication token")
# `ray.init` raises a plain RuntimeError with the versions of the cluster, then of this machine.
VERSION_MISMATCH = re.compile(
    r"Version mismatch.*?" + 2 * r"Ray: (\S+)\s+Python: (\S+).*?", re.DOTALL
)
# Path of the authentication mode on a dashboard; the driver cannot ask Ray for it.
AUTHENTICATION_MODE = "/api/authentication_mode"
# Version of the Jobs API, which Ray increases with each incompatible change.
JOBS_API = "4"
# Lines that Ray adds to a job's log.
JOB_LOG = re.compile(r"Running entrypoint for job |.* -- Runtime env is setting up\.$")
# Parts of errors of the Jobs API: the id of a new job is taken, and the stream of a log broke. Both
# are plain RuntimeErrors. Advice follows the last one, the error about a rejected token.
JOB_EXISTS, STREAM_BROKEN, TOKEN_ADVICE = "already exists", "WebSocket", ". Ensure"
# Part of the error of `ray.init` if its processes did not start in 30 seconds; Ray has no setting.
START_TIMED_OUT = "timed out during startup"
PROC = Path("/proc")
DRAIN_SECONDS = 60.0  # for `ray drain-node`, which imports Ray first


def find_own_clusters(private_prefix: str) -> list[str]:
    """Return the addresses of running clusters on this machine, the latest `ray start` first.

    Reads the command lines of raylet processes and the file `ray_current_cluster`. Ray's own "auto"
    also uses those of other users, whose cluster would then receive our token. This function uses
    only processes and files of the current user.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    latest = _read_own(Path(folder) / "ray" / "ray_current_cluster").strip()
    if not PROC.is_dir():  # not Linux
        return [latest] if latest else []
    running = {raylet.gcs_address for raylet in find_own_raylets(private_prefix)}
    return sorted(running, key=lambda address: (address != latest, address))


@dataclass(frozen=True)
class Raylet:
    """Process of Ray that manages a node on this machine."""

    pid: int
    node_id: str
    gcs_address: str

    @property
    def is_alive(self) -> bool:
        return read_raylet(self.pid) == self


def find_own_raylets(private_prefix: str) -> list[Raylet]:
    """Return the current user's raylets on this machine (Linux), except those of private Rays.

    Without it, a node could learn its own id only by connecting to the cluster as a driver.
    """
    found = (read_raylet(int(p.name), private_prefix) for p in PROC.glob("[0-9]*"))
    return [raylet for raylet in found if raylet is not None]


def read_raylet(pid: int, private_prefix: str | None = None) -> Raylet | None:
    """Return the raylet with this pid; None if the process is something else."""
    words = _read_own_command(PROC / str(pid)).split("\0")
    if Path(words[0]).name != "raylet":
        return None
    if private_prefix and any(f"/{private_prefix}" in word for word in words):
        return None
    options = dict(word.partition("=")[::2] for word in words)
    return Raylet(pid, options.get("--node_id", ""), options.get("--gcs-address", ""))


def drain_node(raylet: Raylet, seconds: int, why: str) -> bool:
    """Report to Ray that a node ends in some seconds; return whether Ray has accepted.

    `ray drain-node` is hidden and not part of Ray's public API, but it is the only way to announce
    the end of a node from outside: Ray 2.60 does not read the notices of clouds.
    """
    words = ["drain-node", "--address", raylet.gcs_address, "--node-id", raylet.node_id]
    words += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", why]
    words += ["--deadline-remaining-seconds", str(seconds)]
    command = [sys.executable, "-m", "ray.scripts.scripts", *words]
    try:
        return subprocess.run(command, timeout=DRAIN_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _read_own_command(process: Path) -> str:
    """Read the command line of the current user's process; return "" for another user's.

    The owner of files in /proc is not the user of the process: root owns those of every process
    that is not dumpable, and any process can make itself so. A setuid program has several users.
    """
    with suppress(OSError):
        command = (process / "cmdline").read_bytes().decode(errors="replace")
        users = re.search(r"^Uid:(.*)", (process / "status").read_text(), re.MULTILINE)
        if users and set(users[1].split()) == {str(os.getuid())}:
            return command
    return ""


def _read_own(file: Path) -> str:
    """Read a file of the current user; return "" for a file of another user."""
    with suppress(OSError), file.open("rb") as opened:
        if os.fstat(opened.fileno()).st_uid == os.getuid():
            return opened.read().decode(errors="replace")
    return ""


# ---------------------------------------------------------------- the connected Ray


def silence_error_messages() -> None:
    """Suppress Ray's messages about dead processes on stdout, which is for data.

    `log_to_driver=False` covers only the output of workers: Ray's error listener still prints to
    stdout, e.g. when a worker is killed. The controller reports such runs itself.
    """
    import ray

    ray._private.worker._worker_logs_enabled = False


def is_ray_client() -> bool:
    """Whether this process is connected through ray://, where a second `ray.init` starts a Ray."""
    from ray.util import client

    return bool(client.ray.is_connected())  # type: ignore[no-untyped-call]


def draining_nodes() -> dict[str, float]:
    """Return the Unix time when each draining node ends; infinity if the time is unknown.

    A node drains after `ray drain-node`, or when the autoscaler or the cloud (`preemption.py`) is
    about to end it.
    `ray.nodes()` does not tell, and Ray Train's public `get_preemption_info` works only in its
    workers. Without this function, runs would start on nodes that end within seconds.
    """
    import ray

    try:
        found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    except ray.exceptions.RaySystemError:  # not available through ray://
        return {}
    return {node: ms / 1000 if ms else float("inf") for node, ms in found.items()}


HEARTBEAT_SECONDS = 30.0


def make_heartbeat(run_id: str, attempt: int) -> Callable[..., None]:
    """Return a function that a worker calls whenever its run makes progress.

    At most every HEARTBEAT_SECONDS it writes one small value to the key-value store of Ray's head,
    where the driver looks before it kills a run that has reported nothing for long. There is no
    public way to report from within a step of a Tune trainable; an actor for it would be one more
    process that may die. Without the heartbeat, the limit would have to exceed the longest epoch,
    which is unknown before the first epoch ends.
    """
    from ray.experimental.internal_kv import _internal_kv_put

    key, sent = _heartbeat_key(run_id, attempt), -HEARTBEAT_SECONDS

    def heartbeat(*_: object) -> None:
        nonlocal sent
        if time.monotonic() - sent >= HEARTBEAT_SECONDS:
            sent = time.monotonic()
            with suppress(Exception):  # many types; the head may be restarting
                _internal_kv_put(key, str(sent).encode(), overwrite=True)

    return heartbeat


def read_heartbeat(run_id: str, attempt: int) -> bytes | None:
    """Return the last heartbeat of an attempt: a value that changes with each heartbeat."""
    from ray.experimental.internal_kv import _internal_kv_get

    with suppress(Exception):
        value: bytes | None = _internal_kv_get(_heartbeat_key(run_id, attempt))
        return value
    return None


def _heartbeat_key(run_id: str, attempt: int) -> bytes:
    import ray

    job = ray.get_runtime_context().get_job_id()
    return f"ascl-sweep/{job}/{run_id}/{attempt}".encode()


def _placement_groups() -> list[Any]:
    """Return this job's placement groups; raises RaySystemError on ray://.

    The public functions do not return the creator of a group.
    """
    import ray
    from ray.core.generated import gcs_pb2

    Group = gcs_pb2.PlacementGroupTableData  # type: ignore[attr-defined]
    own_job = bytes.fromhex(ray.get_runtime_context().get_job_id())
    table = ray._private.state.state._connect_and_get_accessor().get_placement_group_table()
    groups = map(Group.FromString, table)
    return [g for g in groups if g.creator_job_id == own_job and g.state != Group.REMOVED]


def _read_actor(actor_id: bytes) -> Any:
    """Return Ray's record of an actor, an empty record if there is none."""
    import ray
    from ray.core.generated import gcs_pb2

    Actor = gcs_pb2.ActorTableData  # type: ignore[attr-defined]
    if actor_id in (b"", ray.ActorID.nil().binary()):
        return Actor()
    accessor = ray._private.state.state._connect_and_get_accessor()
    return Actor.FromString(accessor.get_actor_info(ray.ActorID(actor_id)) or b"")


def release_leaked_placement_groups() -> None:
    """Remove this job's placement groups whose creating actor is dead.

    Ray keeps a placement group that an actor requested, pending or created, until the driver ends.
    Ray Train removes it only if its controller lives and its workers have started. Without this
    function, runs of several workers that were stopped early block the cluster.
    """
    import ray
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    no_actor = (b"", ray.ActorID.nil().binary())
    try:
        groups = _placement_groups()
    except ray.exceptions.RaySystemError:  # not available through ray://
        return
    for group in groups:
        if group.creator_actor_dead and group.creator_actor_id not in no_actor:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))
