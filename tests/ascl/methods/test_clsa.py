"""Laws of CLSA: MoCo's loss, and a stronger view that follows the query as a soft label."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascl.losses import bank_logits, info_nce, unit
from ascl.methods.base import Batch
from ascl.methods.clsa import CLSA, Config
from ascl.train import view_spec
from tests.ascl.methods.embeddings import batch_of, doubles, rows
from tests.ascl.methods.test_contract import a_batch, a_step, ready
from tests.conftest import tiny


def on_embeddings(dim: int = 6, **config: Any) -> CLSA:
    """CLSA whose networks change nothing."""
    encoder = nn.Linear(dim, dim, bias=False)
    nn.init.eye_(encoder.weight)
    torch.manual_seed(0)
    online = nn.Sequential(encoder, nn.Identity())
    return CLSA(Config(**{"queue_size": 9, **config}), online, dim)


def by_loops(query: Tensor, key: Tensor, stronger: Tensor, bank: Tensor, t: float) -> list[float]:
    """InfoNCE and the stronger view's cross-entropy, of unit rows in float64."""
    nce = follows = 0.0
    for q, k, s in zip(query, key, stronger, strict=True):
        seen = [k, *bank]
        weak = [math.exp(float(q @ z) / t) for z in seen]
        strong = [math.exp(float(s @ z) / t) for z in seen]
        nce -= math.log(weak[0] / sum(weak))
        for w, x in zip(weak, strong, strict=True):
            follows -= w / sum(weak) * math.log(x / sum(strong))
    return [nce / len(query), follows / len(query)]


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("temperature", [0.1, 0.2])
def test_the_loss_is_the_formula_as_loops(alpha: float, temperature: float) -> None:
    method = on_embeddings(stronger_weight=alpha, temperature=temperature)
    views = rows(5, 1), rows(5, 2), rows(5, 3)
    loss = method(batch_of(*views)).loss.item()
    bank = doubles(method.bank.features)
    nce, follows = by_loops(*(doubles(view) for view in views), bank, temperature)
    assert loss == pytest.approx(nce + alpha * follows, rel=1e-5)


def test_a_value_by_hand() -> None:
    # Query and key (1, 0), stronger and a bank of two (0, 1), τ = 1. The query's logits are 1, 0, 0
    # and the stronger view's 0, 1, 1; the label is (e, 1, 1) / (e + 2).
    method = on_embeddings(2, queue_size=2, temperature=1.0)
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    method.bank.features.copy_(torch.cat((y, y)))
    e = math.e
    expected = (math.log(e + 2) - 1) + (math.log(1 + 2 * e) - 2 / (e + 2))
    assert method(batch_of(x, x, y)).loss.item() == pytest.approx(expected)


def test_each_term_has_a_gradient_and_the_label_none() -> None:
    method = on_embeddings()
    query, key, stronger = rows(5, 1), rows(5, 2), rows(5, 3)
    gradients = torch.autograd.grad(method(batch_of(query, key, stronger)).loss, (query, stronger))
    assert all(gradient.abs().min() > 0 for gradient in gradients)
    bank = method.bank.features
    nce = info_nce(bank_logits(unit(query), unit(key.detach()), bank, 0.1))
    torch.testing.assert_close(gradients[0], torch.autograd.grad(nce, query)[0])


def test_without_the_stronger_term_it_is_moco() -> None:
    def two_views(batch: Batch) -> Batch:
        return replace(batch, views=batch.views[:2])

    a, b = ready("clsa", method={"stronger_weight": 0.0}), ready("moco")
    for seed in range(3):
        batch = a_batch(a, seed)
        assert a_step(a, batch) == pytest.approx(a_step(b, two_views(batch)), rel=1e-6)


def test_it_trains_on_two_strong_views_and_a_stronger_one() -> None:
    config = tiny("clsa")
    assert config.method.cost().views == ("query", "key", "stronger")
    specs = [view_spec(config, view, 32) for view in config.method.cost().views]
    assert [spec.kind for spec in specs] == ["strong", "strong", "stronger"]
    assert all((spec.size, spec.crop_min, spec.crop_max) == (32, 0.2, 1.0) for spec in specs)
    assert (specs[2].num_ops, specs[2].magnitude) == (5, 10)
