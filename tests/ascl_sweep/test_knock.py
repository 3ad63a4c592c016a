"""Which Ray an address means, and what is said of one that does not let us in; Rays are acted."""

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from ascl_sweep import knock as module
from ascl_sweep.cluster import PREFIX, connected
from ascl_sweep.jobs import free_port
from ascl_sweep.knock import Door, knock
from ascl_sweep.room import NoResources

Serve = Callable[..., int]
HEAD, CLIENT = Door("h", 1).question, Door("h", 1, client=True).question


class Acted(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers one question, to who has the token."""

    def __init__(self, question: tuple[str, bytes], token: str | None) -> None:
        self.question, self.token = question, token

    def service(self, details: Any) -> Any:
        sent = dict(details.invocation_metadata)

        def answer(argument: bytes, context: Any) -> bytes:
            if self.token and sent.get("authorization") != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
            assert argument == self.question[1]
            return b""

        if details.method == self.question[0]:
            return grpc.unary_unary_rpc_method_handler(answer)
        return None


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def serve(question: tuple[str, bytes] = HEAD, token: str | None = None) -> int:
        server = grpc.server(ThreadPoolExecutor(1), (Acted(question, token),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return int(port)

    yield serve
    for server in servers:
        server.stop(None)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # and so what `knock` sets is taken back
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "PROC", tmp_path / "proc")
    monkeypatch.setattr(module, "_own_address", lambda: None)


def have_token(home: Path, token: str) -> None:
    (home / ".ray").mkdir(exist_ok=True)
    (home / ".ray" / "auth_token").write_text(f"{token}\n")


def refused(address: str) -> str:
    with pytest.raises(NoResources) as caught:
        knock(address)
    said = str(caught.value)
    assert "; " in said and "\n" not in said, "one sentence with its way out"
    return said


# ---------------------------------------------------------------- tokens


def test_a_token_is_used_if_it_is_asked_for_and_only_then(serve: Serve, tmp_path: Path) -> None:
    have_token(tmp_path, "secret")
    for asked, mode in ((None, "disabled"), ("secret", "token")):
        os.environ["RAY_AUTH_MODE"] = ""
        address = f"127.0.0.1:{serve(token=asked)}"
        assert knock(address) == address
        assert os.environ["RAY_AUTH_MODE"] == mode


def test_ray_client_is_asked_in_its_own_way(serve: Serve) -> None:
    address = f"ray://127.0.0.1:{serve(CLIENT)}"
    assert knock(address) == address
    assert "is no head of a Ray" in refused(address.removeprefix("ray://"))
    assert "is no Ray Client" in refused(f"ray://127.0.0.1:{serve(HEAD)}")


QUESTIONS = """
from ray.core.generated import gcs_service_pb2 as head, ray_client_pb2 as client
asked = (
    (head, "NodeInfoGcsService", "GetClusterId", head.GetClusterIdRequest()),
    (client, "RayletDriver", "ClusterInfo",
     client.ClusterInfoRequest(type=client.ClusterInfoType.PING)),
)
print([
    (f"/{m.DESCRIPTOR.services_by_name[s].methods_by_name[n].full_name}", r.SerializeToString())
    for m, s, n, r in asked
])
"""


def test_the_questions_are_those_that_ray_itself_would_send() -> None:
    said = subprocess.run([sys.executable, "-c", QUESTIONS], capture_output=True, text=True)
    asked = [(m[::-1].replace(".", "/", 1)[::-1], a) for m, a in ast.literal_eval(said.stdout)]
    assert asked == [HEAD, CLIENT]


def test_who_has_no_token_or_another_is_told_so(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{serve(token='secret')}"
    assert "wants its token, and there is none in ~/.ray/auth_token; put" in refused(address)
    have_token(tmp_path, "other")
    assert "wants its token, not the one in ~/.ray/auth_token; put" in refused(address)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/none")
    assert "there is none in /none" in refused(address), "Ray would abort the process"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert knock(address) == address


@pytest.mark.parametrize("token", ["hush\nhush", "hush hush", "hüsh", "hush\0hush", "hush\x7f"])
def test_what_cannot_be_sent_as_a_token_is_refused_by_its_file_and_not_quoted(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    have_token(tmp_path, token)
    address = f"127.0.0.1:{serve(token='secret')}"
    said = refused(address)
    assert "one word of printable ASCII, and what is in ~/.ray/auth_token is not; put" in said
    assert "sh" not in said.replace("~/.ray", "")
    (tmp_path / "bytes").write_bytes(b"hush\xff")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "bytes"))
    assert f"what is in {tmp_path / 'bytes'} is not" in refused(address)


@pytest.mark.parametrize(("mode", "token"), [("token", None), ("disabled", "secret")])
def test_both_sides_use_a_token_or_none_does(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, token: str | None
) -> None:
    have_token(tmp_path, "secret")
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert f"RAY_AUTH_MODE={mode} is set here" in refused(f"127.0.0.1:{serve(token=token)}")


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "address",
    ["", "local", "nonsense", "http://127.0.0.1:8265", "ray://", ":6379", "h:0", "h:65536", "h:x"],
)
def test_what_is_no_address_is_bad_usage(address: str) -> None:
    with pytest.raises(ValueError, match=r"must be auto, HOST:PORT .* or ray://HOST:PORT, got"):
        knock(address)


def test_addresses_that_ray_takes_are_taken() -> None:
    for text in ("10.0.0.1:6379", "head:1", "[::1]:65535", "ray://h:7"):
        assert str(Door.of(text)) == text
    assert Door.of("ray://h") == Door("h", 10001, client=True)


def test_a_private_ray_is_not_started_for_an_empty_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ValueError, match="got ''"), connected("", dashboard=False):
        pass


def test_nobody_there_is_said_at_once() -> None:
    assert "Connection refused" in refused(f"127.0.0.1:{free_port()}")
    assert "Connection refused" in refused(f"ray://127.0.0.1:{free_port()}")
    assert "nothing answers at host.invalid:1" in refused("host.invalid:1")


def test_whoever_speaks_something_else_is_no_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            for _ in range(2):  # a connection to see whether it listens, then the question
                line, _ = server.accept()
                with line:
                    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        pool.submit(answer)
        assert "is no head of a Ray" in refused(f"127.0.0.1:{server.getsockname()[1]}")


def test_the_loopback_is_where_ray_goes_instead(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_own_address", lambda: "127.0.0.3")
    port = serve()  # on 127.0.0.1 alone, as an ssh tunnel is
    assert f"127.0.0.1:{port} (to Ray that is 127.0.0.3:{port})" in refused(f"127.0.0.1:{port}")


# ---------------------------------------------------------------- auto


def note(folder: Path, address: str) -> None:
    """As `ray start` does."""
    (folder / "ray").mkdir(exist_ok=True)
    (folder / "ray" / "ray_current_cluster").write_text(address)


def run_raylet(folder: Path, address: str, session: str = "/tmp/ray") -> None:
    process = folder / "proc" / str(len(list(folder.glob("proc/*"))))
    process.mkdir(parents=True)
    words = ("/x/raylet", f"--gcs-address={address}", f"--temp-dir={session}/session_1", "")
    (process / "cmdline").write_text("\0".join(words))


def test_auto_without_a_cluster_says_so() -> None:
    assert "there is no Ray cluster on this machine" in refused("auto")


def test_auto_is_what_was_started_last_or_else_what_runs(serve: Serve, tmp_path: Path) -> None:
    running, noted = f"127.0.0.1:{serve()}", f"127.0.0.1:{serve()}"
    run_raylet(tmp_path, running)
    assert knock("auto") == running
    note(tmp_path, noted)
    assert knock("auto") == noted
    note(tmp_path, f"127.0.0.1:{free_port()}")
    assert knock("auto") == running, "the one that was noted was killed"


def test_auto_leaves_the_private_rays_of_sweeps_alone(serve: Serve, tmp_path: Path) -> None:
    run_raylet(tmp_path, f"127.0.0.1:{serve()}", session=f"/tmp/{PREFIX}123-abc/ray")
    assert "there is no Ray cluster on this machine" in refused("auto")


def test_auto_is_what_the_environment_says(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(tmp_path, f"127.0.0.1:{serve()}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{(port := serve())}")
    assert knock("auto") == f"127.0.0.1:{port}"
