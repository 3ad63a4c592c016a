"""Laws of PCL: MoCo's loss and ProtoNCE as loops, cluster temperatures, and sampled prototypes."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.config import load_config
from ascl.errors import ConfigError
from ascl.eval.clustering import Clustering
from ascl.losses import bank_logits, info_nce, unit
from ascl.methods.base import EpochStart
from ascl.methods.pcl import Prototypes, proto_nce, temperatures
from ascl.train import begin_epoch
from ascl.train import build as build_run
from tests.ascl.methods.embeddings import doubles, rows
from tests.ascl.methods.test_contract import a_batch, a_step, ready
from tests.conftest import tiny


def clustering(seed: int, images: int = 60, clusters: int = 8) -> tuple[Tensor, Clustering]:
    """Features and their clusters of different sizes; the last has a single member."""
    g = torch.Generator().manual_seed(seed)
    features = unit(torch.randn(images, 6, generator=g))
    assignment = torch.randint(0, clusters - 1, (images,), generator=g)
    assignment[: clusters - 1], assignment[-1] = torch.arange(clusters - 1), clusters - 1
    sums = torch.zeros(clusters, 6).index_add_(0, assignment, features)
    return features, Clustering(unit(sums), assignment)


def percentile(values: list[float], share: float) -> float:
    """With linear interpolation between the two adjacent values."""
    values, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def temperatures_by_loops(features: Tensor, found: Clustering, mean: float) -> list[float]:
    phi = []
    for cluster, centroid in enumerate(found.centroids.double()):
        members = features.double()[found.assignment == cluster]
        total = sum(float((v - centroid).norm()) for v in members)
        z = len(members)
        phi.append(total / (z * math.log(z + 10)) if z > 1 else math.nan)
    largest = max(x for x in phi if not math.isnan(x))
    phi = [largest if math.isnan(x) else x for x in phi]
    low, high = percentile(phi, 0.1), percentile(phi, 0.9)
    phi = [min(max(x, low), high) for x in phi]
    return [mean * x * len(phi) / sum(phi) for x in phi]


@given(st.integers(0, 2**31 - 1), st.integers(2, 12), st.sampled_from([0.1, 0.2]))
def test_the_temperatures_are_the_formula_as_loops(seed: int, clusters: int, mean: float) -> None:
    features, found = clustering(seed, clusters=clusters)
    phi = temperatures(features, found, mean)
    assert phi.tolist() == pytest.approx(temperatures_by_loops(features, found, mean), rel=1e-4)
    assert phi.mean().item() == pytest.approx(mean, rel=1e-5)
    assert (phi > 0).all()


def test_hand_computed_temperatures() -> None:
    # Two of three clusters are pairs at distances a and 2a, the third is alone: its φ is theirs.
    # Over log 12 that is (1, 2, 2)·a; the percentiles at places 0.2 and 1.8 are 1.2·a and 2·a, so
    # φ is as 1.2 : 2 : 2, with mean 1.7333.
    features = torch.tensor([[0.0, 1.0], [0.0, -1.0], [2.0, 2.0], [2.0, -2.0], [9.0, 0.0]])
    centroids = torch.tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 0.0]])
    phi = temperatures(features, Clustering(centroids, torch.tensor([0, 0, 1, 1, 2])), 5.2 / 3)
    torch.testing.assert_close(phi, torch.tensor([1.2, 2.0, 2.0]))


def test_identical_features_have_the_mean_temperature() -> None:
    features = torch.tensor([[1.0, 0.0]]).expand(6, -1)
    found = Clustering(features[:3], torch.tensor([0, 0, 1, 1, 2, 2]))
    torch.testing.assert_close(temperatures(features, found, 0.1), torch.full((3,), 0.1))


def proto_by_loops(
    query: Tensor, centroids: Tensor, phi: list[float], own: list[int], drawn: list[int]
) -> float:
    """Mean of −log of the own prototype's share among itself and the R others."""
    total = 0.0
    for q, i in zip(doubles(query), own, strict=True):
        others = [j for j in drawn if j != i][: len(drawn) - 1]
        exps = [math.exp(float(q @ centroids[j].double()) / phi[j]) for j in (i, *others)]
        total -= math.log(exps[0] / sum(exps))
    return total / len(own)


@given(st.integers(0, 2**31 - 1), st.integers(1, 7))
def test_proto_nce_is_the_formula_as_loops(seed: int, negatives: int) -> None:
    g = torch.Generator().manual_seed(seed)
    features, found = clustering(seed)
    phi = temperatures(features, found, 0.1)
    query, images = unit(torch.randn(9, 6, generator=g)), torch.randperm(60, generator=g)[:9]
    drawn = torch.randperm(8, generator=g)[: negatives + 1]
    prototypes = Prototypes(found.centroids / phi.unsqueeze(1), found.assignment)
    loss = proto_nce(query, prototypes, images, drawn)
    own = found.assignment[images].tolist()
    expected = proto_by_loops(query, found.centroids, phi.tolist(), own, drawn.tolist())
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_hand_computed_proto_nce() -> None:
    # The query is its own prototype's axis, at φ ½; of the others, at φ 1, cosines are 0. Whether
    # the own one is among the drawn or not, two negatives count: −ln(e² / (e² + 2)).
    axes = torch.eye(4)
    prototypes = Prototypes(axes / torch.tensor([[0.5], [1], [1], [1]]), torch.tensor([0]))
    for drawn in ([2, 0, 1], [2, 3, 1]):
        loss = proto_nce(axes[:1], prototypes, torch.tensor([0]), torch.tensor(drawn))
        assert loss.item() == pytest.approx(math.log(1 + 2 / math.e**2))


def test_every_image_has_the_configured_number_of_negatives_and_never_its_own() -> None:
    # Images 0 to 4 belong to prototypes 0 to 4, of which 0, 1 and 2 are drawn. In the gradient,
    # own prototypes attract and negatives repel.
    scaled = unit(rows(5, 0)).detach().requires_grad_()
    query = unit(rows(5, 1)).detach()
    drawn, assignment = torch.tensor([2, 0, 1]), torch.arange(5)
    for image in range(5):
        one = query[image : image + 1]
        prototypes = Prototypes(scaled, assignment)
        loss = proto_nce(one, prototypes, torch.tensor([image]), drawn)
        (gradient,) = torch.autograd.grad(loss, scaled)
        pull = -(gradient @ one[0])
        assert pull[image] > 0
        assert (pull < 0).sum() == 2
        left_out = image if image in (0, 1, 2) else 1
        assert {j for j in range(5) if pull[j] < 0} == {0, 1, 2} - {left_out}


def test_the_loss_is_info_nce_and_the_mean_of_both_granularities() -> None:
    batch = a_batch(ready("pcl"))
    run, twin = ready("pcl"), ready("pcl")
    output = run.model(batch)
    keys = output.remember[0]
    query = unit(twin.method.online(batch.views[0]))
    loss = info_nce(bank_logits(query, keys, twin.method.bank.features, 0.1)).item()
    assert [len(p.scaled) for p in twin.method.prototypes] == [5, 9]
    for p, drawn in zip(twin.method.prototypes, batch.draws, strict=True):
        assert len(drawn.unique()) == 5 and drawn.max() < len(p.scaled)
        phi = 1 / p.scaled.norm(dim=1)
        own = p.assignment[batch.indices].tolist()
        centroids = unit(p.scaled)
        loss += proto_by_loops(query, centroids, phi.tolist(), own, drawn.tolist()) / 2
    assert output.loss.item() == pytest.approx(loss, rel=1e-4)


def test_both_terms_have_a_gradient() -> None:
    plain, both = ready("pcl"), ready("pcl")
    plain.method.prototypes = ()
    gradients = []
    for run in (plain, both):
        run.model(a_batch(run)).loss.backward()
        gradients.append(run.method.online[0].stem[0].weight.grad)
    assert all(g.abs().sum() > 0 for g in gradients)
    assert (gradients[1] - gradients[0]).abs().max() > 1e-3 * gradients[0].abs().max()


def test_prototypes_cluster_the_momentum_encoders_features_of_plain_images() -> None:
    run = ready("pcl")
    run.model.eval()
    seen: list[Tensor] = []

    def features(module: torch.nn.Module) -> Tensor:
        assert module is run.method.target.module
        seen.append(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)) * 7)
        return seen[0]

    run.method.begin_epoch(EpochStart(1, features, torch.Generator().manual_seed(1)))
    (made,) = seen
    for p in run.method.prototypes:
        nearest = (unit(made) @ unit(p.scaled).T).argmax(dim=1)
        assert p.assignment.equal(nearest)
        assert (1 / p.scaled.norm(dim=1)).mean().item() == pytest.approx(0.1, rel=1e-4)


def test_first_epochs_are_bit_equal_to_moco() -> None:
    batches = [a_batch(ready("moco"), seed) for seed in range(3)]
    ours = build_run(tiny("pcl", epochs=3, method={"instance_epochs": 2}))
    theirs = build_run(tiny("moco", augment={"key": "strong"}))
    for run in (ours, theirs):
        begin_epoch(run, 1)
        run.model.train()
    for batch in batches:
        assert a_step(ours, batch) == a_step(theirs, batch)
    begin_epoch(ours, 2)
    ours.model.train()
    clustered = replace(batches[0], draws=ours.method.draws(torch.Generator()))
    assert a_step(ours, clustered) > a_step(theirs, batches[0])


def test_prototypes_depend_only_on_state_and_epoch() -> None:
    run, twin = ready("pcl"), build_run(tiny("pcl"))
    with torch.no_grad():
        for parameter in run.method.target.parameters():
            parameter.mul_(1.5)
    begin_epoch(run, 1)
    twin.method.load_state_dict(run.method.state_dict())
    begin_epoch(twin, 1)
    for a, b in zip(run.method.prototypes, twin.method.prototypes, strict=True):
        assert a.scaled.equal(b.scaled) and a.assignment.equal(b.assignment)
    assert not any("prototypes" in name for name in run.method.state_dict())


def test_granularities_are_a_list_in_files_and_on_the_command_line(tmp_path: Any) -> None:
    file = tmp_path / "pcl.yaml"
    file.write_text("method: {name: pcl, granularities: [300, 600]}\n")
    config: Any = load_config(file)
    assert config.method.granularities == (300, 600)
    config = load_config(file, ["method.granularities=[700]"])
    assert config.method.granularities == (700,)
    file.write_text(config.to_yaml())
    assert load_config(file).identity() == config.identity()


@pytest.mark.parametrize("wrong", [[], [1], ["5"], [2.5], [True], 5, "many"])
def test_granularities_must_be_a_list_of_counts(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"method\.granularities"):
        tiny("pcl", method={"granularities": wrong})
