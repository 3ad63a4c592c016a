"""Base class of methods, and the types that the training loop and a method exchange."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ascl.distributed import Shuffle
from ascl.progress import Report, no_report


@dataclass(frozen=True)
class Batch:
    """Input of a training step; N is this rank's share of the batch."""

    views: tuple[Tensor, ...]  # each (N, 3, S, S), normalized, one per view of the method's cost
    labels: Tensor  # (N,) classes, −1 if unknown: for diagnostics only, unless supervised
    indices: Tensor  # (N,) indices of the images in the training set
    shuffle: Shuffle  # a permutation of the global batch, equal on all ranks, for shuffled BN
    diagnose: bool  # whether to compute diagnostics in this step
    progress: float  # fraction of training done before this step, in [0, 1)
    draws: tuple[Tensor, ...]  # result of `Method.draws`, on the device


@dataclass(frozen=True)
class TrainingSet:
    """Sizes of the training set, known when a method is built."""

    num_images: int
    num_classes: int


@dataclass(frozen=True)
class EpochStart:
    """Input of `Method.begin_epoch`."""

    epoch: int  # the first epoch is 0
    features: Callable[[nn.Module], Tensor]
    """Compute a module's features (images, D) of the un-augmented training set, on every rank, in
    the order of `Batch.indices`, without a gradient."""
    generator: torch.Generator  # on the CPU, equal on all ranks
    report: Report = no_report  # to be called during long computations, as a sign of progress


@dataclass(frozen=True)
class Output:
    """Result of a training step."""

    loss: Tensor  # scalar, the mean over this rank's samples
    remember: tuple[Tensor, ...] = ()  # tensors that `after_backward` needs
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)  # scalars of this rank's share


def average_outputs(passes: Sequence[Output]) -> Output:
    """Average the losses and diagnostics of several passes; keep `remember` of the first pass."""
    if len(passes) == 1:
        return passes[0]
    return Output(
        torch.stack([output.loss for output in passes]).mean(),
        passes[0].remember,
        {
            name: torch.stack([output.diagnostics[name] for output in passes]).mean()
            for name in passes[0].diagnostics
        },
    )


class Method(nn.Module):
    """Base class of methods: a module that maps a Batch to an Output and owns its memory bank."""

    online: nn.Sequential
    """The trained network: an encoder and its projector."""

    @property
    def encoder(self) -> nn.Module:
        """The network that is evaluated."""
        return self.online[0]

    @property
    def classifier(self) -> nn.Module | None:
        """The method's own classifier of features; None unless the method learns from classes."""
        return None

    def fixed_rate(self) -> tuple[nn.Parameter, ...]:
        """Return the parameters whose learning rate stays at its peak."""
        return ()

    def begin_epoch(self, start: EpochStart) -> None:
        """Prepare an epoch, for example by clustering.

        The result is not saved, so it must depend on the saved state and `start` only; otherwise
        a resumed run would differ.
        """

    def draws(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw the method's own random numbers of a step, on the CPU, equal on all ranks.

        They move to the device together with the batch: a copy of their own would delay the step.
        """
        return ()

    def forward(self, batch: Batch) -> Output:
        """Compute the loss of a batch: update the momentum encoder first, not the bank."""
        raise NotImplementedError

    def after_backward(self, output: Output) -> None:
        """Update state that the backward pass still needs unchanged, such as the bank."""
