"""Parquet files merged into one: sorted, with statistics and bloom filters.

Rows are sorted by service and time within row groups, each of about `GROUP_BYTES` of decoded rows:
that much and its sorted copy is in memory at a time. The columns are those of all sources; a row of
a source without one has null there.
"""

import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.base.errors import DamagedDataError
from penstock.router.lake.layout import SPANS_KEY, Source, Span, joined

GROUP_BYTES: Final = 64 * 1024 * 1024
_BATCH_ROWS: Final = 16 * 1024
_SORTED_BY: Final = ("service", "time")
_BLOOM_COLUMNS: Final = ("trace_id", "record_id")
_PLAIN_COLUMNS: Final = frozenset({"value", "offset", "timestamp_ns", "record_id"})
"""Columns without a dictionary, because hardly any value repeats."""


def unified_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The columns of all.

    Raises:
        pa.ArrowException: Two files have a column of one name and of types that do not go together.
    """
    plain = [schema.remove_metadata() for schema in schemas]
    return pa.unify_schemas(plain, promote_options="default")


def write_merged(
    sources: Iterable[pq.ParquetFile],
    schema: pa.Schema,
    source: Source,
    file: BinaryIO,
    compression: str,
) -> None:
    """Merge files into one with a schema of `unified_schema`; `source` says what it holds."""
    told = schema.with_metadata({SPANS_KEY: encode_source(source)})
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for group in map(_in_order, _groups(sources, schema)):
            if writer is None:
                options = writer_options(schema, compression, group.num_rows)
                writer = stack.enter_context(pq.ParquetWriter(file, told, **options))
            writer.write_table(group, row_group_size=group.num_rows)
            del group  # else it is there until the next one is


def _in_order(group: pa.Table) -> pa.Table:
    keys = [(name, "ascending") for name in _SORTED_BY if name in group.schema.names]
    return group.take(pc.sort_indices(group, sort_keys=keys)) if keys else group


def writer_options(schema: pa.Schema, compression: str, group_rows: int) -> dict[str, Any]:
    """Return the options of `pyarrow.parquet.ParquetWriter` for a merged file.

    `group_rows` are about as many as a row group has: the library's own guess takes 64 MiB for each
    bloom filter, until the file is written.
    """
    bloom = {"ndv": group_rows, "fpp": 0.01}
    return {
        "compression": compression,
        "write_statistics": True,
        "write_page_index": True,
        "bloom_filter_options": dict.fromkeys(
            (name for name in _BLOOM_COLUMNS if name in schema.names), bloom
        ),
        "use_dictionary": columns_with_dictionary(schema),
    }


def columns_with_dictionary(schema: pa.Schema) -> list[str]:
    """The columns of a file of which values repeat."""
    return [
        field.name
        for field in schema
        if field.name not in _PLAIN_COLUMNS and not pa.types.is_nested(field.type)
    ]


def _groups(sources: Iterable[pq.ParquetFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all, as many at a time as a row group has."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for source in sources:
        for batch in source.iter_batches(_BATCH_ROWS):
            waiting.append(_with_columns(batch, schema))
            size += batch.nbytes
            if size >= GROUP_BYTES:
                size = 0
                yield _combined(waiting, schema)
    if waiting:
        yield _combined(waiting, schema)


def _combined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """One table of all, of which none is left in the list."""
    whole = pa.Table.from_batches(batches, schema)
    batches.clear()
    return whole.combine_chunks()


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def encode_source(source: Source) -> bytes:
    """Return a merged file's metadata; see `penstock.router.lake.layout`."""
    spans = [
        [it.stream, it.stream_id, it.partition, it.first, it.last] for it in joined(source.spans)
    ]
    return json.dumps({"owner": source.owner, "spans": spans}).encode()


def decode_source(metadata: Mapping[bytes, bytes] | None) -> Source | None:
    """Return the records of a merged file by its metadata; None: it has none."""
    try:
        found = json.loads((metadata or {})[SPANS_KEY])
        return Source(str(found["owner"]), tuple(Span(*it) for it in found["spans"]))
    except (KeyError, ValueError, TypeError):
        return None


def is_of_file(error: Exception) -> bool:
    """Return whether an error of pyarrow, or of the storage, is about one file only.

    For damaged pages and metadata pyarrow raises `OSError`, too, but without a number.
    """
    number = error.errno if isinstance(error, OSError) else None
    return number in (None, errno.ENOENT, errno.EIO)


@contextmanager
def naming_damage(place: str) -> Iterator[None]:
    """Within it a file is read; the error of a damaged one says which it is.

    Raises:
        DamagedDataError: It is damaged.
        FileNotFoundError: It is not there.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        if not is_of_file(error):
            raise
        reason = str(error).partition("\n")[0]
        raise DamagedDataError(
            f"{place} cannot be read: {reason}",
            fix="remove it, and replay the offsets that are then missing: penstock router replay",
        ) from None
