"""Model of the GPU time and memory of a run: the counts of a step divided by assumed rates.

Nothing was measured on a GPU. Every assumption is a named constant: edit it and run
`python -m benchmarks.scale` to regenerate the tables of docs/scale.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ascl.config import RunConfig, Tree, merge
from ascl.data.base import dataset_spec
from benchmarks.counting import Step, count_forward, count_step, size_of

# ---------------------------------------------------------------- assumptions

# Images per second of supervised ResNet-50 at 224 pixels on one GPU, in fp32 (TF32 on an A100) and
# in half precision, as published by NVIDIA: DeepLearningExamples, PyTorch/Classification/ConvNets/
# resnet50v1.5, README at 291f0d0. These speeds times the counted FLOPs per image give the sustained
# FLOP/s, which the model assumes for every step.
PUBLISHED_SPEED = {"A100": (938, 2470), "V100": (367, 1200)}
CALL_SECONDS = 20e-6  # host time per operation; measured on our CPU: minimum 18 µs, median 21 µs
WITHIN_NODE = 25e9  # bytes per second from one GPU to another of the same machine
BETWEEN_NODES = 3e9  # bytes per second between two machines
GPUS_PER_NODE = 8
LOAD_SECONDS = 3.7e-3  # core time for two views of a JPEG: `python -m benchmarks imagenet`
LOAD_SECONDS_KEPT = 2.5e-3  # with cached pixels (`ascl-sweep fetch --decode`)
CORES_PER_GPU = 8  # `resources.cpus_per_worker` in imagenet.yaml
ASHA_SPENDS = 1 / 3  # share of a search's epochs that ASHA runs: 28 to 37% on replayed curves
LLOYD_ROUNDS = 21  # most iterations of a k-means in `ascl.eval.clustering`: 1 + 20

SYSTEMS: Mapping[str, Tree] = {
    "supervised": {"name": "supervised"},
    "MoCo": {"name": "moco"},
    "ASCL": {"name": "moco", "relabel": "ascl"},
    "ReSSL": {"name": "ressl"},
    "CLSA": {"name": "clsa"},
    "SimSiam": {"name": "simsiam"},
    "SimCLR": {"name": "simclr"},
    "SwAV": {"name": "swav"},
    "NNCLR": {"name": "nnclr"},
    "BYOL": {"name": "byol", "symmetric": True},
}
BATCH_4096 = ("SimCLR", "SwAV", "NNCLR", "BYOL")  # systems with batch 4096 on ImageNet


@dataclass(frozen=True)
class Machine:
    """Hardware constants of the time model."""

    name: str
    fp32: float  # sustained FLOP/s in fp32
    half: float  # sustained FLOP/s in half precision
    call: float = CALL_SECONDS
    within: float = WITHIN_NODE
    between: float = BETWEEN_NODES

    def rate(self, precision: str) -> float:
        return self.fp32 if precision == "fp32" else self.half

    def bandwidth(self, workers: int) -> float:
        """Return the bandwidth of the slowest link in a ring of all ranks."""
        return self.within if workers <= GPUS_PER_NODE else self.between


# ---------------------------------------------------------------- the model


def bytes_sent(step: Step, workers: int) -> float:
    """Return the bytes that each rank sends in a step, with ring all-gathers and all-reduces."""
    return (step.gathered + step.exchanged + 2 * step.reduced) * (workers - 1) / workers


def seconds_to_send(step: Step, workers: int, machine: Machine) -> float:
    """Return the communication time of a step.

    Ring operations run at the speed of the slowest link. Exchanged images are sent directly to
    their rank. The GPUs of a machine share one network link: a ring crosses it once, but an
    exchange sends the data of every GPU over it.
    """
    ring = bytes_sent(replace(step, exchanged=0), workers) / machine.bandwidth(workers)
    inside = step.exchanged * (workers - 1) / workers / machine.within
    elsewhere = max(0, workers - GPUS_PER_NODE) / workers
    outside = GPUS_PER_NODE * step.exchanged * elsewhere / machine.between
    return ring + max(inside, outside)


def seconds_per_step(
    step: Step, workers: int, machine: Machine, *, precision: str, load: float = 0.0
) -> float:
    """Return the maximum of computing, issuing and loading time, plus communication time.

    Computing, issuing and loading overlap; communication does not overlap with them.

    Args:
        step: Counts of one rank's step.
        workers: Number of ranks.
        machine: Hardware constants.
        precision: "fp32", or a half precision.
        load: Seconds per image of this rank's data loader.
    """
    computed = step.flops / machine.rate(precision)
    issued = step.calls * machine.call
    busy = max(computed, issued, step.images * load)
    return busy + seconds_to_send(step, workers, machine)


def device_bytes(step: Step, workers: int, pictures: int) -> int:
    """Return the peak memory of one GPU: dataset, weights, momentum, copy, bank, views and step."""
    buckets = step.weights if workers > 1 else 0  # DDP keeps a second copy of the gradients
    held = 2 * step.weights + buckets + step.copy + step.bank + step.views
    return pictures + held + step.peak


def knn_bytes(images: int, queries: int, dim: int, workers: int) -> float:
    """Return the peak memory of one GPU in online kNN: its share of the bank, and all queries."""
    gathered = queries + (queries / workers if workers > 1 else 0)
    return 4.0 * dim * (images / workers + gathered)


@dataclass(frozen=True)
class Evaluation:
    """Counts of a run's evaluation, outside its training steps."""

    images: int  # images that pass through the encoder
    flops: float  # FLOPs of the encoder and of comparing features


def evaluation(config: RunConfig, forward: int) -> Evaluation:
    """Count online kNN, the probe and clusterings of a run, at `forward` FLOPs per image."""
    method, size, rules = config.method, size_of(config), config.eval
    knn_evaluations = -(-config.epochs // rules.knn_every)
    images = knn_evaluations * (size.labeled + size.test)
    compared = knn_evaluations * 2.0 * size.labeled * size.test * feature_dim(config)
    # The classifier and the probes use the features of kNN in epochs that have one.
    if rules.probe == "paper":
        images += rules.probe_epochs * size.labeled
    if method.needs_labels:
        images += (config.epochs - knn_evaluations) * size.test
    clusters, start = 0, 0
    if method.name == "pcl":
        clusters, start = sum(method.granularities), method.instance_epochs  # type: ignore[attr-defined]
        images += (config.epochs - start) * size.train
    elif method.name == "localagg":
        clusters = method.num_clusterings * method.num_clusters  # type: ignore[attr-defined]
        start = method.instdisc_epochs  # type: ignore[attr-defined]
    lloyd = 2.0 * size.train * clusters * config.encoder.projector_dim * LLOYD_ROUNDS
    return Evaluation(images, images * forward + compared + (config.epochs - start) * lloyd)


@dataclass(frozen=True)
class Hours:
    """Wall-clock hours of one run."""

    train: float
    evaluate: float

    @property
    def total(self) -> float:
        return self.train + self.evaluate


def hours(config: RunConfig, workers: int, machine: Machine) -> Hours:
    """Return the modeled wall-clock hours of a run on `workers` GPUs."""
    streams = dataset_spec(config.data.name).streams
    load = LOAD_SECONDS / CORES_PER_GPU if streams else 0.0
    step, precision = cached_step(config, workers), config.runtime.precision
    size = size_of(config)
    images = size.labeled if config.method.needs_labels else size.train
    steps = config.epochs * (images // config.batch_size)
    train = steps * seconds_per_step(step, workers, machine, precision=precision, load=load)
    rest = evaluation(config, cached_forward(config))
    evaluating = max(rest.flops / machine.rate(precision), rest.images * load) / workers
    return Hours(train / 3600, evaluating / 3600)


# ---------------------------------------------------------------- cached counts

_steps: dict[str, Step] = {}
_forwards: dict[str, int] = {}


def _counted_part(tree: Any) -> Any:
    """Remove config entries that change no count: floats, seeds, schedules."""
    if not isinstance(tree, dict):
        return tree
    ignored = ("preset", "seed", "epochs", "optim", "eval", "num_neighbours")
    return {
        k: _counted_part(v)
        for k, v in tree.items()
        if k not in ignored and not isinstance(v, float)
    }


def cached_step(config: RunConfig, workers: int) -> Step:
    key = json.dumps([workers, _counted_part(config.model_dump(mode="json"))])
    if key not in _steps:
        _steps[key] = count_step(config, workers=workers)
    return _steps[key]


def cached_forward(config: RunConfig) -> int:
    sizes = config.encoder
    key = json.dumps([config.data.name, sizes.name, sizes.width, sizes.stem, sizes.max_pool])
    if key not in _forwards:
        _forwards[key] = count_forward(config)
    return _forwards[key]


def machines() -> list[Machine]:
    step = cached_step(paper("supervised", "imagenet"), 8)
    flops = step.flops / step.images
    return [
        Machine(name, fp32 * flops, half * flops) for name, (fp32, half) in PUBLISHED_SPEED.items()
    ]


def paper(system: str, data: str, **changes: Any) -> RunConfig:
    """Return the config of a system as in the paper's sweep files; on ImageNet bf16 and 8 GPUs."""
    tree: Tree = {"data": {"name": data}, "method": dict(SYSTEMS[system])}
    if data == "imagenet":
        tree |= {"encoder": {"bn_splits": 8}, "runtime": {"precision": "bf16"}}
        tree |= {"batch_size": 4096 if system in BATCH_4096 else 256}
        tree |= {"epochs": 120} if system == "supervised" else {}
    return RunConfig.of(merge(tree, changes))


def pictures(config: RunConfig) -> int:
    """Return the bytes of the dataset on the training device; 0 if it streams from disk."""
    spec, size = dataset_spec(config.data.name), size_of(config)
    if spec.streams or spec.image_size is None:
        return 0
    images = size.labeled + size.test
    if size.labeled < size.train and not config.method.needs_labels:
        images += size.train  # otherwise the labeled images are the training images, in one tensor
    return 3 * spec.image_size**2 * images


def feature_dim(config: RunConfig) -> int:
    return config.encoder.width * 8 * (4 if config.encoder.name == "resnet50" else 1)
