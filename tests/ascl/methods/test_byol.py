"""Laws of BYOL as first published: both views as query and key, and a momentum that rises."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascl.distributed import shuffled_keys
from ascl.losses import unit
from ascl.methods import Batch, byol
from ascl.methods.byol import BYOL, Config
from tests.ascl.methods.test_contract import a_batch, ready


def loss_of(system: str, *, swap: bool = False, **method: Any) -> float:
    run = ready(system, method=method)
    batch = a_batch(run)
    if swap:
        batch = replace(batch, views=batch.views[::-1])
    loss: Tensor = run.model(batch).loss
    return loss.item()


@pytest.mark.parametrize("relabel", ["none", "hard", "ascl"])
def test_the_symmetric_loss_is_the_mean_of_both_ways_and_the_same_with_views_swapped(
    relabel: str,
) -> None:
    one_way = [loss_of("byol", swap=swap, relabel=relabel) for swap in (False, True)]
    both = [loss_of("byol", swap=swap, relabel=relabel, symmetric=True) for swap in (False, True)]
    assert both[0] == pytest.approx(sum(one_way) / 2, rel=1e-6)
    assert both[0] == pytest.approx(both[1], rel=1e-6)
    assert one_way[0] != pytest.approx(one_way[1], rel=1e-4)


def test_the_symmetric_loss_is_the_formula_as_loops() -> None:
    run = ready("byol_full")
    batch, method = a_batch(run), run.method
    loss = run.model(batch).loss.item()
    # Batch statistics decide in training mode, so that a second look sees the same features.
    with torch.no_grad():
        queries = [unit(method.predictor(method.online(view))) for view in batch.views]
        keys = [unit(shuffled_keys(method.target, view, batch.shuffle)) for view in batch.views]
    total = 0.0
    for q, k in ((queries[0], keys[1]), (queries[1], keys[0])):
        for a, b in zip(q.double().tolist(), k.double().tolist(), strict=True):
            total += 2 - 2 * sum(x * y for x, y in zip(a, b, strict=True))
    assert loss == pytest.approx(total / 32, rel=1e-5)


def by_hand(*, symmetric: bool) -> float:
    """One picture of two numbers, views (1, 0) and (0.6, 0.8); the predictor drops the second."""
    encoder, predictor = (nn.Linear(2, 2, bias=False) for _ in range(2))
    nn.init.eye_(encoder.weight)
    with torch.no_grad():
        predictor.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    method = BYOL(Config(symmetric=symmetric), nn.Sequential(encoder, nn.Identity()), predictor)
    views = (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]]))
    zero = torch.zeros(1, dtype=torch.long)
    loss: Tensor = method(Batch(views, zero, zero, zero, False, 0.0, torch.Generator())).loss
    return loss.item()


def test_the_loss_of_one_picture_by_hand() -> None:
    # 2 − 2·0.6 one way; the other way the prediction is (1, 0), just the key.
    assert by_hand(symmetric=False) == pytest.approx(0.8)
    assert by_hand(symmetric=True) == pytest.approx(0.4)


def test_each_way_relabels_by_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready("byol_ascl", method={"symmetric": True})
    batch, seen = a_batch(run), []
    labels = byol.labels_in_batch

    def watch(config: Any, similarity: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(similarity.clone())
        return labels(config, similarity, *args, **kwargs)

    monkeypatch.setattr(byol, "labels_in_batch", watch)
    run.model(batch)
    own = torch.eye(16, dtype=torch.bool)
    for view, similarity in zip(batch.views[::-1], seen, strict=True):
        keys = unit(shuffled_keys(run.method.target, view, batch.shuffle))
        torch.testing.assert_close(similarity[~own], (keys @ keys.T)[~own])


def test_both_ways_have_a_gradient() -> None:
    run = ready("byol_full")
    batch = a_batch(run)
    weight = next(iter(run.method.online.parameters()))
    both = torch.autograd.grad(run.model(batch).loss, weight)[0]
    ways = [
        torch.autograd.grad(run.method.one_pass(*views, batch).loss, weight)[0]
        for views in (batch.views, batch.views[::-1])
    ]
    assert all(way.abs().sum() > 0 for way in ways)
    torch.testing.assert_close(both, sum(ways) / 2)


@pytest.mark.parametrize(("progress", "momentum"), [(0.0, 0.9), (0.5, 0.95), (1.0, 1.0)])
def test_the_momentum_rises_to_one_with_the_training(progress: float, momentum: float) -> None:
    run = ready("byol", method={"momentum_rises": True, "momentum": 0.9})
    online, copy = (next(iter(m.parameters())) for m in (run.method.online, run.method.target))
    with torch.no_grad():
        online.add_(1.0)
    before = copy.clone()
    run.model(replace(a_batch(run), progress=progress))
    torch.testing.assert_close(copy, before + (1 - momentum), atol=1e-6, rtol=0)


def test_two_ways_cost_two_backprops() -> None:
    assert Config().cost().backprops == 1
    assert Config(symmetric=True, momentum_rises=True).cost().backprops == 2
