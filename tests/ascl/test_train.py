"""Laws of a run: reproducible, paired across arms, resumable to the bit, and honest about NaN."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ascl.checkpoint import restore, save
from ascl.config import RunConfig
from ascl.data import Data, load_data
from ascl.datasets import Images
from ascl.train import Diverged, EpochMetrics, Run, build, pick_device, train
from tests.conftest import steady, tiny


def trained(config: RunConfig) -> Run:
    run = build(config)
    for _ in train(run):
        pass
    return run


def numbers(metrics: EpochMetrics) -> EpochMetrics:
    """What must be equal: all but times and memory."""
    return replace(
        metrics, train_seconds=0, eval_seconds=0, images_per_second=0, peak_memory_gb=None
    )


def same_state(a: Run, b: Run) -> bool:
    left, right = a.method.state_dict(), b.method.state_dict()
    return left.keys() == right.keys() and all(left[k].equal(right[k]) for k in left)


@pytest.mark.slow  # that a restored run goes on to the bit says nearly as much
def test_a_run_is_reproducible_to_the_bit(trained_system: str) -> None:
    a, b = trained(tiny(trained_system)), trained(tiny(trained_system))
    assert same_state(a, b)
    assert [numbers(m) for m in a.history] == [numbers(m) for m in b.history]


def test_another_seed_is_another_run() -> None:
    assert not same_state(trained(tiny(epochs=1)), trained(tiny(epochs=1, seed=1)))


def test_a_restored_run_takes_the_same_next_steps(trained_system: str, tmp_path: Path) -> None:
    config = tiny(trained_system, epochs=3)
    whole = trained(config)
    first = build(config)
    next(iter(train(first)))
    save(first, tmp_path / "checkpoint.pt")
    second = build(config)
    torch.manual_seed(99)  # the global stream has no say
    torch.rand(17)
    restore(second, tmp_path / "checkpoint.pt")
    for _ in train(second):
        pass
    assert same_state(second, whole)
    assert [numbers(m) for m in second.history] == [numbers(m) for m in whole.history]
    left, right = second.optimiser.state_dict()["state"], whole.optimiser.state_dict()["state"]
    assert all(left[k]["momentum_buffer"].equal(right[k]["momentum_buffer"]) for k in left)


def test_a_restored_fp16_run_takes_the_same_next_steps(tmp_path: Path) -> None:
    config = tiny("ascl", epochs=2, runtime={"precision": "fp16"})
    whole = trained(config)
    first = build(config)
    next(iter(train(first)))
    save(first, tmp_path / "checkpoint.pt")
    second = build(config)
    restore(second, tmp_path / "checkpoint.pt")
    list(train(second))
    assert same_state(second, whole)
    assert second.scaler.state_dict() == whole.scaler.state_dict()


def test_unlabelled_images_are_trained_on_and_never_vote() -> None:
    # As STL-10: most of train has no class, the labelled part is the reference.
    labelled = load_data("shapes", "", train_size=80, holdout=0.2)
    assert isinstance(labelled.train, Images)
    classes = labelled.train.labels.clone()
    classes[20:] = -1
    known = Images(labelled.train.images[:20], classes[:20])
    data = Data(
        labelled.spec,
        Images(labelled.train.images, classes),
        known,
        labelled.test,
        labelled.scored,
    )
    run = build(tiny("ascl", eval={"probe": "cached", "probe_epochs": 2}), data=data)
    last = list(train(run))[-1]
    assert (run.method.state_dict()["bank.classes"] == -1).any()
    assert last.knn_top1 is not None
    assert last.probe_top1 is not None
    assert last.purity is None or 0 <= last.purity <= 1


def seen_by(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    run = build(config)
    seen: list[torch.Tensor] = []
    forward = run.method.forward

    def watch(batch: Any) -> Any:
        seen.extend(batch.views)
        return forward(batch)

    monkeypatch.setattr(run.method, "forward", watch)
    list(train(run))
    return seen


@pytest.mark.parametrize("other", ["moco", "hard", "byol_ascl"])
def test_arms_with_one_seed_see_the_same_images_in_the_same_views(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = seen_by(tiny("ascl", epochs=1), monkeypatch)
    b = seen_by(tiny(other, epochs=1), monkeypatch)
    assert all(x.equal(y) for x, y in zip(a, b, strict=True))


def test_arms_with_one_seed_start_from_the_same_weights() -> None:
    a = build(tiny("ascl", method={"target_temperature": 0.01}))
    b = build(tiny("ascl", method={"target_temperature": 0.1}))
    assert same_state(a, b)


def test_how_often_knn_is_measured_changes_no_weight() -> None:
    assert same_state(trained(tiny()), trained(tiny(eval={"knn_every": 2})))


def test_knn_comes_when_due_and_after_the_last_epoch() -> None:
    run = trained(tiny(epochs=5, eval={"knn_every": 2}))
    assert [m.knn_top1 is not None for m in run.history] == [False, True, False, True, True]


@pytest.mark.parametrize("probe", ["paper", "cached"])
def test_the_probe_comes_after_the_last_epoch(probe: str) -> None:
    run = trained(tiny(eval={"probe": probe, "probe_epochs": 2}))
    first, last = run.history
    assert first.probe_top1 is None
    assert last.probe_top1 is not None
    assert last.probe_best_top1 is not None
    assert last.probe_best_top1 >= last.probe_top1


def test_an_epoch_tells_the_peak_of_memory_so_far() -> None:
    first, last = trained(tiny()).history
    assert first.peak_memory_gb is not None and last.peak_memory_gb is not None
    assert 0.01 < first.peak_memory_gb <= last.peak_memory_gb < 100


def test_diagnostics_are_those_of_the_method() -> None:
    def told(system: str) -> set[str]:
        metrics = trained(tiny(system)).history[-1]
        names = ("confidence", "effective_neighbours", "purity", "neighbour_top1", "spread")
        return {name for name in names if getattr(metrics, name) is not None}

    assert told("moco") == told("byol") == {"spread"}
    hard = {"effective_neighbours", "purity", "neighbour_top1", "spread"}
    assert told("hard") == hard
    assert told("ascl") == told("ahcl") == told("byol_ascl") == hard | {"confidence"}


def test_diagnostics_change_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    often = trained(tiny("ascl"))
    monkeypatch.setattr("ascl.train.DIAGNOSE_EVERY", 10**9)
    assert same_state(often, trained(tiny("ascl")))


def test_classes_change_no_weight() -> None:
    run, blind = build(tiny("ascl")), build(tiny("ascl"))
    blind.data.train.labels.fill_(3)
    for r in (run, blind):
        list(train(r))
    features = [k for k in run.method.state_dict() if k != "bank.classes"]
    assert all(run.method.state_dict()[k].equal(blind.method.state_dict()[k]) for k in features)


def test_a_loss_that_is_no_number_ends_the_run_and_says_where() -> None:
    run = build(tiny("ascl", optim={"lr": 1e30}))
    with pytest.raises(Diverged, match=r"became nan at step \d of epoch 1 \(losses before: ") as at:
        list(train(run))
    assert all(math.isfinite(x) for x in at.value.losses)
    assert run.history == []


def test_weights_that_the_last_step_broke_end_the_run_before_they_are_saved() -> None:
    run = build(tiny("ascl", epochs=1, batch_size=64))
    weight = next(run.method.parameters())
    run.optimiser.register_step_post_hook(lambda *_: weight.data.fill_(math.inf))
    with pytest.raises(Diverged, match=r"the weights became infinite at step 1 of epoch 1"):
        list(train(run))


def test_gradients_are_clipped_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def watch(parameters: Any, norm: float) -> torch.Tensor:
        calls.append(norm)
        return clip(parameters, norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watch)
    trained(tiny(epochs=1))
    assert not calls
    trained(tiny(epochs=1, optim={"clip_norm": 0.5}))
    assert set(calls) == {0.5}


@pytest.mark.slow  # the contract suite has a step of each system in bf16
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_close_to_float32(trained_system: str, precision: str) -> None:
    full = trained(steady(trained_system, epochs=1)).history[-1].loss
    config = steady(trained_system, epochs=1, runtime={"precision": precision})
    half = trained(config).history[-1].loss
    assert half == pytest.approx(full, rel=0.05, abs=0.05)  # SimSiam's begins near 0


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_micro_batches_change_half_precision_only_by_its_rounding(precision: str) -> None:
    whole, parts = (
        trained(tiny(epochs=1, runtime={"precision": precision, "micro_batches": n}))
        for n in (1, 2)
    )
    assert parts.history[-1].loss == pytest.approx(whole.history[-1].loss, rel=0.01)
    assert parts.scaler.state_dict() == whole.scaler.state_dict()


def test_a_run_may_go_on_in_micro_batches(tmp_path: Path) -> None:
    first = build(tiny())
    next(iter(train(first)))
    save(first, tmp_path / "checkpoint.pt")
    second = build(tiny(runtime={"micro_batches": 2}))
    assert restore(second, tmp_path / "checkpoint.pt")
    assert same_state(first, second)
    for run in (first, second):
        list(train(run))
    assert second.history[-1].loss == pytest.approx(first.history[-1].loss, rel=1e-4)


def test_memory_format_changes_the_numbers_only_by_rounding() -> None:
    last = trained(tiny(epochs=1)).history[-1].loss
    first = trained(tiny(epochs=1, runtime={"channels_last": False})).history[-1].loss
    assert first == pytest.approx(last, rel=1e-3)


@pytest.mark.slow
def test_a_compiled_encoder_gives_the_same_losses() -> None:
    plain = trained(tiny(epochs=1)).history[-1].loss
    compiled = trained(tiny(epochs=1, runtime={"compile": True})).history[-1].loss
    assert compiled == pytest.approx(plain, rel=1e-3)


def test_a_batch_larger_than_the_data_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match="got batch_size=10240, 10000 training images"):
        build(tiny(batch_size=10240, data={"train_size": None, "holdout": 0.0}))


def test_a_device_that_is_not_there_gets_a_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"a device of this machine, got 'cuda' .*try auto or cpu"):
        pick_device("cuda")
    for name in ("gpu", "meta"):
        with pytest.raises(ValueError, match=f"got '{name}'"):
            pick_device(name)
    assert pick_device("auto").type == "cpu"


def test_the_holdout_is_what_is_scored() -> None:
    run = build(tiny())
    assert run.data.scored == "holdout"
    assert (len(run.data.train), len(run.data.test)) == (64, 16)
    assert build(tiny(data={"holdout": 0.0})).data.scored == "test"
