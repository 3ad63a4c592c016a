"""Check that the Ray cluster at an address answers and accepts our token.

Ray 2.60 retries for a quarter of an hour, then does not report the cause, or even aborts the
process. Therefore a child process connects first, with a time limit.
"""

import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from ascl_sweep.errors import ClusterError, UsageError
from ascl_sweep.executors.ray import compat
from ascl_sweep.text import one_line

CONNECT_SECONDS = 10.0
# Ray Client takes longer: for each client the head starts a process, which imports Ray first. On a
# busy head with two cores this took more than 30 s (Ray 2.60).
ANSWER_SECONDS, CLIENT_ANSWER_SECONDS = 30.0, 120.0
ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+)(?::(\d+))?")
HEAD_PORT, CLIENT_PORT = 6379, 10001  # Ray's defaults
TOKEN = "~/.ray/auth_token"
PROBE = """
import logging, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.DEBUG)
ray.shutdown()
print("CONNECTED")
"""


def parse_address(address: str) -> tuple[str, str, int]:
    """Return an address in the form that Ray accepts, its host and its port."""
    found = ADDRESS.fullmatch(address)
    if found and address != "local" and (found[1] or found[3]):
        port = int(found[3] or CLIENT_PORT)
        if 0 < port < 2**16:
            return f"{found[1] or ''}{found[2]}:{port}", found[2].strip("[]"), port
    hint = "; use a dashboard's address with `ascl-sweep submit`" if address[:4] == "http" else ""
    raise UsageError(
        f"the address of a Ray cluster must be auto, HOST:PORT of its head (port {HEAD_PORT} by "
        f"default) or ray://HOST:PORT, got {address!r}{hint}"
    )


def find_cluster(address: str, private_prefix: str) -> str:
    """Return the address to connect to, and set RAY_AUTH_MODE as that cluster requires.

    The token is sent only to an address that the user gave or, with `auto`, to clusters of the same
    user. `auto` ignores private Rays, whose folders begin with `private_prefix`.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address != "auto":
        return _check_cluster(address)
    failure: Exception = ClusterError(
        "--address auto found no Ray cluster of yours on this machine; give the cluster's "
        "HOST:PORT, or start a cluster here with `ray start --head`"
    )
    for found in compat.find_own_clusters(private_prefix):
        try:
            return _check_cluster(found)
        except (ClusterError, UsageError) as error:
            failure = error
    raise failure


def _check_cluster(typed: str) -> str:
    address, host, port = parse_address(typed)
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterError(
            f"nothing answers at {address}: {error.strerror or error}; check that the cluster is "
            "running and that this machine can reach its head node"
        ) from error
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    if mode not in ("", "token", "disabled"):
        return address  # Ray checks other modes itself
    # A driver with a token would reject the processes of a cluster without: no run would start.
    needed = "disabled" if _connects(address, "disabled") else "token"
    if mode not in ("", needed):
        raise ClusterError(
            f"the Ray cluster at {address} needs RAY_AUTH_MODE={needed}, but RAY_AUTH_MODE={mode} "
            "is set here; unset it, or start the cluster with a token too (see docs/security.md)"
        )
    if needed == "token":
        token, source = own_token()
        if not token or not _connects(address, "token"):
            why = "rejected the token" if token else "needs a token, but there is none"
            raise ClusterError(
                f"the Ray cluster at {address} {why} in {source}; put the cluster's token into "
                f"{TOKEN}, readable by you alone"
            )
    os.environ["RAY_AUTH_MODE"] = needed
    return address


def own_token() -> tuple[str, str]:
    """Return the user's token (empty if there is none) and its source, in the order that Ray uses.

    Raises ClusterError for a token that cannot be sent, because Ray would print it in an error.
    """
    token, source = os.environ.get("RAY_AUTH_TOKEN", ""), "RAY_AUTH_TOKEN"
    if not token:
        source = os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN
        with contextlib.suppress(OSError, ValueError):
            token = Path(source).expanduser().read_text("utf-8", "replace")
    token = token.strip()
    if not re.fullmatch("[!-~]*", token):
        raise ClusterError(
            f"a token must be one word of printable ASCII, but the content of {source} is not; put "
            "the cluster's token there, readable by you alone"
        )
    return token, source


def exposes_token(url: str) -> bool:
    """Whether requests to a dashboard's URL carry the token unencrypted over a network."""
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return parts.scheme == "http" and not local and mode == "token" and bool(own_token()[0])


def _connects(address: str, mode: str) -> bool:
    """Whether a child process can connect in an authentication mode; False if it is rejected."""
    output = ""
    with subprocess.Popen(
        [sys.executable, "-c", PROBE, address],
        env=os.environ | compat.PROBE_SETTINGS | {"RAY_AUTH_MODE": mode},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        watchdog = threading.Timer(_answer_seconds(address), child.kill)
        watchdog.start()
        try:
            for line in child.stdout or ():
                output += line
                if line == "CONNECTED\n" or compat.TOKEN_REJECTED.search(line):
                    return line == "CONNECTED\n"
        finally:
            watchdog.cancel()
            child.kill()
    raise ClusterError(explain_failure(address, output))


def _answer_seconds(address: str) -> float:
    return CLIENT_ANSWER_SECONDS if address.startswith("ray://") else ANSWER_SECONDS


def find_free_port() -> int:
    """Return a free port of this machine, below the system's range of ephemeral ports."""
    while True:
        port = 20000 + secrets.randbelow(12000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def explain_failure(address: str, output: str) -> str:
    """Explain in one sentence why Ray could not connect, given its output."""
    if found := compat.VERSION_MISMATCH.search(output):
        return (
            f"this machine and the Ray cluster at {address} must have the same versions of Ray and "
            f"Python, got Ray {found[3]} on Python {found[4]} here and Ray {found[1]} on Python "
            f"{found[2]} there; install the cluster's versions here"
        )
    port = CLIENT_PORT if address.startswith("ray://") else HEAD_PORT
    errors = re.findall(r"^\w[\w.]*(?:Error|Exception): (.+)", output, re.MULTILINE)
    why = f" ({one_line(errors[-1])})" if errors else f" within {_answer_seconds(address):g} s"
    return (
        f"the server at {address} does not answer like a Ray head{why}; check the port ({port} by "
        "default), and use the head's own address instead of 127.0.0.1"
    )
