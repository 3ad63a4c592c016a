"""Laws of a run: reproducible, paired across arms, resumable to the bit, and stopped at NaN."""

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ascl import train as train_module
from ascl.checkpoint import restore, save
from ascl.config import RunConfig
from ascl.data import loader
from ascl.data.base import Images
from ascl.data.subset import Data, load_data
from ascl.errors import DivergedError
from ascl.eval import clustering, knn
from ascl.eval.extract import extract_features, extract_own_features, own_labels
from ascl.eval.linear_probe import ProbeState, linear_probe
from ascl.metrics import EpochMetrics
from ascl.optim import LARS
from ascl.train import Run, build, pick_device, train
from tests.conftest import steady, tiny


def trained(config: RunConfig) -> Run:
    run = build(config)
    for _ in train(run):
        pass
    return run


def numbers(metrics: EpochMetrics) -> EpochMetrics:
    """All values that must be equal: all but times and memory."""
    return replace(
        metrics, train_seconds=0, eval_seconds=0, images_per_second=0, peak_memory_gb=None
    )


def same_state(a: Run, b: Run) -> bool:
    left, right = a.method.state_dict(), b.method.state_dict()
    return left.keys() == right.keys() and all(left[k].equal(right[k]) for k in left)


def test_another_seed_is_another_run() -> None:
    assert not same_state(trained(tiny(epochs=1)), trained(tiny(epochs=1, seed=1)))


def check_that_a_restored_run_takes_the_same_next_steps(config: RunConfig, folder: Path) -> Run:
    """Save after the first epoch, restore into a new run, and compare with a run never saved.

    The three runs are built separately, so this also shows that a run is reproducible to the bit.
    """
    saved, second = build(config), build(config)
    next(iter(train(saved)))
    save(saved, folder / "checkpoint.pt")
    first = trained(config)
    torch.manual_seed(99)  # the global stream has no say
    torch.rand(17)
    restore(second, folder / "checkpoint.pt")
    list(train(second))
    assert same_state(second, first)
    assert [numbers(m) for m in second.history] == [numbers(m) for m in first.history]
    left, right = (run.optimizer.state_dict()["state"] for run in (second, first))
    assert left.keys() == right.keys() and right
    assert all(left[k]["momentum_buffer"].equal(right[k]["momentum_buffer"]) for k in right)
    assert second.scaler.state_dict() == first.scaler.state_dict()
    return second


def test_a_restored_run_takes_the_same_next_steps(trained_system: str, tmp_path: Path) -> None:
    check_that_a_restored_run_takes_the_same_next_steps(tiny(trained_system), tmp_path)


def test_a_restored_fp16_run_takes_the_same_next_steps(tmp_path: Path) -> None:
    config = tiny("ascl", runtime={"precision": "fp16"})
    check_that_a_restored_run_takes_the_same_next_steps(config, tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_restored_run_takes_the_same_next_steps_under_lars(
    precision: str, tmp_path: Path
) -> None:
    optim, runtime = {"name": "lars", "lr": 3.0}, {"precision": precision}
    config = tiny("ascl", optim=optim, runtime=runtime)
    run = check_that_a_restored_run_takes_the_same_next_steps(config, tmp_path)
    assert isinstance(run.optimizer, LARS)
    assert not same_state(run, build(config)), "it has learnt"


def test_unlabeled_images_are_trained_on_and_never_vote() -> None:
    # Like STL-10: most of train has no class, the labeled part is the reference.
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


def test_knn_interval_changes_no_weight() -> None:
    assert same_state(trained(tiny()), trained(tiny(eval={"knn_every": 2})))


def test_knn_runs_at_its_interval_and_after_the_last_epoch() -> None:
    run = trained(tiny(epochs=5, eval={"knn_every": 2}))
    assert [m.knn_top1 is not None for m in run.history] == [False, True, False, True, True]


@pytest.mark.parametrize("probe", ["paper", "cached"])
def test_probe_runs_after_the_last_epoch(probe: str) -> None:
    run = trained(tiny(eval={"probe": probe, "probe_epochs": 2}))
    first, last = run.history
    assert first.probe_top1 is None
    assert last.probe_top1 is not None
    assert last.probe_best_top1 is not None
    assert last.probe_best_top1 >= last.probe_top1


@pytest.mark.parametrize("probe", ["paper", "cached"])
def test_scores_equal_those_of_separate_passes(probe: str) -> None:
    run = trained(tiny(eval={"probe": probe, "probe_epochs": 3}))
    data, rules, last = run.data, run.config.eval, run.history[-1]
    classes = data.spec.num_classes

    def own() -> torch.Tensor:
        return extract_own_features(run.encode, data.reference, run.pixels)

    def test() -> tuple[torch.Tensor, torch.Tensor]:
        return extract_features(run.encode, data.test, run.pixels), data.test.labels

    run.model.eval()
    score = knn.knn_top1(
        *(own(), own_labels(data.reference, run.pixels), *test()),
        num_classes=classes,
        k=rules.knn_k,
        temperature=rules.knn_temperature,
    )
    *_, state = linear_probe(
        *(run.encode, data.reference, run.pixels, *test()),
        num_classes=classes,
        epochs=rules.probe_epochs,
        seed=run.config.seed,
        crop_min=run.config.augment.crop_min,
        cached=own() if probe == "cached" else None,
    )
    found = (last.knn_top1, last.probe_top1, last.probe_best_top1)
    assert found == (score, state.top1, state.best_top1)


@pytest.mark.parametrize(("probe", "kept"), [("paper", False), ("cached", True)])
def test_features_of_the_bank_are_freed_before_the_probe_of_the_paper(
    probe: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This probe trains for hours, and the features of ImageNet take 10 GB."""
    banks: list[weakref.ref[torch.Tensor]] = []

    def watch(bank: torch.Tensor, *args: Any, **options: Any) -> float:
        banks.append(weakref.ref(bank))
        return knn.knn_top1(bank, *args, **options)

    def check(*args: Any, **options: Any) -> Iterator[ProbeState]:
        assert [bank() is not None for bank in banks] == [kept]
        return linear_probe(*args, **options)

    monkeypatch.setattr(train_module, "knn_top1", watch)
    monkeypatch.setattr(train_module, "linear_probe", check)
    trained(tiny(epochs=1, eval={"probe": probe, "probe_epochs": 1}))
    assert len(banks) == 1


@pytest.mark.parametrize(
    ("system", "probe", "phases"),
    [
        ("pcl", "none", {"train", "the training set", "kNN"}),
        ("localagg", "none", {"train", "the training set", "kNN"}),
        ("ascl", "cached", {"train", "kNN", "probe"}),
        ("ascl", "paper", {"train", "kNN", "probe"}),
        ("supervised", "none", {"train", "kNN", "test"}),
    ],
)
def test_progress_is_reported_in_every_pass_over_the_images(
    monkeypatch: pytest.MonkeyPatch, system: str, probe: str, phases: set[str]
) -> None:
    """A run without progress for long is killed, and one pass over ImageNet may take that long."""
    events: list[str] = []

    def record(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def recorded(*args: Any, **options: Any) -> Any:
            events.append(f"no progress after {name}")
            return function(*args, **options)

        monkeypatch.setattr(module, name, recorded)

    record(train_module, "_encode")
    record(knn, "top_similar")
    record(clustering, "_find_nearest")
    monkeypatch.setattr(loader, "EVAL_BATCH", 8)
    monkeypatch.setattr(knn, "KNN_CHUNK_BYTES", 4 * 64 * 5)
    run = build(tiny(system, epochs=1, eval={"probe": probe, "probe_epochs": 2}))
    list(train(run, lambda phase, step, steps: events.append(phase)))
    assert phases == {event for event in events if "no progress" not in event}
    assert events.count("no progress after _encode") >= (10 if system != "localagg" else 5)
    assert [pair for pair in pairwise(events) if all("no progress" in one for one in pair)] == []


def test_epoch_reports_the_peak_memory_so_far() -> None:
    first, last = trained(tiny()).history
    assert first.peak_memory_gb is not None and last.peak_memory_gb is not None
    assert 0.01 < first.peak_memory_gb <= last.peak_memory_gb < 100


def test_diagnostics_are_those_of_the_method() -> None:
    def reported(system: str) -> set[str]:
        metrics = trained(tiny(system)).history[-1]
        names = ("confidence", "effective_neighbours", "purity", "neighbour_top1", "spread")
        return {name for name in names if getattr(metrics, name) is not None}

    assert reported("moco") == reported("byol") == {"spread"}
    hard = {"effective_neighbours", "purity", "neighbour_top1", "spread"}
    assert reported("hard") == hard
    assert reported("ascl") == reported("ahcl") == reported("byol_ascl") == hard | {"confidence"}


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


def test_non_finite_loss_stops_the_run_and_is_located() -> None:
    run = build(tiny("ascl", optim={"lr": 1e30}))
    with pytest.raises(
        DivergedError,
        match=r"diverged: the loss became nan at step \d of epoch 1 \(previous losses: ",
    ) as at:
        list(train(run))
    assert all(math.isfinite(x) for x in at.value.losses)
    assert run.history == []


def test_non_finite_weights_after_the_last_step_stop_the_run_before_saving() -> None:
    run = build(tiny("ascl", epochs=1, batch_size=64))
    weight = next(run.method.parameters())
    run.optimizer.register_step_post_hook(lambda *_: weight.data.fill_(math.inf))
    with pytest.raises(DivergedError, match=r"the weights became infinite at step 1 of epoch 1"):
        list(train(run))


def test_gradients_are_clipped_only_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_run_may_resume_with_micro_batches(tmp_path: Path) -> None:
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


def test_batch_larger_than_the_training_set_is_refused() -> None:
    with pytest.raises(ValueError, match="got batch_size=10240, 10000 training images"):
        build(tiny(batch_size=10240, data={"train_size": None, "holdout": 0.0}))


def test_missing_device_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"a device of this machine, got 'cuda' .*try auto or cpu"):
        pick_device("cuda")
    for name in ("gpu", "meta"):
        with pytest.raises(ValueError, match=f"got '{name}'"):
            pick_device(name)
    assert pick_device("auto").type == "cpu"


def test_holdout_is_scored() -> None:
    run = build(tiny())
    assert run.data.scored == "holdout"
    assert (len(run.data.train), len(run.data.test)) == (64, 16)
    assert build(tiny(data={"holdout": 0.0})).data.scored == "test"
