"""The images of a run: which part of a dataset is trained on, and which is scored.

Subsets and holdouts are class-balanced and the same for every seed, so that arms are comparable.
"""

import contextlib
import http.client
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ascl.datasets import DataError, DatasetSpec, ImageFiles, Images, dataset_spec, fetch_command
from ascl.decoded import OnDecoded


@dataclass(frozen=True, eq=False)
class Data:
    """The images of one run."""

    spec: DatasetSpec
    train: Images | ImageFiles
    """What a method trains on."""
    reference: Images | ImageFiles
    """Its labelled part: the kNN bank and the probe's training set."""
    test: Images | ImageFiles
    """What is scored."""
    scored: str
    """Which images those are: "test", or "holdout" when part of train was kept back."""


def load_data(
    name: str, root: str | Path, *, train_size: int | None = None, holdout: float = 0.0
) -> Data:
    """Read the images of a run; the same ones for every seed.

    `train_size` takes a class-balanced subset of train, each contained in every larger one.
    `holdout` then keeps that share of its labelled images back, class-balanced, to be scored in
    place of the test split. So a search sees no image that the final run does not train on.
    """
    spec = dataset_spec(name)
    root = Path(root).expanduser()
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout is a share of train, at least 0 and below 1, got {holdout}")
    try:
        return _read(spec, root, train_size, holdout)
    except OSError as error:
        raise DataError(
            f"{name} in {root} cannot be read ({error}); check the disk and the permissions"
        ) from error


def _read(spec: DatasetSpec, root: Path, train_size: int | None, holdout: float) -> Data:
    train = spec.open(spec, root, "train")
    chosen = _subset(train.labels, train_size, spec.name)
    kept, held = _hold_out(train.labels, chosen, holdout, spec)
    # Opened before any image is read, so that what is missing shows at once.
    test = None if len(held) else spec.open(spec, root, "test")
    images = train.take(kept)
    labelled = kept[train.labels[kept] >= 0]
    reference = images if len(labelled) == len(kept) else train.take(labelled)
    if test is None:
        return Data(spec, images, reference, train.take(held), "holdout")
    return Data(spec, images, reference, test.take(torch.arange(len(test.labels))), "test")


def fetch(name: str, root: str | Path) -> None:
    """Download a dataset unless it is there already; progress goes to stderr."""
    spec = dataset_spec(name)
    root = Path(root).expanduser()
    # What these raise: no network or disk; a broken reply; a wrong checksum; a broken archive.
    failures = OSError, http.client.HTTPException, RuntimeError, tarfile.TarError, EOFError
    try:
        # Some torchvision versions print to stdout, which is for data.
        with contextlib.redirect_stdout(sys.stderr):
            spec.download(spec, root)
    except failures as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"{name} could not be downloaded to {root} ({reason}); "
            f"check the network and the disk, then run {fetch_command(spec, root)} again"
        ) from error


def decode(name: str, root: str | Path, on_progress: OnDecoded) -> None:
    """Keep a dataset's pixels on disk beside its files, to be read in their place.

    Views are bit for bit the same. Called again, it goes on where it was. Raises OSError when the
    disk has no room.
    """
    spec = dataset_spec(name)
    if spec.decode is None:
        raise DataError(f"{name} is held in memory and need not be decoded; leave --decode out")
    spec.decode(spec, Path(root).expanduser(), on_progress)


def _balanced_order(labels: Tensor) -> Tensor:
    """Order images so that in every prefix the classes differ by at most one, while they last."""
    # A fixed seed: subsets must not change with the run's. Shuffled: files come sorted by source.
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    turn = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    return by_class[turn.argsort(stable=True)]


def _subset(labels: Tensor, size: int | None, name: str) -> Tensor:
    """Choose places, labelled ones first and class-balanced, each kind in its natural share."""
    labelled = (labels >= 0).nonzero().squeeze(1)
    unlabelled = (labels < 0).nonzero().squeeze(1)
    if size is None:
        size = len(labels)
    if not 1 <= size <= len(labels):
        raise ValueError(
            f"train_size must be between 1 and the {len(labels)} training images of {name}, "
            f"got {size}; leave it out for all of them"
        )
    num_labelled = round(size * len(labelled) / len(labels))
    if num_labelled == 0:
        raise ValueError(
            f"train_size must leave a labelled image to compare with, got {size}, while only "
            f"{len(labelled)} of the {len(labels)} images of {name} have labels; try a larger one"
        )
    from_labelled = labelled[_balanced_order(labels[labelled])[:num_labelled]]
    # One stratum for all the unlabelled, so balancing them is shuffling them.
    order = _balanced_order(torch.zeros(len(unlabelled), dtype=torch.int64))
    return torch.cat([from_labelled, unlabelled[order[: size - num_labelled]]])


def _hold_out(
    labels: Tensor, chosen: Tensor, share: float, spec: DatasetSpec
) -> tuple[Tensor, Tensor]:
    """Part the chosen places into those kept and those held out, each in the order of the files."""
    num_labelled = int((labels[chosen] >= 0).sum())
    # The labelled come first, in an order whose prefixes are balanced.
    size = round(share * num_labelled)
    held, kept = chosen[:size], chosen[size:]
    if share > 0:
        held_counts = labels[held].bincount(minlength=spec.num_classes)
        left = labels[kept]
        kept_counts = left[left >= 0].bincount(minlength=spec.num_classes)
        if held_counts.min() < 1 or kept_counts.min() < 1:
            raise ValueError(
                "holdout must take and leave at least one image of each class, "
                f"got holdout={share} of {num_labelled} labelled images in {spec.num_classes} "
                f"classes of {spec.name}; try a share nearer to a half, or a larger train_size"
            )
    return kept.sort().values, held.sort().values
