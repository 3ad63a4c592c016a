"""Arrow tables in memory: built from records, unified, with the latest row of each key."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ascl_sweep.contracts import Scalar

ROLE_KEY = b"ascl_sweep.role"
Record = dict[str, Scalar | list[str]]
"""Row of a table: column → value."""
Column: TypeAlias = "pa.ChunkedArray[Any]"
Field: TypeAlias = "pa.Field[pa.DataType]"


@dataclass(frozen=True)
class TableSchema:
    """Schema of all files of a table."""

    folder: str
    key: tuple[str, ...]
    types: Mapping[str, pa.DataType]  # of the fixed columns
    required: tuple[str, ...]  # columns of every valid file
    role: str  # of all other columns, whose types are inferred from their values


# --- records → table --------------------------------------------------------------------------


def build_table(records: Sequence[Record], schema: TableSchema) -> pa.Table:
    """Build a table with one row per record."""
    arrays, fields = [], []
    for name in dict.fromkeys(chain.from_iterable(records)):
        values = [record.get(name) for record in records]
        known = schema.types.get(name)
        array = pa.array(values, known) if known is not None else _build_column(values)
        role = None if known is not None else {ROLE_KEY: schema.role}
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=role))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _build_column(values: list[Any]) -> Any:
    """Build an array of the values' common type; of strings if there is no common type."""
    types = {type(value) for value in values if value is not None}
    try:
        if types == {int, float}:
            return pa.array([None if value is None else float(value) for value in values])
        if len(types) <= 1:
            return pa.array(values)
    except OverflowError:  # an integer of more than 64 bits
        pass
    texts = (str(v).lower() if isinstance(v, bool) else str(v) for v in values)  # as Arrow casts
    return pa.array([None if v is None else text for v, text in zip(values, texts, strict=True)])


# --- tables → one table -----------------------------------------------------------------------


def unify(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; a column that a table lacks is null.

    A column whose types differ becomes float if all are numbers, or else text.
    """
    fields: dict[str, Field] = {}
    for field in chain.from_iterable(dict.fromkeys(table.schema for table in tables)):
        fields[field.name] = _unify_fields(fields.get(field.name, field), field)
    return pa.concat_tables(
        (cast(table, (fields[name] for name in table.column_names)) for table in tables),
        promote_options="default",
    ).unify_dictionaries()


def cast(table: pa.Table, fields: Iterable[Field]) -> pa.Table:
    """Cast the columns of a table; an integer above 2⁵³ becomes the nearest float."""
    schema = pa.schema(fields)
    same = table.schema.equals(schema, check_metadata=True)
    return table if same else table.cast(schema, safe=False)


def _unify_fields(first: Field, second: Field) -> Field:
    if first.type == second.type:
        return first
    try:
        both = [pa.schema([first]), pa.schema([second])]
        return first.with_type(pa.unify_schemas(both, promote_options="permissive").field(0).type)
    except pa.ArrowTypeError:
        return first.with_type(pa.string())


def keep_latest(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, sorted by key. `group_by` would import pandas."""
    if not len(table):
        return table
    codes = pa.table([_encode(table.column(name)) for name in key], names=list(key))
    order = pc.sort_indices(codes, sort_keys=[(name, "ascending") for name in key])  # stable
    columns = [column.combine_chunks() for column in codes.take(order).columns]
    changes = reduce(pc.or_, [pc.not_equal(column[1:], column[:-1]) for column in columns])
    last = pa.concat_arrays([order[:-1].filter(changes), order[-1:]])
    if len(last) == len(table) and pc.all(pc.greater(last[1:], last[:-1])).as_py() is not False:
        return table  # already sorted and unique
    return table.take(last)


def _encode(column: Column) -> "pa.Array[pa.Scalar[pa.DataType]]":
    """Encode a key column as sortable integers; strings in order of first appearance."""
    if pa.types.is_integer(column.type):
        return column.combine_chunks()
    return encode_strings(column).indices


def encode_strings(column: Column) -> "pa.DictionaryArray[Any, Any]":
    """Dictionary-encode a column of strings."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.unify_dictionaries().combine_chunks()  # type: ignore[return-value]
