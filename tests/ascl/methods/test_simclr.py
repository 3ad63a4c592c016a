"""Laws of SimCLR: NT-Xent as loops, and relabeling within the batch."""

import math

import pytest
import torch
from torch import Tensor

from ascl.methods.simclr import Config, SimCLR, nt_xent
from ascl.relabel import Relabel
from tests.ascl.methods.embeddings import AS_IT_IS, batch_of, doubles, rows


def loss(first: Tensor, second: Tensor, relabel: Relabel = "none", neighbours: int = 1) -> Tensor:
    config = Config(relabel=relabel, num_neighbours=neighbours)
    return SimCLR(config, AS_IT_IS)(batch_of(first, second)).loss


def by_loops(first: Tensor, second: Tensor, kind: Relabel = "none", k: int = 1) -> float:
    """NT-Xent at τ 0.5, with the label shared among the other views at τ' 0.05; in float64."""
    views, n = (doubles(first).tolist(), doubles(second).tolist()), len(first)

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    total = 0.0
    for v in range(2):
        same, other = views[v], views[1 - v]
        for i in range(n):
            others = [j for j in range(n) if j != i]
            near = {j: math.exp(cosine(other[i], other[j]) / 0.05) for j in others}
            q = {j: weight / sum(near.values()) for j, weight in near.items()}
            c = 1 + sum(p * math.log(p) for p in q.values()) / math.log(n - 1)
            top = sorted(others, key=lambda j: -q[j])[:k]
            y = {i: 1.0}
            for j in others:
                hard = float(j in top)
                y[j] = {"none": 0, "hard": hard, "ahcl": c * hard, "ascl": min(1, c * k * q[j])}[
                    kind
                ]
            norm = sum(math.exp(cosine(same[i], other[j]) / 0.5) for j in range(n))
            norm += sum(math.exp(cosine(same[i], same[j]) / 0.5) for j in others)
            for j in range(n):
                log_p = cosine(same[i], other[j]) / 0.5 - math.log(norm)
                total -= y[j] / sum(y.values()) * log_p
    return total / (2 * n)


@pytest.mark.parametrize("kind", ["none", "hard", "ahcl", "ascl"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_loss_is_the_formula_as_loops(kind: Relabel, k: int) -> None:
    first, second = rows(5, 0), rows(5, 1)
    assert loss(first, second, kind, k).item() == pytest.approx(by_loops(first, second, kind, k))


def test_a_hand_computed_loss() -> None:
    # Two samples at a right angle, both views alike, τ = 0.5: each view has its positive at
    # cosine 1, and two negatives at cosine 0: −ln(e² / (e² + 2)).
    x = torch.eye(2)
    assert loss(x, x).item() == pytest.approx(math.log(1 + 2 * math.exp(-2)))
    assert math.log(1 + 2 * math.exp(-2)) == pytest.approx(0.2395, abs=1e-4)


def test_a_hand_computed_shared_label() -> None:
    # Three samples at right angles, but the last two have one second view between them. As keys
    # these two are each other's only neighbour (c ≈ 1), so their first views have half a label on
    # each; all other keys are equally far from each other (c = 0).
    x = torch.eye(3)
    second = torch.stack((x[0], x[1], x[1]))
    # Logits are 2·cosine. Sample 0, in both views: its positive at cosine 1, the other four at 0.
    row0 = math.log(math.exp(2) + 4) - 2
    # First view of 1: both halves of its label at 1, the rest at 0; of 2: all five at 0.
    row1, row2 = math.log(2 * math.exp(2) + 3) - 2, math.log(5)
    # Second views of 1 and 2 see each other and the first view of 1 at 1, which is right for 1.
    twin = math.log(2 * math.exp(2) + 3)
    expected = (row0 + row1 + row2 + row0 + (twin - 2) + twin) / 6
    assert loss(x, second, "ascl").item() == pytest.approx(expected, abs=1e-5)


def test_every_cosine_has_a_gradient_but_that_of_an_anchor_with_itself() -> None:
    across, within = (torch.rand(4, 4).requires_grad_() for _ in range(2))
    own = torch.eye(4, dtype=torch.bool)
    nt_xent(across, within, own, own.float(), 0.5).backward()
    assert across.grad is not None and within.grad is not None
    assert (across.grad[own] < 0).all() and (across.grad[~own] > 0).all()
    assert (within.grad[~own] > 0).all() and (within.grad[own] == 0).all()


def test_a_sharp_temperature_stays_finite() -> None:
    across, own = torch.eye(4, requires_grad=True), torch.eye(4, dtype=torch.bool)
    value = nt_xent(across, across, own, own.float(), 1e-3)
    value.backward()
    assert value.isfinite() and across.grad is not None and across.grad.isfinite().all()


def test_relabeling_reports_neighbor_diagnostics() -> None:
    # Two pairs of twins: each sample's nearest is its twin, which is of its class.
    x = torch.eye(4)[[0, 0, 1, 1]]
    classes = torch.tensor([7, 7, 3, 3])
    method = SimCLR(Config(relabel="hard"), AS_IT_IS)
    seen = method(batch_of(x, x, classes=classes, diagnose=True)).diagnostics
    assert seen["neighbour_top1"] == seen["purity"] == 1
