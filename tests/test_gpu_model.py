"""Tests of the counts and the time model behind docs/scale.md."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ascl.data import loader as batches
from ascl.data.base import Images
from ascl.data.loader import Pixels
from ascl.eval import knn as evaluate
from ascl.eval.extract import extract_features, extract_own_features, own_labels
from ascl.eval.knn import knn_top1
from ascl.train import build, train
from benchmarks.counting import (
    OperationCounter,
    Step,
    count_forward,
    count_step,
    fake_process_group,
)
from benchmarks.gpu_model import (
    Machine,
    bytes_sent,
    device_bytes,
    evaluation,
    knn_bytes,
    seconds_per_step,
)
from tests.conftest import tiny

ENDLESS = float("inf")
GPU = Machine("a GPU", fp32=1e12, half=4e12, call=1e-5, within=1e10, between=1e9)
ALONE = Step(
    **{"images": 256, "flops": 10**12, "calls": 1000, "saved": 10**9, "peak": 2 * 10**9},
    **{"gathered": 0, "exchanged": 0, "reduced": 0},
    **{"weights": 10**8, "copy": 10**8, "bank": 10**7, "views": 10**7},
)


def shared(workers: int) -> Step:
    """Return the counts of `ALONE` for one of `workers` ranks."""
    sums = {"gathered": 10**8, "reduced": 10**8} if workers > 1 else {}
    return replace(ALONE, images=256 // workers, flops=ALONE.flops // workers, **sums)


@cache
def step(system: str, workers: int = 1, micro_batches: int = 1) -> Step:
    config = tiny(system, runtime={"micro_batches": micro_batches})
    return count_step(config, workers=workers)


def seconds(counted: Step, workers: int, machine: Machine = GPU, load: float = 0.0) -> float:
    return seconds_per_step(counted, workers, machine, precision="fp32", load=load)


# ---------------------------------------------------------------- counts


def test_counts_on_fake_tensors_equal_counts_on_real_tensors() -> None:
    real, fake = count_step(tiny("moco"), workers=2, arithmetic=True), step("moco", workers=2)
    assert fake.peak == pytest.approx(real.peak, rel=0.01)
    assert replace(fake, peak=0) == replace(real, peak=0)


def test_pytorch_counts_the_same_flops_and_a_gradient_takes_twice_the_forward_pass() -> None:
    config = tiny("supervised")
    with FlopCounterMode(display=False) as flops:
        forward = count_forward(config)
    assert forward == flops.get_total_flops()
    whole = step("supervised")
    assert 2.8 < whole.flops / whole.images / forward < 3  # no image needs a gradient


def test_two_gradients_take_more_than_one() -> None:
    one, two = step("moco"), step("simclr")
    assert one.flops < two.flops and one.saved < two.saved


def test_ranks_share_the_work_and_send_each_key_image_once() -> None:
    alone, half = step("moco"), step("moco", workers=2)
    assert 2 * half.flops == alone.flops and 2 * half.images == alone.images
    assert half.exchanged == half.views / 2  # the other half are queries
    assert 0 < half.gathered < half.exchanged
    assert half.reduced == half.weights == alone.weights
    assert alone.gathered == alone.exchanged == alone.reduced == 0


@pytest.mark.slow
def test_micro_batches_trade_flops_for_memory() -> None:
    whole, parts = step("simclr"), step("simclr", micro_batches=2)
    assert parts.peak < whole.peak / 2
    assert whole.flops < parts.flops < 1.4 * whole.flops


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize("call", [0.0, 1e-3])
def test_more_gpus_are_never_slower_if_communication_is_free(call: float) -> None:
    free = replace(GPU, within=ENDLESS, between=ENDLESS, call=call)
    times = [seconds(shared(n), n, free) for n in (1, 2, 4, 8, 16, 32)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("bandwidth", [1e6, 1e9, ENDLESS])
def test_device_hours_never_fall_with_more_gpus(bandwidth: float) -> None:
    machine = replace(GPU, within=bandwidth, between=bandwidth)
    costs = [n * seconds(shared(n), n, machine) for n in (1, 2, 4, 8, 16, 32)]
    assert all(less <= more * (1 + 1e-9) for less, more in itertools.pairwise(costs))


def test_one_gpu_sends_nothing_and_many_send_less_than_twice_their_gradients() -> None:
    gradients = replace(ALONE, reduced=1000)
    assert bytes_sent(gradients, 1) == 0
    assert bytes_sent(gradients, 2) == 1000
    assert bytes_sent(gradients, 1000) < 2000


def test_exchanges_between_machines_share_one_network_link() -> None:
    images = replace(ALONE, flops=0, calls=0, exchanged=8 * 10**9)
    assert bytes_sent(images, 8) == 7 * 10**9
    assert seconds(images, 1) == 0
    assert seconds(images, 8) == 0.7
    # Each of 8 GPUs sends half of its data to the other machine, over one shared network link.
    assert seconds(images, 16) == 32.0


def test_a_ring_over_two_machines_runs_at_the_speed_of_their_network() -> None:
    busy = replace(shared(8), flops=0, calls=0)
    assert seconds(busy, 16) > 9 * seconds(busy, 8)


def test_a_step_waits_for_the_slowest_of_device_host_and_loader() -> None:
    one = replace(ALONE, flops=2 * 10**12, calls=1000, images=10)
    assert seconds(one, 1, replace(GPU, call=1e-3)) == 2.0
    assert seconds(one, 1, replace(GPU, call=3e-3)) == 3.0
    assert seconds(one, 1, replace(GPU, call=1e-3), load=0.5) == 5.0


def test_device_memory_is_the_sum_of_its_parts() -> None:
    constant = 2 * ALONE.weights + ALONE.copy + ALONE.bank + ALONE.views
    assert device_bytes(ALONE, 1, pictures=7) == constant + ALONE.peak + 7
    assert device_bytes(ALONE, 2, pictures=7) == constant + ALONE.weights + ALONE.peak + 7


@pytest.mark.parametrize("workers", [1, 4])
def test_online_knn_holds_its_share_of_the_bank_once(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "EVAL_BATCH", 16)  # small beside a share, as on ImageNet
    monkeypatch.setattr(evaluate, "KNN_CHUNK_BYTES", 2**13)
    pictures = Images(torch.zeros(1024, 3, 8, 8, dtype=torch.uint8), torch.zeros(1024).long())
    test = Images(pictures.images[:64], pictures.labels[:64])
    grey = torch.full((3,), 0.5)
    pixels = Pixels(torch.device("cpu"), 8, grey, grey)

    def encode(images: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(images), 2048)

    existing = [pictures.images, pictures.labels]
    with fake_process_group(workers), OperationCounter(existing) as counter:
        knn_top1(
            *(extract_own_features(encode, pictures, pixels), own_labels(pictures, pixels)),
            *(extract_features(encode, test, pixels), test.labels),
            num_classes=10,
            k=4,
            temperature=0.1,
        )
    assert counter.peak == pytest.approx(knn_bytes(1024, 64, 2048, workers), rel=0.1)


def test_evaluation_cost_depends_on_frequency_and_probe() -> None:
    def images(**rules: Any) -> int:
        config = tiny("moco", epochs=10, eval=rules)
        return evaluation(config, forward=1).images

    once = 80 + 2000  # the training set, and shapes' test images
    assert images(knn_every=1) == 10 * once
    assert images(knn_every=4) == 3 * once  # after epochs 4 and 8, and the last
    assert images(knn_every=10, probe="cached") == once
    assert images(knn_every=10, probe="paper", probe_epochs=5) == once + 5 * 80


@pytest.mark.parametrize(
    ("system", "rules"),
    [
        ("moco", {"probe": "cached"}),
        ("moco", {"probe": "paper"}),
        ("supervised", {"knn_every": 2, "probe": "cached"}),
    ],
)
def test_evaluation_encodes_as_many_images_as_the_model_counts(
    system: str, rules: dict[str, Any]
) -> None:
    run = build(
        tiny(
            system,
            epochs=3,
            data={"holdout": 0.0},
            encoder={"stem": "large"},
            eval={"probe_epochs": 2, **rules},
        )
    )
    encoded = 0

    def count(encoder: torch.nn.Module, args: tuple[torch.Tensor]) -> None:
        nonlocal encoded
        if not encoder.training:
            encoded += len(args[0])

    run.method.encoder.register_forward_pre_hook(count)
    list(train(run))
    assert encoded == evaluation(run.config, forward=1).images
