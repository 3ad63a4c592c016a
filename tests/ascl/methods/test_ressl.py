"""Laws of ReSSL: relations to the bank, no positive logit, and relabeling as a prior."""

import math
from typing import Any

import pytest
import torch

from ascl.config import RunConfig
from ascl.errors import ConfigError
from ascl.losses import unit
from ascl.methods.ressl import apply_prior
from ascl.relabel import relabel
from tests.ascl.methods.test_contract import a_batch, ready


def vectors(rows: int, seed: int) -> torch.Tensor:
    return unit(torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)))


class Fixed(torch.nn.Module):
    """A fake network whose output for any view is given."""

    def __init__(self, features: torch.Tensor) -> None:
        super().__init__()
        self.features = torch.nn.Parameter(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features


def loss_of(query: torch.Tensor, key: torch.Tensor, bank: torch.Tensor, **method: Any) -> Any:
    """The method's loss for a given query, keys and bank, and the query itself."""
    run = ready("ressl", batch_size=len(query), encoder={"bn_splits": 1}, method=method)
    online, batch = Fixed(query), a_batch(run)
    copy = Fixed(key[batch.shuffle.sends])  # keys are computed in shuffled order and unshuffled
    copy.requires_grad_(False)
    run.method.online, run.method.target.module = online, copy
    run.method.config = run.method.config.model_copy(update={"momentum": 1.0})
    run.method.bank.features[: len(bank)] = bank
    return run.method(batch).loss, online.features


def by_loops(
    query: torch.Tensor,
    key: torch.Tensor,
    bank: torch.Tensor,
    labels: torch.Tensor | None = None,
    tau: float = 0.1,
    key_tau: float = 0.04,
) -> float:
    total = 0.0
    for i in range(len(query)):
        p = [math.exp(float(key[i].double() @ b.double()) / key_tau) for b in bank]
        if labels is not None:
            p = [x * float(labels[i, 0] + labels[i, 1 + j]) for j, x in enumerate(p)]
        s = [math.exp(float(query[i].double() @ b.double()) / tau) for b in bank]
        for j in range(len(bank)):
            total -= p[j] / sum(p) * math.log(s[j] / sum(s))
    return total / len(query)


def test_the_loss_is_the_formula_as_loops() -> None:
    query, key, bank = vectors(16, 0), vectors(16, 1), vectors(40, 2)
    loss, _ = loss_of(query, key, bank)
    assert loss.item() == pytest.approx(by_loops(query, key, bank), rel=1e-5)
    loss, _ = loss_of(query, key, bank, temperature=0.2, key_temperature=0.05)
    assert loss.item() == pytest.approx(by_loops(query, key, bank, None, 0.2, 0.05), rel=1e-5)


@pytest.mark.parametrize("kind", ["hard", "ahcl", "ascl"])
def test_relabeled_loss_is_the_formula_as_loops(kind: Any) -> None:
    query, key, bank = vectors(16, 3), vectors(16, 4), vectors(40, 5)
    labels = relabel(key @ bank.T, kind, num_neighbours=3, temperature=0.05)
    loss, _ = loss_of(query, key, bank, relabel=kind, num_neighbours=3)
    assert loss.item() == pytest.approx(by_loops(query, key, bank, labels), rel=1e-5)


def test_a_value_by_hand() -> None:
    # Bank: x and −x and, at right angles to all, the rest. The key is x, so that at τ 0.04 it is
    # all but surely x; the query is at right angles to everything: uniform, a loss of ln 40.
    x = torch.eye(8)[0]
    bank = torch.eye(8)[1].expand(40, 8).clone()
    bank[0], bank[1] = x, -x
    loss, _ = loss_of(torch.eye(8)[2].expand(4, 8), x.expand(4, 8), bank)
    assert loss.item() == pytest.approx(math.log(40), rel=1e-6)
    # With the query at x too: −ln of e^10 / (e^10 + 38·e^0 + e^−10), at −10 a thousandth.
    loss, _ = loss_of(x.expand(4, 8), x.expand(4, 8), bank)
    assert loss.item() == pytest.approx(math.log(1 + 38 * math.exp(-10)), rel=1e-3)


def test_there_is_no_positive_logit() -> None:
    # A key that no bank feature is near, and a query that is the key or far from it: all one.
    bank = torch.eye(8)[:4].repeat(10, 1)
    key = torch.eye(8)[5].expand(4, 8)
    own, _ = loss_of(key, key, bank)
    far, _ = loss_of(torch.eye(8)[6].expand(4, 8), key, bank)
    assert own.item() == pytest.approx(far.item())


def test_query_equal_to_its_key_at_the_keys_temperature_has_no_gradient() -> None:
    query, bank = vectors(16, 6), vectors(40, 7)
    loss, weights = loss_of(query, query, bank, temperature=0.04)
    loss.backward()
    assert weights.grad.abs().max() < 1e-5
    loss, weights = loss_of(query, vectors(16, 8), bank, temperature=0.04)
    loss.backward()
    assert weights.grad.abs().max() > 1e-3


# -- relabeling as a prior


def test_the_prior_by_hand() -> None:
    # Hard with K = 1: y = (½, ½, 0), so that the neighbour counts twice what the other does.
    target, labels = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.5, 0.0]])
    torch.testing.assert_close(apply_prior(target, labels), torch.tensor([[2 / 3, 1 / 3]]))


@pytest.mark.parametrize("kind", ["hard", "ahcl", "ascl"])
@pytest.mark.parametrize("num_neighbours", [1, 4, 40])
def test_a_prior_gives_rows_that_sum_to_one_and_at_most_doubles_a_ratio(
    kind: Any, num_neighbours: int
) -> None:
    similarity = vectors(16, 9) @ vectors(40, 10).T
    target = torch.softmax(similarity / 0.04, dim=1)
    labels = relabel(similarity, kind, num_neighbours=num_neighbours, temperature=0.05)
    prior = apply_prior(target, labels)
    torch.testing.assert_close(prior.sum(dim=1), torch.ones(16))
    ratio = prior / target
    assert (ratio.amax(dim=1) <= 2 * ratio.amin(dim=1) * (1 + 1e-4)).all()
    # What is nearer stays nearer: the order of a row is its order before.
    assert prior.argsort(dim=1).equal(target.argsort(dim=1))


# -- settings


def test_explicit_warm_up_is_not_shortened() -> None:
    given = {"method": {"name": "ressl"}, "epochs": 6, "optim": {"warmup_epochs": 5}}
    assert RunConfig.of(given).optim.warmup_epochs == 5
    message = "must be less than epochs, got warmup_epochs=5, epochs=5; train longer, or lower"
    with pytest.raises(ConfigError, match=message):
        RunConfig.of({**given, "epochs": 5})
