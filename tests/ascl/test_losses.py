"""Losses against their formulas written as loops."""

import math

import pytest
import torch

from ascl.losses import bank_logits, info_nce, mask_logits, spread, unit, weighted_cosine
from ascl.relabel import relabel


def vectors(rows: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return unit(torch.randn(rows, 6, generator=g)).double()


def test_info_nce_is_equation_1() -> None:
    q, k, bank, t = vectors(4, 0), vectors(4, 1), vectors(9, 2), 0.1
    total = 0.0
    for i in range(4):
        own = math.exp(float(q[i] @ k[i]) / t)
        total -= math.log(own / (own + sum(math.exp(float(q[i] @ b) / t) for b in bank)))
    assert info_nce(bank_logits(q, k, bank, t)).item() == pytest.approx(total / 4)


def test_soft_labels_give_equation_2() -> None:
    q, k, bank, t = vectors(4, 3), vectors(4, 4), vectors(9, 5), 0.1
    labels = relabel(k @ bank.T, "ascl", num_neighbours=3, temperature=0.05)
    total = 0.0
    for i in range(4):
        z = [k[i], *bank]
        norm = sum(math.exp(float(q[i] @ v) / t) for v in z)
        for j, v in enumerate(z):
            total -= float(labels[i, j]) * math.log(math.exp(float(q[i] @ v) / t) / norm)
    assert info_nce(bank_logits(q, k, bank, t), labels).item() == pytest.approx(total / 4)


def test_one_hot_labels_and_no_labels_are_the_same_loss() -> None:
    logits = bank_logits(vectors(4, 6), vectors(4, 7), vectors(9, 8), 0.1)
    one_hot = torch.zeros_like(logits)
    one_hot[:, 0] = 1
    torch.testing.assert_close(info_nce(logits, one_hot), info_nce(logits))


def test_a_hand_computed_info_nce() -> None:
    # Own key at cosine 1, one bank feature at 0, τ = 1: −ln(e / (e + 1)).
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    loss = info_nce(bank_logits(x, x, y, 1.0))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_weighted_cosine_is_the_appendix_loss() -> None:
    h, keys = vectors(5, 9), vectors(5, 10)
    weights = torch.rand(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(11))
    expected = sum(
        2 - 2 * sum(float(weights[i, j]) * float(h[i] @ keys[j]) for j in range(5))
        for i in range(5)
    )
    assert weighted_cosine(h, keys, weights).item() == pytest.approx(expected / 5)


def test_spread_is_zero_at_one_point_and_one_when_balanced() -> None:
    point = torch.ones(4, 2) / math.sqrt(2)
    assert spread(point).item() == pytest.approx(0, abs=1e-6)
    assert spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).item() == pytest.approx(1)


def test_unit_rows_are_float32_in_any_precision() -> None:
    rows = unit(torch.randn(3, 8).bfloat16())
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))


def test_masked_bank_entries_are_no_negatives_and_the_key_stays() -> None:
    q, k, bank = vectors(2, 20), vectors(2, 21), vectors(5, 22)
    left_out = torch.tensor([[False, True, False, True, False], [True] * 5])
    logits = mask_logits(bank_logits(q, k, bank, 0.1), left_out)
    for i, kept in enumerate(([0, 2, 4], [])):
        alone = info_nce(bank_logits(q[i : i + 1], k[i : i + 1], bank[kept], 0.1))
        torch.testing.assert_close(info_nce(logits[i : i + 1]), alone)
