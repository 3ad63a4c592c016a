"""Laws of the learning rate schedule and of LARS."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ascl.optim import LARS, build_optimizer, rate_at
from ascl.sections import OptimConfig
from ascl.train import build
from tests.conftest import tiny


def test_cosine_starts_at_the_peak_and_ends_at_zero() -> None:
    assert rate_at(0.06, 0, warmup=0, epochs=200) == 0.06
    assert rate_at(0.06, 100, warmup=0, epochs=200) == pytest.approx(0.03)
    assert rate_at(0.06, 200, warmup=0, epochs=200) == pytest.approx(0, abs=1e-12)


def test_warm_up_rises_from_zero_to_the_peak_without_a_jump() -> None:
    assert rate_at(0.03, 0, warmup=5, epochs=200) == 0
    assert rate_at(0.03, 2.5, warmup=5, epochs=200) == pytest.approx(0.015)
    assert rate_at(0.03, 4.9999, warmup=5, epochs=200) == pytest.approx(0.03, rel=1e-3)
    assert rate_at(0.03, 5, warmup=5, epochs=200) == 0.03


def test_the_rate_never_rises_after_warm_up() -> None:
    rates = [rate_at(1.0, e / 10, warmup=5, epochs=20) for e in range(50, 200)]
    assert rates == sorted(rates, reverse=True)


def test_linear_scaling_is_by_256() -> None:
    assert OptimConfig(lr=0.06).peak(64) == pytest.approx(0.015)
    assert OptimConfig(lr=0.06, lr_scaling="none").peak(64) == 0.06


# -- LARS


def lars(*params: Tensor, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> LARS:
    return LARS([{"params": list(params)}], lr=lr, momentum=momentum, weight_decay=weight_decay)


def one_step(weight: Any, gradient: Any, **settings: float) -> Tensor:
    p = nn.Parameter(torch.tensor(weight))
    p.grad = torch.tensor(gradient)
    lars(p, **settings).step()
    return p.detach()


def test_a_step_of_lars_by_hand() -> None:
    # ‖w‖ = 5, ‖g‖ = 2: the step is 0.001·5/2 of the gradient, times the rate.
    moved = one_step([[3.0, 4.0]], [[0.0, 2.0]], lr=10.0)
    torch.testing.assert_close(moved, torch.tensor([[3.0, 4.0 - 10 * 0.001 * 5 / 2 * 2]]))


def norm(values: list[float]) -> float:
    return math.sqrt(sum(x * x for x in values))


def test_three_steps_of_lars_are_the_formula_as_loops() -> None:
    g = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (2, 3, 2, 2), (5,), (1,)]
    lr, momentum, decay = 0.5, 0.9, 0.1
    params = [nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64)) for s in shapes]
    plain = [p.detach().flatten().tolist() for p in params]
    buffers = [[0.0] * len(w) for w in plain]
    optimizer = lars(*params, lr=lr, momentum=momentum, weight_decay=decay)
    for _ in range(3):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=g, dtype=torch.float64)
            update, w = p.grad.flatten().tolist(), plain[i]
            if p.ndim > 1:
                update = [d + decay * x for d, x in zip(update, w, strict=True)]
                ratio = 0.001 * norm(w) / norm(update)
                update = [ratio * d for d in update]
            buffers[i] = [momentum * v + d for v, d in zip(buffers[i], update, strict=True)]
            plain[i] = [x - lr * v for x, v in zip(w, buffers[i], strict=True)]
        optimizer.step()
    for p, w in zip(params, plain, strict=True):
        assert p.detach().flatten().tolist() == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("weight", "gradient"), [([[0.0, 0.0]], [[1.0, 2.0]]), ([[1.0, 2.0]], [[0.0, 0.0]])]
)
def test_zero_weights_and_gradients_give_a_finite_step(
    weight: Any, gradient: Any, decay: float
) -> None:
    moved = one_step(weight, gradient, lr=1.0, weight_decay=decay)
    assert moved.isfinite().all()
    if weight == [[0.0, 0.0]]:
        assert moved.equal(-torch.tensor(gradient)), "it can leave zero"


def test_step_length_does_not_depend_on_the_gradient_norm() -> None:
    steps = [one_step([[3.0, 4.0]], [[0.0, size]], lr=10.0) for size in (1e-3, 1.0, 1e3)]
    for step in steps[1:]:
        torch.testing.assert_close(step, steps[0])


def test_biases_and_batch_norms_use_plain_sgd_without_decay() -> None:
    moved = one_step([3.0, 4.0], [1.0, 2.0], lr=0.1, weight_decay=0.5)
    torch.testing.assert_close(moved, torch.tensor([2.9, 3.8]))


def test_parameter_without_a_gradient_is_unchanged() -> None:
    still, moves = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    moves.grad = torch.ones(2, 2)
    lars(still, moves, lr=1.0).step()
    assert still.equal(torch.ones(2, 2)) and not moves.equal(torch.ones(2, 2))


def test_step_with_infinite_gradients_is_skipped() -> None:
    p = nn.Parameter(torch.ones(2, 2))
    optimizer, scaler = lars(p, lr=1.0, momentum=0.9), torch.amp.GradScaler("cpu")
    for factor, moves in ((math.inf, False), (1.0, True)):
        before = p.detach().clone()
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert p.isfinite().all() and p.equal(before) is not moves


def test_parameters_with_a_fixed_rate_have_their_own_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = build(tiny("byol")).method
    held = tuple(method.predictor.parameters())
    monkeypatch.setattr(method, "fixed_rate", lambda: held)
    for name in ("sgd", "lars"):
        config = OptimConfig(name=name)  # type: ignore[arg-type]
        optimizer = build_optimizer(method, config, scaled=False)
        found = {group["fixed"]: group["params"] for group in optimizer.param_groups}
        assert {id(p) for p in found[True]} == {id(p) for p in held}
        learns = [p for p in method.parameters() if p.requires_grad]
        assert len(found[True]) + len(found[False]) == len(learns)
