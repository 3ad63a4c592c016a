"""The live page: who can read it, what it shows while a sweep runs, and what it keeps."""

import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascl_sweep.contracts import RunRow
from ascl_sweep.errors import UsageError
from ascl_sweep.report import live
from ascl_sweep.report.formats.html.page import render_page
from ascl_sweep.report.live import LivePage, LiveServer
from ascl_sweep.report.report import build_report
from ascl_sweep.store.store import Store, Writer
from tests.ascl_sweep.conftest import Ask
from tests.stores import ASCL, MOCO, RELABEL, example, run, sweep, table
from tests.sweeps import GRID, command, environment, wait_until, write

SOON = 5.0  # seconds within which the page shows a new epoch
LONGER = GRID.replace("epochs: 5", "epochs: 40")


def put_epoch(writer: Writer, row: RunRow, epoch: int, score: float) -> None:
    writer.put_epoch(row.run_id, {"epoch": epoch, "knn_top1": score})
    writer.put_run(replace(row, epochs=epoch, knn_last_top1=score))
    writer.flush()


def put_sweep(writer: Writer, name: str = "it") -> RunRow:
    """Write a sweep with a complete run, a failed run and a running run; return the latter."""
    writer.put_sweep(sweep(name, (RELABEL,), table=table(RELABEL, "knn_top1")))
    for row in (
        run(name, MOCO, 0, 60.0),
        run(name, MOCO, 1, state="failed", error="out of memory"),
    ):
        writer.put_run(row)
    running = run(name, ASCL, 0, state="running")
    put_epoch(writer, running, 1, 0.111)
    return running


# --- requests -----------------------------------------------------------------------------------


@contextmanager
def serving(page: LivePage) -> Iterator[LiveServer]:
    server = LiveServer(page)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(LivePage(example(tmp_path_factory.mktemp("live")))) as server:
        yield server


def ask_server(
    server: LiveServer, path: str, method: str = "GET", hosts: tuple[str, ...] | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """Return status, headers and body of an answer."""
    port = server.server_port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        for host in (f"127.0.0.1:{port}",) if hosts is None else hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_the_server_listens_on_loopback_only(server: LiveServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(server.token) >= 40


def test_each_server_has_its_own_token(server: LiveServer) -> None:
    with LiveServer(server.page) as other:
        assert other.token != server.token


@pytest.mark.parametrize(
    "path",
    ["/", "/update", "//", "/x/", "/{}x/", "/x{}/", "/?{}", "/x/../{}/", "/é/",
     "/favicon.ico", "/%2e%2e/etc/passwd", "*"],
)  # fmt: skip
def test_without_the_token_every_path_is_refused(server: LiveServer, path: str) -> None:
    sent = path.format(server.token).encode().decode("latin-1")
    connection = socket.create_connection(("127.0.0.1", server.server_port), 30)
    with connection, connection.makefile("rb") as answer:
        words = f"GET {sent} HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n\r\n"
        connection.sendall(words.encode("latin-1"))
        text = answer.read().decode()
    assert text.startswith("HTTP/1.0 403 ")
    assert server.token not in text and "CIFAR" not in text


@pytest.mark.parametrize(
    "hosts",
    [(), ("evil.example",), ("127.0.0.1",), ("localhost",), ("127.0.0.1:1",), ("0.0.0.0:{}",),
     ("localhost.evil.example:{}",), ("127.0.0.1:{}", "evil.example")],
)  # fmt: skip
def test_a_site_that_resolves_to_loopback_is_refused(
    server: LiveServer, hosts: tuple[str, ...]
) -> None:
    named = tuple(host.format(server.server_port) for host in hosts)
    status, _, text = ask_server(server, f"/{server.token}/", hosts=named)
    assert status == 403 and "CIFAR" not in text


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "LOCALHOST:{}"])
def test_the_names_of_loopback_are_accepted(server: LiveServer, host: str) -> None:
    named = (host.format(server.server_port),)
    status, _, text = ask_server(server, f"/{server.token}/", hosts=named)
    assert status == 200 and text.startswith("<!doctype html>")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "ODD"])
def test_only_get_is_supported(server: LiveServer, method: str) -> None:
    status, headers, _ = ask_server(server, f"/{server.token}/", method)
    assert (status, headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["page.js", "../", "runs/", "update/", "update/x", "//", "stop"])
def test_nothing_else_is_served(server: LiveServer, path: str) -> None:
    status, _, text = ask_server(server, f"/{server.token}/{path}")
    assert (status, text) == (404, "There is no such page.\n")


@pytest.mark.parametrize("path", ["{}/", "{}/update", "{}/nothing", "wrong/"])
def test_no_answer_is_stored_or_framed_or_names_its_address(server: LiveServer, path: str) -> None:
    _, headers, _ = ask_server(server, f"/{path.format(server.token)}")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"


def test_a_page_may_connect_to_its_server_only_and_a_file_to_nothing(server: LiveServer) -> None:
    text = ask_server(server, f"/{server.token}/")[2]
    store = server.page.store
    file = render_page(build_report(store), store, {})

    def policy(page: str) -> str:
        return page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]

    assert policy(text).endswith("; connect-src &#x27;self&#x27;")
    assert policy(text).startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert policy(file).startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "connect-src" not in policy(file)
    before, _, plotly = file.partition('id="plotly">')
    ours = before + plotly.partition("</script>")[2]
    assert "fetch(" in text and "fetch(" not in ours
    assert 'id="live"' not in ours and "#running" not in ours and "#notice" not in ours


def test_an_update_has_content_only_for_another_version(server: LiveServer) -> None:
    path = f"/{server.token}/update?version="
    status, headers, text = ask_server(server, path)
    first = json.loads(text)
    assert status == 200 and headers["Content-Type"].startswith("application/json")
    assert first["content"].keys() == {"choices", "body", "report", "runs"}
    again = json.loads(ask_server(server, path + first["version"])[2])
    assert again == {"version": first["version"], "notice": "", "content": None}


def test_a_used_port_is_reported_in_one_sentence(server: LiveServer) -> None:
    with pytest.raises(UsageError, match=r"--port \d+ cannot be used: Address already in use; "):
        LiveServer(server.page, server.server_port)


# --- content ------------------------------------------------------------------------------------


def shown(page: LivePage) -> str:
    """Return the HTML that an update brings."""
    content = json.loads(page.render_update(""))["content"]
    return str(content["body"])


def version(page: LivePage) -> str:
    return str(json.loads(page.render_update(""))["version"])


def test_a_new_epoch_is_shown(tmp_path: Path) -> None:
    with Store(tmp_path).writer() as writer:
        running = put_sweep(writer)
        page = LivePage(Store(tmp_path))
        assert "1 of 200" in shown(page) and "11.10" in shown(page)
        before = version(page)
        page.refresh()
        assert version(page) == before
        put_epoch(writer, running, 2, 0.222)
        assert version(page) == before, "the store is read by `refresh` only"
        page.refresh()
        assert version(page) != before
        assert "2 of 200" in shown(page) and "22.20" in shown(page)
        assert page.render().count("22.20") == 1


def test_only_a_change_of_the_results_is_a_new_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path).writer() as writer:
        put_sweep(writer)
    page = LivePage(Store(tmp_path))
    before = version(page)
    with Store(tmp_path).writer() as writer:
        writer.compact()
    page.refresh()
    assert version(page) == before
    monkeypatch.setattr(live, "build_report", None)  # not called: the store has not changed
    page.refresh()
    assert page.notice == ""


def test_without_a_driver_no_run_is_shown_as_running(tmp_path: Path) -> None:
    with Store(tmp_path).writer() as writer:
        put_sweep(writer)
        page = LivePage(Store(tmp_path))
        assert "1 run in training." in shown(page)
    page.refresh()
    assert "No process writes to the store, so no run trains. 1 run did not end" in shown(page)


def test_a_store_without_a_sweep_shows_its_first_one_later(tmp_path: Path) -> None:
    page = LivePage(Store(tmp_path / "store"))
    assert page.is_empty and "No results yet." in shown(page)
    page.refresh()
    assert page.notice == "" and not (tmp_path / "store").exists()
    with Store(tmp_path / "store").writer() as writer:
        put_sweep(writer)
        page.refresh()
    assert "1 run in training." in shown(page) and "No results yet." not in shown(page)


def test_an_unreachable_store_keeps_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: Store) -> None:
        raise OSError(5, "Input/output error")

    with Store(tmp_path).writer() as writer:
        running = put_sweep(writer)
        page = LivePage(Store(tmp_path))
        before = shown(page)
        put_epoch(writer, running, 2, 0.222)
        for method in ("version", "driver", "runs"):
            with monkeypatch.context() as patch:
                patch.setattr(Store, method, fail)
                page.refresh()
            assert page.notice == "The page is not updated: [Errno 5] Input/output error"
            assert shown(page) == before
        page.refresh()
        assert page.notice == "" and "22.20" in shown(page)


def test_a_store_that_is_gone_keeps_the_content(tmp_path: Path) -> None:
    with Store(tmp_path / "store").writer() as writer:
        put_sweep(writer)
    page = LivePage(Store(tmp_path / "store"))
    before = shown(page)
    (tmp_path / "store").rename(tmp_path / "moved")
    page.refresh()
    assert "has no sweep any more" in page.notice and shown(page) == before
    (tmp_path / "moved").rename(tmp_path / "store")
    page.refresh()
    assert page.notice == "" and shown(page) == before


def test_a_half_written_file_keeps_the_content_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path).writer() as writer:
        put_sweep(writer)
    page = LivePage(Store(tmp_path))
    before = shown(page)
    file = next((tmp_path / "runs").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    page.refresh()
    assert "results would be missing" in page.notice and file.name in page.notice
    assert shown(page) == before
    file.write_bytes(whole)
    page.refresh()
    assert page.notice == "" and shown(page) == before

    file.write_bytes(whole[:100])
    page.refresh()
    monkeypatch.setattr(live, "PATIENCE", -1.0)
    page.refresh()
    assert page.notice == "" and "1 file of the store could not be read" in shown(page)
    file.write_bytes(whole)
    page.refresh()
    assert shown(page) == before


def test_a_bug_does_not_end_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path).writer() as writer:
        running = put_sweep(writer)
        page = LivePage(Store(tmp_path))
        put_epoch(writer, running, 2, 0.222)
        with monkeypatch.context() as patch:
            patch.setattr(live, "render_running", lambda *_: 1 / 0)
            page.refresh()
        assert page.notice == "The page is not updated (internal error): division by zero"
        page.refresh()
        assert page.notice == "" and "22.20" in shown(page)


def test_a_wrong_sweep_is_refused_at_once(tmp_path: Path) -> None:
    with Store(tmp_path).writer() as writer:
        put_sweep(writer)
    with pytest.raises(UsageError, match="no sweep named 'that'"):
        LivePage(Store(tmp_path), ["that"])


def test_the_store_is_read_only_while_a_page_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REFRESH_SECONDS", 0.01)
    page = LivePage(Store(tmp_path))
    refreshed: list[float] = []
    monkeypatch.setattr(page, "refresh", lambda: refreshed.append(time.monotonic()))
    with serving(page) as server:
        wait_until(lambda: len(refreshed) > 2, seconds=30)
        server.asked -= live.IDLE_SECONDS
        time.sleep(0.1)
        count = len(refreshed)
        time.sleep(0.2)
        assert len(refreshed) == count
        ask_server(server, f"/{server.token}/update")
        wait_until(lambda: len(refreshed) > count, seconds=30)


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--watch", "--out", "r.html"], "--watch serves the HTML page; omit --format, --out, --f"),
        (["--watch", "--figures", "f"], "--watch serves the HTML page; omit --format, --out, --f"),
        (["--watch", "--format", "md"], "--watch serves the HTML page; omit --format, --out, --f"),
        (["--watch", "--verify", "r.md"], "--verify reads its options from the file"),
        (["--port", "8000"], "--port needs --watch"),
        (["--watch", "neighbors"], "no sweep named 'neighbors' (did you mean 'neighbours'?)"),
    ],
)
def test_an_impossible_request_is_refused(ask: Ask, words: list[str], part: str) -> None:
    example("results")
    said = ask("report", *words)
    assert said.exit_code == 2 and said.stdout == ""
    assert said.stderr.startswith("error: ") and part in said.stderr
    assert len(said.stderr.splitlines()) == 1


@contextmanager
def watching(store: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start the command; its first line on stdout is the URL."""
    words = command("report", "--watch", "--format", "html", "--store", store)
    pipe = subprocess.PIPE
    started = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment())
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_url_is_data_and_ctrl_c_is_a_clean_end(ask: Ask, tmp_path: Path) -> None:
    with watching(tmp_path / "store") as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/[\w-]{43}/\n", url)
        assert found
        said = ask("report", "--watch", "--port", found[1], "--store", tmp_path / "store")
        assert said.exit_code == 2 and said.stdout == ""
        assert said.stderr.startswith(f"error: --port {found[1]} cannot be used: Address already")
        first = process.stderr.readline()
        assert first.startswith("no sweep in ") and "press Ctrl-C" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "stopped\n")


# --- in the browser -----------------------------------------------------------------------------


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[[str], Any]]:
    """Open a live page; fail if the page logged an error or asked another server."""
    wrong: list[str] = []
    contexts = []

    def open_page(url: str) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 700})
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        # A test may end the server.
        expected = "Failed to load resource: net::ERR_CONNECTION_REFUSED"
        tab.on(
            "console",
            lambda m: wrong.append(m.text) if m.type == "error" and m.text != expected else None,
        )

        def check(request: Any) -> None:
            if not request.url.startswith(("data:", "blob:", url)):
                wrong.append(f"asked for {request.url}")

        tab.on("request", check)
        tab.goto(url)
        # Lost if the page is loaded again.
        tab.evaluate("window.opened = true")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.mark.slow
def test_an_update_keeps_what_the_reader_did(opened: Callable[[str], Any], tmp_path: Path) -> None:
    with Store(tmp_path).writer() as writer, serving(LivePage(Store(tmp_path))) as server:
        tab = opened(server.url)
        assert "No results yet." in tab.inner_text("#running")
        running = put_sweep(writer)
        put_epoch(writer, running, 2, 0.222)
        tab.wait_for_selector("#running .drawn", timeout=30_000)
        assert tab.locator("#sweep-filter option").all_inner_texts() == ["all", "it"]

        zoom = "document.querySelector('#running .plot').layout.xaxis.range[1]"
        area = tab.locator("#running .nsewdrag").bounding_box()
        tab.mouse.move(area["x"] + 10, area["y"] + 10)
        tab.mouse.down()
        tab.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2, steps=5)
        tab.mouse.up()
        tab.wait_for_function(f"{zoom} < 1.9")
        zoomed = tab.evaluate(zoom)
        tab.select_option("#sweep-filter", "it")
        tab.locator("summary", has_text="Sweep file").click()
        tab.fill("#text", "MoCo")
        tab.check("#states input[value=failed]")
        tab.check("#states input[value=running]")
        tab.fill("#text", "")
        tab.wait_for_function("document.querySelectorAll('#list .run').length === 2")
        by_knn = tab.locator("#list thead button", has_text="kNN")
        by_knn.click()
        tab.locator("#list .run", has_text=running.run_id).click()
        curve = tab.locator(".details svg.curve")
        assert "epoch 2, at most 22.20%" in curve.get_attribute("aria-label")
        opener = tab.locator("#list .run[aria-expanded=true]")
        top = opener.bounding_box()["y"]
        assert tab.evaluate("scrollY") > 0

        for row in (run("more", ASCL, 0, 70.0), run("it", MOCO, 2, 61.0)):
            writer.put_run(row)
        writer.put_sweep(sweep("more", (RELABEL,), started=1.0))
        put_epoch(writer, running, 3, 0.333)
        tab.wait_for_selector(".details svg.curve[aria-label*='epoch 3, at most 33.30%']")

        assert tab.evaluate("window.opened")
        assert tab.evaluate(zoom) == zoomed
        assert tab.locator("#sweep-filter option").all_inner_texts() == ["all", "it", "more"]
        assert tab.input_value("#sweep-filter") == "it"
        shown = tab.locator("section.sweep:visible")
        assert [part.get_attribute("data-sweep") for part in shown.all()] == ["it", "it"], (
            "the sweep and its appendix"
        )
        assert tab.locator("details[open]").count() == 1
        assert tab.is_checked("#states input[value=running]")
        assert tab.locator("th[aria-sort=descending]").inner_text() == "kNN %"
        assert tab.locator("#list .run").count() == 2
        assert opener.inner_text() == running.run_id
        assert tab.evaluate("document.activeElement.textContent") == running.run_id
        assert opener.bounding_box()["y"] == pytest.approx(top, abs=1)
        assert tab.locator("#states label", has_text="done").inner_text().split() == ["done", "3"]

        shutil.move(tmp_path / "sweeps", tmp_path / "elsewhere")
        tab.wait_for_selector("#notice:visible", timeout=30_000)
        assert "has no sweep any more" in tab.inner_text("#notice")
        assert tab.inner_text("#clock").startswith("last update ")
        assert tab.locator("#list .run").count() == 2
        shutil.move(tmp_path / "elsewhere", tmp_path / "sweeps")
        tab.wait_for_selector("#notice", state="hidden", timeout=30_000)
        server.page.refresh()
    tab.wait_for_selector("#notice:visible", timeout=30_000)
    assert "the server does not answer" in tab.inner_text("#notice")
    assert tab.locator("#list .run").count() == 2


@pytest.mark.slow
def test_the_epochs_of_a_real_sweep_appear_without_a_reload(
    opened: Callable[[str], Any], tmp_path: Path
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    file = write(tmp_path, LONGER)
    with watching(store) as process, log.open("wb") as out:
        assert process.stdout is not None
        tab = opened(process.stdout.readline().strip())
        words = command("run", file, "--executor", "local", "--yes", "--store", store)
        driver = subprocess.Popen(words, stdout=out, stderr=out, env=environment())
        try:
            tab.wait_for_selector("#running .drawn", timeout=200_000)
            first = tab.inner_text("#running tbody th")
            epoch = len(Store(store).epochs()[first])
            tab.wait_for_function(
                """([run, epoch]) => {
                  const shown = document.querySelector("#running tbody tr");
                  const [first, , , epochs] = [...(shown?.cells ?? [])].map((c) => c.innerText);
                  return shown && (first !== run || parseInt(epochs) >= epoch);
                }""",
                arg=[first, epoch],
                timeout=1000 * SOON,
            )
            points = "document.querySelector('#running .plot').data[0].x.length"
            before = tab.evaluate(points)
            tab.wait_for_function(f"{points} > {before}", timeout=60_000)
            wait_until(lambda: "done" in {r.state for r in Store(store).runs().values()}, log)
            tab.wait_for_selector("#list .state.done", timeout=1000 * SOON)
            assert tab.evaluate("window.opened")
        finally:
            driver.kill()
            driver.wait()
        tab.wait_for_function(
            "document.querySelector('#running').innerText.includes('No process writes')",
            timeout=2000 * SOON,
        )


@pytest.mark.slow
def test_requests_above_a_bound_are_closed_and_later_ones_answered(server: LiveServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.server_port), 30) for _ in range(30)]
    try:
        time.sleep(0.5)
        threads = [t for t in threading.enumerate() if "process_request_thread" in t.name]
        assert len(threads) <= 16
    finally:
        for each in idle:
            each.close()

    def is_answered() -> bool:
        with contextlib.suppress(ConnectionError):  # while the server still ends the idle requests
            return ask_server(server, f"/{server.token}/")[0] == 200
        return False

    wait_until(is_answered, seconds=30)
