"""Laws of BYOL as first published: both views as query and key, and a momentum that rises."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascl.distributed import encode_shuffled, plan_shuffle
from ascl.losses import unit
from ascl.methods import byol
from ascl.methods.base import Batch
from ascl.methods.byol import BYOL, Config
from tests.ascl.methods.test_contract import a_batch, ready


def test_the_symmetric_loss_is_the_formula_as_loops() -> None:
    run = ready("byol_full")
    batch, method = a_batch(run), run.method
    loss = run.model(batch).loss.item()
    # Batch statistics decide in training mode, so that a second look sees the same features.
    with torch.no_grad():
        queries = [unit(method.predictor(method.online(view))) for view in batch.views]
        keys = [unit(encode_shuffled(method.target, view, batch.shuffle)) for view in batch.views]
    total = 0.0
    for q, k in ((queries[0], keys[1]), (queries[1], keys[0])):
        for a, b in zip(q.double().tolist(), k.double().tolist(), strict=True):
            total += 2 - 2 * sum(x * y for x, y in zip(a, b, strict=True))
    assert loss == pytest.approx(total / 32, rel=1e-5)


def by_hand(*, symmetric: bool) -> float:
    """One image of two numbers, views (1, 0) and (0.6, 0.8); the predictor drops the second."""
    encoder, predictor = (nn.Linear(2, 2, bias=False) for _ in range(2))
    nn.init.eye_(encoder.weight)
    with torch.no_grad():
        predictor.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    method = BYOL(Config(symmetric=symmetric), nn.Sequential(encoder, nn.Identity()), predictor)
    views = (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]]))
    zero = torch.zeros(1, dtype=torch.long)
    shuffle = plan_shuffle(zero, 0, 1)
    loss: Tensor = method(Batch(views, zero, zero, shuffle, False, 0.0, ())).loss
    return loss.item()


def test_a_hand_computed_loss_of_one_image() -> None:
    # 2 − 2·0.6 one way; the other way the prediction is (1, 0), just the key.
    assert by_hand(symmetric=False) == pytest.approx(0.8)
    assert by_hand(symmetric=True) == pytest.approx(0.4)


def test_each_pass_relabels_by_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready("byol_ascl", method={"symmetric": True})
    batch, seen = a_batch(run), []
    labels = byol.soft_labels_in_batch

    def watch(config: Any, similarity: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(similarity.clone())
        return labels(config, similarity, *args, **kwargs)

    monkeypatch.setattr(byol, "soft_labels_in_batch", watch)
    run.model(batch)
    own = torch.eye(16, dtype=torch.bool)
    for view, similarity in zip(batch.views[::-1], seen, strict=True):
        keys = unit(encode_shuffled(run.method.target, view, batch.shuffle))
        torch.testing.assert_close(similarity[~own], (keys @ keys.T)[~own])


@pytest.mark.parametrize(("progress", "momentum"), [(0.0, 0.9), (0.5, 0.95), (1.0, 1.0)])
def test_momentum_rises_to_one_during_training(progress: float, momentum: float) -> None:
    run = ready("byol", method={"momentum_rises": True, "momentum": 0.9})
    online, copy = (next(iter(m.parameters())) for m in (run.method.online, run.method.target))
    with torch.no_grad():
        online.add_(1.0)
    before = copy.clone()
    run.model(replace(a_batch(run), progress=progress))
    torch.testing.assert_close(copy, before + (1 - momentum), atol=1e-6, rtol=0)
