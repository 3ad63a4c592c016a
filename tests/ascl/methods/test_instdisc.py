"""Laws of InstDisc: a softmax over the slots as loops, whole or sampled, and what slots take."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ascl.bank import SlotMemory
from ascl.config import RunConfig
from ascl.faults import Faulty
from ascl.losses import instance_softmax, unit
from ascl.methods import TrainingSet
from ascl.methods.instdisc import Config, InstDisc, build, sampled_softmax
from ascl.train import build as build_run
from ascl.train import train
from tests.ascl.methods.embeddings import AS_IT_IS, batch_of, doubles, rows
from tests.ascl.methods.test_contract import a_batch, ready
from tests.conftest import tiny


def method(slots: Tensor, **settings: Any) -> InstDisc:
    """With these slots, and embeddings in place of images."""
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


def test_to_draw_every_slot_once_is_the_full_softmax() -> None:
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


def test_negatives_are_drawn_anew_for_each_batch_and_are_one_draw_for_all_of_it() -> None:
    run = ready("instdisc_sampled")
    batch = a_batch(run)
    before = batch.generator.get_state()
    run.model(batch)
    after = batch.generator.get_state()
    batch.generator.set_state(before)
    torch.randint(64, (20,), generator=batch.generator)
    assert batch.generator.get_state().equal(after)
    assert not before.equal(after)


def test_slots_take_the_batch_after_the_step_and_not_before() -> None:
    slots, query, own = unit(rows(6, 8)).detach(), rows(3, 9), torch.tensor([4, 0, 2])
    made, classes = method(slots), torch.tensor([7, 8, 9])
    output = made(replace(batch_of(query, classes=classes), indices=own))
    assert made.bank.features.equal(slots)
    made.after_backward(output)
    moved = unit(0.5 * slots[own] + 0.5 * unit(query).detach())
    torch.testing.assert_close(made.bank.features[own], moved)
    assert made.bank.features[[1, 3, 5]].equal(slots[[1, 3, 5]])
    assert made.bank.classes.tolist() == [8, -1, 9, -1, 7, -1]
    assert not made.bank.features.requires_grad


def test_an_epoch_fills_every_slot_with_its_images_class() -> None:
    run = build_run(tiny("instdisc", epochs=1))
    list(train(run))
    assert run.method.bank.classes.equal(run.data.train.labels)


def test_the_head_is_linear() -> None:
    head = ready("instdisc").method.online[1]
    assert [type(part).__name__ for part in head] == ["Linear"]


def test_more_negatives_than_other_images_are_refused() -> None:
    with pytest.raises(Faulty, match="got negatives=80, 80 training images; leave it out"):
        tiny("instdisc", method={"negatives": 80})
    config = tiny("instdisc", method={"negatives": 79})
    with pytest.raises(ValueError, match="got negatives=79, 64 training images"):
        build(config, TrainingSet(64, 10))


def test_the_name_alone_is_a_published_run() -> None:
    def config(data: str) -> Any:
        return RunConfig.of({"method": {"name": "instdisc"}, "data": {"name": data}})

    small, large = config("cifar10"), config("imagenet")
    assert (small.method.temperature, small.method.negatives) == (0.1, None)
    assert (large.method.temperature, large.method.negatives) == (0.07, 65536)
    assert small.method.slot_momentum == large.method.slot_momentum == 0.5
    assert small.optim.lr == large.optim.lr == 0.03
    assert small.encoder.projector_dim == 128
