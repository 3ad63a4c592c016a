"""Laws of subsets and holdouts, and of failed downloads."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.datasets import CIFAR10, CIFAR100, STL10

from ascl.data import subset as data
from ascl.data.base import dataset_spec
from ascl.data.subset import fetch, load_data
from ascl.errors import DataError

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor)


@given(labels=label_lists, share=st.floats(0.01, 1))
def test_a_subset_is_exact_and_as_balanced_as_the_classes_allow(
    labels: torch.Tensor, share: float
) -> None:
    size = max(1, int(share * len(labels)))
    chosen = data._subset(labels, size, "any")
    assert len(chosen.unique()) == len(chosen) == size
    counts, there = (part.bincount(minlength=5) for part in (labels[chosen], labels))
    # A class may fall behind the largest by more than one only when it has no more to give.
    assert ((counts >= counts.max() - 1) | (counts == there)).all()


@given(labels=label_lists, sizes=st.tuples(st.integers(1, 60), st.integers(1, 60)))
def test_a_subset_is_contained_in_every_larger_one(
    labels: torch.Tensor, sizes: tuple[int, int]
) -> None:
    small, large = sorted(min(size, len(labels)) for size in sizes)
    inner, outer = (set(data._subset(labels, n, "any").tolist()) for n in (small, large))
    assert inner <= outer


@given(seed=st.integers(0, 1000))
def test_subsets_do_not_depend_on_the_seed_of_the_run(seed: int) -> None:
    labels = torch.arange(50) % 5
    expected = data._subset(labels, 20, "any")
    torch.manual_seed(seed)
    assert data._subset(labels, 20, "any").equal(expected)


@given(per_class=st.integers(2, 30), share=st.floats(0.01, 0.99), unlabelled=st.integers(0, 40))
def test_holdout_is_a_balanced_fraction_of_the_labeled_images_and_disjoint_from_train(
    per_class: int, share: float, unlabelled: int
) -> None:
    labels = torch.cat([torch.arange(10 * per_class) % 10, torch.full((unlabelled,), -1)])
    chosen = data._subset(labels, None, "any")
    size = round(share * (10 * per_class))
    if not 10 <= size <= 10 * per_class - 10:
        with pytest.raises(ValueError, match="at least one image of each class"):
            data._hold_out(labels, chosen, share, dataset_spec("shapes"))
        return
    kept, held = data._hold_out(labels, chosen, share, dataset_spec("shapes"))
    assert torch.cat([kept, held]).sort().values.equal(torch.arange(len(labels)))
    counts = labels[held].bincount(minlength=10)
    assert counts.sum() == size and counts.max() - counts.min() <= 1


def test_holdout_replaces_the_test_split() -> None:
    part = load_data("shapes", "nowhere", train_size=200, holdout=0.25)
    whole = load_data("shapes", "nowhere", train_size=200)
    assert (part.scored, len(part.train), len(part.test)) == ("holdout", 150, 50)
    assert (whole.scored, len(whole.train), len(whole.test)) == ("test", 200, 2000)
    seen = {image.numpy().tobytes() for image in whole.train.images}
    train, held = ({i.numpy().tobytes() for i in d.images} for d in (part.train, part.test))
    assert train | held == seen and not train & held


@pytest.mark.parametrize("size", [0, -1, 10_001])
def test_a_subset_larger_than_train_or_empty_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"the 10000 training images of shapes, got {size};"):
        load_data("shapes", "nowhere", train_size=size)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_holdout_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"at least 0 and below 1, got {share}"):
        load_data("shapes", "nowhere", holdout=share)


def test_shapes_need_no_files_and_all_are_labeled() -> None:
    shapes = load_data("shapes", "nowhere")
    assert (len(shapes.train), len(shapes.test)) == (10_000, 2_000)
    assert shapes.reference is shapes.train
    fetch("shapes", "nowhere")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("source", [CIFAR10, CIFAR100, STL10])
def test_download_without_network_is_reported(
    source: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Port 9 of this machine: nothing listens there.
    monkeypatch.setattr(source, "url", "http://127.0.0.1:9/archive.tar.gz")
    name = source.__name__.lower()
    with pytest.raises(DataError, match=f"{name} could not be downloaded to .* check the network"):
        fetch(name, tmp_path)
