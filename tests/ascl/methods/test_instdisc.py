"""Laws of InstDisc: a softmax over the slots as loops, whole or sampled, and slot updates."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascl.losses import instance_softmax, unit
from ascl.methods.instdisc import Config, InstDisc, sampled_softmax
from ascl.models.memory_bank import SlotMemory
from ascl.train import build as build_run
from ascl.train import train
from tests.ascl.methods.embeddings import AS_IT_IS, batch_of, doubles, rows
from tests.ascl.methods.test_contract import ready
from tests.conftest import tiny


def method(slots: Tensor, **settings: Any) -> InstDisc:
    """InstDisc with these slots, and embeddings instead of images."""
    made = InstDisc(Config(**settings), AS_IT_IS, SlotMemory(*slots.shape))
    made.bank.features.copy_(slots)
    return made


def by_loops(query: Tensor, slots: Tensor, own: list[int], among: list[int], tau: float) -> float:
    """Mean over the queries of −log of the own slot's share among itself and `among`."""
    total = 0.0
    for q, i in zip(doubles(query).tolist(), own, strict=True):
        kept = [i, *(j for j in among if j != i)]
        cosines = [
            sum(a * b for a, b in zip(q, doubles(slots)[j].tolist(), strict=True)) for j in kept
        ]
        exps = [math.exp(x / tau) for x in cosines]
        total -= math.log(exps[0] / sum(exps))
    return total / len(own)


@pytest.mark.parametrize("temperature", [0.07, 0.1, 1.0])
def test_the_full_loss_is_the_formula_as_loops(temperature: float) -> None:
    slots, query, own = unit(rows(12, 0)).detach(), rows(5, 1), [3, 0, 11, 7, 4]
    batch = replace(batch_of(query), indices=torch.tensor(own))
    loss = method(slots, temperature=temperature)(batch).loss
    expected = by_loops(query, slots, own, list(range(12)), temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_the_sampled_loss_is_the_formula_as_loops_and_never_counts_the_own_slot_twice(
    temperature: float,
) -> None:
    slots, query, own = unit(rows(12, 2)).detach(), rows(4, 3), [3, 0, 11, 7]
    drawn = [3, 5, 0, 5, 2, 0, 0]  # two hit a query's own slot, and some come twice
    loss = sampled_softmax(unit(query), slots, torch.tensor(own), torch.tensor(drawn), temperature)
    assert loss.item() == pytest.approx(by_loops(query, slots, own, drawn, temperature), rel=1e-5)


def test_a_hand_computed_loss() -> None:
    # At τ 1 the own slot is at cosine 1 and the two others at 0: −ln(e / (e + 2)).
    loss = instance_softmax(torch.eye(3), torch.eye(3), torch.arange(3), 1.0)
    assert loss.item() == pytest.approx(math.log(1 + 2 / math.e))


def test_sampling_every_slot_once_is_the_full_softmax() -> None:
    slots, query, own = unit(rows(9, 4)).detach(), unit(rows(5, 5)), torch.tensor([8, 1, 2, 0, 5])
    sampled = sampled_softmax(query, slots, own, torch.arange(9), 0.1)
    torch.testing.assert_close(sampled, instance_softmax(query, slots, own, 0.1))


def test_the_own_slot_and_every_negative_have_a_gradient() -> None:
    query = rows(1, 6)
    slots = unit(rows(4, 7)).detach().requires_grad_()
    for loss in (
        instance_softmax(unit(query), slots, torch.tensor([2]), 0.5),
        sampled_softmax(unit(query), slots, torch.tensor([2]), torch.arange(4), 0.5),
    ):
        to_slots, to_query = torch.autograd.grad(loss, (slots, query))
        assert (to_slots.abs().sum(dim=1) > 0).all()
        assert to_query.abs().sum() > 0


def test_negatives_are_sampled_once_per_batch() -> None:
    method = ready("instdisc_sampled").method
    first, second = (torch.Generator().manual_seed(0) for _ in range(2))
    (drawn,) = method.draws(first)
    assert drawn.equal(torch.randint(64, (20,), generator=second))
    assert first.get_state().equal(second.get_state())
    assert not method.draws(first)[0].equal(drawn)
    assert ready("instdisc").method.draws(first) == ()


def test_an_epoch_fills_every_slot_with_its_images_class() -> None:
    run = build_run(tiny("instdisc", epochs=1))
    list(train(run))
    assert run.method.bank.classes.equal(run.data.train.labels)


def test_the_head_is_linear() -> None:
    head = ready("instdisc").method.online[1]
    assert [type(part).__name__ for part in head] == ["Linear"]
