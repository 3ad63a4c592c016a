"""Laws of k-means: nearest centroids, decreasing inertia, and no empty cluster."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ascl.eval import clustering as module
from ascl.eval.clustering import Clustering, kmeans
from ascl.losses import unit
from ascl.progress import no_report
from tests.processes import on_ranks

seeds = st.integers(0, 2**31 - 1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(count: int, seed: int, dim: int = 6) -> Tensor:
    return unit(torch.randn(count, dim, generator=seeded(seed)))


def with_copies(count: int, different: int, seed: int) -> Tensor:
    """Points of which many are copies of each other."""
    return points(different, seed)[torch.randint(0, different, (count,), generator=seeded(seed))]


def blobs(groups: int, each: int, seed: int, dim: int = 16) -> tuple[Tensor, Tensor]:
    """Points in groups far from each other, and the group of each."""
    group = torch.arange(groups).repeat(each)
    noise = torch.randn(len(group), dim, generator=seeded(seed)) * 0.02
    return unit(torch.eye(dim)[:groups][group] + noise), group


def inertia(features: Tensor, clustering: Clustering) -> float:
    """Σ(1 − cos) of the features with their centroids: half the squared distances."""
    own = clustering.centroids[clustering.assignment]
    return float((1 - (features.double() * own.double()).sum(dim=1)).sum())


@given(seeds, st.integers(1, 60), st.data())
def test_the_assignment_is_the_nearest_centroid_by_brute_force(
    seed: int, count: int, data: st.DataObject
) -> None:
    clusters = data.draw(st.integers(1, count))
    copied = data.draw(st.booleans())
    x = with_copies(count, 1 + count // 3, seed) if copied else points(count, seed)
    found = kmeans(x, clusters, generator=seeded(seed), iterations=3)
    for row, own in zip(x.double(), found.assignment.tolist(), strict=True):
        cosines = [float(row @ centroid) for centroid in found.centroids.double()]
        assert cosines[own] >= max(cosines) - 1e-5


@given(seeds, st.integers(1, 60), st.booleans(), st.data())
def test_no_cluster_is_empty_and_centroids_are_unit(
    seed: int, count: int, copied: bool, data: st.DataObject
) -> None:
    clusters = data.draw(st.integers(1, count))
    x = with_copies(count, 1 + count // 5, seed) if copied else points(count, seed)
    found = kmeans(x, clusters, generator=seeded(seed), iterations=data.draw(st.integers(0, 4)))
    assert set(found.assignment.tolist()) == set(range(clusters))
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(clusters))


@given(seeds, st.integers(2, 12))
def test_no_iteration_makes_the_inertia_larger(seed: int, clusters: int) -> None:
    x = points(80, seed)
    values = [
        inertia(x, kmeans(x, clusters, generator=seeded(seed), iterations=n)) for n in range(8)
    ]
    assert all(later <= earlier + 1e-4 for earlier, later in itertools.pairwise(values))
    assert values[-1] < values[0]


@given(seeds)
def test_after_convergence_each_centroid_is_the_mean_of_its_features(seed: int) -> None:
    x = points(50, seed)
    found = kmeans(x, 5, generator=seeded(seed), iterations=100)
    for cluster, centroid in enumerate(found.centroids):
        mean = x[found.assignment == cluster].mean(dim=0)
        torch.testing.assert_close(centroid, mean / mean.norm(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("groups", [2, 7, 16])
def test_separated_blobs_are_found(groups: int, seed: int) -> None:
    x, group = blobs(groups, 30, seed)
    assignment = kmeans(x, groups, generator=seeded(seed)).assignment
    pairs = set(zip(group.tolist(), assignment.tolist(), strict=True))
    assert len(pairs) == groups


def test_a_hand_computed_clustering() -> None:
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0], [-0.8, -0.6]])
    found = kmeans(x, 2, generator=seeded(0))
    a, b = found.assignment[0], found.assignment[2]
    assert a != b and found.assignment.tolist() == [a, a, b, b]
    # (1.8, 0.6) / √3.6
    torch.testing.assert_close(found.centroids[a], torch.tensor([1.8, 0.6]) / 3.6**0.5)
    assert inertia(x, found) == pytest.approx(4 - 2 * 3.6**0.5, abs=1e-6)


def test_as_many_clusters_as_features_give_each_its_own() -> None:
    x = points(30, 1)
    found = kmeans(x, 30, generator=seeded(0))
    torch.testing.assert_close(found.centroids[found.assignment], x)
    assert inertia(x, found) == pytest.approx(0, abs=1e-5)


def test_identical_features_are_distributed_over_all_clusters() -> None:
    x = points(1, 2).expand(20, -1)
    found = kmeans(x, 6, generator=seeded(0))
    assert set(found.assignment.tolist()) == set(range(6))
    assert found.centroids.isfinite().all()


@pytest.mark.parametrize("rows", [slice(None), slice(0, 3)])
def test_nan_features_terminate(rows: slice) -> None:
    x = points(20, 2)
    x[rows] = torch.nan
    found = kmeans(x, 6, generator=seeded(0))
    assert set(found.assignment.tolist()) == set(range(6))


def test_features_that_cancel_out_keep_the_centroid() -> None:
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    found = kmeans(x, 1, generator=seeded(0))
    assert found.centroids.abs().equal(torch.tensor([[1.0, 0.0]]))


def test_centroid_of_an_empty_cluster_moves_to_the_farthest_feature() -> None:
    x = unit(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.2, 1.0, 0.0], [1.0, -0.1, 0.0]]))
    centroids = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    moved, assignment = module._assign(x, centroids, no_report)
    assert assignment.tolist() == [0, 0, 1, 0]
    assert moved[1].equal(x[2]) and moved[0].equal(centroids[0])


@given(seeds)
def test_the_same_seed_gives_the_same_clusters_and_another_others(seed: int) -> None:
    x = points(200, seed)
    one, again, other = (
        kmeans(x, 20, generator=seeded(s), iterations=2) for s in (seed, seed, seed + 1)
    )
    assert one.assignment.equal(again.assignment) and one.centroids.equal(again.centroids)
    assert not one.centroids.equal(other.centroids)


def test_batches_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    x = points(300, 3)
    whole = kmeans(x, 12, generator=seeded(0))
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    assert kmeans(x, 12, generator=seeded(0)).assignment.equal(whole.assignment)


def test_seeds_drawn_several_at_once_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    x = points(2000, 4, dim=16)
    several = kmeans(x, 200, generator=seeded(0), iterations=0)
    monkeypatch.setattr(module, "ROUND", 10**9)
    one_by_one = kmeans(x, 200, generator=seeded(0), iterations=0)
    assert inertia(x, several) == pytest.approx(inertia(x, one_by_one), rel=0.03)


def test_seeding_beats_a_random_choice() -> None:
    x, _ = blobs(16, 50, 5)
    x = torch.cat((x, x[:1].expand(3000, -1)))  # most of them in one place
    ours = kmeans(x, 16, generator=seeded(0), iterations=0)
    chosen = x[torch.randperm(len(x), generator=seeded(0))[:16]]
    random = Clustering(chosen, (x @ chosen.T).argmax(dim=1))
    assert inertia(x, ours) < inertia(x, random) / 5


def test_result_is_float32_without_gradient_for_any_input() -> None:
    x = points(40, 6).bfloat16().requires_grad_()
    found = kmeans(x, 4, generator=seeded(0))
    assert found.centroids.dtype == torch.float32 and not found.centroids.requires_grad


@pytest.mark.parametrize("clusters", [0, 11])
def test_too_many_clusters_are_refused(clusters: int) -> None:
    with pytest.raises(ValueError, match=f"got {clusters} clusters, 10 features"):
        kmeans(points(10, 0), clusters, generator=seeded(0))


def clustered() -> dict[str, Tensor]:
    """This rank's clusters of features that two ranks cannot share evenly."""
    found = kmeans(points(151, 7), 12, generator=seeded(0))
    few = kmeans(points(1, 8), 1, generator=seeded(0))  # a share of none on one of the ranks
    return {"centroids": found.centroids, "assignment": found.assignment, "few": few.assignment}


def test_two_ranks_find_the_clusters_of_one() -> None:
    alone, (left, right) = clustered(), on_ranks(2, clustered)
    assert all(left[key].equal(right[key]) for key in left)
    assert left["assignment"].equal(alone["assignment"])
    torch.testing.assert_close(left["centroids"], alone["centroids"])
