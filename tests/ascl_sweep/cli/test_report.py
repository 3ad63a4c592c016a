"""`ascl-sweep report` as a user sees it."""

import os
import pty
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from ascl_sweep.store import tables as parquet
from tests.ascl_sweep.conftest import Ask
from tests.stores import (
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
from tests.sweeps import command

STORE = "results"


@pytest.fixture(name="ask")
def ask_report(ask: Ask) -> Ask:
    return lambda *words: ask("report", *words)


def fails(said: Result, *parts: str, code: int = 2) -> None:
    """Assert an error on stderr and nothing on stdout."""
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


def test_stdout_is_data_whatever_the_locale(tmp_path: Path) -> None:
    example(tmp_path / STORE)
    words = command("report", "--store", tmp_path / STORE)
    plain = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(words, capture_output=True, env=plain)
    assert done.returncode == 0 and done.stderr == b""
    assert "τ' = 0.05" in done.stdout.decode("utf-8")


def test_on_a_terminal_there_are_tables(tmp_path: Path) -> None:
    example(tmp_path / STORE)
    ours, theirs = pty.openpty()
    words = command("report", "once", "--store", tmp_path / STORE)
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 65536):
                seen += part
        except OSError:  # the terminal was closed
            pass
    os.close(ours)
    assert process.returncode == 0
    text = seen.decode()
    assert "<!--" not in text and "| " not in text
    assert "\x1b[1m" in text and "MoCo, CIFAR-100" in text


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    rows = [row for i in range(400) for row in arm("it", {TEMPERATURE: i / 1000}, [90.0, 91.0])]
    write(tmp_path / STORE, [sweep("it", (TEMPERATURE,))], in_order(rows))
    words = shlex.join(command("report", "--store", tmp_path / STORE))
    done = subprocess.run(["bash", "-c", f"{words} | head -1"], capture_output=True, text=True)
    assert done.stdout.startswith("<!-- ascl-sweep report it") and done.stderr == ""


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "start"),
    [("r.md", "<!-- "), ("r.tex", "% "), ("r.csv", "# "), ("r.JSON", "{"), ("new/r.md", "<!-- "),
     ("r.html", "<!doctype html>"), ("r.txt", "% ")],
)  # fmt: skip
def test_the_file_extension_selects_the_format_and_the_file_can_be_verified(
    ask: Ask, name: str, start: str
) -> None:
    example(STORE)
    form = ("--format", "latex") if name == "r.txt" else ()
    said = ask("--out", name, *form)
    assert said.exit_code == 0 and said.stdout == ""
    assert f"wrote {name}" in said.stderr
    text = Path(name).read_text(encoding="utf-8")
    assert text.startswith(start)
    if name == "r.md":
        assert text == ask("--format", "md").stdout, "a file holds what stdout would"
    said = ask("--verify", name)
    assert said.exit_code == 0 and said.stdout == ""
    assert re.fullmatch(r"nothing changed: \d+ numbers recomputed\n", said.stderr)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--out", "r.txt"], "--out must end in .csv, "),
        (["--out", "."], "--out must be a file, got the folder ."),
        (["--format", "pdf"], "--format must be one of csv, html, json, latex, md, term"),
        (["--format", "term", "--out", "r.txt"], "--format term is for terminals; choose another"),
        (["--metric", "knn"], "no metric named 'knn' (did you mean 'knn_top1'?); there are: "),
        (["--region=-1"], "--region must be 0 points or more"),
        (["--baseline", "relabel"], "--baseline must be KEY=VALUE, got 'relabel'"),
        (["--baseline", "method.relabel=[1"], "not YAML"),
        (["--baseline", "method.relabl=none"], "(did you mean 'method.relabel'?)"),
        (["--baseline", "method.relabel=soft"], "no arm matches --baseline method.relabel=soft"),
        (["--baseline", "optim.lr=6", "--baseline", "data.name=cifar100"], "no arm matches all of"),
        (["neighbors"], "no sweep named 'neighbors' (did you mean 'neighbours'?)"),
    ],
)
def test_an_impossible_request_is_refused_and_writes_no_file(
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


def test_an_empty_store_is_refused(ask: Ask) -> None:
    fails(ask("--out", "r.md"), "no sweep in results; start one with `ascl-sweep run FILE`")
    assert list(Path().iterdir()) == [], "reading creates nothing"


def test_a_table_of_unknown_keys_is_refused(ask: Ask) -> None:
    asked = sweep("it", (RELABEL,), table=table("method.beta"))
    write(STORE, [asked], in_order(arm("it", ASCL, [90.0])))
    fails(
        ask(),
        "table.rows must be a config key of the runs (got 'method.beta', which no run of it has)",
    )


@pytest.mark.parametrize("folder", ["sweeps", "runs"])
def test_a_store_of_a_newer_version_is_refused(ask: Ask, folder: str) -> None:
    """Any of its files may affect every number."""
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
    assert "1 file of the store could not be read" in said.stdout
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
    assert "| ASCL | 90.10 | 65.20 |" in said.stdout and "n = 1 seed)" in said.stdout
    assert "One seed per arm: no standard deviation, interval, test or verdict" in said.stdout
    assert "**90.10" not in said.stdout


@pytest.mark.parametrize("state", ["failed", "stopped", "diverged"])
def test_arms_without_results_are_shown_and_reported(ask: Ask, state: str) -> None:
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
    assert "online kNN top-1" in said.stdout and "at the best of 200 epochs" in said.stdout
    assert "equivalence within ±3 points" in said.stdout
    assert "Compared with Hard, K = 1 by moderated t-tests" in said.stdout


def test_the_score_of_a_methods_own_classifier_goes_from_its_epochs_to_the_report(ask: Ask) -> None:
    supervised = arm("it", {**MOCO, "method.name": "supervised"}, [90.0] * 3)
    moco = arm("it", MOCO, [88.0] * 3)
    store = write(STORE, [sweep("it", ("method.name",))], in_order([*moco, *supervised]))
    with store.writer() as writer:
        for epoch, score in ((1, 0.5), (2, 0.94)):
            for row in supervised:
                writer.put_epoch(row.run_id, {"epoch": epoch, "test_top1": score})
            for row in moco:
                writer.put_epoch(row.run_id, {"epoch": epoch, "test_top1": None})
    said = ask("--metric", "test_top1")
    assert said.exit_code == 0, said.stderr
    assert "test top-1 of the supervised classifier" in said.stdout
    assert "| Supervised<sup>a</sup> | 3/3 | 94.00 " in said.stdout
    assert "| MoCo | 0/3 |" in said.stdout, "it has none"


# ---------------------------------------------------------------- verify


@pytest.mark.parametrize("name", ["r.md", "r.tex", "r.csv", "r.json"])
def test_what_changed_is_listed(ask: Ask, name: str) -> None:
    store = example(STORE)
    ask("--out", name)
    row = store.runs()["once-ascl-cifar10-0"]
    write(STORE, [], [replace(row, probe_top1=0.123)])
    said = ask("--verify", name)
    assert said.exit_code == 1
    assert {line[:2] for line in said.stdout.splitlines()} == {"- ", "+ "}
    assert "90.1" in said.stdout and "12.3" in said.stdout
    assert " recomputed" in said.stderr


def test_an_edited_report_is_distinguished_from_an_outdated_one(ask: Ask) -> None:
    example(STORE)
    ask("--out", "r.md")
    text = Path("r.md").read_text(encoding="utf-8")
    Path("r.md").write_text(text.replace("| MoCo | 88.50", "| MoCo | 89.50"), encoding="utf-8")
    said = ask("--verify", "r.md")
    assert said.exit_code == 2
    wrong, right = said.stdout.splitlines()
    assert wrong.startswith("- | MoCo | 89.50 |") and right.startswith("+ | MoCo | 88.50 |")
    assert "r.md was edited or truncated after it was written" in said.stderr


def test_lines_of_a_foreign_report_do_not_control_the_terminal(ask: Ask) -> None:
    example(STORE)
    ask("--out", "r.md")
    text = Path("r.md").read_text(encoding="utf-8")
    foreign = "| MoCo\x1b]0;title\x07\x1b[2J\x9b1A | 89.50"
    Path("r.md").write_text(text.replace("| MoCo | 88.50", foreign), encoding="utf-8")
    said = ask("--verify", "r.md")
    wrong, right = said.stdout.splitlines()
    assert "89.50" in wrong and right.startswith("+ | MoCo | 88.50 |")
    assert all(character.isprintable() for character in wrong)


@pytest.mark.parametrize(
    ("content", "part"),
    [(None, "r.md cannot be read: No such file or directory"),
     (b"# Some readme\n", "r.md is not a report that can be verified"),
     (b"\xff\xfe\x00", "r.md is not a report that can be verified"),
     (b'{"ascl_sweep_report": 1, ', "r.md is not a report that can be verified: it is truncated")],
)  # fmt: skip
def test_a_file_that_is_not_a_report_is_refused(ask: Ask, content: bytes | None, part: str) -> None:
    example(STORE)
    if content is not None:
        Path("r.md").write_bytes(content)
    fails(ask("--verify", "r.md"), part)


def test_a_report_on_another_store_is_refused(ask: Ask) -> None:
    example("here")
    ask("--store", "here", "--out", "r.md")
    fails(ask("--verify", "r.md"), "no sweep in results")
    write(STORE, [sweep("other")], [])
    fails(ask("--verify", "r.md"), "no sweep named 'neighbours'; there are: other")


@pytest.mark.parametrize(
    "words", [["once"], ["--format", "md"], ["--epoch", "best"], ["--region", "1"]]
)
def test_verify_takes_its_options_from_the_file(ask: Ask, words: list[str]) -> None:
    example(STORE)
    ask("--out", "r.md")
    fails(ask("--verify", "r.md", *words), "--verify reads its options from the file")


def test_the_first_line_makes_the_report_again(ask: Ask) -> None:
    example(STORE)
    options = ("--metric", "knn_top1", "--baseline", "method.relabel=none", "--region", 0.25)
    text = ask("once", "neighbours", *options).stdout
    assert text.index("## once") < text.index("## neighbours"), "as they were named"
    assert "## broken" not in text
    first = text.splitlines()[0].removeprefix("<!-- ").split(" # ")[0]
    assert ask(*shlex.split(first)[2:]).stdout == text


# ---------------------------------------------------------------- checklists


def test_a_checklist_is_markdown_on_stdout_or_in_a_file(ask: Ask, tmp_path: Path) -> None:
    example(STORE)
    said = ask("search", "--checklist", "neurips")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith("# NeurIPS paper checklist") and "### search" in said.stdout
    written = ask("search", "--checklist", "neurips", "--out", "answers.md")
    assert written.exit_code == 0 and written.stdout == ""
    assert (tmp_path / "answers.md").read_text(encoding="utf-8") == said.stdout


def test_a_checklist_has_no_format_and_a_known_name(ask: Ask) -> None:
    example(STORE)
    fails(ask("--checklist", "icml"), "checklist", "icml", "neurips")
    fails(ask("--checklist", "neurips", "--format", "csv"), "--checklist", "--format")
    fails(ask("--checklist", "neurips", "--verify", "report.md"), "--verify")
