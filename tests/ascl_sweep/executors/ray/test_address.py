"""Resolution of Ray addresses, and the errors for unusable addresses."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ascl_sweep.errors import ClusterError, UsageError
from ascl_sweep.executors.ray import address as module
from ascl_sweep.executors.ray import compat
from ascl_sweep.executors.ray.address import (
    explain_failure,
    find_cluster,
    find_free_port,
    parse_address,
)
from ascl_sweep.executors.ray.cluster import PREFIX, connect_ray

Serve = Callable[..., str]


@pytest.fixture(autouse=True)
def clean_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # restores variables that `find_cluster` sets
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "proc").mkdir()
    monkeypatch.setattr(compat, "PROC", tmp_path / "proc")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Listen like a Ray head with or without a token; the connecting child process is faked."""
    tokens: dict[str, str | None] = {}
    servers = []

    def connects(address: str, mode: str) -> bool:
        token = tokens[address]
        return token is None or (mode == "token" and module.own_token()[0] == token)

    def serve(token: str | None = None) -> str:
        servers.append(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{servers[-1].getsockname()[1]}"
        tokens[address] = token
        return address

    monkeypatch.setattr(module, "_connects", connects)
    yield serve
    for server in servers:
        server.close()


def have_token(home: Path, token: str) -> None:
    (home / ".ray").mkdir(exist_ok=True)
    (home / ".ray" / "auth_token").write_text(f"{token}\n")


def refused(address: str) -> str:
    with pytest.raises(ClusterError) as caught:
        find_cluster(address, PREFIX)
    said = str(caught.value)
    assert "; " in said and "\n" not in said, "one sentence that says how to fix it"
    return said


# ---------------------------------------------------------------- tokens


def test_a_token_is_used_if_the_cluster_requires_it_and_only_then(
    serve: Serve, tmp_path: Path
) -> None:
    have_token(tmp_path, "secret")
    for required, mode in ((None, "disabled"), ("secret", "token")):
        os.environ["RAY_AUTH_MODE"] = ""
        address = serve(required)
        assert find_cluster(address, PREFIX) == address
        assert os.environ["RAY_AUTH_MODE"] == mode


def test_a_missing_and_a_wrong_token_are_told_apart(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve("secret")
    assert "needs a token, but there is none in ~/.ray/auth_token; put" in refused(address)
    have_token(tmp_path, "other")
    assert "rejected the token in ~/.ray/auth_token; put" in refused(address)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/none")
    assert "there is none in /none" in refused(address), "Ray would abort the process"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert find_cluster(address, PREFIX) == address


@pytest.mark.parametrize("token", ["hush\nhush", "hush hush", "hüsh", "hush\0hush", "hush\x7f"])
def test_a_token_that_cannot_be_sent_is_refused_by_its_file_and_not_quoted(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    have_token(tmp_path, token)
    address = serve("secret")
    said = refused(address)
    assert "one word of printable ASCII, but the content of ~/.ray/auth_token is not; put" in said
    assert "sh" not in said.replace("~/.ray", "")
    (tmp_path / "bytes").write_bytes(b"hush\xff")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "bytes"))
    assert f"the content of {tmp_path / 'bytes'} is not" in refused(address)


@pytest.mark.parametrize(("mode", "token"), [("token", None), ("disabled", "secret")])
def test_both_sides_use_a_token_or_none_does(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, token: str | None
) -> None:
    have_token(tmp_path, "secret")
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert f"but RAY_AUTH_MODE={mode} is set here" in refused(serve(token))


# ---------------------------------------------------------------- the child process


@pytest.mark.parametrize(
    ("prints", "connects"),
    [
        ("print('CONNECTED')", True),
        ("print('Unauthenticated: InvalidAuthToken: x', flush=True); time.sleep(60)", False),
    ],
)
def test_the_child_is_not_waited_for_once_the_answer_is_known(
    monkeypatch: pytest.MonkeyPatch, prints: str, connects: bool
) -> None:
    monkeypatch.setattr(module, "PROBE", f"import time; {prints}")
    assert module._connects("h:1", "token") is connects


def test_a_child_that_gets_no_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert f"at {address} does not answer like a Ray head within 0.5 s;" in refused(address)


def test_a_client_server_gets_longer_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head first starts a process for each client."""
    monkeypatch.setattr(module, "PROBE", "import time; time.sleep(1); print('CONNECTED')")
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.1)
    assert module._connects("ray://h:1", "token")


def test_an_error_of_ray_is_shown_by_its_first_line() -> None:
    said = explain_failure("ray://h:7", "Traceback\n  x\nConnectionError: no way\nin")
    assert "does not answer like a Ray head (no way); check the port (10001 by" in said


def test_a_cluster_of_other_versions_is_refused_with_both_in_one_sentence() -> None:
    there, here = "Ray: 2.1.0\n  Python: 3.9.2", "Ray: 2.60.0\n  Python: 3.11.7"
    said = explain_failure("h:1", f"RuntimeError: Version mismatch: a\n{there}\nb\n{here}\n")
    assert "got Ray 2.60.0 on Python 3.11.7 here and Ray 2.1.0 on Python 3.9.2 there; in" in said
    assert "\n" not in said


@pytest.mark.slow
def test_a_real_head_accepts_its_token_and_rejects_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_token(tmp_path, "a" * 64)
    port, client = find_free_port(), find_free_port()
    start = f"start --head --port {port} --ray-client-server-port {client} --num-cpus 1 "
    start += f"--include-dashboard false --block --temp-dir /tmp/r{port}"
    ray = Path(sys.executable).with_name("ray")
    env = os.environ | {"RAY_AUTH_MODE": "token"}
    with subprocess.Popen(
        [ray, *start.split()], env=env, stdout=subprocess.PIPE, text=True
    ) as head:
        try:
            for line in head.stdout or ():
                if "Ray runtime started" in line:
                    break
            monkeypatch.setattr(compat, "PROC", Path("/proc"))
            (own,) = (a for a in compat.find_own_clusters(PREFIX) if a.endswith(f":{port}"))
            for address in (own, f"ray://127.0.0.1:{client}"):
                os.environ["RAY_AUTH_MODE"] = ""
                assert find_cluster(address, PREFIX) == address
                assert os.environ["RAY_AUTH_MODE"] == "token"
            have_token(tmp_path, "b" * 64)
            for address in (own, f"ray://127.0.0.1:{client}"):
                assert "rejected the token in ~/.ray/auth_token" in refused(address)
        finally:
            head.terminate()
            head.wait(30)
            shutil.rmtree(f"/tmp/r{port}", ignore_errors=True)


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "address",
    ["", "local", "nonsense", "http://127.0.0.1:8265", "ray://", ":6379", "h:0", "h:65536", "h:x"],
)
def test_what_is_no_address_is_bad_usage(address: str) -> None:
    with pytest.raises(UsageError, match=r"must be auto, HOST:PORT .* or ray://HOST:PORT, got"):
        find_cluster(address, PREFIX)


def test_addresses_that_ray_takes_are_taken() -> None:
    for text in ("10.0.0.1:6379", "head:1", "[::1]:65535", "ray://h:7"):
        assert parse_address(text)[0] == text
    assert parse_address("ray://h") == ("ray://h:10001", "h", 10001)
    assert parse_address("[::1]:6379")[1:] == ("::1", 6379)


def test_a_private_ray_is_not_started_for_an_empty_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(UsageError, match="got ''"), connect_ray("", dashboard=False):
        pass


def test_an_address_that_nobody_listens_on_is_refused_at_once() -> None:
    assert "Connection refused" in refused(f"127.0.0.1:{find_free_port()}")
    assert "Connection refused" in refused(f"ray://127.0.0.1:{find_free_port()}")
    assert "nothing answers at host.invalid:1" in refused("host.invalid:1")


# ---------------------------------------------------------------- auto


def note(folder: Path, address: str) -> None:
    """Write the file that `ray start` writes."""
    (folder / "ray").mkdir(exist_ok=True)
    (folder / "ray" / "ray_current_cluster").write_text(address)


def run_raylet(folder: Path, address: str, session: str = "/tmp/ray") -> Path:
    process = folder / "proc" / str(len(list(folder.glob("proc/*"))))
    process.mkdir(parents=True)
    words = ("/x/raylet", f"--gcs-address={address}", f"--temp-dir={session}/session_1", "")
    (process / "cmdline").write_text("\0".join(words))
    users = "\t".join(["Uid:", *4 * [str(os.getuid())]])
    (process / "status").write_text(f"Name:\traylet\n{users}\n")
    return process / "cmdline"


def test_auto_without_a_cluster_says_so() -> None:
    assert "--address auto found no Ray cluster of yours on this machine" in refused("auto")


def test_auto_is_the_running_cluster_that_was_started_last(serve: Serve, tmp_path: Path) -> None:
    first, second = serve(), serve()
    run_raylet(tmp_path, first)
    run_raylet(tmp_path, second)
    for latest in (first, second):
        note(tmp_path, latest)
        assert find_cluster("auto", PREFIX) == latest
    note(tmp_path, serve())
    assert find_cluster("auto", PREFIX) in (first, second), (
        "no process of this user belongs to the third cluster"
    )


def test_auto_tries_the_next_cluster_if_one_does_not_answer(serve: Serve, tmp_path: Path) -> None:
    killed, running = f"127.0.0.1:{find_free_port()}", serve()
    for address in (killed, running):
        run_raylet(tmp_path, address)
    note(tmp_path, killed)
    assert find_cluster("auto", PREFIX) == running


def test_auto_trusts_no_process_and_no_file_of_another_user(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of another user would receive our token."""
    address = serve("secret")
    have_token(tmp_path, "secret")
    run_raylet(tmp_path, address)
    note(tmp_path, address)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert "--address auto found no Ray cluster of yours" in refused("auto")
    monkeypatch.setattr(compat, "PROC", tmp_path / "none")  # as on systems without it
    assert "--address auto found no Ray cluster of yours" in refused("auto")


RAYLET = """
import ctypes, os, socket, sys
address, user, hidden = sys.argv[1].partition("=")[2], int(sys.argv[2]), sys.argv[3] == "hidden"
os.setgroups([])
os.setgid(user)
os.setuid(user)
# PR_SET_DUMPABLE: if it is 0, root owns the process's files in /proc.
ctypes.CDLL(None).prctl(4, int(not hidden), 0, 0, 0)
server = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    print("heard", peer.recv(4096), flush=True)
"""


@contextmanager
def raylet_of(user: int, address: str, kind: str = "plain") -> Iterator[subprocess.Popen[str]]:
    """Run a real process that is called raylet and listens at an address."""
    process = subprocess.Popen(
        ["raylet", "-c", RAYLET, f"--gcs-address={address}", str(user), kind],
        executable=sys.executable,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout and process.stdout.readline() == "listening\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes of other users")
@pytest.mark.parametrize("kind", ["plain", "hidden"])
def test_no_token_reaches_the_port_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(compat, "PROC", Path("/proc"))
    have_token(tmp_path, "secret")
    stranger, own = (f"127.0.0.1:{find_free_port()}" for _ in range(2))
    note(tmp_path, stranger)
    os.chown(tmp_path / "ray" / "ray_current_cluster", 65534, 65534)
    with raylet_of(65534, stranger, kind) as process:
        with suppress(ClusterError):  # a Ray of root may run here
            find_cluster("auto", PREFIX)
        assert stranger not in compat.find_own_clusters(PREFIX)
        with raylet_of(os.getuid(), own):
            assert own in compat.find_own_clusters(PREFIX), "our own process is found"
        process.kill()
        assert process.stdout and process.stdout.read() == "", "no process connected"


def test_auto_leaves_the_private_rays_of_sweeps_alone(serve: Serve, tmp_path: Path) -> None:
    run_raylet(tmp_path, serve(), session=f"/tmp/{PREFIX}123-abc/ray")
    assert "--address auto found no Ray cluster of yours on this machine" in refused("auto")


def test_auto_is_what_the_environment_says(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_raylet(tmp_path, serve())
    monkeypatch.setenv("RAY_ADDRESS", address := serve())
    assert find_cluster("auto", PREFIX) == address
