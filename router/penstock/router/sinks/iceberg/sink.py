"""The Iceberg sink: rows of one table of Apache Iceberg, each record exactly once.

A request is one snapshot. Its summary has, as `penstock.marks`, the offset after the last row of
each partition of the log that it has rows of: the partition's mark (`sinks.table_format` says how
marks are used). The mark that counts is in the newest snapshot that names the partition, from the
current one back. Where maintenance may have expired that snapshot, the table itself is asked for
rows from the batch's first offset on.

A snapshot is committed by the table's catalog, which takes it only if the snapshot before it is the
one that the sink has looked at. If it is not, somebody was faster, perhaps another driver of the
same job: the sink loads the table again and looks again. The library would put its snapshot behind
the other one unseen, so it is kept from trying again by itself. What a commit that failed had
written is part of no snapshot; removing orphan files is maintenance.

Tasks write the data files (`IcebergFiles`) by the library, which makes the entries of a manifest of
them, where the table is partitioned by columns themselves or by nothing. They need no catalog.

The catalog is whatever the library knows: REST, SQL, Glue, Hive. A store or catalog that fails is
no record's fault. A catalog that falls silent is given up after `timeout_s`, or after a minute
(Glue, DynamoDB): `sinks.iceberg.client` says which time limits the client of each has.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal
from uuid import UUID, uuid4

import pyarrow as pa
from typing_extensions import override

from penstock.router.delivery.result import DeliveryResult, Paused, Retryable
from penstock.router.job.config_errors import needed
from penstock.router.sinks.iceberg.client import (
    SettingError,
    blaming_settings,
    classify_client_error,
    classify_store_error,
    client_errors,
    connected,
)
from penstock.router.sinks.sink import Guarantee, Replay, SinkContext
from penstock.router.sinks.table_format import (
    LakeFiles,
    LakeSettings,
    LakeSink,
    LakeTable,
    SinkPartition,
    TableMaintenance,
    by_values,
    end_of,
)
from penstock.service.config_types import Form, Secret

MARKS: Final = "penstock.marks"

_RETRIES: Final = "commit.retry.num-retries"
_REASON_MAX: Final = 300
_AGAIN: Final = (
    "CommitFailedException", "CommitStateUnknownException", "NamespaceAlreadyExistsError",
    "ServerError", "ServiceUnavailableError", "TableAlreadyExistsError", "TooManyRequestsError",
    "WaitingForLockException",
)  # fmt: skip
"""The library's exceptions that pass; all its others are about settings, rights or the table."""


class IcebergSink(LakeSettings):
    """Rows in a table of Apache Iceberg."""

    type: Literal["iceberg"]
    table: Annotated[str, Form(r"^[^\s.]+(\.[^\s.]+)+$", "NAMESPACE.TABLE, without spaces")]
    catalog: dict[str, Secret]
    catalog_name: str = "default"

    @override
    def about(self) -> str:
        return f"rows of the Iceberg table {self.table}; each record exactly once"


class Iceberg(LakeSink):
    """Appends rows; see the module's docstring."""

    config_class = IcebergSink
    _config: IcebergSink
    guarantee = Guarantee(
        Replay.EXACTLY_ONCE,
        "a snapshot's summary has its rows' position in the log, and what may be there is"
        " looked up",
    )

    def __init__(self, config: IcebergSink, context: SinkContext) -> None:
        super().__init__(config, context)
        exceptions = needed("pyiceberg.exceptions", extra="iceberg")
        self._missing_table = exceptions.NoSuchTableError
        theirs = [it for it in vars(exceptions).values() if isinstance(it, type)]
        self._theirs = tuple(it for it in theirs if issubclass(it, Exception))
        sql = needed("sqlalchemy.exc", extra="iceberg")
        self._sql_error, self._wrong_uri = sql.SQLAlchemyError, sql.ArgumentError
        self._clients = client_errors()
        others = (OSError, ValueError, ImportError, pa.ArrowException, self._sql_error)
        self.failures = (*self._theirs, *others, *self._clients)
        self.address = f"the Iceberg table {config.table}"
        self._properties: dict[str, str] = {}
        self._catalog: Any = None
        self._table: Any = None

    @override
    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = self._table = None

    @override
    def table_name(self) -> str:
        return self._config.table

    @override
    def newest(self, rows: pa.Table | None = None) -> LakeTable | None:
        config = self._config
        if self._catalog is None:
            self._properties = self._store()
        with blaming_settings(self._properties):
            if self._catalog is None:
                name = config.catalog_name
                self._catalog = connected(name, self._properties, config.timeout_s)
            if self._table is None:
                self._table = self._loaded(rows)
            else:
                self._table.refresh()
        return self.known()

    @override
    def known(self) -> LakeTable | None:
        if self._table is None:
            return None
        # Ours alone, and not committed: see the module's docstring.
        self._table.metadata.properties[_RETRIES] = "0"
        return IcebergTable(self._table, adds_columns=self._config.new_columns == "add")

    def _loaded(self, rows: pa.Table | None) -> Any:
        config, catalog = self._config, self._catalog
        try:
            return catalog.load_table(config.table)
        except self._missing_table:
            if rows is None:
                return None
            if not config.create:
                raise
        catalog.create_namespace_if_not_exists(config.table.rpartition(".")[0])
        with (
            catalog.create_table_transaction(config.table, schema=rows.schema) as making,
            making.update_spec() as spec,
        ):
            for name in config.partition_by:
                spec.add_identity(name)
        return catalog.load_table(config.table)

    @override
    def tidy(self, settings: TableMaintenance) -> None:
        config, properties = self._config, self._store()
        with blaming_settings(properties):
            catalog = connected(config.catalog_name, properties, config.timeout_s)
        try:
            table = catalog.load_table(config.table)
            now = datetime.fromtimestamp(self.context.clock.unix_ns() / 1e9, UTC)
            before = len(table.snapshots())
            oldest = now - timedelta(hours=settings.keep_hours)
            table.maintenance.expire_snapshots().older_than(oldest).commit()
            self.context.meter.count("snapshots_expired", before - len(table.refresh().snapshots()))
        except self._missing_table:  # no batch came yet
            return
        finally:
            catalog.close()

    def _store(self) -> dict[str, str]:
        """The catalog's properties; the secrets among them as they are now."""
        limit = str(max(round(self._config.timeout_s), 1))
        own = {"s3.connect-timeout": limit, "s3.request-timeout": limit}
        return own | {name: it.read() for name, it in self._config.catalog.items()}

    @override
    def classify_error(self, error: Exception) -> DeliveryResult:
        self.close()  # what it knows may be what is wrong
        said = " ".join(str(error).split())[:_REASON_MAX] or type(error).__name__
        if isinstance(error, self._theirs):
            passes = type(error).__name__ in _AGAIN
            return Retryable(said) if passes else Paused(f"{type(error).__name__}: {said}")
        if isinstance(error, OtherTypeError | SettingError | ImportError | self._wrong_uri):
            return Paused(said)
        if isinstance(error, self._sql_error):
            return Retryable(said)
        if isinstance(error, self._clients):
            return classify_client_error(error, said)
        return classify_store_error(error, said)


class OtherTypeError(ValueError):
    """A column of the table is of another type than here."""


class IcebergTable(LakeTable):
    """The table as of its current snapshot."""

    def __init__(self, table: Any, *, adds_columns: bool) -> None:
        self._table = table
        self._adds_columns = adds_columns

    @override
    def committed_offset(self, sink_partition: SinkPartition, first: int) -> int | None:
        for committed_offsets in self._noted():
            if committed_offsets is None:
                # Nearly all files end before `first`, and their statistics say so.
                scanned = self._scan(sink_partition, first, 2**63 - 1)
                return end_of(scanned.to_arrow_batch_reader())
            if sink_partition.key in committed_offsets:
                return committed_offsets[sink_partition.key]
        return None

    def _noted(self) -> Iterator[dict[str, int] | None]:
        """The marks of each snapshot, the newest first; None where one may be expired.

        Some tools leave the name of a parent that is expired, others remove it; the first snapshot
        of a table has the sequence number 1.
        """
        known = {it.snapshot_id: it for it in self._table.snapshots()}
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            text = snapshot.summary.get(MARKS) if snapshot.summary is not None else None
            yield json.loads(text) if text else {}
            parent = snapshot.parent_snapshot_id
            first = parent is None and snapshot.sequence_number == 1
            snapshot = known.get(parent)
            if snapshot is None and not first:
                yield None

    @override
    def offsets(self, sink_partition: SinkPartition, first: int, last: int) -> pa.Array:
        found = self._scan(sink_partition, first, last).to_arrow()
        return found.column("offset").combine_chunks()

    def _scan(self, sink_partition: SinkPartition, first: int, last: int) -> Any:
        expressions = needed("pyiceberg.expressions", extra="iceberg")
        conditions = (
            expressions.EqualTo("stream", sink_partition.stream),
            expressions.EqualTo("incarnation", sink_partition.stream_id),
            expressions.EqualTo("partition", sink_partition.partition),
            expressions.EqualTo("sink", sink_partition.sink),
            expressions.GreaterThanOrEqual("offset", first),
            expressions.LessThanOrEqual("offset", last),
        )
        return self._table.scan(
            row_filter=expressions.And(*conditions), selected_fields=("offset",)
        )

    @override
    def append(self, rows: pa.Table, committed_offsets: Mapping[SinkPartition, int]) -> None:
        change = self._table.transaction()
        known = {field.name for field in self._table.schema().fields}
        new = [field for field in rows.schema if field.name not in known]
        if new and self._adds_columns:
            with change.update_schema() as schema:
                schema.union_by_name(pa.schema(new))
        elif new:
            rows = rows.drop_columns([field.name for field in new])
        self._check_types(rows.schema)
        noted = {
            sink_partition.key: committed_offset
            for sink_partition, committed_offset in committed_offsets.items()
        }
        change.append(rows, snapshot_properties={MARKS: json.dumps(noted)})
        change.commit_transaction()

    @override
    def files(self) -> "IcebergFiles | None":
        metadata = self._table.metadata
        identity = needed("pyiceberg.transforms", extra="iceberg").IdentityTransform
        if not all(isinstance(it.transform, identity) for it in metadata.spec().fields):
            return None
        schema = needed("pyiceberg.io.pyarrow", extra="iceberg").schema_to_pyarrow(
            metadata.schema(), include_field_ids=False
        )
        return IcebergFiles(
            metadata.table_uuid,
            metadata.current_schema_id,
            metadata.default_spec_id,
            pa.schema([(it.name, _small(it.type)) for it in schema]),
            self._table.io,
            # Its history, of which there is much after a while, is nothing to a task.
            metadata.model_copy(
                update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
            ),
        )

    @override
    def append_files(
        self, files: Sequence[Any], committed_offsets: Mapping[SinkPartition, int]
    ) -> None:
        noted = {it.key: mark for it, mark in committed_offsets.items()}
        change = self._table.transaction()
        appending = change.update_snapshot(snapshot_properties={MARKS: json.dumps(noted)})
        with appending.fast_append() as snapshot:
            for file in files:
                file.spec_id = self._table.metadata.default_spec_id  # which it loses on its way
                snapshot.append_data_file(file)
        change.commit_transaction()

    def _check_types(self, schema: pa.Schema) -> None:
        """Before the library does, which prints a table of it.

        Raises:
            OtherTypeError: One differs.
        """
        validation = needed("pyiceberg.exceptions", extra="iceberg").ValidationError
        try:  # as if the table were to take them over; nothing of it is kept
            self._table.transaction().update_schema().union_by_name(schema)
        except (validation, ValueError) as error:
            raise OtherTypeError(f"a column is of another type in the table: {error}") from error


@dataclass(frozen=True, slots=True)
class IcebergFiles(LakeFiles):
    """Writes data files of a table by the library, which also says what a snapshot notes of them.

    Attributes:
        io: The library's access to the store, with credentials.
        metadata: What the table's catalog says of it.
    """

    table_uuid: UUID
    schema_id: int
    spec_id: int
    schema: pa.Schema = field(compare=False)
    io: Any = field(compare=False, repr=False)
    metadata: Any = field(compare=False, repr=False)

    @property
    @override
    def failures(self) -> tuple[type[Exception], ...]:
        return (OSError, ValueError, pa.ArrowException)

    @override
    def write(self, rows: pa.Table) -> list[Any]:
        library = needed("pyiceberg.io.pyarrow", extra="iceberg")
        schema = library.pyarrow_to_schema(
            rows.schema,
            name_mapping=self.metadata.schema().name_mapping,
            format_version=self.metadata.format_version,
        )
        tasks = (
            self._task(number, schema, *group)
            for number, group in enumerate(by_values(rows, self._partition_by()))
        )
        return list(library.write_file(self.io, self.metadata, tasks))

    def _partition_by(self) -> list[str]:
        schema, spec = self.metadata.schema(), self.metadata.spec()
        return [schema.find_column_name(it.source_id) for it in spec.fields]

    def _task(self, number: int, schema: Any, values: Mapping[str, Any], rows: pa.Table) -> Any:
        task = needed("pyiceberg.table", extra="iceberg").WriteTask
        return task(
            write_uuid=uuid4(),
            task_id=number,
            schema=schema,
            record_batches=rows.combine_chunks().to_batches(),
            partition_key=self._key(values) if values else None,
        )

    def _key(self, values: Mapping[str, Any]) -> Any:
        library = needed("pyiceberg.partitioning", extra="iceberg")
        spec = self.metadata.spec()
        pairs = zip(spec.fields, values.values(), strict=True)
        of_fields = [library.PartitionFieldValue(field=at, value=value) for at, value in pairs]
        return library.PartitionKey(
            field_values=of_fields, partition_spec=spec, schema=self.metadata.schema()
        )


def _small(kind: pa.DataType) -> pa.DataType:
    """The type that a column has before it is written: the library says `large`."""
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(_small(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    return kind
