"""Store of sweeps: Parquet tables of sweeps, runs and epochs, and the runs' work folders.

    <store>/runs/*.parquet      one row per run: config, state, results
    <store>/epochs/*.parquet    one row per run and epoch
    <store>/sweeps/*.parquet    one row per sweep: its YAML
    <store>/work/<run id>/      files of the run: checkpoint, log
    <store>/stop                exists if a stop of the driver is requested

The store is the only state of sweeps. Any number of processes may read at any time; one driver at a
time writes. A new row replaces an earlier row with the same key.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, RunState, Scalar, SweepRow
from ascl_sweep.errors import StoreError, UsageError
from ascl_sweep.store import columns as cols
from ascl_sweep.store import lease
from ascl_sweep.store.arrow import Record, encode_strings
from ascl_sweep.store.filesystem import File, StoreFiles
from ascl_sweep.store.lease import LeaseHolder, StoreBusyError
from ascl_sweep.store.tables import ParquetTable, Salvaged

__all__ = ["LeaseHolder", "Snapshot", "Store", "StoreBusyError", "Writer", "compact"]

_WORK, _STOP, _LOG = "work", "stop", "log.txt"
_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
Curves = dict[str, NDArray[np.float64]]
"""Metric → its values by epoch, for one run."""


@dataclass(frozen=True)
class Snapshot:
    """Content of a store that a driver needs, read once."""

    version: tuple[File, ...]
    """`Store.version()` before the tables were read."""
    runs: dict[str, RunRow]
    curves: dict[str, dict[int, float | None]]
    """See `Store.knn_curves`."""
    sweeps: dict[str, SweepRow]


class Store:
    """Read access to a store. The store need not exist; the constructor creates nothing."""

    def __init__(self, files: str | Path | FileSystem) -> None:
        self._files = StoreFiles(files)
        self.address = self._files.address
        self._tables = {s.folder: ParquetTable(self._files, s) for s in cols.WRITE_ORDER}

    @property
    def folder(self) -> Path | None:
        """The folder of the store; None if it is remote, so that it may become unreachable."""
        return self._files.folder

    def may_recover(self, error: OSError) -> bool:
        """Whether an error may pass: the store is remote, or on an unreachable network mount."""
        return self._files.may_recover(error)

    @property
    def problems(self) -> list[str]:
        """Messages about the files that reading has skipped."""
        return [problem for table in self._tables.values() for problem in table.problems]

    @property
    def newer(self) -> list[str]:
        """The problems with files that a newer version has written."""
        return [problem for table in self._tables.values() for problem in table.newer]

    def select_sweeps(
        self, known: Mapping[str, SweepRow], names: Iterable[str] | None
    ) -> dict[str, SweepRow]:
        """Return the named ones of the store's sweeps, or all; raise UsageError if there is none.

        Args:
            known: The sweeps that `sweeps` has read.
            names: Names of sweeps; empty for all.
        """
        from ascl.errors import unknown_name  # imports pydantic

        if not known:
            unread = "".join(f"; {problem}" for problem in self.problems)
            raise UsageError(
                f"no sweep in {self.address}; start one with `ascl-sweep run FILE` or select "
                f"another store with --store{unread}"
            )
        for name in names or ():
            if name not in known:
                raise UsageError(unknown_name("sweep", name, known))
        return {name: known[name] for name in names or known}

    def check_readable(self) -> None:
        """Raise StoreError if reading has skipped a file. Call this before writing or deleting.

        Skipped rows look like runs that never started: their results would be overwritten, and
        their checkpoints would be deleted.
        """
        if problems := self.newer or self.problems:
            more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
            raise StoreError(
                f"nothing was changed, because results would be lost: {problems[0]}{more}"
            )

    def read_all(self) -> None:
        """Read every column of every table, so that `problems` lists every unreadable file."""
        for table in self._tables.values():
            table.read()

    def version(self) -> tuple[File, ...]:
        """Return a value that changes whenever a row is written."""
        return tuple(file for folder in self._tables for file in self._files.list_files(folder))

    def snapshot(self) -> Snapshot:
        """Read everything that a driver needs."""
        version = self.version()
        # In reverse order of writing, so that a run that is read as done has all its epochs.
        return Snapshot(version, self.runs(), self.knn_curves(), self.sweeps())

    def runs(self) -> dict[str, RunRow]:
        """Return every run, in order of creation."""
        return {row.run_id: row for row in cols.read_rows(self.runs_table(), RunRow)}

    def sweeps(self) -> dict[str, SweepRow]:
        """Return every sweep, in order of its last start."""
        table = self._tables["sweeps"].read().sort_by([("started", "ascending")])
        return {row.name: row for row in cols.read_rows(table, SweepRow)}

    def epochs(self, run_ids: Collection[str] | None = None) -> dict[str, list[EpochMetrics]]:
        """Return each run's epochs in order. For millions of epochs, use `curves`."""
        table = self.epochs_table(["run_id", *cols.METRICS])
        if run_ids is not None:
            names = pa.array(list(run_ids), pa.string())
            table = table.filter(pc.is_in(table.column("run_id"), value_set=names))
        found: dict[str, list[EpochMetrics]] = {}
        for run_id, metrics in cols.read_epochs(table):
            found.setdefault(run_id, []).append(metrics)
        return found

    def runs_table(self) -> pa.Table:
        """Return the runs table: one row per run, in order of creation."""
        table = self._tables["runs"].read()
        return table.sort_by([("created", "ascending"), ("run_id", "ascending")])

    def epochs_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the epochs table: one row per run and epoch, grouped by run, in order of epoch."""
        return self._tables["epochs"].read(columns)

    def curves(self, metrics: Sequence[str]) -> Iterator[tuple[str, Curves]]:
        """Iterate over runs: `epoch` and the metrics as arrays, NaN where a metric is missing.

        Like `epochs`, but suitable for millions of epochs.
        """
        table = self.epochs_table([*cols.EPOCH_KEY, *metrics])
        if not len(table):
            return
        runs = encode_strings(table.column("run_id"))
        codes, names = runs.indices.to_numpy(zero_copy_only=False), runs.dictionary.to_pylist()
        columns = {
            name: table.column(name).to_numpy().astype(np.float64) for name in ("epoch", *metrics)
        }
        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(bounds):
            yield names[codes[start]], {k: v[start:end] for k, v in columns.items()}

    def knn_curves(self) -> dict[str, dict[int, float | None]]:
        """Return the online kNN accuracy of every run by epoch; None where it was not measured."""
        table = self.epochs_table(["run_id", "epoch", "knn_top1"])
        curves: dict[str, dict[int, float | None]] = {}
        columns = (column.to_pylist() for column in table.columns)
        for run_id, epoch, value in zip(*columns, strict=True):
            curves.setdefault(run_id, {})[epoch] = value
        return curves

    def last_epochs(self, metrics: Sequence[str]) -> dict[str, dict[str, float | None]]:
        """Return each run's metrics after its last epoch."""
        table = self.epochs_table(["run_id", *metrics])
        if not len(table):
            return {}
        runs = encode_strings(table.column("run_id"))
        ends = pc.run_end_encode(runs.indices).run_ends  # type: ignore[attr-defined]
        columns = [column.to_pylist() for column in table.take(pc.subtract(ends, 1)).columns]
        return {
            run_id: dict(zip(metrics, values, strict=True))
            for run_id, *values in zip(*columns, strict=True)
        }

    # --- work folders -------------------------------------------------------------------------

    def work(self, run_id: str) -> str:
        """Return the work folder of a run: an absolute path or an address."""
        return self._files.address_of(self._work(run_id))

    def log(self, run_id: str) -> str:
        """Return the log file of a run: an absolute path or an address."""
        return self._files.address_of(f"{self._work(run_id)}/{_LOG}")

    def log_text(self, run_id: str) -> str | None:
        """Return the content of a run's log; None if there is no log."""
        return self.work_text(run_id, _LOG)

    def work_text(self, run_id: str, name: str) -> str | None:
        """Return the content of a text file in a run's work folder.

        None if the file does not exist, or cannot be read because of a bad sector.
        """
        try:
            return self._files.read_text(f"{self._work(run_id)}/{name}")
        except OSError as error:
            if self._files.is_bad_sector(error):
                return None
            raise

    def _work(self, run_id: str) -> str:
        if not _RUN_ID.fullmatch(run_id):
            raise ValueError(f"a run id may contain letters, digits, -, _ and ., got {run_id!r}")
        return f"{_WORK}/{run_id}"

    def delete_work(self, run_id: str) -> None:
        """Delete the work folder of a run."""
        self._files.delete_folder(self._work(run_id))

    def work_ids(self) -> list[str]:
        """Return the ids of the runs that have a work folder."""
        return [name for name in self._files.list_folders(_WORK) if _RUN_ID.fullmatch(name)]

    def work_bytes(self, run_id: str) -> int:
        """Return the size of a run's work folder."""
        return self._files.count_bytes(self._work(run_id))

    # --- the driver ---------------------------------------------------------------------------

    def driver(self, *, or_stale: bool = False) -> LeaseHolder | None:
        """Return the process that is writing to the store; None if there is probably none.

        `or_stale` also returns a driver that looks dead because its lease looks stale.
        """
        return lease.find_holder(self._files, or_stale=or_stale)

    def request_stop(self) -> None:
        """Request that the driver stops; the driver polls this every second."""
        self._files.write(_STOP, str(time.time()).encode())

    def stop_requested(self) -> bool:
        """Whether a stop of the driver is requested."""
        return self._files.read_text(_STOP) is not None

    def clear_stop(self) -> None:
        """Withdraw the request to stop."""
        self._files.delete(_STOP)

    @contextmanager
    def writer(
        self, *, wait: bool = False, on_wait: Callable[[LeaseHolder], None] = lambda driver: None
    ) -> Iterator["Writer"]:
        """Open the store for writing. Holds the store's lock and flushes pending rows at the end.

        Args:
            wait: Whether to wait for another driver instead of raising StoreBusyError.
            on_wait: Called once for each driver that this process waits for. A driver that seems
                to be dead is always waited for, until its lease expires.
        """
        with lease.hold_lock(self._files, wait=wait, on_wait=on_wait) as lock:
            writer = Writer(self._files, lock)
            try:
                yield writer
            finally:
                if writer.pending:  # else the store may be unreachable
                    writer.flush()


class Writer:
    """Collects rows and writes them on `flush`. Opened by `Store.writer`."""

    def __init__(self, files: StoreFiles, lock: lease.Lock) -> None:
        self._lock = lock
        self._tables = {s.folder: ParquetTable(files, s) for s in cols.WRITE_ORDER}
        self._pending: dict[str, dict[object, Record]] = {name: {} for name in self._tables}
        for folder in self._tables:
            files.delete_half_written(folder)

    @property
    def pending(self) -> bool:
        """Whether there are rows to write."""
        return any(self._pending.values())

    def put_run(self, row: RunRow) -> None:
        """Record a run."""
        RunState(row.state)  # raises ValueError for an unknown state
        self._pending["runs"][row.run_id] = cols.build_record(row)

    def put_sweep(self, row: SweepRow) -> None:
        """Record a sweep."""
        self._pending["sweeps"][row.name] = cols.build_record(row)

    def put_epoch(self, run_id: str, metrics: EpochMetrics | Mapping[str, Scalar]) -> None:
        """Record an epoch's metrics; a mapping must include `epoch` and may include any metric."""
        values = vars(metrics) if isinstance(metrics, EpochMetrics) else metrics
        record = cols.build_epoch_record(run_id, values)
        self._pending["epochs"][run_id, record["epoch"]] = record

    def flush(self) -> None:
        """Write pending rows. If an OSError is raised, rows that were not written stay pending."""
        self.beat()
        for name, table in self._tables.items():
            if pending := self._pending[name]:
                self.beat()  # writing the previous table may have taken long
                table.append(list(pending.values()))
                self._pending[name] = {}
                self.beat()
                with suppress(OSError):  # the rows are written; the next flush retries the merge
                    table.merge_if_many()

    def beat(self) -> None:
        """Check that this process holds the lock; renew the lock if that is due.

        Raises:
            StoreBusyError: The lock expired, and another driver has acquired it.
            StoreError: The lock or the store was deleted.
        """
        self._lock.beat()

    def compact(self) -> dict[str, tuple[int, int]]:
        """Merge each table's files into one; return the numbers of files before and after."""
        self.flush()
        merged = {}
        for name, table in self._tables.items():
            self.beat()
            merged[name] = table.compact()
        return merged

    def salvage(self) -> list[Salvaged]:
        """Move unreadable files to the folder `damaged` and keep the rows that can be read."""
        self.beat()
        return [file for table in self._tables.values() for file in table.salvage()]


def compact(
    store: Store, on_wait: Callable[[LeaseHolder], None] = lambda driver: None
) -> dict[str, tuple[int, int]]:
    """Merge the files of a store.

    Args:
        store: The store.
        on_wait: Called if this waits for the lease of a driver that seems to be dead.

    Raises:
        StoreBusyError: A driver is writing to the store.
        StoreError: A file cannot be read; nothing was merged.
    """
    with store.writer(on_wait=on_wait) as writer:
        store.read_all()
        store.check_readable()
        return writer.compact()
