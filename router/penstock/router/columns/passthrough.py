"""Rows that go past Spark, which says of each where it belongs.

Spark decides which route takes a record, and for that needs the columns that conditions look at,
often none. Making its own rows of all the columns that a sink wants, and Arrow of these again, is
most of what a batch costs otherwise. So the source puts what the sink wants of an Arrow batch into
one value, in Arrow's IPC format, without the columns that are NULL throughout, and hands it over
with the batch's first row:

    severity_number  _passthrough             severity_number  _passthrough _passthrough
    9                16,384 rows of Arrow   17               NULL        16,384 rows of Arrow
    17               NULL                   ...              ...         5,000 rows of Arrow

How a value begins says what it is. Spark copies a value several times, and two of its buffers stay
twice as large as the largest one; so a long one comes in parts, of which each is a row of no record
but the last, which is that of the batch's first record:

    FF FF FF FF   all of a batch, as Arrow has it
    PART          followed by bytes of a batch; the next part follows
    ENDS          followed by the last bytes of a batch
    LOST          followed by how many offsets a task has found lost; a row of no record

With no condition, as on the right, one row stands for all of a batch. From that Spark makes a table
of `_passthrough` and of the verdicts, in the same order, and `unpack` puts both together.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.router.errors import RepeatedRowError

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")  # who plans batches has no rows to compute with

PASSTHROUGH: Final = "_passthrough"
"""The column; a value holds the rows from there to the next one."""

_FIELD: Final = pa.field(PASSTHROUGH, pa.binary())
PART_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of one value. Most are smaller: a task reads 8 MiB of records, and their packed
form is compressed."""

_LOST: Final = struct.Struct(">4sQ")
_LOST_MARK: Final = b"LOST"
_PART_MARK: Final = b"PART"
_LAST_PART_MARK: Final = b"ENDS"
_MARK_BYTES: Final = 4
_WRITTEN: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def pack(looked_at: pa.RecordBatch, passed_through: pa.RecordBatch) -> pa.RecordBatch:
    """Pack a batch that is not empty into the record batch that Spark receives.

    Args:
        looked_at: The columns that it looks at, maybe none.
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
    values = pa.array(_in_parts(sink.getvalue()), pa.binary())
    if not looked_at.num_columns:
        return pa.RecordBatch.from_arrays([values], schema=pa.schema([_FIELD]))
    if len(values) > 1:
        nulls = [pa.nulls(len(values) - 1, field.type) for field in looked_at.schema]
        of_no_record = pa.RecordBatch.from_arrays(nulls, schema=looked_at.schema)
        looked_at = pa.concat_batches([of_no_record, looked_at])
    no_values = pa.nulls(passed_through.num_rows - 1, pa.binary())
    return looked_at.append_column(_FIELD, pa.concat_arrays([values, no_values]))


def _in_parts(value: pa.Buffer) -> list[bytes]:
    """A value, or the parts of a long one."""
    if value.size <= PART_BYTES:
        return [value.to_pybytes()]
    parts = [value[at : at + PART_BYTES].to_pybytes() for at in range(0, value.size, PART_BYTES)]
    return [*(_PART_MARK + part for part in parts[:-1]), _LAST_PART_MARK + parts[-1]]


def _mark_of(value: pa.Buffer) -> bytes:
    mark: bytes = value.slice(0, min(_MARK_BYTES, value.size)).to_pybytes()
    return mark


def pack_lost(count: int, looked_at: pa.Schema) -> pa.RecordBatch:
    """Return the row of NULLs that stands for lost offsets in Spark.

    Args:
        count: Number of lost offsets.
        looked_at: The columns that it looks at.
    """
    value = pa.array([_LOST.pack(_LOST_MARK, count)], pa.binary())
    nulls = [pa.nulls(1, field.type) for field in looked_at]
    return pa.RecordBatch.from_arrays([*nulls, value], schema=looked_at.append(_FIELD))


def lost_of(rows: pa.Table) -> int:
    """Return how many offsets were lost, by the rows that `pack_lost` made."""
    values = rows.column(PASSTHROUGH)
    sizes = pc.binary_length(values)
    short = values.filter(pc.equal(sizes, _LOST.size))
    told = [value for value in short.to_pylist() if value.startswith(_LOST_MARK)]
    return sum(_LOST.unpack(value)[1] for value in told)


def whole_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of a task, in tables that end where a packed batch does.

    Args:
        batches: Batches as Spark cut them, anywhere.
    """
    held, is_in_parts = list[pa.RecordBatch](), False
    for batch in batches:
        values, last = batch.column(PASSTHROUGH), None
        for start in pc.indices_nonzero(pc.is_valid(values)).to_pylist():
            last = last if is_in_parts else start
            is_in_parts = _mark_of(values[start].as_buffer()) == _PART_MARK
        if last is None:
            held.append(batch)
            continue
        before = [*held, batch.slice(0, last)]
        if any(it.num_rows for it in before):
            yield pa.Table.from_batches(before)
        held = [batch.slice(last)]
    if held:
        yield pa.Table.from_batches(held)


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Description of how to unpack the rows of a query. It can be pickled.

    Attributes:
        verdict: Name of the column with the verdict on each row.
        passed_through: Schema of the columns that went past Spark.
        columns: Names of the columns to return.
        beside: Names of other columns that Spark has made for each row.
        once: Name of a column in which no two rows that follow one another are alike; None: there
            is none, because no step can make several rows of one.
    """

    verdict: str
    passed_through: pa.Schema
    columns: Sequence[str]
    beside: tuple[str, ...] = ()
    once: str | None = None

    def tables(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Cut the rows of a task into tables for `rows`, each of whole packed batches.

        Args:
            batches: All rows that Spark has made in the task, cut anywhere.

        Raises:
            RepeatedRowError: Spark has made several rows of one.
        """
        # A repeated row may carry a packed batch, so the rows are compared before they are cut.
        return whole_values(batches if self.once is None else _each_once(batches, self.once))

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the rows that are wanted, of a table of `tables`."""
        rows = unpack(table, self.verdict, self.passed_through, self.beside)
        return rows.select(self.columns)

    def collected(self, table: pa.Table) -> pa.Table:
        """Return the rows that are wanted, of all rows that Spark has made.

        Raises:
            RepeatedRowError: Spark has made several rows of one.
        """
        parts = [self.rows(it) for it in self.tables(table.to_batches())]
        return pa.concat_tables(parts) if parts else self.rows(table)


def _each_once(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches, unless two rows that follow one another are alike in a column."""
    before: pa.Array | None = None
    for batch in batches:
        values = batch.column(name)
        if before is not None:
            values = pa.concat_arrays([before, values])
        if pc.any(pc.equal(values[1:], values[:-1]), min_count=0).as_py():
            raise repeated_row()
        before = values[-1:]
        yield batch


def repeated_row() -> RepeatedRowError:
    """Return the error for a record of which a join has made several rows."""
    return RepeatedRowError(
        "a LEFT JOIN finds several rows of its table for one record: let the table have one row"
        " for each key"
    )


def unpack(rows: pa.Table, verdict: str, schema: pa.Schema, beside: Sequence[str] = ()) -> pa.Table:
    """The rows that were carried and are wanted, with what was said of each.

    Args:
        rows: Rows with the columns `PASSTHROUGH`, `verdict` and `beside`, in the order of the
            source.
        verdict: NULL for what is not wanted.
        schema: Schema of the columns that went past Spark.
        beside: Names of other columns that Spark has made for each row.
    """
    said = rows.select([verdict, *beside]).combine_chunks()
    parts = [_beside(schema.empty_table(), said.slice(0, 0))]
    for value, mine in _packed_batches(rows, said):
        unwanted = mine.column(0).null_count
        if unwanted == mine.num_rows:
            continue
        part = _read(value, schema)
        part = _beside(part, _for_each_row(mine, part.num_rows))
        parts.append(part.filter(pc.is_valid(part.column(verdict))) if unwanted else part)
    return pa.concat_tables(parts)


def unpack_for_each(
    rows: pa.Table, verdicts: Sequence[str], schema: pa.Schema, name: str
) -> list[pa.Table]:
    """Return the rows that each of several verdicts wants; each packed batch is read once.

    Args:
        rows: As of `unpack`, with a column for each verdict.
        verdicts: Names of the columns; NULL for what is not wanted.
        schema: Schema of the columns that went past Spark.
        name: Name that the column of a verdict has in its own rows.
    """
    said = rows.select(list(verdicts)).combine_chunks()
    found: list[list[pa.Table]] = []
    for verdict in said.columns:
        field = pa.field(name, verdict.type)
        found.append([schema.empty_table().append_column(field, verdict.slice(0, 0))])
    for value, mine in _packed_batches(rows, said):
        if all(column.null_count == mine.num_rows for column in mine.columns):
            continue
        part = _read(value, schema)
        numbers = _for_each_row(mine, part.num_rows).columns
        for parts, verdict in zip(found, numbers, strict=True):
            its = part.append_column(pa.field(name, verdict.type), verdict)
            parts.append(its.filter(pc.is_valid(verdict)) if verdict.null_count else its)
    return [pa.concat_tables(parts) for parts in found]


def _packed_batches(rows: pa.Table, said: pa.Table) -> Iterator[tuple[pa.Buffer, pa.Table]]:
    """Yield each packed batch, whole, and what was said of its rows or of all of them in one."""
    values = rows.column(PASSTHROUGH)  # not combined: all of them may be more than an array holds
    starts = pc.indices_nonzero(pc.is_valid(values)).to_pylist()
    assert starts[:1] == [0][: rows.num_rows], "a batch begins with what it carries"
    before = list[pa.Buffer]()
    for start, end in pairwise([*starts, rows.num_rows]):
        value = values[start].as_buffer()
        mark = _mark_of(value)
        if mark == _PART_MARK:
            before.append(value[_MARK_BYTES:])
            continue
        if mark == _LAST_PART_MARK:
            value, before = pa.py_buffer(b"".join([*before, value[_MARK_BYTES:]])), []
        if mark != _LOST_MARK:
            yield value, said.slice(start, end - start)


def _for_each_row(said: pa.Table, rows: int) -> pa.Table:
    """What was said of each row, where one row may stand for all."""
    return said if said.num_rows != 1 else said.take(pa.repeat(pa.scalar(0, pa.int64()), rows))


def _beside(rows: pa.Table, others: pa.Table) -> pa.Table:
    for field, column in zip(others.schema, others.columns, strict=True):
        rows = rows.append_column(field, column)
    return rows


def _read(value: pa.Buffer, schema: pa.Schema) -> pa.Table:
    with pa.ipc.open_stream(value) as reader:
        held = reader.read_all()
    names = frozenset(held.column_names)
    # Most columns: those of a type share the memory of one.
    missing = {field.type for field in schema if field.name not in names}
    nulls = {kind: pa.nulls(held.num_rows, kind) for kind in missing}
    columns = [
        held.column(field.name) if field.name in names else nulls[field.type] for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
