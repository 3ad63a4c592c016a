"""Tables of rows in numbered Parquet files. A later row replaces an earlier row with the same key.

A table is a folder of files `<number>-<writer>.parquet`, whose order is that of number and writer.
Each `append` adds a file with the next number. A merge adds a file `<number>-<writer>-<merge>`,
named after and ordered with the *newest* of the merged files, and then deletes the merged files. A
crash in between leaves duplicate rows, of which readers ignore the older ones.

Writers should hold the store's lock, but no row is lost if two of them write at the same time:

- Names are unique and files are never replaced.
- `append` returns once its file is the last one of a new listing. Else it adds the rows again.
- A merge takes all files of a listing between its oldest and its newest input.

Versions before 0.1.0 named files `<number>.parquet`; those are read and come first of their number.
They report the new names as unknown; the content is the same, so the format number is the same.
"""

import errno
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ascl_sweep.errors import StoreError
from ascl_sweep.store.arrow import Record, TableSchema, build_table, cast, keep_latest, unify
from ascl_sweep.store.filesystem import StoreFiles

FORMAT = 1
FORMAT_KEY = b"ascl_sweep.format"
DAMAGED = "damaged"  # folder of files that `salvage` has replaced
MANY_FILES = 100  # the writer merges files above this number
# A listing may be outdated: files were merged after it, or a network file system cached it. The
# pauses between the attempts add up to 102 seconds; an NFS client caches a listing for up to 60.
READ_ATTEMPTS = 12
FIRST_PAUSE = 0.05
FEW_ROWS = 1000
ROW_GROUP = 1 << 18
_NAME = re.compile(r"([0-9]{8,})(?:-([0-9a-f]+))?(?:-([0-9a-f]+))?\.parquet")
_LEGACY_WRITER = "0"  # in the names of merged files of earlier versions


class UnreadableFile(StoreError):
    """The file is skipped; the message says how to fix it."""


class NewerFile(UnreadableFile):
    """The file was written by a newer version of ascl-sweep."""


@dataclass(frozen=True)
class Salvaged:
    """What was recovered from an unreadable file."""

    name: str
    moved_to: str
    rows: int
    """Number of rows that were recovered."""
    lost: int
    """Number of rows that were not recovered, as far as is known."""
    columns: tuple[str, ...]
    """Columns of which values were lost."""
    is_table: bool
    """Whether the file is one of the table, and the list of its columns is readable."""


class ParquetTable:
    """Files of one table. Writers must hold the store's lock."""

    def __init__(self, files: StoreFiles, schema: TableSchema) -> None:
        self._files, self._schema = files, schema
        self.problems: list[str] = []
        """Messages about the files that the last `read` skipped."""
        self.newer: list[str] = []
        """The problems with files that a newer version has written."""
        self._sizes: dict[str, int] | None = None

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the latest row of each key, sorted by key (strings in order of first appearance)."""
        wanted = None if columns is None else list(dict.fromkeys([*self._schema.key, *columns]))
        for attempt in range(READ_ATTEMPTS):
            try:
                tables = self._read_files(wanted)
                break
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE) or attempt + 1 == READ_ATTEMPTS:
                    raise
                time.sleep(FIRST_PAUSE * 2**attempt)
        table = keep_latest(unify([self._empty(wanted), *tables]), self._schema.key)
        if columns is None:
            return table
        for name in set(columns) - set(table.column_names):
            table = table.append_column(name, pa.nulls(len(table)))
        return table.select(list(columns))

    def _read_files(self, columns: Sequence[str] | None) -> list[pa.Table]:
        self.problems, self.newer, tables = [], [], []
        for name in sorted(self._listed(), key=_order):
            if name.endswith(".parquet"):
                try:
                    tables.append(self._read_file(name, columns))
                except UnreadableFile as problem:
                    self.problems.append(str(problem))
                    if isinstance(problem, NewerFile):
                        self.newer.append(str(problem))
        return tables

    def _empty(self, columns: Sequence[str] | None) -> pa.Table:
        own = [(n, t) for n, t in self._schema.types.items() if columns is None or n in columns]
        return pa.Table.from_batches([], pa.schema(own))  # `empty_table` would import pandas

    def _read_file(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        skipped, own = f"{self._files.address_of(name)} was skipped:", self._schema
        with closing(self._files.open(name)) as source:
            try:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                found = file.schema_arrow
                version = (found.metadata or {}).get(FORMAT_KEY)
                if version is not None and int(version) > FORMAT:
                    raise NewerFile(
                        f"{skipped} it has store format {int(version)}, but this version reads "
                        f"format {FORMAT}; upgrade ascl-sweep"
                    )
                if version is None or not {*own.required} <= {*found.names}:
                    raise UnreadableFile(
                        f"{skipped} it is not a file of the {own.folder} table; move it elsewhere"
                    )
                if not _NAME.fullmatch(_base(name)):
                    raise UnreadableFile(
                        f"{skipped} it is not named like a store file (00000001-….parquet); move "
                        "it elsewhere"
                    )
                present = None if columns is None else [c for c in columns if c in found.names]
                return self._check_types(file.read(present))
            except UnreadableFile:
                raise
            except Exception as error:  # pyarrow raises many types for a damaged file
                self._raise_if_temporary(error)
                bad_sector = self._files.is_bad_sector(error)
                reason = "has a bad sector" if bad_sector else "is damaged or not Parquet"
                raise UnreadableFile(
                    f"{skipped} it {reason}; restore it from a backup, or recover its rows with "
                    "`ascl-sweep repair`"
                ) from error

    def _check_types(self, table: pa.Table) -> pa.Table:
        own = self._schema
        table = table.replace_schema_metadata(None)
        typed = (f.with_type(own.types.get(f.name, f.type)) for f in table.schema)
        table = cast(table, typed)
        if any(table.column(name).null_count for name in own.key):
            raise ValueError("a key column contains nulls")
        return table

    # --- writing: the caller holds the store's lock -------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """Write records to a new file; no two records may have the same key.

        Returns once no file comes after the new one. A file of another writer that does may have
        been written earlier.
        """
        data = _encode_file(build_table(records, self._schema))
        while True:
            number = max((_order(name)[0] for name in self._list()), default=0) + 1
            name = f"{self._schema.folder}/{number:08d}-{secrets.token_hex(6)}.parquet"
            self._sizes = None  # unless all that follows succeeds
            self._files.create(name, data)
            if name == max(self._list(), key=_order, default=None):
                return

    def merge_if_many(self) -> None:
        """Merge files if there are many. Each row is rewritten O(log(rows)) times in total.

        Call this after `append`, which has listed the files.

        The merge starts at the oldest file that is no larger than all newer files together. Each
        older file is larger than all files after it together, so there are few older files.
        """
        sizes = self._list()
        if len(sizes) <= MANY_FILES:
            return
        names = sorted(sizes, key=_order)
        newer, start = 0, len(names)
        for i in reversed(range(len(names))):
            start = i if sizes[names[i]] <= newer else start
            newer += sizes[names[i]]
        self._merge(names[start:])

    def compact(self) -> tuple[int, int]:
        """Merge all files into one; return the number of files before and after."""
        self._sizes = None
        before = len(self._list())
        self._merge(sorted(self._list(), key=_order))
        return before, len(self._list())

    def _merge(self, names: Iterable[str]) -> None:
        """Merge files, but never across an unreadable file: it may become readable again."""
        run: list[tuple[str, pa.Table]] = []
        try:
            for name in names:
                try:
                    run.append((name, self._read_file(name)))
                except UnreadableFile:
                    self._merge_tables(run)
                    run = []
            self._merge_tables(run)
        finally:
            self._sizes = None

    def _merge_tables(self, run: list[tuple[str, pa.Table]]) -> None:
        if len(run) < 2:
            return
        merged = keep_latest(unify([table for _, table in run]), self._schema.key)
        self._files.create(_name_in_place_of(run[-1][0]), _encode_file(merged))
        for name, _ in run:
            self._files.delete(name)

    def salvage(self) -> list[Salvaged]:
        """Replace unreadable files by files with their readable rows, and move them aside."""
        salvaged = []
        for name in sorted(self._listed(), key=_order):
            try:
                if name.endswith(".parquet"):
                    self._read_file(name)
            except NewerFile:
                raise
            except UnreadableFile:
                salvaged.append(self._salvage(name))
        self._sizes = None
        return salvaged

    def _salvage(self, name: str) -> Salvaged:
        tables: list[pa.Table] = []
        lost, columns, is_table = 0, set[str](), False
        with closing(self._files.open(name)) as source:
            try:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                metadata = file.schema_arrow.metadata or {}
                is_table = {*self._schema.required} <= {*file.schema_arrow.names}
                is_table &= FORMAT_KEY in metadata and _NAME.fullmatch(_base(name)) is not None
            except Exception as error:  # pyarrow raises many types for a damaged file
                self._raise_if_temporary(error)
            for group in range(file.num_row_groups if is_table else 0):
                found, damaged = self._salvage_group(file, group)
                if found is None:
                    lost += file.metadata.row_group(group).num_rows
                else:
                    tables.append(found)
                    columns |= damaged
        rows = sum(map(len, tables))
        if rows:
            self._files.create(_name_in_place_of(name), _encode_file(unify(tables)))
        moved_to = f"{DAMAGED}/{self._schema.folder}-{secrets.token_hex(3)}-{_base(name)}"
        self._files.move(name, moved_to)
        return Salvaged(name, moved_to, rows, lost, tuple(sorted(columns)), is_table)

    def _salvage_group(self, file: pq.ParquetFile, group: int) -> tuple[pa.Table | None, set[str]]:
        """Read a row group. Metrics are optional; other rows must be complete."""
        readable, damaged = [], set()
        for column in file.schema_arrow.names:
            try:
                file.read_row_group(group, [column])
                readable.append(column)
            except Exception as error:
                self._raise_if_temporary(error)
                damaged.add(column)
        if damaged and (self._schema.role != "metric" or damaged & {*self._schema.key}):
            return None, damaged
        try:
            return self._check_types(file.read_row_group(group, readable)), damaged
        except Exception as error:
            self._raise_if_temporary(error)
            return None, damaged

    def _raise_if_temporary(self, error: Exception) -> None:
        """Raise an error of reading that says nothing about the file, which may be valid."""
        is_io = isinstance(error, OSError) and error.errno is not None
        if isinstance(error, MemoryError) or (is_io and not self._files.is_bad_sector(error)):
            raise error

    def _list(self) -> dict[str, int]:
        """Return the size of each file, as of the last append or merge."""
        if self._sizes is None:
            listed = self._listed()
            self._sizes = {name: listed[name] for name in listed if _NAME.fullmatch(_base(name))}
        return self._sizes

    def _listed(self) -> dict[str, int]:
        return {file.name: file.bytes for file in self._files.list_files(self._schema.folder)}


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _order(name: str) -> tuple[int, str, str]:
    """Sort key of a file: later files win. Files with unknown names come first."""
    found = _NAME.fullmatch(_base(name))
    return (int(found[1]), found[2] or "", found[3] or "") if found else (-1, name, "")


def _name_in_place_of(name: str) -> str:
    """Return a new name that is ordered directly after a file."""
    number, writer, _ = _order(name)
    place = f"{name.rpartition('/')[0]}/{number:08d}-{writer or _LEGACY_WRITER}"
    return f"{place}-{secrets.token_hex(6)}.parquet"


def _encode_file(table: pa.Table) -> pa.Buffer:
    table = table.replace_schema_metadata({FORMAT_KEY: str(FORMAT)})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        # For few rows, decompression takes longer than reading.
        compression="zstd" if len(table) > FEW_ROWS else "none",
        row_group_size=ROW_GROUP,
        use_dictionary=[f.name for f in table.schema if not _is_number(f.type)],  # type: ignore[arg-type]
        write_page_checksum=True,
    )
    return sink.getvalue()


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_floating(t)
