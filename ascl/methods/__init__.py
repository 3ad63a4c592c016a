"""Methods, one file each, found by file name: put a file here and `method.name` knows it.

A method's module has
- `Config`: a `MethodConfig` whose `name` is the file's name;
- `VIEWS`: for each view it trains on, which of `augment.query` and `augment.key` describes it;
- `BACKPROPS`, `EMA`: what it costs, as the paper's tables state it;
- `defaults(preset, dataset)`: what it wants of the whole config unless told otherwise;
- `build(config)`: the `Method`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ascl.config import MethodConfig, RunConfig
from ascl.datasets import DatasetSpec
from ascl.faults import unknown_name


@dataclass(frozen=True)
class Batch:
    """What a method gets to see in a step; N is this rank's share of the batch."""

    views: tuple[Tensor, ...]  # each (N, 3, S, S), normalised, one per entry of VIEWS
    labels: Tensor  # (N,) classes, −1 if unknown: for diagnostics only, unless supervised
    shuffle: Tensor  # a permutation of the global batch, equal on all ranks, for shuffled BN
    diagnose: bool  # whether this step's diagnostics are wanted


@dataclass(frozen=True)
class Output:
    """What a method makes of a batch."""

    loss: Tensor  # scalar, the mean over this rank's samples
    remember: tuple[Tensor, ...] = ()  # what `after_backward` needs of this step
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)  # scalars of this rank's share


class Method(nn.Module):
    """What every method is: a module that turns a Batch into an Output and keeps its own memory."""

    @property
    def encoder(self) -> nn.Module:
        """What is evaluated in the end."""
        raise NotImplementedError

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
    views: tuple[str, ...]
    backprops: int
    ema: bool
    defaults: Callable[[object, DatasetSpec], dict[str, Any]]
    build: Callable[[RunConfig], Method]


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
        views=module.VIEWS,
        backprops=module.BACKPROPS,
        ema=module.EMA,
        defaults=module.defaults,
        build=module.build,
    )
