"""`penstock logd export`: a range of a stream as a file, which appears when it is whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import click
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.base.files import atomic_writer, sync_directories
from penstock.base.pluralize import pluralize
from penstock.logd.cli.outcome import json_option
from penstock.logd.cli.positions import (
    PARTITIONS,
    POSITION,
    Position,
    check_position,
    first_offset,
    resolve,
)
from penstock.logd.cli.progress import Progress
from penstock.logd.cli.read_session import ReadSession, skip_damaged_option
from penstock.logd.cli.server import asking, server_option, stream_argument
from penstock.logd.cli.showing import record_json
from penstock.logd.cli.source import Range, gathered, offsets_of, partitions_of, read_range
from penstock.logd.cli.text import echo_json, human_bytes
from penstock.logd.client import LogClient
from penstock.logd.dump import SCHEMA_OF_DUMP
from penstock.logd.frame import FrameHeader
from penstock.logd.rows import batch_records
from penstock.service import ExitCode, ServiceError

_SUFFIXES: Final = {
    ".arrow": "arrow",
    ".feather": "arrow",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
_GROUP_ROWS: Final = 64 * 1024
_GROUP_BYTES: Final = 64 * 1024 * 1024
"""A row group of Parquet has so many rows, or bytes: they are in memory until it is written."""

_Rows = Iterator[tuple[FrameHeader, pa.RecordBatch]]


class OutputError(ServiceError):
    """The file cannot be written (exit code 74)."""

    exit_code = ExitCode.IO


@dataclass(frozen=True, slots=True)
class _Asked:
    """What to export."""

    stream: str
    partitions: tuple[int, ...]
    start: Position
    end: Position


@click.command(
    epilog="""\b
    Examples:
      penstock logd export logs -o logs.parquet --from 2026-01-31 --to 2026-02-01
      penstock logd export prices --partition 3 -o prices-3.ndjson"""
)
@stream_argument()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file; it appears when it is whole.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["arrow", "parquet", "ndjson"]),
    help="An Arrow IPC file, Parquet (zstd), or JSON lines. Default: by the file's name.",
)
@PARTITIONS
@click.option("--from", "start", type=POSITION, default="earliest", show_default=True)
@click.option("--to", "end", type=POSITION, default="latest", show_default=True, help="Exclusive.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@skip_damaged_option
@json_option("Say what was written as JSON.")
@server_option
def export(
    *,
    output: Path,
    form: str | None,
    force: bool,
    skip_damaged: bool,
    as_json: bool,
    server: str,
    **asked: Any,
) -> None:
    """Write a range of STREAM to a file.

    An export that is cut short leaves nothing, and is not resumed: begin again, or in parts by
    --from and --to. Columns: offset, timestamp, subject, key, headers, reply, value; with several
    partitions, which come one after the other, partition before them.
    """
    chosen = form or _SUFFIXES.get(output.suffix)
    if chosen is None:
        raise click.UsageError(f"{output.name} does not say the format: give --format")
    write = {"arrow": _write_arrow, "parquet": _write_parquet, "ndjson": _write_ndjson}[chosen]
    session = ReadSession(skip_damaged=skip_damaged)
    with asking(server, session.client) as log:
        parts = _ranges(log, _Asked(**asked))
        count = sum(part.count for part in parts)
        with _file(output, force=force) as file, Progress("exporting", count) as progress:
            write(file, _Reading(log, parts, progress))
            records, size = progress.records, file.tell()
    stream = parts[0].stream
    if as_json:
        written = {"records": records, "bytes": size, "file": str(output), "format": chosen}
        more = {"skipped": session.skipped()} if skip_damaged else {}
        echo_json({"stream": stream} | _extent(parts) | written | more)
        session.check_complete()
        return
    where = ", ".join(
        f"{part.stream}/{part.partition} from offset {part.start} to {part.end}" for part in parts
    )
    amount = pluralize(records, "record", form=",")
    click.echo(f"{amount} of {where}: {output} ({human_bytes(size)})")
    session.check_complete()


def _ranges(log: LogClient, asked: _Asked) -> list[Range]:
    """The ranges as they are now.

    Raises:
        UsageError: An offset is given for several partitions, or it ends before it begins.
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`, `OUT_OF_RANGE`.
    """
    numbers = partitions_of(log, asked.stream, asked.partitions)
    for option, position in (("--from", asked.start), ("--to", asked.end)):
        check_position(position, len(numbers), option)
    return [_range(log, asked, number) for number in numbers]


def _range(log: LogClient, asked: _Asked, partition: int) -> Range:
    stream = asked.stream
    start = first_offset(log, stream, partition, asked.start)
    end = min(resolve(log, stream, partition, asked.end), log.offsets(stream, partition).end)
    if end < start:
        raise click.UsageError(f"--to {asked.end} is below --from {asked.start}")
    return Range(stream, partition, start, end)


def _extent(parts: list[Range]) -> dict[str, Any]:
    found = [{"partition": one.partition, "start": one.start, "end": one.end} for one in parts]
    return found[0] if len(found) == 1 else {"partitions": found}


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is written: one partition after the other."""

    log: LogClient
    parts: list[Range]
    progress: Progress

    @property
    def several(self) -> bool:
        """Whether each row says of which partition it is."""
        return len(self.parts) > 1

    def rows(self, part: Range) -> _Rows:
        """The rows of one."""
        for header, batch in read_range(self.log, part):
            yield header, batch
            self.progress.advance(batch.num_rows, header.body_length)

    def schema(self) -> pa.Schema:
        """The columns, with what the file holds of which stream."""
        facts = {"stream": self.parts[0].stream} | _extent(self.parts)
        columns = [pa.field("partition", pa.int32())] if self.several else []
        return pa.schema([*columns, *SCHEMA_OF_DUMP]).with_metadata(
            {f"penstock.{name}": _words(value) for name, value in facts.items()}
        )

    def table_row(self, part: Range, columns: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
        """Rows of a partition as the file has them."""
        if self.several:
            number = pa.scalar(part.partition, pa.int32())
            columns = [pa.repeat(number, len(columns[0])), *columns]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _words(value: object) -> str:
    return orjson.dumps(value).decode() if isinstance(value, list) else str(value)


@contextmanager
def _file(output: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """A file that is made under another name, and takes its own when it is whole and on disk.

    Raises:
        UsageError: Another file is there.
        OutputError: The disk does not take it.
    """
    partial = output.with_name(output.name + ".partial")
    if output.exists() and not force:
        raise click.UsageError(f"{output} is there: choose another file, or give --force")
    if force:
        partial.unlink(missing_ok=True)
    try:
        with atomic_writer(output, temporary=partial, durable=False) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        message = f"{partial} is there: an export writes it, or one was killed"
        raise click.UsageError(f"{message}; if none runs, give --force") from None
    except OSError as error:
        raise _output_error(error, output) from None
    with suppress(OSError):  # not every file system that people export to can
        sync_directories([output.parent])


def _output_error(error: OSError, output: Path) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(
        f"{output} cannot be written: {reason}", fix="see to the disk, or write elsewhere"
    )


def _write_arrow(file: IO[bytes], reading: _Reading) -> None:
    schema = reading.schema()
    with pa.ipc.new_file(file, schema) as writer:
        for part in reading.parts:
            for batch, _ in gathered(reading.rows(part)):
                writer.write_batch(reading.table_row(part, batch.columns, schema))


def _write_parquet(file: IO[bytes], reading: _Reading) -> None:
    schema = reading.schema()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in reading.parts:
            _write_groups(writer, reading, part, schema)


def _write_groups(
    writer: pq.ParquetWriter, reading: _Reading, part: Range, schema: pa.Schema
) -> None:
    group: list[pa.RecordBatch] = []
    count = size = 0
    for header, batch in reading.rows(part):
        columns = [offsets_of(header, batch), *batch.columns[1:]]
        group.append(reading.table_row(part, columns, schema))
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= _GROUP_ROWS or size >= _GROUP_BYTES:
            writer.write_table(pa.Table.from_batches(group))
            group, count, size = [], 0, 0
    if group:
        writer.write_table(pa.Table.from_batches(group))


def _write_ndjson(file: IO[bytes], reading: _Reading) -> None:
    for part in reading.parts:
        number = part.partition if reading.several else None
        for header, batch in reading.rows(part):
            rows = batch_records(header, batch)
            lines = (record_json(offset, record, number) for offset, record in rows)
            file.write("".join(f"{line}\n" for line in lines).encode())
