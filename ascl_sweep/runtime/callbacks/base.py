"""Base class of callbacks, which receive the events of a sweep. One file per implementation.

The controller calls all methods from one thread. A callback must handle its own errors: it only
receives copies, and the store keeps all results.
"""

from collections.abc import Iterable, Mapping, Sequence

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, Scalar
from ascl_sweep.spec.sweep import SweepSpec


class Callback:
    """Receiver of events. By default, every method does nothing."""

    def on_sweep_start(self, spec: SweepSpec, planned: int, slots: int) -> None:
        """Handle the start of a sweep of `planned` runs, up to `slots` of them in parallel."""

    def on_run_start(
        self, sweep: str, row: RunRow, varied: Mapping[str, Scalar], curve: Sequence[float]
    ) -> None:
        """Handle the start or resumption of a run.

        Args:
            sweep: Name of the sweep.
            row: The run.
            varied: The run's values of the sweep's axes.
            curve: kNN accuracy of the finished epochs.
        """

    def on_epoch(self, row: RunRow, metrics: EpochMetrics, curve: Sequence[float]) -> None:
        """Handle a finished epoch; `curve` is the kNN accuracy of all finished epochs."""

    def on_run_lost(self, row: RunRow, reason: str) -> None:
        """Handle the end of an attempt at a run that will be retried."""

    def on_run_end(self, row: RunRow, log_tail: Sequence[str]) -> None:
        """Handle the end of a run with `row.state`; `log_tail` is the end of a failed run's log."""

    def on_note(self, text: str) -> None:
        """Handle a message for the user."""

    def on_progress(self, epochs_done: int, epochs_left: int, slots: int) -> None:
        """Handle a progress update, about once a second."""

    def close(self) -> None:
        """Release resources. No event follows."""


class Callbacks(Callback):
    """Passes every event to several callbacks in order."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._all = tuple(callbacks)

    def on_sweep_start(self, spec: SweepSpec, planned: int, slots: int) -> None:
        for callback in self._all:
            callback.on_sweep_start(spec, planned, slots)

    def on_run_start(
        self, sweep: str, row: RunRow, varied: Mapping[str, Scalar], curve: Sequence[float]
    ) -> None:
        for callback in self._all:
            callback.on_run_start(sweep, row, varied, curve)

    def on_epoch(self, row: RunRow, metrics: EpochMetrics, curve: Sequence[float]) -> None:
        for callback in self._all:
            callback.on_epoch(row, metrics, curve)

    def on_run_lost(self, row: RunRow, reason: str) -> None:
        for callback in self._all:
            callback.on_run_lost(row, reason)

    def on_run_end(self, row: RunRow, log_tail: Sequence[str]) -> None:
        for callback in self._all:
            callback.on_run_end(row, log_tail)

    def on_note(self, text: str) -> None:
        for callback in self._all:
            callback.on_note(text)

    def on_progress(self, epochs_done: int, epochs_left: int, slots: int) -> None:
        for callback in self._all:
            callback.on_progress(epochs_done, epochs_left, slots)

    def close(self) -> None:
        for callback in self._all:
            callback.close()
