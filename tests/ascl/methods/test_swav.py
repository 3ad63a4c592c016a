"""Laws of SwAV: balanced assignments without a gradient, which the other views predict."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.data.base import DATASETS
from ascl.errors import ConfigError
from ascl.losses import unit
from ascl.methods.base import Batch
from ascl.methods.swav import Config, SwAV, sinkhorn, swapped_prediction
from ascl.train import build, train, view_spec
from tests.ascl.methods.embeddings import AS_IT_IS, batch_of, doubles, rows
from tests.conftest import tiny

Matrix = list[list[float]]


def on_embeddings(dim: int = 6, **config: Any) -> SwAV:
    """SwAV whose network changes nothing."""
    torch.manual_seed(0)
    return SwAV(Config(**{"num_prototypes": 4, **config}), AS_IT_IS, dim)


def later(*views: Tensor, progress: float = 0.5) -> Batch:
    return replace(batch_of(*views), progress=progress)


def balanced_by_loops(scores: Matrix, epsilon: float, iterations: int) -> Matrix:
    """Sinkhorn and Knopp's way: columns to B/P, rows to 1, in turn."""
    q = [[math.exp(s / epsilon) for s in row] for row in scores]
    share = len(q) / len(q[0])
    for _ in range(iterations):
        for j in range(len(q[0])):
            column = sum(row[j] for row in q)
            for row in q:
                row[j] *= share / column
        for row in q:
            whole = sum(row)
            row[:] = [x / whole for x in row]
    return q


def loss_by_loops(method: SwAV, views: tuple[Tensor, ...], queue: Tensor | None = None) -> float:
    config, prototypes = method.config, doubles(method.prototypes)
    embedded = [doubles(view) for view in views]
    earlier = [] if queue is None else [doubles(queue)]
    pairs = []
    for assigned in range(2):
        scores = (torch.cat((embedded[assigned], *earlier)) @ prototypes.T).tolist()
        q = balanced_by_loops(scores, config.sinkhorn_epsilon, config.sinkhorn_iterations)
        for view, z in enumerate(embedded):
            if view == assigned:
                continue
            total = 0.0
            for i, row in enumerate((z @ prototypes.T / config.temperature).tolist()):
                norm = math.log(sum(math.exp(x) for x in row))
                total -= sum(q[i][j] * (x - norm) for j, x in enumerate(row))
            pairs.append(total / len(z))
    return sum(pairs) / len(pairs)


# ---------------------------------------------------------------- assignments


@given(
    samples=st.integers(1, 12),
    prototypes=st.integers(2, 9),
    iterations=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_sinkhorn_is_loops_in_float64(
    samples: int, prototypes: int, iterations: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = torch.rand(samples, prototypes, generator=g) * 2 - 1
    expected = balanced_by_loops(scores.double().tolist(), 0.05, iterations)
    ours = sinkhorn(scores, epsilon=0.05, iterations=iterations)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), torch.tensor(expected).double(), atol=1e-5, rtol=1e-4)


@given(samples=st.integers(2, 20), prototypes=st.integers(2, 20), seed=st.integers(0, 1000))
def test_rows_sum_to_one_and_columns_to_an_even_share(
    samples: int, prototypes: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = torch.rand(samples, prototypes, generator=g) * 2 - 1
    few, many = (sinkhorn(scores, epsilon=0.3, iterations=n) for n in (3, 300))
    for q in (few, many):
        torch.testing.assert_close(q.sum(dim=1), torch.ones(samples))
    even = torch.full((prototypes,), samples / prototypes)
    torch.testing.assert_close(many.sum(dim=0), even, atol=1e-3, rtol=1e-3)
    gap = [(q.sum(dim=0) - even).abs().max() for q in (few, many)]
    assert gap[1] <= gap[0] + 1e-4


@given(st.floats(-1, 1), st.integers(1, 9), st.integers(2, 9))
def test_equal_scores_give_uniform_assignments(score: float, samples: int, prototypes: int) -> None:
    q = sinkhorn(torch.full((samples, prototypes), score), epsilon=0.05, iterations=3)
    torch.testing.assert_close(q, torch.full_like(q, 1 / prototypes))


def test_assignments_by_hand() -> None:
    # exp(score / ε) is 3 or 1. Where tastes differ they are balanced already; where both samples
    # want the first prototype they share it, and so the second.
    three = 0.05 * math.log(3)
    differ = torch.tensor([[three, 0.0], [0.0, three]])
    torch.testing.assert_close(
        sinkhorn(differ, epsilon=0.05, iterations=3), torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    )
    agree = torch.tensor([[three, 0.0], [three, 0.0]])
    torch.testing.assert_close(sinkhorn(agree, epsilon=0.05, iterations=3), torch.full((2, 2), 0.5))


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.05, 1.0])
def test_no_epsilon_is_too_small_for_float32(epsilon: float) -> None:
    q = sinkhorn(torch.rand(50, 20) * 2 - 1, epsilon=epsilon, iterations=3)
    assert q.isfinite().all()
    torch.testing.assert_close(q.sum(dim=1), torch.ones(50))


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize("num_views", [2, 3, 5])
def test_the_loss_is_the_formula_as_loops(num_views: int) -> None:
    method = on_embeddings(small_crops=num_views - 2)
    views = tuple(rows(7, seed) for seed in range(num_views))
    loss = method(later(*views)).loss
    assert loss.item() == pytest.approx(loss_by_loops(method, views), rel=1e-5)


def test_a_loss_by_hand() -> None:
    # Two samples on two prototypes, each on its own; τ = ε = 1. Both views are assigned
    # (e, 1) / (e + 1) and mirrored, and predict just that: the entropy of it.
    method = on_embeddings(2, num_prototypes=2, temperature=1.0, sinkhorn_epsilon=1.0)
    view = torch.eye(2)
    with torch.no_grad():
        method.prototypes.copy_(view)
    p = math.e / (math.e + 1)
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert method(later(view, view)).loss.item() == pytest.approx(entropy)


def test_predictions_are_of_the_other_views_assignment() -> None:
    logits = [torch.tensor([[5.0, 0.0]]), torch.tensor([[0.0, 5.0]])]
    own = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    wrong, right = swapped_prediction(logits, own), swapped_prediction(logits, own[::-1])
    assert wrong.item() == pytest.approx(5 + math.log(1 + math.exp(-5)))
    assert right.item() == pytest.approx(math.log(1 + math.exp(-5)))


def test_full_views_are_interchangeable_and_small_views_have_no_assignment() -> None:
    method = on_embeddings(small_crops=1)
    a, b, c = rows(7, 1), rows(7, 2), rows(7, 3)
    assert method(later(a, b, c)).loss.item() == pytest.approx(method(later(b, a, c)).loss.item())
    assert method(later(a, b, c)).loss.item() != pytest.approx(method(later(a, c, b)).loss.item())


def test_every_view_and_the_prototypes_have_a_gradient_and_the_assignments_none() -> None:
    method = on_embeddings(small_crops=1)
    views = tuple(rows(7, seed) for seed in range(3))
    learns = (*views, method.prototypes)
    gradients = torch.autograd.grad(method(later(*views)).loss, learns)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    embedded = [unit(view) for view in views]
    labels = [method.assign(z.detach(), 0.5) for z in embedded[:2]]
    assert not any(label.requires_grad for label in labels)
    constant = swapped_prediction([z @ method.prototypes.T / 0.1 for z in embedded], labels)
    for ours, expected in zip(gradients, torch.autograd.grad(constant, learns), strict=True):
        torch.testing.assert_close(ours, expected)


# ---------------------------------------------------------------- prototypes and queue


def test_prototypes_are_unit_rows_after_every_step() -> None:
    a, b = on_embeddings(), on_embeddings()
    views = rows(7, 1), rows(7, 2)
    with torch.no_grad():
        b.prototypes.mul_(torch.tensor([[0.1], [1.0], [3.0], [20.0]]))
    assert a(later(*views)).loss.item() == pytest.approx(b(later(*views)).loss.item())
    torch.testing.assert_close(b.prototypes.norm(dim=1), torch.ones(4))


def test_frozen_prototypes_have_a_gradient_of_zero_and_later_another() -> None:
    method = on_embeddings(frozen_until=0.25)
    views = rows(7, 1), rows(7, 2)
    losses = []
    for progress, frozen in ((0.0, True), (0.2, True), (0.25, False), (0.9, False)):
        method.prototypes.grad = None
        output = method(later(*views, progress=progress))
        output.loss.backward()
        assert method.prototypes.grad is not None, "several ranks wait for it"
        assert (method.prototypes.grad == 0).all() == frozen
        losses.append(output.loss.item())
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6), "only what is learnt differs"


def test_queue_joins_the_assignment_from_its_start_epoch() -> None:
    method = on_embeddings(queue_size=9, queue_from=0.4)
    plain = on_embeddings()
    with torch.no_grad():
        plain.prototypes.copy_(method.prototypes)
    views = rows(7, 1), rows(7, 2)
    queue = method.bank.features.clone()
    early, late = (method(later(*views, progress=p)).loss.item() for p in (0.3, 0.4))
    assert early == plain(later(*views)).loss.item()
    assert late == pytest.approx(loss_by_loops(method, views, queue), rel=1e-5)
    assert late != pytest.approx(early, rel=1e-4)


def test_queue_stores_both_full_views_after_the_step() -> None:
    method = on_embeddings(queue_size=20, small_crops=1)
    a, b, c = rows(7, 1), rows(7, 2), rows(7, 3)
    before = method.bank.features.clone()
    output = method(replace(later(a, b, c), labels=torch.arange(7)))
    assert method.bank.features.equal(before)
    method.after_backward(output)
    torch.testing.assert_close(method.bank.features[:14], unit(torch.cat((a, b))).detach())
    assert method.bank.features[14:].equal(before[14:])
    assert method.bank.classes[:14].equal(torch.arange(7).repeat(2))


def test_without_a_queue_the_state_has_none() -> None:
    assert not [name for name in on_embeddings().state_dict() if name.startswith("bank")]


# ---------------------------------------------------------------- views and settings


def test_small_crops_are_trained_on_at_their_size() -> None:
    run = build(tiny("swav_full", epochs=1))
    sizes: list[list[int]] = []
    run.method.register_forward_pre_hook(
        lambda module, args: sizes.append([view.shape[-1] for view in args[0].views])
    )
    (metrics,) = train(run)
    assert sizes == [[32, 32, 14, 14]] * 4
    assert math.isfinite(metrics.loss)


def test_a_small_crop_is_a_query_of_a_small_part() -> None:
    config = tiny("swav_full", augment={"strength": 0.4, "crop_min": 0.28})
    query, small = (view_spec(config, view, 224) for view in ("query", "small"))
    assert (query.size, query.crop_min, query.crop_max) == (224, 0.28, 1.0)
    assert (small.kind, small.size, small.strength) == (query.kind, 96, 0.4)
    assert (small.crop_min, small.crop_max) == (pytest.approx(0.1), 0.28)


def test_it_costs_a_backprop_per_view() -> None:
    assert (Config().cost().views, Config().cost().backprops) == (("query", "key"), 2)
    cost = Config(small_crops=6).cost()
    assert (cost.views[2:], cost.backprops, cost.ema) == (("small",) * 6, 8, False)


def test_small_crops_of_small_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        DATASETS, "specks", replace(DATASETS["shapes"], name="specks", view_size=24)
    )
    tiny("swav", data={"name": "specks"})
    with pytest.raises(ConfigError) as caught:
        tiny("swav", data={"name": "specks"}, method={"small_crops": 2})
    assert str(caught.value).endswith(
        "method.small_crops: small crops need full views of at least 27 pixels, got 24 (specks); "
        "set it to 0"
    )
