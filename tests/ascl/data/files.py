"""Helpers of the tests of datasets: a file server, checksums, and the message of an error."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ascl.data.subset import load_data
from ascl.errors import DataError


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def error_message(name: str, root: Path, **options: float) -> str:
    """The error message of a dataset that cannot be read: one line."""
    with pytest.raises(DataError) as caught:
        load_data(name, root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on this machine; yield the address."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
