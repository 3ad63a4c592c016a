"""RandAugment against torchvision's operations with the same parameters, and in distribution."""

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms import RandAugment

from ascl.augment.randaugment import (
    KIND_OF,
    OPS,
    affine_grids,
    affine_matrices,
    plan_turns,
    rand_augment_,
)
from ascl.augment.views import ViewSpec, draw_view
from tests.ascl.augment.test_views import gen, pictures

THEIR_NAMES = list(RandAugment()._augmentation_space(31, (32, 32)))


def augmented(images: Tensor, ops: np.ndarray, backwards: np.ndarray, magnitude: int) -> Tensor:
    """Images (N, 3, S, S) under their operations."""
    images = images.clone()
    grids = affine_grids(magnitude, images.shape[-1])
    rand_augment_(images, plan_turns(ops, backwards, magnitude), grids, magnitude)
    return images


def torchvisions(image: Tensor, index: int, back: bool, magnitude: int) -> Tensor:
    """Torchvision's result for a float image; magnitudes from its own table."""
    op = OPS[index]
    space = RandAugment()._augmentation_space(31, (image.shape[-2], image.shape[-1]))
    table, signed = space[THEIR_NAMES[index]]
    m = float(table[magnitude]) if table.ndim else 0.0
    m = -m if signed and back else m
    degrees = math.degrees(math.atan(m))
    affine = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    match op:
        case "identity":
            return image
        case "shear_x":
            return TF.affine(image, **{**affine, "shear": [degrees, 0.0]}, center=[0, 0])
        case "shear_y":
            return TF.affine(image, **{**affine, "shear": [0.0, degrees]}, center=[0, 0])
        case "translate_x":
            return TF.affine(image, **{**affine, "translate": [int(m), 0]})
        case "translate_y":
            return TF.affine(image, **{**affine, "translate": [0, int(m)]})
        case "rotate":
            return TF.rotate(image, m)
        case "brightness":
            return TF.adjust_brightness(image, 1 + m)
        case "color":
            return TF.adjust_saturation(image, 1 + m)
        case "contrast":
            return TF.adjust_contrast(image, 1 + m)
        case "sharpness":
            return TF.adjust_sharpness(image, 1 + m)
        case "posterize":
            return TF.posterize(image, int(m))
        case "solarize":
            return TF.solarize(image, m / 255)
        case "auto_contrast":
            return TF.autocontrast(image)
    assert op == "equalize"
    return TF.equalize(image)


def floats(n: int, side: int = 32, seed: int = 0) -> Tensor:
    return pictures(n, side, seed).float() / 255


def test_our_operations_are_torchvisions_in_its_order() -> None:
    ours = {"color": "color", "posterize": "posterize", "solarize": "solarize"}
    ours["equalize"] = "equalize"
    assert [ours.get(op, op).replace("_", "") for op in OPS] == [n.lower() for n in THEIR_NAMES]


@pytest.mark.parametrize("side", [12, 32, 45, 96])
@pytest.mark.parametrize("op", OPS)
def test_each_operation_is_torchvisions(op: str, side: int) -> None:
    images = floats(20, side)
    images[0] = 0.5  # flat
    images[1, 1] = 0.25  # one flat channel
    back, index = np.arange(20) % 2 == 1, OPS.index(op)
    ours = augmented(images, np.full((20, 1), index), back[:, None], 10)
    for i in range(20):
        theirs = torchvisions(images[i], index, bool(back[i]), 10)
        torch.testing.assert_close(ours[i], theirs, atol=2e-6, rtol=0)


@given(op=st.integers(0, len(OPS) - 1), magnitude=st.integers(0, 30), back=st.booleans())
def test_each_operation_is_torchvisions_at_every_magnitude(
    op: int, magnitude: int, back: bool
) -> None:
    images = floats(1, 32, seed=magnitude)
    ours = augmented(images, np.array([[op]]), np.array([[back]]), magnitude)
    gap = (ours[0] - torchvisions(images[0], op, back, magnitude)).abs()
    # A pixel that lies between two, or a level at a threshold, may be rounded to the other one.
    assert (gap > 1e-5).float().mean() < 0.02


def test_operations_are_applied_in_the_order_each_sample_drew() -> None:
    draw = draw_view(ViewSpec("stronger", 32), 100, gen(1))
    images = floats(100)
    ours = augmented(images, draw.ops, draw.backwards, 10)
    for i in range(100):
        x = images[i]
        for op, back in zip(draw.ops[i].tolist(), draw.backwards[i].tolist(), strict=True):
            x = torchvisions(x, op, back, 10)
        # What rounding puts across a threshold by one operation, the next ones may carry further.
        assert ((ours[i] - x).abs() > 1e-4).float().mean() < 0.01


def test_sample_does_not_depend_on_its_batch() -> None:
    draw = draw_view(ViewSpec("stronger", 32), 40, gen(2))
    images = floats(40)
    whole = augmented(images, draw.ops, draw.backwards, 10)
    for i in range(40):
        one = slice(i, i + 1)
        alone = augmented(images[one], draw.ops[one], draw.backwards[one], 10)
        torch.testing.assert_close(alone[0], whole[i], atol=1e-5, rtol=0)


@given(seed=st.integers(0, 1000), magnitude=st.integers(0, 30), side=st.integers(12, 40))
def test_pictures_stay_between_black_and_white(seed: int, magnitude: int, side: int) -> None:
    draw = draw_view(ViewSpec("stronger", side), 8, gen(seed))
    noise = torch.rand(8, 3, side, side, generator=gen(seed))
    out = augmented(noise, draw.ops, draw.backwards, magnitude)
    assert out.isfinite().all()
    assert out.min() >= 0
    assert out.max() <= 1


def test_all_operations_and_directions_are_drawn_uniformly() -> None:
    draw = draw_view(ViewSpec("stronger", 32), 20_000, gen(3))
    assert draw.ops.shape == draw.backwards.shape == (20_000, 5)
    for turn in range(5):
        shares = np.bincount(draw.ops[:, turn], minlength=len(OPS)) / 20_000
        assert abs(shares - 1 / 14).max() < 0.008  # four deviations
    assert abs(draw.backwards.mean(axis=0) - 0.5).max() < 0.015
    pairs = np.bincount(draw.ops[:, 0] * 14 + draw.ops[:, 1], minlength=196) / 20_000
    assert abs(pairs - 1 / 196).max() < 0.0025, "one operation says nothing of the next"


@given(count=st.integers(1, 60), rounds=st.integers(0, 7), seed=st.integers(0, 999))
def test_turns_apply_each_samples_operations_in_their_order(
    count: int, rounds: int, seed: int
) -> None:
    g = np.random.default_rng(seed)
    ops = g.integers(0, len(OPS), (count, rounds))
    turns = plan_turns(ops, np.zeros(ops.shape, bool), 10)
    applied: list[list[str]] = [[] for _ in range(count)]
    samples = np.arange(count)
    *orders, restore = (order.numpy() for order in turns.orders)
    for parts, order in zip(turns.parts, orders, strict=True):
        samples, done = samples[order], 0
        for kind, size in parts:
            for sample in samples[done : done + size]:
                applied[sample].append(kind)
            done += size
    assert (samples[restore] == np.arange(count)).all()
    kinds = ("none", "move", "blend", *OPS[9:])
    for sample, drawn in zip(applied, ops, strict=True):
        assert sample == [kinds[KIND_OF[op]] for op in drawn if op]
    assert len(turns.grid) == len(turns.factor) == (ops > 0).sum()


def test_rare_operations_wait_for_more_samples() -> None:
    passes = []
    for seed in range(20):
        draw = draw_view(ViewSpec("stronger", 32), 256, gen(seed))
        turns = plan_turns(draw.ops, draw.backwards, 10)
        passes.append(sum(map(len, turns.parts)))
        assert len(turns.parts) <= 14
    assert sum(passes) / 20 < 32, "of 35, seven kinds in each of five rounds"


def test_a_hand_computed_shear_shift_and_turn() -> None:
    # A third of 0.3 as a slope, about the upper left corner; a third of 150/331 of 32 pixels is
    # 4.8, so 4 of the 16 on either side of the centre; a quarter of 30° is 7.5°.
    there, back = affine_matrices(10 / 30, 32)
    close = torch.testing.assert_close
    close(there[0], torch.tensor([[1, 0.1, 0.1], [0, 1, 0]]))
    close(back[1], torch.tensor([[1, 0, 0], [-0.1, 1, -0.1]]))
    close(there[2], torch.tensor([[1, 0, -0.25], [0, 1, 0]]))
    close(back[3], torch.tensor([[1, 0, 0], [0, 1, 0.25]]))
    c, s = math.cos(math.radians(7.5)), math.sin(math.radians(7.5))
    close(affine_matrices(0.25, 32)[0, 4], torch.tensor([[c, -s, 0], [s, c, 0]]))
