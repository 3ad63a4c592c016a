"""Callback that writes the events of a sweep to the driver's log, for the morning after."""

import logging
from collections.abc import Mapping, Sequence

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, RunState, Scalar
from ascl_sweep.runtime.callbacks.base import Callback
from ascl_sweep.spec.sweep import SweepSpec

logger = logging.getLogger("ascl_sweep")


class EventLog(Callback):
    """Logs every event except progress; epochs only at the level DEBUG."""

    def on_sweep_start(self, spec: SweepSpec, planned: int, slots: int) -> None:
        logger.info("sweep %s: %d runs, up to %d at once", spec.name, planned, slots)

    def on_run_start(
        self, sweep: str, row: RunRow, varied: Mapping[str, Scalar], curve: Sequence[float]
    ) -> None:
        logger.info("%s started on %s after %d epochs", row.run_id, row.host, len(curve))

    def on_epoch(self, row: RunRow, metrics: EpochMetrics, curve: Sequence[float]) -> None:
        logger.debug("%s: %s", row.run_id, metrics)

    def on_run_lost(self, row: RunRow, reason: str) -> None:
        logger.warning("%s will be retried: %s", row.run_id, reason)

    def on_run_end(self, row: RunRow, log_tail: Sequence[str]) -> None:
        level = logging.WARNING if row.state is RunState.FAILED else logging.INFO
        reason = row.error or row.stopped_because
        logger.log(level, "%s %s%s", row.run_id, row.state, f": {reason}" if reason else "")

    def on_note(self, text: str) -> None:
        logger.info(text)
