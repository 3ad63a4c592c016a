"""Which Ray an address means, and whether it answers and lets us in.

Ray itself asks for a quarter of an hour, complaining every few seconds, and then does not say what
is wrong. This asks once, before Ray is loaded.
"""

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ascl_sweep.cluster import PREFIX
from ascl_sweep.room import NoResources

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 30.0
ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+)(?::(\d+))?")
HEAD_PORT, CLIENT_PORT = 6379, 10001  # unless said otherwise
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
TOKEN = "~/.ray/auth_token"
PROC = Path("/proc")


@dataclass(frozen=True)
class Door:
    """Where a Ray is asked: at its head (GCS), or by Ray Client."""

    host: str
    port: int
    client: bool = False

    @classmethod
    def of(cls, address: str) -> "Door":
        """Read an address; raises ValueError if it is none."""
        found = ADDRESS.fullmatch(address)
        if found and address != "local" and (found[1] or found[3]):
            port = int(found[3] or CLIENT_PORT)
            if 0 < port < 2**16:
                return cls(found[2], port, client=bool(found[1]))
        way_out = (
            "; a dashboard's address is for `ascl-sweep submit`" if address[:4] == "http" else ""
        )
        raise ValueError(
            f"the address of a Ray must be auto, HOST:PORT of its head ({HEAD_PORT} unless said "
            f"otherwise) or ray://HOST:PORT, got {address!r}{way_out}"
        )

    def __str__(self) -> str:
        return f"{'ray://' if self.client else ''}{self.host}:{self.port}"

    @property
    def question(self) -> tuple[str, bytes]:
        """A request that any such Ray answers, as gRPC sends it: a method and its argument."""
        if self.client:
            return "/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06"  # a ping
        return "/ray.rpc.NodeInfoGcsService/GetClusterId", b""


def knock(address: str) -> str:
    """Where Ray is to go for `address`; sets RAY_AUTH_MODE as that Ray wants it.

    Raises `NoResources` if nobody answers or we are not let in, `ValueError` if it is no address.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address != "auto":
        return _knock(Door.of(address))
    refusals = []
    for found in dict.fromkeys(_on_this_machine()):
        try:
            return _knock(Door.of(found))
        except (NoResources, ValueError) as error:  # left behind by one that was killed
            refusals.append(str(error))
    raise NoResources(
        refusals[0]
        if refusals
        else "there is no Ray cluster on this machine, which is where --address auto looks; give "
        "the cluster's HOST:PORT, or start one here with `ray start --head`"
    )


def _on_this_machine() -> Iterator[str]:
    """The Ray that `ray start` started last, then any other that is not a sweep's private one."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    with contextlib.suppress(OSError):
        yield (Path(folder) / "ray" / "ray_current_cluster").read_text().strip()
    for file in PROC.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name == "raylet" and not any(f"/{PREFIX}" in word for word in words):
                yield from (w.partition("=")[2] for w in words if w.startswith("--gcs-address="))


def _knock(door: Door) -> str:
    shown = str(door)
    if door.host in LOOPBACK and not door.client and (own := _own_address()):
        door = Door(own, door.port)
        shown += f" (to Ray that is {door})"
    try:
        ends = (door.host.strip("[]"), door.port)
        socket.create_connection(ends, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise NoResources(
            f"nothing answers at {shown}: {error.strerror or error}; see that the cluster is up, "
            "and its head in reach from here"
        ) from error
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        _show_token(door, shown)
    return str(door)


def _own_address() -> str | None:
    """The address that this machine has for others; Ray goes there instead of the loopback."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect(("8.8.8.8", 53))  # sends nothing: it chooses an interface
        return str(line.getsockname()[0])
    return None


def _show_token(door: Door, shown: str) -> None:
    """Use a token if one is asked for, and only then: else a cluster's own processes, which have
    none, are not let in by us, and nothing ever starts.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    if mode not in ("", "token", "disabled"):
        return  # a way that we do not know
    put = f"put the cluster's into {TOKEN}, readable to you alone"
    if _let_in(door, shown, None):
        if mode == "token":
            raise NoResources(
                f"the Ray at {shown} asks for no token, and RAY_AUTH_MODE=token is set here; start "
                "it with RAY_AUTH_MODE=token too (see docs/security.md)"
            )
        os.environ["RAY_AUTH_MODE"] = "disabled"
        return
    if mode == "disabled":
        raise NoResources(
            f"the Ray at {shown} wants its token, and RAY_AUTH_MODE=disabled is set here; unset it"
        )
    token, source = own_token()
    if not token:
        raise NoResources(f"the Ray at {shown} wants its token, and there is none {source}; {put}")
    if not _let_in(door, shown, token):
        raise NoResources(f"the Ray at {shown} wants its token, not the one {source}; {put}")
    os.environ["RAY_AUTH_MODE"] = "token"


def own_token() -> tuple[str, str]:
    """Our token, empty if there is none, and where it is from: Ray looks at the same places.

    Raises `NoResources` if it cannot be sent: who tried would quote it in an error.
    """
    token, source = os.environ.get("RAY_AUTH_TOKEN", ""), "RAY_AUTH_TOKEN"
    if not token:
        source = os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN
        with contextlib.suppress(OSError, ValueError):
            token = Path(source).expanduser().read_text("utf-8", "replace")
    token = token.strip()
    if not re.fullmatch("[!-~]*", token):
        raise NoResources(
            f"a token must be one word of printable ASCII, and what is in {source} is not; put the "
            "cluster's there, readable to you alone"
        )
    return token, f"in {source}"


def _let_in(door: Door, shown: str, token: str | None) -> bool:
    """Whether we are answered, with or without a token."""
    import grpc

    method, argument = door.question
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    try:
        with grpc.insecure_channel(
            f"{door.host}:{door.port}", options=[("grpc.enable_http_proxy", 0)]
        ) as line:
            line.unary_unary(method)(argument, timeout=ANSWER_SECONDS, metadata=metadata)
    except grpc.RpcError as error:
        match error.code():
            case grpc.StatusCode.UNAUTHENTICATED:
                return False
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                why = f"gives no answer in {ANSWER_SECONDS:g} s"
            case _:
                why = "is no Ray Client" if door.client else "is no head of a Ray"
        port = CLIENT_PORT if door.client else HEAD_PORT
        raise NoResources(
            f"what listens at {shown} {why}; see that the port is right ({port}, unless said "
            "otherwise)"
        ) from error
    return True
