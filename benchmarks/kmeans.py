"""k-means of 50,000 unit vectors of dimension 128 into 500 clusters, against scikit-learn."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

from ascl.eval.clustering import kmeans
from benchmarks.timing import Ratio, alternate, timed

FEATURES, DIM, CLUSTERS, ITERATIONS = 50_000, 128, 500, 20


def run() -> Iterator[Ratio]:
    # The groups overlap, as an encoder's features do, so that neither side converges early.
    g = torch.Generator().manual_seed(0)
    centers = torch.randn(CLUSTERS, DIM, generator=g) / 2
    group = torch.randint(0, CLUSTERS, (FEATURES,), generator=g)
    features = F.normalize(centers[group] + torch.randn(FEATURES, DIM, generator=g), dim=1)
    found: dict[str, Tensor] = {}

    def ours() -> None:
        seed = torch.Generator().manual_seed(0)
        clustering = kmeans(features, CLUSTERS, generator=seed, iterations=ITERATIONS)
        found["ours"] = clustering.assignment

    def peer() -> None:
        model = KMeans(CLUSTERS, n_init=1, max_iter=ITERATIONS, tol=0, random_state=0)
        found["peer"] = torch.from_numpy(model.fit_predict(features.numpy())).long()

    ours(), peer()
    a, b = alternate(timed(ours), timed(peer), rounds=3)
    inertias = {side: inertia(features, assignment) for side, assignment in found.items()}
    yield Ratio(
        f"k-means 50,000 × 128 into 500, {ITERATIONS} iterations, scikit-learn",
        a,
        b,
        "≥ 2",
        note=f"inertia {inertias['ours']:.0f}, scikit-learn {inertias['peer']:.0f}",
    )


def inertia(features: Tensor, assignment: Tensor) -> float:
    """Return Σ‖x − mean of its cluster‖², which scikit-learn minimizes."""
    sums = torch.zeros(CLUSTERS, DIM, dtype=torch.float64)
    sums.index_add_(0, assignment, features.double())
    counts = torch.bincount(assignment, minlength=CLUSTERS).clamp(min=1)
    return features.double().square().sum().item() - (sums.square().sum(1) / counts).sum().item()
