"""Laws of CO2: MoCo's loss, and a consistency term that is symmetric and has a gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascl.losses import bank_logits, info_nce, unit
from ascl.methods.co2 import consistency
from tests.ascl.methods.test_contract import a_batch, a_step, ready


def vectors(rows: int, seed: int) -> torch.Tensor:
    return unit(torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)))


def by_loops(query: torch.Tensor, key: torch.Tensor, temperature: float) -> float:
    """½(KL(P‖Q) + KL(Q‖P)) row by row."""
    total = 0.0
    for q_row, p_row in zip(query.double().tolist(), key.double().tolist(), strict=True):
        q = [math.exp(x / temperature) for x in q_row]
        p = [math.exp(x / temperature) for x in p_row]
        q, p = [x / sum(q) for x in q], [x / sum(p) for x in p]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 2
        total += sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 2
    return total / len(query)


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_consistency_is_the_formula_as_loops(temperature: float) -> None:
    bank = vectors(30, 0)
    query, key = vectors(6, 1) @ bank.T, vectors(6, 2) @ bank.T
    expected = by_loops(query, key, temperature)
    assert consistency(query, key, temperature).item() == pytest.approx(expected, rel=1e-4)


def test_a_value_by_hand() -> None:
    # P = (¾, ¼), Q = (¼, ¾): KL either way is ½ ln 3, and so is half their sum.
    three = math.log(3)
    key, query = torch.tensor([[three, 0.0]]), torch.tensor([[0.0, three]])
    assert consistency(query, key, 1.0).item() == pytest.approx(three / 2)


@given(st.integers(0, 2**31 - 1), st.sampled_from([0.01, 0.05, 1.0]))
def test_consistency_is_zero_for_equal_views_nonnegative_and_symmetric(
    seed: int, temperature: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(3, 7, generator=g) * 2 - 1 for _ in range(2))
    assert consistency(a, a, temperature).item() == 0
    one = consistency(a, b, temperature)
    assert one.isfinite() and one >= 0
    torch.testing.assert_close(one, consistency(b, a, temperature))


def test_both_directions_of_the_divergence_have_a_gradient() -> None:
    bank = vectors(30, 3)
    query, key = (vectors(6, 4) @ bank.T).requires_grad_(), vectors(6, 5) @ bank.T
    log_q = torch.log_softmax(query / 0.05, dim=1)
    log_p = torch.log_softmax(key / 0.05, dim=1)
    parts = [
        (log_p.exp() * (log_p - log_q)).sum(dim=1).mean() / 2,
        (log_q.exp() * (log_q - log_p)).sum(dim=1).mean() / 2,
    ]
    gradients = [torch.autograd.grad(part, query, retain_graph=True)[0] for part in parts]
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    (whole,) = torch.autograd.grad(consistency(query, key, 0.05), query)
    torch.testing.assert_close(whole, gradients[0] + gradients[1], atol=1e-5, rtol=1e-3)


def test_the_loss_is_info_nce_and_the_weighted_consistency_of_its_own_features() -> None:
    batch = a_batch(ready("co2"))
    for weight in (0.0, 1.0, 10.0):
        run, twin = (ready("co2", method={"consistency_weight": weight}) for _ in range(2))
        output = run.model(batch)
        keys, bank = output.remember[0], twin.method.bank.features
        query = unit(twin.method.online(batch.views[0]))
        loss = info_nce(bank_logits(query, keys, bank, 0.1)).item()
        loss += weight * by_loops((query @ bank.T).detach(), keys @ bank.T, 0.05)
        assert output.loss.item() == pytest.approx(loss, rel=1e-4)


def test_without_the_consistency_term_it_is_moco() -> None:
    a = ready("co2", method={"consistency_weight": 0.0})
    b = ready("moco", augment={"key": "strong"})
    for seed in range(3):
        assert a_step(a, a_batch(a, seed)) == pytest.approx(a_step(b, a_batch(b, seed)), rel=1e-6)
