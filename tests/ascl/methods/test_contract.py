"""One contract for every method, found by name, and for every system of the ablations."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ascl.encoders import SplitBatchNorm
from ascl.methods import Batch, load_method, method_names
from ascl.momentum import rising
from ascl.train import Run, begin_epoch, build
from tests.conftest import SYSTEMS, tiny


def ready(system: str, **changes: Any) -> Run:
    """A run in the middle of an epoch, as far as its method can tell."""
    run = build(tiny(system, **changes))
    begin_epoch(run, 1)
    run.model.train()
    return run


def a_batch(run: Run, seed: int = 0, diagnose: bool = True) -> Batch:
    g = torch.Generator().manual_seed(seed)
    n = run.config.batch_size
    views = tuple(torch.randn(n, 3, 32, 32, generator=g) for _ in run.config.method.cost().views)
    return Batch(
        views,
        torch.randint(0, 10, (n,), generator=g),
        indices=torch.randperm(len(run.data.train), generator=g)[:n],
        shuffle=torch.randperm(n, generator=g),
        diagnose=diagnose,
        progress=0.5,
        generator=g,
    )


def a_step(run: Run, batch: Batch) -> float:
    run.optimiser.zero_grad()
    output = run.model(batch)
    output.loss.backward()
    run.optimiser.step()
    return float(output.loss.detach())


def test_every_method_is_among_the_systems_tested() -> None:
    assert {str(s["name"]) for s in SYSTEMS.values()} == set(method_names())


def test_a_method_says_what_it_costs() -> None:
    for name in method_names():
        config = load_method(name).config()
        assert config.name == name
        assert config.cost().views
        assert config.cost().backprops in (1, 2)


def test_a_momentum_encoder_is_there_where_the_cost_says_so(system: str) -> None:
    run = build(tiny(system))
    names = {name.partition(".")[0] for name, _ in run.method.named_parameters()}
    assert ("target" in names) is run.config.method.cost().ema


def test_the_loss_is_a_finite_scalar(system: str) -> None:
    run = ready(system)
    output = run.model(a_batch(run))
    assert output.loss.shape == ()
    assert output.loss.dtype == torch.float32
    assert output.loss.isfinite()
    assert all(v.shape == () for v in output.diagnostics.values())
    assert "spread" in output.diagnostics


def test_under_bf16_autocast_the_loss_is_float32_and_near(system: str) -> None:
    a, b = ready(system), ready(system)
    plain = a.model(a_batch(a)).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = b.model(a_batch(b)).loss
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain.item(), rel=0.1, abs=0.1)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in b.method.parameters() if p.grad is not None)


def test_the_gradient_reaches_every_online_weight_and_never_the_copy(system: str) -> None:
    run = ready(system)
    run.model(a_batch(run)).loss.backward()
    for name, parameter in run.method.named_parameters():
        if name.startswith("target."):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_micro_batches_change_nothing_but_rounding(trained_system: str) -> None:
    seen = []
    for micro_batches in (1, 2):
        run = ready(trained_system, runtime={"micro_batches": micro_batches})
        # In float64: the rounding of float32 takes a ReLU across 0 as soon as by the second step.
        for layer in run.method.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear | SplitBatchNorm):
                layer.double()
        for seed in range(2):
            batch = a_batch(run, seed)
            views = tuple(view.double() for view in batch.views)
            loss = a_step(run, replace(batch, views=views))
            gradients = {f"{name} {seed}": p.grad for name, p in run.method.named_parameters()}
            seen.append({"loss": loss, **gradients, **copy.deepcopy(run.method.state_dict())})
    whole, parts = seen[:2], seen[2:]
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-6)


def test_thirty_steps_on_one_batch_lower_the_loss(trained_system: str) -> None:
    # The bank stands still: fed one batch for ever it would hold little but the batch's own keys.
    # At a rate that all of them stand: their own are meant for batches of 256, not of 16.
    run = ready(trained_system, optim={"lr": 0.03})
    batch = a_batch(run)
    losses = [a_step(run, batch) for _ in range(30)]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_the_average_moves_before_the_keys_are_computed(system: str) -> None:
    run = ready(system)
    if not run.config.method.cost().ema:
        pytest.skip("no momentum encoder")
    with torch.no_grad():
        for parameter in run.method.online.parameters():
            parameter.add_(1.0)
    before = copy.deepcopy(run.method.target.state_dict())
    run.model(a_batch(run))
    after = run.method.target.state_dict()
    # Not its running statistics, which are its own.
    moved = [k for k in after if "running" not in k and "num_batches" not in k]
    momentum = run.config.method.model_dump()["momentum"]
    if run.config.method.model_dump().get("momentum_rises"):
        momentum = rising(momentum, 0.5)
    for k in moved:
        torch.testing.assert_close(after[k], before[k] + (1 - momentum), atol=1e-4, rtol=0)


def test_diagnosing_does_not_change_the_loss(system: str) -> None:
    a, b = ready(system), ready(system)
    assert a.model(a_batch(a)).loss.equal(b.model(a_batch(b, diagnose=False)).loss)


def test_zero_neighbours_is_the_plain_method(system: str) -> None:
    if "relabel" not in SYSTEMS[system]:
        pytest.skip("relabels nothing")
    a = ready(system, method={"num_neighbours": 0})
    b = ready(system, method={"relabel": "none"})
    for seed in range(3):
        assert a_step(a, a_batch(a, seed)) == pytest.approx(a_step(b, a_batch(b, seed)), rel=1e-5)


def test_the_bank_never_holds_the_batchs_own_keys_when_it_is_scored() -> None:
    run = build(tiny("ascl"))
    before = run.method.bank.features.clone()
    output = run.model(a_batch(run))
    assert run.method.bank.features.equal(before)
    run.method.after_backward(output)
    keys, labels = output.remember
    assert run.method.bank.features[:16].equal(keys)
    assert run.method.bank.classes[:16].equal(labels)


def test_label_maths_is_float32_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    import ascl.relabel

    dtypes: list[Any] = []
    relabel = ascl.relabel.relabel

    def watch(similarity: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        dtypes.append(similarity.dtype)
        return relabel(similarity, *args, **kwargs)

    monkeypatch.setattr(ascl.relabel, "relabel", watch)
    for system in ("ascl", "byol_ascl"):
        run = build(tiny(system))
        with torch.autocast("cpu", torch.bfloat16):
            output = run.model(a_batch(run))
        assert output.loss.dtype == torch.float32
    assert dtypes == [torch.float32] * 2


def test_relabelling_in_the_batch_is_the_appendix_as_loops() -> None:
    """BYOL + ASCL: own key 1, others min(1, c·K·q), diagonal left out, c over log(b − 1)."""
    import math

    run = build(tiny("byol_ascl", method={"num_neighbours": 3}))
    g = torch.Generator().manual_seed(5)
    keys = torch.nn.functional.normalize(torch.randn(16, 8, generator=g), dim=1)
    weights, _ = run.method.weights(keys, a_batch(run))
    for i in range(16):
        d = {j: float(keys[i] @ keys[j]) for j in range(16) if j != i}
        z = sum(math.exp(x / 0.05) for x in d.values())
        q = {j: math.exp(x / 0.05) / z for j, x in d.items()}
        c = 1 - sum(-p * math.log(p) for p in q.values()) / math.log(15)
        y = {i: 1.0} | {j: min(1, c * 3 * p) for j, p in q.items()}
        for j in range(16):
            assert weights[i, j].item() == pytest.approx(y[j] / sum(y.values()), rel=1e-4, abs=1e-7)


def test_byol_pairs_query_i_with_key_j() -> None:
    run = build(tiny("byol"))
    weights, _ = run.method.weights(torch.eye(16, 8), a_batch(run))
    assert weights.equal(torch.eye(16))
