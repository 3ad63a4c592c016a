"""The learning rate's course."""

import pytest

from ascl.config import OptimConfig
from ascl.optim import rate_at


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
