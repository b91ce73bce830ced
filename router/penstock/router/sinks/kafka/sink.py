"""The Kafka sink: records as messages of one topic, a transaction for each request.

A message's value is the record as it lies in the log, its key what `key` says, its time the
record's; the header `penstock_id` is the record's position in the log. A tombstone is one again.

A transaction holds a request's messages and one more, in the sink's own compacted topic of
positions: how far the batch in work has come in this partition of the log, and a digest of what it
had until there. A batch is known by its offsets, so one of other records is another batch. Records
that Kafka has refused are passed over, and become dead letters when the batch is at its end; the
position says which these are, for a batch that is given up before.

Tasks of Spark produce, one for each partition of the log in a batch, and the driver produces what
they leave. The `transactional.id` is that of job, sink and partition of the log. So a task begins
with the end of every transaction that another process has open for its partition, and with its
right to commit anything later; then it reads the positions. What is there of its batch it does not
send. Where it finds neither that nor the position at which the driver has begun the batch, it is a
task of an earlier batch, forgotten on a lost executor, and sends nothing.

A client that reads with `isolation.level=read_committed` (the default of few) therefore has each
record of a batch once, however often it came again after a crash. What is delivered again on
purpose, an earlier range or dead letters, is there again; `penstock_id` tells, and with `key:
record_position` in a compacted topic the last one stays.

Requests keep the log's order. What Kafka refuses a record for (its size, its time, a key that is
missing in a compacted topic) is looked for in halves and goes to the dead letters; without a right,
a login or a topic the sink is paused; everything else is waited for.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import orjson
import pyarrow as pa
from pydantic import Field, model_validator
from typing_extensions import override

from penstock.router.delivery.batch_names import POSITION
from penstock.router.delivery.result import (
    DeliveryResult,
    Fault,
    PartialFailure,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.job.config_errors import needed
from penstock.router.sinks.http.encode import event_id, position_of, record_of, section, time_ns
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import RequestBatch, TaskRequestSettings, Tls
from penstock.router.sinks.http.task_sink import (
    RequestWriter,
    TaskRequestSink,
    WrittenRequests,
)
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext
from penstock.service.config_types import Form, Secret

_Topic = Annotated[
    str, Form(r"^[a-zA-Z0-9._-]{1,249}$", "1 to 249 characters of A-Z a-z 0-9 . _ -")
]
_SERVER: Final = r"[^\s,:@/]+:\d{1,5}"
_BYTES_OF_RECORD: Final = 36
_BYTES_OF_LENGTHS: Final = 10
"""Bytes of a record of format 2 beside key, value and headers; and of each header."""
_MILLISECOND_NS: Final = 1_000_000

TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"})
UNFIT: Final = frozenset({"INVALID_MSG", "INVALID_RECORD", "INVALID_TIMESTAMP", "POLICY_VIOLATION"})
"""Errors that concern messages, by librdkafka's names."""

FENCED: Final = frozenset({"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"})
"""Errors of a producer behind which another one has begun with the same id."""

PAUSED: Final = FENCED | frozenset({
    "_AUTHENTICATION", "_INVALID_ARG", "_SSL", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC",
    "_UNSUPPORTED_FEATURE", "CLUSTER_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED",
    "INVALID_REQUIRED_ACKS", "INVALID_TRANSACTION_TIMEOUT", "SASL_AUTHENTICATION_FAILED",
    "SECURITY_DISABLED", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_DELETION_DISABLED", "TOPIC_EXCEPTION",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART",
    "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "UNSUPPORTED_SASL_MECHANISM",
    "UNSUPPORTED_VERSION",
})  # fmt: skip
"""Errors that an operator must correct, also that another producer has the same id."""


SUPERSEDED: Final = Paused("another producer writes this partition of the log")
"""Result of a request that its task may not send; the driver then does."""


class KafkaSink(TaskRequestSettings):
    """Messages in a topic of Kafka, in transactions."""

    type: Literal["kafka"]
    max_in_flight: Literal[1] = 1
    """More would break the order of a partition."""
    bootstrap_servers: Annotated[
        str, Form(rf"^{_SERVER}(,{_SERVER})*$", "HOST:PORT, or several joined by commas alone")
    ]
    topic: _Topic
    key: Literal["record", "trace_id", "service", "record_position"] = "record"
    positions_topic: _Topic | None = None
    create: bool = True
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    max_message_bytes: Annotated[int, Field(ge=1024, le=1_000_000_000)] = 1_000_000
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    user: str | None = None
    password: Secret | None = None
    tls: Tls = Tls()
    batch: RequestBatch = RequestBatch(max_records=10_000, max_bytes=8 * 1024 * 1024)

    @model_validator(mode="after")
    def _login_and_protocol_fit(self) -> Self:
        logs_in = self.security_protocol.startswith("sasl")
        if logs_in != (self.user is not None and self.password is not None):
            raise ValueError("user and password are for the security_protocol sasl_…, which needs")
        if not self.security_protocol.endswith("ssl") and self.tls != Tls():
            raise ValueError("tls is for the security_protocol ssl and sasl_ssl")
        return self

    @model_validator(mode="after")
    def _positions_have_a_topic_of_their_own(self) -> Self:
        if self.positions_topic == self.topic:
            raise ValueError("positions_topic must be another one than topic, and is compacted")
        return self

    @override
    def about(self) -> str:
        return f"messages in {self.topic} at {self.bootstrap_servers}; in transactions"


class Message(NamedTuple):
    """One record on its way; `offset` and `partition_key` are those in the log."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    time_ms: int
    partition_key: str
    offset: int

    @property
    def size(self) -> int:
        """Bytes of it in a batch, at most."""
        size = _BYTES_OF_RECORD + len(self.key or b"") + len(self.value or b"")
        for name, text in self.headers:
            size += len(name) + len(text) + _BYTES_OF_LENGTHS
        return size


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of a batch in one partition of the log.

    Attributes:
        first: The first offset of the batch.
        end: The offset after the last record that is delivered.
        digest: Digest of all the batch's offsets before `end`, and of the reason of a repetition.
        passed_over: Bit `n` is set if the batch's `n`-th record is before `end` and not there.
    """

    first: int
    end: int
    digest: str
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """The positions of a sink, as the topic of positions has them before one of its offsets.

    Attributes:
        positions: By partition of the log.
        next_offset: The first offset of the topic that was not read.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    next_offset: int = 0


class TroubleError(Exception):
    """Error of Kafka, or of the connection to it; `name` is librdkafka's."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name
        self.text = text


class Kafka(TaskRequestSink):
    """Produces messages; see the module's docstring."""

    config_class = KafkaSink
    _config: KafkaSink
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "a transaction holds records and the position behind them",
        within="the batch that was in work, for readers of committed messages",
    )

    def __init__(self, config: KafkaSink, context: SinkContext, *, connection: Any = None) -> None:
        """Make the sink; `connection` replaces the one that `kafka_connection` makes."""
        super().__init__(config, context)
        self.address = config.bootstrap_servers
        if connection is None:
            module = needed("penstock.router.sinks.kafka.client", extra="kafka")
            connection = module.Connection(config, f"{context.job}.{context.sink}")
        self._connection = connection
        self._offsets: Mapping[str, array[int]] = {}
        self._occasion = ""
        self._committed = Committed()
        self._joined: Committed | None = None
        self._unsettled: Mapping[str, Sequence[int]] = {}

    @override
    def start_over(self) -> None:
        self._occasion = str(self.context.clock.unix_ns())

    @override
    def close(self) -> None:
        self._connection.close()

    @override
    def encode(self, row: Row) -> Item | Fault:
        record = record_of(row) or {}
        value: bytes | None = row["value"]
        headers = (
            ("penstock_id", event_id(row, self.context).encode()),
            ("penstock_kind", row["kind"].encode()),
            ("penstock_subject", row["subject"].encode()),
        )
        time_ms = time_ns(row, record) // _MILLISECOND_NS
        message = Message(
            self._key_of(row, record),
            value,
            headers,
            time_ms,
            self._partition_key(row),
            row["offset"],
        )
        size = message.size
        if size > self._config.max_message_bytes:
            limit = f"{size} bytes are more than max_message_bytes"
            return _fault(TroubleError("MSG_SIZE_TOO_LARGE", limit))
        return Item(message, size, message.partition_key)

    def _key_of(self, row: Row, record: dict[str, Any]) -> bytes | None:
        if self._config.key == "record":
            own: bytes | None = row.get("key")
            return own
        if self._config.key == "record_position":
            return event_id(row, self.context).encode()
        by_trace = self._config.key == "trace_id"
        found = record.get("trace_id") if by_trace else service_of(record)
        return found.encode() if isinstance(found, str) and found else None

    @override
    def place_of(self, row: Row) -> str | None:
        key = self._key_of(row, record_of(row) or {})
        named = "" if key is None else f"key {key.decode(errors='replace')}, "
        return f"topic {self._config.topic}: {named}penstock_id {event_id(row, self.context)}"

    def _partition_key(self, row: Row) -> str:
        partition_key = f"{self.context.stream_tag(*position_of(row))}/{row['partition']}"
        return (
            f"again/{partition_key}" if self._occasion else partition_key
        )  # the job's own stays as it is

    @override
    def is_ready(self) -> bool:
        try:
            self._committed = self._connection.committed()
        except (OSError, TroubleError):
            return False  # the driver's first request meets the same, and says so
        return True

    @override
    def writer(self) -> RequestWriter:
        self._connection.release()
        return super().writer()

    @override
    def note_for_tasks(self) -> Committed:
        return self._committed

    @override
    def join_batch(self, note: Committed) -> None:
        self._joined = note
        self._connection.continue_after(note)

    @override
    def encoded(self, rows: pa.Table) -> WrittenRequests:
        self._offsets = self._offsets_of(rows)
        return super().encoded(rows)

    @override
    def note_for_driver(self, unsettled: Sequence[Request]) -> Mapping[str, "array[int]"]:
        """Return all offsets of the batch in each partition of the log, if some are left."""
        return self._offsets if unsettled else {}

    @override
    def commit(self, results: Sequence[WrittenRequests]) -> None:
        offsets: dict[str, set[int]] = {}
        for result in results:
            for partition_key, some in (result.note or {}).items():
                offsets.setdefault(partition_key, set()).update(some)
        self._offsets = {key: array("q", sorted(some)) for key, some in offsets.items()}
        if len(offsets) > 1:
            self._connection.end_transactions(offsets)
        super().commit(results)

    @override
    def prepare_to_settle(self, requests: Sequence[Request], taken: Sequence[str]) -> None:
        offsets: dict[str, list[int]] = {}
        for message in (item.content for request in requests for item in request.items):
            offsets.setdefault(message.partition_key, []).append(message.offset)
        self._unsettled = {key: sorted(some) for key, some in offsets.items()}

    def _offsets_of(self, rows: pa.Table) -> dict[str, "array[int]"]:
        """The offsets of each partition, in order."""
        found: dict[str, list[int]] = {}
        for row in rows.select(POSITION).to_pylist():
            found.setdefault(self._partition_key(row), []).append(row["offset"])
        return {
            partition_key: array("q", sorted(offsets)) for partition_key, offsets in found.items()
        }

    def _may_begin(self, partition_key: str, found: Position | None) -> bool:
        """Return whether the batch is the next one behind a position that is none of it."""
        return self._joined is None or found == self._joined.positions.get(partition_key)

    def _position(
        self, partition_key: str, end: int, passed_over: Collection[int] = ()
    ) -> Position:
        offsets = self._offsets[partition_key]
        before = offsets[: bisect_left(offsets, end)].tobytes()
        had = hashlib.blake2b(self._occasion.encode() + before, digest_size=8)
        digits = bytearray(b"0" * len(offsets))  # they may be as many as a batch
        for offset in passed_over:
            digits[bisect_left(offsets, offset)] = ord("1")
        bits = int(digits[::-1], 2) if passed_over else 0
        return Position(offsets[0], end, had.hexdigest(), bits)

    def _passed_over(self, partition_key: str, known: Position | None) -> set[int]:
        """Return the offsets that a position of the batch in work passes over."""
        if known is None or not known.passed_over:
            return set()
        digits = zip(self._offsets[partition_key], reversed(f"{known.passed_over:b}"), strict=False)
        return {offset for offset, digit in digits if digit == "1"}

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        messages: list[Message] = [item.content for item in request.items]
        partition_key = messages[0].partition_key
        try:
            found: Position | None = self._connection.position(partition_key)
            known = found if self._is_of_batch(partition_key, found) else None
            if known is None and not self._may_begin(partition_key, found):
                return SUPERSEDED
            reached = 0 if known is None else known.end
            missing = self._passed_over(partition_key, known)
            left = [
                at for at, it in enumerate(messages) if it.offset >= reached or it.offset in missing
            ]
            refused = dict[int, TroubleError]()
            if left:
                sent = [messages[at] for at in left]
                end = max(reached, sent[-1].offset + 1)
                missing.update(self._unsettled_between(partition_key, reached, end))
                behind = self._position(partition_key, end, missing - {it.offset for it in sent})
                refused = self._connection.send(sent, partition_key, behind)
        except OSError as error:
            return Paused(f"a file cannot be read: {error}")
        except TroubleError as trouble:
            if self._joined is not None and trouble.name in FENCED:
                return SUPERSEDED
            return classify_trouble(trouble)
        if refused:
            return classify_refusals({left[at]: why for at, why in refused.items()}, len(messages))
        self.context.meter.count("already_there", len(messages) - len(left))
        return Success()

    def _unsettled_between(self, partition_key: str, begin: int, end: int) -> Sequence[int]:
        offsets = self._unsettled.get(partition_key, ())
        return offsets[bisect_left(offsets, begin) : bisect_left(offsets, end)]

    def _is_of_batch(self, partition_key: str, found: Position | None) -> bool:
        """Return whether a position is one of the batch in work."""
        if found is None:
            return False
        return replace(found, passed_over=0) == self._position(partition_key, found.end)

    @override
    def exchange_in_task(self, request: Request) -> DeliveryResult | None:
        result = self.exchange(request, 1)
        return None if result is SUPERSEDED else result

    @override
    def show(self, request: Request) -> Preview:
        lines = "\n".join(_line(item.content) for item in request.items)
        target = f"produce to {self._config.topic} at {self.address}"
        return Preview(target, len(request.items), lines)


def classify_refusals(refused: Mapping[int, TroubleError], count: int) -> DeliveryResult:
    """Return the result of a request whose transaction was aborted for its messages.

    Args:
        refused: Messages that Kafka refuses, by their index in the request.
        count: Number of messages in the request.
    """
    alone, trouble = next(iter(refused.items()))
    if len(refused) > 1:  # one may be refused for another of its batch
        return classify_trouble(trouble)
    again = tuple(it for it in range(count) if it != alone)
    return PartialFailure(refused=((alone, _fault(trouble)),), again=again)


def classify_trouble(trouble: TroubleError) -> DeliveryResult:
    """Return the result of a request whose transaction was aborted as a whole."""
    fault = _fault(trouble)
    if trouble.name in TOO_LARGE:
        return TooLarge(fault)
    if trouble.name in UNFIT:
        return Rejected(fault)
    return Paused(fault.reason) if trouble.name in PAUSED else Retryable(fault.reason)


def service_of(record: dict[str, Any]) -> Any:
    return section(record, "resource").get("service.name")


def _fault(trouble: TroubleError) -> Fault:
    return Fault(f"kafka_{trouble.name}", f"Kafka {trouble.name}: {trouble.text[:200]}")


def _line(message: Message) -> str:
    key = "-" if message.key is None else message.key.decode(errors="replace")
    value = "null" if message.value is None else message.value.decode(errors="replace")
    about = orjson.dumps({name: text.decode() for name, text in message.headers}).decode()
    return f"{key} {about} {value}"
