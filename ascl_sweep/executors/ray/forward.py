"""Port forwarding of a cluster's dashboard to this machine, with `ray dashboard`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ascl_sweep.errors import ClusterError
from ascl_sweep.executors.ray.address import find_free_port

FORWARD_SECONDS = 180.0  # `ray dashboard` looks up the head node, then ssh retries for 120 s


class Unreachable(ClusterError):
    """The cluster does not answer; a retry may succeed."""


def forward_command(cluster: Path, port: int) -> list[str]:
    """Return the command that looks up the head node and forwards its dashboard with ssh."""
    beside = Path(sys.executable).with_name("ray")  # in the same environment
    ray = str(beside) if beside.exists() else shutil.which("ray") or "ray"
    return [ray, "dashboard", str(cluster), "--port", str(port)]


@contextmanager
def forward_dashboard(cluster: Path) -> Iterator[str]:
    """Forward a cluster's dashboard while the context is open; yield its local address."""
    port = find_free_port()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            forward_command(cluster, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C must not reach it; its child ssh ends with the session
        )
        try:
            end = time.monotonic() + FORWARD_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    printed = output.read().decode(errors="replace").strip()[-1000:] or "nothing"
                    raise Unreachable(
                        f"the head node of {cluster} is unreachable; check that it is running "
                        f"(`ray up {cluster}`) and that you can log in (`ray attach {cluster}`); "
                        f"`ray dashboard` printed:\n{printed}"
                    )
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end_group(process)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
            return
