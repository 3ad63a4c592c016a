"""An S3 for tests that keeps its word: what it has answered outlives a kill -9.

moto plays S3 in memory. Here the whole of it is put on disk before any request that changes
something is answered, and read again at the next start: `python -m tests.s3_server PORT FILE`.
"""

import os
import pickle  # of what this module itself has written; the product reads no pickle
import sys
from collections.abc import Callable, Iterable
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


def main(port: str, state: str) -> None:
    moto = DomainDispatcherApplication(create_backend_app)
    served = Durable(moto, Path(state))
    handler = MotoRequestHandler
    run_simple("127.0.0.1", int(port), served, threaded=True, request_handler=handler)


if __name__ == "__main__":
    main(*sys.argv[1:])
