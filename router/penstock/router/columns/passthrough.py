"""Rows that go past Spark, which says of each where it belongs.

Spark decides which route takes a record, and for that needs the columns that conditions look at,
often none. Making its own rows of all the columns that a sink wants, and Arrow of these again, is
most of what a batch costs otherwise. So the source puts what the sink wants of an Arrow batch into
one value, in Arrow's IPC format, without the columns that are NULL throughout, and hands it over
with the batch's first row:

    severity_number  _passthrough             severity_number  _passthrough _passthrough
    9                16,384 rows of Arrow   17               NULL        16,384 rows of Arrow
    17               NULL                   ...              ...         5,000 rows of Arrow

A value of another form says how many offsets a task has found lost; its row is of no record.

With no condition, as on the right, one row stands for all of a batch. From that Spark makes a table
of `_passthrough` and of the verdicts, in the same order, and `unpack` puts both together.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

PASSTHROUGH: Final = "_passthrough"
"""The column; a value holds the rows from there to the next one."""

_FIELD: Final = pa.field(PASSTHROUGH, pa.binary())
_LOST: Final = struct.Struct(">4sQ")
_LOST_MARK: Final = b"LOST"
"""How that value begins, and no stream of Arrow's."""
_WRITTEN: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def pack(judged: pa.RecordBatch, passed_through: pa.RecordBatch) -> pa.RecordBatch:
    """What Spark gets of a batch that is not empty.

    Args:
        judged: The columns that it looks at, maybe none.
        passed_through: Those that it does not, of the same rows.
    """
    sink = pa.BufferOutputStream()
    first, *others = passed_through.schema.names  # the first one says how many rows there are
    holding = [
        name for name in others if passed_through.column(name).null_count < passed_through.num_rows
    ]
    held = passed_through.select([first, *holding])
    with pa.ipc.new_stream(sink, held.schema, options=_WRITTEN) as writer:
        writer.write_batch(held)
    value = pa.array([sink.getvalue().to_pybytes()], pa.binary())
    if not judged.num_columns:
        return pa.RecordBatch.from_arrays([value], schema=pa.schema([_FIELD]))
    no_values = pa.nulls(passed_through.num_rows - 1, pa.binary())
    return judged.append_column(_FIELD, pa.concat_arrays([value, no_values]))


def pack_lost(count: int, judged: pa.Schema) -> pa.RecordBatch:
    """What Spark gets of offsets that are lost: a row of NULLs.

    Args:
        count: How many.
        judged: The columns that it looks at.
    """
    value = pa.array([_LOST.pack(_LOST_MARK, count)], pa.binary())
    nulls = [pa.nulls(1, field.type) for field in judged]
    return pa.RecordBatch.from_arrays([*nulls, value], schema=judged.append(_FIELD))


def lost_of(rows: pa.Table) -> int:
    """How many offsets were lost, of what Spark has made of the packed batches."""
    values = rows.column(PASSTHROUGH)
    sizes = pc.binary_length(values)
    short = values.filter(pc.equal(sizes, _LOST.size))
    return sum(_LOST.unpack(value)[1] for value in short.to_pylist())


def whole_values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of a task, in tables that end where a packed batch does.

    Args:
        batches: As Spark cut them, anywhere.
    """
    held = list[pa.RecordBatch]()
    for batch in batches:
        starts = pc.indices_nonzero(pc.is_valid(batch.column(PASSTHROUGH)))
        if not len(starts):
            held.append(batch)
            continue
        last = starts[-1].as_py()
        before = [*held, batch.slice(0, last)]
        if any(it.num_rows for it in before):
            yield pa.Table.from_batches(before)
        held = [batch.slice(last)]
    if held:
        yield pa.Table.from_batches(held)


@dataclass(frozen=True, slots=True)
class Unpacking:
    """How the rows of a query are unpacked; it can be pickled.

    Attributes:
        verdict: The column of what was said of each.
        passed_through: Of the columns that were carried.
        columns: Those that are wanted.
    """

    verdict: str
    passed_through: pa.Schema
    columns: Sequence[str]

    def rows(self, table: pa.Table) -> pa.Table:
        """The rows that are wanted, of what Spark has made."""
        return unpack(table, self.verdict, self.passed_through).select(self.columns)


def unpack(rows: pa.Table, verdict: str, schema: pa.Schema) -> pa.Table:
    """The rows that were carried and are wanted, with what was said of each.

    Args:
        rows: Of the columns `PASSTHROUGH` and `verdict`, in the order of the source.
        verdict: NULL for what is not wanted.
        schema: Of the columns that were carried.
    """
    values = rows.column(PASSTHROUGH)  # not combined: all of them may be more than an array holds
    said = rows.column(verdict).combine_chunks()
    starts = pc.indices_nonzero(pc.is_valid(values)).to_pylist()
    assert starts[:1] == [0][: rows.num_rows], "a batch begins with what it carries"
    parts = [schema.empty_table().append_column(rows.schema.field(verdict), said.slice(0, 0))]
    for start, end in pairwise([*starts, rows.num_rows]):
        mine = said.slice(start, end - start)
        if mine.null_count == len(mine) or values[start].as_buffer().size == _LOST.size:
            continue
        part = _read(values[start], schema)
        if len(mine) == 1:
            mine = pa.repeat(mine[0], part.num_rows)
        part = part.append_column(rows.schema.field(verdict), mine)
        parts.append(part.filter(pc.is_valid(mine)) if mine.null_count else part)
    return pa.concat_tables(parts)


def _read(value: pa.Scalar, schema: pa.Schema) -> pa.Table:
    with pa.ipc.open_stream(value.as_buffer()) as reader:
        held = reader.read_all()
    names = frozenset(held.column_names)
    # Most columns: those of a type share the memory of one.
    missing = {field.type for field in schema if field.name not in names}
    nulls = {kind: pa.nulls(held.num_rows, kind) for kind in missing}
    columns = [
        held.column(field.name) if field.name in names else nulls[field.type] for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
