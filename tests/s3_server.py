"""An S3 for tests that keeps its word: what it has answered outlives a kill -9.

moto plays S3 in memory. Here the whole of it is put on disk before any request that changes
something is answered, and read again at the next start: `python -m tests.s3_server PORT FILE`.
While a file `fault` beside FILE names a fault, requests are answered with it.
"""

import os
import pickle  # of what this module itself has written; the product reads no pickle
import sys
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends
from werkzeug.serving import run_simple

Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]
READS = ("GET", "HEAD", "OPTIONS")
SWITCH = "fault"
HANGS = "hangs"  # accepts requests and answers none
ERRORS = {
    "slow down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "expired": ("400 Bad Request", "ExpiredToken", "The provided token has expired."),
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied"),
}
ANSWERED = 5  # of so many requests, one is answered during `slow down`


class Durable:
    """Answers what moto answers, one request at a time: none sees what is not yet on disk."""

    def __init__(self, moto: Application, state: Path) -> None:
        self._moto, self._state, self._lock = moto, state, Lock()
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        self._buckets = backend.buckets  # with their keys, and the parts of unfinished uploads
        if state.exists():
            self._buckets.update(pickle.loads(state.read_bytes()))
            owner = backend.partition, DEFAULT_ACCOUNT_ID
            s3_backends.bucket_accounts.update(dict.fromkeys(self._buckets, owner))

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        with self._lock:
            answer = self._moto(environ, start_response)  # sent once we return it
            if environ["REQUEST_METHOD"] not in READS:
                half = self._state.with_suffix(".half")
                half.write_bytes(pickle.dumps(self._buckets))
                os.replace(half, self._state)
            return answer


class Faulty:
    """Answers requests with the fault that a file names, if the file exists."""

    def __init__(self, served: Application, switch: Path) -> None:
        self._served, self._switch, self._requests = served, switch, count()

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        fault = self._fault()
        while fault == HANGS:
            time.sleep(0.1)
            if (fault := self._fault()) != HANGS:
                fault = "slow down"  # for a client that still waits
        if not fault or (fault == "slow down" and next(self._requests) % ANSWERED == 0):
            return self._served(environ, start_response)
        _read_body(environ)
        status, code, message = ERRORS[fault]
        start_response(status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()]

    def _fault(self) -> str:
        try:
            return self._switch.read_text()
        except FileNotFoundError:
            return ""


def _read_body(environ: Environ) -> None:
    """Read the request; the client would not get an answer that is sent before."""
    if environ.get("wsgi.input_terminated"):  # its length is not known before its end
        environ["wsgi.input"].read()
    else:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))


def main(port: str, state: str) -> None:
    moto = DomainDispatcherApplication(create_backend_app)
    served = Faulty(Durable(moto, Path(state)), Path(state).with_name(SWITCH))
    handler = MotoRequestHandler
    run_simple("127.0.0.1", int(port), served, threaded=True, request_handler=handler)


if __name__ == "__main__":
    main(*sys.argv[1:])
