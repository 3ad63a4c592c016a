"""Tables of records in numbered Parquet files: of two rows with one key the later written wins.

A table is a folder. Each `append` adds a file with the next number. A merge puts its result in
place of the *newest* file it merges, in one step, and then deletes the others: a crash in between
leaves rows twice, of which the older lose, and nobody who reads meanwhile can miss a row.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ascl_sweep.store import Store

FORMAT = 1
FORMAT_KEY, ROLE_KEY = b"ascl_sweep.format", b"ascl_sweep.role"
MANY_FILES = 100  # from here on the writer merges
READ_ATTEMPTS = 10
FEW_ROWS = 1000
ROW_GROUP = 1 << 18
_NAME = re.compile(r"[0-9]{8,}\.parquet")

Record = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What all files of a table have in common."""

    folder: str
    key: tuple[str, ...]
    types: Mapping[str, pa.DataType]  # of the columns that the table has of itself
    required: tuple[str, ...]  # without these a file is not ours
    role: str  # of all other columns, which take their type from their values


class Unreadable(ValueError):
    """A file that was skipped, in one sentence with the way out."""


class Newer(Unreadable):
    """A file of a version that is newer than this one."""


class Files:
    """The files of one table. Only one `Files` at a time may write, under the store's lock."""

    def __init__(self, store: Store, kind: Kind) -> None:
        self._store, self._kind = store, kind
        self.problems: list[str] = []
        """What the last `read` skipped."""
        self.newer: list[str] = []
        """Of those, what a newer version wrote."""
        self._sizes: dict[str, int] | None = None

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Every key once, ordered by key (strings in the order they were first written)."""
        wanted = None if columns is None else list(dict.fromkeys([*self._kind.key, *columns]))
        for left in reversed(range(READ_ATTEMPTS)):
            try:
                tables = self._load(wanted)
                break
            except FileNotFoundError:  # merged into another since we listed them
                if not left:
                    raise
        table = latest(unified([self._empty(wanted), *tables]), self._kind.key)
        if columns is None:
            return table
        for name in set(columns) - set(table.column_names):
            table = table.append_column(name, pa.nulls(len(table)))
        return table.select(list(columns))

    def _load(self, columns: Sequence[str] | None) -> list[pa.Table]:
        self.problems, self.newer, tables = [], [], []
        for file in self._store.files(self._kind.folder):
            if file.name.endswith(".parquet"):
                try:
                    tables.append(self._table(file.name, columns))
                except Unreadable as problem:
                    self.problems.append(str(problem))
                    if isinstance(problem, Newer):
                        self.newer.append(str(problem))
        return tables

    def _empty(self, columns: Sequence[str] | None) -> pa.Table:
        names = [n for n in self._kind.types if columns is None or n in columns]
        # Not by `empty_table`, which looks for pandas and so loads it.
        schema = pa.schema([(name, self._kind.types[name]) for name in names])
        return pa.Table.from_batches([], schema)

    def _table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        try:
            return self._parsed(name, columns)
        except Unreadable:
            if self._store.folder is not None:
                raise
        # Far away a file is fetched by the size it had: of a longer one in its place, a part.
        return self._parsed(name, columns)

    def _parsed(self, name: str, columns: Sequence[str] | None) -> pa.Table:
        place, kind = self._store.place(name), self._kind
        if not _NAME.fullmatch(name.rpartition("/")[2]):
            raise Unreadable(
                f"{place} was skipped: the ledger's files have numbers for names; move it elsewhere"
            )
        with closing(self._store.open(name)) as source:
            try:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                schema = file.schema_arrow
                written = (schema.metadata or {}).get(FORMAT_KEY)
                if written is None or (written == b"1" and not {*kind.required} <= {*schema.names}):
                    raise Unreadable(
                        f"{place} was skipped: it is no file of the ledger's {kind.folder}; "
                        "move it elsewhere"
                    )
                if int(written) > FORMAT:
                    raise Newer(
                        f"{place} was skipped: it has ledger format {int(written)}, this version "
                        f"reads {FORMAT}; upgrade ascl-sweep"
                    )
                present = None if columns is None else [c for c in columns if c in schema.names]
                table = file.read(present).replace_schema_metadata(None)
                own = [f.with_type(kind.types.get(f.name, f.type)) for f in table.schema]
                table = _cast(table, pa.schema(own))
                if any(table.column(name).null_count for name in kind.key):
                    raise ValueError("a key is missing")
                return table
            except (Unreadable, MemoryError):
                raise
            except Exception as error:  # there is no common base for what a bad file can raise
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the file may be good
                raise Unreadable(
                    f"{place} was skipped: it is damaged or not Parquet; delete it, "
                    "or put it back from a copy"
                ) from error

    # --- only under the store's lock ----------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """Write records, whose keys differ, as a new file."""
        sizes = self._listed()
        last = max(map(_number, sizes), default=0)
        table = _of_records(records, self._kind)
        self._write(f"{self._kind.folder}/{last + 1:08d}.parquet", table)

    def tidy(self) -> None:
        """Merge if there are many files, such that a row is rewritten only log(rows) times.

        Merged is from the oldest file that is no larger than all newer ones together; what stays
        is each time twice as large at least, so it is few.
        """
        sizes = self._listed()
        if len(sizes) <= MANY_FILES:
            return
        names = sorted(sizes, key=_number)
        newer, start = 0, len(names)
        for i in reversed(range(len(names))):
            start = i if sizes[names[i]] <= newer else start
            newer += sizes[names[i]]
        self._merge(names[start:])

    def compact(self) -> tuple[int, int]:
        """Merge all files into one; how many there were and are."""
        before = len(self._listed())
        self._merge(sorted(self._listed(), key=_number))
        return before, len(self._listed())

    def _merge(self, names: Iterable[str]) -> None:
        """Merge neighbours. None is moved past an unreadable file, whose rows may come back."""
        run: list[tuple[str, pa.Table]] = []
        try:
            for name in names:
                try:
                    run.append((name, self._table(name)))
                except Unreadable:
                    self._merge_tables(run)
                    run = []
            self._merge_tables(run)
        except BaseException:
            self._sizes = None  # no longer known
            raise

    def _merge_tables(self, run: list[tuple[str, pa.Table]]) -> None:
        if len(run) < 2:
            return
        *older, newest = [name for name, _ in run]
        self._write(newest, latest(unified([table for _, table in run]), self._kind.key))
        for name in older:
            self._store.delete(name)
            del self._listed()[name]

    def _write(self, name: str, table: pa.Table) -> None:
        table = table.replace_schema_metadata({FORMAT_KEY: str(FORMAT)})
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            # Few rows take longer to unpack than to read.
            compression="zstd" if len(table) > FEW_ROWS else "none",
            row_group_size=ROW_GROUP,
            use_dictionary=[f.name for f in table.schema if not _is_number(f.type)],  # type: ignore[arg-type]
            write_page_checksum=True,
        )
        data = sink.getvalue()
        self._store.write(name, data)
        self._listed()[name] = data.size

    def _listed(self) -> dict[str, int]:
        if self._sizes is None:
            files = self._store.files(self._kind.folder)
            named = [f for f in files if _NAME.fullmatch(f.name.rpartition("/")[2])]
            self._sizes = {file.name: file.bytes for file in named}
        return self._sizes


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].partition(".")[0])


# --- records → table --------------------------------------------------------------------------


def _of_records(records: Sequence[Record], kind: Kind) -> pa.Table:
    arrays, fields = [], []
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record.get(name) for record in records]
        known = kind.types.get(name)
        array = pa.array(values, known) if known is not None else _column(values)
        role = None if known is not None else {ROLE_KEY: kind.role}
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=role))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _column(values: list[Any]) -> Any:
    """An array of the one type that the values have; text if they have none in common."""
    types = {type(value) for value in values if value is not None}
    if types == {int, float}:
        return pa.array(values, pa.float64())
    try:
        if len(types) <= 1:
            return pa.array(values)
    except OverflowError:  # an integer of more than 64 bits
        pass
    return pa.array([value if value is None else as_text(value) for value in values])


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- tables → one table -----------------------------------------------------------------------


def unified(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after the other, with the columns of all of them."""
    fields: dict[str, list[pa.Field[Any]]] = {}
    for schema in dict.fromkeys(table.schema for table in tables):
        for field in schema:
            fields.setdefault(field.name, []).append(field)
    whole = pa.schema(
        pa.field(name, common_type(f.type for f in found), metadata=found[0].metadata)
        for name, found in fields.items()
    )
    return pa.concat_tables(_cast(table, whole) for table in tables).unify_dictionaries()


def common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """Null goes into anything, integers into floats; what else differs becomes text."""
    found = {t for t in types if not pa.types.is_null(t)}
    if len(found) <= 1:
        return found.pop() if found else pa.null()
    return pa.float64() if all(_is_number(t) for t in found) else pa.string()


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_floating(t)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly these columns; those it lacks are null."""
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = dict(zip(table.column_names, table.columns, strict=True))
    arrays: list[Any] = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            arrays.append(pa.nulls(len(table), field.type))
        else:
            # Unsafe, as an integer above 2⁵³ is to become the nearest float.
            arrays.append(
                column if column.type == field.type else column.cast(field.type, safe=False)
            )
    return pa.Table.from_arrays(arrays, schema=schema)


def latest(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, in order of the key."""
    if not len(table):
        return table
    codes = np.zeros(len(table), np.int64)
    for name in key:
        code = _codes(table.column(name))
        codes = codes * (int(code.max()) + 1) + code
    if (codes[1:] > codes[:-1]).all():
        return table  # as a merge writes it
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    last = np.append(codes[1:] != codes[:-1], True)
    chosen = np.ascontiguousarray(order[last], np.int64)
    rows = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen.data)])
    return table.take(rows)


def _codes(column: "pa.ChunkedArray[Any]") -> Any:
    """Small integers from 0 that tell a key column's values apart, in their order if integers."""
    if pa.types.is_integer(column.type):
        values = np.concatenate([_numbers(chunk) for chunk in column.cast(pa.int64()).chunks])
        return values - values.min()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks: list[Any] = column.unify_dictionaries().chunks
    return np.concatenate([_numbers(chunk.indices.cast(pa.int64())) for chunk in chunks])


def _numbers(array: Any) -> Any:
    """An int64 array without nulls, for numpy; pyarrow's own way would load pandas first."""
    if not len(array):
        return np.zeros(0, np.int64)
    values = np.frombuffer(array.buffers()[1], np.int64)
    return values[array.offset : array.offset + len(array)]
