"""Callbacks by which long computations report progress. No import of PyTorch."""

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Called often within an epoch: phase (such as "train" or "kNN"), step, number of steps.

A run that reports no progress for long is taken to hang, and killed."""
Report = Callable[[], None]
"""Called with each part of one long computation."""


def no_progress(phase: str, step: int, steps: int) -> None:
    """Ignore progress."""


def no_report() -> None:
    """Ignore progress of one computation."""
