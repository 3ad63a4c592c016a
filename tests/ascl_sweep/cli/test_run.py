"""`ascl-sweep run` up to the start of Ray: refused options, resuming and retrying."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ascl_sweep.contracts import RunState
from ascl_sweep.runtime import sweeps
from ascl_sweep.runtime.controller import End
from ascl_sweep.runtime.sweeps import PreparedSweeps
from ascl_sweep.store.store import Store
from tests.ascl_sweep.cli.test_commands import record
from tests.ascl_sweep.conftest import Ask
from tests.ascl_sweep.search.test_study import GRID

RETRY = ["--retry", "diverged"]
FAILED = ["--retry", "failed"]
PANELS = {
    "Run": ["run", "plan", "status", "stop", "best"],
    "Report": ["report", "tsne", "embed"],
    "Train": ["train", "fetch"],
    "Cluster": ["submit", "doctor"],
    "Store": ["compact", "gc", "repair", "export"],
    "Reproduce": ["paper"],
    "Author sweeps": ["validate", "schema", "simulate"],
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the sweeps of each call that would have started Ray."""
    calls: list[list[str]] = []

    def run_sweeps(prepared: PreparedSweeps, *args: object, **options: object) -> End:
        with prepared.store.writer() as writer:
            for run_id in prepared.reset:
                writer.put_run(prepared.history.rows[run_id])
        calls.append([spec.name for spec in prepared.specs])
        return End.DONE

    monkeypatch.setattr(sweeps, "run_sweeps", run_sweeps)
    return calls


def test_help_lists_commands_by_panel_in_this_order(ask: Ask) -> None:
    lines = [line.strip("│╭─╮╰╯ ") for line in ask("--help").stdout.splitlines()]
    shown = lines[lines.index("Run") :]
    words = [line.split()[0] if line not in PANELS else line for line in shown if line]
    assert words == [word for panel, names in PANELS.items() for word in (panel, *names)]


def test_run_starts_nothing_unless_files_or_resume_are_named(
    ask: Ask, tmp_path: Path, started: list[list[str]]
) -> None:
    record(tmp_path / "results", GRID)
    for words in ([], ["--retry", "failed"], ["--yes"]):
        said = ask("run", *words)
        assert said.exit_code == 2 and "`ascl-sweep run --resume`" in said.stderr
    assert ask("run", "it").exit_code == 2, "the name of a sweep in the store is not a file"
    assert started == []


def test_the_name_of_a_sweep_is_not_a_file(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID)
    assert ask("run", "it").stderr == (
        "error: it: no such file; give a sweep file, or `ascl-sweep run --resume it` for the sweep "
        "in results\n"
    )
    assert ask("run", "nope.yaml").stderr == "error: nope.yaml: no such file; give a sweep file\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--store", "a.yaml"], "--store a.yaml is a file; give a folder or URL"),
        (["--store", "a.yaml/x/y"], "--store a.yaml/x/y cannot be created: Not a directory ("),
        (["--log", "wandbb"], "no logger named 'wandbb' (did you mean 'wandb'?)"),
        (["--address", "nonsense"], "the address of a Ray cluster must be auto, HOST:PORT"),
    ],
)
def test_options_are_checked_before_the_plan(
    ask: Ask, tmp_path: Path, started: list[list[str]], words: list[str], sentence: str
) -> None:
    (tmp_path / "a.yaml").write_text(GRID)
    for more in ([], ["--dry-run"]):
        said = ask("run", "a.yaml", "--yes", *words, *more)
        assert said.exit_code == 2 and said.stderr.startswith(f"error: {sentence}")
        assert len(said.stderr.splitlines()) == 1
    assert started == [] and [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_a_read_only_store_can_be_planned_but_not_run(
    ask: Ask, tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "results", GRID)
    (tmp_path / "a.yaml").write_text(GRID)
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)  # root may write
    planned = ask("plan", "a.yaml")
    assert planned.exit_code == 0, planned.stderr
    said = ask("run", "a.yaml", "--yes")
    assert said.exit_code == 2 and started == []
    assert said.stderr == "error: --store results is not writable; choose another --store\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--resume", "nonsense"], "no sweep named 'nonsense'"),
        (["--resume", "--set", "epochs=1"], "--resume runs sweeps as recorded"),
        (["--resume", "--scale", "laptop"], "--resume runs sweeps as recorded"),
        (["--resume", "--until-decided"], "--resume runs sweeps as recorded"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    ask: Ask, tmp_path: Path, started: list[list[str]], words: list[str], sentence: str
) -> None:
    record(tmp_path / "results", GRID)
    said = ask("run", *words)
    assert said.exit_code == 2 and sentence in said.stderr and started == []


def test_resume_continues_the_sweeps_of_the_store(
    ask: Ask, tmp_path: Path, started: list[list[str]]
) -> None:
    record(tmp_path / "results", GRID)
    for words in (["run", "--resume"], ["run", "--resume", "it"], ["resume"], ["resume", "it"]):
        assert ask(*words).exit_code == 0
    assert started == [["it"]] * 4


@pytest.mark.parametrize("state", ["failed", "diverged"])
def test_retry_plans_those_runs_again_and_no_others(
    ask: Ask, tmp_path: Path, started: list[list[str]], state: str
) -> None:
    row = record(tmp_path / "results", GRID, state, error="so")
    store = Store(tmp_path / "results")
    with store.writer() as writer:
        writer.put_run(replace(row, run_id="other", sweeps=("another",)))
        writer.put_run(replace(row, run_id="fine", state=RunState.DONE))
    said = ask("run", "--resume", "--retry", state, "--dry-run")
    assert said.exit_code == 0 and store.runs()[row.run_id].state == state
    said = ask("run", "--resume", "--retry", state)
    assert said.exit_code == 0 and "retrying 1 run\n" in said.stderr
    states = {run_id: (row.state, row.error) for run_id, row in store.runs().items()}
    assert states == {
        row.run_id: ("planned", None),
        "other": (state, "so"),
        "fine": ("done", "so"),
    }
    assert started == [["it"]]


def test_failed_runs_are_retried_with_and_without_the_option(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID, "failed", error="so")
    plans = {ask("run", "--resume", *words, "--dry-run").stderr for words in ([], FAILED)}
    assert len(plans) == 1
    shown = ask("run", "--help").stdout.replace("│", " ").split()
    assert "Failed runs are always retried." in " ".join(shown)


def test_a_retry_is_part_of_the_plan(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path / "results", GRID, "diverged")
    plans = [ask("run", "--resume", *words, "--dry-run").stderr for words in ([], RETRY)]
    planned = [int(plan.split(" epochs to train")[0].split()[-1]) for plan in plans]
    assert planned[1] > planned[0]


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["resume"], "run --resume"),
        (["retry", "--failed"], "run --resume"),
        (["retry", "--diverged"], "run --resume --retry diverged"),
        (["replay", "it"], "simulate"),
    ],
)
def test_old_names_work_are_hidden_and_name_the_new_form(
    ask: Ask, tmp_path: Path, started: list[list[str]], words: list[str], new: str
) -> None:
    record(tmp_path / "results", GRID)
    said = ask(*words)
    assert f"note: `ascl-sweep {words[0]}` is now `ascl-sweep {new}`" in said.stderr
    assert f" {words[0]} " not in ask("--help").stdout and ask(words[0], "--help").exit_code == 0


def test_the_old_retry_requires_a_target_and_resumes_only_failed_sweeps(
    ask: Ask, tmp_path: Path, started: list[list[str]]
) -> None:
    record(tmp_path / "results", GRID)
    said = ask("retry")
    assert said.exit_code == 2 and "--failed, --diverged or both" in said.stderr
    said = ask("retry", "--failed")
    assert said.exit_code == 0 and "no runs to retry" in said.stderr and started == []
    record(tmp_path / "results", GRID, "failed")
    said = ask("retry", "--failed", "it")
    assert said.exit_code == 0 and "retrying 1 run\n" in said.stderr and started == [["it"]]


def test_all_missing_requirements_are_reported_together_before_ray_starts(
    ask: Ask, tmp_path: Path, started: list[list[str]]
) -> None:
    (tmp_path / "a.yaml").write_text(
        "name: a\nresources: {gpus_per_worker: 64}\nspace: {grid: {data.name: [cifar10, stl10]}}\n"
    )
    said = ask("run", "a.yaml", "--yes")
    assert said.exit_code == 4 and started == []
    for part in ("cifar10 is not in data", "stl10 is not in data", "gpus_per_worker=64"):
        assert said.stderr.count(part) == 1
    assert not (tmp_path / "results").exists(), "nothing is left behind"
    assert ask("run", "a.yaml", "--yes", "--dry-run").exit_code == 0, "a plan needs no data"
    assert ask("run", "a.yaml", "--yes", "--address", "auto").exit_code == 0
    assert started == [["a"]], "a cluster is checked by itself"


def test_a_finished_sweep_needs_neither_data_nor_gpus(
    ask: Ask, tmp_path: Path, started: list[list[str]]
) -> None:
    text = "name: it\nbase: {data: {name: cifar10}}\nresources: {gpus_per_worker: 64}\nseeds: [0]\n"
    record(tmp_path / "results", text)
    (tmp_path / "a.yaml").write_text(text)
    assert ask("run", "a.yaml", "--yes").exit_code == 0 and started == [["it"]]


def test_a_second_driver_is_refused_before_it_starts_anything(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GRID)
    with Store(tmp_path / "results").writer():
        said = ask("run", "a.yaml", "--yes")
    assert said.exit_code == 2 and "another driver is writing to the store" in said.stderr
    assert "starting Ray" not in said.stderr
