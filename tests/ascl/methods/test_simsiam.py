"""Laws of SimSiam: its loss as loops, the stopped gradient, and the predictor's own rate."""

import pytest
import torch
from torch import Tensor, nn

from ascl.methods.simsiam import SimSiam
from ascl.models.batch_norm import SplitBatchNorm
from ascl.train import build, train
from tests.ascl.methods.embeddings import AS_IT_IS, batch_of, doubles, rows
from tests.conftest import tiny


def a_predictor() -> nn.Linear:
    predictor = nn.Linear(6, 6)
    with torch.no_grad():
        predictor.weight.copy_(rows(6, 10))
        predictor.bias.copy_(rows(1, 11)[0])
    return predictor


def test_the_loss_is_the_formula_as_loops() -> None:
    z1, z2, predictor = rows(5, 0), rows(5, 1), a_predictor()
    loss = SimSiam(AS_IT_IS, predictor)(batch_of(z1, z2)).loss
    total = 0.0
    for predicting, met in ((z1, z2), (z2, z1)):
        p, z = doubles(predictor(predicting)).tolist(), doubles(met).tolist()
        for i in range(5):
            total -= 0.5 * sum(a * b for a, b in zip(p[i], z[i], strict=True))
    assert loss.item() == pytest.approx(total / 5)


def test_a_hand_computed_loss() -> None:
    # (1, 0) and (3, 4) have cosine 0.6; predictors that change nothing: −½(0.6 + 0.6).
    method = SimSiam(AS_IT_IS, nn.Identity())
    loss = method(batch_of(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 4.0]]))).loss
    assert loss.item() == pytest.approx(-0.6)


def test_a_projection_learns_only_through_its_own_prediction() -> None:
    z1, z2, predictor = rows(5, 2), rows(5, 3), a_predictor()
    SimSiam(AS_IT_IS, predictor)(batch_of(z1, z2)).loss.backward()
    for z, met in ((z1, z2), (z2, z1)):
        alone = z.detach().clone().requires_grad_()
        cosines = torch.cosine_similarity(predictor(alone), met.detach())
        (-0.5 * cosines.mean()).backward()
        torch.testing.assert_close(z.grad, alone.grad)
        assert alone.grad is not None and alone.grad.abs().sum() > 0


def test_a_detached_prediction_gives_no_gradient() -> None:
    class Stopped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach()

    assert not SimSiam(AS_IT_IS, Stopped())(batch_of(rows(4, 4), rows(4, 5))).loss.requires_grad


def test_only_the_predictors_learning_rate_is_constant() -> None:
    run = build(tiny("simsiam"))
    list(train(run))
    peak = run.config.optim.peak(run.config.batch_size)
    rates = {id(p): group["lr"] for group in run.optimizer.param_groups for p in group["params"]}
    for name, parameter in run.method.named_parameters():
        if name.startswith("predictor."):
            assert rates[id(parameter)] == peak, name
        else:
            assert rates[id(parameter)] < 0.2 * peak, name


def test_the_projector_ends_on_a_norm_without_affine_and_the_predictor_on_none() -> None:
    run = build(tiny("simsiam"))
    projector = list(run.method.online[1])
    norms = [part for part in projector if isinstance(part, SplitBatchNorm)]
    assert [norm.affine for norm in norms] == [True, True, False]
    assert projector[-1] is norms[-1]
    predictor = list(run.method.predictor)
    assert [type(part) for part in predictor] == [nn.Linear, SplitBatchNorm, nn.ReLU, nn.Linear]
    assert [predictor[0].out_features, predictor[-1].out_features] == [4, 8]


def test_the_spread_shows_a_collapse_that_batch_norm_hides() -> None:
    z = rows(8, 6)
    to_one_point = nn.Linear(6, 6)
    nn.init.zeros_(to_one_point.weight)
    seen = SimSiam(AS_IT_IS, to_one_point)(batch_of(z, z, diagnose=True)).diagnostics
    assert seen["spread"].item() == pytest.approx(0, abs=1e-6)
