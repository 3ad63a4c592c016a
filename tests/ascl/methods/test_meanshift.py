"""Laws of MeanShift: the own key and its nearest in the bank, and BYOL where the key is alone."""

from typing import Any

import pytest
import torch

from ascl.config import RunConfig
from ascl.faults import Faulty
from ascl.losses import bank_logits, unit, weighted_cosine
from ascl.methods.meanshift import mean_shift
from ascl.relabel import relabel
from tests.ascl.methods.test_contract import a_batch, a_step, ready
from tests.conftest import tiny


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


def test_neighbours_are_the_keys_and_not_the_querys() -> None:
    key, query = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    bank = torch.cat((query, key))
    assert mean_shift(query, key, bank, 2).item() == pytest.approx(2.0)


def test_it_is_hard_relabelling_of_byols_loss_against_the_bank() -> None:
    query, key, bank = vectors(6, 3), vectors(6, 4), vectors(30, 5)
    labels = relabel(key @ bank.T, "hard", num_neighbours=4, temperature=1.0)
    cosines = bank_logits(query, key, bank, 1.0)
    expected = 2 - 2 * (labels * cosines).sum(dim=1).mean()
    torch.testing.assert_close(mean_shift(query, key, bank, 5), expected)


def test_one_target_is_byols_loss() -> None:
    query, key = vectors(6, 6), vectors(6, 7)
    expected = weighted_cosine(query, key, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(mean_shift(query, key, vectors(30, 8), 1), expected)


def test_a_run_with_one_target_is_a_run_of_byol() -> None:
    a, b = ready("meanshift", method={"num_targets": 1}), ready("byol")
    for seed in range(3):
        assert a_step(a, a_batch(a, seed)) == pytest.approx(a_step(b, a_batch(b, seed)), rel=1e-5)


def test_own_key_and_neighbours_both_have_a_gradient() -> None:
    query, key, bank = vectors(6, 9).requires_grad_(), vectors(6, 10), vectors(30, 11)
    (own,) = torch.autograd.grad(mean_shift(query, key, bank, 1), query)
    (both,) = torch.autograd.grad(mean_shift(query, key, bank, 5), query)
    torch.testing.assert_close(own, -2 * key / 6)
    neighbours = both - own / 5  # what is not the own key's share
    assert (neighbours.norm(dim=1) > 0).all()


def test_the_loss_is_that_of_its_own_features_and_the_bank_before_the_step() -> None:
    run, twin = ready("meanshift"), ready("meanshift")
    batch = a_batch(run)
    before = run.method.bank.features.clone()
    output = run.model(batch)
    assert run.method.bank.features.equal(before)
    query = unit(twin.method.predictor(twin.method.online(batch.views[0])))
    expected = mean_shift(query, output.remember[0], before, 5)
    torch.testing.assert_close(output.loss, expected)
    run.method.after_backward(output)
    assert run.method.bank.features[:16].equal(output.remember[0])
    assert run.method.bank.classes[:16].equal(batch.labels)


def test_more_targets_than_the_bank_holds_get_a_sentence() -> None:
    assert tiny("meanshift", method={"num_targets": 41}).method
    with pytest.raises(Faulty, match="got num_targets=42, queue_size=40; try 41 or fewer"):
        tiny("meanshift", method={"num_targets": 42})


def test_its_settings_on_small_images_and_on_imagenet() -> None:
    def settings(data: str) -> tuple[int, ...]:
        c: Any = RunConfig.of({"method": {"name": "meanshift"}, "data": {"name": data}})
        assert (c.augment.query, c.augment.key) == ("strong", "weak")
        assert (c.method.momentum, c.encoder.bn_splits) == (0.99, 1)
        return c.method.num_targets, c.method.queue_size, c.encoder.projector_hidden

    assert settings("cifar10") == (5, 4096, 1024)
    assert settings("imagenet") == (10, 131072, 4096)
