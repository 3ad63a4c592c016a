"""Writers of one table that do not know of each other lose no row, wherever each is interrupted."""

import random
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ascl_sweep.store import tables
from ascl_sweep.store.columns import EPOCHS
from ascl_sweep.store.filesystem import File
from ascl_sweep.store.tables import ParquetTable

KEYS = 2
WAIT = 60.0  # for a thread that other processes keep from running


class Killed(BaseException):
    """Ends a writer in the middle of a file operation."""


@dataclass
class Writer:
    """A thread that waits for its turn before each file operation."""

    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    yielded: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ended: bool = False
    killed: bool = False

    def pause(self) -> None:
        self.yielded.release()
        assert self.turn.acquire(timeout=WAIT)
        if self.killed:
            raise Killed

    def step(self) -> None:
        """Let the writer run to its next file operation."""
        self.turn.release()
        assert self.yielded.acquire(timeout=WAIT)


class Disk:
    """Files in memory, as one writer or reader sees them. Each operation is atomic."""

    folder = None

    def __init__(self, files: dict[str, Any], pause: Callable[[], None]) -> None:
        self._files, self._pause = files, pause

    def list_files(self, folder: str) -> list[File]:
        self._pause()
        return [File(name, data.size) for name, data in sorted(self._files.items())]

    def open(self, name: str) -> pa.BufferReader:
        self._pause()
        if name not in self._files:
            raise FileNotFoundError(2, "No such file", name)
        return pa.BufferReader(self._files[name])

    def create(self, name: str, data: pa.Buffer) -> None:
        self._pause()
        assert name not in self._files, "a file was replaced"
        self._files[name] = data

    def delete(self, name: str) -> None:
        self._pause()
        self._files.pop(name, None)

    def address_of(self, name: str) -> str:
        return name


@dataclass
class Append:
    """A row that was written between two moments; `end` is None if it was not acknowledged."""

    key: int
    value: int
    start: int
    end: int | None = None
    gone: int | None = None
    """When its writer was killed."""


APPEND = st.integers(0, KEYS - 1)
ACTIONS = st.lists(APPEND | st.sampled_from(["merge", "merge_if_many"]), min_size=1, max_size=5)


@settings(max_examples=200)
@given(
    plans=st.lists(ACTIONS, min_size=2, max_size=2),
    turns=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 12)), max_size=20),
    kill=st.none() | st.tuples(st.integers(0, 1), st.integers(0, 40)),
    names=st.randoms(use_true_random=False),
)
@example(  # a row is added between the listing of a merge and its end, below its newest input
    plans=[[0], [0, 1, 1, "merge"]],
    turns=[(1, 4), (0, 2), (1, 5), (0, 1)],
    kill=None,
    names=random.Random(0),
)
@example(  # a row is added while a merge writes
    plans=[[0], [0, 1, "merge"]], turns=[(1, 9), (0, 4)], kill=None, names=random.Random(3)
)
def test_any_interleaving_of_two_writers_loses_no_acknowledged_row(
    plans: list[list[int | str]],
    turns: list[tuple[int, int]],
    kill: tuple[int, int] | None,
    names: random.Random,
) -> None:
    """`turns` are a writer and its number of file operations, `kill` is a writer and a moment."""
    files: dict[str, Any] = {}
    appends: list[Append] = []
    now, unique, errors = [0], count(), list[BaseException]()

    def act(writer: Writer, plan: list[int | str], number: int) -> None:
        table = ParquetTable(Disk(files, writer.pause), EPOCHS)  # type: ignore[arg-type]
        try:
            writer.pause()
            for i, action in enumerate(plan):
                if isinstance(action, int):
                    row = Append(action, 100 * number + i, now[0])
                    appends.append(row)
                    table.append([{"run_id": "a", "epoch": action, "value": row.value}])
                    row.end = now[0]
                else:
                    with suppress(FileNotFoundError):  # the other writer merged the same files
                        table.compact() if action == "merge" else table.merge_if_many()
        except Killed:
            for row in appends:
                row.gone = now[0] if row.end is None and row.value // 100 == number else row.gone
        except BaseException as error:
            errors.append(error)
        finally:
            writer.ended = True
            writer.yielded.release()

    writers = [Writer(), Writer()]
    threads = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "MANY_FILES", 2)
        patch.setattr(secrets, "token_hex", lambda n: f"{names.randrange(4)}{next(unique):08x}")
        for number, (writer, plan) in enumerate(zip(writers, plans, strict=True)):
            threads.append(threading.Thread(target=act, args=(writer, plan, number), daemon=True))
            threads[-1].start()
            assert writer.yielded.acquire(timeout=WAIT)
        for number in chain.from_iterable([n] * steps for n, steps in [*turns, (0, 999), (1, 999)]):
            if not writers[number].ended:
                now[0] += 1
                writers[number].killed = kill is not None and kill[0] == number and kill[1] < now[0]
                writers[number].step()
                assert errors == []
                check(files, appends, now[0])
        for thread in threads:
            thread.join()


def check(files: dict[str, Any], appends: list[Append], now: int) -> None:
    """Compare what a reader finds now with the rows that were acknowledged until now."""
    reader = ParquetTable(Disk(files, lambda: None), EPOCHS)  # type: ignore[arg-type]
    found = reader.read(["epoch", "value"]).to_pydict()
    values = dict(zip(found["epoch"], found["value"], strict=True))
    assert reader.problems == []
    for key in range(KEYS):
        rows = [row for row in appends if row.key == key]
        done = [row for row in rows if row.end is not None]
        if done:
            assert key in values, "an acknowledged row was lost"
        if key in values:
            (shown,) = [row for row in rows if row.value == values[key]]
            end = shown.end if shown.end is not None else shown.gone
            later = [row for row in done if end is not None and row.start > end]
            assert not later, "an older row replaced a row that was acknowledged later"


def test_files_of_earlier_versions_are_read_in_order_and_merged() -> None:
    files: dict[str, Any] = {}
    disk: Any = Disk(files, lambda: None)
    table = ParquetTable(disk, EPOCHS)
    for number in range(12):
        table.append([{"run_id": "a", "epoch": 0, "value": number}])
        name = max(files, key=tables._order)
        files[f"epochs/{number + 1:08d}.parquet"] = files.pop(name)
        table._sizes = None
    assert ParquetTable(disk, EPOCHS).read(["value"]).to_pydict() == {"value": [11]}
    ParquetTable(disk, EPOCHS).append([{"run_id": "a", "epoch": 1, "value": 12}])
    assert ParquetTable(disk, EPOCHS).compact() == (13, 1)
    assert ParquetTable(disk, EPOCHS).read(["value"]).to_pydict() == {"value": [11, 12]}
