"""The linear probe: a linear classifier on the features of a frozen encoder.

The random streams of an epoch are named by the epoch, so a probe that resumes from a `ProbeState`
takes the same steps as an undisturbed one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ascl.augment.views import ViewSpec
from ascl.data.base import ImageFiles, Images
from ascl.data.loader import Pixels, training_batches
from ascl.distributed import share, total
from ascl.eval.extract import Encode, own_labels
from ascl.seeding import generator, seeded_init

PROBE_BATCH = 256
PROBE_RATE = 10.0
PROBE_DROPS = (0.6, 0.8)  # fractions of the epochs after which the rate is divided by 10


@dataclass(frozen=True, eq=False)
class ProbeState:
    """State of a probe after an epoch; valid until the probe continues."""

    epoch: int  # epochs done
    top1: float  # on the scored images, after this epoch
    best_top1: float
    classifier: dict[str, Tensor]
    optimizer: dict[str, Any]


def linear_probe(
    encode: Encode,
    reference: Images | ImageFiles,
    pixels: Pixels,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    num_classes: int,
    epochs: int,
    seed: int,
    crop_min: float,
    cached: Tensor | None = None,
    nesterov: bool = False,
    start: ProbeState | None = None,
) -> Iterator[ProbeState]:
    """Train a linear classifier on frozen features; yield its state after each epoch.

    The paper's protocol: SGD, learning rate 10, divided by 10 after 60% and 80% of the epochs.

    Args:
        encode: The frozen encoder.
        reference: Labeled training images.
        pixels: Format of network inputs.
        test_features: Features of all images to score, on every rank.
        test_labels: Their classes.
        num_classes: Number of classes.
        epochs: Epochs of the probe.
        seed: The run's seed.
        crop_min: Smallest crop of the weak training views.
        cached: Features of this rank's share of the un-augmented training images, to train on
            instead of views.
        nesterov: Whether to use Nesterov momentum.
        start: State to resume from; None to start from the beginning.

    Yields:
        States with the accuracy after the epoch, and the best accuracy of all epochs so far. The
        best epoch is selected on the scored images, so do not report it as a result.
    """
    size = min(PROBE_BATCH, len(reference))
    with seeded_init(seed, "probe"):
        classifier = nn.Linear(test_features.shape[1], num_classes)
        nn.init.normal_(classifier.weight, std=0.01)
        nn.init.zeros_(classifier.bias)
    classifier.to(pixels.device)
    optimizer = torch.optim.SGD(
        classifier.parameters(), lr=PROBE_RATE, momentum=0.9, nesterov=nesterov
    )
    done, best = 0, 0.0
    if start is not None:
        classifier.load_state_dict(start.classifier)
        optimizer.load_state_dict(start.optimizer)
        done, best = start.epoch, start.best_top1

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(reference), generator=generator(seed, "probe", "order", epoch))
        order = order[: len(order) // size * size]  # whole batches only
        if cached is not None:
            labels, own = own_labels(reference, pixels), share(len(reference))
            yield from _cached_batches(cached, labels, order.view(-1, size), own)
            return
        views = [ViewSpec("weak", pixels.size, crop_min=crop_min)]
        draws = [generator(seed, "probe", "view", epoch)]
        steps = order.split(size)
        for batch in training_batches(reference, steps, views, draws, pixels, repeat(None)):
            yield encode(batch.views[0]).float(), batch.labels

    for epoch in range(done, epochs):
        drops = sum(epoch >= drop * epochs for drop in PROBE_DROPS)
        for group in optimizer.param_groups:
            group["lr"] = PROBE_RATE * 0.1**drops
        for batch, labels in batches(epoch):
            optimizer.zero_grad()
            # Divide by the size of the whole batch: the ranks' shares may differ in length.
            (F.cross_entropy(classifier(batch), labels, reduction="sum") / size).backward()
            for parameter in classifier.parameters():
                parameter.grad = total(parameter.grad) if parameter.grad is not None else None
            optimizer.step()
        with torch.no_grad():
            right = (classifier(test_features).argmax(dim=1) == test_labels).float().mean()
        top1 = right.item()
        best = max(best, top1)
        yield ProbeState(epoch + 1, top1, best, classifier.state_dict(), optimizer.state_dict())


def _cached_batches(
    features: Tensor, labels: Tensor, steps: Tensor, own: slice
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features and classes that this rank has of each step.

    `steps` are indices of all images, one row per step. Gradients are summed over ranks, so any
    rank may contribute an image.
    """
    mine = (steps >= own.start) & (steps < own.stop)
    # One copy to the device for all steps: each copy would wait for it.
    index = (steps[mine] - own.start).to(features.device)
    for part in index.split(mine.sum(dim=1).tolist()):
        yield features.index_select(0, part), labels.index_select(0, part)
