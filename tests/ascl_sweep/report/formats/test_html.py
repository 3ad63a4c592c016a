"""The HTML page: it opens from disk, needs no network, and works in Chromium."""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.analysis import importance as study
from ascl_sweep.analysis.comparison import Options
from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.report.document import build_document
from ascl_sweep.report.formats import latex, markdown
from ascl_sweep.report.formats.html import page as module
from ascl_sweep.report.formats.html import runs
from ascl_sweep.report.formats.html.page import render_page
from ascl_sweep.report.formats.html.runs import encode_runs
from ascl_sweep.report.formats.json import FORMAT as JSON
from ascl_sweep.report.report import Report, SweepReport, build_report
from ascl_sweep.report.tables import Table
from ascl_sweep.report.verify import verify
from ascl_sweep.spec.summary import SweepSummary
from ascl_sweep.store.store import Store, Writer
from ascl_sweep.text import duration
from tests import stores
from tests.stores import example

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror=\"window.hacked = 1\"> & 'x'"
)
BASE = {
    "seed": 0, "epochs": 6, "batch_size": 64, "method.name": "moco", "method.relabel": "none",
    "method.target_temperature": 0.05, "data.name": "cifar10", "data.holdout": 0.0,
    "optim.lr": 0.03, "eval.knn_k": 200, "augment.key": "weak",
}  # fmt: skip
DRAWN = {
    "method.target_temperature": '{"name": "FloatDistribution", "attributes": {"step": null, '
    '"low": 0.01, "high": 0.2, "log": true}}',
    "optim.lr": '{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.01, '
    '"high": 0.1, "log": false}}',
}


# --- a small store -----------------------------------------------------------------------------


def put(writer: Writer, run_id: str, sweep: str, final: float, **changes: Any) -> None:
    """Write a run with its epochs; `config` has the differences from BASE."""
    config = BASE | changes.pop("config", {})
    row = RunRow(run_id, (sweep,), config, "final", "full", "done", epochs=6, device_hours=0.5)
    row = replace(row, ended=1.7e9, log=f"/elsewhere/work/{run_id}/log.txt", host="node", **changes)
    scores = [final * (1 - 0.5 ** (epoch + 1)) for epoch in range(row.epochs)]
    for epoch, score in enumerate(scores, 1):
        writer.put_epoch(run_id, {"epoch": epoch, "knn_top1": score, "purity": 0.5, "loss": 1.0})
    last, best = (scores[-1], max(scores)) if scores else (None, None)
    writer.put_run(replace(row, knn_last_top1=last, knn_best_top1=best))


def fill(store: Path) -> None:
    """Two sweeps: a table with failures and hostile texts, and a search."""
    table = {"rows": "method.relabel", "columns": None, "metric": "knn_top1", "paper": None}
    table |= {"baseline": {"method.relabel": "none"}}
    axes = ("method.relabel", "augment.key")
    tau = SweepSummary(axes, {key: BASE[key] for key in axes}, (0, 1, 2), table=table)
    joint = SweepSummary(
        tuple(DRAWN), {"method.target_temperature": 0.05, "optim.lr": 0.03}, (0,),
        search=True, trials=9, finalists=1, distributions=DRAWN,
    )  # fmt: skip
    with Store(store).writer() as writer:
        for i, (name, digest) in enumerate((("tau", tau), ("joint", joint))):
            text = f"name: {name}  # {HOSTILE}\n"
            row = SweepRow(name, text, f"{name}.yaml", (), "full", 1e9 + i, 9, digest.to_json())
            writer.put_sweep(row)
        for relabel, gain in (("none", 0.0), ("ascl", 0.05), ("hard", 0.01)):
            for seed in range(3):
                config = {"method.relabel": relabel, "seed": seed}
                config |= {"augment.key": HOSTILE} if relabel == "hard" else {}
                run_id = f"{relabel}{seed}"
                bad = (
                    {"state": "failed", "epochs": 2, "error": HOSTILE} if run_id == "hard2" else {}
                )
                put(writer, run_id, "tau", 0.6 + gain + 0.01 * seed, config=config, **bad)
        for i in range(9):
            config = {"method.target_temperature": 0.02 * (i + 1), "optim.lr": 0.1 / (i + 1)}
            state = {"state": "stopped", "epochs": 2, "stopped_because": "ASHA at epoch 2"}
            config |= {"method.relabel": "ascl", "data.holdout": 0.1}
            late = state if i % 3 == 2 else {}
            put(writer, f"trial{i}", "joint", 0.5 + 0.01 * i, phase="search", config=config, **late)
    log = store / "work" / "hard2" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {i}\n" for i in range(40)) + HOSTILE + "\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Store, str]:
    store = tmp_path_factory.mktemp("page") / "store"
    fill(store)
    store = Store(store)
    report = build_report(store)
    return report, store, render_page(report, store, {})


def sheets(report: Report) -> list[Table]:
    return [b for section in build_document(report) for b in section.blocks if isinstance(b, Table)]


def block(text: str, name: str) -> str:
    """Return the content of a script element."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.S)
    assert found
    return found[1]


def strictly(text: str) -> Any:
    """Parse JSON as strictly as browsers do."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- the file -----------------------------------------------------------------------------------


class Outline(HTMLParser):
    """Elements and words of a page; fails if elements are not closed in order."""

    VOID = ("meta", "input", "br", "link", "img")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), "/".join(self.open)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes, _ in self.elements if tag in tags]


def test_the_page_is_well_formed_and_its_ids_are_its_own(
    made: tuple[Report, Store, str],
) -> None:
    found = Outline(made[2])
    ids = [attributes["id"] for _, attributes, _ in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(a["href"]) for a in found.all("a")]
    assert links and all(link[0] == "#" and link[1:] in ids for link in links)


def test_nothing_is_loaded_from_anywhere(made: tuple[Report, Store, str]) -> None:
    found = Outline(made[2])
    assert not found.all("link", "img", "iframe", "object", "embed")
    assert not any("src" in attributes for _, attributes, _ in found.elements)
    policy = next(a["content"] for a in found.all("meta") if "http-equiv" in a)
    assert policy is not None and "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


def test_it_can_be_read_out(made: tuple[Report, Store, str]) -> None:
    found = Outline(made[2])
    levels = [int(tag[1]) for tag, _, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(found.all("caption")) == len(found.all("table"))
    assert all(a.get("scope") in ("row", "col") for a in found.all("th"))
    pictures = [a for a in found.all("div") if a.get("role") == "img"]
    assert len(pictures) > 5 and all(len(a["aria-label"] or "") > 20 for a in pictures)
    assert found.all("html")[0]["lang"]


def test_every_sheet_of_the_report_is_there_with_all_its_cells(
    made: tuple[Report, Store, str],
) -> None:
    report, _, text = made
    words = Outline(text).words
    assert len(sheets(report)) >= 3
    for sheet in sheets(report):
        for word in [*sheet.header, *(cell.text for row in sheet.rows for cell in row)]:
            assert not word or word in words


def test_the_report_is_in_the_page_as_json(made: tuple[Report, Store, str]) -> None:
    report, _, text = made
    assert strictly(block(text, "report")) == json.loads(JSON.render(report))


def test_a_page_can_be_verified(tmp_path: Path) -> None:
    store = stores.example(tmp_path)
    found = verify(render_page(build_report(store), store, {}), store)
    assert found.numbers > 100 and not found.changes and not found.edited


def test_unreadable_files_are_reported_first(tmp_path: Path) -> None:
    store = stores.example(tmp_path)
    (tmp_path / "runs" / "00000099.parquet").write_bytes(b"<b>damaged</b>")
    words = " ".join(Outline(render_page(build_report(store), store, {})).words)
    assert words.index("could not be read") < words.index("MoCo")
    assert "00000099.parquet was skipped" in words


def test_device_time_is_shown_in_its_two_largest_units(tmp_path: Path) -> None:
    store = example(tmp_path)
    report = build_report(store)
    hours = sum({r.run_id: r.device_hours for s in report.sweeps for r in s.runs}.values())
    words = " ".join(Outline(render_page(report, store, {})).words)
    assert f"{duration(3600 * hours)} of device time" in words and "device-hours · " not in words


def test_the_same_report_gives_the_same_page(made: tuple[Report, Store, str]) -> None:
    report, store, text = made
    assert render_page(report, store, {}) == text


def bare(row: RunRow, sweep: SweepRow | None = None) -> Report:
    """A report on a sweep with this run and without tables."""
    sweep = sweep or SweepRow("s", "", "s.yaml", (), "full", 0.0, 1)
    only = SweepReport(sweep, SweepSummary(), {row.state: 1}, None, None, (row,))
    return Report("nowhere", Options(), (only,), ())


@settings(max_examples=40)
@given(text=st.text() | st.sampled_from(["</script>", "<!--<script>", "]]>", "\u2028", HOSTILE]))
def test_text_of_the_store_is_never_interpreted_as_html(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()  # as a store keeps it
    sweep = SweepRow(f"s{text}", text, text, (text,), "full", 0.0, 1)
    row = RunRow("r", (sweep.name,), {"method.name": text}, "final", "full", "failed", error=text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_plotly", lambda: "")
        made = render_page(bare(row, sweep), Store("nowhere"), {})
        empty = RunRow("r", ("s",), {}, "final", "full", "failed")
        plain = render_page(bare(empty), Store("nowhere"), {})
    tags = [tag for tag, _, _ in Outline(made).elements]
    assert tags == [tag for tag, _, _ in Outline(plain).elements]
    told = strictly(block(made, "runs-data"))
    assert told["columns"]["error"]["of"] == [text]
    assert told["config"]["method.name"]["of"] == [text]
    assert "<" not in block(made, "runs-data")


def test_what_is_not_a_number_does_not_break_the_page() -> None:
    row = RunRow(
        "r", ("s",), {"optim.lr": math.nan}, "final", "full", "diverged", epochs=1,
        knn_last_top1=math.nan, images_per_second=math.inf, device_hours=0.0, started=math.nan,
    )  # fmt: skip
    made = render_page(bare(row), Store("nowhere"), {})
    told = strictly(block(made, "runs-data"))
    assert told["columns"]["knn"]["of"] == [None]
    assert told["config"]["optim.lr"]["of"] == ["nan"]


# --- the runs, small ----------------------------------------------------------------------------


def points(column: list[Any]) -> dict[int, float]:
    """Decode a curve as the page's script does."""
    first, step, text = column
    values = np.frombuffer(base64.b64decode(text), "<u2")
    return {first + step * i: v / runs.FULL for i, v in enumerate(values) if v <= runs.FULL}


@given(
    scores=st.dictionaries(
        st.integers(1, 700), st.none() | st.floats(0, 1), min_size=1, max_size=40
    ),
    most=st.integers(1, 300),
)
def test_a_curve_keeps_its_points_and_always_its_last(
    scores: dict[int, float | None], most: int
) -> None:
    epochs = np.array(sorted(scores))
    values = np.array([np.nan if scores[e] is None else scores[e] for e in epochs], np.float64)
    found = points(list(runs._curve(epochs, values, most)))
    assert len(found) <= most
    assert all(found[e] == pytest.approx(scores[e], abs=1e-5) for e in found)
    last = int(epochs[-1])
    assert (last in found) == (scores[last] is not None)
    if last - epochs[0] < most:
        assert found.keys() == {e for e in scores if scores[e] is not None}


def test_every_run_of_a_report_is_in_its_data_once(made: tuple[Report, Store, str]) -> None:
    report, store, _ = made
    told = encode_runs(report, store)
    assert told["count"] == 18
    known = store.runs()
    for i, run_id in enumerate(told["columns"]["id"]["of"]):
        keys = {}
        for key, column in told["config"].items():
            at = column["at"][i] if "at" in column else 0
            if at >= 0:
                keys[key] = column["of"][at]
        assert keys == {key: str(value) for key, value in known[run_id].config.items()}


def test_keys_that_all_runs_share_cost_nothing_per_run() -> None:
    def size(count: int, keys: int) -> int:
        config = {f"optim.setting_{i}": 0.1 * i for i in range(keys)}
        rows = [RunRow(f"{i:012x}", ("s",), config, "final", "full") for i in range(count)]
        sweep = SweepRow("s", "", "", (), "full", 0.0, 1)
        found = SweepReport(sweep, SweepSummary(), {}, None, None, tuple(rows))
        report = Report("", Options(), (found,), ())
        return len(json.dumps(encode_runs(report, Store("nowhere"))))

    assert size(200, 50) - size(200, 0) == size(1, 50) - size(1, 0)


def test_a_log_is_shown_by_its_end_wherever_the_store_lies_now(
    made: tuple[Report, Store, str],
) -> None:
    report, store, _ = made
    told = encode_runs(report, store)["columns"]
    tail = [text for text in told["tail"]["of"] if text]
    assert len(tail) == 1
    assert tail[0].splitlines() == [f"line {i}" for i in range(29, 40)] + [HOSTILE]
    assert told["log"]["of"] == ["/elsewhere/work/*/log.txt"]


def test_logs_of_failures_come_first_and_all_together_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LOGS_BYTES", 1)
    store = Store(tmp_path)
    states = ("done", "failed", "done")
    rows = [
        RunRow(f"r{i}", ("s",), {}, "final", "full", state, log=f"/r{i}/log.txt")
        for i, state in enumerate(states)
    ]
    for row in rows:
        Path(store.work(row.run_id)).mkdir(parents=True)
        (Path(store.work(row.run_id)) / "log.txt").write_text("a line\n")
    assert runs._tails(rows, store) == {"r1": "a line"}


def test_only_files_of_the_store_are_read_as_logs(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    store = Store(tmp_path / "store")
    for run_id, log in (("r", str(secret)), ("../secret", str(secret)), ("..", "/x/.."), ("r", "")):
        row = RunRow(run_id, ("s",), {}, "final", "full", "failed", log=log)
        assert runs._tail(row, store) is None


# --- Optuna plots -------------------------------------------------------------------------


def trials(count: int) -> list[RunRow]:
    def config(i: int) -> dict[str, Any]:
        return {"method.target_temperature": 0.01 + 0.19 * i / count, "optim.lr": 0.05}

    return [
        RunRow(
            f"r{i}", ("s",), config(i), "search", "full", "done", epochs=6, knn_last_top1=i / 999
        )
        for i in range(count)
    ]


def test_optunas_plots_call_keys_as_people_do_and_are_json() -> None:
    drawn = study.plots(DRAWN, trials(9), ["lr", "τ'"])
    assert [title.split()[0] for title in drawn] == [
        *("Optimization", "Parallel", "Slices", "Contours")
    ]
    assert "Contours of lr, τ'" in drawn
    for text in drawn.values():
        figure = strictly(text)
        assert figure["data"]
        assert "target_temperature" not in text and not figure["layout"].get("template")


def test_optunas_plots_say_nothing_of_few_trials_and_show_the_best_of_many() -> None:
    assert study.plots(DRAWN, trials(study.FEW - 1)) == {}
    drawn = study.plots(DRAWN, trials(study.MOST + 50))
    history, parallel = (strictly(drawn[title]) for title in list(drawn)[:2])
    assert len(history["data"][0]["y"]) == study.MOST + 50
    assert list(drawn)[1].endswith(f", the best {study.MOST} of {study.MOST + 50} trials")
    assert len(parallel["data"]) == study.MOST + 1  # and the color scale


# --- in the browser -----------------------------------------------------------------------------


@pytest.fixture
def opened(
    browser: Any, made: tuple[Report, Store, str], tmp_path: Path
) -> Iterator[Callable[..., Any]]:
    """Open the page from disk; fail if the page logged an error or used the network."""
    file = tmp_path / "report.html"
    file.write_text(made[2], "utf-8")
    wrong: list[str] = []
    contexts = []

    def open_page(width: int = 1280, height: int = 500, setup: str = "", **options: Any) -> Any:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, **options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        tab = context.new_page()
        if setup:
            tab.add_init_script(setup)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("requestfailed", lambda request: wrong.append(request.url))
        tab.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)

        def watch(request: Any) -> None:
            if not request.url.startswith(("data:", "blob:", file.as_uri())):
                wrong.append(f"asked for {request.url}")

        tab.on("request", watch)
        tab.goto(file.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def look_through(tab: Any) -> None:
    """Open all details and scroll past all figures."""
    tab.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    for figure in tab.locator("figure.plotted").all():
        figure.scroll_into_view_if_needed()
        tab.wait_for_function("f => f.classList.contains('drawn')", arg=figure.element_handle())


def listed(tab: Any) -> list[str]:
    return [text.strip() for text in tab.locator("#list .run").all_inner_texts()]


def wait_for_runs(tab: Any, ids: list[str]) -> None:
    shown = "[...document.querySelectorAll('#list .run')].map(run => run.textContent).join()"
    tab.wait_for_function(f"ids => {shown} === ids", arg=",".join(ids))


@pytest.mark.slow
def test_figures_are_drawn_when_they_come_into_sight_and_hostile_texts_stay_text(
    opened: Callable[..., Any],
) -> None:
    tab = opened()
    tab.wait_for_function("document.readyState === 'complete'")
    figures = tab.locator("figure.plotted")
    assert figures.count() > tab.locator("figure.drawn").count()
    look_through(tab)
    assert tab.locator("figure.drawn").count() == figures.count()
    empty = "f => !f.querySelector('svg.main-svg')"
    assert not any(figure.evaluate(empty) for figure in figures.all())

    for run_id in ("hard2", "trial2"):
        tab.locator(".run", has_text=run_id).click()
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img").count() == 0
    assert HOSTILE in tab.locator("section.sweep pre").first.inner_text()
    assert HOSTILE in tab.locator("figure.plotted").first.inner_text()  # in its legend


@pytest.mark.slow
def test_runs_are_filtered_by_sweep_by_state_and_by_text(opened: Callable[..., Any]) -> None:
    tab = opened()
    assert len(listed(tab)) == 18
    tab.check("#states input[value=failed]")
    assert listed(tab) == ["hard2"]
    tab.check("#states input[value=stopped]")
    assert len(listed(tab)) == 4
    tab.select_option("#sweep-filter", "joint")
    assert listed(tab) == ["trial2", "trial5", "trial8"]
    assert tab.locator("section.sweep:visible").count() == 2, "with its appendix"
    tab.select_option("#sweep-filter", "")
    tab.uncheck("#states input[value=failed]")
    tab.uncheck("#states input[value=stopped]")
    assert tab.locator("section.sweep:visible").count() == 4

    for text, ids in {
        "ASCL seed=1 tau": ["ascl1"],
        "method.target_temperature=0.06": ["trial2"],
        "failed onerror=": ["hard2"],
        "batch_size=64 hard": ["hard0", "hard1", "hard2"],  # a key that all runs share
        "no such run": [],
    }.items():
        tab.fill("#text", text)
        wait_for_runs(tab, ids)
    assert "No run matches; remove a filter." in tab.inner_text("#found")


@pytest.mark.slow
def test_runs_are_sorted_by_any_column(opened: Callable[..., Any]) -> None:
    tab = opened()
    button = tab.locator("#list thead button", has_text="kNN")
    scores = "[...document.querySelectorAll('#list tbody tr')].map(r => +r.cells[7].innerText)"
    button.click()
    found = tab.evaluate(scores)
    assert found == sorted(found, reverse=True)
    button.click()
    assert tab.evaluate(scores) == sorted(found)
    assert tab.locator("th[aria-sort=ascending]").inner_text().startswith("kNN")


@pytest.mark.slow
def test_many_runs_come_a_page_at_a_time(opened: Callable[..., Any]) -> None:
    tab = opened(
        setup="""
        new MutationObserver(() => {
          const data = document.querySelector("#runs-data");
          if (!data || data.dataset.grown || !document.querySelector("#plotly")) return;
          const told = JSON.parse(data.textContent);
          told.count = 120;
          for (const column of [...Object.values(told.columns), ...Object.values(told.config)])
            if (column.at) column.at = Array.from({length: 120}, (_, i) => column.at[i % 18]);
          data.textContent = JSON.stringify(told);
          data.dataset.grown = 1;
        }).observe(document, {childList: true, subtree: true});
        """
    )
    assert (len(listed(tab)), tab.inner_text("#found")) == (50, "120 runs, 1 to 50 shown")
    tab.click("#after")
    tab.click("#after")
    assert (len(listed(tab)), tab.is_disabled("#after")) == (20, True)
    tab.click("#before")
    assert tab.inner_text("#found") == "120 runs, 51 to 100 shown"


@pytest.mark.slow
def test_the_keyboard_reaches_everything(opened: Callable[..., Any]) -> None:
    tab = opened()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"

    tab.focus("#states input >> nth=-1")
    for _ in range(20):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.className") == "run":
            break
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.keyboard.press("Enter")
    assert tab.locator(".run[aria-expanded=true]").count() == 1
    details = tab.locator(".details")
    assert details.is_visible()
    assert "method.relabel" in details.inner_text()
    tab.keyboard.press("Enter")
    assert details.count() == 0

    summary = tab.locator("details > summary").first
    summary.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("details[open]").count() == 1


@pytest.mark.slow
def test_a_runs_details_tell_its_config_curve_error_and_log(opened: Callable[..., Any]) -> None:
    tab = opened()
    tab.locator(".run", has_text="hard2").click()
    details = tab.locator(".details")
    assert details.locator(".because").inner_text() == HOSTILE
    said = details.locator("svg.curve").get_attribute("aria-label")
    assert "epoch 1, " in said and "epoch 2, at most" in said
    assert details.locator("pre").inner_text().splitlines()[-1] == HOSTILE
    assert details.locator("pre").inner_text().startswith("line 29")
    assert details.locator(".path").inner_text() == "/elsewhere/work/hard2/log.txt"
    assert (
        details.locator("dl > div", has_text="method.relabel").locator("dd").inner_text() == "hard"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("preferred", "other"), [("light", "dark"), ("dark", "light")])
def test_it_is_dark_where_the_reader_prefers_or_chooses_it(
    opened: Callable[..., Any], preferred: str, other: str
) -> None:
    def shade(tab: Any) -> str:
        color = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        return "dark" if sum(map(int, re.findall(r"\d+", color)[:3])) < 384 else "light"

    tab = opened(color_scheme=preferred)
    assert shade(tab) == preferred
    assert tab.get_attribute("#theme", "aria-pressed") == str(preferred == "dark").lower()
    tab.click("#theme")
    assert shade(tab) == other
    assert tab.get_attribute("#theme", "aria-pressed") == str(other == "dark").lower()
    tab.reload()
    assert shade(tab) == other  # it is remembered


@pytest.mark.slow
def test_a_phone_scrolls_tables_and_never_the_page_sideways(opened: Callable[..., Any]) -> None:
    tab = opened(375, 800, has_touch=True, is_mobile=True)
    look_through(tab)
    tab.locator(".run", has_text="hard2").click()
    assert tab.evaluate("document.documentElement.scrollWidth") == 375
    wide = tab.locator(".scroll").filter(has_text="seeds needed")
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth && box.tabIndex === 0")
    assert tab.locator(".details").evaluate("e => e.getBoundingClientRect().right") <= 375


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["", "navigator.clipboard.writeText = () => Promise.reject()"])
def test_a_copied_table_is_what_the_other_formats_write(
    opened: Callable[..., Any], made: tuple[Report, Store, str], setup: str
) -> None:
    tab = opened(setup=setup)
    report = made[0]
    whole = markdown.FORMAT.render(report)
    written = {"latex": latex.render_table, "markdown": markdown.render_table}
    for sheet in sheets(report):
        table = tab.locator(f"[id='table-{sheet.name}']")
        for name, write in written.items():
            wanted = write(sheet)
            assert wanted in whole or name == "latex"
            table.locator(f"button[data-copy={name}]").click()
            tab.wait_for_function(
                "async wanted => (await navigator.clipboard.readText()) === wanted", arg=wanted
            )
    said = tab.locator("#said[role=status]", has_text="Copied the table as Markdown.")
    said.wait_for(state="attached")


@pytest.mark.slow
def test_a_figure_can_be_saved_and_reset(opened: Callable[..., Any], tmp_path: Path) -> None:
    tab = opened()
    figure = tab.locator("figure.plotted").first
    with tab.expect_download() as download:
        figure.locator("[data-save]").click()
    download.value.save_as(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
    figure.locator("[data-reset]").click()
    assert figure.locator("svg.main-svg").count() > 0
