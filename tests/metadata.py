"""A metadata server of a spot machine on AWS and on Google Cloud, without a notice at first."""

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

TOKEN = "a session token"


class Metadata:
    """The server; use it in a `with` block."""

    def __init__(self) -> None:
        self.answers = 0
        self.end: datetime | None = None
        """When the machine ends; None without a notice."""
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
                known = self.path == "/latest/api/token" and lifetime
                self.answer(*((200, TOKEN) if known else (404, "")))

            def do_GET(self) -> None:
                metadata.answers += 1
                if self.path == "/latest/meta-data/spot/instance-action":
                    self.answer(*metadata.aws(self.headers.get("X-aws-ec2-metadata-token")))
                elif self.path == "/computeMetadata/v1/instance/preempted":
                    self.answer(*metadata.gcp(self.headers.get("Metadata-Flavor")))
                else:
                    self.answer(404, "")

            def answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *words: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def announce(self, seconds: float) -> None:
        """Announce that the machine ends in some seconds."""
        self.end = datetime.now(UTC) + timedelta(seconds=seconds)

    def aws(self, token: str | None) -> tuple[int, str]:
        if token != TOKEN:
            return 401, ""
        if self.end is None:
            return 404, ""
        notice = {"action": "terminate", "time": f"{self.end:%Y-%m-%dT%H:%M:%SZ}"}
        return 200, json.dumps(notice)

    def gcp(self, flavor: str | None) -> tuple[int, str]:
        return (200, "TRUE" if self.end else "FALSE") if flavor == "Google" else (403, "")

    def __enter__(self) -> "Metadata":
        threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
