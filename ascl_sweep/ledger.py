"""The ledger: what was planned, run and measured, in Parquet files; the only state of sweeps.

    <store>/runs/*.parquet      a row per run: its config, its state, what it came to
    <store>/epochs/*.parquet    a row per run and epoch
    <store>/sweeps/*.parquet    a row per sweep: its YAML
    <store>/work/<run id>/      the run's own files: checkpoint, log
    <store>/stop                there if the driver is asked to stop

Anyone may read at any time; one driver at a time writes. A row that is written again replaces the
former one.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from ascl_sweep import lock
from ascl_sweep.lock import Driver, LedgerBusy
from ascl_sweep.parquet import ROLE_KEY, Files, Kind, Record
from ascl_sweep.store import Store

__all__ = ["STATES", "Driver", "Ledger", "LedgerBusy", "RunRow", "SweepRow", "Writer", "compact"]

STATES = ("planned", "running", "done", "stopped", "diverged", "failed", "lost")
Scalar = bool | int | float | str | None
_WORK, _STOP, _LOG = "work", "stop", "log.txt"
MANY = 2000  # values that are worth numpy's way out of Arrow, which loads pandas first


@dataclass(frozen=True)
class RunRow:
    """One run. Its config's keys are columns of their own, named as the keys are."""

    run_id: str
    sweeps: tuple[str, ...]  # all that want it
    config: Mapping[str, Scalar]  # dotted key → value
    phase: str  # search | final
    scale: str  # full | laptop
    state: str = "planned"
    error: str | None = None  # of failed and diverged runs, one sentence
    stopped_because: str | None = None  # of stopped runs: rule, epoch, cut-off
    audit: bool = False  # the rule would have stopped it; let through to measure false stops
    epochs: int = 0  # done; the column is `epochs_done`, as `epochs` is the config's
    knn_last_top1: float | None = None
    knn_best_top1: float | None = None
    probe_top1: float | None = None
    probe_best_top1: float | None = None
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    images_per_second: float | None = None
    peak_memory_gb: float | None = None  # at its highest, of one device
    device_hours: float = 0.0
    workers: int = 1
    host: str | None = None
    device: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    python: str | None = None
    torch: str | None = None
    ray: str | None = None
    ascl_sweep: str | None = None
    created: float | None = None  # seconds since 1970, kept to the microsecond
    started: float | None = None
    ended: float | None = None
    log: str | None = None
    idle: tuple[str, ...] = ()  # config keys that cannot change its numbers: τ' of a plain MoCo
    backprops: int | None = None  # of its method: gradients through the encoder per image
    ema: bool | None = None  # of its method: whether a momentum encoder goes along


@dataclass(frozen=True)
class SweepRow:
    """One sweep, as it was last started."""

    name: str
    text: str  # the YAML
    file: str
    overrides: tuple[str, ...]
    scale: str
    started: float
    planned: int  # runs
    digest: str = "{}"  # what a report must know of it, as JSON


# --- columns ----------------------------------------------------------------------------------

_TIME = pa.timestamp("us", "UTC")
_TIMES = ("created", "started", "ended")
_TYPES: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    tuple[str, ...]: pa.list_(pa.string()),
}
_TYPES |= {t | None: arrow for t, arrow in list(_TYPES.items())}  # type: ignore[operator]
_NONE_KEYS = "none_keys"  # config keys that are None: null is also what other methods' keys are


def _column(field: "Field[Any]") -> str:
    return "epochs_done" if field.name == "epochs" else field.name


def _kind(folder: str, key: str, row: type, role: str) -> Kind:
    own = [f for f in fields(row) if f.name != "config"]
    types = {_column(f): _TIME if f.name in _TIMES else _TYPES[f.type] for f in own}
    if row is RunRow:
        types[_NONE_KEYS] = pa.list_(pa.string())
    required = tuple(_column(f) for f in own if f.default is MISSING)
    return Kind(folder, (key,), types, required, role)


_RUNS = _kind("runs", "run_id", RunRow, "config")
_SWEEPS = _kind("sweeps", "name", SweepRow, "none")
_EPOCH_KEY = ("run_id", "epoch")
_EPOCH_TYPES = {"run_id": pa.dictionary(pa.int32(), pa.string()), "epoch": pa.int64()}
_EPOCHS = Kind("epochs", _EPOCH_KEY, _EPOCH_TYPES, _EPOCH_KEY, "metric")
# A run that is recorded as done has all its epochs recorded, and a sweep's runs have their sweep.
_WRITTEN_IN_ORDER = (_SWEEPS, _EPOCHS, _RUNS)


def _record(row: RunRow | SweepRow) -> Record:
    record: Record = {}
    for f in fields(row):
        value = getattr(row, f.name)
        if f.name == "config":
            record |= {key: _checked(key, v, _RUNS) for key, v in value.items()}
            record[_NONE_KEYS] = [key for key, v in value.items() if v is None]
        elif f.name in _TIMES:
            record[f.name] = None if value is None else round(value * 1_000_000)
        else:
            record[_column(f)] = _storable(value)
    return record


def _checked(name: str, value: object, kind: Kind) -> object:
    if name in kind.types:
        raise ValueError(f"a {kind.role} must not be named as a column of the ledger, got {name!r}")
    if not isinstance(value, Scalar):
        raise TypeError(
            f"a {kind.role} must be a bool, int, float, str or None, "
            f"got {name}={value!r} ({type(value).__name__})"
        )
    return _storable(value)


def _storable(value: Any) -> Any:
    """Text as UTF-8 can hold it: a message may quote a file's name, which may be any bytes."""
    if value is None or type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, str):
        plain = type(value) is str and value.isascii()
        return value if plain else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, tuple):
        return [_storable(item) for item in value]
    # Without its subclass: np.float64 is a float, and a column has one type.
    return next((t(value) for t in _AS_THEY_ARE if isinstance(value, t)), value)


_AS_THEY_ARE = (bool, int, float)  # nearly all values of a run's row, which is made at each epoch


def _values(column: "pa.ChunkedArray[Any]") -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return [None if us is None else us / 1e6 for us in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_list(column.type):
        return [None if items is None else tuple(items) for items in column.to_pylist()]
    if len(column) > MANY and column.null_count == 0 and not pa.types.is_null(column.type):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]  # far quicker
    return column.to_pylist()


def _rows(table: pa.Table, row: type) -> Iterator[dict[str, Any]]:
    """A dict per row for the fields of a row class, with defaults for what is null."""
    names, columns = [], []
    for f in fields(row):
        if f.name == "config":
            names.append(f.name)
            columns.append(list(_configs(table)))
        elif _column(f) in table.column_names:
            names.append(f.name)
            values = _values(table.column(_column(f)))
            if f.default not in (MISSING, None):
                values = [f.default if value is None else value for value in values]
            columns.append(values)
    for row_values in zip(*columns, strict=True):
        yield dict(zip(names, row_values, strict=True))


def _configs(table: pa.Table) -> Iterator[dict[str, Scalar]]:
    """Each run's config: its keys are the marked columns with a value, and those noted as None."""
    marked = [f.name for f in table.schema if (f.metadata or {}).get(ROLE_KEY) == b"config"]
    columns = [_values(table.column(name)) for name in marked]
    for none_keys, *values in zip(_values(table.column(_NONE_KEYS)), *columns, strict=True):
        config = {k: v for k, v in zip(marked, values, strict=True) if v is not None}
        yield config | dict.fromkeys(none_keys) if none_keys else config


Curves = dict[str, NDArray[np.float64]]
"""A run's epochs, by the name of what was measured."""

# --- reading ----------------------------------------------------------------------------------


class Ledger:
    """A store, for reading. Making one creates nothing; the store need not exist."""

    def __init__(self, store: str | Path | FileSystem) -> None:
        self._store = Store(store)
        self.address = self._store.address
        self._tables = {kind.folder: Files(self._store, kind) for kind in _WRITTEN_IN_ORDER}

    @property
    def far(self) -> bool:
        """Whether the store is on another machine: it may be away, and come back."""
        return self._store.folder is None

    @property
    def problems(self) -> list[str]:
        """Sentences on the files that reading has skipped."""
        return [problem for table in self._tables.values() for problem in table.problems]

    @property
    def newer(self) -> list[str]:
        """Those of the problems that are files of a newer version, which may hold anything."""
        return [problem for table in self._tables.values() for problem in table.newer]

    def runs(self) -> dict[str, RunRow]:
        """Every run, in order of creation."""
        return {row["run_id"]: RunRow(**row) for row in _rows(self.runs_table(), RunRow)}

    def sweeps(self) -> dict[str, SweepRow]:
        table = self._tables["sweeps"].read().sort_by([("started", "ascending")])
        return {row["name"]: SweepRow(**row) for row in _rows(table, SweepRow)}

    def epochs(self, run_ids: Collection[str] | None = None) -> dict[str, list[dict[str, Any]]]:
        """Each run's epochs in order, with all their metrics; one that a run lacks is None.

        For some runs, or few in all: of millions of epochs take `curves`.
        """
        table = self.epochs_table()
        if run_ids is not None:
            names = pa.array(list(run_ids), pa.string())
            table = table.filter(pc.is_in(table.column("run_id"), value_set=names))
        names_in_rows = table.column("run_id").cast(pa.string()).to_pylist()
        table = table.drop_columns(["run_id"])
        columns = [_values(column) for column in table.columns]
        found: dict[str, list[dict[str, Any]]] = {}
        for run_id, *values in zip(names_in_rows, *columns, strict=True):
            epoch = dict(zip(table.column_names, values, strict=True))
            found.setdefault(run_id, []).append(epoch)
        return found

    def runs_table(self) -> pa.Table:
        """Every run once, in order of creation."""
        return (
            self._tables["runs"].read().sort_by([("created", "ascending"), ("run_id", "ascending")])
        )

    def epochs_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Every epoch once, those of a run together and in order."""
        return self._tables["epochs"].read(columns)

    def curves(self, metrics: Sequence[str]) -> Iterator[tuple[str, Curves]]:
        """Each run's epochs as arrays: `epoch` and these metrics, NaN where one was not measured.

        As `epochs`, for millions of them.
        """
        table = self.epochs_table([*_EPOCH_KEY, *metrics])
        if not len(table):
            return
        runs: Any = table.column("run_id").unify_dictionaries().combine_chunks()
        codes, names = runs.indices.to_numpy(zero_copy_only=False), runs.dictionary.to_pylist()
        columns = {
            name: table.column(name).to_numpy().astype(np.float64) for name in ("epoch", *metrics)
        }
        # The epochs of a run stand together and in order.
        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(bounds):
            yield names[codes[start]], {k: v[start:end] for k, v in columns.items()}

    def last_epochs(self, metrics: Sequence[str]) -> dict[str, dict[str, float | None]]:
        """Each run's metrics after its last epoch."""
        table = self.epochs_table(["run_id", *metrics])
        run_ids = table.column("run_id").unify_dictionaries().combine_chunks()
        if not len(table):
            return {}
        # The epochs of a run stand together and in order.
        ends = pc.run_end_encode(run_ids.indices).run_ends  # type: ignore[attr-defined]
        last = table.take(pc.subtract(ends, 1))
        columns = [last.column(name).to_pylist() for name in ("run_id", *metrics)]
        return {
            run_id: dict(zip(metrics, values, strict=True))
            for run_id, *values in zip(*columns, strict=True)
        }

    # --- the runs' own files ------------------------------------------------------------------

    def work(self, run_id: str) -> str:
        """Where a run's own files lie: an absolute path, or an address."""
        return self._store.place(self._work(run_id))

    def log(self, run_id: str) -> str:
        """Where a run's output is."""
        return self._store.place(f"{self._work(run_id)}/{_LOG}")

    def log_text(self, run_id: str) -> str | None:
        """A run's output; None if there is none."""
        return self._store.text(f"{self._work(run_id)}/{_LOG}")

    def _work(self, run_id: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", run_id):
            raise ValueError(f"a run id must be letters, digits, -, _ and ., got {run_id!r}")
        return f"{_WORK}/{run_id}"

    def delete_work(self, run_id: str) -> None:
        self._store.delete_folder(self._work(run_id))

    def work_ids(self) -> list[str]:
        return self._store.folders(_WORK)

    def work_bytes(self, run_id: str) -> int:
        return self._store.bytes_in(self._work(run_id))

    # --- the driver ---------------------------------------------------------------------------

    def driver(self) -> Driver | None:
        """Who writes to the store now; None if nobody alive does."""
        return lock.holder(self._store)

    def request_stop(self) -> None:
        """Ask the driver to stop, which looks now and then."""
        self._store.write(_STOP, str(time.time()).encode())

    def stop_requested(self) -> bool:
        return self._store.text(_STOP) is not None

    def clear_stop(self) -> None:
        self._store.delete(_STOP)

    @contextmanager
    def writer(
        self, *, wait: bool = False, on_wait: Callable[[Driver], None] = lambda driver: None
    ) -> Iterator["Writer"]:
        """Be the one who writes; what is pending at the end is flushed. Raises LedgerBusy."""
        with lock.locked(self._store, wait=wait, on_wait=on_wait) as held:
            writer = Writer(self._store, held)
            try:
                yield writer
            finally:
                if writer.pending:  # or else we need nothing of a store that may be away
                    writer.flush()


# --- writing ----------------------------------------------------------------------------------


class Writer:
    """Takes rows and writes them with `flush`; made by `Ledger.writer`."""

    def __init__(self, store: Store, held: lock.Lock) -> None:
        self._lock = held
        self._tables = {kind.folder: Files(store, kind) for kind in _WRITTEN_IN_ORDER}
        self._pending: dict[str, dict[object, Record]] = {name: {} for name in self._tables}
        for folder in self._tables:
            store.delete_half_written(folder)

    @property
    def pending(self) -> bool:
        """Whether there is anything to write."""
        return any(self._pending.values())

    def put_run(self, row: RunRow) -> None:
        if row.state not in STATES:
            raise ValueError(f"a run's state must be one of {', '.join(STATES)}, got {row.state!r}")
        self._put("runs", row.run_id, _record(row))

    def put_sweep(self, row: SweepRow) -> None:
        self._put("sweeps", row.name, _record(row))

    def put_epoch(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        """Record an epoch's metrics; one of them is `epoch`."""
        epoch = metrics.get("epoch")
        if not isinstance(epoch, int) or not 0 <= epoch < 2**31:
            raise ValueError(f"metrics must have their epoch, 0 or above, got epoch={epoch!r}")
        rest = {k: _checked(k, v, _EPOCHS) for k, v in metrics.items() if k != "epoch"}
        self._put("epochs", (run_id, epoch), {"run_id": run_id, "epoch": int(epoch), **rest})

    def _put(self, table: str, key: object, record: Record) -> None:
        self._pending[table][key] = record

    def flush(self) -> None:
        """Write what is pending. If it raises OSError, what was not written stays pending."""
        self.beat()
        for name, table in self._tables.items():
            if pending := self._pending[name]:
                table.append(list(pending.values()))
                self._pending[name] = {}
                with suppress(OSError):  # the rows are safe; the next flush tries again
                    table.tidy()

    def beat(self) -> None:
        """Say that we live, between flushes that lie more than a minute apart.

        Raises LedgerBusy if we said so too late and another driver took over.
        """
        self._lock.beat()

    def compact(self) -> dict[str, tuple[int, int]]:
        """Merge each table's files into one; how many files each had and has."""
        self.flush()
        return {name: table.compact() for name, table in self._tables.items()}


def compact(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """As `Writer.compact`, for a store that nobody writes to."""
    with ledger.writer() as writer:
        return writer.compact()
