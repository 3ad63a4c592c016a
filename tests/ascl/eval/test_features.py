"""Features of a trained run are those it was scored by, and a bad checkpoint is refused."""

from pathlib import Path

import pytest
import torch

from ascl.checkpoint import CHECKPOINT, train_in
from ascl.errors import CheckpointError
from ascl.eval.extract import extract_features
from ascl.eval.features import embed, embed_run
from ascl.eval.knn import knn_top1
from ascl.train import Run, build
from tests.conftest import tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run right after training, and its checkpoint."""
    run = build(tiny())
    folder = tmp_path_factory.mktemp("run")
    for _ in train_in(run, folder):
        pass
    return run, folder / CHECKPOINT


def test_features_are_bit_equal_to_those_right_after_training(trained: tuple[Run, Path]) -> None:
    run, checkpoint = trained
    found = embed(checkpoint)
    assert torch.equal(found.values, extract_features(run.encode, run.data.test, run.pixels))
    assert torch.equal(found.labels, run.data.test.labels)
    assert found.values.dtype == torch.float32 and found.values.shape[0] == len(run.data.test)
    assert (found.epoch, found.config.identity()) == (2, run.config.identity())


def test_knn_of_embedded_features_equals_the_recorded_one(trained: tuple[Run, Path]) -> None:
    run, checkpoint = trained
    test, train = embed(checkpoint), embed(checkpoint, "train")
    score = knn_top1(
        train.values, train.labels, test.values, test.labels, num_classes=run.data.spec.num_classes,
        k=run.config.eval.knn_k, temperature=run.config.eval.knn_temperature,
    )  # fmt: skip
    assert score == run.history[-1].knn_top1


def test_splits_are_named_correctly(trained: tuple[Run, Path]) -> None:
    run, checkpoint = trained
    assert embed(checkpoint).split == "holdout", "this run keeps a fifth of train aside"
    assert embed(checkpoint, "train").split == "train"
    assert len(embed(checkpoint, "train").labels) == len(run.data.reference)
    assert embed_run(build(tiny(data={"holdout": 0.0}))).split == "test"


def test_embedding_does_not_modify_the_checkpoint(trained: tuple[Run, Path]) -> None:
    _, checkpoint = trained
    before = {path: path.read_bytes() for path in checkpoint.parent.iterdir()}
    embed(checkpoint)
    assert {path: path.read_bytes() for path in checkpoint.parent.iterdir()} == before


def test_progress_ends_at_the_number_of_images(trained: tuple[Run, Path]) -> None:
    reported: list[tuple[str, int, int]] = []
    embed(trained[1], on_progress=lambda *step: reported.append(step))
    assert reported == [("features", 1, 1)]


@pytest.mark.parametrize("cut", [0, 100, -100])
def test_a_damaged_checkpoint_is_named(trained: tuple[Run, Path], tmp_path: Path, cut: int) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes(trained[1].read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged or not a checkpoint"):
        embed(path)


@pytest.mark.parametrize("lacking", ["config", "method", "epoch"])
def test_incomplete_checkpoint_is_named(
    trained: tuple[Run, Path], tmp_path: Path, lacking: str
) -> None:
    state = torch.load(trained[1], weights_only=True)
    del state[lacking]
    torch.save(state, tmp_path / CHECKPOINT)
    with pytest.raises(CheckpointError, match=f"does not fit this version .*{lacking}"):
        embed(tmp_path / CHECKPOINT)


def test_weights_that_do_not_fit_are_named(trained: tuple[Run, Path], tmp_path: Path) -> None:
    state = torch.load(trained[1], weights_only=True)
    state["method"].popitem()
    torch.save(state, tmp_path / CHECKPOINT)
    with pytest.raises(CheckpointError, match="does not fit this version"):
        embed(tmp_path / CHECKPOINT)


def test_root_overrides_the_location_of_the_data(trained: tuple[Run, Path], tmp_path: Path) -> None:
    found = embed(trained[1], root=tmp_path)
    assert found.config.data.root == str(tmp_path)
    assert found.config.identity() == trained[0].config.identity()
