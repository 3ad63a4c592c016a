"""The command line as a user sees it: real processes, signals, exit codes and messages."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
import yaml

from ascl_sweep.cli import app
from tests.ascl_sweep.conftest import Ask
from tests.conftest import SYSTEMS, TINY

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
COMMAND = [sys.executable, "-m", "ascl_sweep"]


def cli(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, args)], cwd=cwd, env=ENV, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**TINY, "method": SYSTEMS["ascl"]}))
    return path


def test_train_shows_epochs_and_writes_the_run(config: Path, tmp_path: Path) -> None:
    done = cli("train", config, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert re.search(r"epoch 2/2 +loss [\d.]+ +kNN [\d.]+% +confidence", done.stderr)
    assert re.search(r"done: kNN [\d.]+% on holdout, after 2 epochs", done.stderr)
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "metrics.jsonl").read_text() == done.stdout
    again = cli("train", config, cwd=tmp_path)
    assert again.returncode == 0
    assert "done: kNN" in again.stderr
    assert again.stdout == "", "messages go to stderr"


def test_train_takes_overrides_as_arguments_and_as_options(config: Path, ask: Ask) -> None:
    by_option = ask("train", config, "--set", "epochs=1", "--out", "a", "--json")
    assert by_option.exit_code == 0 and len(by_option.stdout.splitlines()) == 1
    by_argument = ask("train", config, "epochs=1", "--out", "a", "--json")
    assert by_argument.exit_code == 0, "the config of the folder's run is the same"


def test_train_shows_the_score_of_a_methods_own_classifier(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**TINY, "method": SYSTEMS["supervised"]}))
    done = ask("train", path, "--json")
    assert done.exit_code == 0, done.stderr
    assert all(0 <= json.loads(line)["test_top1"] <= 1 for line in done.stdout.splitlines())
    assert re.search(r"epoch 2/2 .* kNN [\d.]+% +classifier [\d.]+%", done.stderr)
    assert re.search(r"done: kNN [\d.]+%, own classifier [\d.]+% on holdout", done.stderr)


def test_all_faults_of_a_file_are_shown_with_their_lines(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("epochs: many\nmethod:\n  num_neighbors: 3\n")
    done = ask("train", path)
    assert done.exit_code == 2
    assert "bad.yaml:1: epochs: must be an integer, got 'many'" in done.stderr
    assert "bad.yaml:3: method.num_neighbors: no such field (did you mean" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [path], "nothing is left behind"


@pytest.mark.parametrize(
    ("args", "sentence", "code"),
    [
        (["train", "nothing.yaml"], "nothing.yaml: cannot be read: No such file", 2),
        (["train", "run.yaml", "optim.lr"], "an override must look like optim.lr=0.03", 2),
        (["train", "run.yaml", "optim.rl=3"], "optim.rl: no such field (did you mean 'lr'?)", 2),
        (["train", "run.yaml", "data.name=cifar10"], "cifar10 is not in data", 2),
        (["train", "run.yaml", "runtime.device=warp"], "a device of this machine, got 'warp'", 2),
        (["train", "run.yaml", "optim.lr=1e30"], "diverged: the loss became nan at step", 1),
        (["train", "run.yaml", "--out", "run.yaml/x"], "Not a directory", 4),
        (["fetch", "mnist"], "no dataset named 'mnist'", 2),
    ],
)
def test_bad_input_is_reported_with_the_right_exit_code(
    args: list[str], sentence: str, code: int, config: Path, ask: Ask
) -> None:
    done = ask(*args)
    assert sentence in done.stderr, done.stderr
    assert done.exit_code == code
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_prints_how_to_resume_and_resumes(
    config: Path, tmp_path: Path, how: signal.Signals
) -> None:
    args = [*COMMAND, "train", str(config), "epochs=400", "--out", "my run"]
    # A background job of a shell (as in CI) ignores SIGINT, and so do its children.
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen(
        args, cwd=tmp_path, env=ENV, stderr=subprocess.PIPE, text=True, preexec_fn=heed
    ) as run:
        metrics = tmp_path / "my run" / "metrics.jsonl"
        deadline = time.monotonic() + 100
        while not metrics.exists() and time.monotonic() < deadline:  # written last
            time.sleep(0.05)
        run.send_signal(how)
        _, talk = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in talk
    assert re.search(r"interrupted; \d+ of 400 epochs are saved. Resume with:", talk)
    assert f"ascl-sweep train {config} epochs=400 --out 'my run'" in talk
    assert {p.name for p in metrics.parent.iterdir()} == {
        *("checkpoint.pt", "config.yaml", "metrics.jsonl")
    }


@pytest.mark.slow
def test_a_killed_run_resumes_with_equal_numbers(config: Path, tmp_path: Path) -> None:
    whole = cli("train", config, "epochs=6", "--out", "whole", "--json", cwd=tmp_path)
    args = [*COMMAND, "train", str(config), "epochs=6", "--out", "killed"]
    with subprocess.Popen(args, cwd=tmp_path, env=ENV, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 100
        while not (tmp_path / "killed/metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        run.kill()
    assert len((tmp_path / "killed/metrics.jsonl").read_text().splitlines()) < 6, "killed too late"
    again = cli("train", config, "epochs=6", "--out", "killed", cwd=tmp_path)
    assert again.returncode == 0
    text = (tmp_path / "killed" / "metrics.jsonl").read_text()

    def numbers(lines: str) -> list[tuple[float, float]]:
        return [(m["loss"], m["knn_top1"]) for m in map(json.loads, lines.splitlines())]

    assert numbers(text) == numbers(whole.stdout)


def test_version_and_help(tmp_path: Path) -> None:
    assert re.fullmatch(r"ascl-sweep \d+\.\d+\.\d+\n", cli("--version", cwd=tmp_path).stdout)
    help_text = cli("--help", cwd=tmp_path).stdout
    assert "train" in help_text
    assert "fetch" in help_text


def test_help_has_no_line_break_within_a_paragraph() -> None:
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        assert command.hidden or "\n" not in command.help.replace("\n\n", ""), command.name
