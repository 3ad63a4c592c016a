"""One contract for every method, found by name, and for every system of the ablations."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ascl.methods
import ascl.relabel
from ascl.config import RunConfig, merge
from ascl.distributed import plan_shuffle
from ascl.losses import unit
from ascl.methods import load_method, method_label, method_names, method_paper
from ascl.methods.base import Batch
from ascl.models.batch_norm import SplitBatchNorm
from ascl.models.memory_bank import SlotMemory
from ascl.models.momentum_encoder import raise_momentum
from ascl.train import Run, begin_epoch, build, train
from tests.conftest import SYSTEMS, TINY, tiny


def ready(system: str, **changes: Any) -> Run:
    """A run whose method is in the state of the middle of an epoch."""
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
        shuffle=plan_shuffle(torch.randperm(n, generator=g), 0, 1),
        diagnose=diagnose,
        progress=0.5,
        draws=run.method.draws(g),
    )


def a_step(run: Run, batch: Batch) -> float:
    run.optimizer.zero_grad()
    output = run.model(batch)
    output.loss.backward()
    run.optimizer.step()
    return float(output.loss.detach())


def test_every_method_is_among_the_systems_tested() -> None:
    assert {str(s["name"]) for s in SYSTEMS.values()} == set(method_names())


def test_a_method_names_its_paper() -> None:
    for name in method_names():
        paper = method_paper(name)
        assert name == "supervised" or (paper and re.fullmatch(r"arXiv:\d{4}\.\d{5}", paper)), name


NEW = """
from typing import Literal
from ascl.methods.supervised import Supervised, build, defaults
from ascl.sections import Cost, MethodConfig

LABEL = "Mine"


class Config(MethodConfig):
    name: Literal["mine"] = "mine"
    needs_labels = True

    def cost(self):
        return Cost(("query",), backprops=1, ema=False)
"""


def test_one_file_adds_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(NEW)
    monkeypatch.setattr(ascl.methods, "__path__", [*ascl.methods.__path__, str(tmp_path)])
    assert "mine" in method_names() and method_label("mine") == "Mine"
    config = RunConfig.of(merge(TINY, {"epochs": 1, "method": {"name": "mine"}}))
    (metrics,) = train(build(config))
    assert metrics.test_top1 is not None


def test_method_states_its_cost() -> None:
    for name in method_names():
        config = load_method(name).config()
        assert config.name == name
        assert config.cost().views
        assert config.cost().backprops in (1, 2)


def test_momentum_encoder_exists_if_the_cost_states_one(system: str) -> None:
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


def test_momentum_encoder_updates_before_the_keys_are_computed(system: str) -> None:
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
        momentum = raise_momentum(momentum, 0.5)
    for k in moved:
        torch.testing.assert_close(after[k], before[k] + (1 - momentum), atol=1e-4, rtol=0)


def test_diagnosing_does_not_change_the_loss(system: str) -> None:
    a, b = ready(system), ready(system)
    assert a.model(a_batch(a)).loss.equal(b.model(a_batch(b, diagnose=False)).loss)


def test_zero_neighbors_is_the_plain_method(system: str) -> None:
    if "relabel" not in SYSTEMS[system]:
        pytest.skip("relabels nothing")
    a = ready(system, method={"num_neighbours": 0})
    b = ready(system, method={"relabel": "none"})
    for seed in range(3):
        assert a_step(a, a_batch(a, seed)) == pytest.approx(a_step(b, a_batch(b, seed)), rel=1e-5)


def test_bank_stores_the_batch_after_the_step(system: str) -> None:
    run = ready(system)
    bank = getattr(run.method, "bank", None)
    if bank is None:
        pytest.skip("no bank")
    before = bank.features.clone()
    output = run.model(a_batch(run))
    assert bank.features.equal(before)
    run.method.after_backward(output)
    assert not bank.features.requires_grad
    *own, features, classes = output.remember
    if isinstance(bank, SlotMemory):
        features = unit((before[own[0]] + features) / 2)  # slot_momentum is 0.5
    places = own[0] if own else slice(len(features))
    torch.testing.assert_close(bank.features[places], features)
    assert bank.classes[places].equal(classes)


@pytest.mark.parametrize("method", ["moco", "byol"])
@pytest.mark.parametrize("relabel", ["none", "hard", "ascl"])
def test_symmetric_loss_is_the_mean_of_both_passes_and_invariant_to_swapped_views(
    method: str, relabel: str
) -> None:
    def losses(symmetric: bool) -> list[float]:
        run = ready(method, method={"relabel": relabel, "symmetric": symmetric})
        batch = a_batch(run)
        swapped = replace(batch, views=batch.views[::-1])
        return [copy.deepcopy(run.model)(b).loss.item() for b in (batch, swapped)]

    one_way, both = losses(False), losses(True)
    assert both == pytest.approx([sum(one_way) / 2] * 2, rel=1e-6)
    assert one_way[0] != pytest.approx(one_way[1], rel=1e-4)


@pytest.mark.parametrize("symmetric", ["moco_symmetric", "byol_full"])
def test_both_passes_have_a_gradient_and_cost_two_backprops(symmetric: str) -> None:
    run = ready(symmetric)
    batch = a_batch(run)
    weight = next(iter(run.method.online.parameters()))
    both = torch.autograd.grad(run.model(batch).loss, weight)[0]
    ways = [
        torch.autograd.grad(run.method.one_pass(*views, batch).loss, weight)[0]
        for views in (batch.views, batch.views[::-1])
    ]
    assert all(way.abs().sum() > 0 for way in ways)
    torch.testing.assert_close(both, sum(ways) / 2)
    assert run.config.method.cost().backprops == 2


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name.endswith("ascl")])
def test_labels_are_float32_under_autocast_and_have_no_gradient(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    relabel = ascl.relabel.relabel

    def watch(similarity: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(similarity)
        return relabel(similarity, *args, **kwargs)

    monkeypatch.setattr(ascl.relabel, "relabel", watch)
    run = build(tiny(system))
    with torch.autocast("cpu", torch.bfloat16):
        output = run.model(a_batch(run))
    assert output.loss.dtype == torch.float32
    assert seen and all(each.dtype == torch.float32 for each in seen)
    assert not any(each.requires_grad for each in (*seen, *output.diagnostics.values()))


def test_relabeling_within_the_batch_is_the_appendix_as_loops() -> None:
    """BYOL + ASCL: own key 1, others min(1, c·K·q), diagonal excluded, c over log(b − 1)."""
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
