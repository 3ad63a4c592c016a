"""Sweeps as Ray jobs: submissions, messages, and (slow) a real head node with a token."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.job_submission import JobStatus

from ascl_sweep import __version__
from ascl_sweep.cli import submit as command_line
from ascl_sweep.errors import ClusterError
from ascl_sweep.executors.ray import forward, jobs, submission
from ascl_sweep.executors.ray.address import find_free_port
from ascl_sweep.executors.ray.forward import Unreachable, forward_dashboard
from ascl_sweep.executors.ray.jobs import Jobs
from ascl_sweep.executors.ray.submission import (
    ClusterFile,
    Submission,
    build_submission,
    check_store,
    entrypoint,
)
from ascl_sweep.spec.sweep import SweepSpec, parse_sweep
from ascl_sweep.store.store import Store
from tests.ascl_sweep.conftest import Ask
from tests.sweeps import GRID, command, descendants, environment, kill, states, title, wait_until

CIFAR = "name: cifar\nbase: {data: {name: cifar10}}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sweep files, and no Ray in the environment."""
    for key in ("RAY_AUTH_MODE", "RAY_API_SERVER_ADDRESS"):  # restored after the test
        monkeypatch.setenv(key, "")
        monkeypatch.delenv(key)
    (tmp_path / "sweep.yaml").write_text(GRID)
    (tmp_path / "cifar.yaml").write_text(CIFAR)


def spec(text: str = GRID, *overrides: str) -> SweepSpec:
    return parse_sweep(text, file="sweep.yaml", overrides=overrides)


# ---------------------------------------------------------------- what is submitted


def test_nothing_is_uploaded_but_the_sweep_files() -> None:
    other = GRID.replace("name: grid", "name: other")
    made = build_submission([spec(), spec(other)], "s3://b/r", [])
    assert made.files == {"grid.yaml": GRID, "other.yaml": other}
    assert "run grid.yaml other.yaml" in made.entrypoint


def test_the_same_submission_is_the_same_job_and_another_is_another() -> None:
    one = build_submission([spec()], "s3://b/r", [])
    assert one.name.startswith("grid-")
    assert one == build_submission([spec()], "s3://b/r", [])
    assert one.name == build_submission([spec()], "s3://b/r", ["--concurrency", "3"]).name
    others = [
        build_submission([spec(GRID.replace("[0, 1]", "[0, 2]"))], "s3://b/r", []),
        build_submission([spec(GRID, "epochs=6")], "s3://b/r", []),
        build_submission([spec()], "s3://b/other", []),
    ]
    assert len({one.name, *(other.name for other in others)}) == 4


def in_shell(text: str, folder: Path, version: str | None) -> subprocess.CompletedProcess[bytes]:
    """What a shell on a head of that version makes of an entrypoint."""
    folder.mkdir(exist_ok=True)
    if version is not None:
        stub = folder / "ascl-sweep"
        stub.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "ascl-sweep {version}" && exit\n'
            'for word in "$@"; do printf "%s\\0" "$word"; done\nexit 3\n'
        )
        stub.chmod(0o755)
    return subprocess.run(["/bin/sh", "-c", text], env={"PATH": str(folder)}, capture_output=True)


@given(words=st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0")), max_size=4))
def test_every_word_arrives_through_the_heads_shell_unharmed(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        said = in_shell(entrypoint(["run", *words]), Path(folder), __version__)
    assert said.stdout.decode().split("\0")[:-1] == ["run", *words]
    assert said.returncode == 3, "the driver's code is the job's"


@pytest.mark.parametrize("version", ["0.0.1", None])
def test_a_head_with_a_missing_or_other_version_fails(version: str | None, tmp_path: Path) -> None:
    said = in_shell(entrypoint(["run"]), tmp_path / "bin", version)
    assert said.returncode == 4
    found = f"ascl-sweep {version}" if version else ""
    assert (
        f"got ascl-sweep {__version__} and '{found}'; install ascl-sweep {__version__}"
        in said.stdout.decode()
    )


def test_a_stores_folder_must_mean_the_same_on_the_head() -> None:
    for store in ("s3://b/r", "gs://b/r", "/shared/results", "file:///shared/results"):
        assert check_store(store) == store
    for store in ("hdfs://name:8020/a@b", "hdfs://name:8020", "abfs://container@account/r"):
        assert check_store(store) == store, "a port or a user is no password"
    for store in (None, "", "results", "./results", "~/results"):
        with pytest.raises(ValueError, match="give --store s3://bucket/results"):
            check_store(store)


@pytest.mark.parametrize("secret", ["hush", "hu/sh", "123"])
def test_a_password_in_the_stores_address_goes_nowhere(
    ask: Ask, head: Callable[..., "Fake"], secret: str
) -> None:
    fake = head()
    said = ask("submit", "sweep.yaml", *HERE[:2], "--store", f"s3://KEY:{secret}@bucket/r")
    assert said.exit_code == 2 and "must not contain a password" in said.stderr
    assert secret not in said.output and not fake.jobs


def test_store_and_data_of_the_cluster_file_and_all_options_reach_the_driver(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(cluster: Path) -> Any:
        raise ClusterError("no cluster here")

    def note(*words: Any) -> Submission:
        asked.append(build_submission(*words))
        return asked[-1]

    monkeypatch.setattr(forward, "forward_dashboard", refuse)
    monkeypatch.setattr(submission, "build_submission", note)
    file = tmp_path / "cluster.yaml"
    file.write_text("provider: {type: aws, results: s3://b/r, data: /data}\n")
    more = ("--concurrency", 3, "--until-decided")
    said = ask("submit", "cifar.yaml", "sweep.yaml", "--cluster", file, *more)
    assert said.exit_code == 4 and said.stderr.endswith("error: no cluster here\n")
    words = shlex.split(asked[0].entrypoint.partition("; exec ")[2])
    assert words == shlex.split(
        "ascl-sweep run cifar.yaml grid.yaml --set data.root=/data --until-decided --concurrency 3 "
        "--store s3://b/r --address auto --yes"
    )
    assert ClusterFile.read(file) == ClusterFile(file, "s3://b/r", "/data")


def test_conflicting_data_paths_of_sweep_and_cluster_file_are_refused(
    ask: Ask, tmp_path: Path, head: Callable[..., "Fake"], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head()
    monkeypatch.setattr(
        forward, "forward_dashboard", lambda cluster: nullcontext("http://127.0.0.1:1")
    )
    (tmp_path / "c.yaml").write_text("provider: {type: aws, results: s3://b/r, data: /data}\n")
    far = "name: far\nbase: {data: {name: stl10, root: ROOT}}\n"
    words = ("submit", "cifar.yaml", "far.yaml", "--cluster", "c.yaml", "--detach")
    (tmp_path / "far.yaml").write_text(far.replace("ROOT", "/big"))
    said = ask(*words)
    assert said.exit_code == 2 and not fake.jobs
    assert "got /big for stl10 and /data (provider.data) for cifar10; submit them" in said.stderr
    assert ask(*words, "--set", "data.root=/data").exit_code == 0, "the suggested fix"
    (tmp_path / "far.yaml").write_text(far.replace("ROOT", "/data"))
    assert ask(*words).exit_code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sweep.yaml"], "give --cluster FILE.yaml or --address URL"),
        (["sweep.yaml", "--cluster", "c.yaml", "--address", "http://x"], "give --cluster"),
        (["sweep.yaml", "--address", "auto"], "must be a dashboard URL"),
        (["sweep.yaml", "--cluster", "c.yaml"], "a submitted sweep needs a store; give --store"),
        (
            ["sweep.yaml", "--cluster", "c.yaml", "--store", "r"],
            "which would be a folder on the head node",
        ),
        (["sweep.yaml", "--cluster", "sweep.yaml"], "is not a cluster file: it has no provider"),
        (["sweep.yaml", "--cluster", "none.yaml"], "none.yaml: cannot be read"),
        (["cifar.yaml", "--cluster", "c.yaml"], "data.root must be an absolute path"),
        (["none.yaml", "bad.yaml", "--cluster", "c.yaml"], "none.yaml: no such file"),
        (["none.yaml", "bad.yaml", "--cluster", "c.yaml"], "bad.yaml:2: sead: no such field"),
    ],
)
def test_input_errors_are_reported_before_any_request_is_sent(
    ask: Ask, tmp_path: Path, words: list[str], sentence: str
) -> None:
    (tmp_path / "c.yaml").write_text("provider: {type: aws}\n")
    (tmp_path / "bad.yaml").write_text("name: bad\nsead: 3\n")
    said = ask("submit", *words)
    assert said.exit_code == 2, said.stderr
    assert sentence in said.stderr and said.stdout == ""
    assert "connecting" not in said.stderr


# ---------------------------------------------------------------- messages, with a fake Ray


class Fake:
    """A head whose job logs lines over an unreliable connection and exits with a code."""

    LOG = (
        "2026 INFO job_manager.py:1 -- Runtime env is setting up.\n",
        "Running entrypoint for job x: y\none\n",
        "two [red]\n",
        "three\n",
    )

    def __init__(self, breaks: int = 0, code: int | None = 0, status: str = "SUCCEEDED") -> None:
        self.jobs: dict[str, str] = {}
        self.uploaded: list[list[str]] = []
        self.breaks, self.code, self.end = breaks, code, status
        self.message = "no such runtime\nTraceback"

    def list_jobs(self) -> list[Any]:
        return [self.get_job_info(job) for job in self.jobs]

    def submit_job(self, **job: Any) -> None:
        if job["submission_id"] in self.jobs:
            raise RuntimeError("Traceback\nValueError: Job already exists. Please use another.\n.")
        self.jobs[job["submission_id"]] = "RUNNING"
        self.uploaded.append(sorted(os.listdir(job["runtime_env"]["working_dir"])))

    def get_job_info(self, job: str) -> Any:
        status = self.jobs[job]
        code = self.code if status == self.end else None
        return SimpleNamespace(
            submission_id=job,
            status=JobStatus(status),
            driver_exit_code=code,
            message=self.message,
        )

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for number, piece in enumerate(self.LOG):
            if self.breaks and number == 3:
                self.breaks -= 1
                raise RuntimeError("WebSocket connection closed unexpectedly")
            yield piece
        self.jobs[job] = self.end


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    def put(**how: Any) -> Fake:
        fake = Fake(**how)
        monkeypatch.setattr(jobs, "_connect", lambda address: fake)
        monkeypatch.setattr(command_line, "PAUSE_SECONDS", 0)
        return fake

    return put


HERE = ("--address", "http://127.0.0.1:1", "--store", "/shared/r")


@pytest.mark.parametrize(
    ("address", "exposed"),
    [
        ("http://192.0.2.1:8265", True),
        ("http://head.example:8265", True),
        ("http://127.0.0.1.example:8265", True),
        ("http://127.0.0.1:8265", False),
        ("http://localhost:8265", False),
        ("http://[::1]:8265", False),
        ("https://head.example", False),
    ],
)
def test_a_token_in_clear_text_is_warned_of(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch,
    address: str, exposed: bool,
) -> None:  # fmt: skip
    head()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "hush")
    words = ("submit", "sweep.yaml", "--address", address, "--store", "/nfs/r")
    said = ask(*words)
    assert said.exit_code == 0, said.stderr
    warning = f"the token is sent unencrypted to {address}; use --cluster, or forward"
    assert (warning in said.stderr) == exposed and "hush" not in said.output
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert warning not in ask(*words).stderr, "no token is sent"


@pytest.mark.parametrize("breaks", [0, 2])
def test_the_drivers_lines_are_shown_once_and_rays_are_not_however_often_the_line_breaks(
    ask: Ask, head: Callable[..., Fake], breaks: int
) -> None:
    fake = head(breaks=breaks)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 0 and said.stdout == ""
    lines = said.stderr.splitlines()
    told = ["one", "two [red]", "three"]
    assert [line for line in lines if line in told] == told
    assert "entrypoint" not in said.stderr and "Runtime env" not in said.stderr
    assert "ascl-sweep report grid --store /shared/r" in said.stderr
    assert sum("the sweep keeps running; reconnecting" in line for line in lines) == breaks
    assert fake.uploaded == [["grid.yaml"]], "nothing but the sweep files"


def test_a_connection_that_stays_broken_ends_submit_with_the_command_to_repeat(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head(breaks=100)

    def down(address: str) -> Any:
        raise ConnectionError("no route to host")

    def first_time(address: str) -> Any:
        monkeypatch.setattr(jobs, "_connect", down)
        return fake

    monkeypatch.setattr(jobs, "_connect", first_time)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 4
    assert "does not answer (no route to host)" in said.stderr
    assert "; the sweep keeps running; watch it with\n  ascl-sweep status --watch" in said.stderr
    assert f"ascl-sweep submit sweep.yaml {' '.join(HERE)}" in said.stderr


def test_a_pending_job_is_joined_until_it_is_stopped_and_a_finished_one_gets_a_new_number(
    ask: Ask, head: Callable[..., Fake]
) -> None:
    fake = head()
    name = build_submission([spec()], "/shared/r", []).name
    for number, id_ in enumerate((name, f"{name}-2", f"{name}-3")):
        said = ask("submit", "sweep.yaml", *HERE)
        assert said.exit_code == 0 and len(fake.jobs) == number + 1
        assert id_ in fake.jobs and f"job {id_} is submitted" in said.stderr
    fake.jobs[f"{name}-2"] = "PENDING"
    fake.end, fake.code = "STOPPED", None  # by `ray job stop`, before its driver started
    said = ask("submit", "sweep.yaml", *HERE)
    assert f"{name}-2 is already running" in said.stderr and len(fake.jobs) == 3
    assert len(fake.uploaded) == 3
    assert said.exit_code == 130 and f"job {name}-2 was stopped on the cluster" in said.stderr


def test_the_later_of_two_concurrent_submits_joins_the_first(
    head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    ours, made = Jobs("http://127.0.0.1:1"), build_submission([spec()], "/shared/r", [])
    look = fake.list_jobs
    views = iter([[], None])  # it is not there yet when we look, and there when we submit
    monkeypatch.setattr(fake, "list_jobs", lambda: look() if next(views) is None else [])
    fake.jobs[made.name] = "RUNNING"
    assert ours.start(made) == (made.name, True)


@pytest.mark.parametrize(
    ("job", "code", "sentence"),
    [
        *((code, code, "") for code in (1, 2, 3, 4, 70, 130)),
        (None, 4, "failed: no such runtime; fix the cause, then "),
        (-9, 4, "the driver exited with code -9; fix the cause, then "),
    ],
)
def test_submit_returns_the_drivers_exit_code_and_reports_a_job_without_one(
    ask: Ask, head: Callable[..., Fake], job: int | None, code: int, sentence: str
) -> None:
    head(code=job, status="FAILED")
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == code and "Traceback" not in said.stderr
    assert (
        f"{sentence}resume from this machine with:\n  ascl-sweep submit sweep.yaml" in said.stderr
    )


def test_detaching_prints_how_to_attach_again(ask: Ask, head: Callable[..., Fake]) -> None:
    fake = head()
    said = ask("submit", "sweep.yaml", *HERE, "--detach")
    assert said.exit_code == 0 and list(fake.jobs.values()) == ["RUNNING"]
    for way in ("status --watch", "stop", "submit sweep.yaml --address http://127.0.0.1:1"):
        assert f"ascl-sweep {way} --store /shared/r" in said.stderr
    (job,) = fake.jobs
    assert f"`ray job stop {job}` on the head" in said.stderr
    assert "one" not in said.stderr.splitlines()


def test_ctrl_c_leaves_the_job_alone(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head()

    def follow(self: Jobs, job: str, after: int = 0) -> Iterator[str]:
        yield "one\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(Jobs, "follow", follow)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 130 and list(fake.jobs.values()) == ["RUNNING"]
    assert "disconnected; the sweep keeps running; watch it with" in said.stderr


def leave(**job: Any) -> None:
    """End the command by SIGTERM during a request."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


def interrupt(**job: Any) -> None:
    raise KeyboardInterrupt


def refuse(**job: Any) -> None:
    raise RuntimeError("disk full")


JOINS = "disconnected; the job may have been submitted; to attach to it, run\n  ascl-sweep submit"


@pytest.mark.parametrize(
    ("call", "act", "code", "sentence"),
    [
        ("list_jobs", leave, 130, JOINS),
        ("submit_job", leave, 130, JOINS),
        ("submit_job", interrupt, 130, JOINS),
        ("submit_job", refuse, 4, "rejected the request: disk full;"),
    ],
)
def test_a_job_that_may_not_have_started_is_not_reported_as_running(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch,
    call: str, act: Callable[..., None], code: int, sentence: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(head(), call, act)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == code
    assert sentence in said.stderr and "watch it with" not in said.stderr


def test_a_token_that_cannot_be_sent_is_refused_before_connecting_and_not_quoted(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hush\nhush\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setattr(jobs, "_connect", lambda address: pytest.fail("connected"))
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 4 and f"the content of {tmp_path / 'token'} is not; put" in said.stderr
    assert "hush" not in said.stderr


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, ConnectionError])
def test_no_reason_quotes_the_token(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def refuse() -> None:
        raise kind("Invalid header value: 'Bearer hush'\nsent 'Bearer hush'\n.")

    monkeypatch.setattr(head(), "list_jobs", refuse)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 4 and "hush" not in said.stderr


# ---------------------------------------------------------------- the way to the head


LISTEN = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
LINE = [sys.executable, "-c", LISTEN + "time.sleep(100)"]
FORWARD = f"import subprocess, sys; subprocess.run([*{LINE!r}, sys.argv[1]])"
"""As `ray dashboard` does: a child, as ssh is, that listens."""


def test_a_forward_lasts_as_long_as_it_is_used_and_its_children_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        forward, "forward_command", lambda cluster, port: [sys.executable, "-c", FORWARD, str(port)]
    )
    before = set(descendants(os.getpid()))
    with forward_dashboard(tmp_path / "cluster.yaml") as address:
        assert address.startswith("http://127.0.0.1:")
        ours = set(descendants(os.getpid())) - before
        assert len(ours) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in ours), seconds=10)


ATTENDED = """
import sys, time
from ascl_sweep.executors.ray import forward, jobs
from ascl_sweep.cli import app
forward.forward_command = lambda cluster, port: [sys.executable, "-c", FORWARD, str(port)]
jobs._connect = lambda address: print("there", flush=True) or time.sleep(100)
app(["submit", "sweep.yaml", "--cluster", "c.yaml", "--store", "/shared/r"])
"""


@pytest.mark.parametrize("nohup", [False, True])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow
def test_a_closed_terminal_or_a_polite_kill_leaves_no_forward_behind(
    ask: Ask, tmp_path: Path, how: signal.Signals, nohup: bool
) -> None:
    (tmp_path / "c.yaml").write_text("provider: {type: aws}\n")
    hang_up = signal.SIG_IGN if nohup else signal.SIG_DFL
    with subprocess.Popen(
        [sys.executable, "-c", f"FORWARD = {FORWARD!r}\n{ATTENDED}"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hang_up),
    ) as laptop:
        assert laptop.stdout and laptop.stdout.readline() == "there\n"
        line = descendants(laptop.pid)
        assert len(line) == 2
        laptop.send_signal(how)
        if nohup and how == signal.SIGHUP:
            with pytest.raises(subprocess.TimeoutExpired):
                laptop.wait(timeout=1)
            laptop.send_signal(signal.SIGTERM)
        _, talk = laptop.communicate(timeout=30)
    assert laptop.returncode == 130 and "Traceback" not in talk, talk
    wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in line), seconds=10)


@pytest.mark.parametrize("said", ["u@h: Permission denied\nError: Failed to forward …", ""])
def test_a_head_that_is_not_reached_is_reported_with_what_ray_printed(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    stub = [sys.executable, "-c", f"import sys; print({said!r}); sys.exit(1)"]
    monkeypatch.setattr(forward, "forward_command", lambda cluster, port: stub)
    with (
        pytest.raises(
            Unreachable, match=r"is unreachable; check that it is running \(`ray up c"
        ) as caught,
        forward_dashboard(Path("cluster.yaml")),
    ):
        pass
    assert str(caught.value).endswith(f"`ray dashboard` printed:\n{said or 'nothing'}")


SSH = """#!{python}
import socket, sys, threading
with open({log!r}, "a") as log:
    print(*sys.argv[1:], file=log)
port = int(sys.argv[sys.argv.index("-L") + 1].split(":")[0])
def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
with socket.create_server(("127.0.0.1", port)) as server:
    while True:
        here = server.accept()[0]
        there = socket.create_connection(("127.0.0.1", {dashboard}))
        for pair in ((here, there), (there, here)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
"""


# ---------------------------------------------------------------- a real head


class Head:
    """A Ray head as `ray up` starts it: with a token, and a dashboard on loopback only."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ascl-head-", dir="/tmp"))  # sockets: short
        self.token = self.folder / "token"
        self.token.write_text("0123456789abcdef" * 4)
        self.port, self.dashboard = find_free_port(), find_free_port()
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self.env = environment() | {
            "HOME": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        ports = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port")
        ports += ("ray-client-server-port", "runtime-env-agent-port", "metrics-export-port")
        words = [
            *("ray", "start", "--head", "--block", "--num-cpus=2", f"--port={self.port}"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard}"),
            *(f"--{name}={find_free_port()}" for name in ports),
            f"--temp-dir={self.folder / 'ray'}",
        ]
        self.log = self.folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                words, env=self.env, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        wait_until(lambda: "block forever" in self.log.read_text(), self.log, seconds=200)

    def ask(self, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as from a laptop that has the token."""
        return subprocess.run(
            command(*words), capture_output=True, text=True, timeout=550, env=self.env | env
        )

    def start(self, *words: object, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                command(*words), stdout=out, stderr=out, env=self.env, start_new_session=True
            )

    def end(self) -> None:
        for pid in (self.process.pid, *descendants(self.process.pid)):
            kill(pid)
        self.process.wait()
        # Its watchers and workers exit by themselves once the head is gone.
        wait_until(lambda: not self.left(), seconds=60)
        shutil.rmtree(self.folder)

    def left(self) -> list[str]:
        pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        return [text for pid in pids if str(self.folder) in (text := title(pid))]


@pytest.fixture(scope="module")
def ray_head() -> Iterator[Head]:
    head = Head()
    try:
        yield head
    finally:
        head.end()


def longer(folder: Path, epochs: int) -> Path:
    """Write a sweep that takes a while."""
    file = folder / "long.yaml"
    file.write_text(GRID.replace("name: grid", "name: long").replace("s: 5", f"s: {epochs}"))
    return file


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_submitted_sweep_runs_on_the_head_and_is_shown_here(
    ray_head: Head, tmp_path: Path
) -> None:
    file, store = tmp_path / "my sweep.yaml", tmp_path / "store"
    file.write_text(GRID)
    (tmp_path / "secret").write_text("not to be uploaded")
    said = ray_head.ask("submit", file, "--address", ray_head.address, "--store", store)
    assert said.returncode == 0, said.stderr
    assert said.stdout == "" and "Traceback" not in said.stderr
    assert states(store) == ["done"] * 4
    told = re.findall(r"^[\d:]+ (start|done) ", said.stderr, re.MULTILINE)
    assert sorted(told) == ["done"] * 4 + ["start"] * 4, said.stderr
    folders = ray_head.folder.glob("ray/session_2*/runtime_resources/working_dir_files/_ray_pkg_*")
    packages = [sorted(f.name for f in p.rglob("*")) for p in folders if p.is_dir()]
    assert ["grid.yaml"] in packages
    assert all(p in (["grid.yaml"], ["long.yaml"]) for p in packages), "of other tests"
    again = ray_head.ask("submit", file, "--address", ray_head.address, "--store", store)
    assert again.returncode == 0 and "all 4 runs are finished" in again.stderr
    report = ray_head.ask("report", "--store", store, "--format", "csv")
    assert report.returncode == 0 and report.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_submit_joins_the_first_and_stop_ends_it_for_both(
    ray_head: Head, tmp_path: Path
) -> None:
    store, file = tmp_path / "store", longer(tmp_path, 400)
    words = ("submit", file, "--address", ray_head.address, "--store", store)
    first = ray_head.ask(*words, "--detach")
    assert first.returncode == 0 and "job long-" in first.stderr, first.stderr
    log = tmp_path / "log"
    second = ray_head.start(*words, log=log)
    wait_until(lambda: "start " in log.read_text(), log)
    assert "is already running" in log.read_text()
    stop = ray_head.ask("stop", "--store", store)
    assert stop.returncode == 0, stop.stderr
    assert second.wait(timeout=200) == 130
    assert "ended by `ascl-sweep stop`" in log.read_text()
    assert f"resume from this machine with:\n  ascl-sweep submit {file}" in log.read_text()
    assert "done" not in states(store) and Store(store).driver() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "port", "sentence"),
    [
        ({"RAY_AUTH_TOKEN": "f" * 64}, None, "requires a valid token (Authentication failed"),
        ({"RAY_AUTH_TOKEN_PATH": "/none"}, None, "a valid token (RAY_AUTH_TOKEN_PATH is set but"),
        ({"RAY_AUTH_MODE": "disabled"}, None, "requires a valid token (Authentication required"),
        ({}, "free", "does not answer"),
    ],
)
def test_a_rejected_token_is_reported_in_one_line(
    ray_head: Head, tmp_path: Path, env: dict[str, str], port: str | None, sentence: str
) -> None:
    (tmp_path / "sweep.yaml").write_text(GRID)
    address = f"http://127.0.0.1:{find_free_port()}" if port else ray_head.address
    words = ("submit", tmp_path / "sweep.yaml", "--address", address, "--store", tmp_path / "s")
    said = ray_head.ask(*words, **env)
    assert said.returncode == 4 and said.stdout == ""
    assert sentence in said.stderr and len(said.stderr.splitlines()) == 2, said.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_file_leads_to_the_head_through_rays_own_forward(
    ray_head: Head, tmp_path: Path
) -> None:
    """Ray's `ray dashboard` on a provider without a cloud, with an ssh that only forwards."""
    (tmp_path / "sweep.yaml").write_text(GRID)
    ssh, ssh_log = tmp_path / "bin" / "ssh", tmp_path / "ssh.log"
    ssh.parent.mkdir()
    ssh.write_text(
        SSH.format(python=sys.executable, log=str(ssh_log), dashboard=ray_head.dashboard)
    )
    ssh.chmod(0o755)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        f"cluster_name: here\nauth: {{ssh_user: someone}}\nprovider: {{type: local, "
        f"head_ip: 127.0.0.1, worker_ips: [], results: {tmp_path / 'store'}}}\n"
    )
    env = {"PATH": f"{ssh.parent}:{ray_head.env['PATH']}", "TMPDIR": str(tmp_path)}
    env["RAY_TMPDIR"] = str(tmp_path / "ray")
    words = ("submit", tmp_path / "sweep.yaml", "--cluster", cluster)
    down = ray_head.ask(*words, **env)
    assert down.returncode == 4 and "Head node of cluster (here) not found" in down.stderr
    (state,) = tmp_path.rglob("cluster-here.state")
    up_to_date = {"ray-node-type": "head", "ray-node-status": "up-to-date"}  # so says `ray up`
    state.write_text(json.dumps({"127.0.0.1": {"tags": up_to_date, "state": "running"}}))
    up = ray_head.ask(*words, "--detach", **env)
    assert up.returncode == 0, up.stderr
    assert ":localhost:8265" in ssh_log.read_text()
    wait_until(lambda: states(tmp_path / "store") == ["done"] * 4)
    assert not [
        text
        for entry in Path("/proc").glob("[0-9]*")
        if str(tmp_path / "bin") in (text := title(int(entry.name)))
    ], "the forward ended with the command"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_doctor_finds_nothing_to_fix_on_a_head_with_a_token(ray_head: Head, tmp_path: Path) -> None:
    words = ("doctor", tmp_path / "sweep.yaml", "--address", f"127.0.0.1:{ray_head.port}")
    said = ray_head.ask(*words, "--store", tmp_path / "store")
    assert said.returncode == 0, said.stdout + said.stderr
    for part in (" dashboard: responds", " token: required", "ok  capacity for grid: up to 2"):
        assert part in said.stdout
    assert "fix" not in said.stdout and not (tmp_path / "store").exists()
