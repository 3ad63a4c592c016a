"""Limit the epochs that runs may train, so that a test can disturb them in time.

`node_environment` makes this file the `sitecustomize` module of the processes of a Ray node or of a
driver. A run then waits before each epoch beyond the number in the file GATE/<run id>, or else in
GATE/every. The processes may also have another host name and a clock that the test sets.
"""

import importlib.util
import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

GATE = "ASCL_SWEEP_TESTS_GATE"
HOST = "ASCL_SWEEP_TESTS_HOST"
CLOCK = "clock error"  # file in the gate: seconds by which the clock is ahead
WORKER = "ascl_sweep.executors.worker"


def node_environment(folder: Path, *, host: str | None = None, **limits: int) -> dict[str, str]:
    """Create a gate in a folder, with limits by run id or `every`; return its environment."""
    folder.mkdir()
    for name, epochs in limits.items():
        allow(folder, name, epochs)
    site = folder / "site"
    site.mkdir()
    shutil.copy(__file__, site / "sitecustomize.py")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return {GATE: str(folder), "PYTHONPATH": path} | ({HOST: host} if host else {})


def allow(folder: Path, name: str, epochs: int) -> None:
    """Let a run, or `every` run without a limit of its own, train this number of epochs."""
    _put(folder / name, epochs)


def set_clock(folder: Path, ahead: int) -> None:
    """Set the clock of the processes, by seconds ahead of the right time."""
    _put(folder / CLOCK, ahead)


def _put(file: Path, number: int) -> None:
    half = file.with_name(f".{file.name}")
    half.write_text(str(number))
    half.replace(file)


def _read(file: Path) -> int | None:
    with suppress(FileNotFoundError):
        return int(file.read_text())
    return None


def _limit(folder: Path, run_id: str) -> float:
    limits = (_read(folder / name) for name in (run_id, "every"))
    return next((limit for limit in limits if limit is not None), math.inf)


def _wrong(clock: Callable[[], float], folder: Path) -> Callable[[], float]:
    return lambda: clock() + (_read(folder / CLOCK) or 0)


def _limited(advance_in: Callable[..., Iterator[Any]], folder: Path) -> Callable[..., Any]:
    def advance(run: Any, work: Path, *options: Any) -> Iterator[Any]:
        steps = advance_in(run, work, *options)
        while run.epoch < run.config.epochs:
            while run.epoch >= _limit(folder, work.name):
                time.sleep(0.02)
            yield next(steps)
        yield from steps

    return advance


class _Finder:
    """Wraps the training loop when the worker's module is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != WORKER:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        assert spec and spec.loader
        execute = spec.loader.exec_module

        def execute_and_wrap(module: Any) -> None:
            execute(module)
            module.advance_in = _limited(module.advance_in, Path(os.environ[GATE]))

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize" and GATE in os.environ:
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    time.time = _wrong(time.time, Path(os.environ[GATE]))
    if HOST in os.environ:
        socket.gethostname = lambda: os.environ[HOST]
