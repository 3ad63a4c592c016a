"""Laws of LocalAgg: its loss as loops, near and close slots, and InstDisc's first epochs."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.losses import instance_softmax, unit
from ascl.methods.localagg import aggregation_loss, find_neighborhood, purity
from ascl.train import begin_epoch
from ascl.train import build as build_run
from tests.ascl.methods.embeddings import doubles, rows
from tests.ascl.methods.test_contract import a_batch, a_step, ready
from tests.conftest import tiny


def loss_of(
    query: Tensor, slots: Tensor, own: Tensor, clusters: Tensor, background: int, tau: float
) -> Tensor:
    near, close = find_neighborhood(query, slots, own, clusters, background)
    return aggregation_loss(query, slots, near, close, tau)


def by_loops(
    query: Tensor, slots: Tensor, own: list[int], clusters: list[list[int]], b: int, tau: float
) -> float:
    total = 0.0
    for q, i in zip(doubles(query), own, strict=True):
        cosines = [float(q @ slot) for slot in doubles(slots)]
        others = sorted((j for j in range(len(slots)) if j != i), key=lambda j: -cosines[j])
        background = {i, *others[: b - 1]}
        close = {j for c in clusters for j in range(len(slots)) if c[j] == c[i]}
        p = {j: math.exp(cosines[j] / tau) for j in background}
        total -= math.log(sum(p[j] for j in background & close) / sum(p.values()))
    return total / len(own)


@given(st.integers(0, 2**31 - 1), st.integers(2, 25), st.integers(1, 4))
def test_the_loss_is_the_formula_as_loops(seed: int, background: int, clusterings: int) -> None:
    g = torch.Generator().manual_seed(seed)
    slots, query = (unit(torch.randn(n, 6, generator=g)) for n in (20, 5))
    own = torch.randperm(20, generator=g)[:5]
    clusters = torch.randint(0, 4, (clusterings, 20), generator=g)
    expected = by_loops(query, slots, own.tolist(), clusters.tolist(), background, 0.1)
    loss = loss_of(query, slots, own, clusters, background, 0.1)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_hand_computed_loss() -> None:
    # Of the axes, the first is the query and the own slot; the second shares its cluster, and the
    # third is in the background only: −ln((e + 1) / (e + 2)) at τ 1. The opposite is in neither.
    slots = torch.cat((torch.eye(3), -torch.eye(3)[:1]))
    clusters = torch.tensor([[0, 0, 1, 0]])
    loss = loss_of(slots[:1], slots, torch.tensor([0]), clusters, 3, 1.0)
    assert loss.item() == pytest.approx(math.log((math.e + 2) / (math.e + 1)))


def test_own_slot_is_near_and_close_even_if_others_are_nearer() -> None:
    slots = unit(rows(30, 0)).detach()
    own = torch.arange(30)
    near, close = find_neighborhood(-slots, slots, own, torch.arange(30).unsqueeze(0), 5)
    assert near[:, 0].equal(own)
    assert close.equal(torch.eye(5, dtype=torch.bool)[:1].expand(30, -1))
    assert all(len(set(row)) == 5 for row in near.tolist())


def test_close_slots_share_a_cluster_in_any_clustering() -> None:
    slots, clusters = unit(rows(4, 1)).detach(), torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]])
    near, close = find_neighborhood(slots[:1], slots, torch.tensor([0]), clusters, 4)
    assert {int(j) for j in near[close]} == {0, 1, 2}


def test_background_larger_than_the_bank_is_the_whole_bank() -> None:
    slots, own = unit(rows(7, 2)).detach(), torch.tensor([1, 2])
    clusters = torch.zeros(1, 7, dtype=torch.long)
    near, _ = find_neighborhood(slots[own], slots, own, clusters, 512)
    assert sorted(near[0].tolist()) == list(range(7))


def test_loss_is_zero_if_all_near_slots_are_close() -> None:
    slots, own = unit(rows(7, 3)).detach(), torch.tensor([1, 2])
    one_cluster = torch.zeros(1, 7, dtype=torch.long)
    assert loss_of(slots[own], slots, own, one_cluster, 4, 0.1).item() == 0


def test_without_close_slots_and_with_the_full_background_it_is_instdisc() -> None:
    slots, query, own = unit(rows(9, 4)).detach(), unit(rows(5, 5)), torch.tensor([8, 1, 2, 0, 5])
    alone = torch.arange(9).unsqueeze(0)
    loss = loss_of(query, slots, own, alone, 9, 0.1)
    torch.testing.assert_close(loss, instance_softmax(query, slots, own, 0.1))


def test_close_slots_attract_background_slots_repel_and_others_have_no_gradient() -> None:
    slots = unit(rows(12, 6)).detach().requires_grad_()
    query, own = unit(rows(1, 7)).detach(), torch.tensor([3])
    clusters = torch.arange(12).remainder(3).unsqueeze(0)
    near, close = find_neighborhood(query, slots, own, clusters, 6)
    assert close.sum() >= 2 and (~close).sum() >= 1
    (gradient,) = torch.autograd.grad(aggregation_loss(query, slots, near, close, 0.5), slots)
    towards = -(gradient @ query[0])  # how a step would change each slot's cosine
    assert (towards[near[close]] > 0).all()
    assert (towards[near[~close]] < 0).all()
    far = [j for j in range(12) if j not in near[0].tolist()]
    assert far and (gradient[far] == 0).all()


def test_purity_excludes_the_own_slot_and_unknown_classes() -> None:
    classes, near = torch.tensor([1, -1]), torch.tensor([[1, 1, 2, -1, 1], [3, 3, 3, 3, 3]])
    close = torch.tensor([[True, True, True, True, False], [True] * 5])
    assert purity(classes, near, close).item() == 0.5
    assert purity(classes[1:], near[1:], close[1:]).isnan()


def test_first_epochs_are_bit_equal_to_instdisc() -> None:
    batches = [a_batch(ready("instdisc"), seed) for seed in range(3)]
    ours = build_run(tiny("localagg", epochs=3, method={"instdisc_epochs": 2}))
    theirs = build_run(tiny("instdisc"))
    for run in (ours, theirs):
        begin_epoch(run, 1)
        run.model.train()
    for batch in batches:
        assert a_step(ours, batch) == a_step(theirs, batch)
    begin_epoch(ours, 2)
    ours.model.train()
    assert a_step(ours, batches[0]) != a_step(theirs, batches[0])


def test_clusters_depend_only_on_slots_and_epoch() -> None:
    run, again = ready("localagg"), ready("localagg")
    again.method.clusters = None
    again.method.load_state_dict(run.method.state_dict())
    begin_epoch(again, 1)
    assert run.method.clusters is not None and again.method.clusters is not None
    assert again.method.clusters.equal(run.method.clusters)
    assert run.method.clusters.shape == (2, 64)
    assert not run.method.clusters[0].equal(run.method.clusters[1])
    begin_epoch(again, 2)
    assert not again.method.clusters.equal(run.method.clusters)
    assert not any("clusters" in name for name in run.method.state_dict())


def test_purity_is_reported_while_clusters_exist() -> None:
    run = ready("localagg")
    run.method.bank.classes.zero_()
    batch = replace(a_batch(run), labels=torch.zeros(16, dtype=torch.long))
    assert run.model(batch).diagnostics["purity"] == 1
    run.method.clusters = None
    assert "purity" not in run.model(batch).diagnostics
