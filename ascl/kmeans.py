"""k-means of unit-norm features: Lloyd's iterations on the features' device, in batches.

Spherical: a feature belongs to the centroid of the largest cosine, and centroids have norm 1. For
unit rows ‖x − c‖² = 2 − 2·cos, so this is ordinary k-means but for the length of the centroids.

Shapes: M = features, D = their size, K = clusters.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ascl.distributed import agreed, gather_uneven, share

CHUNK_BYTES = 32 * 2**20  # of similarities at a time
CHUNK_ROWS = 1024  # but no fewer rows than this, or a hundred thousand clusters starve a GPU
# Seeding; with these it takes a tenth of scikit-learn's time and the inertia comes out about equal.
SAMPLE, SAMPLE_MOST = 16, 2**18  # features looked at for each cluster, and for all of them
TRIALS = 16  # candidates for a seed
ROUND = 64  # a round adds one seed, or one for each so many that are there
ROUND_BYTES = 256 * 2**20  # of similarities to candidates
SAME = 1e-6  # features of a cosine this near to 1 are copies, as far as float32 can tell


@dataclass(frozen=True, eq=False)
class Clustering:
    """Where k-means has come to; no cluster is empty."""

    centroids: Tensor  # (K, D) unit rows
    assignment: Tensor  # (M,) the nearest centroid of each feature


def too_many_clusters(clusters: int, images: int) -> str:
    """Why images are not cut into as many clusters."""
    return (
        "clusters must be fewer than the training images, "
        f"got {clusters} clusters, {images} training images; try {max(2, images // 10)} or fewer"
    )


@torch.no_grad()
def kmeans(
    features: Tensor, num_clusters: int, *, generator: torch.Generator, iterations: int = 20
) -> Clustering:
    """Cluster unit rows (M, D), the same on every rank; each does its share of the work."""
    if not 1 <= num_clusters <= len(features):
        raise ValueError(
            "k-means needs at least one feature for each cluster, "
            f"got {num_clusters} clusters, {len(features)} features"
        )
    features = features.float()
    centroids = _seeds(features, num_clusters, generator)
    centroids, assignment = _assigned(features, centroids)
    for _ in range(iterations):
        before = assignment
        centroids, assignment = _assigned(features, _means(features, assignment, centroids))
        if assignment.equal(before):
            break
    return Clustering(centroids, assignment)


def _seeds(features: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """First centroids (K, D), by greedy k-means++ on a sample of the features.

    Candidates are drawn with the chance of their squared distance to the nearest seed so far, and
    of some the one that brings the features nearest to a seed becomes one. From 64 seeds on a round
    adds several, which do not know of each other: one by one would take a hundred thousand rounds
    where there are as many clusters.
    """
    size = max(min(SAMPLE * num_clusters, SAMPLE_MOST), 2 * num_clusters)
    sample = features[torch.randperm(len(features), generator=generator)[:size].to(features.device)]
    size = len(sample)
    seeds = torch.empty(0, dtype=torch.long, device=sample.device)
    cosine = sample.new_full((size,), -1.0)  # of each with its nearest seed
    while len(seeds) < num_clusters:
        wanted = min(len(seeds) // ROUND, ROUND_BYTES // (4 * TRIALS * size))
        wanted = min(max(1, wanted), num_clusters - len(seeds))
        trials = min(TRIALS, (size - len(seeds)) // wanted)
        # A race at these rates is won with the wanted chances, by each at most once, and copies of
        # a seed come in last. Run on the CPU: the same on any device.
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
    return sample[agreed(seeds)]


def _assigned(features: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The centroids and each feature's nearest; one that is nobody's moves onto the feature that is
    farthest from its own, until each has a feature. No move makes the sum of distances larger."""
    while True:
        assignment, cosine = _nearest(features, centroids)
        empty = (torch.bincount(assignment, minlength=len(centroids)) == 0).nonzero().flatten()
        if not len(empty):
            return centroids, assignment
        # Each cluster's first feature stays, so that filling one cluster never empties another.
        places = torch.arange(len(features), device=features.device)
        first = places.new_full((len(centroids),), len(features))
        first = first.scatter_reduce(0, assignment, places, "amin")
        movable = cosine.index_fill(0, first[first < len(features)], math.inf)
        farthest = movable.topk(len(empty), largest=False)
        centroids = centroids.index_copy(0, empty, features[farthest.indices])
        if not farthest.values.min() <= 1 - SAME:
            # Fewer different features than clusters: copies are equally near to several centroids.
            # Or they are no numbers, which the next loss will say.
            return centroids, assignment.index_copy(0, farthest.indices, empty)


def _nearest(features: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Each feature's centroid of the largest cosine (M,), and that cosine (M,)."""
    rows = max(CHUNK_ROWS, CHUNK_BYTES // (4 * len(centroids)))
    mine = features[share(len(features))]
    best = [(chunk @ centroids.T).max(dim=1) for chunk in mine.split(rows)]
    index = gather_uneven(torch.cat([b.indices for b in best]), len(features))
    return index, gather_uneven(torch.cat([b.values for b in best]), len(features))


def _means(features: Tensor, assignment: Tensor, before: Tensor) -> Tensor:
    """The centroids (K, D) of an assignment; as before where features cancel out."""
    sums = torch.zeros_like(before).index_add_(0, assignment, features)
    length = sums.norm(dim=1, keepdim=True)
    # A GPU adds up in any order, which ranks must not differ in.
    return agreed(torch.where(length > SAME, sums / length.clamp(min=SAME), before))
