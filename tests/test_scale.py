"""What docs/scale.md is computed from: counts of a step, and the model of time on top of them."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ascl import batches, evaluate
from ascl.batches import Pixels
from ascl.datasets import Images
from ascl.evaluate import features, knn_top1, own_features, own_labels
from benchmarks.counting import Step, Witness, as_one_of, count_forward, count_step
from benchmarks.gpu_model import (
    Machine,
    device_bytes,
    evaluation,
    knn_bytes,
    seconds_per_step,
    sent,
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
    """`ALONE` as one of so many ranks has it."""
    sums = {"gathered": 10**8, "reduced": 10**8} if workers > 1 else {}
    return replace(ALONE, images=256 // workers, flops=ALONE.flops // workers, **sums)


@cache
def step(system: str, workers: int = 1, micro_batches: int = 1) -> Step:
    config = tiny(system, runtime={"micro_batches": micro_batches})
    return count_step(config, workers=workers)


def seconds(counted: Step, workers: int, machine: Machine = GPU, load: float = 0.0) -> float:
    return seconds_per_step(counted, workers, machine, precision="fp32", load=load)


# ---------------------------------------------------------------- counts


def test_counting_without_numbers_is_counting_with_them() -> None:
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


def test_micro_batches_pay_in_time_for_memory() -> None:
    whole, parts = step("simclr"), step("simclr", micro_batches=2)
    assert parts.peak < whole.peak / 2
    assert whole.flops < parts.flops < 1.4 * whole.flops


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize("call", [0.0, 1e-3])
def test_more_gpus_never_take_longer_where_sending_costs_nothing(call: float) -> None:
    free = replace(GPU, within=ENDLESS, between=ENDLESS, call=call)
    times = [seconds(shared(n), n, free) for n in (1, 2, 4, 8, 16, 32)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("bandwidth", [1e6, 1e9, ENDLESS])
def test_device_hours_never_fall_with_more_gpus(bandwidth: float) -> None:
    machine = replace(GPU, within=bandwidth, between=bandwidth)
    costs = [n * seconds(shared(n), n, machine) for n in (1, 2, 4, 8, 16, 32)]
    assert all(less <= more * (1 + 1e-9) for less, more in itertools.pairwise(costs))


def test_one_gpu_sends_nothing_and_many_less_than_twice_their_gradients() -> None:
    gradients = replace(ALONE, reduced=1000)
    assert sent(gradients, 1) == 0
    assert sent(gradients, 2) == 1000
    assert sent(gradients, 1000) < 2000


def test_an_exchange_stays_a_share_within_a_machine_and_crowds_the_way_out_of_it() -> None:
    images = replace(ALONE, flops=0, calls=0, exchanged=8 * 10**9)
    assert sent(images, 8) == 7 * 10**9
    assert seconds(images, 1) == 0
    assert seconds(images, 8) == 0.7
    # Half of what each of 8 GPUs has goes to the other machine, all of it over one network.
    assert seconds(images, 16) == 32.0


def test_a_ring_over_two_machines_goes_at_the_pace_between_them() -> None:
    busy = replace(shared(8), flops=0, calls=0)
    assert seconds(busy, 16) > 9 * seconds(busy, 8)


def test_a_step_waits_for_the_slowest_of_device_host_and_loader() -> None:
    one = replace(ALONE, flops=2 * 10**12, calls=1000, images=10)
    assert seconds(one, 1, replace(GPU, call=1e-3)) == 2.0
    assert seconds(one, 1, replace(GPU, call=3e-3)) == 3.0
    assert seconds(one, 1, replace(GPU, call=1e-3), load=0.5) == 5.0


def test_a_device_holds_its_part_of_everything() -> None:
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

    with as_one_of(workers), Witness([pictures.images, pictures.labels]) as witness:
        knn_top1(
            *(own_features(encode, pictures, pixels), own_labels(pictures, pixels)),
            *(features(encode, test, pixels), test.labels),
            num_classes=10,
            k=4,
            temperature=0.1,
        )
    assert witness.peak == pytest.approx(knn_bytes(1024, 64, 2048, workers), rel=0.1)


def test_evaluation_costs_by_how_often_and_how() -> None:
    def images(**rules: Any) -> int:
        config = tiny("moco", epochs=10, eval=rules)
        return evaluation(config, forward=1).images

    once = 80 + 2000  # the training set, and shapes' test images
    assert images(knn_every=1) == 10 * once
    assert images(knn_every=4) == 3 * once  # after epochs 4 and 8, and the last
    assert images(knn_every=10, probe="cached") == 2 * once
    assert images(knn_every=10, probe="paper", probe_epochs=5) == once + 5 * 80 + 2000
