"""Experiment loggers (`--log NAME`): send copies of the results to other tools.

A logger is a module in this package with a class `Logger`; `--log` takes the module's name. Runs
keep their id and use epochs as steps, so a resumed run continues as the same run. A thread calls
the logger, so a slow or unreachable service does not delay the sweep.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from ascl.errors import unknown_name
from ascl.metrics import EpochMetrics
from ascl_sweep.clock import unix_time
from ascl_sweep.contracts import RunRow, RunState, Scalar
from ascl_sweep.errors import UsageError
from ascl_sweep.runtime.callbacks import logger_names
from ascl_sweep.runtime.callbacks.base import Callback
from ascl_sweep.store.address import is_remote
from ascl_sweep.text import one_line

CLOSE_SECONDS = 120.0  # how long the end of a sweep waits for its loggers
FAILED_STATES = (RunState.FAILED, RunState.DIVERGED)


class RunLogger(Protocol):
    """Interface of a logger. The same run may start several times, also in later processes."""

    package: str
    """Python package that the logger requires."""
    needs_local_store: bool

    def __init__(self, store: str) -> None: ...

    def on_run_start(self, sweep: str, row: RunRow) -> None: ...

    def on_epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None: ...

    def on_run_end(self, row: RunRow) -> None: ...


class LoggerCallback(Callback):
    """Passes events to a logger in a thread. Disables the logger after an error."""

    def __init__(self, name: str, logger: RunLogger, on_note: Callable[[str], None]) -> None:
        self._name, self._logger, self._on_note = name, logger, on_note
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def on_run_start(
        self, sweep: str, row: RunRow, varied: Mapping[str, Scalar], curve: Sequence[float]
    ) -> None:
        self._queue.put(lambda: self._logger.on_run_start(sweep, row))

    def on_epoch(self, row: RunRow, metrics: EpochMetrics, curve: Sequence[float]) -> None:
        values = asdict(metrics)
        epoch = values.pop("epoch")
        measured = {name: value for name, value in values.items() if value is not None}
        self._queue.put(lambda: self._logger.on_epoch(row.run_id, epoch, measured))

    def on_run_end(self, row: RunRow, log_tail: Sequence[str]) -> None:
        self._queue.put(lambda: self._logger.on_run_end(row))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until all results are copied, up to a time limit."""
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._on_note(f"--log {self._name}: timed out before all results were copied")

    def _work(self) -> None:
        while (act := self._queue.get()) is not None:
            try:
                act()
            except Exception as error:  # the packages' errors have no common base class
                self._on_note(
                    f"--log {self._name} is disabled after an error (the store keeps all results): "
                    f"{one_line(error)}"
                )
                return


def _logger_class(name: str) -> type[RunLogger]:
    if name not in logger_names():
        raise UsageError(unknown_name("logger", name, logger_names()))
    found: type[RunLogger] = import_module(f"ascl_sweep.runtime.callbacks.{name}").Logger
    return found


def check_loggers(names: Sequence[str], store: str) -> None:
    """Raise UsageError for a logger that does not exist or cannot be used."""
    for name in names:
        logger = _logger_class(name)
        if find_spec(logger.package) is None:
            raise UsageError(
                f"--log {name} needs the package {logger.package}; install it with "
                f"`pip install {logger.package}`"
            )
        if logger.needs_local_store and is_remote(store):
            raise UsageError(
                f"--log {name} writes into the store, which must be a local folder, got {store}; "
                "use --log mlflow or --log wandb"
            )


def open_logger(name: str, store: str, on_note: Callable[[str], None]) -> LoggerCallback:
    """Return the callback of a logger; raises UsageError if the logger cannot be opened."""
    try:
        logger = _logger_class(name)(store)
    except UsageError:
        raise
    except Exception as error:  # as in `_work`
        raise UsageError(f"--log {name} cannot be used: {one_line(error)}") from error
    return LoggerCallback(name, logger, on_note)


def milliseconds() -> int:
    """Return the Unix time in milliseconds."""
    return int(1000 * unix_time())
