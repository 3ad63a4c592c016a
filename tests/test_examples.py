"""The examples: valid, and what they promise comes out."""

from pathlib import Path

import pytest
import torch

from ascl.config import load_config
from ascl.data.base import Images
from ascl.data.subset import load_data
from ascl.eval.knn import knn_top1
from ascl.train import build, train
from tests.paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_every_example_is_valid_and_tells_its_story(path: Path) -> None:
    load_config(path)
    story = path.read_text().partition("\n\n")[0]
    assert f"ascl-sweep train examples/{path.name}" in story


@pytest.fixture(scope="module")
def raw_pixels() -> float:
    data = load_data("shapes", "")
    assert isinstance(data.train, Images)
    assert isinstance(data.test, Images)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (data.spec.mean, data.spec.std))
    bank, queries = (
        ((part.images / 255 - mean) / std).flatten(1) for part in (data.train, data.test)
    )
    return knn_top1(
        bank,
        data.train.labels,
        queries,
        data.test.labels,
        num_classes=10,
        k=200,
        temperature=0.1,
    )


def test_raw_pixels_are_a_poor_guide_to_shapes(raw_pixels: float) -> None:
    assert 0.1 < raw_pixels < 0.4


@pytest.mark.long
@pytest.mark.parametrize("relabel", ["none", "hard", "ahcl", "ascl"])
def test_knn_rises_past_raw_pixels_with_a_bank(relabel: str, raw_pixels: float) -> None:
    config = load_config(EXAMPLES / "shapes.yaml", [f"method.relabel={relabel}", "eval.probe=none"])
    scores = [metrics.knn_top1 or 0.0 for metrics in train(build(config))]
    assert scores[-1] > scores[0] + 0.02, scores
    assert scores[-1] > raw_pixels + 0.03, scores


@pytest.mark.long
@pytest.mark.parametrize("relabel", ["none", "ascl"])
def test_knn_rises_and_nothing_collapses_without_negatives(relabel: str) -> None:
    config = load_config(
        EXAMPLES / "shapes_byol.yaml", [f"method.relabel={relabel}", "eval.probe=none"]
    )
    epochs = list(train(build(config)))
    scores = [metrics.knn_top1 or 0.0 for metrics in epochs]
    assert scores[-1] > scores[0], scores
    assert scores[-1] > 0.18, "an untrained net gives 0.14 to 0.16"
    assert all((metrics.spread or 0) > 0.05 for metrics in epochs)
