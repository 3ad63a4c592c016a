"""Laws of checkpoints: atomic, safe to load, and refused with a clear message."""

import errno
import json
import pickle
import resource
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from ascl import checkpoint
from ascl import train as training
from ascl.checkpoint import PREVIOUS, advance_in, restore, resume, save, train_in
from ascl.config import RunConfig, load_config
from ascl.errors import CheckpointError
from ascl.files import write_text
from ascl.metrics import EpochMetrics
from ascl.train import Run, Stage, build, train
from tests.conftest import tiny
from tests.power import Disk, write_files


def finish(config: RunConfig, folder: Path) -> list[int]:
    """Resume, train the remaining epochs, and return them."""
    run = build(config)
    resume(run, folder)
    return [metrics.epoch for metrics in train_in(run, folder)]


def test_run_in_a_folder_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    config, folder = tiny(epochs=3), tmp_path / "new" / "run"
    first = train_in(build(config), folder)
    next(first)
    first.close()
    assert finish(config, folder) == [2, 3]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert load_config(folder / "config.yaml").identity() == config.identity()
    assert finish(config, folder) == [], "a finished run has nothing left to do"
    assert {p.name for p in folder.iterdir()} == {"checkpoint.pt", "config.yaml", "metrics.jsonl"}


def test_checkpoint_keys_equal_those_of_earlier_versions(tmp_path: Path) -> None:
    save(build(tiny()), tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state.keys() == {
        *("format", "identity", "config", "epoch", "history", "method", "optimiser", "scaler")
    }


def test_a_file_that_cannot_be_written_keeps_the_reason_and_the_old_checkpoint(
    tmp_path: Path,
) -> None:
    """PyTorch reports a full disk as a RuntimeError. Here a limit of the process is reached."""
    run, path = build(tiny()), tmp_path / "checkpoint.pt"
    save(run, path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot be written: File too large") as caught:
            save(run, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == path
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert path.read_bytes() == before


def test_files_half_written_by_a_killed_run_are_repaired(tmp_path: Path) -> None:
    finish(tiny(), tmp_path)
    whole = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").unlink()  # a kill between the two writes
    (tmp_path / ".checkpoint.pt.4242.half").write_bytes(b"half")  # a kill while writing
    finish(tiny(), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == whole
    assert not list(tmp_path.glob(".*"))


def test_config_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: 1")
    with pytest.raises(ValueError, match=r"config\.yaml would be overwritten"):
        finish(tiny(), tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "mine: 1"


def test_unreadable_checkpoint_is_not_reported_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").mkdir()
    with pytest.raises(OSError, match="directory"):
        restore(build(tiny()), tmp_path / "checkpoint.pt")


def test_failed_write_keeps_the_old_file_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", [0, 100, -100])
def test_a_truncated_checkpoint_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "checkpoint.pt"
    run = build(tiny())
    save(run, path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged .* delete it to start"):
        restore(run, path)


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (str(tmp_path / "sprung"),))

    (tmp_path / "checkpoint.pt").write_bytes(pickle.dumps(Trap()))
    torch.save({"format": 1, "trap": Trap()}, tmp_path / "other.pt")
    for name in ("checkpoint.pt", "other.pt"):
        with pytest.raises(CheckpointError):
            restore(build(tiny()), tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    save(build(tiny()), tmp_path / "checkpoint.pt")
    message = (
        f"belongs to run {tiny().identity()}, but this config is run {tiny(seed=1).identity()}; "
        "use another --out, or delete the file"
    )
    with pytest.raises(CheckpointError, match=message):
        restore(build(tiny(seed=1)), tmp_path / "checkpoint.pt")


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / "checkpoint.pt")
    message = "has checkpoint format 99, but this version reads formats up to 2; use"
    with pytest.raises(CheckpointError, match=message):
        restore(build(tiny()), tmp_path / "checkpoint.pt")


def test_the_bank_is_in_the_checkpoint(tmp_path: Path) -> None:
    run = build(tiny("ascl"))
    next(iter(train(run)))
    save(run, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["method"]
    assert {"bank.features", "bank.classes", "bank.pointer"} <= state.keys()
    assert state["bank.pointer"].item() == 64 % 40


# --- the last epoch is saved before it is scored -----------------------------------------------


@pytest.fixture
def save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)


def probed(probe: str, **changes: Any) -> RunConfig:
    return tiny("ascl", eval={"probe": probe, "probe_epochs": 4}, **changes)


def resumed(config: RunConfig, folder: Path) -> Run:
    run = build(config)
    resume(run, folder)
    return run


def numbers(run: Run) -> list[EpochMetrics]:
    """Metrics without times and memory."""
    times = {"train_seconds": 0, "eval_seconds": 0, "images_per_second": 0, "peak_memory_gb": None}
    return [replace(metrics, **times) for metrics in run.history]  # type: ignore[arg-type]


@pytest.mark.parametrize("probe", ["cached", "paper"])
def test_a_run_that_ends_anywhere_in_its_last_evaluation_resumes_there_with_equal_numbers(
    probe: str, tmp_path: Path, save_always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = probed(probe)
    whole = build(config)
    list(train(whole))
    trained: list[int] = []
    train_epoch = training.train_epoch

    def watch(run: Run, epoch: int, *rest: Any) -> Any:
        trained.append(epoch)
        return train_epoch(run, epoch, *rest)

    monkeypatch.setattr(training, "train_epoch", watch)
    steps: list[object] = []
    while not steps or not isinstance(steps[-1], EpochMetrics) or steps[-1].epoch < 2:
        life = advance_in(resumed(config, tmp_path), tmp_path)
        steps.append(next(life))  # one step per process
        life.close()
    assert trained == [0, 1], "no epoch is trained twice"
    # After kNN, and after each epoch of the probe.
    assert steps[1:-1] == [Stage.TRAINED, *[Stage.EVALUATING] * 5]
    assert numbers(resumed(config, tmp_path)) == numbers(whole)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint.pt", "config.yaml", "metrics.jsonl"}


def test_the_time_of_an_evaluation_is_the_sum_over_its_processes(
    tmp_path: Path, save_always: None
) -> None:
    first = build(probed("cached"))
    for step in advance_in(first, tmp_path):
        if step is Stage.EVALUATING:
            break
    assert first.evaluation.seconds > 0
    first.evaluation.seconds = 3600.0
    checkpoint._save_evaluation(first, tmp_path / "evaluation.pt", checkpoint.no_check)
    again = resumed(probed("cached"), tmp_path)
    list(train(again))
    assert 3600 < again.history[-1].eval_seconds < 7200


def test_a_run_is_written_once_per_epoch_and_once_before_its_last_evaluation(
    tmp_path: Path, save_always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    torch_save = torch.save

    def watch(state: object, path: Path) -> None:
        written.append(path.name.split(".")[1])
        torch_save(state, path)

    monkeypatch.setattr(torch, "save", watch)
    list(train_in(build(probed("cached", epochs=3)), tmp_path))
    assert written == [*["checkpoint"] * 3, *["evaluation"] * 5, "checkpoint"]


def test_a_short_evaluation_is_not_saved_in_parts(tmp_path: Path) -> None:
    steps = list(advance_in(build(probed("cached", epochs=1)), tmp_path))
    assert steps[0] is Stage.TRAINED and len(steps) == 2


def test_the_evaluation_of_other_weights_is_not_used(tmp_path: Path, save_always: None) -> None:
    config = probed("cached")
    life = advance_in(build(config), tmp_path)
    while next(life) is not Stage.EVALUATING:
        pass
    life.close()
    begun = resumed(config, tmp_path)
    assert begun.evaluation.scores
    (tmp_path / "checkpoint.pt").write_bytes(b"rubbish")
    life = advance_in(resumed(config, tmp_path), tmp_path)  # trains the last epoch again
    assert next(life) is Stage.TRAINED
    again = resumed(config, tmp_path)
    assert again.trained != begun.trained and again.evaluation.scores == {}


def test_an_earlier_version_refuses_a_run_that_is_trained_but_not_scored(tmp_path: Path) -> None:
    """It would train the last epoch twice."""
    formats = []
    for _ in advance_in(build(tiny(epochs=1)), tmp_path):
        formats.append(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["format"])
    assert formats == [2, 1], "the finished run is readable by earlier versions"


# --- two generations ------------------------------------------------------------------------------


def two_epochs(folder: Path) -> RunConfig:
    config = tiny(epochs=4)
    life = train_in(build(config), folder)
    next(life), next(life)
    life.close()
    return config


def test_a_damaged_checkpoint_falls_back_to_the_previous_one_with_a_note(tmp_path: Path) -> None:
    config = two_epochs(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"rubbish")
    run = build(config)
    note = resume(run, tmp_path)
    assert note and note.endswith("is damaged; resuming from the previous checkpoint, epoch 1")
    assert [metrics.epoch for metrics in train_in(run, tmp_path)] == [2, 3, 4]
    whole = build(config)
    list(train(whole))
    assert numbers(run) == numbers(whole)


def test_the_good_checkpoint_survives_a_second_damage_before_the_next_epoch(tmp_path: Path) -> None:
    config = two_epochs(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"rubbish")
    for _ in range(2):
        assert resumed(config, tmp_path).epoch == 1


def test_a_kill_between_the_renames_loses_one_epoch(tmp_path: Path) -> None:
    config = two_epochs(tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    run = build(config)
    assert resume(run, tmp_path) is None and run.epoch == 1


def test_two_damaged_checkpoints_are_an_error_that_names_the_newest(tmp_path: Path) -> None:
    config = two_epochs(tmp_path)
    for name in ("checkpoint.pt", PREVIOUS):
        (tmp_path / name).write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged"):
        resume(build(config), tmp_path)


def test_a_power_failure_at_any_moment_loses_no_epoch_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, saved, copies = tiny(), 0, count()

    def check() -> None:
        for files in disk.after_failure(every=True):
            run = build(config)
            note = resume(run, write_files(tmp_path / f"copy {next(copies)}", files))
            assert note is None and run.epoch >= saved

    disk = Disk(monkeypatch, tmp_path / "run", check)
    for step in advance_in(build(config), tmp_path / "run"):
        saved = step.epoch if isinstance(step, EpochMetrics) else saved
        check()
    assert saved == 2 and next(copies) > 20
