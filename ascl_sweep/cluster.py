"""The Ray that a sweep runs on: a private one on this machine, or a cluster that is there already.

A private one listens on the loopback interface only, asks for a token, keeps its files in a folder
of its own and takes all of that along when it ends. One whose driver was killed leaves daemons
behind; the next driver ends them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from ascl_sweep.labels import one_line
from ascl_sweep.room import Cluster, Later, Node, NoResources, later_of

PREFIX = "ascl-ray-"
BOOTSTRAP = "ray_bootstrap_config.yaml"  # in the home of a head that `ray up` made
MAY_COME = "ASCL_SWEEP_MAY_COME"  # the same of a head in a pod, as far as it matters here
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # reports wait for this; 2 s by default
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # how many start at once is ours to say
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1000000",  # how long it waits is ours to say, too
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # the ledger is the only state
    "TUNE_WARN_THRESHOLD_S": "1000",
}
JOINING = {
    "RAY_gcs_server_port_wait_time_s": "3",  # attempts of some 40 s each; `knock` was answered
}
PRIVATE = {
    "RAY_AUTH_MODE": "token",
    # Named for what it is for elsewhere: here it keeps every socket on the loopback interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
DASHBOARD_SECONDS = 90.0  # that a busy machine may take to start one


@contextmanager
def connected(address: str | None, *, dashboard: bool) -> Iterator[Cluster]:
    """A private Ray, or the one at `address`; `dashboard` if early stopping will need it."""
    assert "ray" not in sys.modules, "Ray reads its settings when it is loaded"
    if address is not None:
        from ascl_sweep.knock import knock

        address = knock(address)
    for key, value in (QUIET | (JOINING if address else PRIVATE)).items():
        os.environ.setdefault(key, value)
    clean_up_after_killed_drivers()
    scratch = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_short_tmp()))
    if not address:
        os.environ["RAY_TMPDIR"] = str(scratch)  # where its processes look for their Ray's address
    import ray

    imports = threading.Thread(target=_import_what_sweeps_use)
    imports.start()
    try:
        try:
            if address:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(
                    address="local",
                    num_cpus=cpus_here(),
                    include_dashboard=dashboard,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(scratch / "ray"),
                )
                _tighten_token()
                # Or else Ray Train, when a run of several workers ends, asks the dashboard of any
                # Ray on this machine to free its workers, and with two Rays of none.
                ray._private.utils.write_ray_address(
                    ray.get_runtime_context().gcs_address, str(scratch / "ray")
                )
            imports.join()
        except Exception as error:  # of many kinds, some of them just that
            raise NoResources(
                why_not_joined(address, error)
                if address
                else f"Ray could not be started on this machine ({one_line(error)}); see "
                "`ascl-sweep doctor`"
            ) from error
        if dashboard:
            _check_dashboard()
        # What fails is told by the driver; Ray would tell it too, some of it on stdout.
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        ray._private.worker._worker_logs_enabled = False
        yield look(scratch, private=not address)
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        if not address:
            _end_processes_of(scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def why_not_joined(address: str, error: Exception) -> str:
    """What Ray says of a cluster that it could not join; of other versions than ours, which."""
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", str(error))
    if "Version mismatch" in str(error) and len(versions) == 2:
        there, here = (f"Ray {ray} on Python {python}" for ray, python in versions)
        return (
            f"we and the Ray at {address} must have the same Ray and Python, got {here} here and "
            f"{there} there; install the same here"
        )
    return f"Ray at {address} could not be joined ({one_line(error)}); see `ray status` there"


def look(scratch: Path, *, private: bool) -> Cluster:
    """The cluster that this process is connected to, as it is now."""
    import ray

    nodes = tuple(
        Node(n["NodeID"], n["Resources"].get("CPU", 0), n["Resources"].get("GPU", 0))
        for n in ray.nodes()  # type: ignore[no-untyped-call]
        if n["Alive"]
    )
    return Cluster(nodes, scratch, private, Later() if private else may_come())


def may_come() -> Later:
    """What an autoscaler may make of the cluster whose head this is; nothing without one.

    Ray 2.60 has a place for it in its store, which nothing fills. On the head that `ray up` made is
    the file that its autoscaler goes by; on Kubernetes there is none, and our own file for KubeRay
    says it in the head's environment.
    """
    where, text = MAY_COME, os.environ.get(MAY_COME)
    if text is None:
        where = str(Path.home() / BOOTSTRAP)
        try:
            text = Path(where).read_text(encoding="utf-8")
        except FileNotFoundError:
            return Later()
    try:
        return later_of(yaml.safe_load(text))
    except (ValueError, yaml.YAMLError) as error:
        raise NoResources(f"{where}: {one_line(error)}") from error


def free_what_the_dead_hold() -> None:
    """Give back the places of runs of several workers that were ended before they trained.

    Ray 2.60 keeps a place that an actor asked for, granted or not, until the whole driver ends; Ray
    Train gives it back itself only if its own process lives, and has come as far as to train.
    """
    import ray
    from ray.core.generated import gcs_pb2
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    Place = gcs_pb2.PlacementGroupTableData  # type: ignore[attr-defined]
    own = bytes.fromhex(ray.get_runtime_context().get_job_id())
    nobody = ray.ActorID.nil().binary()
    try:  # there is no public way to ask whose they are
        known = ray._private.state.state._connect_and_get_accessor().get_placement_group_table()
    except ray.exceptions.RaySystemError:  # it cannot be asked through ray://
        return
    for place in map(Place.FromString, known):
        gone = place.creator_actor_dead and place.creator_actor_id not in (b"", nobody)
        if place.creator_job_id == own and gone and place.state != Place.REMOVED:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(place.placement_group_id)))


def _import_what_sweeps_use() -> None:
    """Spend the seconds in which Ray's daemons start on what is slow to load and used right after.

    An error shows where the import is really wanted.
    """
    with contextlib.suppress(Exception):
        import ascl.worker  # noqa: F401


def cpus_here() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _short_tmp() -> str:
    """Socket names have little room: not below a long TMPDIR."""
    return "/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir()


def _tighten_token() -> None:
    """Ray writes its token readable to all."""
    token = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):
        token.chmod(0o600)


def _check_dashboard() -> None:
    """Runs of several workers are stopped through the dashboard's API: without it they hang."""
    import ray
    from ray.util.state import list_nodes

    end = time.monotonic() + DASHBOARD_SECONDS
    while time.monotonic() < end:
        # It names no common base for what it raises while the dashboard starts, or is not there.
        with contextlib.suppress(Exception):
            # Left to itself it asks the Ray that was started last on this machine.
            url = ray._private.worker.get_dashboard_url()  # type: ignore[no-untyped-call]
            list_nodes(address=f"http://{url}", timeout=2)
            return
        time.sleep(0.5)
    raise NoResources(
        "runs of several workers need Ray's dashboard to be stopped, and it does not answer; "
        'install "ray[default]" on the head node, or set resources.workers=1'
    )


# ---------------------------------------------------------------- after a killed driver


def clean_up_after_killed_drivers() -> int:
    """End the daemons and delete the folders of private Rays whose driver is gone."""
    gone = 0
    for folder in Path(_short_tmp()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not pid.isdigit() or _alive(int(pid)):
            continue
        # Gone, another user's, or being cleaned up by another driver: whoever deletes a folder has
        # files of it open, and must not be taken for one of its workers.
        with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError):
            with _only_one(folder):
                _end_processes_of(folder)
                shutil.rmtree(folder, ignore_errors=True)
            gone += 1
    return gone


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold a folder against others who do the same; raises BlockingIOError if one holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _end_processes_of(folder: Path) -> None:
    """Kill what was started for a private Ray."""
    found = [pid for pid in map(int, _numbers("/proc")) if pid != os.getpid()]
    daemons = [pid for pid in found if str(folder) in _command(pid)]
    workers = [pid for pid in found if pid not in daemons and _holds(pid, folder)]
    for pid in (*workers, *daemons):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _numbers(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []  # gone, or not ours, or no /proc on this system


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _holds(pid: int, folder: Path) -> bool:
    """Whether a process has a file of a folder open: workers change their title, not their logs."""
    for name in _numbers(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith(f"{folder}/"):
                return True
    return False
