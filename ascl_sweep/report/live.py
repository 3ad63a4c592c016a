"""Live page of a report: a server on loopback whose page follows the store while sweeps run.

One thread reads the store while a page asks for updates; requests never wait for the store. Only
this machine can connect, and only with the random token in the URL.
"""

import hmac
import json
import logging
import secrets
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ascl_sweep.analysis.comparison import Options
from ascl_sweep.errors import AsclSweepError, UsageError
from ascl_sweep.report.formats.html.page import Content, build_content, render_content
from ascl_sweep.report.formats.html.running import render_running
from ascl_sweep.report.report import Extension, Report, build_report
from ascl_sweep.store.filesystem import File
from ascl_sweep.store.store import Store
from ascl_sweep.text import one_line

MOST_REQUESTS = 16  # at once
HOST = "127.0.0.1"
REFRESH_SECONDS = 0.5  # minimum pause between two looks at the store
IDLE_SECONDS = 10.0  # without a request for so long, the store is not read
SLOW_SECONDS = 10.0  # the page reports an update that takes longer
PATIENCE = 60.0  # for which unreadable files are expected to become readable
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}

logger = logging.getLogger("ascl_sweep")


class LivePage:
    """The current content of the page. `refresh` is called by one thread at a time."""

    def __init__(
        self,
        store: Store,
        sweeps: Sequence[str] = (),
        options: Options | None = None,
        extensions: Sequence[Extension] = (),
    ) -> None:
        """Read the store for the first time; arguments as for `build_report`.

        Raises:
            UsageError: The store has sweeps, but not these, or an option is invalid.
            OSError: The store is unreachable.
        """
        self.store, self._options = store, options or Options()
        self._sweeps, self._extensions = sweeps, extensions
        self._read: tuple[tuple[File, ...], bool] | None = None
        self._problems: frozenset[str] = frozenset()
        self._unreadable_since: float | None = None
        self._started: float | None = None
        self._notice = ""
        has_driver = self._has_driver()
        version = store.version(), has_driver
        self.is_empty = not store.sweeps()
        if self.is_empty:
            report = Report(store.address, self._options, (), tuple(store.problems))
        else:
            report = self._build_report()
            self._read = version
        self._show(report, has_driver)

    @property
    def notice(self) -> str:
        """Why the content is not up to date; empty if it is."""
        started = self._started
        if not self._notice and started is not None and time.monotonic() - started > SLOW_SECONDS:
            return "The store is slow to read. The page shows earlier results."
        return self._notice

    def refresh(self) -> None:
        """Read the store if it changed. On any error, keep the content and set the notice."""
        self._started = time.monotonic()
        try:
            self._notice = self._refresh()
        except (AsclSweepError, OSError) as error:
            self._notice = f"The page is not updated: {one_line(error)}"
        except Exception as error:  # a bug must not end the page, and the next store may be fine
            logger.exception("the live page was not updated")
            self._notice = f"The page is not updated (internal error): {one_line(error)}"
        finally:
            self._started = None

    def _refresh(self) -> str:
        """Update the content; return the notice."""
        has_driver = self._has_driver()
        version = self.store.version(), has_driver
        if version == self._read:
            return ""
        if not self.store.sweeps() and not self.store.problems:
            if self.is_empty:
                return ""
            return (
                f"The page is not updated: {self.store.address} has no sweep any more. Was the "
                "store moved or unmounted?"
            )
        report = self._build_report()
        if notice := self._wait_for_files(report.problems):
            return notice
        self._show(report, has_driver)
        self.is_empty, self._read = False, version
        return ""

    def _build_report(self) -> Report:
        return build_report(self.store, self._sweeps, self._options, self._extensions)

    def _has_driver(self) -> bool:
        return self.store.driver() is not None

    def _wait_for_files(self, problems: Sequence[str]) -> str:
        """Return a notice while files that were readable before may become readable again."""
        new = [problem for problem in problems if problem not in self._problems]
        if not new:
            self._unreadable_since = None
            return ""
        now = time.monotonic()
        self._unreadable_since = self._unreadable_since or now
        if now - self._unreadable_since > PATIENCE:
            return ""
        return f"The page is not updated, because results would be missing: {new[0]}"

    def _show(self, report: Report, has_driver: bool) -> None:
        self._problems = frozenset(report.problems)
        lead = render_running(report, self.store, has_driver)
        content = build_content(report, self.store, {}, lead)
        data = json.dumps(asdict(content))
        # One assignment: requests of other threads read it.
        self._shown = _Shown(sha256(data.encode()).hexdigest()[:16], content)

    def render(self) -> str:
        """Render the whole page."""
        shown = self._shown
        return render_content(shown.content, self.store.address, shown.version)

    def render_update(self, version: str) -> str:
        """Return the page's version, notice and, if `version` is another one, its content."""
        shown = self._shown
        content = None if version == shown.version else asdict(shown.content)
        answer = {"version": shown.version, "notice": self.notice, "content": content}
        return json.dumps(answer, ensure_ascii=False)


@dataclass(frozen=True)
class _Shown:
    version: str
    """Checksum of the content."""
    content: Content


# ---------------------------------------------------------------- server


class LiveServer(ThreadingHTTPServer):
    """Server of a live page on loopback."""

    daemon_threads = True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a request; close the connection if too many are under way."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def __init__(self, page: LivePage, port: int | None = None) -> None:
        """Open the port; None for a free one. Raises UsageError if the port cannot be used."""
        self.page = page
        self._slots = threading.Semaphore(MOST_REQUESTS)
        self.token = secrets.token_urlsafe(32)
        self.asked = time.monotonic()
        """When a page last asked for an update."""
        try:
            super().__init__((HOST, port or 0), _Handler)
        except OSError as error:
            raise UsageError(
                f"--port {port} cannot be used: {error.strerror}; choose another port, or omit "
                "--port for a free one"
            ) from error
        names = [f"{host}:{self.server_port}" for host in (HOST, "localhost")]
        self.hosts = frozenset(names + ([HOST, "localhost"] if self.server_port == 80 else []))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Bind without `HTTPServer.server_bind`, which asks DNS for the name of the host."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log errors of a request; a browser that closes a connection is no error."""
        logger.debug("a request to the live page failed", exc_info=True)

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Keep the content up to date while pages ask for it, in another thread."""
        ended = threading.Event()

        def loop() -> None:
            pause = REFRESH_SECONDS
            while not ended.wait(pause):
                if time.monotonic() - self.asked > IDLE_SECONDS:
                    continue
                start = time.monotonic()
                self.page.refresh()
                # Use at most half a core, which the sweep may need.
                pause = max(REFRESH_SECONDS, time.monotonic() - start)

        # A daemon: an unreachable store may block it for long.
        threading.Thread(target=loop, name="live-page", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def serve(self) -> None:
        """Serve the page until KeyboardInterrupt."""
        with self, self.follow():
            self.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 30
    server_version, sys_version = "ascl-sweep", ""
    error_content_type, error_message_format = "text/plain; charset=utf-8", "%(explain)s\n"

    def parse_request(self) -> bool:
        """Refuse requests of other sites and users before anything else is done."""
        if not super().parse_request():
            return False
        # A site whose name resolves to 127.0.0.1 (DNS rebinding) is of another host.
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return self._refuse(HTTPStatus.FORBIDDEN, "Open the page at 127.0.0.1 or localhost.")
        _, _, token = self.path.partition("?")[0].partition("/")
        token = token.partition("/")[0]
        if not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            wanted = "Open the URL that `ascl-sweep report --watch` printed."
            return self._refuse(HTTPStatus.FORBIDDEN, wanted)
        if self.command != "GET":
            return self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is supported.")
        return True

    def _refuse(self, status: HTTPStatus, reason: str) -> bool:
        self.send_error(status, explain=reason)
        return False

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = url.path.removeprefix(f"/{self.server.token}/")
        if name == "":
            self._send("text/html", self.server.page.render())
        elif name == "update":
            version = parse_qs(url.query).get("version", [""])[0]
            self._send("application/json", self.server.page.render_update(version))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _send(self, kind: str, text: str) -> None:
        self.server.asked = time.monotonic()
        body = text.encode(errors="replace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.command != "GET":
            self.send_header("Allow", "GET")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: paths contain the token."""
