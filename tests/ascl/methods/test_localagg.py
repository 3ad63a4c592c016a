"""Laws of LocalAgg: its loss as loops, who is near and who is close, and InstDisc at first."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.config import RunConfig
from ascl.faults import Faulty
from ascl.losses import instance_softmax, unit
from ascl.methods import TrainingSet
from ascl.methods.localagg import aggregation, build, neighbourhood, purity
from ascl.train import begin_epoch
from ascl.train import build as build_run
from tests.ascl.methods.embeddings import doubles, rows
from tests.ascl.methods.test_contract import a_batch, a_step, ready
from tests.conftest import tiny


def loss_of(
    query: Tensor, slots: Tensor, own: Tensor, clusters: Tensor, background: int, tau: float
) -> Tensor:
    near, close = neighbourhood(query, slots, own, clusters, background)
    return aggregation(query, slots, near, close, tau)


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


def test_the_own_slot_is_near_and_close_even_where_others_are_nearer() -> None:
    slots = unit(rows(30, 0)).detach()
    own = torch.arange(30)
    near, close = neighbourhood(-slots, slots, own, torch.arange(30).unsqueeze(0), 5)
    assert near[:, 0].equal(own)
    assert close.equal(torch.eye(5, dtype=torch.bool)[:1].expand(30, -1))
    assert all(len(set(row)) == 5 for row in near.tolist())


def test_close_is_who_shares_a_cluster_in_any_of_the_clusterings() -> None:
    slots, clusters = unit(rows(4, 1)).detach(), torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]])
    near, close = neighbourhood(slots[:1], slots, torch.tensor([0]), clusters, 4)
    assert {int(j) for j in near[close]} == {0, 1, 2}


def test_a_background_of_more_slots_than_there_are_is_all_of_them() -> None:
    slots, own = unit(rows(7, 2)).detach(), torch.tensor([1, 2])
    clusters = torch.zeros(1, 7, dtype=torch.long)
    near, _ = neighbourhood(slots[own], slots, own, clusters, 512)
    assert sorted(near[0].tolist()) == list(range(7))


def test_where_all_near_slots_are_close_there_is_nothing_to_learn() -> None:
    slots, own = unit(rows(7, 3)).detach(), torch.tensor([1, 2])
    one_cluster = torch.zeros(1, 7, dtype=torch.long)
    assert loss_of(slots[own], slots, own, one_cluster, 4, 0.1).item() == 0


def test_to_share_with_nobody_among_all_slots_is_instdisc() -> None:
    slots, query, own = unit(rows(9, 4)).detach(), unit(rows(5, 5)), torch.tensor([8, 1, 2, 0, 5])
    alone = torch.arange(9).unsqueeze(0)
    loss = loss_of(query, slots, own, alone, 9, 0.1)
    torch.testing.assert_close(loss, instance_softmax(query, slots, own, 0.1))


def test_close_slots_attract_and_the_rest_of_the_background_repels_and_others_do_nothing() -> None:
    slots = unit(rows(12, 6)).detach().requires_grad_()
    query, own = unit(rows(1, 7)).detach(), torch.tensor([3])
    clusters = torch.arange(12).remainder(3).unsqueeze(0)
    near, close = neighbourhood(query, slots, own, clusters, 6)
    assert close.sum() >= 2 and (~close).sum() >= 1
    (gradient,) = torch.autograd.grad(aggregation(query, slots, near, close, 0.5), slots)
    towards = -(gradient @ query[0])  # how a step would change each slot's cosine
    assert (towards[near[close]] > 0).all()
    assert (towards[near[~close]] < 0).all()
    far = [j for j in range(12) if j not in near[0].tolist()]
    assert far and (gradient[far] == 0).all()


def test_purity_leaves_out_the_own_slot_and_unknown_classes() -> None:
    classes, near = torch.tensor([1, -1]), torch.tensor([[1, 1, 2, -1, 1], [3, 3, 3, 3, 3]])
    close = torch.tensor([[True, True, True, True, False], [True] * 5])
    assert purity(classes, near, close).item() == 0.5
    assert purity(classes[1:], near[1:], close[1:]).isnan()


def test_the_first_epochs_are_instdiscs_to_the_bit() -> None:
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


def test_clusters_follow_from_the_slots_and_the_epoch_alone() -> None:
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


def test_slots_take_the_batch_after_the_step() -> None:
    run = ready("localagg")
    batch, before = a_batch(run), run.method.bank.features.clone()
    output = run.model(batch)
    assert run.method.bank.features.equal(before)
    run.method.after_backward(output)
    own, features, classes = output.remember
    torch.testing.assert_close(
        run.method.bank.features[own], unit(0.5 * before[own] + 0.5 * features)
    )
    assert run.method.bank.classes[own].equal(classes) and classes.equal(batch.labels)


def test_purity_is_watched_where_there_are_clusters() -> None:
    run = ready("localagg")
    run.method.bank.classes.zero_()
    batch = replace(a_batch(run), labels=torch.zeros(16, dtype=torch.long))
    assert run.model(batch).diagnostics["purity"] == 1
    run.method.clusters = None
    assert "purity" not in run.model(batch).diagnostics


def test_as_many_clusters_as_images_are_refused() -> None:
    with pytest.raises(Faulty, match="got 80 clusters, 80 training images; try 8 or fewer"):
        tiny("localagg", method={"num_clusters": 80})
    config = tiny("localagg", method={"num_clusters": 64})
    with pytest.raises(ValueError, match="got 64 clusters, 64 training images"):
        build(config, TrainingSet(64, 10))


def test_a_run_without_a_clustered_epoch_is_refused() -> None:
    with pytest.raises(Faulty, match="got instdisc_epochs=2, epochs=2; train longer"):
        tiny("localagg", method={"instdisc_epochs": 2})


@pytest.mark.parametrize(("epochs", "first"), [(200, 10), (20, 10), (6, 3), (2, 1), (1, 0)])
def test_a_short_run_has_fewer_epochs_of_instdisc_by_default(epochs: int, first: int) -> None:
    config: Any = RunConfig.of({"epochs": epochs, "method": {"name": "localagg"}})
    assert config.method.instdisc_epochs == first


def test_the_name_alone_is_a_published_run() -> None:
    def config(data: str) -> Any:
        return RunConfig.of({"method": {"name": "localagg"}, "data": {"name": data}})

    small, large = config("cifar10"), config("imagenet")
    assert (small.method.temperature, small.method.background) == (0.1, 512)
    assert (small.method.num_clusterings, small.method.num_clusters) == (3, 500)
    assert (large.method.temperature, large.method.background) == (0.07, 4096)
    assert (large.method.num_clusterings, large.method.num_clusters) == (10, 30000)
    assert small.optim.lr == large.optim.lr == 0.03
