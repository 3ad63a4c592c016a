"""Methods, one file each, found by file name: put a file here and `method.name` knows it.

A method's module has
- `Config`: a `MethodConfig` whose `name` is the file's name; its `cost()` says which views it
  trains on and what a step takes;
- `defaults(preset, dataset)`: what it wants of the whole config unless told otherwise, for small
  images and for ImageNet (`dataset.streams`);
- `build(config, training)`: the `Method`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ascl.config import MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.faults import unknown_name


@dataclass(frozen=True)
class Batch:
    """What a method gets to see in a step; N is this rank's share of the batch."""

    views: tuple[Tensor, ...]  # each (N, 3, S, S), normalised, one per view of the method's cost
    labels: Tensor  # (N,) classes, −1 if unknown: for diagnostics only, unless supervised
    indices: Tensor  # (N,) the images' places in the training set
    # A permutation of the global batch, equal on all ranks, for shuffled BN; on the CPU.
    shuffle: Tensor
    diagnose: bool  # whether this step's diagnostics are wanted
    progress: float  # share of the training done before this step, from 0 to below 1
    generator: torch.Generator  # on the CPU, equal on all ranks: for what the method itself draws


@dataclass(frozen=True)
class TrainingSet:
    """What a method may know of the images before it sees one."""

    num_images: int
    num_classes: int


@dataclass(frozen=True)
class EpochStart:
    """What a method gets to see before an epoch."""

    epoch: int  # 0 is the first
    features: Callable[[nn.Module], Tensor]
    """What a module of the method makes of the un-augmented training set: (images, D), on every
    rank, in the order of `Batch.indices`, without a gradient."""
    generator: torch.Generator  # on the CPU, equal on all ranks


@dataclass(frozen=True)
class Output:
    """What a method makes of a batch."""

    loss: Tensor  # scalar, the mean over this rank's samples
    remember: tuple[Tensor, ...] = ()  # what `after_backward` needs of this step
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)  # scalars of this rank's share


def mean_of(passes: Sequence[Output]) -> Output:
    """Several passes over a batch as one: mean loss and diagnostics; the first is remembered."""
    return Output(
        torch.stack([output.loss for output in passes]).mean(),
        passes[0].remember,
        {
            name: torch.stack([output.diagnostics[name] for output in passes]).mean()
            for name in passes[0].diagnostics
        },
    )


class Method(nn.Module):
    """What every method is: a module that turns a Batch into an Output and keeps its own memory."""

    online: nn.Sequential
    """What is trained: an encoder and its projector."""

    @property
    def encoder(self) -> nn.Module:
        """What is evaluated in the end."""
        return self.online[0]

    @property
    def classifier(self) -> nn.Module | None:
        """What tells classes from pictures by itself, if it has learnt them."""
        return None

    def fixed_rate(self) -> tuple[nn.Parameter, ...]:
        """Parameters whose learning rate stays at its peak."""
        return ()

    def begin_epoch(self, start: EpochStart) -> None:
        """What is done once before an epoch: clustering. Not saved, so it must follow from the
        state alone, or a restored run would go another way."""

    def forward(self, batch: Batch) -> Output:
        """The loss of a batch. The EMA step comes first; the bank stays as it is."""
        raise NotImplementedError

    def after_backward(self, output: Output) -> None:
        """What must wait until the loss has been differentiated: the bank takes the keys."""


@dataclass(frozen=True)
class MethodModule:
    """A method's file, as the rest of the trainer uses it."""

    name: str
    config: type[MethodConfig]
    defaults: Callable[[object, DatasetSpec], dict[str, Any]]
    build: Callable[[RunConfig, TrainingSet], Method]


def method_names() -> tuple[str, ...]:
    """The names of all methods there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_method(name: object) -> MethodModule:
    """The method of that name."""
    if name not in method_names():
        raise ValueError(unknown_name("method", name, method_names()))
    module = importlib.import_module(f"{__name__}.{name}")
    return MethodModule(
        name=str(name),
        config=module.Config,
        defaults=module.defaults,
        build=module.build,
    )
