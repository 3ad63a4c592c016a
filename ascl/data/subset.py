"""The images of a run: the part of a dataset to train on, and the part to score.

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

from ascl.data.base import DatasetSpec, ImageFiles, Images, dataset_spec, fetch_command
from ascl.data.pixel_cache import OnDecoded
from ascl.errors import DataError, RunError


@dataclass(frozen=True, eq=False)
class Data:
    """The images of one run."""

    spec: DatasetSpec
    train: Images | ImageFiles
    """Images that the method trains on."""
    reference: Images | ImageFiles
    """Labeled part of `train`: the kNN bank and the probe's training set."""
    test: Images | ImageFiles
    """Images that are scored."""
    scored: str
    """Which images are scored: "test", or "holdout" if part of train was held out."""


def load_data(
    name: str, root: str | Path, *, train_size: int | None = None, holdout: float = 0.0
) -> Data:
    """Load the images of a run; they are the same for every seed.

    A search with a holdout only sees images that the final run trains on.

    Args:
        name: Name of the dataset.
        root: Folder of the datasets.
        train_size: Size of the class-balanced subset of train; a larger one contains a smaller one.
        holdout: Fraction of the subset's labeled images, class-balanced, that are held out and
            scored instead of the test split.
    """
    spec = dataset_spec(name)
    root = Path(root).expanduser()
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout must be at least 0 and below 1, got {holdout}")
    try:
        return _read_run(spec, root, train_size, holdout)
    except OSError as error:
        raise DataError(
            f"{name} in {root} cannot be read ({error}); check the disk and the permissions"
        ) from error


def _read_run(spec: DatasetSpec, root: Path, train_size: int | None, holdout: float) -> Data:
    train = spec.open(spec, root, "train")
    chosen = _subset(train.labels, train_size, spec.name)
    kept, held = _hold_out(train.labels, chosen, holdout, spec)
    # Open the test split before any image is read, so that a missing file is reported at once.
    test = None if len(held) else spec.open(spec, root, "test")
    images = train.take(kept)
    labeled = kept[train.labels[kept] >= 0]
    reference = images if len(labeled) == len(kept) else train.take(labeled)
    if test is None:
        return Data(spec, images, reference, train.take(held), "holdout")
    return Data(spec, images, reference, test.take(torch.arange(len(test.labels))), "test")


def fetch(name: str, root: str | Path) -> None:
    """Download a dataset unless it is already present; progress is printed to stderr."""
    spec = dataset_spec(name)
    root = Path(root).expanduser()
    # Network or disk errors; an invalid reply; a wrong checksum; a damaged archive.
    failures = OSError, http.client.HTTPException, RuntimeError, tarfile.TarError, EOFError
    try:
        # torchvision before 0.22 prints to stdout, which is reserved for data.
        with contextlib.redirect_stdout(sys.stderr):
            spec.download(spec, root)
    except failures as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"{name} could not be downloaded to {root} ({reason}); "
            f"check the network and the disk, then run {fetch_command(spec, root)} again"
        ) from error


def decode(name: str, root: str | Path, on_progress: OnDecoded) -> None:
    """Cache a dataset's decoded pixels on disk, to be read instead of its files.

    Views are bit-identical. A repeated call resumes an interrupted one. Raises OSError if the disk
    has too little free space.
    """
    spec = dataset_spec(name)
    if spec.decode is None:
        raise DataError(f"{name} is held in memory and need not be decoded; omit --decode")
    spec.decode(spec, Path(root).expanduser(), on_progress)


def _balanced_order(labels: Tensor) -> Tensor:
    """Order images so that the class counts of every prefix differ by at most one, if possible."""
    # Fixed seed: subsets must not depend on the run's seed. Shuffled: files are sorted by source.
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    turn = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    return by_class[turn.argsort(stable=True)]


def _subset(labels: Tensor, size: int | None, name: str) -> Tensor:
    """Choose indices: labeled images first, class-balanced; the labeled fraction is preserved."""
    labeled = (labels >= 0).nonzero().squeeze(1)
    unlabeled = (labels < 0).nonzero().squeeze(1)
    if size is None:
        size = len(labels)
    if not 1 <= size <= len(labels):
        raise RunError(
            f"train_size must be between 1 and the {len(labels)} training images of {name}, "
            f"got {size}; omit it to use all of them"
        )
    num_labeled = round(size * len(labeled) / len(labels))
    if num_labeled == 0:
        raise RunError(
            f"train_size must include at least one labeled image, got {size}, but only "
            f"{len(labeled)} of the {len(labels)} images of {name} have labels; use a larger value"
        )
    from_labeled = labeled[_balanced_order(labels[labeled])[:num_labeled]]
    # All unlabeled images are one class, so that balancing only shuffles them.
    order = _balanced_order(torch.zeros(len(unlabeled), dtype=torch.int64))
    return torch.cat([from_labeled, unlabeled[order[: size - num_labeled]]])


def _hold_out(
    labels: Tensor, chosen: Tensor, share: float, spec: DatasetSpec
) -> tuple[Tensor, Tensor]:
    """Split the chosen indices into kept and held-out ones, each in file order."""
    num_labeled = int((labels[chosen] >= 0).sum())
    # Labeled images come first, and every prefix is class-balanced.
    size = round(share * num_labeled)
    held, kept = chosen[:size], chosen[size:]
    if share > 0:
        held_counts = labels[held].bincount(minlength=spec.num_classes)
        left = labels[kept]
        kept_counts = left[left >= 0].bincount(minlength=spec.num_classes)
        if held_counts.min() < 1 or kept_counts.min() < 1:
            raise RunError(
                "both the holdout and the rest must have at least one image of each class, "
                f"got holdout={share} of {num_labeled} labeled images in {spec.num_classes} "
                f"classes of {spec.name}; try a holdout closer to 0.5, or a larger train_size"
            )
    return kept.sort().values, held.sort().values
