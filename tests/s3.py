"""An S3 on this machine for tests, which may be killed and comes back with all it had."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem

from ascl_sweep.executors.ray.address import find_free_port
from tests.paths import ROOT
from tests.s3_server import SWITCH
from tests.sweeps import wait_until


class S3:
    """A bucket on a server of its own (`tests.s3_server`), which speaks S3."""

    def __init__(self, folder: Path) -> None:
        self.log, self._state, self._switch = folder / "log", folder / "state", folder / SWITCH
        self._port = find_free_port()
        self.start()
        creator = f"{self.address('')}&allow_bucket_creation=true"
        FileSystem.from_uri(creator)[0].create_dir("bucket")

    def address(self, folder: str) -> str:
        return f"s3://bucket/{folder}?endpoint_override=127.0.0.1:{self._port}&scheme=http"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.s3_server", str(self._port), str(self._state)]
        with self.log.open("ab") as out:
            self._server = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
        wait_until(self._answers, self.log, seconds=120)

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()

    @contextmanager
    def failing(self, fault: str) -> Iterator[None]:
        """Answer requests with a fault of `tests.s3_server`."""
        new = self._switch.with_suffix(".new")
        new.write_text(fault)
        new.replace(self._switch)
        try:
            yield
        finally:
            self._switch.unlink()

    def _answers(self) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", self._port)) == 0


def serving(folder: Path) -> Iterator[S3]:
    """One that is there for as long as a fixture lasts."""
    with pytest.MonkeyPatch.context() as patch:
        let_in(patch)
        patch.setenv("XDG_STATE_HOME", str(folder / "state home"))  # of the drivers' logs
        server = S3(folder)
        try:
            yield server
        finally:
            server.kill()


def let_in(patch: pytest.MonkeyPatch) -> None:
    """Give this process and its children what an S3 asks for; this one takes anything."""
    patch.setenv("AWS_ACCESS_KEY_ID", "anyone")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
