"""What a step of a run comes to, counted and not timed: operations, bytes held, bytes sent.

The real method takes a real step, forward and backward, as one of any number of ranks, but on
PyTorch's fake tensors, which have shapes and types and no numbers: a batch of 4096 over 8 GPUs is
counted on a laptop in a second, and the counts hold on any device.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ascl.bank import FeatureBank, SlotMemory
from ascl.config import RunConfig
from ascl.datasets import dataset_spec
from ascl.encoders import ResNet
from ascl.methods import Batch, Method, TrainingSet, load_method
from ascl.momentum import MomentumCopy
from ascl.train import view_spec
from ascl.views import draw_view, make_view


@dataclass(frozen=True)
class Size:
    """Images of a dataset."""

    train: int
    labelled: int  # of those: kNN's bank and the probe's training set
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
    """Of what a run trains on and is scored with; holdouts are not taken off."""
    size, train = SIZES[config.data.name], config.data.train_size
    if train is None:
        return size
    return Size(train, round(train * size.labelled / size.train), size.test)


@dataclass(frozen=True)
class Step:
    """One rank's step; bytes unless said otherwise."""

    images: int  # of this rank
    flops: int  # of convolutions and matrix products, a multiplication and an addition being two
    calls: int  # operations that the host hands to the device, the making of views included
    saved: int  # kept by the forward pass for the backward pass, weights left out
    peak: int  # most at one time, gradients included, of what the step itself makes
    gathered: int  # all ranks' together, that each has after the method's all-gathers
    exchanged: int  # of this rank's own, sent each to the one rank that wants it: images
    reduced: int  # summed over ranks: gradients, and what a loss sends back to other ranks
    weights: int  # that take a gradient: as many bytes again are gradients and SGD's momentum
    copy: int  # the momentum encoder
    bank: int
    views: int  # what comes in


class Witness(TorchDispatchMode):
    """Sees every operation: counts them, what is in memory, and what goes over all ranks.

    What is `there` before is not counted, nor are views of it.
    """

    def __init__(self, there: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.calls = self.now = self.peak = 0
        self.gathered = self.exchanged = self.reduced = 0
        self.held = {_key(tensor) for tensor in there}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        # PyTorch's own formulas, but not its FlopCounterMode, which holds on to tensors.
        if flops := flop_registry.get(func._overloadpacket):
            self.flops += flops(*args, **kwargs, out_val=out)
        if func.namespace == "c10d":
            self._sent(func.name(), args)
        elif func.namespace == "aten" and not func.is_view and "empty" not in func.name():
            self.calls += 1
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._holds(tensor.untyped_storage())
        return out

    def _sent(self, name: str, args: tuple[Any, ...]) -> None:
        # What is gathered has its output first, and so has what is exchanged, which is as large as
        # its input; what is summed is summed in place.
        whole = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        if "allgather" in name:
            self.gathered += whole.nbytes
        elif "alltoall" in name:
            self.exchanged += whole.nbytes
        else:
            assert "allreduce" in name, name
            self.reduced += whole.nbytes

    def _holds(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self.held:
            self.held.add(storage._cdata)
            weakref.finalize(storage, self._frees, storage._cdata, storage.nbytes())
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _frees(self, key: int, size: int) -> None:
        self.held.discard(key)
        self.now -= size


def count_step(config: RunConfig, *, workers: int = 1, arithmetic: bool = False) -> Step:
    """Count a step of the first of so many ranks; with `arithmetic` on real tensors, to compare."""
    view_calls = _view_calls(config)
    with as_one_of(workers), _method(config, fake=not arithmetic) as method:
        batch = _batch(config, workers)
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
        with Witness([*own, *batch.views, batch.shuffle]) as witness, hooks:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                output = method(batch)
            output.loss.backward()
            method.after_backward(output)
        weights = sum(p.nbytes for p in method.parameters() if p.requires_grad)
        copies = [m for m in method.modules() if isinstance(m, MomentumCopy)]
        banks = [m for m in method.modules() if isinstance(m, FeatureBank | SlotMemory)]
        return Step(
            images=len(batch.labels),
            flops=witness.flops,
            calls=witness.calls + view_calls,
            saved=sum(saved.values()),
            peak=witness.peak,
            gathered=witness.gathered,
            exchanged=witness.exchanged,
            reduced=witness.reduced + (weights if workers > 1 else 0),  # gradients, by DDP
            weights=weights,
            copy=sum(_bytes(m) for m in copies),
            bank=sum(_bytes(m) for m in banks),
            views=sum(view.nbytes for view in batch.views),
        )


def count_forward(config: RunConfig) -> int:
    """FLOPs of the encoder alone on one image, as in evaluation."""
    with _method(config, fake=True) as method, Witness() as witness:
        method.encoder.eval()(_views(config, 1)[0])
    flops: int = witness.flops
    return flops


@contextmanager
def as_one_of(workers: int) -> Iterator[None]:
    """In this process as if it were the first of so many, which get and give nothing."""
    if workers == 1:
        yield
        return
    hook = sys.excepthook  # PyTorch puts a rank's name before every traceback from then on
    dist.init_process_group("fake", rank=0, world_size=workers)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


@contextmanager
def _method(config: RunConfig, *, fake: bool) -> Iterator[Method]:
    """The method as `ascl.train.build` makes it, without data; new tensors are fake as it is."""
    spec = dataset_spec(config.data.name)
    training = TrainingSet(size_of(config).train, spec.num_classes)
    # Fake tensors cannot be copied, as a momentum encoder is; those of the device meta can.
    with torch.device("meta" if fake else "cpu"):
        method = load_method(config.method.name).build(config, training)
        method.to(memory_format=torch.channels_last)
    for part in method.modules():
        if isinstance(part, ResNet):
            part.cut_batches(config.runtime.micro_batches)
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        yield method.to_empty(device="cpu") if fake else method


def _views(config: RunConfig, count: int) -> tuple[Tensor, ...]:
    size = dataset_spec(config.data.name).view_size
    sizes = [view_spec(config, view, size).size for view in config.method.cost().views]
    layout = torch.channels_last
    return tuple(torch.rand(count, 3, s, s).contiguous(memory_format=layout) for s in sizes)


def _batch(config: RunConfig, workers: int) -> Batch:
    """What a rank sees half-way through a training."""
    assert config.batch_size % workers == 0, "a batch divides evenly over the ranks"
    with unset_fake_temporarily():
        shuffle = torch.randperm(config.batch_size)  # its numbers say what goes where
    own = config.batch_size // workers
    return Batch(
        _views(config, own),
        torch.zeros(own, dtype=torch.long),
        indices=torch.arange(own),
        shuffle=shuffle,
        diagnose=False,
        progress=0.5,
        generator=torch.Generator(),
    )


def _view_calls(config: RunConfig) -> int:
    """Operations that make the views; on numbers, for how they go depends on what is drawn."""
    spec, few = dataset_spec(config.data.name), 16
    mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
    pictures = torch.zeros(few, 3, spec.view_size, spec.view_size, dtype=torch.uint8)
    with Witness() as witness:
        for name in config.method.cost().views:
            view = view_spec(config, name, spec.view_size)
            draw = draw_view(view, few, torch.Generator().manual_seed(0))
            make_view(pictures, draw, view, mean, std)
    calls: int = witness.calls
    return calls


def _key(tensor: Tensor) -> int:
    """Tells one piece of memory from another, as long as it is held."""
    return int(tensor.untyped_storage()._cdata)


def _bytes(module: nn.Module) -> int:
    return sum(x.nbytes for x in (*module.parameters(), *module.buffers()))
