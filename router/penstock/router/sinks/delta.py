"""The Delta sink: rows of one table of Delta Lake, each record exactly once.

A request is one commit to the table's log. With its rows it has a `txn` action for each partition
of the log: the application is job, sink, stream, its id and partition, the version the offset
behind the last row (`sinks.table_format` says what follows of it). Two commits of one application
at the same time exclude each other, so a driver that was thought dead writes nothing twice either.

A table may forget a `txn` after a while (`delta.setTransactionRetentionDuration`; by itself it does
not). Where it may have, and has none, it is asked for rows behind those in hand.

Tasks write the data files (`DeltaFiles`), with the statistics that the library would note of them,
where the table asks nothing more of a writer: no constraint, no invariant, no feature of the
protocol beyond `appendOnly`.

Files of a commit that failed, or that a killed job had begun, are part of no version of the table;
`VACUUM` removes them.

Delta Lake's own library does the writing, without a JVM, to a directory or an object store. A
commit there is a conditional put; without one two writers could both believe they wrote it. The
library reports a store's answer in words only, so `classify_error` looks for words. A store that
fails is no record's fault.
"""

import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
)
from penstock.router.job.config_errors import WrongKeyError, needed
from penstock.router.sinks.sink import Guarantee, Replay, SinkContext
from penstock.router.sinks.table_format import (
    LakeFiles,
    LakeSettings,
    LakeSink,
    LakeTable,
    SinkPartition,
    TableMaintenance,
    by_values,
    classify_status,
    end_of,
    with_microseconds,
)
from penstock.service.config_types import Form, Secret

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_STATUS: Final = re.compile(r"status code:?\W+(\d{3})\b")
_TRANSIENT: Final = re.compile(
    r"Generic (S3|GCS|MicrosoftAzure|HTTP|LocalFileSystem) error|error sending request|timed out"
)
_REFUSED: Final = re.compile(
    r"necessary privileges|authentication credentials|Permission denied|Read-only file system"
    r"|No such file|not found|NotFound|incorrectly configured region",
    re.IGNORECASE,
)
_UNFIT: Final = re.compile(r"(?P<said>.*failed validation check)")
"""Pattern of a violated constraint. A preview of rows follows, which no log should show."""

_REASON_MAX: Final = 300
_INVARIANTS: Final = "delta.invariants"
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""Table features that ask no more of a writer of files than what this module checks."""

_INDEXED: Final = 32
"""Columns with statistics, as many as Delta's default."""

_TEXT_MAX: Final = 32
_LAST: Final = "\U0010ffff"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]+")

_RETENTION: Final = "delta.setTransactionRetentionDuration"


class DeltaMaintenance(TableMaintenance):
    """Settings of the table's maintenance, with the merging of small files.

    Attributes:
        target_bytes: Smaller files are merged.
    """

    target_bytes: Annotated[int, Field(ge=1024 * 1024, le=2**31)] = 128 * 1024 * 1024


class DeltaSink(LakeSettings):
    """Rows in a table of Delta Lake."""

    type: Literal["delta"]
    table: Annotated[
        str,
        Form(
            r"^([a-z0-9]{2,10}://[^\s@?]+|[^:\s][^:]*)$",
            "a path without a colon, or a URL without user and query, as in s3://BUCKET/PATH",
        ),
    ]
    storage: dict[str, Secret] = Field(default_factory=dict)
    maintenance: DeltaMaintenance | None = None

    @property
    def uri(self) -> str:
        """URL of the table, or its absolute path."""
        return self.table if "://" in self.table else str(Path(self.table).absolute())

    @override
    def about(self) -> str:
        return f"rows of the Delta table {self.table}; each record exactly once"


class Delta(LakeSink):
    """Appends rows; see the module's docstring."""

    config_class = DeltaSink
    _config: DeltaSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE, "a commit has its rows' position in the log as `txn`, or is none"
    )

    def __init__(self, config: DeltaSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._library = needed("deltalake", extra="delta")
        self._exceptions = needed("deltalake.exceptions", extra="delta")
        self.failures = (self._exceptions.DeltaError, OSError, ValueError, pa.ArrowException)
        self._lasting = (
            self._exceptions.DeltaProtocolError,
            self._exceptions.SchemaMismatchError,
            self._exceptions.TableNotFoundError,
            OtherTypeError,
        )
        self.address = f"the Delta table {config.table}"
        self._table: Any = None

    @override
    def open(self) -> None:
        """Make the directory of a local table; a store may come later.

        Raises:
            ConfigError: It cannot be made.
        """
        if "://" in self._config.table:
            return
        try:
            Path(self._config.uri).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WrongKeyError(
                f"sinks.{self.context.sink}.table: cannot write to {self._config.uri}:"
                f" {error.strerror}",
                fix="name a directory that this user may write to",
            ) from None

    @override
    def close(self) -> None:
        self._table = None

    @override
    def table_name(self) -> str:
        return self._config.table

    @override
    def newest(self, rows: pa.Table | None = None) -> LakeTable | None:
        if self._table is None:
            self._table = self._loaded(rows)
        else:
            self._table.update_incremental()
        return self.known()

    @override
    def known(self) -> LakeTable | None:
        if self._table is None:
            return None
        return _Table(self._library, self._table, self._config, self._storage())

    def _loaded(self, rows: pa.Table | None) -> Any:
        config = self._config
        options = self._storage()
        try:
            return self._library.DeltaTable(config.uri, storage_options=options)
        except self._exceptions.TableNotFoundError:
            if rows is None:
                return None
            if not config.create:
                raise
        return self._library.DeltaTable.create(
            config.uri,
            schema=with_microseconds(rows).schema,
            mode="ignore",
            partition_by=list(config.partition_by),
            storage_options=options,
        )

    def _storage(self) -> dict[str, str]:
        """The store's options; the secrets among them as they are now."""
        limit = f"{max(round(self._config.timeout_s * 1000), 1)}ms"
        own = {"timeout": limit, "connect_timeout": limit, "retry_timeout": limit}
        own["max_retries"] = "0"  # `delivery.core` tries again, with jitter, and says so
        if self._config.uri.startswith(("s3://", "s3a://")):
            own["aws_conditional_put"] = "etag"
        return own | {name: it.read() for name, it in self._config.storage.items()}

    @override
    def tidy(self, settings: TableMaintenance) -> None:
        assert isinstance(settings, DeltaMaintenance)
        try:
            table = self._library.DeltaTable(self._config.uri, storage_options=self._storage())
        except self._exceptions.TableNotFoundError:  # no batch came yet
            return
        done = table.optimize.compact(target_size=settings.target_bytes, max_concurrent_tasks=1)
        removed = table.vacuum(
            math.ceil(settings.keep_hours), dry_run=False, enforce_retention_duration=False
        )
        table.create_checkpoint()
        table.cleanup_metadata()
        meter = self.context.meter
        meter.count("compaction_merged_files", done["numFilesRemoved"])
        meter.count("compaction_merged_into", done["numFilesAdded"])
        meter.count("compaction_removed_files", len(removed))

    @override
    def classify_error(self, error: Exception) -> DeliveryResult:
        self._table = None  # what it knows may be what is wrong
        said = _in_one_line(error)
        if isinstance(error, self._exceptions.CommitFailedError):
            return Retryable(f"another commit came first: {said[:_REASON_MAX]}")
        if isinstance(error, self._lasting):
            return Paused(said[:_REASON_MAX])
        return classify_error(said)


class OtherTypeError(ValueError):
    """A column of the table is of another type than here."""


class _Table(LakeTable):
    """The table as of its newest commit."""

    def __init__(
        self, library: Any, table: Any, config: DeltaSink, storage: Mapping[str, str]
    ) -> None:
        self._library = library
        self._table = table
        self._config = config
        self._storage = storage

    @override
    def committed_offset(self, sink_partition: SinkPartition, first: int) -> int | None:
        found: int | None = self._table.transaction_version(sink_partition.key)
        if found is None and _RETENTION in self._table.metadata().configuration:
            found = end_of(self._scan(sink_partition, first, 2**63 - 1))
        return found

    @override
    def offsets(self, sink_partition: SinkPartition, first: int, last: int) -> pa.Array:
        read = self._scan(sink_partition, first, last).read_all().column("offset")
        return pa.array(read.to_pylist(), pa.int64())

    def _scan(self, sink_partition: SinkPartition, first: int, last: int) -> Any:
        conditions = (
            f"stream = {_quoted(sink_partition.stream)}",
            f"incarnation = {_quoted(sink_partition.stream_id)}",
            f'"partition" = {sink_partition.partition}',
            f"sink = {_quoted(sink_partition.sink)}",
            f'"offset" >= {first}',
            f'"offset" <= {last}',
        )
        found = self._table.scan(columns=["offset"], predicate=" AND ".join(conditions))
        # Through pyarrow: it lets other threads run while it waits for the store.
        return pa.RecordBatchReader.from_stream(found)

    @override
    def append(self, rows: pa.Table, versions: Mapping[SinkPartition, int]) -> None:
        library = self._library
        rows = with_microseconds(rows)
        adds = self._config.new_columns == "add"
        known = {it.name: it.type for it in self._table.schema().fields}
        if not adds:
            rows = rows.select([name for name in rows.column_names if name in known])
        for column in library.Schema.from_arrow(rows.schema).fields:
            if column.type != known.get(column.name, column.type):  # it would be made text of
                raise OtherTypeError(
                    f"the table's column {column.name} is {known[column.name]}, not {column.type}"
                )
        library.write_deltalake(
            self._table,
            rows,
            mode="append",
            schema_mode="merge" if adds else None,
            commit_properties=library.CommitProperties(
                app_transactions=[
                    library.Transaction(sink_partition.key, version)
                    for sink_partition, version in versions.items()
                ],
            ),
        )

    @override
    def files(self) -> "DeltaFiles | None":
        protocol, metadata = self._table.protocol(), self._table.metadata()
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        schema = self._table.schema()
        if (
            protocol.min_writer_version not in (1, 2, 7)
            or not features <= _FEATURES
            or any(it.startswith("delta.constraints.") for it in metadata.configuration)
            or any(_INVARIANTS in it.metadata for it in schema.fields)
        ):
            return None
        return DeltaFiles(
            self._config.uri,
            dict(self._storage),
            pa.schema(schema.to_arrow()),
            tuple(metadata.partition_columns),
        )

    @override
    def append_files(
        self, files: Sequence["DeltaFile"], committed_offsets: Mapping[SinkPartition, int]
    ) -> None:
        library = self._library
        add = needed("deltalake.transaction", extra="delta").AddAction
        marks = [library.Transaction(it.key, mark) for it, mark in committed_offsets.items()]
        self._table.create_write_transaction(
            [
                add(it.path, it.size, dict(it.partition), it.written_ms, True, it.statistics)
                for it in files
            ],
            "append",
            self._table.schema(),
            partition_by=list(self._table.metadata().partition_columns),
            commit_properties=library.CommitProperties(app_transactions=marks),
        )


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A data file that is in no version of the table yet.

    Attributes:
        path: Below the table.
        size: In bytes.
        partition: The values of the columns that the table is partitioned by, as its log has them.
        written_ms: Since 1970.
        statistics: As the log has them: JSON.
    """

    path: str
    size: int
    partition: Mapping[str, str | None]
    written_ms: int
    statistics: str


@dataclass(frozen=True, slots=True)
class DeltaFiles(LakeFiles):
    """Writes data files of a table.

    Attributes:
        partition_by: Those that it is partitioned by; files do not have them.
    """

    uri: str
    storage: Mapping[str, str] = field(compare=False, repr=False)
    schema: pa.Schema
    partition_by: tuple[str, ...]

    @property
    @override
    def failures(self) -> tuple[type[Exception], ...]:
        known = needed("deltalake.exceptions", extra="delta")
        return (known.DeltaError, OSError, ValueError, pa.ArrowException)

    @override
    def write(self, rows: pa.Table) -> list[DeltaFile]:
        return [self._written(*group) for group in by_values(rows, self.partition_by)]

    def _written(self, values: Mapping[str, Any], rows: pa.Table) -> DeltaFile:
        # As the log of a table has them: ours are strings and dates.
        partition = {name: None if it is None else str(it) for name, it in values.items()}
        directory = "/".join(f"{name}={value}" for name, value in partition.items())
        if any(it is None or not _PLAIN.fullmatch(it) for it in partition.values()):
            directory = ""  # the log has the values; a path would have to be escaped twice
        path = f"{directory}/part-{uuid4()}.zstd.parquet".removeprefix("/")
        kept = rows.drop_columns(list(values))
        file = io.BytesIO()
        pq.write_table(kept, file, compression="zstd")
        self._put(path, file.getvalue())
        now_ms = SystemClock().unix_ns() // 1_000_000
        # Readers of the log take one half of an escaped pair of surrogates for the whole.
        statistics = json.dumps(_statistics(kept), ensure_ascii=False)
        return DeltaFile(path, file.tell(), partition, now_ms, statistics)

    def _put(self, path: str, data: bytes) -> None:
        if "://" in self.uri:
            with closing(_store(self.uri, self.storage).open_output_stream(path)) as file:
                file.write(data)
            return
        local = Path(self.uri) / path
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(data)


def _store(uri: str, options: Mapping[str, str]) -> Any:
    """The library's way to a store, past pyarrow, whose buffers it does not take."""
    base = needed("deltalake.fs", extra="delta").DeltaStorageHandler

    class Store(base):  # type: ignore[misc,valid-type] # known at run time only
        def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
            return self._handler.open_output_stream(path, metadata)

    return Store(uri, dict(options))


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """Return the lowest and highest values of the first columns; readers skip files by them.

    Text is cut; the highest text is cut to a larger one. Times have milliseconds.
    """
    found: dict[str, Any] = {"numRecords": rows.num_rows}
    lows, highs, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for name in rows.column_names[:_INDEXED]:
        column = rows.column(name)
        if not pa.types.is_nested(column.type):
            nulls[name] = column.null_count
        if column.null_count == len(column) or not _has_order(column.type):
            continue
        ends = pc.min_max(column).as_py()
        low, high = ends["min"], ends["max"]
        if isinstance(low, datetime):
            low, high = _in_ms(low), _in_ms(high + timedelta(microseconds=999))
        elif isinstance(low, date):
            low, high = low.isoformat(), high.isoformat()
        elif isinstance(low, str):
            low, high = low[:_TEXT_MAX], _cut_above(high)
        lows[name], highs[name] = low, high
    return found | {"minValues": lows, "maxValues": highs, "nullCount": nulls}


def _has_order(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
    )


def _in_ms(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut_above(text: str) -> str:
    """Text that is not smaller, and short where that can be: readers want one with the smallest."""
    if len(text) <= _TEXT_MAX or _LAST in text:
        return text
    return text[:_TEXT_MAX] + _LAST


def classify_error(said: str) -> DeliveryResult:
    """Return the result for the rows of a commit that failed, by the library's message."""
    found = _STATUS.search(said)
    status = int(found[1]) if found else 0
    if unfit := _UNFIT.match(said):
        return Rejected(Fault("delta_constraint", unfit["said"][-_REASON_MAX:]))
    reason = said[:_REASON_MAX]
    fault = Fault(f"http_{status}" if status else "delta", reason, status)
    if (result := classify_status(status, said, fault)) is not None:
        return result
    if status or _TRANSIENT.search(said):
        return Retryable(reason)
    if _REFUSED.search(said):
        return Paused(reason)
    return Failed(fault)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _in_one_line(error: Exception) -> str:
    plain = _COLOUR.sub("", str(error)) or type(error).__name__
    lines = [line.strip(" ↳") for line in plain.splitlines()]
    return "; ".join(filter(None, lines))
