"""Sweeps as Ray jobs: what is submitted, what is said, and (slow) a real head with a token."""

import asyncio
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
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from ascl_sweep import __version__, jobs
from ascl_sweep.cli import app
from ascl_sweep.cli import submit as command_line
from ascl_sweep.jobs import (
    ClusterFile,
    Jobs,
    Submission,
    Unreachable,
    check_store,
    entrypoint,
    forwarded,
    free_port,
    submission_of,
)
from ascl_sweep.ledger import Ledger
from ascl_sweep.room import NoResources
from ascl_sweep.spec import SweepSpec, spec_of
from tests.sweeps import GRID, command, descendants, environment, kill, states, title, wait_until

Ask = Callable[..., Result]
CIFAR = "name: cifar\nbase: {data: {name: cifar10}}\n"


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in a folder that has a sweep file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for key in ("RAY_AUTH_MODE", "RAY_API_SERVER_ADDRESS"):  # what the command sets goes again
        monkeypatch.setenv(key, "")
        monkeypatch.delenv(key)
    (tmp_path / "sweep.yaml").write_text(GRID)
    (tmp_path / "cifar.yaml").write_text(CIFAR)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def spec(text: str = GRID, *overrides: str) -> SweepSpec:
    return spec_of(text, file="sweep.yaml", overrides=overrides)


# ---------------------------------------------------------------- what is submitted


def test_the_same_submission_is_the_same_job_and_another_is_another() -> None:
    one = submission_of([spec()], "s3://b/r", [])
    assert one.name.startswith("grid-")
    assert one == submission_of([spec()], "s3://b/r", [])
    assert one.name == submission_of([spec()], "s3://b/r", ["--concurrency", "3"]).name
    others = [
        submission_of([spec(GRID.replace("[0, 1]", "[0, 2]"))], "s3://b/r", []),
        submission_of([spec(GRID, "epochs=6")], "s3://b/r", []),
        submission_of([spec()], "s3://b/other", []),
    ]
    assert len({one.name, *(other.name for other in others)}) == 4


def test_nothing_is_uploaded_but_the_sweep_files() -> None:
    other = GRID.replace("name: grid", "name: other")
    made = submission_of([spec(), spec(other)], "s3://b/r", [])
    assert made.files == {"grid.yaml": GRID, "other.yaml": other}
    assert "run grid.yaml other.yaml" in made.entrypoint


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
def test_a_head_with_another_version_or_none_says_so(version: str | None, tmp_path: Path) -> None:
    said = in_shell(entrypoint(["run"]), tmp_path / "bin", version)
    assert said.returncode == 4
    found = f"ascl-sweep {version}" if version else ""
    assert (
        f"got ascl-sweep {__version__} here and '{found}' there; install ours"
        in said.stdout.decode()
    )


def test_a_stores_folder_must_mean_the_same_on_the_head() -> None:
    for store in ("s3://b/r", "gs://b/r", "/shared/results", "file:///shared/results"):
        assert check_store(store) == store
    for store in (None, "", "results", "./results", "~/results"):
        with pytest.raises(ValueError, match="give --store s3://bucket/results"):
            check_store(store)


@pytest.mark.parametrize("secret", ["hush", "hu/sh", "123"])
def test_a_password_in_the_stores_address_goes_nowhere(
    ask: Ask, head: Callable[..., "Fake"], secret: str
) -> None:
    fake = head()
    said = ask("submit", "sweep.yaml", *HERE[:2], "--store", f"s3://KEY:{secret}@bucket/r")
    assert said.exit_code == 2 and "must hold no password" in said.stderr
    assert secret not in said.output and not fake.jobs


def test_a_port_or_a_user_in_the_stores_address_is_no_password() -> None:
    for store in ("hdfs://name:8020/a@b", "hdfs://name:8020", "abfs://container@account/r"):
        assert check_store(store) == store


def test_store_and_data_are_taken_from_the_cluster_file(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def reached(cluster: Path | None, address: str | None) -> Any:
        raise NoResources("no cluster here")

    def note(*words: Any) -> Submission:
        asked.append(submission_of(*words))
        return asked[-1]

    monkeypatch.setattr(jobs, "reached", reached)
    monkeypatch.setattr(jobs, "submission_of", note)
    file = tmp_path / "cluster.yaml"
    file.write_text("provider: {type: aws, results: s3://b/r, data: /data}\n")
    said = ask("submit", "cifar.yaml", "sweep.yaml", "--cluster", file, "--concurrency", 3)
    assert said.exit_code == 4 and said.stderr.endswith("error: no cluster here\n")
    words = shlex.split(asked[0].entrypoint.partition("; exec ")[2])
    assert words == shlex.split(
        "ascl-sweep run cifar.yaml grid.yaml --set data.root=/data --concurrency 3 "
        "--store s3://b/r --address auto --yes"
    )
    assert ClusterFile.read(file) == ClusterFile(file, "s3://b/r", "/data")


def test_the_cluster_files_data_overwrite_no_other_place(
    ask: Ask, tmp_path: Path, head: Callable[..., "Fake"], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head()
    monkeypatch.setattr(jobs, "forwarded", lambda cluster: nullcontext("http://127.0.0.1:1"))
    (tmp_path / "c.yaml").write_text("provider: {type: aws, results: s3://b/r, data: /data}\n")
    far = "name: far\nbase: {data: {name: stl10, root: ROOT}}\n"
    words = ("submit", "cifar.yaml", "far.yaml", "--cluster", "c.yaml", "--detach")
    (tmp_path / "far.yaml").write_text(far.replace("ROOT", "/big"))
    said = ask(*words)
    assert said.exit_code == 2 and not fake.jobs
    assert "got /big for stl10 and /data (provider.data) for cifar10; submit them" in said.stderr
    assert ask(*words, "--set", "data.root=/data").exit_code == 0, "the way out"
    (tmp_path / "far.yaml").write_text(far.replace("ROOT", "/data"))
    assert ask(*words).exit_code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sweep.yaml"], "say --cluster FILE.yaml or --address URL"),
        (["sweep.yaml", "--cluster", "c.yaml", "--address", "http://x"], "say --cluster"),
        (["sweep.yaml", "--address", "auto"], "must be that of a dashboard"),
        (["sweep.yaml", "--cluster", "c.yaml"], "a submitted sweep needs a store; give --store"),
        (["sweep.yaml", "--cluster", "c.yaml", "--store", "r"], "which would stay on the head"),
        (["sweep.yaml", "--cluster", "sweep.yaml"], "is no cluster file: it has no provider"),
        (["sweep.yaml", "--cluster", "none.yaml"], "none.yaml: cannot be read"),
        (["cifar.yaml", "--cluster", "c.yaml"], "data.root must be a place on the cluster's"),
        (["none.yaml", "bad.yaml", "--cluster", "c.yaml"], "none.yaml: cannot be read"),
        (["none.yaml", "bad.yaml", "--cluster", "c.yaml"], "bad.yaml:2: sead: no such field"),
    ],
)
def test_what_is_wrong_is_said_before_anybody_is_asked(
    ask: Ask, tmp_path: Path, words: list[str], sentence: str
) -> None:
    (tmp_path / "c.yaml").write_text("provider: {type: aws}\n")
    (tmp_path / "bad.yaml").write_text("name: bad\nsead: 3\n")
    said = ask("submit", *words)
    assert said.exit_code == 2, said.stderr
    assert sentence in said.stderr and said.stdout == ""
    assert "connecting" not in said.stderr


# ---------------------------------------------------------------- what is said, by a Ray of ours


class Fake:
    """A head whose job says some lines, over a line that may break, and ends with a code."""

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
        self._server_ray_version = "any"

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
            status=SimpleNamespace(value=status),
            driver_exit_code=code,
            message=self.message,
        )

    def get_job_logs(self, job: str) -> str:
        return "".join(self.LOG)

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
        monkeypatch.setattr(jobs, "_connect", lambda: fake)
        monkeypatch.setattr(command_line, "PAUSES", (0, 0))
        return fake

    return put


HERE = ("--address", "http://127.0.0.1:1", "--store", "/shared/r")


def test_the_drivers_lines_are_shown_once_and_rays_are_not(
    ask: Ask, head: Callable[..., Fake]
) -> None:
    fake = head()
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 0 and said.stdout == ""
    assert said.stderr.splitlines()[2:5] == ["one", "two [red]", "three"]
    assert "entrypoint" not in said.stderr and "Runtime env" not in said.stderr
    assert "ascl-sweep report grid --store /shared/r" in said.stderr
    assert fake.uploaded == [["grid.yaml"]]


def test_a_broken_line_is_mended_and_no_line_is_said_twice(
    ask: Ask, head: Callable[..., Fake]
) -> None:
    head(breaks=2)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 0
    lines = said.stderr.splitlines()
    assert [line for line in lines if line in ("one", "two [red]", "three")] == [
        *("one", "two [red]", "three")
    ]
    assert sum("broke" in line and "the sweep does without it" in line for line in lines) == 2


def test_a_line_that_stays_broken_is_given_up_with_the_way_back(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head(breaks=100)

    def down() -> Any:
        raise ConnectionError("no route to host")

    def first_time() -> Any:
        monkeypatch.setattr(jobs, "_connect", down)
        return fake

    monkeypatch.setattr(jobs, "_connect", first_time)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 4
    assert "does not answer (no route to host)" in said.stderr
    assert "; the sweep goes on; watch it with\n  ascl-sweep status --watch" in said.stderr
    assert f"ascl-sweep submit sweep.yaml {' '.join(HERE)}" in said.stderr


def test_a_running_job_is_joined_and_a_finished_one_gets_a_new_number(
    ask: Ask, head: Callable[..., Fake]
) -> None:
    fake = head()
    name = submission_of([spec()], "/shared/r", []).name
    for number, id_ in enumerate((name, f"{name}-2", f"{name}-3")):
        said = ask("submit", "sweep.yaml", *HERE)
        assert said.exit_code == 0 and len(fake.jobs) == number + 1
        assert id_ in fake.jobs and f"submitted as job {id_}" in said.stderr
    fake.jobs[f"{name}-2"] = "PENDING"
    said = ask("submit", "sweep.yaml", *HERE)
    assert f"{name}-2 is running already" in said.stderr and len(fake.jobs) == 3
    assert len(fake.uploaded) == 3


def test_of_two_who_submit_at_once_the_later_joins(
    head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    ours, made = Jobs("http://127.0.0.1:1"), submission_of([spec()], "/shared/r", [])
    look = fake.list_jobs
    views = iter([[], None])  # it is not there yet when we look, and there when we submit
    monkeypatch.setattr(fake, "list_jobs", lambda: look() if next(views) is None else [])
    fake.jobs[made.name] = "RUNNING"
    asked: list[str | None] = []
    assert ours.start(made, asked.append) == (made.name, True)
    assert asked == [made.name, None], "what was refused was not started by us"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130])
def test_the_drivers_exit_code_is_ours(ask: Ask, head: Callable[..., Fake], code: int) -> None:
    head(code=code, status="FAILED" if code else "SUCCEEDED")
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == code
    assert ("go on from here with:" in said.stderr) == bool(code)


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ({"code": None, "status": "FAILED"}, 4, "failed: no such runtime; mend the cause"),
        ({"code": -9, "status": "FAILED"}, 4, "the driver ended with code -9; mend"),
        ({"code": None, "status": "STOPPED"}, 130, "was stopped on the cluster; go on from"),
    ],
)
def test_a_job_without_a_code_of_its_own_gets_a_sentence(
    ask: Ask, head: Callable[..., Fake], how: dict[str, Any], code: int, sentence: str
) -> None:
    head(**how)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == code and sentence in said.stderr
    assert "Traceback" not in said.stderr


def test_who_detaches_is_told_how_to_come_back(ask: Ask, head: Callable[..., Fake]) -> None:
    fake = head()
    said = ask("submit", "sweep.yaml", *HERE, "--detach")
    assert said.exit_code == 0 and list(fake.jobs.values()) == ["RUNNING"]
    for way in ("status --watch", "stop", "submit sweep.yaml --address http://127.0.0.1:1"):
        assert f"ascl-sweep {way} --store /shared/r" in said.stderr
    (job,) = fake.jobs
    until = "or, as long as `status` shows no driver yet, with\n  RAY_AUTH_MODE=token ray job stop"
    assert f"{until} {job} --address http://127.0.0.1:1\n" in said.stderr
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
    assert "you leave; the sweep goes on; watch it with" in said.stderr


def test_who_has_only_a_cluster_file_is_told_to_stop_the_job_through_it(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = head()
    monkeypatch.setattr(jobs, "forwarded", lambda cluster: nullcontext("http://127.0.0.1:1"))
    (tmp_path / "my c.yaml").write_text("provider: {type: aws}\n")
    words = ("--cluster", "my c.yaml", "--store", "/shared/r", "--detach")
    said = ask("submit", "sweep.yaml", *words)
    (job,) = fake.jobs
    assert f"\n  ray exec 'my c.yaml' 'ray job stop {job}'\n" in said.stderr


def leave() -> None:
    """End the command politely while a request of it is under way."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("interrupted", [True, False])
def test_a_job_that_nobody_confirmed_may_have_been_started(
    ask: Ask,
    head: Callable[..., Fake],
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
    arrives: bool,
) -> None:
    fake = head()
    submit = fake.submit_job

    def post(**job: Any) -> None:
        if arrives:
            submit(**job)
        leave() if interrupted else None
        raise TimeoutError

    monkeypatch.setattr(fake, "submit_job", post)
    said = ask("submit", "sweep.yaml", *HERE)
    job = submission_of([spec()], "/shared/r", []).name
    assert said.exit_code == (130 if interrupted else 4)
    assert f"; the sweep may have been started as job {job}; watch it with\n" in said.stderr
    assert f"ray job stop {job} --address" in said.stderr


@pytest.mark.parametrize("call", ["list_jobs", "submit_job"])
def test_what_was_not_started_is_not_said_to_go_on(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(**job: Any) -> None:
        raise RuntimeError("no room")

    fake = head()
    monkeypatch.setattr(fake, call, leave if call == "list_jobs" else refuse)
    said = ask("submit", "sweep.yaml", *HERE)
    sentence = "refused: no room;" if call == "submit_job" else "you leave before anything was"
    assert sentence in said.stderr and "watch it with" not in said.stderr


async def silence(job: str) -> AsyncIterator[str]:
    await asyncio.sleep(60)
    yield "never"


@pytest.mark.parametrize("over", [True, False])
def test_a_line_that_is_silent_while_the_job_speaks_or_ends_is_given_up(
    head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    fake = head()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    fake.jobs["x"] = "RUNNING"
    ours = Jobs("http://127.0.0.1:1")
    monkeypatch.setattr(fake, "tail_job_logs", silence)
    for name in ("SILENCE_SECONDS", "POLL_SECONDS"):
        monkeypatch.setattr(jobs, name, 0.05)
    pieces = ours.follow("x")
    assert list(islice(pieces, 20)) == [""] * 20, "a job may have nothing to say"
    if over:
        fake.jobs["x"] = fake.end
    else:
        monkeypatch.setattr(fake, "LOG", (*fake.LOG, "four\n"))
    with pytest.raises(Unreachable, match="is dead"):
        list(islice(pieces, 20))


def test_what_a_dead_line_kept_back_is_shown_over_the_next(
    ask: Ask, head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head()
    whole = fake.tail_job_logs

    async def dies(job: str) -> AsyncIterator[str]:
        monkeypatch.setattr(fake, "tail_job_logs", whole)
        for piece in fake.LOG[:2]:
            yield piece
        fake.jobs[job] = fake.end
        await asyncio.sleep(60)

    monkeypatch.setattr(fake, "tail_job_logs", dies)
    for name in ("SILENCE_SECONDS", "POLL_SECONDS"):
        monkeypatch.setattr(jobs, name, 0.1)
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 0 and "is dead" in said.stderr
    shown = [line for line in said.stderr.splitlines() if line in ("one", "two [red]", "three")]
    assert shown == ["one", "two [red]", "three"]


def test_a_silent_dead_line_is_noticed(
    head: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = head()
    monkeypatch.setattr(os, "environ", dict(os.environ))
    fake.jobs["x"] = "RUNNING"
    ours = Jobs("http://127.0.0.1:1")
    monkeypatch.setattr(fake, "tail_job_logs", silence)
    monkeypatch.setattr(fake, "get_job_info", lambda job: time.sleep(60))
    for name in ("SILENCE_SECONDS", "ANSWER_SECONDS", "POLL_SECONDS"):
        monkeypatch.setattr(jobs, name, 0.1)
    with pytest.raises(Unreachable, match=r"does not answer \(no answer in 0.1 s\)"):
        list(ours.follow("x"))


def test_a_token_that_cannot_be_sent_is_refused_before_connecting_and_not_quoted(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hush\nhush\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setattr(jobs, "_connect", lambda: pytest.fail("connected"))
    said = ask("submit", "sweep.yaml", *HERE)
    assert said.exit_code == 4 and f"what is in {tmp_path / 'token'} is not; put" in said.stderr
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
        jobs, "forward_command", lambda cluster, port: [sys.executable, "-c", FORWARD, str(port)]
    )
    before = set(descendants(os.getpid()))
    with forwarded(tmp_path / "cluster.yaml") as address:
        assert address.startswith("http://127.0.0.1:")
        ours = set(descendants(os.getpid())) - before
        assert len(ours) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in ours), seconds=10)


ATTENDED = """
import sys, time
from ascl_sweep import jobs
from ascl_sweep.cli import app
jobs.forward_command = lambda cluster, port: [sys.executable, "-c", FORWARD, str(port)]
jobs._connect = lambda: print("there", flush=True) or time.sleep(100)
app(["submit", "sweep.yaml", "--cluster", "c.yaml", "--store", "/shared/r"])
"""


@pytest.mark.parametrize("nohup", [False, True])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
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


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Error: Failed to forward …\n The exception is: Head node (x) not found!",
            "Head node (x)",
        ),
        (
            "u@h: Permission denied (publickey).\nError: Failed to forward …\n"
            " The exception is: Command failed:\n\n  ssh -tt …\n",
            "u@h: Permission denied (publickey)",
        ),
        ("/usr/bin/python: No module named ray", "/usr/bin/python: No module named ray"),
        ("", "no answer"),
    ],
)
def test_a_head_that_is_not_reached_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    stub = [sys.executable, "-c", f"import sys; print({said!r}); sys.exit(1)"]
    monkeypatch.setattr(jobs, "forward_command", lambda cluster, port: stub)
    with (
        pytest.raises(NoResources, match=re.escape(f"could not be reached ({reason}")) as caught,
        forwarded(Path("cluster.yaml")),
    ):
        pass
    assert "; is it up (`ray up cluster.yaml`), and are you let in" in str(caught.value)
    assert "\n" not in str(caught.value)


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
    """A Ray head as `ray up` would start it: with a token, the dashboard for itself alone."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ascl-head-", dir="/tmp"))  # sockets: short
        self.token = self.folder / "token"
        self.token.write_text("0123456789abcdef" * 4)
        self.port, self.dashboard = free_port(), free_port()
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
            *(f"--{name}={free_port()}" for name in ports),
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
        # Its watchers and workers end by themselves once they see it gone.
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
    """A sweep that takes a while."""
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
    assert again.returncode == 0 and "4 runs are there already" in again.stderr
    report = ray_head.ask("report", "--store", store, "--format", "csv")
    assert report.returncode == 0 and report.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_laptop_that_dies_leaves_the_sweep_running_to_its_end(
    ray_head: Head, tmp_path: Path
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    words = ("submit", longer(tmp_path, 12), "--address", ray_head.address, "--store", store)
    laptop = ray_head.start(*words, log=log)
    wait_until(lambda: "start " in log.read_text(), log)
    os.killpg(laptop.pid, signal.SIGKILL)
    laptop.wait()
    assert states(store) != ["done"] * 4, "killed too late"
    wait_until(lambda: states(store) == ["done"] * 4, log)
    wait_until(lambda: Ledger(store).driver() is None, log)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_submit_joins_the_first_and_stop_ends_it_for_both(
    ray_head: Head, tmp_path: Path
) -> None:
    store, file = tmp_path / "store", longer(tmp_path, 400)
    words = ("submit", file, "--address", ray_head.address, "--store", store)
    first = ray_head.ask(*words, "--detach")
    assert first.returncode == 0 and "submitted as job long-" in first.stderr, first.stderr
    log = tmp_path / "log"
    second = ray_head.start(*words, log=log)
    wait_until(lambda: "start " in log.read_text(), log)
    assert "is running already" in log.read_text()
    stop = ray_head.ask("stop", "--store", store)
    assert stop.returncode == 0, stop.stderr
    assert second.wait(timeout=200) == 130
    assert "stopped as asked" in log.read_text()
    assert f"go on from here with:\n  ascl-sweep submit {file}" in log.read_text()
    assert "done" not in states(store) and Ledger(store).driver() is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_is_stopped_before_its_driver_is_there_in_the_way_that_is_told(
    ray_head: Head, tmp_path: Path
) -> None:
    words = (longer(tmp_path, 400), "--address", ray_head.address, "--store", tmp_path / "store")
    said = ray_head.ask("submit", *words, "--detach")
    assert said.returncode == 0, said.stderr
    (way,) = [line for line in said.stderr.splitlines() if "ray job stop" in line]
    env = {key: value for key, value in ray_head.env.items() if key != "RAY_AUTH_MODE"}
    stop = subprocess.run(way, shell=True, env=env, capture_output=True, text=True, timeout=200)
    assert stop.returncode == 0 and "was stopped" in stop.stdout + stop.stderr, stop
    wait_until(lambda: Ledger(tmp_path / "store").driver() is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "port", "sentence"),
    [
        ({"RAY_AUTH_TOKEN": "f" * 64}, None, "wants its token (Authentication failed"),
        ({"RAY_AUTH_TOKEN_PATH": "/none"}, None, "wants its token (RAY_AUTH_TOKEN_PATH is set but"),
        ({"RAY_AUTH_MODE": "disabled"}, None, "wants its token (Authentication required"),
        ({}, "free", "does not answer"),
    ],
)
def test_who_is_not_let_in_gets_one_sentence(
    ray_head: Head, tmp_path: Path, env: dict[str, str], port: str | None, sentence: str
) -> None:
    (tmp_path / "sweep.yaml").write_text(GRID)
    address = f"http://127.0.0.1:{free_port()}" if port else ray_head.address
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
        f"cluster_name: here\nauth: {{ssh_user: nobody}}\nprovider: {{type: local, "
        f"head_ip: 127.0.0.1, worker_ips: [], results: {tmp_path / 'store'}}}\n"
    )
    env = {"PATH": f"{ssh.parent}:{ray_head.env['PATH']}", "TMPDIR": str(tmp_path)}
    env["RAY_TMPDIR"] = str(tmp_path / "ray")
    words = ("submit", tmp_path / "sweep.yaml", "--cluster", cluster)
    down = ray_head.ask(*words, **env)
    assert down.returncode == 4 and "(Head node of cluster (here) not found)" in down.stderr
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
def test_doctor_finds_nothing_to_mend_on_a_head_with_a_token(
    ray_head: Head, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text(GRID)
    words = ("doctor", tmp_path / "sweep.yaml", "--address", f"127.0.0.1:{ray_head.port}")
    said = ray_head.ask(*words, "--store", tmp_path / "store")
    assert said.returncode == 0, said.stdout + said.stderr
    for line in ("ok  dashboard: answers", "ok  token: asked for", "ok  room for grid: up to 2"):
        assert line in said.stdout
    assert "fix" not in said.stdout and not (tmp_path / "store").exists()
