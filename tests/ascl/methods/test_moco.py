"""Laws of MoCo with both views as query and key."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascl.distributed import encode_shuffled, plan_shuffle
from ascl.losses import bank_logits, unit
from ascl.methods import moco
from ascl.methods.base import Batch
from ascl.methods.moco import Config, MoCo
from tests.ascl.methods.test_contract import a_batch, ready


def test_the_symmetric_loss_is_the_formula_as_loops() -> None:
    run = ready("moco_symmetric")
    batch, method = a_batch(run), run.method
    loss = run.model(batch).loss.item()
    # Batch statistics decide in training mode, so that a second look sees the same features.
    with torch.no_grad():
        queries = [unit(method.online(view)).double().tolist() for view in batch.views]
        keys = [
            unit(encode_shuffled(method.target, view, batch.shuffle)).double().tolist()
            for view in batch.views
        ]
    bank = method.bank.features.double().tolist()

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    total = 0.0
    for q, k in ((queries[0], keys[1]), (queries[1], keys[0])):
        for i in range(16):
            own = dot(q[i], k[i]) / 0.1
            others = [dot(q[i], row) / 0.1 for row in bank]
            total += math.log(sum(map(math.exp, [own, *others]))) - own
    assert loss == pytest.approx(total / 32, rel=1e-5)


def by_hand(*, symmetric: bool) -> float:
    """One image of two numbers, views (1, 0) and (0, 1), τ = 1, and a bank of (−1, 0) twice."""
    encoder = nn.Linear(2, 2, bias=False)
    nn.init.eye_(encoder.weight)
    config = Config(queue_size=2, temperature=1.0, symmetric=symmetric)
    method = MoCo(config, nn.Sequential(encoder, nn.Identity()), 2)
    method.bank.features.copy_(torch.tensor([[-1.0, 0.0], [-1.0, 0.0]]))
    views = (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    zero = torch.zeros(1, dtype=torch.long)
    batch = Batch(views, zero, zero, plan_shuffle(zero, 0, 1), False, 0.0, ())
    loss: Tensor = method(batch).loss
    return loss.item()


def test_a_hand_computed_loss_of_one_image() -> None:
    # Logits 0, −1, −1 one way, and 0, 0, 0 the other.
    assert by_hand(symmetric=False) == pytest.approx(math.log(1 + 2 / math.e))
    assert by_hand(symmetric=True) == pytest.approx((math.log(1 + 2 / math.e) + math.log(3)) / 2)


def test_neither_pass_has_its_own_batch_in_the_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready("moco_symmetric")
    banks, keys = [], []

    def watch(query: Tensor, key: Tensor, bank: Tensor, temperature: float) -> Tensor:
        banks.append(bank.clone())
        keys.append(key)
        return bank_logits(query, key, bank, temperature)

    monkeypatch.setattr(moco, "bank_logits", watch)
    for seed in range(2):
        before = run.method.bank.features.clone()
        output = run.model(a_batch(run, seed))
        assert banks[0].equal(before) and banks[1].equal(before)
        for own in keys:
            assert not torch.cdist(own, before).lt(1e-3).any()
        run.method.after_backward(output)
        place = slice(16 * seed, 16 * seed + 16)
        after = run.method.bank.features
        assert after[place].equal(keys[0]), "the first pass's keys, of the key view"
        others = torch.ones(len(after), dtype=torch.bool)
        others[place] = False
        assert after[others].equal(before[others]), "a batch goes in once"
        banks.clear()
        keys.clear()


def test_each_pass_relabels_by_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready("moco_symmetric", method={"relabel": "ascl"})
    batch, seen = a_batch(run), []
    labels = moco.soft_labels

    def watch(config: Any, similarity: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(similarity)
        return labels(config, similarity, *args, **kwargs)

    monkeypatch.setattr(moco, "soft_labels", watch)
    run.model(batch)
    for view, similarity in zip(batch.views[::-1], seen, strict=True):
        keys = unit(encode_shuffled(run.method.target, view, batch.shuffle))
        torch.testing.assert_close(similarity, keys @ run.method.bank.features.T)
