"""Connection to Ray: a private Ray on this machine, or an existing cluster.

A private Ray listens on the loopback interface only, requires a token, keeps its files in its own
folder and ends with the sweep. If the driver is killed, the next driver cleans up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ascl.files import hold_folder
from ascl_sweep.errors import ClusterError, ResourceError
from ascl_sweep.executors.ray import compat
from ascl_sweep.executors.ray.address import explain_failure, find_cluster, find_free_port
from ascl_sweep.runtime.cluster import AutoscalerLimits, Cluster, Node, parse_autoscaler_limits
from ascl_sweep.text import one_line

PREFIX = "ascl-ray-"
MAY_COME = "ASCL_SWEEP_MAY_COME"  # autoscaler limits of a head in a Kubernetes pod, as YAML
# Addresses in /proc/net/tcp and tcp6: 127.x.x.x, the same mapped to IPv6, and ::1.
LOOPBACK, LISTENING = re.compile("(0{16}FFFF0000)?.{6}7F:|0{24}01000000:"), "0A"
DASHBOARD_SECONDS = 90.0  # the dashboard starts slowly on a busy machine


@contextmanager
def connect_ray(address: str | None, *, dashboard: bool) -> Iterator[Path]:
    """Start a private Ray, or connect to the cluster at `address`.

    Yields a folder for temporary files, which is deleted at the end. Runs of several workers need
    the dashboard, because Ray Train releases their workers through it.
    """
    assert "ray" not in sys.modules, "Ray reads its settings when it is imported"
    if address is not None:
        address = find_cluster(address, PREFIX)
    compat.apply_settings(private=not address)
    clean_up_after_killed_drivers()
    scratch = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_short_tmp()))
    with hold_folder(scratch):
        import ray

        imports = threading.Thread(target=_import_worker)
        imports.start()
        try:
            try:
                try:
                    url = _init_ray(address, scratch, dashboard)
                except Exception as error:
                    if address or compat.START_TIMED_OUT not in str(error):
                        raise
                    # Ray waits for its own processes for 30 seconds, too short on a busy machine.
                    ray.shutdown()
                    _kill_processes(scratch)
                    url = _init_ray(address, scratch, dashboard)
                imports.join()
            except Exception as error:  # Ray raises many types, including plain Exception
                raise ClusterError(
                    explain_failure(address, f"{type(error).__name__}: {error}")
                    if address
                    else f"Ray failed to start on this machine ({one_line(error)}); run "
                    "`ascl-sweep doctor`"
                ) from error
            if not address and (ports := find_exposed_ports(scratch)):
                raise ClusterError(
                    "a private Ray must listen on the loopback interface only, but it also listens "
                    f"on other interfaces (ports {ports}); install a Ray version that ascl-sweep "
                    "requires"
                )
            if dashboard:
                _check_dashboard(url)
            logging.getLogger("ray").setLevel(logging.CRITICAL)  # the controller reports failures
            compat.silence_error_messages()
            yield scratch
        finally:
            with contextlib.suppress(Exception):
                ray.shutdown()
            if not address:
                _kill_processes(scratch)
            shutil.rmtree(scratch, ignore_errors=True)


def _init_ray(address: str | None, scratch: Path, dashboard: bool) -> str:
    """Start or join Ray; return the address of its dashboard."""
    import ray

    options = {"address": address} if address else _prepare(scratch, dashboard)
    with compat.protect_from_signals():
        context = ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    return str(context.dashboard_url)


def _prepare(scratch: Path, dashboard: bool) -> dict[str, Any]:
    """Set up the environment of a private Ray; return the options for `ray.init`."""
    _create_token()
    os.environ[compat.FOLDER_SETTING] = str(scratch)
    port = find_free_port()
    # The workers inherit this setting. Without it, Ray Train (2.60) may contact the dashboard of
    # another Ray on this machine when a run of several workers ends.
    os.environ["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{port}"
    return {
        "address": "local",
        "num_cpus": cpus_here(),
        "include_dashboard": dashboard,
        "dashboard_port": port,
    }


def read_cluster(*, private: bool) -> Cluster:
    """Return the current nodes of the connected cluster."""
    import ray

    draining = compat.draining_nodes()
    nodes = tuple(
        Node(
            n["NodeID"],
            n["Resources"].get("CPU", 0),
            n["Resources"].get("GPU", 0),
            draining.get(n["NodeID"]),
        )
        for n in ray.nodes()  # type: ignore[no-untyped-call]
        if n["Alive"]
    )
    return Cluster(nodes, AutoscalerLimits() if private else read_autoscaler_limits())


def read_autoscaler_limits() -> AutoscalerLimits:
    """Return the limits of the autoscaler if this machine is a cluster's head, else no limits.

    Ray 2.60 has no API for these limits. `ray up` leaves the autoscaler's config in the head's home
    folder; on Kubernetes, our KubeRay file sets the limits in the head's environment.
    """
    where, text = MAY_COME, os.environ.get(MAY_COME)
    if text is None:
        where = str(Path.home() / compat.BOOTSTRAP)
        try:
            text = Path(where).read_text(encoding="utf-8")
        except FileNotFoundError:
            return AutoscalerLimits()
    try:
        return parse_autoscaler_limits(yaml.safe_load(text))
    except (ValueError, yaml.YAMLError) as error:
        raise ResourceError(f"{where}: {one_line(error)}") from error


def _import_worker() -> None:
    """Import slow modules while Ray's daemons start. Later imports raise any error again."""
    with contextlib.suppress(Exception):
        import ascl_sweep.executors.ray.tune  # noqa: F401


def cpus_here() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _short_tmp() -> str:
    """Return a short path: names of Unix sockets are limited to 107 bytes."""
    return "/tmp" if Path("/tmp").is_dir() else tempfile.gettempdir()


def _create_token() -> None:
    """Create Ray's token file. Ray 2.60 would create it readable by all users."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    token = Path.home() / ".ray" / "auth_token"
    if not token.exists():
        token.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, half = tempfile.mkstemp(dir=token.parent)  # with mode 600
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):  # another driver has created it
            os.link(half, token)
        os.unlink(half)
    with contextlib.suppress(OSError):
        token.chmod(0o600)


def _check_dashboard(url: str | None) -> None:
    """Wait for the dashboard: without it, stopping a run of several workers hangs (Ray 2.60)."""
    from ray.util.state import list_nodes

    os.environ["RAY_API_SERVER_ADDRESS"] = f"http://{url}"  # overrides other settings
    end = time.monotonic() + DASHBOARD_SECONDS
    while url and time.monotonic() < end:
        with contextlib.suppress(Exception):  # many types while the dashboard starts
            list_nodes(timeout=2)
            return
        time.sleep(0.5)
    raise ClusterError(
        "runs of several workers need Ray's dashboard, which does not answer; install "
        '"ray[default]" on the head node, or set resources.workers=1'
    )


# ---------------------------------------------------------------- processes of a private Ray


def clean_up_after_killed_drivers() -> int:
    """Kill the processes and delete the folders of private Rays whose driver is dead.

    A living driver holds a lock on its folder. Unlike a pid, the lock is visible in other
    containers that share /tmp, and it does not survive a reboot.
    """
    cleaned = 0
    for folder in Path(_short_tmp()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not pid.isdigit() or Path(f"/proc/{pid}").exists():
            continue
        # The folder is deleted, belongs to another user, is in use, or is being cleaned up.
        with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError):
            with hold_folder(folder):
                _kill_processes(folder)
                shutil.rmtree(folder, ignore_errors=True)
            cleaned += 1
    return cleaned


def _kill_processes(folder: Path) -> None:
    for pid in _processes(folder):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _processes(folder: Path) -> dict[int, set[str]]:
    """Find this user's other processes of a private Ray; return their open files and sockets.

    Daemons have the folder in their command line. Workers do not, but keep their logs open.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid, files = int(process.name), _open_files(process)
            named = str(folder) in (process / "cmdline").read_bytes().decode(errors="replace")
            ours = process.stat().st_uid == os.getuid() and pid != os.getpid()
            if ours and (named or any(file.startswith(f"{folder}/") for file in files)):
                found[pid] = files
    return found


def _open_files(process: Path) -> set[str]:
    files = set()
    for link in process.glob("fd/*"):
        with contextlib.suppress(OSError):
            files.add(os.readlink(link))
    return files


def find_exposed_ports(folder: Path) -> list[int]:
    """Return the ports on which a private Ray or this process listens beyond the loopback.

    Returns none without /proc: on systems other than Linux, Ray uses the loopback by default.
    """
    ours = _open_files(Path("/proc/self")).union(*_processes(folder).values())
    exposed = []
    for table in Path("/proc/net").glob("tcp*"):
        for fields in map(str.split, table.read_text().splitlines()[1:]):
            local, state, socket_of = fields[1], fields[3], f"socket:[{fields[9]}]"
            if state == LISTENING and socket_of in ours and not LOOPBACK.match(local):
                exposed.append(int(local.partition(":")[2], 16))
    return exposed
