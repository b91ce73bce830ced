"""The BigQuery sink: rows of one table by the Storage Write API, at offsets of the sink's own.

    CreateWriteStream(COMMITTED)  →  projects/P/datasets/D/tables/T/streams/S
    AppendRows(S, offset 0, rows…), AppendRows(S, offset 120, rows…), …
    FinalizeWriteStream(S)        →  how many rows it has

A stream takes rows only at its end, and an append says at which offset that is. Tasks of Spark have
a stream for each partition of the log, and append there from the offset on at which the driver
begins the batch. Before they run the driver writes into its directory, durably, which streams and
offsets these are (`Journal`), and before each append of its own, which records go to which offset
of which stream. When it is not known what became of an append, because of a crash or of an answer
that never came, the driver finalizes the stream: nothing can be appended to it any more, not by a
task that goes on somewhere either, and it says how many rows it has. So it is known which records
of the batch are there, they are left out, and a new stream takes the others. Rows can be queried as
soon as an append is answered.

A task that runs again, or twice, finds rows where it would append, and leaves the rest to the
driver. What tasks had in work when the job was killed is known by the order of the rows, if the
same rules choose them: the same release and job file, and no record lost meanwhile. Else they are
delivered again, and counted as `unknown`.

That holds for the batch in work, and as long as the sink's directory (`checkpoint_dir`) is kept. It
holds also for the batch that a replay of a range had in work, when that goes on. A replay and dead
letters are delivered again on purpose, and so are the dead letters that a stopped replay had in
work and a batch whose last append was of a stream that Google has forgotten meanwhile (`unknown`,
too). The columns `stream`, `incarnation`, `partition` and `offset` tell rows that are there twice.

The table is yours to make; columns that it has beside these get their defaults:

    CREATE TABLE telemetry.records (
      stream STRING, incarnation STRING, `partition` INT64, `offset` INT64, time TIMESTAMP,
      time_unix_nano INT64, kind STRING, service STRING, severity_number INT64, trace_id STRING,
      record STRING, raw BYTES)
    PARTITION BY DATE(time) CLUSTER BY kind, service

`record` may be JSON. An append is taken as a whole or not at all; rows that are wrong are named, go
to the dead letters, and the others are sent again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import pyarrow as pa
from pydantic import Field, HttpUrl, model_validator
from typing_extensions import override

from penstock.router.delivery.result import DeliveryResult, Fault, PartialFailure, Success
from penstock.router.job.config_errors import needed
from penstock.router.sinks.bigquery.journal import Journal, Record, Sent
from penstock.router.sinks.http.encode import (
    position_of,
    record_of,
    row_key,
    section,
    time_ns,
    utf8,
)
from penstock.router.sinks.http.google_credentials import NoTokenError
from penstock.router.sinks.http.protobuf import varint
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import RequestBatch, TaskRequestSettings
from penstock.router.sinks.http.task_sink import TaskRequestSink, WrittenRequests
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext, as_json_lines
from penstock.service.config_types import Form

COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("stream", "STRING"),
    ("incarnation", "STRING"),
    ("partition", "INT64"),
    ("offset", "INT64"),
    ("time", "TIMESTAMP"),
    ("time_unix_nano", "INT64"),
    ("kind", "STRING"),
    ("service", "STRING"),
    ("severity_number", "INT64"),
    ("trace_id", "STRING"),
    ("record", "STRING"),
    ("raw", "BYTES"),
)
"""A row's fields are numbered in this order, from 1."""

_TAGS: Final = tuple(
    (varint(number << 3), varint(number << 3 | 2)) for number in range(1, len(COLUMNS) + 1)
)
"""Each field's, as a number and as text or bytes."""

_REQUEST_BYTES_MAX: Final = 9_000_000
_INT64_MAX: Final = 2**63 - 1


class BigQuerySink(TaskRequestSettings):
    """Rows in a table of Google BigQuery."""

    type: Literal["bigquery"]
    max_in_flight: Literal[1] = 1
    """A stream takes rows at its end only."""
    table: Annotated[
        str,
        Form(
            r"^[a-z][a-z0-9.:-]{2,62}\.[A-Za-z0-9_]{1,1024}\.[A-Za-z0-9_-]{1,1024}$",
            "PROJECT.DATASET.TABLE: a project's id, then names of A-Z a-z 0-9 _, that of the table"
            " also with -",
        ),
    ]
    credentials_file: Path | None = None
    url: HttpUrl = HttpUrl("https://bigquerystorage.googleapis.com")
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    batch: RequestBatch = RequestBatch(max_records=10_000, max_bytes=4 * 1024 * 1024)

    @model_validator(mode="after")
    def _requests_are_not_larger_than_google_takes(self) -> Self:
        if self.batch.max_bytes > _REQUEST_BYTES_MAX:
            raise ValueError(f"batch: at most {_REQUEST_BYTES_MAX} bytes")
        return self

    @property
    def path(self) -> str:
        """The table as the API names it."""
        project, dataset, table = self.table.rsplit(".", 2)
        return f"projects/{project}/datasets/{dataset}/tables/{table}"

    @override
    def about(self) -> str:
        return f"rows of {self.table} in BigQuery; once for the batch in work"


class TroubleError(Exception):
    """A call failed; it is unknown whether an append was done."""

    def __init__(self, verdict: DeliveryResult, code: int) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict
        self.code = code


class BigQuery(TaskRequestSink):
    """Appends rows; see the module's docstring."""

    config_class = BigQuerySink
    _config: BigQuerySink
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "rows are appended at offsets of the sink's own stream, which is asked how far it came",
        within="the batch that was in work, while `checkpoint_dir` is kept",
    )

    def __init__(self, config: BigQuerySink, context: SinkContext) -> None:
        super().__init__(config, context)
        self.address = f"{config.url.host}:{config.url.port}"
        self._library = needed("penstock.router.sinks.bigquery.client", extra="google")
        self._connection: Any = None
        self._journal = Journal(context.state_dir / "bigquery.json", context.persist)
        self._lends = False
        self._in_doubt: dict[str, list[Record]] = {}
        self._streams: Mapping[str, tuple[str, int]] = {}
        self._appended = Counter[str]()
        self._appended_in_tasks = Counter[str]()

    @override
    def open(self) -> None:
        self._connection = self._library.Connection(self._config, self.context.clock)
        self._journal.read()

    @override
    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @override
    def start_over(self) -> None:
        """The journal of the job's own batch stays as it is."""
        self._journal = Journal(
            self.context.state_dir / "bigquery-again.json", self.context.persist
        )

    @override
    def go_on(self) -> None:
        """The stream that was appended to is asked, as after a crash of the job."""
        self.start_over()
        self._journal.read()

    @override
    def begin(self) -> None:
        self._lends = False

    @override
    def is_ready(self) -> bool:
        starts = self.context.starts
        if not starts or self._journal.comes_again(starts):
            return False
        try:
            self._journal.lend(starts, self.context.rules, self._connection.create)
        except (NoTokenError, TroubleError):
            return False  # the driver's first request meets the same, and says so
        self._lends = True
        return True

    @override
    def note_for_tasks(self) -> Mapping[str, tuple[str, int]]:
        """Return where each partition's rows go: to which stream, and at which of its offsets."""
        lent = self._journal.lent if self._lends else {}
        return {place: (it.stream, it.rows) for place, it in lent.items()}

    @override
    def join_batch(self, note: Mapping[str, tuple[str, int]]) -> None:
        self._streams = note
        self._appended = Counter()

    @override
    def note_for_driver(self, unsettled: Sequence[Request]) -> Counter[str]:
        """Return how many rows of each partition are appended."""
        return self._appended

    @override
    def commit(self, results: Sequence[WrittenRequests]) -> None:
        appended, journal = Counter[str](), self._journal
        left: dict[str, list[Record]] = {}
        for result in results:
            appended.update(result.note or {})
            for request in result.unsettled:
                records = [(it.content[0], it.content[1]) for it in request.items]
                left.setdefault(request.group, []).extend(records)
        journal.begin(record for records in left.values() for record in records)
        self._in_doubt = {
            place: records
            for place, records in left.items()
            if place in journal.lent and journal.lent[place].start == self.context.starts.get(place)
        }
        self._appended_in_tasks = appended
        super().commit(results)
        journal.end_batch(appended if self._lends else None)

    def _place(self, row: Row) -> str:
        return self.context.position_tag(*position_of(row))

    @override
    def encode(self, row: Row) -> Item | Fault:
        value: bytes = row["value"] or b""
        record = record_of(row) or {}
        moment_ns = time_ns(row, record)
        text = utf8(value)
        severity, trace = record.get("severity_number"), record.get("trace_id")
        service = section(record, "resource").get("service.name")
        fields: tuple[str | int | bytes | None, ...] = (
            row["stream"],
            self.context.stream_id(*position_of(row)),
            row["partition"],
            row["offset"],
            moment_ns // 1000,
            moment_ns,
            row["kind"],
            service if isinstance(service, str) else None,
            severity if type(severity) is int and 0 <= severity <= _INT64_MAX else None,
            trace if isinstance(trace, str) else None,
            text,
            None if text is not None else value,
        )
        content = encoded(fields)
        place = self._place(row)
        return Item((place, row["offset"], content, fields), len(content) + 4, place)

    @override
    def place_of(self, row: Row) -> str | None:
        return row_key(self._config.table, row, self.context)

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        return self._result_of(lambda: self._exchange(request))

    @override
    def exchange_in_task(self, request: Request) -> DeliveryResult | None:
        if request.group not in self._streams:
            return None  # of another generation than the batch began with
        return self._result_of(lambda: self._exchange_in_task(request))

    def _result_of(self, exchange: Callable[[], DeliveryResult]) -> DeliveryResult:
        try:
            return exchange()
        except (NoTokenError, TroubleError) as error:
            return error.verdict

    def _exchange(self, request: Request) -> DeliveryResult:
        connection, journal = self._connection, self._journal
        if request.group in self._in_doubt:
            self._settle_tasks(request.group)
        if journal.sent is not None or journal.is_left:
            self._settle()
        left = [
            (place, item.content)
            for place, item in enumerate(request.items)
            if not journal.has(item.content[0], item.content[1])
        ]
        self.context.meter.count("already_there", len(request.items) - len(left))
        if not left:
            return Success()
        if journal.stream is None:
            journal.start(connection.create())
        records = tuple((content[0], content[1]) for _, content in left)
        journal.send(Sent(journal.rows, records))
        answer = connection.append(
            journal.stream, journal.rows, [content[2] for _, content in left]
        )
        if answer.verdict is None:
            journal.taken()
        elif answer.is_certain:
            journal.refused()
        return _result(answer, [place for place, _ in left])

    def _exchange_in_task(self, request: Request) -> DeliveryResult:
        stream, rows = self._streams[request.group]
        at = rows + self._appended[request.group]
        answer = self._connection.append(stream, at, [it.content[2] for it in request.items])
        if answer.verdict is None:
            self._appended[request.group] += len(request.items)
        return _result(answer, range(len(request.items)))

    def _settle(self) -> None:
        """Find out what became of the last append, and never append to its stream again."""
        count: int | None = self._connection.finalize(self._journal.stream)
        if count is None:
            self.context.meter.count("unknown")
        self._journal.settle(count)

    def _settle_tasks(self, place: str) -> None:
        """Find out what tasks have appended beside what they say, and let them append no more."""
        lent = self._journal.lent[place]
        count: int | None = self._connection.finalize(lent.stream)
        beyond = 0 if count is None else count - lent.rows - self._appended_in_tasks[place]
        rules = None if place in self.context.shortened else self.context.rules
        is_known = self._journal.settle_lent(place, beyond, self._in_doubt.pop(place), rules)
        if count is None or not is_known:
            self.context.meter.count("unknown")

    @override
    def show(self, request: Request) -> Preview:
        names = [name for name, _ in COLUMNS]
        rows = [dict(zip(names, item.content[3], strict=True)) for item in request.items]
        lines = as_json_lines(pa.Table.from_pylist(rows))
        return Preview(f"append to {self._config.path}", len(rows), lines)


def _result(answer: Any, places: Sequence[int]) -> DeliveryResult:
    """Return the result for the records at these indexes of a request."""
    verdict: DeliveryResult | None = answer.verdict
    if verdict is None:
        return Success()
    if not answer.rows:
        return verdict
    refused = tuple((places[row], fault) for row, fault in answer.rows)
    named = {place for place, _ in refused}
    return PartialFailure(refused=refused, again=tuple(it for it in places if it not in named))


def encoded(fields: Sequence[str | int | bytes | None]) -> bytes:
    """A row, or its first fields, as a message of proto2: what is not there is left out."""
    found: list[bytes] = []
    for (of_number, of_text), value in zip(_TAGS, fields, strict=False):
        if isinstance(value, int):
            found += of_number, varint(value)
        elif value is not None:
            text = value.encode() if isinstance(value, str) else value
            found += of_text, varint(len(text)), text
    return b"".join(found)
