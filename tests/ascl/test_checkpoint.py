"""Checkpoints: atomic, safe to load, and clear about what is wrong with a file."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from ascl.checkpoint import CheckpointError, restore, resume, save, train_in, write_text
from ascl.config import RunConfig, load_config
from ascl.train import build, train
from tests.conftest import tiny


def finish(config: RunConfig, folder: Path) -> list[int]:
    """Resume and train what is left; the epochs that took."""
    run = build(config)
    resume(run, folder)
    return [metrics.epoch for metrics in train_in(run, folder)]


def test_a_run_in_a_folder_goes_on_where_it_was(tmp_path: Path) -> None:
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


def test_what_a_kill_left_half_done_is_mended(tmp_path: Path) -> None:
    finish(tiny(), tmp_path)
    whole = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").unlink()  # a kill between the two writes
    (tmp_path / ".checkpoint.pt.4242.half").write_bytes(b"half")  # a kill while writing
    finish(tiny(), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == whole
    assert not list(tmp_path.glob(".*"))


def test_a_config_that_is_not_the_runs_own_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: 1")
    with pytest.raises(ValueError, match=r"config\.yaml would be overwritten"):
        finish(tiny(), tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "mine: 1"


def test_an_unreadable_checkpoint_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").mkdir()
    with pytest.raises(OSError, match="directory"):
        restore(build(tiny()), tmp_path / "checkpoint.pt")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
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


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
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
    with pytest.raises(CheckpointError, match="belongs to another run"):
        restore(build(tiny(seed=1)), tmp_path / "checkpoint.pt")


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="has checkpoint format 99, this version reads 1"):
        restore(build(tiny()), tmp_path / "checkpoint.pt")


def test_the_bank_is_in_the_checkpoint(tmp_path: Path) -> None:
    run = build(tiny("ascl"))
    next(iter(train(run)))
    save(run, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["method"]
    assert {"bank.features", "bank.classes", "bank.pointer"} <= state.keys()
    assert state["bank.pointer"].item() == 64 % 40
