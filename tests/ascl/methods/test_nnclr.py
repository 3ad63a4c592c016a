"""Laws of NNCLR: its loss as loops, the positives, and updates of the queue."""

import math

import pytest
import torch
from torch import Tensor, nn

from ascl.methods.nnclr import NNCLR, Config
from ascl.relabel import Relabel
from ascl.train import build
from tests.ascl.methods.embeddings import AS_IT_IS, batch_of, doubles, rows
from tests.conftest import tiny


def method(relabel: Relabel = "none", neighbours: int = 1, support: Tensor | None = None) -> NNCLR:
    """At τ 0.2 and τ' 0.05, with these embeddings in the queue; the predictor turns the axes."""
    support = doubles(rows(9, 100) if support is None else support).float()
    config = Config(relabel=relabel, num_neighbours=neighbours, queue_size=len(support))
    made = NNCLR(config, AS_IT_IS, Turned(), support.shape[1])
    made.bank.features.copy_(support)
    return made


class Turned(nn.Module):
    """A predictor without weights that is not the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, dims=1)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def positive_by_loops(
    z: list[float], support: list[list[float]], kind: Relabel, k: int
) -> list[float]:
    """The positive of one embedding, in float64."""
    order = sorted(range(len(support)), key=lambda j: -dot(z, support[j]))
    nearest, others = order[0], order[1:]
    weights = {j: math.exp(dot(z, support[j]) / 0.05) for j in others}
    q = {j: weight / sum(weights.values()) for j, weight in weights.items()}
    c = 1 + sum(p * math.log(p) for p in q.values()) / math.log(len(others))
    y = {nearest: 1.0}
    for j in others:
        hard = float(j in others[:k])
        y[j] = {"none": 0, "hard": hard, "ahcl": c * hard, "ascl": min(1, c * k * q[j])}[kind]
    mixed = [sum(y[j] * support[j][d] for j in order) for d in range(len(z))]
    return [x / math.sqrt(dot(mixed, mixed)) for x in mixed]


@pytest.mark.parametrize("kind", ["none", "hard", "ahcl", "ascl"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_loss_is_the_formula_as_loops(kind: Relabel, k: int) -> None:
    nnclr, z1, z2 = method(kind, k), rows(5, 0), rows(5, 1)
    support = doubles(nnclr.bank.features).tolist()
    total = 0.0
    for z, other in ((z1, z2), (z2, z1)):
        p = doubles(other.roll(1, dims=1)).tolist()
        for i, row in enumerate(doubles(z).tolist()):
            positive = positive_by_loops(row, support, kind, k)
            logits = [dot(positive, p[j]) / 0.2 for j in range(5)]
            total -= logits[i] - math.log(sum(math.exp(x) for x in logits))
    loss = nnclr(batch_of(z1, z2)).loss
    assert loss.item() == pytest.approx(total / 10, rel=1e-5)


def test_a_hand_computed_loss() -> None:
    # The support set is the axes, and so is each view: every embedding is its own nearest. The
    # predictor gives the next axis, so the positive is at cosine 0, and of the two others in the
    # batch one is at 1: −ln(1 / (2 + e⁵)).
    x = torch.eye(3)
    loss = method(support=x)(batch_of(x, x)).loss
    assert loss.item() == pytest.approx(math.log(2 + math.exp(5)))


def test_a_hand_computed_mean_of_two() -> None:
    # The nearest of (4, 3)/5 is (1, 0), and then (0, 1): with one hard neighbour, half of each.
    nnclr = method("hard", 1, torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]]))
    unknown = torch.tensor([-1])
    positive, _ = nnclr.positives(torch.tensor([[0.8, 0.6]]), unknown, diagnose=False)
    torch.testing.assert_close(positive, torch.full((1, 2), math.sqrt(0.5)))


def test_every_prediction_has_a_gradient_and_the_neighbor_search_none() -> None:
    z1, z2, nnclr = rows(5, 8), rows(5, 9), method("ascl")
    nnclr(batch_of(z1, z2)).loss.backward()
    unknown = torch.full((5,), -1)
    for z, other in ((z1, z2), (z2, z1)):
        # Each view as the prediction alone, with the positives of the other as constants.
        positives, _ = nnclr.positives(doubles(other).float(), unknown, diagnose=False)
        alone = z.detach().clone().requires_grad_()
        p = nn.functional.normalize(alone.roll(1, dims=1), dim=1)
        loss = nn.functional.cross_entropy(positives @ p.T / 0.2, torch.arange(5)) / 2
        loss.backward()
        torch.testing.assert_close(z.grad, alone.grad)
        assert alone.grad is not None and (alone.grad.abs().sum(dim=1) > 0).all()


def test_queue_stores_the_first_views_embeddings_after_the_step() -> None:
    nnclr, z1, z2, classes = method(), rows(4, 10), rows(4, 11), torch.tensor([3, 1, 4, 1])
    before = nnclr.bank.features.clone()
    output = nnclr(batch_of(z1, z2, classes=classes))
    assert nnclr.bank.features.equal(before)
    nnclr.after_backward(output)
    torch.testing.assert_close(nnclr.bank.features[:4].double(), doubles(z1), atol=1e-6, rtol=0)
    assert nnclr.bank.features[4:].equal(before[4:])
    assert nnclr.bank.classes[:4].equal(classes)
    assert not nnclr.bank.features.requires_grad


def test_nearest_neighbor_accuracy_is_reported_without_relabeling() -> None:
    x, classes = torch.eye(3), torch.tensor([5, 6, 7])
    for kind in ("none", "ascl"):
        nnclr = method(kind, support=x)
        # Of those known, in two views: the first is right, the second wrong.
        nnclr.bank.classes.copy_(torch.tensor([5, 1, -1]))
        seen = nnclr(batch_of(x, x, classes=classes, diagnose=True)).diagnostics
        assert seen["neighbour_top1"] == 0.5
        assert ("purity" in seen) is (kind == "ascl")
        assert not any(value.requires_grad for value in seen.values())


def test_the_heads_are_those_of_the_paper() -> None:
    made = build(tiny("nnclr")).method
    heads = (made.online[1], made.predictor)
    sizes = [[part.out_features for part in head if isinstance(part, nn.Linear)] for head in heads]
    assert sizes == [[16, 16, 8], [16, 8]]
