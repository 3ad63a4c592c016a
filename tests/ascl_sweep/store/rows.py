"""Rows and helpers for tests of the store."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascl_sweep.contracts import RunRow, SweepRow
from ascl_sweep.store import tables
from ascl_sweep.store.store import Store

CONFIG = {"preset": "paper", "seed": 1, "epochs": 200, "method.name": "moco", "optim.lr": 0.03}


def a_run(run_id: str = "a1", **changes: Any) -> RunRow:
    return replace(RunRow(run_id, ("tau", "joint"), CONFIG, "final", "full"), **changes)


def a_sweep(name: str = "tau", **changes: Any) -> SweepRow:
    row = SweepRow(name, "name: tau\n", "tau.yaml", ("optim.lr=0.1",), "laptop", 1.5e9, 3)
    return replace(row, **changes)


def put(store: Path, *rows: RunRow) -> None:
    with Store(store).writer() as writer:
        for row in rows:
            writer.put_run(row)


def write_bytes(path: Path, contents: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)


@contextmanager
def few_files() -> Iterator[None]:
    """Make the writer merge above four files."""
    before, tables.MANY_FILES = tables.MANY_FILES, 4
    try:
        yield
    finally:
        tables.MANY_FILES = before
