"""Checkpoints: atomic, safe to load, and clear about what is wrong with a file."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from ascl.checkpoint import CheckpointError, read, restore, save, train_in, write_text
from ascl.config import load_config
from ascl.train import build, train
from tests.conftest import tiny


def test_a_run_in_a_folder_goes_on_where_it_was(tmp_path: Path) -> None:
    config = tiny(epochs=3)
    first = train_in(build(config), tmp_path)
    next(first)
    first.close()
    again = build(config)
    assert [m.epoch for m in train_in(again, tmp_path)] == [2, 3]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert load_config(tmp_path / "config.yaml").identity() == config.identity()
    assert list(train_in(build(config), tmp_path)) == [], "a finished run has nothing left to do"
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint.pt", "config.yaml", "metrics.jsonl"}


def test_metrics_are_written_again_from_the_checkpoint(tmp_path: Path) -> None:
    # A kill between the two writes leaves the metrics an epoch short.
    list(train_in(build(tiny()), tmp_path))
    whole = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").unlink()
    list(train_in(build(tiny()), tmp_path))
    assert (tmp_path / "metrics.jsonl").read_text() == whole


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
            read(tmp_path / name, torch.device("cpu"))
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
    state = read(tmp_path / "checkpoint.pt", torch.device("cpu"))["method"]
    assert {"bank.features", "bank.classes", "bank.pointer"} <= state.keys()
    assert state["bank.pointer"].item() == 64 % 40
