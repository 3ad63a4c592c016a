"""A model of what runs take of GPUs: what is counted of a step, at rates that are assumed here.

No GPU was there to be timed. Every assumption is a named constant: change it, and
`python -m benchmarks.scale` prints the tables of docs/scale.md anew.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ascl.config import RunConfig, Tree, merge
from ascl.datasets import dataset_spec
from benchmarks.counting import Step, count_forward, count_step, size_of

# ---------------------------------------------------------------- what is assumed

# Images per second of supervised ResNet-50 at 224 pixels on one GPU, in fp32 (TF32 on an A100) and
# in half precision, as NVIDIA published them: DeepLearningExamples, PyTorch/Classification/
# ConvNets/resnet50v1.5, README at 291f0d0. Times the FLOPs we count for that step, they are the
# FLOP/s that any step is taken to sustain.
PUBLISHED_SPEED = {"A100": (938, 2470), "V100": (367, 1200)}
CALL_SECONDS = 20e-6  # of the host for an operation: 18 at best, 21 in the median, on our CPU
WITHIN_NODE = 25e9  # bytes per second that a GPU sends to the next, of the same machine
BETWEEN_NODES = 3e9  # and of another
GPUS_PER_NODE = 8
LOAD_SECONDS = 3.7e-3  # of a core for two views of a JPEG: `python -m benchmarks imagenet`
LOAD_SECONDS_KEPT = 2.5e-3  # where pixels are kept (`ascl-sweep fetch --decode`)
CORES_PER_GPU = 8  # `resources.cpus_per_worker` of imagenet.yaml
ASHA_SPENDS = 1 / 3  # of a search's epochs: 28 to 37% in replayed curves
LLOYD_ROUNDS = 21  # of each k-means, `ascl.kmeans`: at most 20 after the first

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
BATCH_4096 = ("SimCLR", "SwAV", "NNCLR", "BYOL")  # on ImageNet


@dataclass(frozen=True)
class Machine:
    """What a model of time needs to know of the hardware."""

    name: str
    fp32: float  # FLOP/s that a step sustains
    half: float
    call: float = CALL_SECONDS
    within: float = WITHIN_NODE
    between: float = BETWEEN_NODES

    def rate(self, precision: str) -> float:
        return self.fp32 if precision == "fp32" else self.half

    def bandwidth(self, workers: int) -> float:
        """Of the slowest link in a ring of all ranks."""
        return self.within if workers <= GPUS_PER_NODE else self.between


# ---------------------------------------------------------------- the model


def sent(step: Step, workers: int) -> float:
    """Bytes that each rank sends in a step, all-gathers and sums going around in a ring."""
    return (step.gathered + step.exchanged + 2 * step.reduced) * (workers - 1) / workers


def seconds_to_send(step: Step, workers: int, machine: Machine) -> float:
    """Around the ring at the pace of its slowest link, and what is exchanged straight to its rank.

    The GPUs of a machine have one way out of it: a ring takes it once, an exchange once for each.
    """
    ring = sent(replace(step, exchanged=0), workers) / machine.bandwidth(workers)
    inside = step.exchanged * (workers - 1) / workers / machine.within
    elsewhere = max(0, workers - GPUS_PER_NODE) / workers
    outside = GPUS_PER_NODE * step.exchanged * elsewhere / machine.between
    return ring + max(inside, outside)


def seconds_per_step(
    step: Step, workers: int, machine: Machine, *, precision: str, load: float = 0.0
) -> float:
    """The slowest of computing, issuing and loading, which go on at once, and then sending.

    `load` are seconds per image of this rank's loader.
    """
    computed = step.flops / machine.rate(precision)
    issued = step.calls * machine.call
    busy = max(computed, issued, step.images * load)
    return busy + seconds_to_send(step, workers, machine)


def device_bytes(step: Step, workers: int, pictures: int) -> int:
    """Of one GPU: images, weights, SGD's momentum, copy, bank, views, and a step at its peak."""
    buckets = step.weights if workers > 1 else 0  # DDP's own copy of the gradients
    held = 2 * step.weights + buckets + step.copy + step.bank + step.views
    return pictures + held + step.peak


def knn_bytes(images: int, queries: int, dim: int, workers: int) -> float:
    """Of one GPU at the peak of an online kNN: its share of the bank, and queries as they meet."""
    gathered = queries + (queries / workers if workers > 1 else 0)
    return 4.0 * dim * (images / workers + gathered)


@dataclass(frozen=True)
class Evaluation:
    """What a run does beside its training steps."""

    images: int  # that pass through the encoder
    flops: float  # of that and of comparing features


def evaluation(config: RunConfig, forward: int) -> Evaluation:
    """Online kNN, the probe and clusterings of a whole run; `forward` are FLOPs per image."""
    method, size, rules = config.method, size_of(config), config.eval
    looks = -(-config.epochs // rules.knn_every)
    images = looks * (size.labelled + size.test)
    compared = looks * 2.0 * size.labelled * size.test * feature_dim(config)
    if rules.probe == "paper":
        images += rules.probe_epochs * size.labelled + size.test
    elif rules.probe == "cached":
        images += size.labelled + size.test
    if method.needs_labels:
        images += config.epochs * size.test
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
    """Of one run, on the clock."""

    train: float
    evaluate: float

    @property
    def total(self) -> float:
        return self.train + self.evaluate


def hours(config: RunConfig, workers: int, machine: Machine) -> Hours:
    """What a run takes on so many GPUs."""
    streams = dataset_spec(config.data.name).streams
    load = LOAD_SECONDS / CORES_PER_GPU if streams else 0.0
    step, precision = counted(config, workers), config.runtime.precision
    size = size_of(config)
    images = size.labelled if config.method.needs_labels else size.train
    steps = config.epochs * (images // config.batch_size)
    train = steps * seconds_per_step(step, workers, machine, precision=precision, load=load)
    rest = evaluation(config, counted_forward(config))
    spent = max(rest.flops / machine.rate(precision), rest.images * load) / workers
    return Hours(train / 3600, spent / 3600)


# ---------------------------------------------------------------- each thing counted once

_steps: dict[str, Step] = {}
_forwards: dict[str, int] = {}


def _essence(tree: Any) -> Any:
    """A config without what no count depends on: real numbers, seeds, schedules."""
    if not isinstance(tree, dict):
        return tree
    idle = ("preset", "seed", "epochs", "optim", "eval", "num_neighbours")
    return {k: _essence(v) for k, v in tree.items() if k not in idle and not isinstance(v, float)}


def counted(config: RunConfig, workers: int) -> Step:
    key = json.dumps([workers, _essence(config.model_dump(mode="json"))])
    if key not in _steps:
        _steps[key] = count_step(config, workers=workers)
    return _steps[key]


def counted_forward(config: RunConfig) -> int:
    sizes = config.encoder
    key = json.dumps([config.data.name, sizes.name, sizes.width, sizes.stem, sizes.max_pool])
    if key not in _forwards:
        _forwards[key] = count_forward(config)
    return _forwards[key]


def machines() -> list[Machine]:
    step = counted(paper("supervised", "imagenet"), 8)
    flops = step.flops / step.images
    return [
        Machine(name, fp32 * flops, half * flops) for name, (fp32, half) in PUBLISHED_SPEED.items()
    ]


def paper(system: str, data: str, **changes: Any) -> RunConfig:
    """A system of the paper as its sweep files have it; on ImageNet in bf16, for 8 GPUs."""
    tree: Tree = {"data": {"name": data}, "method": dict(SYSTEMS[system])}
    if data == "imagenet":
        tree |= {"encoder": {"bn_splits": 8}, "runtime": {"precision": "bf16"}}
        tree |= {"batch_size": 4096 if system in BATCH_4096 else 256}
        tree |= {"epochs": 120} if system == "supervised" else {}
    return RunConfig.of(merge(tree, changes))


def pictures(config: RunConfig) -> int:
    """Bytes of a run's dataset on the training device; nothing where it streams from disk."""
    spec, size = dataset_spec(config.data.name), size_of(config)
    if spec.streams or spec.image_size is None:
        return 0
    images = size.labelled + size.test
    if size.labelled < size.train and not config.method.needs_labels:
        images += size.train  # or else all that is trained on is labelled, and the same tensor
    return 3 * spec.image_size**2 * images


def feature_dim(config: RunConfig) -> int:
    return config.encoder.width * 8 * (4 if config.encoder.name == "resnet50" else 1)
