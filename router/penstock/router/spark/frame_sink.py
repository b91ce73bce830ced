"""The Spark sink `format("penstock")`: rows of any DataFrame, to a sink of the router's.

    from penstock import router

    router.register(spark)
    frame.write.format("penstock").option("sink", "{type: loki, url: 'http://loki:3100'}").save()

Each task opens the sink for itself, writes its rows and waits where the destination asks for that,
up to `timeoutSeconds`. What the destination refuses comes back to the process that commits: it goes
to files below `deadLetters`, and without that option it fails the write. How rows become records is
in `penstock.router.columns.frame_records`.

Spark runs a task again that failed. Rows have the same names then, and so in a batch of a stream
that comes again, if the frame gives its tasks the same rows in the same order; a sink then keeps
its own guarantee. A write that the program begins again repeats the one before only under the same
`run`.
"""

import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import Field, ValidationError
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.files import atomic_write
from penstock.base.pluralize import pluralize
from penstock.router.columns.frame_records import FrameRecords, FrameShape, Naming
from penstock.router.columns.projection import Projection, Projector
from penstock.router.columns.schema import MARKS, view
from penstock.router.columns.spec_versions import SpecVersions, known_versions
from penstock.router.deadletters.writer import MALFORMED_COLUMNS, send_malformed_to_dlq
from penstock.router.delivery.batch_names import in_log_order
from penstock.router.errors import BadOptionError, RouterError, StoppedError
from penstock.router.job.settings import Name, Seconds, Settings
from penstock.router.meter import Meter
from penstock.router.sinks.registry import AnySinkConfig, open_sink
from penstock.router.sinks.sink import Sink, SinkContext
from penstock.service.config_types import Form

NAME: Final = "penstock"

_OWN_WRITERS: Final = {
    "parquet": 'frame.write.parquet("PATH")',
    "s3": 'frame.write.parquet("s3a://BUCKET/PATH")',
    "delta": 'frame.write.format("delta")',
    "iceberg": 'frame.writeTo("TABLE")',
    "jdbc": 'frame.write.format("jdbc")',
}
"""Sinks that note across batches what they wrote, or are Spark's own writer, by what Spark has in
their place."""

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of any stream that is written."""

_CHUNK_ROWS: Final = 50_000
_CHUNK_BYTES: Final = 32 * 1024 * 1024
_BATCH_OFFSETS: Final = 2**32
"""Offsets of one batch of a stream: more rows than a task can have."""

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""Properties of a task, by which Spark says what it is for (`StreamExecution`)."""

_SHOWN: Final = 3


class NotDeliveredError(RouterError):
    """Rows were refused, or the destination took too long."""


class FrameSinkOptions(Settings):
    """Options of `format("penstock")`.

    Attributes:
        sink: Keys of a sink as in a job file, as YAML or JSON.
        name: Name in keys, dead letters and error messages.
        run: Name of the write; none: a new one for each write, or the id of the streaming query.
        dead_letters: Directory of refused records, on the driver; none: they fail the write.
        service: Service of rows that name none.
        timeout_seconds: Maximum seconds in which the destination takes rows that wait for it.
    """

    sink: AnySinkConfig
    name: Name = NAME
    run: Annotated[str, Form(r"^[\w.-]{1,128}$", "1 to 128 letters, digits, _ . -")] | None = None
    dead_letters: Path | None = None
    service: str = Field("spark", min_length=1, max_length=200)
    timeout_seconds: Seconds = 600.0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read Spark's options, whose names have no case.

        Raises:
            BadOptionError: One is missing, wrong, or unknown.
        """
        known = {name.replace("_", ""): name for name in cls.model_fields}
        given: dict[str, Any] = {}
        for option, text in options.items():
            if option.lower() in _OF_SPARK:
                continue
            field = known.get(option.lower())
            if field is None:
                names = ", ".join(_spelt(name) for name in known.values())
                raise BadOptionError(f"option {option} is unknown; there are {names}")
            given[field] = _document(text) if field == "sink" else text
        try:
            found = cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "sink"
            raise BadOptionError(f"option {where}: {first['msg']}") from None
        if (own := _OWN_WRITERS.get(found.sink.type)) is not None:
            raise BadOptionError(
                f"option sink: {found.sink.type} is for jobs of the router; Spark has {own}"
            )
        if found.sink.rate_limit.is_set:
            raise BadOptionError(
                "option sink: rate_limit is for jobs of the router; tasks that write a frame know"
                " nothing of each other"
            )
        return found


def _spelt(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(map(str.title, others))


def _document(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadOptionError(f"option sink: neither YAML nor JSON: {error}") from None


class FrameSink(DataSource):  # type: ignore[misc] # pyspark is untyped here
    """The data source of that name; it only writes."""

    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def writer(self, schema: StructType, overwrite: bool) -> "FrameWriter":
        return FrameWriter(self._write(schema, overwrite=overwrite, streaming=False))

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> "FrameStreamWriter":
        return FrameStreamWriter(self._write(schema, overwrite=overwrite, streaming=True))

    def _write(self, schema: StructType, *, overwrite: bool, streaming: bool) -> "FrameWrite":
        if overwrite:
            raise BadOptionError("a sink is appended to: use mode('append')")
        options = FrameSinkOptions.parse(self.options)
        shape = FrameShape.of(schema.names)
        now_ns = SystemClock().unix_ns()
        run = uuid.uuid4().hex
        return FrameWrite(options, shape, known_versions(), run, now_ns, streaming=streaming)


class Returned(WriterCommitMessage):  # type: ignore[misc] # as above
    """What a task could not deliver.

    Attributes:
        run: Name of the write.
        dead_letters: Refused records, a JSON object each.
    """

    def __init__(self, run: str, dead_letters: Sequence[bytes]) -> None:
        self.run = run
        self.dead_letters = dead_letters


@dataclass(frozen=True, slots=True)
class FrameWrite:
    """One write of a frame, or all batches of a stream. It can be pickled.

    Attributes:
        options: Its options.
        shape: What the frame's columns mean.
        versions: Known versions of the specs.
        run: Name of the write where the options name none.
        time_ns: Time of rows that have none, since 1970.
        streaming: Whether it is a stream. A batch that is written within `foreachBatch` is none:
            there may be several of them.
    """

    options: FrameSinkOptions
    shape: FrameShape
    versions: SpecVersions
    run: str
    time_ns: int
    streaming: bool = field(kw_only=True)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Returned:
        """Write the rows of a task, in the task."""
        task, options = TaskContext.get(), self.options
        number = 0 if task is None else task.partitionId()
        run, first = options.run or self.run, 0
        if self.streaming:
            assert task is not None, "Spark runs it"
            run = options.run or str(task.getLocalProperty(_QUERY_ID))
            first = int(task.getLocalProperty(_BATCH_ID) or 0) * _BATCH_OFFSETS
        naming = Naming(options.name, number, first, options.service, self.time_ns)
        with TemporaryDirectory(prefix="penstock-") as directory:
            task_write = TaskWrite(options, f"{options.sink.type}-{number}", run, Path(directory))
            try:
                records = FrameRecords(self.shape, naming)
                for batch_rows in batches:
                    if batch_rows.num_rows:
                        task_write.add(records, batch_rows, self.versions)
                return Returned(run, task_write.end())
            finally:
                task_write.close()

    def commit(self, messages: Sequence[Any], batch: int | None = None) -> None:
        """Keep what was refused, in a file that has the same name where the batch comes again.

        Args:
            messages: What tasks returned.
            batch: Number of the batch of a stream.

        Raises:
            NotDeliveredError: There is something, and no directory for it.
        """
        refused = [it for it in messages if it is not None and it.dead_letters]
        if not refused:
            return
        lines = [line for it in refused for line in it.dead_letters]
        directory = self.options.dead_letters
        if directory is None:
            reasons = Counter(_reason_of(line) for line in lines).most_common(_SHOWN)
            told = "; ".join(f"{count:,} {reason}" for reason, count in reasons)
            raise NotDeliveredError(
                f"{pluralize(len(lines), 'record')} refused, all others are delivered: {told}."
                " The option deadLetters names a directory for such records"
            )
        number = "" if batch is None else f"-{batch:020d}"
        path = directory / self.options.name / f"{refused[0].run}{number}.ndjson"
        atomic_write(path, b"\n".join(lines) + b"\n", parents=True)


def _reason_of(line: bytes) -> str:
    found = msgspec.json.decode(line)
    return f"{found['code']}: {found['reason']}"


class TaskWrite:
    """The sink of one task.

    Args:
        options: Options of the write.
        sink: Name of the sink: another in each task, for some destinations let only one writer of
            a name in.
        run: Name of the write, by which records without a position are told apart.
        directory: Directory for what the sink notes, which ends with the task.
    """

    def __init__(self, options: FrameSinkOptions, sink: str, run: str, directory: Path) -> None:
        self._timeout_s = options.timeout_seconds
        self._stop = threading.Event()
        self._dead_letters = directory / "dead_letters"
        state = directory / "state"
        state.mkdir()
        self._context = SinkContext(
            job=options.name,
            sink=sink,
            stream_ids={options.name: run},
            state_dir=state,
            dead_letters=self._dead_letters,
            meter=Meter(),
            stop=self._stop,
            clock=SystemClock(),
        )
        self._sink: Sink = open_sink(options.sink, self._context)
        every = [it.name for it in view("records").columns if it.name not in MARKS]
        self._given = every if self._sink.columns == ("*",) else list(self._sink.columns)
        wanted = {*self._given, *MALFORMED_COLUMNS}
        self._columns = tuple(it for it in view("records").columns if it.name in wanted)
        self._projector: Projector | None = None
        self._waiting: list[pa.RecordBatch] = []

    def add(self, records: FrameRecords, batch: pa.RecordBatch, versions: SpecVersions) -> None:
        """Take rows of the frame, and deliver them once there are enough."""
        if self._projector is None:
            self._projector = Projector(Projection(view("records"), self._columns, None, versions))
        for span, log in records.log_rows(batch):
            self._waiting.append(self._projector.shape(span, log))
        rows = sum(it.num_rows for it in self._waiting)
        if rows >= _CHUNK_ROWS or sum(it.nbytes for it in self._waiting) >= _CHUNK_BYTES:
            self._deliver()

    def end(self) -> list[bytes]:
        """Deliver what is left; returns the dead letters."""
        self._deliver()
        files = sorted(self._dead_letters.rglob("*.ndjson"))
        return [line for path in files for line in path.read_bytes().splitlines()]

    def _deliver(self) -> None:
        if not self._waiting:
            return
        rows = in_log_order(pa.Table.from_batches(self._waiting))
        self._waiting = []
        is_record = pc.is_null(rows.column("malformed_reason"))
        malformed, rows = rows.filter(pc.invert(is_record)), rows.filter(is_record)
        if malformed.num_rows:
            send_malformed_to_dlq(malformed.select(sorted(MALFORMED_COLUMNS)), self._context)
        if not rows.num_rows:
            return
        alarm = threading.Timer(self._timeout_s, self._stop.set)
        alarm.daemon = True
        alarm.start()
        try:
            self._sink.write(rows.select(self._given))
        except StoppedError:
            problem = self._context.meter.problem or "it answers too slowly"
            raise NotDeliveredError(
                f"the destination has not taken all rows of a task in {self._timeout_s:g} s:"
                f" {problem}"
            ) from None
        finally:
            alarm.cancel()

    def close(self) -> None:
        self._sink.close()


class FrameWriter(DataSourceArrowWriter):  # type: ignore[misc] # as above
    """Writes a frame once."""

    def __init__(self, write: FrameWrite) -> None:
        self._write = write

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Returned:
        return self._write.write(iterator)

    @override
    def commit(self, messages: Sequence[Any]) -> None:
        self._write.commit(messages)


class FrameStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc] # as above
    """Writes each batch of a stream."""

    def __init__(self, write: FrameWrite) -> None:
        self._write = write

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Returned:
        return self._write.write(iterator)

    @override
    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        self._write.commit(messages, batchId)

    @override
    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Nothing can be taken back from a destination."""
