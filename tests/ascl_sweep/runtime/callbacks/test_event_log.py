"""The driver's log: one line per event, so that a night can be explained in the morning."""

import logging
from dataclasses import replace

import pytest

from ascl_sweep.contracts import RunState
from ascl_sweep.runtime.callbacks.event_log import EventLog
from tests.ascl_sweep.runtime.callbacks.test_console import METRICS, ROW, SPEC, VARIED


def test_every_event_is_one_line_and_failures_are_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ascl_sweep")
    log, row = EventLog(), replace(ROW, host="node1")
    log.on_sweep_start(SPEC, planned=4, slots=2)
    log.on_run_start("it", row, VARIED, [0.1, 0.2])
    log.on_epoch(row, METRICS, [0.1])
    log.on_run_lost(row, "worker died")
    log.on_run_end(replace(row, state=RunState.STOPPED, stopped_because="asha at epoch 3"), [])
    log.on_run_end(replace(row, state=RunState.FAILED, error="no disk"), ["last line"])
    log.on_note("store unreachable")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "sweep it: 4 runs, up to 2 at once"),
        ("INFO", "abc started on node1 after 2 epochs"),
        ("WARNING", "abc will be retried: worker died"),
        ("INFO", "abc stopped: asha at epoch 3"),
        ("WARNING", "abc failed: no disk"),
        ("INFO", "store unreachable"),
    ]
