"""`ascl-sweep report`, as a user meets it."""

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from ascl_sweep import parquet
from ascl_sweep.cli import app
from tests.ledgers import (
    ASCL,
    MOCO,
    RELABEL,
    TEMPERATURE,
    arm,
    example,
    in_order,
    run,
    sweep,
    table,
    write,
)

Ask = Callable[..., Result]
STORE = "results"


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, ["report", *map(str, words)])


def fails(said: Result, *parts: str, code: int = 2) -> None:
    """One sentence on stderr, nothing on stdout."""
    assert said.exit_code == code, (said.stdout, said.stderr)
    assert said.stdout == "" and "Traceback" not in said.stderr
    assert said.stderr.startswith("error: ")
    for part in parts:
        assert part in said.stderr


def test_without_arguments_every_sweep_is_reported_in_markdown(ask: Ask) -> None:
    example(STORE)
    said = ask()
    assert said.exit_code == 0 and said.stderr == ""
    assert said.stdout.startswith("<!-- ascl-sweep report neighbours tau_prime search once broken")
    for name in ("neighbours", "tau\\_prime", "search", "once", "broken"):
        assert f"\n## {name}" in said.stdout


def test_sweeps_are_reported_as_named(ask: Ask) -> None:
    example(STORE)
    said = ask("once", "neighbours")
    assert said.stdout.index("## once") < said.stdout.index("## neighbours")
    assert "## broken" not in said.stdout


def test_figures_are_written_and_markdown_shows_those_that_are_there(
    ask: Ask, tmp_path: Path
) -> None:
    example(STORE)
    said = ask("search", "--figures", "figures", "--out", "report.md")
    assert said.exit_code == 0, said.stderr
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"search-cost.svg", "search-cost.png"} <= drawn
    shown = re.findall(r"\]\(<(figures/[^>]+)>\)", (tmp_path / "report.md").read_text())
    assert shown and {Path(name).name for name in shown} == {n for n in drawn if n.endswith("svg")}


def test_a_page_is_written_by_its_ending(ask: Ask, tmp_path: Path) -> None:
    example(STORE)
    assert ask("once", "--out", "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>") and 'id="report"' in page
    assert ask("--verify", "page.html").exit_code == 0


def test_stdout_is_data_whatever_the_locale(tmp_path: Path) -> None:
    example(tmp_path / STORE)
    command = [sys.executable, "-m", "ascl_sweep", "report", "--store", str(tmp_path / STORE)]
    plain = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, env=plain)
    assert done.returncode == 0 and done.stderr == b""
    assert "τ' = 0.05" in done.stdout.decode("utf-8")


def test_on_a_terminal_there_are_tables(tmp_path: Path) -> None:
    example(tmp_path / STORE)
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "ascl_sweep",
        "report",
        "once",
        "--store",
        str(tmp_path / STORE),
    ]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 65536):
                seen += part
        except OSError:  # how a terminal says that nobody writes to it any more
            pass
    os.close(ours)
    assert process.returncode == 0
    text = seen.decode()
    assert "<!--" not in text and "| " not in text
    assert "\x1b[1m" in text and "MoCo, CIFAR-100" in text


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    rows = [row for i in range(400) for row in arm("it", {TEMPERATURE: i / 1000}, [90.0, 91.0])]
    write(tmp_path / STORE, [sweep("it", (TEMPERATURE,))], in_order(rows))
    command = f"{sys.executable} -m ascl_sweep report --store {tmp_path / STORE} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("<!-- ascl-sweep report it") and done.stderr == ""


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "start"),
    [("r.md", "<!-- "), ("r.tex", "% "), ("r.csv", "# "), ("r.JSON", "{"), ("new/r.md", "<!-- ")],
)
def test_a_files_ending_tells_its_format(ask: Ask, name: str, start: str) -> None:
    example(STORE)
    said = ask("--out", name)
    assert said.exit_code == 0 and said.stdout == ""
    assert f"wrote {name}" in said.stderr
    assert Path(name).read_text(encoding="utf-8").startswith(start)


def test_a_format_that_is_named_counts_more_than_the_ending(ask: Ask) -> None:
    example(STORE)
    assert ask("--out", "r.txt", "--format", "latex").exit_code == 0
    assert Path("r.txt").read_text(encoding="utf-8").startswith("% ascl-sweep report")


def test_a_file_holds_what_stdout_would(ask: Ask) -> None:
    example(STORE)
    ask("--out", "r.md")
    assert Path("r.md").read_text(encoding="utf-8") == ask("--format", "md").stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--out", "r.txt"], "--out must end in .md, "),
        (["--out", "."], "--out must be a file, and . is a folder"),
        (["--format", "pdf"], "--format must be one of md, latex, csv, json, html, term"),
        (["--format", "term", "--out", "r.txt"], "--format term is for a terminal"),
        (["--epoch", "first"], "--epoch must be last or best, got 'first'"),
        (["--metric", "knn"], "no metric named 'knn' (did you mean 'knn_top1'?); there are: "),
        (["--region=-1"], "--region must be 0 points or more"),
        (["--baseline", "relabel"], "--baseline must be KEY=VALUE, got 'relabel'"),
        (["--baseline", "method.relabel=[1"], "not YAML"),
        (["--baseline", "method.relabl=none"], "(did you mean 'method.relabel'?)"),
        (["--baseline", "method.relabel=soft"], "no arm has the baseline relabel soft"),
        (["--baseline", "optim.lr=6", "--baseline", "data.name=cifar100"], "no arm has all of"),
        (["neighbors"], "no sweep named 'neighbors' (did you mean 'neighbours'?)"),
    ],
)
def test_what_cannot_be_done_gets_a_sentence_and_no_file(
    ask: Ask, words: list[str], part: str
) -> None:
    example(STORE)
    extra = [] if "--out" in words else ["--out", "report.md"]
    fails(ask(*words, *extra), part)
    assert [path.name for path in Path().iterdir()] == [STORE]


def test_a_metric_is_refused_also_where_there_is_no_table(ask: Ask) -> None:
    rows = [replace(row, phase="search") for row in arm("it", ASCL, [90.0])]
    write(STORE, [sweep("it", search=True)], in_order(rows))
    fails(ask("--metric", "knn"), "no metric named 'knn'")


def test_an_empty_store_gets_a_sentence(ask: Ask) -> None:
    fails(
        ask("--out", "r.md"), "there is no sweep in results; start one with `ascl-sweep run FILE`"
    )
    assert list(Path().iterdir()) == [], "looking creates nothing"


def test_a_table_of_keys_that_no_run_has_gets_a_sentence(ask: Ask) -> None:
    asked = sweep("it", (RELABEL,), table=table("method.beta"))
    write(STORE, [asked], in_order(arm("it", ASCL, [90.0])))
    fails(ask(), "table.rows must be a key that runs have, and no run of it has 'method.beta'")


@pytest.mark.parametrize("folder", ["sweeps", "runs"])
def test_a_store_of_a_newer_version_gets_a_sentence(ask: Ask, folder: str) -> None:
    """Whichever of its files: what they say could change every number."""
    example(STORE)
    (file,) = (Path(STORE) / folder).iterdir()
    newer = pq.read_table(file).replace_schema_metadata({parquet.FORMAT_KEY: b"2"})
    pq.write_table(newer, file.with_name("00000009.parquet"))
    fails(ask(), "was written by a newer version", "upgrade ascl-sweep")


def test_a_damaged_file_is_named_and_the_rest_is_reported(ask: Ask) -> None:
    example(STORE)
    (Path(STORE) / "runs" / "00000009.parquet").write_bytes(b"rubbish")
    said = ask()
    assert said.exit_code == 0
    assert "warning: " in said.stderr and "00000009.parquet was skipped" in said.stderr
    assert "1 file of the ledger could not be read" in said.stdout
    assert "00000009" not in said.stdout


def test_a_full_disk_leaves_the_former_file(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    example(STORE)
    Path("r.md").write_text("former")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    fails(ask("--out", "r.md"), "No space left on device", code=4)
    assert Path("r.md").read_text() == "former"
    assert sorted(path.name for path in Path().iterdir()) == ["r.md", STORE]


# ---------------------------------------------------------------- what is there is shown


def test_one_seed_is_shown_without_test_or_bold(ask: Ask) -> None:
    example(STORE)
    said = ask("once")
    assert said.exit_code == 0
    assert "| ASCL | 90.10 (1) | 65.20 (1) |" in said.stdout
    assert "One seed per arm: no spread, no interval, no test" in said.stdout
    assert "**90.10" not in said.stdout


@pytest.mark.parametrize("state", ["failed", "stopped", "diverged"])
def test_arms_of_which_nothing_came_are_shown_and_said(ask: Ask, state: str) -> None:
    rows = [replace(run("it", {TEMPERATURE: 0.05}, seed), state=state) for seed in range(3)]
    write(STORE, [sweep("it", (TEMPERATURE,))], in_order(rows))
    said = ask()
    assert said.exit_code == 0
    assert "– (0/3)" in said.stdout and f"3 {state}" in said.stdout
    assert "No run of this sweep is complete" in said.stdout


def test_an_old_store_without_digests_is_shown(ask: Ask) -> None:
    rows = [*arm("it", MOCO, [88.0, 88.1]), *arm("it", ASCL, [90.0, 90.1])]
    write(STORE, [replace(sweep("it"), digest="{}")], in_order(rows))
    said = ask("--baseline", "method.relabel=none")
    assert said.exit_code == 0 and "| ASCL | 2/2 | 90.05 ± 0.07 | +2.00 |" in said.stdout


def test_options_are_heeded(ask: Ask) -> None:
    example(STORE)
    baseline = ("--baseline", "method.relabel=hard", "--baseline", "method.num_neighbours=1")
    said = ask("neighbours", "--metric", "knn_top1", "--epoch", "best", "--region", 3, *baseline)
    assert said.exit_code == 0, said.stderr
    assert "online kNN top-1" in said.stdout and "the best epoch" in said.stdout
    assert "equivalent within ±3 points" in said.stdout
    assert "difference from the baseline (Hard, K = 1)" in said.stdout


def test_the_score_of_a_methods_own_classifier_goes_from_its_epochs_to_the_report(ask: Ask) -> None:
    supervised = arm("it", {**MOCO, "method.name": "supervised"}, [90.0] * 3)
    moco = arm("it", MOCO, [88.0] * 3)
    ledger = write(STORE, [sweep("it", ("method.name",))], in_order([*moco, *supervised]))
    with ledger.writer() as writer:
        for epoch, score in ((1, 0.5), (2, 0.94)):
            for row in supervised:
                writer.put_epoch(row.run_id, {"epoch": epoch, "test_top1": score})
            for row in moco:
                writer.put_epoch(row.run_id, {"epoch": epoch, "test_top1": None})
    said = ask("--metric", "test_top1")
    assert said.exit_code == 0, said.stderr
    assert "test top-1 of its own classifier" in said.stdout
    assert "| Supervised | 3/3 | 94.00 " in said.stdout
    assert "| MoCo | 0/3 |" in said.stdout, "it has none"


def test_a_csv_of_searches_says_that_it_has_none(ask: Ask) -> None:
    example(STORE)
    assert "CSV has the tables only" in ask("search", "--format", "csv").stderr


# ---------------------------------------------------------------- verify


@pytest.mark.parametrize("name", ["r.md", "r.tex", "r.csv", "r.json"])
def test_a_report_that_holds_is_said_to(ask: Ask, name: str) -> None:
    example(STORE)
    ask("--out", name)
    said = ask("--verify", name)
    assert said.exit_code == 0 and said.stdout == ""
    assert said.stderr.startswith("nothing changed: ")
    assert said.stderr.endswith(" numbers recomputed\n")


@pytest.mark.parametrize("name", ["r.md", "r.tex", "r.csv", "r.json"])
def test_what_changed_is_listed(ask: Ask, name: str) -> None:
    ledger = example(STORE)
    ask("--out", name)
    row = ledger.runs()["once-ascl-cifar10-0"]
    write(STORE, [], [replace(row, probe_top1=0.123)])
    said = ask("--verify", name)
    assert said.exit_code == 1
    assert all(line.startswith("once, ") for line in said.stdout.splitlines())
    assert "90.1" in said.stdout and "→" in said.stdout and "12.3" in said.stdout
    assert "changes, " in said.stderr


def test_an_edited_report_is_told_from_one_that_changed(ask: Ask) -> None:
    example(STORE)
    ask("--out", "r.md")
    text = Path("r.md").read_text(encoding="utf-8")
    Path("r.md").write_text(text.replace("88.50 (1)", "89.50 (1)"), encoding="utf-8")
    said = ask("--verify", "r.md")
    assert said.exit_code == 2
    assert said.stdout == "once, linear-probe top-1, MoCo, CIFAR-10: 89.50 (1) → 88.50 (1)\n"
    assert "r.md was edited or cut short after it was written" in said.stderr


@pytest.mark.parametrize(
    ("content", "part"),
    [(None, "r.md cannot be read: No such file or directory"),
     (b"# Some readme\n", "r.md is no report that can be verified"),
     (b"\xff\xfe\x00", "r.md is no report that can be verified"),
     (b'{"ascl_sweep_report": 1, ', "r.md is no report that can be verified: it was cut short")],
)  # fmt: skip
def test_what_is_no_report_gets_a_sentence(ask: Ask, content: bytes | None, part: str) -> None:
    example(STORE)
    if content is not None:
        Path("r.md").write_bytes(content)
    fails(ask("--verify", "r.md"), part)


def test_a_report_on_another_store_gets_a_sentence(ask: Ask) -> None:
    example("here")
    ask("--store", "here", "--out", "r.md")
    fails(ask("--verify", "r.md"), "there is no sweep in results")
    write(STORE, [sweep("other")], [])
    fails(ask("--verify", "r.md"), "no sweep named 'neighbours'; there are: other")


@pytest.mark.parametrize(
    "words", [["once"], ["--format", "md"], ["--epoch", "best"], ["--region", "1"]]
)
def test_verify_takes_its_options_from_the_file(ask: Ask, words: list[str]) -> None:
    example(STORE)
    ask("--out", "r.md")
    fails(ask("--verify", "r.md", *words), "--verify takes everything but --store from the file")


def test_the_first_line_makes_the_report_again(ask: Ask) -> None:
    example(STORE)
    options = ("--metric", "knn_top1", "--baseline", "method.relabel=none", "--region", 0.25)
    text = ask("once", "neighbours", *options).stdout
    command = text.splitlines()[0].removeprefix("<!-- ").split(" # ")[0]
    assert ask(*shlex.split(command)[2:]).stdout == text
