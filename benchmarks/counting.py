"""Counts of one training step: FLOPs, bytes held in memory, bytes sent between ranks.

`count_step` runs a forward and backward step of the real method, as one of any number of ranks, on
PyTorch's fake tensors, which have shapes and dtypes but no values. A laptop counts a step of batch
4096 over 8 GPUs in a second, and the counts hold on any device.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ascl.config import RunConfig
from ascl.data.base import Images, dataset_spec
from ascl.data.loader import Pixels
from ascl.data.subset import Data
from ascl.distributed import plan_shuffle
from ascl.methods import load_method
from ascl.methods.base import Batch, Method, TrainingSet
from ascl.models.memory_bank import FeatureBank, SlotMemory
from ascl.models.momentum_encoder import MomentumCopy
from ascl.models.resnet import ResNet
from ascl.optim import build_optimizer
from ascl.train import Run, view_spec
from benchmarks.fake_gpu import Issued, count_steps, fake_gpu


@dataclass(frozen=True)
class Size:
    """Number of images in a dataset."""

    train: int
    labeled: int  # subset of `train`: the kNN bank and the training set of the probe
    test: int


SIZES = {
    "shapes": Size(10_000, 10_000, 2_000),
    "cifar10": Size(50_000, 50_000, 10_000),
    "cifar100": Size(50_000, 50_000, 10_000),
    "stl10": Size(105_000, 5_000, 8_000),
    "tiny_imagenet": Size(100_000, 100_000, 10_000),
    "imagenet": Size(1_281_167, 1_281_167, 50_000),
}


def size_of(config: RunConfig) -> Size:
    """Return the number of images that a run trains and evaluates on; ignore holdouts."""
    size, train = SIZES[config.data.name], config.data.train_size
    if train is None:
        return size
    return Size(train, round(train * size.labeled / size.train), size.test)


@dataclass(frozen=True)
class Step:
    """Counts for one rank in one step; in bytes unless stated otherwise."""

    images: int  # number of images on this rank
    flops: int  # FLOPs of convolutions and matrix products; a multiply-add counts as two
    calls: int  # kernels of the whole step, from the views to the optimizer
    saved: int  # saved by the forward pass for the backward pass, without weights
    peak: int  # peak memory that the step itself allocates, including gradients
    gathered: int  # outputs of the method's all-gathers: data of all ranks together
    exchanged: int  # images of this rank in all-to-all exchanges, each sent to one other rank
    reduced: int  # summed over ranks: gradients of weights, and of features gathered by a loss
    weights: int  # trainable weights; gradients and SGD's momentum each take the same size again
    copy: int  # momentum encoder
    bank: int  # feature banks and slot memories
    views: int  # augmented images, the input of the step


class OperationCounter(TorchDispatchMode):
    """Count FLOPs, memory held and bytes communicated of every PyTorch operation.

    Tensors in `existing`, and views of them, do not count as memory.
    """

    def __init__(self, existing: Iterable[object] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.now = self.peak = 0
        self.gathered = self.exchanged = self.reduced = 0
        self.held = {_key(tensor) for tensor in existing if isinstance(tensor, Tensor)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        # PyTorch's FLOP formulas without its FlopCounterMode, which keeps references to tensors
        # and thus distorts the count of memory held.
        if flops := flop_registry.get(func._overloadpacket):
            self.flops += flops(*args, **kwargs, out_val=out)
        if func.namespace == "c10d":
            self._count_communication(func.name(), args)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count_storage(tensor.untyped_storage())
        return out

    def _count_communication(self, name: str, args: tuple[Any, ...]) -> None:
        # The first tensor argument is the output of an all-gather or all-to-all (whose input and
        # output have equal sizes), and the tensor that an all-reduce sums in place.
        whole = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        if "allgather" in name:
            self.gathered += whole.nbytes
        elif "alltoall" in name:
            self.exchanged += whole.nbytes
        else:
            assert "allreduce" in name, name
            self.reduced += whole.nbytes

    def _count_storage(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.held:
            self.held.add(storage._cdata)
            weakref.finalize(storage, self._on_free, storage._cdata, storage.nbytes())
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _on_free(self, key: int, size: int) -> None:
        self.held.discard(key)
        self.now -= size


def count_step(config: RunConfig, *, workers: int = 1, arithmetic: bool = False) -> Step:
    """Count a step of rank 0 of `workers`; with `arithmetic`, on real tensors for comparison."""
    calls = count_issued(config, workers=workers).kernels
    with fake_process_group(workers), _method(config, fake=not arithmetic) as method:
        batch = _batch(config, method, workers)
        own = [*method.parameters(), *method.buffers()]
        weights_and_bank = {_key(tensor) for tensor in own}
        saved: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            if _key(x) not in weights_and_bank:
                saved[_key(x)] = x.untyped_storage().nbytes()
            return x

        method.train()
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
        bf16 = config.runtime.precision == "bf16"
        existing = [*own, *tree_leaves(vars(batch)), *tree_leaves(vars(batch.shuffle))]
        with OperationCounter(existing) as counter, hooks:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                output = method(batch)
            output.loss.backward()
            method.after_backward(output)
        weights = sum(p.nbytes for p in method.parameters() if p.requires_grad)
        copies = [m for m in method.modules() if isinstance(m, MomentumCopy)]
        banks = [m for m in method.modules() if isinstance(m, FeatureBank | SlotMemory)]
        return Step(
            images=len(batch.labels),
            flops=counter.flops,
            calls=calls,
            saved=sum(saved.values()),
            peak=counter.peak,
            gathered=counter.gathered,
            exchanged=counter.exchanged,
            reduced=counter.reduced + (weights if workers > 1 else 0),  # DDP reduces the gradients
            weights=weights,
            copy=sum(_bytes(m) for m in copies),
            bank=sum(_bytes(m) for m in banks),
            views=sum(view.nbytes for view in batch.views),
        )


def count_issued(config: RunConfig, *, workers: int = 1) -> Issued:
    """Count what the host of rank 0 issues in a whole step: views, model, optimizer and bank.

    In the middle of training, without diagnostics and without clusters. DDP's own kernels are not
    counted.
    """
    spec, images = dataset_spec(config.data.name), size_of(config)
    count = images.labeled if config.method.needs_labels else images.train
    gpu = torch.device("cuda")
    method = _build(config)
    method.begin_epoch = lambda start: None  # type: ignore[method-assign]
    with fake_process_group(workers), fake_gpu() as issued:
        method.to_empty(device=gpu)
        side = spec.image_size or spec.view_size
        pictures = torch.empty(count, 3, side, side, dtype=torch.uint8, device=gpu)
        train = Images(pictures, torch.empty(count, dtype=torch.long, device=gpu))
        run = Run(
            config=config,
            data=Data(spec, train, train, train, "test"),
            pixels=Pixels.of(spec, gpu, channels_last=config.runtime.channels_last),
            method=method,
            model=method,
            optimizer=build_optimizer(method, config.optim, scaled=False),
            scaler=torch.amp.GradScaler("cuda", enabled=False),
            epoch=config.epochs // 2,
        )
        return count_steps(issued, run, 2)[-1]


def count_forward(config: RunConfig) -> int:
    """Count the FLOPs of the encoder for one image in evaluation mode."""
    with _method(config, fake=True) as method, OperationCounter() as counter:
        method.encoder.eval()(_views(config, 1)[0])
    flops: int = counter.flops
    return flops


@contextmanager
def fake_process_group(workers: int) -> Iterator[None]:
    """Make this process rank 0 of `workers` ranks whose communication transfers no data."""
    if workers == 1:
        yield
        return
    hook = sys.excepthook  # init_process_group replaces it, to prefix tracebacks with the rank
    dist.init_process_group("fake", rank=0, world_size=workers)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


@contextmanager
def _method(config: RunConfig, *, fake: bool) -> Iterator[Method]:
    """Build the method. With `fake`, all tensors created inside the context are fake too."""
    if not fake:
        yield _build(config, "cpu")
        return
    # A momentum encoder deep-copies the encoder: meta tensors support that, fake tensors do not.
    method = _build(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield method.to_empty(device="cpu")


def _build(config: RunConfig, device: str = "meta") -> Method:
    """Build the method as `ascl.train.build` does, without data."""
    spec = dataset_spec(config.data.name)
    training = TrainingSet(size_of(config).train, spec.num_classes)
    with torch.device(device):
        method = load_method(config.method.name).build(config, training)
        method.to(memory_format=torch.channels_last)
    for part in method.modules():
        if isinstance(part, ResNet):
            part.cut_batches(config.runtime.micro_batches)
    return method


def _views(config: RunConfig, count: int) -> tuple[Tensor, ...]:
    size = dataset_spec(config.data.name).view_size
    sizes = [view_spec(config, view, size).size for view in config.method.cost().views]
    layout = torch.channels_last
    return tuple(torch.rand(count, 3, s, s).contiguous(memory_format=layout) for s in sizes)


def _batch(config: RunConfig, method: Method, workers: int) -> Batch:
    """Make a rank's batch as in the middle of training."""
    assert config.batch_size % workers == 0, "a batch divides evenly over the ranks"
    own = config.batch_size // workers
    with unset_fake_temporarily():
        # Real values, because they determine which image goes to which rank.
        shuffle = plan_shuffle(torch.randperm(config.batch_size), 0, workers)
    draws = method.draws(torch.Generator())
    return Batch(
        _views(config, own),
        torch.zeros(own, dtype=torch.long),
        torch.arange(own),
        shuffle,
        diagnose=False,
        progress=0.5,
        draws=draws,
    )


def _key(tensor: Tensor) -> int:
    """Return an identifier of a tensor's storage, unique while the storage is allocated."""
    return int(tensor.untyped_storage()._cdata)


def _bytes(module: nn.Module) -> int:
    return sum(x.nbytes for x in (*module.parameters(), *module.buffers()))
