"""Jobs of a Ray cluster: submit a job, follow its log, get its status.

The driver runs on the head node, so the submitting machine may disconnect.
"""

import asyncio
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ascl_sweep.errors import ClusterError
from ascl_sweep.executors.ray import compat
from ascl_sweep.executors.ray.address import own_token
from ascl_sweep.executors.ray.forward import Unreachable
from ascl_sweep.executors.ray.submission import Submission
from ascl_sweep.text import one_line

if TYPE_CHECKING:
    from ray.job_submission import JobDetails as JobDetails
    from ray.job_submission import JobSubmissionClient


class Jobs:
    """Jobs of one cluster. All errors are `ClusterError`s, which never contain a token."""

    def __init__(self, address: str) -> None:
        self.address = address
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is loaded
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray prefers it to its argument
        if os.environ["RAY_AUTH_MODE"].lower() == "token":
            own_token()
        with self._errors():
            self._client = _connect(address)

    def start(self, submission: Submission) -> tuple[str, bool]:
        """Submit a job unless it is running; return its id and whether it was already running."""
        for _ in range(3):
            with self._errors():
                jobs = {job.submission_id or "": job for job in self._client.list_jobs()}
            number = re.compile(rf"{re.escape(submission.name)}(?:-(\d+))?")
            same = {job: match for job in jobs if (match := number.fullmatch(job))}
            for job in same:
                if not jobs[job].status.is_terminal():
                    return job, True
            last = max((int(match[1] or 1) for match in same.values()), default=0)
            job = f"{submission.name}-{last + 1}" if last else submission.name
            try:
                self._submit(submission, job)
                return job, False
            except ClusterError as error:
                if compat.JOB_EXISTS not in str(error):  # submitted by another process just now
                    raise
        raise ClusterError(f"another process is submitting {submission.name}; try again")

    def _submit(self, submission: Submission, job: str) -> None:
        with tempfile.TemporaryDirectory(prefix="ascl-submit-") as folder:
            for name, text in submission.files.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            with self._errors():
                self._client.submit_job(
                    entrypoint=submission.entrypoint,
                    submission_id=job,
                    runtime_env={"working_dir": folder},
                    entrypoint_num_cpus=0,  # so that the job runs on the head, which offers no CPUs
                )

    def get_info(self, job: str) -> "JobDetails":
        """Return a job's status, including its driver's exit code."""
        with self._errors():
            return self._client.get_job_info(job)

    def follow(self, job: str, after: int = 0) -> Iterator[str]:
        """Stream a job's log until the job ends; skip the first `after` characters."""
        seen = 0
        with asyncio.Runner() as runner, self._errors():
            pieces = self._client.tail_job_logs(job)

            async def get_next() -> str | None:
                return await anext(pieces, None)

            while (piece := runner.run(get_next())) is not None:
                if news := piece[max(after - seen, 0) :]:
                    yield news
                seen += len(piece)
        if not self.get_info(job).status.is_terminal():
            raise Unreachable(f"the log stream of {job} at {self.address} ended before the job")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert Ray's errors to ClusterError."""
        try:
            yield
        except ClusterError:
            raise
        except Exception as error:  # Ray's, requests' and aiohttp's errors have no common base
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> ClusterError:
        from ray.exceptions import AuthenticationError

        where, reason = f"the Ray cluster at {self.address}", _without_token(one_line(error))
        if isinstance(error, AuthenticationError):
            reason = reason.partition(compat.TOKEN_ADVICE)[0]
            return ClusterError(
                f"{where} requires a valid token ({reason}); put the cluster's token into "
                "~/.ray/auth_token, readable by you alone, or set RAY_AUTH_TOKEN_PATH to its file"
            )
        if isinstance(error, OSError) or compat.STREAM_BROKEN in reason:
            return Unreachable(f"{where} does not answer ({reason}); check that its dashboard runs")
        if isinstance(error, RuntimeError):  # Ray raises it for every rejected request
            last = one_line(RuntimeError(str(error).rstrip(". \n")), last=True)
            reason = _without_token(last)
            return ClusterError(f"{where} rejected the request: {reason}; see `ray job list`")
        return ClusterError(
            f"the server at {self.address} is not a Ray dashboard ({reason}); give the dashboard's "
            "address, e.g. --address http://127.0.0.1:8265"
        )


def _connect(address: str) -> "JobSubmissionClient":
    import ray
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray").setLevel(logging.ERROR)
    client = JobSubmissionClient(address)
    there = client.get_version()
    if there != compat.JOBS_API:
        raise ClusterError(
            "this machine and the cluster must have the same version of Ray's Jobs API, got "
            f"{compat.JOBS_API} here (Ray {ray.__version__}) and {there} on the cluster; install "
            "the cluster's Ray version here"
        )
    return client


def _without_token(reason: str) -> str:
    return reason.partition("Bearer")[0].rstrip(". ")[:200]


def is_of_driver(line: str) -> bool:
    """Whether the driver, not Ray, printed a line of a job's log."""
    return compat.JOB_LOG.match(line) is None
