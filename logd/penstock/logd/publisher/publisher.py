"""The asyncio publisher, and which partition a key belongs to.

Which partition of a stream a key belongs to, and the subject that partition stores.

Partition 0 stores the stream's subject itself, partition n what is published on `<subject>.n`. A
key belongs to partition

    crc32(key) mod partitions

with the CRC-32 of IEEE 802.3 (of b"123456789": 0xCBF43926), as go-liftbridge's key partitioner has
it. Every publisher must agree on it, and a stream's partitions cannot be changed: so the records of
a key are in one partition, in the order in which they are published. This may never change.
"""

import asyncio
import random
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count, takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self
from zlib import crc32

import pyarrow as pa
from msgspec import structs
from nats.aio.client import NO_RESPONDERS_STATUS
from nats.errors import Error
from nats.js.api import Header

from penstock.base.clock import monotonic_ns
from penstock.logd.client.following import PAUSE_FIRST_S, PAUSE_MAX_S, RetryBackoff
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    NoAnswerError,
    RefusedError,
    UnavailableError,
)
from penstock.logd.format.acks import Nack, PubAck, decode_ack, decode_batch_ack
from penstock.logd.format.batch import (
    SCHEMA,
    SCHEMA_VERSION,
    Compression,
    Record,
    build_batch,
    dense_deltas,
    encode_body,
)
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.logd.intake.options import EXPECTED_STREAM
from penstock.logd.publisher.inbox import OnReply, ReplyInbox

if TYPE_CHECKING:
    import nats
    from nats.aio.msg import Msg


@dataclass(slots=True)
class SubjectQueue:
    """The plain messages, or the batches of a subject.

    Attributes:
        turn: Held by who sends next.
        window: Messages sent, in order, with those that were answered out of order.
        sequence: Sequence of the last batch.
        producer_id: Producer id of the batches.
        users: Calls that wait for their turn, and messages without an answer.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    window: deque[asyncio.Future[PubAck]] = field(default_factory=deque)
    sequence: int = 0
    producer_id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    users: int = 0

    async def room(self, limit: int) -> None:
        """Wait until the message `limit` before is settled; by so many others overtake at most."""
        window = self.window
        while window:
            if not window[0].done():
                if len(window) < limit:
                    return
                await asyncio.wait({window[0]})
            window.popleft()

    async def settled_before(self, ack: asyncio.Future[PubAck]) -> None:
        """Wait until every message before that with this ack is settled.

        The one just before is not enough: it may have been refused for good, or given up, while
        one further ahead is still to be sent again.
        """
        ahead = set(takewhile(lambda other: other is not ack, self.window))
        if ahead:
            await asyncio.wait(ahead)


class SubjectQueues:
    """The queues of the subjects batches are published on.

    Of a queue that is forgotten every batch is settled: acked, refused, or given up. So when its
    subject comes back under another producer id, nothing is sent again and nothing was left out.
    Only a batch that was given up without an answer may still be under way; on a queue that is
    kept logd refuses it when it comes too late, else it is stored after those sent since.

    Args:
        limit: Queues; more only while as many are in use.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: OrderedDict[str, SubjectQueue] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of known subjects."""
        return len(self._queues)

    def __iter__(self) -> Iterator[str]:
        """Their subjects, that used longest ago first."""
        return iter(self._queues)

    def of(self, subject: str) -> SubjectQueue:
        """A subject's queue; the one idle longest may be forgotten for it."""
        queue = self._queues.get(subject)
        if queue is None:
            self._forget()
            queue = self._queues[subject] = SubjectQueue()
        self._queues.move_to_end(subject)
        return queue

    def _forget(self) -> None:
        """Make room for another; queues that became too many while all were in use go now."""
        excess = len(self._queues) + 1 - self._limit
        idle = (subject for subject, queue in self._queues.items() if not queue.users)
        for subject in [found for _, found in zip(range(excess), idle, strict=False)]:
            del self._queues[subject]


_SPACE: Final = frozenset(" \t\r\n\0")
_NAME: Final = re.compile(r"[^ \t\r\n\0:\ud800-\udfff]+")
_VALUE: Final = re.compile(r"[^\r\n\ud800-\udfff]*")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
"""What `str` may hold and UTF-8 has not."""

_RESYNC: Final = (Nack.SEQUENCE_GAP, Nack.UNKNOWN_PRODUCER)


class PublishRefusedError(RefusedError):
    """Logd answered that it does not store a message; `code` is the name of the `nack`.

    Attributes:
        nack: Why.
        stream: Stream that refused.
    """

    def __init__(self, ack: PubAck) -> None:
        assert ack.nack is not None
        self.nack = ack.nack
        self.stream = ack.stream
        super().__init__(ack.nack.name, f"stream {ack.stream!r}: {ack.description}")


class BatchPartsError(LogdError):
    """Error of a batch in several parts, some of which are not stored, or possibly not.

    Attributes:
        parts: Number of records of each part, in order, and its ack or error.
    """

    def __init__(self, parts: Sequence[tuple[int, PubAck | BaseException]]) -> None:
        self.parts = tuple(parts)
        first = next(found for _, found in parts if isinstance(found, BaseException))
        failed = sum(isinstance(found, BaseException) for _, found in parts)
        super().__init__(f"{failed} of {len(parts)} parts of a batch are not stored: {first}")


@dataclass(frozen=True, slots=True)
class PublishRetry:
    """Send it again later.

    Attributes:
        error: Error to raise when there is no time left.
        last_sequence: The producer's last sequence that is stored, where the answer says it.
    """

    error: LogdError
    last_sequence: int | None = None


class PendingPublish(Protocol):
    """A message on its way; sent again it is the same to logd."""

    @property
    def subject(self) -> str:
        """The NATS subject."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """The NATS headers."""
        ...

    def payload(self) -> bytes:
        """The NATS payload."""
        ...

    def read(self, data: bytes) -> PubAck | PublishRetry:
        """Read an answer.

        Raises:
            PublishRefusedError: The record will never be stored.
        """
        ...

    def after(self, again: PublishRetry) -> "PendingPublish":
        """Return the publish to send next."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A plain message; its headers have a message id."""

    subject: str
    value: bytes
    headers: dict[str, str]

    def payload(self) -> bytes:
        """The value."""
        return self.value

    def read(self, data: bytes) -> PubAck | PublishRetry:
        return _judge(decode_ack, data, 1, self.headers)

    def after(self, again: PublishRetry) -> "Plain":
        del again
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishBatch:
    """A batch with a producer's sequence."""

    subject: str
    body: bytes
    count: int
    producer_id: bytes
    previous: int
    sequence: int
    headers: dict[str, str] = field(default_factory=dict)

    def payload(self) -> bytes:
        """The envelope."""
        return encode_batch(
            BatchPayload(
                schema_version=SCHEMA_VERSION,
                record_count=self.count,
                producer_id=self.producer_id,
                previous_sequence=self.previous,
                sequence=self.sequence,
                body=self.body,
            )
        )

    def read(self, data: bytes) -> PubAck | PublishRetry:
        return _judge(decode_batch_ack, data, self.count, self.headers)

    def numbered(self, previous: int) -> "PublishBatch":
        """Behind the batch with this sequence."""
        return replace(self, previous=previous, sequence=previous + 1)

    def after(self, again: PublishRetry) -> "PublishBatch":
        """Behind what is stored; called when every batch before this one is settled."""
        last = again.last_sequence
        return self if last is None or last >= self.sequence else replace(self, previous=last)


def plain_headers(
    message_id: str, *, key: bytes | None, tombstone: bool, extra: dict[str, str]
) -> dict[str, str]:
    """The headers of a plain message.

    Raises:
        ValueError: The key cannot be written in a header: it is not UTF-8, or has line ends or
            white space around it. A batch takes any bytes.
    """
    headers = dict(extra) | {"Nats-Msg-Id": message_id}
    if key is not None:
        text = key.decode("utf-8", "replace")
        if text.encode() != key or text != text.strip() or set("\r\n") & set(text) or not text:
            msg = f"key {key[:40]!r} cannot stand in a NATS header; publish a batch"
            raise ValueError(msg)
        headers["Penstock-Key"] = text
    if tombstone:
        headers["Penstock-Tombstone"] = "true"
    return headers


def header_bytes(headers: Mapping[str, str]) -> int:
    """Bytes of headers as NATS sends them; 0 where there are none."""
    if not headers:
        return 0
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return len("NATS/1.0\r\n\r\n") + (len(text) if text.isascii() else len(text.encode()))


def check_sendable(subject: str, headers: Mapping[str, str]) -> None:
    """Check what NATS would refuse each time, or take for something else.

    Raises:
        ValueError: The subject has wildcards, empty tokens or white space; or a header has line
            ends, or a name that is none; or one of them is no Unicode text.
    """
    _check_subject(subject)
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            msg = f"header {name[:40]!r}: a name without white space or colon, a value of one line"
            raise ValueError(msg)


@lru_cache(maxsize=1024)
def _check_subject(subject: str) -> None:
    tokens = subject.split(".")
    unfit = _SPACE & set(subject) or {"*", ">"} & set(tokens) or _SURROGATE.search(subject)
    if not all(tokens) or unfit:
        msg = f"subject {subject!r} is none to publish on: a wildcard, empty token or white space"
        raise ValueError(msg)


def _judge(
    decode: Callable[[bytes], PubAck], data: bytes, count: int, headers: Mapping[str, str]
) -> PubAck | PublishRetry:
    """Read the answer to a message of `count` records, for the stream its headers name.

    Other subscribers of the subject may answer, too: only an answer that this was stored counts.
    """
    try:
        ack = decode(data)
    except (CorruptError, ValueError):
        return PublishRetry(UnavailableError(f"the answer is not logd's: {data[:60]!r}"))
    if ack.nack is None:
        wanted = headers.get(EXPECTED_STREAM, ack.stream)
        if ack.stream != wanted or ack.count != count:
            what = f"{ack.count} records in stream {ack.stream!r}"
            text = f"the answer is about {what}, not about these {count} in {wanted!r}"
            return PublishRetry(UnavailableError(text))
        return ack
    error = PublishRefusedError(ack)
    if ack.nack in _RESYNC and ack.sequence is not None:
        return PublishRetry(error, ack.sequence)
    if ack.nack.retryable:
        return PublishRetry(error)
    raise error


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that a key belongs to, of so many.

    Raises:
        ValueError: There is not even one partition.
    """
    if partitions < 1:
        msg = f"{partitions} partitions: a stream has at least one"
        raise ValueError(msg)
    return crc32(key) % partitions


def partition_subject(subject: str, key: bytes | None, partitions: int) -> str:
    """The subject on which to publish a record with a key, of a stream with so many partitions.

    Args:
        subject: The stream's; without wildcards.
        key: Key of the record; not needed where there is one partition.
        partitions: Number of partitions of the stream.

    Raises:
        ValueError: There are several partitions and no key; or there is not even one.
    """
    if partitions == 1:
        return subject
    if key is None:
        msg = f"a record for one of {partitions} partitions of {subject!r} needs a key"
        raise ValueError(msg)
    number = partition_of(key, partitions)
    return f"{subject}.{number}" if number else subject


_STATUS: Final[str] = Header.STATUS.value

_NO_HEADERS: Final[Mapping[str, str]] = {}

_DELTA: Final = SCHEMA.field("offset_delta")

GIVEN_UP: Final = "the publisher was closed before the answer came"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Options of a publisher.

    Attributes:
        max_in_flight: Maximum messages and batches without an answer; further calls wait.
        ack_timeout_s: Seconds until a message without an answer is sent again.
        retry_s: Seconds from the first failure of a message until it is given up. Keep it below the
            streams' `dedup_window_s`, in which logd knows a message id; batches have no such limit.
        connect_timeout_s: Seconds to find a NATS server at first; later attempts go on until the
            publisher is closed.
        stream: The only stream whose answer counts, where several store a subject.
        compression: Compression of batches.
        max_subjects: Maximum subjects with their own sequence. Beyond it the subject idle
            longest is forgotten; when it comes back its batches are those of a new producer.
    """

    max_in_flight: int = 256
    ack_timeout_s: float = 5.0
    retry_s: float = 60.0
    connect_timeout_s: float = 10.0
    stream: str | None = None
    compression: Compression | None = None
    max_subjects: int = 10_000


class Publisher:
    """Publishes over a NATS connection; for any number of tasks of one event loop.

    Args:
        client: Connected; it stays the caller's to close, after `close`.
        options: Options of the publisher.
        rng: Source of the jitter of pauses between attempts.
        pauses_s: Seconds of the first pause and of the longest.
    """

    def __init__(
        self,
        client: "nats.NATS",
        options: PublishOptions | None = None,
        *,
        rng: random.Random | None = None,
        pauses_s: tuple[float, float] = (PAUSE_FIRST_S, PAUSE_MAX_S),
    ) -> None:
        self._client: Any = client
        self._options = options or PublishOptions()
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._pauses_s = pauses_s
        self._slots = asyncio.Semaphore(self._options.max_in_flight)
        self._plain = SubjectQueue()
        self._queues = SubjectQueues(self._options.max_subjects)
        self._inbox = ReplyInbox(client, self._options.ack_timeout_s)
        self._under_way: set[asyncio.Future[PubAck]] = set()
        self._repeats: set[asyncio.Task[PubAck]] = set()
        self._id = secrets.token_hex(8)
        self._numbers = count(1)
        self._closed = False

    @property
    def connected(self) -> bool:
        """True while a NATS server is connected."""
        return bool(self._client.is_connected)

    async def __aenter__(self) -> Self:
        """Ready as it is."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the answers; give them up when the block failed."""
        if kind is None:
            await self.flush()
        await self.close()

    async def publish(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partitions: int = 1,
        headers: Mapping[str, str] = _NO_HEADERS,
        message_id: str | None = None,
    ) -> PubAck:
        """Publish one record and wait until it is stored.

        Args:
            subject: Without wildcards; a stream must store it.
            value: The payload.
            key: Key of compaction and of the partition; UTF-8 without white space around it.
            partitions: Number of partitions of the stream; with several, the subject is that of the
                key's (`partition_subject`).
            headers: Further NATS headers, stored with the record.
            message_id: Id by which a repeat is recognised; chosen when None.

        Raises:
            PublishRefusedError: A stream will not store it, or would not within `retry_s`.
            RefusedError: `NATS_MAX_PAYLOAD`: NATS does not carry so much.
            UnavailableError: No answer within `retry_s`, or until the publisher was closed; it may
                be stored or not.
            ValueError: The subject is none to publish on, or the key or a header cannot be sent; or
                there is no key for one of several partitions.
        """
        subject = partition_subject(subject, key, partitions)
        return await (
            await self.submit(subject, value, key=key, headers=headers, message_id=message_id)
        )

    async def submit(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partitions: int = 1,
        headers: Mapping[str, str] = _NO_HEADERS,
        message_id: str | None = None,
    ) -> asyncio.Future[PubAck]:
        """`publish` without waiting for the answer: the future ends with it.

        Returns when the message's turn has come: at most `max_in_flight` have no answer.
        """
        subject = partition_subject(subject, key, partitions)
        return await self.submit_plain(
            self.plain(subject, value, key=key, headers=headers, message_id=message_id)
        )

    def plain(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        message_id: str | None = None,
    ) -> Plain:
        """The message of a record, for `submit_plain`; any thread may ask for it.

        Raises:
            TypeError: The value is neither bytes nor anything else with a buffer.
            ValueError: As `publish`.
        """
        extra = dict(headers) | self._expected_stream()
        made = plain_headers(message_id or self._next_id(), key=key, tombstone=False, extra=extra)
        check_sendable(subject, made)
        return Plain(subject=subject, value=_bytes_of(value), headers=made)

    async def submit_plain(self, message: Plain) -> asyncio.Future[PubAck]:
        """Submit a message that `plain` made."""
        return await self._submit(self._plain, message)

    async def delete(self, subject: str, *, key: bytes, partitions: int = 1) -> PubAck:
        """Publish a tombstone: compaction removes the key's records, and in time the tombstone.

        Raises:
            LogdError: As `publish`.
        """
        subject = partition_subject(subject, key, partitions)
        extra = self._expected_stream()
        made = plain_headers(self._next_id(), key=key, tombstone=True, extra=extra)
        check_sendable(subject, made)
        message = Plain(subject=subject, value=b"", headers=made)
        return await (await self._submit(self._plain, message))

    async def publish_batch(
        self, subject: str, records: Sequence[Record] | pa.RecordBatch
    ) -> PubAck:
        """Publish many records as one batch: one message, one frame, one ack.

        A batch above what the NATS server carries goes in several parts, each of them a batch that
        is stored whole or not at all; batches of others may come between them.

        Args:
            subject: Subject of every record.
            records: Not empty; or an Arrow batch of `penstock.logd.format.batch.SCHEMA` with offset
            deltas
                from 0. Any key will do; a value that is null is a tombstone.

        Returns:
            The ack; its `offset` is that of the last record.

        Raises:
            LogdError: As `publish`. A batch in parts: `BatchPartsError`, which has each part's.
        """
        return await (await self.submit_batch(subject, records))

    async def submit_batch(
        self, subject: str, records: Sequence[Record] | pa.RecordBatch
    ) -> asyncio.Future[PubAck]:
        """`publish_batch` without waiting for the answer, as `submit`."""
        batch = records if isinstance(records, pa.RecordBatch) else build_batch(records)
        if batch.num_rows == 0 or not batch.schema.equals(SCHEMA):
            msg = (
                "a batch has at least one record, and the schema penstock.logd.format.batch.SCHEMA"
            )
            raise ValueError(msg)
        check_sendable(subject, self._expected_stream())
        queue = self._queues.of(subject)
        messages = list(self._messages(subject, batch, queue.producer_id))
        parts = [await self._submit(queue, message) for message in messages]
        if len(parts) == 1:
            return parts[0]
        return asyncio.create_task(_all_acked([message.count for message in messages], parts))

    def _messages(
        self, subject: str, batch: pa.RecordBatch, producer_id: bytes
    ) -> Iterator[PublishBatch]:
        """A batch as one message, or in parts as large as NATS carries; one record is not cut."""
        message = PublishBatch(
            subject=subject,
            body=encode_body(batch, compression=self._options.compression),
            count=batch.num_rows,
            producer_id=producer_id,
            previous=0,
            sequence=1,  # until it is its turn
            headers=self._expected_stream(),
        )
        rows, limit = batch.num_rows, self._client.max_payload - header_bytes(message.headers)
        size = len(message.payload())
        if size <= limit or rows == 1:
            yield message
            return
        most = max(1, rows * limit // (size + size // 8))  # records are not all of one size
        for first in range(0, rows, most):
            part = batch.slice(first, most)
            deltas = dense_deltas(part.num_rows)
            part = part.set_column(SCHEMA.get_field_index("offset_delta"), _DELTA, deltas)
            yield from self._messages(subject, part, producer_id)

    async def flush(self) -> None:
        """Wait until everything submitted has its answer or is given up; tasks hold which."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        """Give up what has no answer yet; calls that wait for their turn are refused."""
        self._closed = True
        for ack in list(self._under_way):
            _fail(ack, UnavailableError(GIVEN_UP))
        await self.flush()
        if self._repeats:
            await asyncio.wait(self._repeats)
        await self._inbox.close()

    # Parts.

    async def _submit(
        self, queue: SubjectQueue, message: Plain | PublishBatch
    ) -> asyncio.Future[PubAck]:
        queue.users += 1
        try:
            async with queue.turn:
                await queue.room(self._options.max_in_flight)
                await self._slots.acquire()
                if self._closed:
                    self._slots.release()
                    raise UnavailableError("the publisher is closed")
                if isinstance(message, PublishBatch):
                    message = message.numbered(queue.sequence)
                    queue.sequence += 1
                ack: asyncio.Future[PubAck] = asyncio.get_running_loop().create_future()
                queue.window.append(ack)
                queue.users += 1
                self._under_way.add(ack)
                ack.add_done_callback(partial(self._ended, queue))
                await self._begin(message, queue, ack)
        finally:
            queue.users -= 1
        return ack

    def _ended(self, queue: SubjectQueue, ack: asyncio.Future[PubAck]) -> None:
        queue.users -= 1
        self._under_way.discard(ack)
        self._slots.release()
        if self._closed and not ack.cancelled():
            ack.exception()  # who closes the publisher may not want to know what it gave up

    async def _begin(
        self, message: PendingPublish, queue: SubjectQueue, ack: asyncio.Future[PubAck]
    ) -> None:
        """Send a message for the first time; what comes of it is for `ack`, errors too."""
        try:
            unsent = await self._send(message, partial(self._answered, message, queue, ack))
        except LogdError as error:
            _fail(ack, error)
        except BaseException:
            ack.cancel()
            raise
        else:
            if unsent is not None:
                self._repeat(message, queue, ack, unsent)

    def _answered(
        self,
        message: PendingPublish,
        queue: SubjectQueue,
        ack: asyncio.Future[PubAck],
        reply: "Msg | None",
    ) -> None:
        if ack.done():  # cancelled, or given up
            return
        try:
            outcome = self._read(message, reply)
        except LogdError as error:
            _fail(ack, error)
            return
        if isinstance(outcome, PubAck):
            ack.set_result(outcome)
        else:
            self._repeat(message, queue, ack, outcome)

    def _repeat(
        self,
        message: PendingPublish,
        queue: SubjectQueue,
        ack: asyncio.Future[PubAck],
        outcome: PublishRetry,
    ) -> None:
        """Send a message again in a task, which ends with `ack`."""
        task = asyncio.create_task(self._until_acked(message, queue, ack, outcome))
        self._repeats.add(task)
        task.add_done_callback(self._repeats.discard)
        task.add_done_callback(partial(_hand_over, ack))
        ack.add_done_callback(lambda _: task.cancel())

    async def _until_acked(
        self,
        message: PendingPublish,
        queue: SubjectQueue,
        ack: asyncio.Future[PubAck],
        outcome: PublishRetry,
    ) -> PubAck:
        first_s, max_s = self._pauses_s
        backoff = RetryBackoff(
            self._options.retry_s, self._rng, pause_max_s=max_s, pause_first_s=first_s
        )
        backoff.failed(monotonic_ns())
        await queue.settled_before(ack)
        unanswered: NoAnswerError | None = None
        while True:
            error = outcome.error
            if isinstance(error, NoAnswerError):
                unanswered = error
            elif unanswered is not None and isinstance(error, UnavailableError):
                error = unanswered  # an earlier attempt may have been stored
            await asyncio.sleep(backoff.pause(error, monotonic_ns()))
            message = message.after(outcome)
            answer: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()
            unsent = await self._send(message, partial(_answer, answer))
            found = unsent or self._read(message, await answer)
            if isinstance(found, PubAck):
                return found
            outcome = found

    async def _send(self, message: PendingPublish, on_reply: OnReply) -> PublishRetry | None:
        """Send a message once; returns why it was not sent, if another time will do."""
        client = self._client
        if client.is_closed:
            raise UnavailableError("the NATS connection is closed")
        if not client.is_connected:
            return PublishRetry(UnavailableError("not connected to NATS"))
        payload, headers = message.payload(), message.headers
        # nats-py counts the payload alone; the server counts both, and hangs up.
        if header_bytes(headers) + len(payload) > client.max_payload:
            raise _too_large(client.max_payload)
        try:
            await self._inbox.send(message.subject, payload, headers or None, on_reply)
        except (Error, OSError) as error:
            text = f"NATS: {error or type(error).__name__}"
            return PublishRetry(NoAnswerError(text, cause="closed"))
        return None

    def _read(self, message: PendingPublish, reply: "Msg | None") -> PubAck | PublishRetry:
        """Read the answer to a message, or that none came in time."""
        if reply is None:
            options = self._options
            text = f"no answer on {message.subject!r} within {options.ack_timeout_s:g} s"
            if options.stream is not None:
                text += f"; does stream {options.stream!r} exist, and store this subject?"
            return PublishRetry(NoAnswerError(text, cause="silent"))
        if reply.headers and reply.headers.get(_STATUS) == NO_RESPONDERS_STATUS:
            text = f"nobody listens on {message.subject!r}: no stream stores it, or logd is away"
            return PublishRetry(UnavailableError(text))
        return message.read(reply.data)

    def _expected_stream(self) -> dict[str, str]:
        stream = self._options.stream
        return {} if stream is None else {"Nats-Expected-Stream": stream}

    def _next_id(self) -> str:
        return f"{self._id}-{next(self._numbers)}"


def _bytes_of(value: Any) -> bytes:
    """Return a copy of what is no `bytes`: sent again, it must be what it was."""
    return value if isinstance(value, bytes) else memoryview(value).tobytes()


def _fail(ack: asyncio.Future[PubAck], error: LogdError) -> None:
    if not ack.done():
        ack.set_exception(error)


def _answer(answer: "asyncio.Future[Msg | None]", reply: "Msg | None") -> None:
    if not answer.done():  # its task was cancelled
        answer.set_result(reply)


def _hand_over(ack: asyncio.Future[PubAck], task: asyncio.Task[PubAck]) -> None:
    """Give a task's end to those who wait for `ack`, unless that has ended before."""
    if task.cancelled():
        ack.cancel()
        return
    error = task.exception()
    if ack.done():
        return
    if error is None:
        ack.set_result(task.result())
    else:
        ack.set_exception(error)


async def _all_acked(counts: Sequence[int], parts: Sequence[asyncio.Future[PubAck]]) -> PubAck:
    """The ack of a batch that was sent in parts, as of one message."""
    found = await asyncio.gather(*parts, return_exceptions=True)
    acks = [ack for ack in found if isinstance(ack, PubAck)]
    if len(acks) < len(parts):
        raise BatchPartsError(list(zip(counts, found, strict=True)))
    return structs.replace(
        acks[-1], count=sum(counts), duplicate=all(ack.duplicate for ack in acks)
    )


def _too_large(limit: int) -> RefusedError:
    text = f"the NATS server takes messages of at most {limit} bytes"
    return RefusedError("NATS_MAX_PAYLOAD", text, limit=limit)
