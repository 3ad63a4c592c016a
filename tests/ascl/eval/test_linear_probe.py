"""Laws of the linear probe."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ascl.data.base import DATASETS, Images
from ascl.data.loader import Pixels
from ascl.eval.extract import extract_features, extract_own_features
from ascl.eval.linear_probe import ProbeState, linear_probe
from ascl.seeding import generator, seeded_init

PIXELS = Pixels.of(DATASETS["shapes"], torch.device("cpu"))


def mean_color(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3))


def probe(images: Images, *, cached: bool, **options: Any) -> Iterator[ProbeState]:
    """Probe mean colors, and score the images that it is trained on."""
    return linear_probe(
        *(mean_color, images, PIXELS),
        *(extract_features(mean_color, images, PIXELS), images.labels),
        cached=extract_own_features(mean_color, images, PIXELS) if cached else None,
        **{"num_classes": 3, "seed": 0, "crop_min": 0.2} | options,
    )


def noise(count: int) -> Images:
    pictures = torch.randint(0, 255, (count, 3, 32, 32), generator=generator(0))
    return Images(pictures.to(torch.uint8), torch.arange(count) % 3)


@pytest.mark.parametrize("cached", [True, False])
def test_probe_learns_classes_that_the_features_encode(cached: bool) -> None:
    # Class = which channel is bright: mean colours tell it, in crops and flips as well.
    y = torch.arange(90) % 3
    pictures = torch.randint(0, 60, (90, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    pictures[torch.arange(90), y] += 150
    *_, state = probe(Images(pictures.to(torch.uint8), y), cached=cached, epochs=5)
    assert state.top1 > 0.95
    assert state.best_top1 >= state.top1


def test_probe_of_constant_features_is_at_chance() -> None:
    y = torch.arange(300) % 3
    images = Images(torch.zeros(300, 3, 32, 32, dtype=torch.uint8), y)
    *_, state = probe(images, cached=True, epochs=3)
    assert state.top1 == pytest.approx(1 / 3, abs=0.01)


def reloaded(state: ProbeState) -> ProbeState:
    """The state as a new process reads it."""
    file = io.BytesIO()
    torch.save(vars(state), file)
    file.seek(0)
    return ProbeState(**torch.load(file, weights_only=True))


@pytest.mark.parametrize("cached", [True, False])
def test_a_probe_resumed_after_any_epoch_equals_an_undisturbed_one(cached: bool) -> None:
    images, options = noise(90), {"cached": cached, "epochs": 5, "nesterov": True}
    whole = [reloaded(state) for state in probe(images, **options)]
    assert [state.epoch for state in whole] == [1, 2, 3, 4, 5]
    torch.manual_seed(99)  # the global stream has no effect
    for start in whole:
        rest = [reloaded(state) for state in probe(images, start=start, **options)]
        assert [state.epoch for state in rest] == list(range(start.epoch + 1, 6))
        for ours, theirs in zip(rest, whole[start.epoch :], strict=True):
            assert (ours.top1, ours.best_top1) == (theirs.top1, theirs.best_top1)
            assert all(ours.classifier[k].equal(theirs.classifier[k]) for k in theirs.classifier)


def test_the_cached_probe_is_the_plain_loop() -> None:
    # To the bit: the rate of 10 turns rounding into another accuracy.
    images = noise(600)
    features = extract_features(mean_color, images, PIXELS)
    with seeded_init(0, "probe"):
        weight = torch.nn.Linear(3, 3).weight.data.normal_(std=0.01).requires_grad_()
    bias = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=10.0, momentum=0.9)
    for epoch, state in enumerate(probe(images, cached=True, epochs=5)):
        optimizer.param_groups[0]["lr"] = [10.0, 10.0, 10.0, 10.0 * 0.1, 10.0 * 0.1**2][epoch]
        order = torch.randperm(600, generator=generator(0, "probe", "order", epoch))
        for step in (order[:256], order[256:512]):
            optimizer.zero_grad()
            logits = F.linear(features[step], weight, bias)
            (F.cross_entropy(logits, images.labels[step], reduction="sum") / 256).backward()
            optimizer.step()
        assert state.classifier["weight"].equal(weight) and state.classifier["bias"].equal(bias)
        right = F.linear(features, weight, bias).argmax(dim=1) == images.labels
        assert state.top1 == pytest.approx(right.float().mean().item())
