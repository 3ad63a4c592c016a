"""Columns of the store's tables, and conversion between the rows of `contracts` and the columns.

Each config key of a run and each metric of an epoch is a column of the same name. If runs disagree
on the type of a key, its column is text for all of them: `config_json` keeps each run's own values.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import TypeVar

import pyarrow as pa

from ascl.metrics import EpochMetrics
from ascl_sweep.contracts import RunRow, RunState, Scalar, SweepRow
from ascl_sweep.store.arrow import ROLE_KEY, Column, Record, TableSchema

_TIME = pa.timestamp("us", "UTC")
_TIMES = ("created", "started", "ended")
_TYPES: dict[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    RunState: pa.string(),
    tuple[str, ...]: pa.list_(pa.string()),
}
_TYPES |= {t | None: arrow for t, arrow in list(_TYPES.items())}  # type: ignore[operator]
_CONFIG = "config_json"  # the config as JSON; null in rows of earlier versions
_NONE_KEYS = "none_keys"  # config keys whose value is None; a null may also be an absent key
_PLAIN = (bool, int, float)
Row = TypeVar("Row", RunRow, SweepRow)


def _column(field: "Field[object]") -> str:
    return "epochs_done" if field.name == "epochs" else field.name


def _schema(folder: str, key: str, row: type, role: str) -> TableSchema:
    own = [f for f in fields(row) if f.name != "config"]
    types = {_column(f): _TIME if f.name in _TIMES else _TYPES[f.type] for f in own}
    if row is RunRow:
        types |= {_NONE_KEYS: pa.list_(pa.string()), _CONFIG: pa.string()}
    required = tuple(_column(f) for f in own if f.default is MISSING)
    return TableSchema(folder, (key,), types, required, role)


RUNS = _schema("runs", "run_id", RunRow, "config")
SWEEPS = _schema("sweeps", "name", SweepRow, "none")
EPOCH_KEY = ("run_id", "epoch")
_EPOCH_TYPES = {"run_id": pa.dictionary(pa.int32(), pa.string()), "epoch": pa.int64()}
EPOCHS = TableSchema("epochs", EPOCH_KEY, _EPOCH_TYPES, EPOCH_KEY, "metric")
METRICS = tuple(f.name for f in fields(EpochMetrics))
WRITE_ORDER = (SWEEPS, EPOCHS, RUNS)
"""A crash between writes leaves no done run without its epochs, and no run without its sweep."""


# --- rows → records ---------------------------------------------------------------------------


def build_record(row: RunRow | SweepRow) -> Record:
    """Convert a run or a sweep to a record of its table."""
    record: Record = {}
    for f in fields(row):
        value = getattr(row, f.name)
        if f.name == "config":
            config = {key: _check(key, v, RUNS) for key, v in value.items()}
            record |= config
            record[_NONE_KEYS] = [key for key, v in config.items() if v is None]
            record[_CONFIG] = json.dumps(config)
        elif f.name in _TIMES:
            record[f.name] = None if value is None else round(value * 1_000_000)
        elif isinstance(value, tuple):
            record[_column(f)] = [str(_simplify(item)) for item in value]
        else:
            record[_column(f)] = _simplify(value)
    return record


def build_epoch_record(run_id: str, metrics: Mapping[str, Scalar]) -> Record:
    """Convert an epoch to a record of its table."""
    epoch = metrics.get("epoch")
    if not isinstance(epoch, int) or not 0 <= epoch < 2**31:
        raise ValueError(f"metrics must include an epoch of 0 or more, got epoch={epoch!r}")
    rest = {k: _check(k, v, EPOCHS) for k, v in metrics.items() if k != "epoch"}
    return {"run_id": run_id, "epoch": int(epoch), **rest}


def _check(name: str, value: object, schema: TableSchema) -> Scalar:
    if name in schema.types:
        raise ValueError(f"a {schema.role} key must not be a fixed column, got {name!r}")
    if not isinstance(value, Scalar):
        raise TypeError(
            f"a {schema.role} value must be a bool, int, float, str or None, "
            f"got {name}={value!r} ({type(value).__name__})"
        )
    return _simplify(value)


def _simplify(value: Scalar) -> Scalar:
    """Convert to a plain type and valid UTF-8: an error may quote a path that is not UTF-8."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        plain = type(value) is str and value.isascii()
        return value if plain else value.encode("utf-8", "backslashreplace").decode()
    return next(t(value) for t in _PLAIN if isinstance(value, t))  # np.float64 is a float


# --- tables → rows ----------------------------------------------------------------------------


def read_rows(table: pa.Table, row: type[Row]) -> Iterator[Row]:
    """Read the rows of the runs or sweeps table; a null becomes the field's default."""
    build: Callable[..., Row] = row
    columns: dict[str, list[object]] = {}
    for f in fields(row):
        if f.name == "config":
            columns[f.name] = list(_read_configs(table))
        elif _column(f) in table.column_names:
            values = _read_column(table.column(_column(f)))
            if f.type is RunState:
                values = [RunState(str(value)) for value in values]
            if f.default not in (MISSING, None):
                values = [f.default if value is None else value for value in values]
            columns[f.name] = values
    for row_values in zip(*columns.values(), strict=True):
        yield build(**dict(zip(columns, row_values, strict=True)))


def read_epochs(table: pa.Table) -> Iterator[tuple[str, EpochMetrics]]:
    """Read the epochs table: the run id and the metrics of each row."""
    columns = []
    for f in fields(EpochMetrics):
        values = table.column(f.name).to_pylist()
        # A store of another version may lack a metric.
        default = math.nan if f.default is MISSING else f.default
        columns.append([default if value is None else value for value in values])
    run_ids = table.column("run_id").to_pylist()
    for run_id, *values in zip(run_ids, *columns, strict=True):
        yield run_id, EpochMetrics(*values)


def _read_column(column: Column) -> list[object]:
    if pa.types.is_timestamp(column.type):
        return [None if us is None else us / 1e6 for us in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_list(column.type):
        return [None if items is None else tuple(items) for items in column.to_pylist()]
    return list(column.to_pylist())


def _read_configs(table: pa.Table) -> Iterator[dict[str, Scalar]]:
    """Read each run's config."""
    texts = table.column(_CONFIG).to_pylist()
    configs = _read_config_columns(table) if None in texts else ({} for _ in texts)
    for text, config in zip(texts, configs, strict=True):
        yield config if text is None else json.loads(text)


def _read_config_columns(table: pa.Table) -> Iterator[dict[str, Scalar]]:
    """Read each run's config columns that have a value, and the keys in none_keys."""
    names = [f.name for f in table.schema if (f.metadata or {}).get(ROLE_KEY) == b"config"]
    columns = [table.column(name).to_pylist() for name in names]
    none_keys = _read_column(table.column(_NONE_KEYS))
    for none, *values in zip(none_keys, *columns, strict=True):
        config = {k: v for k, v in zip(names, values, strict=True) if v is not None}
        yield config | dict.fromkeys(none) if none else config
