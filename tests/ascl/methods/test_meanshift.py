"""Laws of MeanShift: own key and nearest neighbors, and BYOL if the key is the only target."""

import pytest
import torch

from ascl.losses import bank_logits, unit
from ascl.methods.meanshift import mean_shift
from ascl.relabel import relabel
from tests.ascl.methods.test_contract import a_batch, a_step, ready


def vectors(rows: int, seed: int) -> torch.Tensor:
    return unit(torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))).double()


@pytest.mark.parametrize("k", [1, 2, 5, 31])
def test_the_loss_is_the_formula_as_loops(k: int) -> None:
    query, key, bank = vectors(6, 0), vectors(6, 1), vectors(30, 2)
    total = 0.0
    for i in range(6):
        order = sorted(range(30), key=lambda j: -float(key[i] @ bank[j]))
        targets = [key[i], *(bank[j] for j in order[: k - 1])]
        total += sum(2 - 2 * float(query[i] @ u) for u in targets) / k
    assert mean_shift(query, key, bank, k).item() == pytest.approx(total / 6)


def test_a_value_by_hand() -> None:
    # Query and key are x; of the bank the key is nearest to x at 60°: ½·0 + ½·(2 − 2·½).
    x = torch.tensor([[1.0, 0.0]])
    bank = torch.tensor([[0.0, 1.0], [0.5, 3**0.5 / 2], [-1.0, 0.0]])
    assert mean_shift(x, x, bank, 1).item() == pytest.approx(0.0)
    assert mean_shift(x, x, bank, 2).item() == pytest.approx(0.5)
    assert mean_shift(x, x, bank, 4).item() == pytest.approx((0 + 1 + 2 + 4) / 4)


def test_it_is_hard_relabeling_of_byols_loss_against_the_bank() -> None:
    query, key, bank = vectors(6, 3), vectors(6, 4), vectors(30, 5)
    labels = relabel(key @ bank.T, "hard", num_neighbours=4, temperature=1.0)
    cosines = bank_logits(query, key, bank, 1.0)
    expected = 2 - 2 * (labels * cosines).sum(dim=1).mean()
    torch.testing.assert_close(mean_shift(query, key, bank, 5), expected)


def test_a_run_with_one_target_is_a_run_of_byol() -> None:
    a, b = ready("meanshift", method={"num_targets": 1}), ready("byol")
    for seed in range(3):
        assert a_step(a, a_batch(a, seed)) == pytest.approx(a_step(b, a_batch(b, seed)), rel=1e-5)


def test_own_key_and_neighbors_both_have_a_gradient() -> None:
    query, key, bank = vectors(6, 9).requires_grad_(), vectors(6, 10), vectors(30, 11)
    (own,) = torch.autograd.grad(mean_shift(query, key, bank, 1), query)
    (both,) = torch.autograd.grad(mean_shift(query, key, bank, 5), query)
    torch.testing.assert_close(own, -2 * key / 6)
    neighbours = both - own / 5  # what is not the own key's share
    assert (neighbours.norm(dim=1) > 0).all()
