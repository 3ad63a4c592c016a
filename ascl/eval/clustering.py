"""k-means of unit-norm features: Lloyd's iterations on the features' device, in chunks.

Spherical k-means: a feature belongs to the centroid with the largest cosine, and centroids have
norm 1. For unit rows ‖x − c‖² = 2 − 2·cos, so only the norm of centroids differs from k-means.

Shapes: M = features, D = their size, K = clusters.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ascl.distributed import broadcast_first, gather_uneven, share
from ascl.progress import Report, no_report

CHUNK_BYTES = 32 * 2**20  # of similarities at a time
CHUNK_ROWS = 1024  # minimum rows of a chunk, so that 100,000 clusters still keep a GPU busy
# Seeding: these values take a tenth of scikit-learn's time, for about the same inertia.
SAMPLE, SAMPLE_MOST = 16, 2**18  # sampled features per cluster, and maximum in total
TRIALS = 16  # candidates for a seed
ROUND = 64  # a round adds one seed per this many existing seeds, but at least one
ROUND_BYTES = 256 * 2**20  # of similarities to candidates
SAME = 1e-6  # features whose cosine is this close to 1 are equal in float32


@dataclass(frozen=True, eq=False)
class Clustering:
    """Result of k-means; no cluster is empty."""

    centroids: Tensor  # (K, D) unit rows
    assignment: Tensor  # (M,) the nearest centroid of each feature


def too_many_clusters(clusters: int, images: int) -> str:
    """Explain why there cannot be this many clusters."""
    return (
        "the number of clusters must be less than the number of training images, "
        f"got {clusters} clusters, {images} training images; try {max(2, images // 10)} or fewer"
    )


@torch.no_grad()
def kmeans(
    features: Tensor,
    num_clusters: int,
    *,
    generator: torch.Generator,
    iterations: int = 20,
    report: Report = no_report,
) -> Clustering:
    """Cluster unit rows (M, D), which are equal on every rank; the ranks share the work.

    Args:
        features: Unit rows (M, D).
        num_clusters: K.
        generator: CPU generator of the seeding, equal on every rank.
        iterations: Maximum number of Lloyd's iterations.
        report: Called often: clustering ImageNet on a CPU takes hours.
    """
    if not 1 <= num_clusters <= len(features):
        raise ValueError(
            "k-means needs at least one cluster and one feature for each cluster, "
            f"got {num_clusters} clusters, {len(features)} features"
        )
    features = features.float()
    centroids = _choose_seeds(features, num_clusters, generator, report)
    centroids, assignment = _assign(features, centroids, report)
    for _ in range(iterations):
        before = assignment
        means = _compute_means(features, assignment, centroids)
        centroids, assignment = _assign(features, means, report)
        if assignment.equal(before):
            break
    return Clustering(centroids, assignment)


def _choose_seeds(
    features: Tensor, num_clusters: int, generator: torch.Generator, report: Report
) -> Tensor:
    """Choose initial centroids (K, D) by greedy k-means++ on a sample of the features.

    Candidates are drawn with probabilities proportional to their squared distance to the nearest
    seed; the candidate that reduces the total distance most becomes a seed. With 128 or more seeds,
    a round adds several seeds independently, because 100,000 clusters would otherwise need 100,000
    rounds.
    """
    size = max(min(SAMPLE * num_clusters, SAMPLE_MOST), 2 * num_clusters)
    sample = features[torch.randperm(len(features), generator=generator)[:size].to(features.device)]
    size = len(sample)
    seeds = torch.empty(0, dtype=torch.long, device=sample.device)
    cosine = sample.new_full((size,), -1.0)  # of each feature with its nearest seed
    while len(seeds) < num_clusters:
        report()
        wanted = min(len(seeds) // ROUND, ROUND_BYTES // (4 * TRIALS * size))
        wanted = min(max(1, wanted), num_clusters - len(seeds))
        trials = min(TRIALS, (size - len(seeds)) // wanted)
        # Exponential variables with these rates sample without replacement with the required
        # probabilities; copies of a seed rank last. Drawn on the CPU: the same for any device.
        race = torch.empty(size).exponential_(generator=generator).to(sample.device)
        race /= (1 - cosine).clamp_(min=1e-12)
        race[seeds] = math.inf
        winners = race.topk(wanted * trials, largest=False).indices.view(trials, wanted)
        reached = sample @ sample[winners.flatten()].T  # (size, trials · wanted)
        gain = (reached - cosine.unsqueeze(1)).clamp_(min=0).sum(dim=0).view(trials, wanted)
        best = gain.argmax(dim=0, keepdim=True)
        seeds = torch.cat((seeds, winners.gather(0, best).flatten()))
        chosen = (best * wanted + torch.arange(wanted, device=best.device)).flatten()
        cosine = torch.maximum(cosine, reached[:, chosen].amax(dim=1))
    return sample[broadcast_first(seeds)]


def _assign(features: Tensor, centroids: Tensor, report: Report) -> tuple[Tensor, Tensor]:
    """Assign each feature to its nearest centroid, and fill empty clusters.

    The centroid of an empty cluster moves to the feature that is farthest from its own centroid,
    which never increases the sum of distances. Returns the centroids and the assignment.
    """
    while True:
        assignment, cosine = _find_nearest(features, centroids, report)
        empty = (torch.bincount(assignment, minlength=len(centroids)) == 0).nonzero().flatten()
        if not len(empty):
            return centroids, assignment
        # The first feature of each cluster does not move, so no cluster becomes empty.
        places = torch.arange(len(features), device=features.device)
        first = places.new_full((len(centroids),), len(features))
        first = first.scatter_reduce(0, assignment, places, "amin")
        movable = cosine.index_fill(0, first[first < len(features)], math.inf)
        farthest = movable.topk(len(empty), largest=False)
        centroids = centroids.index_copy(0, empty, features[farthest.indices])
        if not farthest.values.min() <= 1 - SAME:
            # There are fewer distinct features than clusters, so copies are equally close to
            # several centroids. Or features are NaN, which the check of the loss reports.
            return centroids, assignment.index_copy(0, farthest.indices, empty)


def _find_nearest(features: Tensor, centroids: Tensor, report: Report) -> tuple[Tensor, Tensor]:
    """Return the index (M,) and the cosine (M,) of each feature's nearest centroid."""
    rows = max(CHUNK_ROWS, CHUNK_BYTES // (4 * len(centroids)))
    mine = features[share(len(features))]
    best = []
    for chunk in mine.split(rows):
        best.append((chunk @ centroids.T).max(dim=1))
        report()
    index = gather_uneven(torch.cat([b.indices for b in best]), len(features))
    return index, gather_uneven(torch.cat([b.values for b in best]), len(features))


def _compute_means(features: Tensor, assignment: Tensor, before: Tensor) -> Tensor:
    """Return the centroids (K, D) of an assignment; unchanged where features cancel out."""
    sums = torch.zeros_like(before).index_add_(0, assignment, features)
    length = sums.norm(dim=1, keepdim=True)
    # The summation order on a GPU varies, but ranks must have equal centroids.
    return broadcast_first(torch.where(length > SAME, sums / length.clamp(min=SAME), before))
