"""A GPU without a GPU: run the trainer with fake CUDA tensors, and count what the host issues.

Tensors on the device are PyTorch's fake tensors, which have shapes, types and a device but no
values; an operation on tensors of different devices fails as on a GPU. Tensors on the host are
real, and so are all decisions of the host. What the host reads from the device is 1 or True.

Counted are:

- kernels: operations on tensors of the device, except views, allocations and copies from or to the
  host. A composite kernel counts once, such as a convolution of cuDNN. An operation on a list of
  tensors counts as PyTorch launches it: by the number of its tensors and of their elements.
- copies: copies from pinned memory, for which the host does not wait.
- blocking: copies from pageable memory, and small tensors that the host makes on the device. The
  host waits for them.
- reads: values that the host reads from the device, for which it waits until the device has
  finished all earlier work.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import ascl.train
from ascl.train import Run, train_epoch

aten = torch.ops.aten
# Largest number of tensors, by the number of lists, and of blocks of elements that PyTorch 2.15
# processes in one launch: ATen/native/cuda/MultiTensorApply.cuh.
TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
BLOCKS_PER_LAUNCH, ELEMENTS_PER_BLOCK = 320, 65536


@dataclass(frozen=True)
class Issued:
    """Numbers of what the host has issued; see the documentation of this module."""

    kernels: int = 0
    copies: int = 0
    blocking: int = 0
    reads: int = 0

    def __sub__(self, before: "Issued") -> "Issued":
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Issued(*(now - then for now, then in pairs))


class FakeGpu(TorchDispatchMode):
    """Run operations of the host on real tensors and count those on the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Counter[str] = Counter()
        """Number of kernels by operation."""
        self.copies = self.blocking = self.reads = 0
        self._pinned: set[int] = set()  # storages

    @property
    def issued(self) -> Issued:
        return Issued(self.kernels.total(), self.copies, self.blocking, self.reads)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made_on = torch.device(kwargs.get("device") or "cpu").type
        if made_on == "cpu" and not any(isinstance(x, FakeTensor) for x in inputs):
            return self._on_host(func, args, kwargs)
        if func in READS:
            self.reads += inputs[0].is_cuda
            return READS[func](*args)
        if func.name().startswith("aten::_fused"):  # torch 2.15 has no fake implementation
            self.kernels[func.name()] += launches(args)
            return None
        out = func(*args, **kwargs)
        outputs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if not any(x.is_cuda for x in (*inputs, *outputs)) or func.namespace != "aten":
            return out
        if func in (aten._to_copy.default, aten.copy_.default) and (
            inputs[-1].device != outputs[0].device
        ):
            waits = not (kwargs.get("non_blocking") or True in args[2:])
            self._count_copy(inputs[-1], waits=waits)
            return out
        # PyTorch moves an index on the host to the device; it passes a scalar as an argument.
        self.blocking += sum(not x.is_cuda and x.ndim > 0 for x in inputs)
        if not func.is_view and "empty" not in func.name():
            self.kernels[func.name()] += launches(args)
        return out

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pinned = kwargs.get("pin_memory") or func is aten._pin_memory.default
        if func is aten._pin_memory.default:
            func = aten.clone.default
        with unset_fake_temporarily():
            out = func(*args, **{k: v for k, v in kwargs.items() if k != "pin_memory"})
        if pinned:
            self._pinned.add(out.untyped_storage()._cdata)
        return out

    def _count_copy(self, source: Tensor, *, waits: bool) -> None:
        if source.is_cuda:
            self.reads += 1
        elif waits or source.untyped_storage()._cdata not in self._pinned:
            self.blocking += 1
        else:
            self.copies += 1


def _read_scalar(x: Tensor) -> Any:
    return True if x.dtype == torch.bool else 1.0 if x.is_floating_point() else 1


READS: dict[Any, Callable[..., Any]] = {
    aten._local_scalar_dense.default: _read_scalar,
    aten.equal.default: lambda *args: True,
    aten.nonzero.default: lambda x: torch.empty((0, x.ndim), dtype=torch.long, device=x.device),
    aten.bincount.default: lambda x, weights=None, size=0: torch.empty(
        size, dtype=torch.long, device=x.device
    ),
}
"""Operations whose result depends on values of the device, and what they return instead."""


def launches(args: Sequence[Any]) -> int:
    """Return the number of kernels of an operation with these arguments: 1, unless it has lists."""
    lists = [arg for arg in args if isinstance(arg, list | tuple) and len(arg)]
    lists = [tensors for tensors in lists if all(isinstance(x, Tensor) for x in tensors)]
    if not lists or len({len(tensors) for tensors in lists}) > 1:
        return 1
    first, *others = lists
    if any(x.shape != y.shape for other in others for x, y in zip(first, other, strict=True)):
        return len(first)  # the slow path: one operation per tensor
    blocks = sum(-(-x.numel() // ELEMENTS_PER_BLOCK) for x in first)
    tensors = TENSORS_PER_LAUNCH[len(lists)]
    return max(-(-len(first) // tensors), -(-blocks // BLOCKS_PER_LAUNCH))


@contextmanager
def fake_gpu() -> Iterator[FakeGpu]:
    """Make tensors on the device `cuda` fake and count what the host issues."""
    with ExitStack() as stack:

        def replace(owner: object, name: str, value: object) -> None:
            stack.enter_context(patch.object(owner, name, value))

        # The parts of PyTorch (2.15) that need a driver, or that fake tensors do not support.
        replace(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        replace(torch.cuda, "is_bf16_supported", lambda *args: True)
        replace(torch.cuda, "get_device_capability", lambda device: (8, 0))
        replace(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        replace(torch.cuda, "max_memory_allocated", lambda device: 0)
        # DDP compares the parameters of all ranks and hooks into PyTorch's own engine.
        replace(ascl.train, "DistributedDataParallel", lambda method, **options: method)
        replace(nn.Module, "_apply", _apply)
        replace(Tensor, "backward", lambda loss: backward(loss))
        for name in ("tolist", "numpy"):
            replace(Tensor, name, _reader(getattr(Tensor, name)))
        replace(FakeTensor, "tolist", Tensor.tolist)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(FakeGpu())


def _apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Replace the parameters of a module: a real tensor cannot become fake."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(fn(parameter.data), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = fn(buffer)
    return module


def _reader(method: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Return a form of `tolist` or `numpy` that copies a fake tensor to the host once."""

    def read(x: Tensor) -> Any:
        if isinstance(x, FakeTensor):
            shape, dtype = x.cpu().shape, x.dtype
            with unset_fake_temporarily():
                x = torch.ones(shape, dtype=dtype)
        return method(x)

    return read


def count_steps(gpu: FakeGpu, run: Run, steps: int) -> list[Issued]:
    """Run the first steps of an epoch; return what each step after the first has issued.

    The first step also starts the epoch, creates the optimizer's state and computes diagnostics.
    """
    seen: list[Issued] = []

    def mark(phase: str, step: int, of: int) -> None:
        seen.append(gpu.issued)
        if step == steps:
            raise _EnoughError

    with suppress(_EnoughError):
        train_epoch(run, run.epoch, mark)
    return [now - before for before, now in pairwise(seen)]


class _EnoughError(Exception):
    """Ends an epoch."""


def backward(loss: Tensor) -> None:
    """Backpropagate as PyTorch's engine, which needs a driver even for fake tensors.

    The inputs of an `autograd.Function` that are tensors must be its first ones.
    """
    root = loss.grad_fn
    uses: Counter[Any] = Counter()  # of the gradient of each node that have not arrived
    found, pending = {root}, [root]
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is not None:
                uses[node] += 1
                if node not in found:
                    found.add(node)
                    pending.append(node)
    gradients: dict[Any, dict[int, Tensor]] = {root: {0: torch.ones_like(loss)}}
    ready, identity = [root], object()
    # Checkpointing recomputes activations once per run of the engine.
    with torch.no_grad(), patch("torch._C._current_graph_task_id", lambda: id(identity)):
        while ready:
            node = ready.pop()
            arrived = gradients.pop(node, {})
            inputs = [arrived.get(i) for i in range(len(node._input_metadata))]
            if hasattr(node, "variable"):  # a leaf: PyTorch keeps a first gradient uncopied
                leaf, (gradient,) = node.variable, inputs
                leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)
                continue
            outputs = node.apply(*inputs) if hasattr(node, "apply") else node(*inputs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for (following, index), gradient in zip(node.next_functions, outputs, strict=False):
                if following is None:
                    continue
                if gradient is not None:
                    own, expected = gradients.setdefault(following, {}), following._input_metadata
                    if gradient.shape != expected[index].shape:
                        gradient = gradient.sum_to_size(expected[index].shape)
                    gradient = gradient.to(expected[index].dtype)
                    own[index] = own[index] + gradient if index in own else gradient
                uses[following] -= 1
                if not uses[following]:
                    ready.append(following)
