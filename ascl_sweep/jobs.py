"""Sweeps as Ray jobs: what a laptop hands to a cluster's head, and what comes back from it.

The head runs the driver, so that the laptop may be closed; what it computes is in the store.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ascl.faults import read_yaml
from ascl_sweep import __version__
from ascl_sweep.address import refuse_password
from ascl_sweep.knock import own_token
from ascl_sweep.labels import one_line
from ascl_sweep.room import NoResources
from ascl_sweep.spec import SweepSpec

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

T = TypeVar("T")

ANSWER_SECONDS = 60.0  # a request takes less than one; the first after `ray up` up to thirty
FORWARD_SECONDS = 180.0  # `ray dashboard` asks the cloud for the head; then ssh knocks for 120
SILENCE_SECONDS = 30.0  # no line for so long: is anybody there?
POLL_SECONDS = 0.5
NAME_LENGTH = 60  # of a submission's id, which names files on the head
OF_RAY = re.compile(r"Running entrypoint for job |.* -- Runtime env is setting up\.$")
"""Lines that Ray puts into a job's log."""


class Unreachable(NoResources):
    """The cluster does not answer; it may do so later."""


# ---------------------------------------------------------------- what is submitted


@dataclass(frozen=True)
class Submission:
    """A `run` as a job."""

    name: str
    """Its id, but for a number at the end if it was submitted before."""
    entrypoint: str
    files: Mapping[str, str]
    """The sweep files: all that is uploaded, since the cluster has the code."""


def submission_of(specs: Sequence[SweepSpec], store: str, flags: Sequence[str]) -> Submission:
    """The job that runs these sweeps. What makes them others makes it another job."""
    files = {f"{spec.name}.yaml": spec.text for spec in specs}
    changes = [(spec.overrides, spec.scale) for spec in specs]
    said = json.dumps([sorted(files.items()), changes, store])
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    names = "-".join(spec.name for spec in specs)[:NAME_LENGTH]
    words = ["run", *files, *flags, "--store", store, "--address", "auto", "--yes"]
    return Submission(f"{names}-{digest}", entrypoint(words), files)


def entrypoint(words: Sequence[str]) -> str:
    """The command line that Ray gives to a shell on the head: this version of us, or a sentence."""
    ours = shlex.quote(f"ascl-sweep {__version__}")
    rule = shlex.quote("error: laptop and cluster must have the same ascl-sweep, got")
    way_out = shlex.quote("there; install ours in the setup_commands of the cluster file")
    sorry = f"echo {rule} {ours} here and \"'$found'\" {way_out}"
    run = shlex.join(["ascl-sweep", *words])
    check = f'found=$(ascl-sweep --version); test "$found" = {ours}'
    return f"{check} || {{ {sorry}; exit 4; }}; exec {run}"


@dataclass(frozen=True)
class ClusterFile:
    """What our own keys in a cluster file say (see `provider` there)."""

    path: Path
    results: str | None
    """Where its sweeps keep their results."""
    data: str | None
    """Where its nodes have the datasets."""

    @classmethod
    def read(cls, path: Path) -> "ClusterFile":
        tree, _ = read_yaml(path)
        provider = tree.get("provider") if isinstance(tree, Mapping) else None
        if not isinstance(provider, Mapping):
            raise ValueError(f"{path} is no cluster file: it has no provider; see `ray up --help`")
        results, data = provider.get("results"), provider.get("data")
        for key, value in (("results", results), ("data", data)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{path}: provider.{key} must be an address, got {value!r}")
        return cls(path, results, data)


def check_store(store: str | None) -> str:
    """The store, if the head and the laptop can both mean the same by it."""
    way_out = (
        "give --store s3://bucket/results (or provider.results in the cluster file), or an "
        "absolute path on a file system that all machines share"
    )
    if not store:
        raise ValueError(f"a submitted sweep needs a store; {way_out}")
    refuse_password(store)
    if "://" not in store and not Path(store).is_absolute():
        raise ValueError(
            f"a submitted sweep's store must be in reach of laptop and cluster, got the folder "
            f"{store}, which would stay on the head; {way_out}"
        )
    return store


# ---------------------------------------------------------------- the way to the head


def forward_command(cluster: Path, port: int) -> list[str]:
    """Ray's own way to a head's dashboard: it asks the provider where that is, and uses ssh."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    return [*ray, "dashboard", str(cluster), "--port", str(port)]


@contextmanager
def forwarded(cluster: Path) -> Iterator[str]:
    """The address at which a cluster's dashboard is on this machine, for as long as this lasts."""
    port = free_port()
    with tempfile.TemporaryFile() as said:
        line = subprocess.Popen(
            forward_command(cluster, port),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # ssh, its child, ends with it; our Ctrl-C is not for them
        )
        try:
            end = time.monotonic() + FORWARD_SECONDS
            while not _listens(port):
                if line.poll() is not None or time.monotonic() > end:
                    said.seek(0)
                    reason = _reason(said.read().decode(errors="replace"))
                    raise Unreachable(
                        f"the head of {cluster} could not be reached ({reason}); is it up "
                        f"(`ray up {cluster}`), and are you let in (`ray attach {cluster}`)?"
                    )
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            _end_group(line)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


def _reason(text: str) -> str:
    """What matters of what `ray dashboard` said: its own cause, or what ssh said before it."""
    before, _, after = text.partition("Error: Failed to forward")
    cause = after.partition("The exception is: ")[2].strip()
    said = before if cause.startswith("Command failed") else cause or before
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].rstrip("!.") if lines else "no answer"


@contextmanager
def reached(cluster: Path | None, address: str | None) -> Iterator["Jobs"]:
    """The jobs of a cluster, by its file or by its dashboard's address."""
    with contextlib.ExitStack() as stack:
        if cluster is not None:
            address = stack.enter_context(forwarded(cluster))
        assert address is not None
        yield Jobs(address)


# ---------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Outcome:
    """How a job stands."""

    status: str
    code: int | None
    """The driver's exit code."""
    message: str

    @property
    def over(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class Jobs:
    """The jobs of one cluster. What goes wrong is a `NoResources` with a sentence."""

    def __init__(self, address: str) -> None:
        self.address = address
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is loaded
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray asks it before what it is given
        if os.environ["RAY_AUTH_MODE"].lower() == "token":
            own_token()
        self._client = self._asked(_connect)

    def start(
        self, submission: Submission, asking: Callable[[str | None], None]
    ) -> tuple[str, bool]:
        """The id of the job that runs this, and whether it did so already.

        `asking` is told which id we are about to ask for, and None if it is refused.
        """
        for _ in range(3):
            found = {job.submission_id: job for job in self._asked(self._client.list_jobs)}
            number = re.compile(rf"{re.escape(submission.name)}(?:-(\d+))?")
            same = {i: m for i in found if (m := number.fullmatch(i or ""))}
            for job in same:
                if not _outcome(found[job]).over:
                    return str(job), True
            last = max((int(m[1] or 1) for m in same.values()), default=0)
            job = f"{submission.name}-{last + 1}" if last else submission.name
            asking(job)
            try:
                self._submit(submission, job)
                return job, False
            except Unreachable:  # it may have arrived
                raise
            except _Exists:  # somebody submitted the same just now
                asking(None)
            except NoResources:
                asking(None)
                raise
        raise NoResources(f"{submission.name} is being submitted by others; try again")

    def _submit(self, submission: Submission, job: str) -> None:
        with tempfile.TemporaryDirectory(prefix="ascl-submit-") as folder:
            for name, text in submission.files.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            self._asked(
                lambda: self._client.submit_job(
                    entrypoint=submission.entrypoint,
                    submission_id=job,
                    runtime_env={"working_dir": folder},
                    entrypoint_num_cpus=0,  # and so on the head, which has none to give
                )
            )

    def outcome(self, job: str) -> Outcome:
        return _outcome(self._asked(lambda: self._client.get_job_info(job)))

    def started(self, job: str) -> Outcome:
        """How a job stands once it is no longer about to start, or after a minute."""
        end = time.monotonic() + ANSWER_SECONDS
        while (now := self.outcome(job)).status == "PENDING" and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return now

    def follow(self, job: str, after: int = 0) -> Iterator[str]:
        """A job's log from that character on, as it grows, until the job is over.

        An empty piece every half second, so that the caller may look after other things.
        """
        pieces: queue.Queue[str | Exception | None] = queue.Queue()

        async def listen() -> None:
            async for piece in self._client.tail_job_logs(job):
                pieces.put(piece)

        def listener() -> None:
            try:
                asyncio.run(listen())
                pieces.put(None)
            except Exception as error:  # aiohttp's and Ray's have no common base
                pieces.put(error)

        threading.Thread(target=listener, daemon=True).start()
        heard, seen = time.monotonic(), 0
        length: int | None = None  # of the log, when the silence was last looked into
        behind = False  # whether the job has then said more, or all, and the line has not
        while True:
            try:
                piece = pieces.get(timeout=POLL_SECONDS)
            except queue.Empty:
                yield ""
                if time.monotonic() - heard > SILENCE_SECONDS:  # a dead line says nothing, too
                    if behind:  # and has been for so long
                        why = "is dead: it keeps back what the job said"
                        raise Unreachable(f"the line to {self.address} {why}") from None
                    over, before, length = self.outcome(job).over, length, self._length(job)
                    behind = over or before not in (None, length)
                    heard = time.monotonic()
                continue
            if isinstance(piece, Exception):
                raise Unreachable(f"the line to {self.address} broke ({_why(piece)})")
            if piece is None:
                break
            heard, length, behind = time.monotonic(), None, False
            news = piece[max(after - seen, 0) :]
            seen += len(piece)
            if news:
                yield news
        if not self.outcome(job).over:
            raise Unreachable(f"the line to {self.address} was closed while the job goes on")

    def _length(self, job: str) -> int:
        """Of a job's log. That it cannot be read now is no reason to give the job up."""
        try:
            return len(self._asked(lambda: self._client.get_job_logs(job)))
        except NoResources as error:
            raise Unreachable(str(error)) from error

    def _asked(self, call: Callable[[], T]) -> T:
        """What a request comes to. Ray sets no limit to how long one may take; this does."""
        answers: queue.Queue[T | BaseException] = queue.Queue()

        def ask() -> None:
            try:
                answers.put(call())
            except BaseException as error:
                answers.put(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            answer = answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            answer = TimeoutError(f"no answer in {ANSWER_SECONDS:g} s")
        if isinstance(answer, BaseException):
            raise self._sentence(answer) from answer
        return answer

    def _sentence(self, error: BaseException) -> BaseException:
        from ray.exceptions import AuthenticationError

        where, reason = f"the Ray at {self.address}", _why(error)
        if isinstance(error, NoResources):
            return error
        if isinstance(error, AuthenticationError):
            why = reason.partition(". Ensure")[0]  # from there on Ray gives advice
            return NoResources(
                f"{where} wants its token ({why}); put it into ~/.ray/auth_token, readable to you "
                "alone, or name its file in RAY_AUTH_TOKEN_PATH"
            )
        if isinstance(error, RuntimeError):  # Ray's word for each request that was refused
            if "already exists" in str(error):
                return _Exists(reason)
            last = RuntimeError(str(error).rstrip(". \n"))  # Ray ends with a line of a full stop
            return NoResources(
                f"{where} refused: {_why(last, last=True)}; see `ray job list` there"
            )
        if isinstance(error, OSError):
            return Unreachable(f"{where} does not answer ({reason}); is its dashboard there?")
        return NoResources(
            f"{where} does not answer as a Ray dashboard does ({reason}); give the dashboard's "
            "address, e.g. --address http://127.0.0.1:8265"
        )


class _Exists(NoResources):
    """A job has that id already."""


def _connect() -> "JobSubmissionClient":
    import ray
    from ray.job_submission import JobSubmissionClient

    chatty = ("dashboard.modules.job.sdk", "dashboard.modules.dashboard_sdk")
    for name in (*chatty, "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)
    client = JobSubmissionClient(os.environ["RAY_API_SERVER_ADDRESS"])
    there = client._server_ray_version
    if there != ray.__version__:
        raise NoResources(
            f"laptop and cluster must have the same Ray, got {ray.__version__} here and {there} "
            f'there; try `pip install "ray[default,train,tune]=={there}"`'
        )
    return client


def _outcome(job: Any) -> Outcome:
    return Outcome(job.status.value, job.driver_exit_code, job.message or "")


def _why(error: BaseException, *, last: bool = False) -> str:
    """What an error says, without a token that it may quote."""
    return one_line(error, last=last).partition("Bearer")[0].rstrip(". ")[:200]


def ours(line: str) -> bool:
    """Whether a line of a job's log is the driver's."""
    return OF_RAY.match(line) is None
