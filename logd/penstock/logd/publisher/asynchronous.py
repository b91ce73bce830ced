"""The asyncio publisher."""

import asyncio
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
from nats.errors import Error, MaxPayloadError, NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from penstock.base.clock import monotonic_ns
from penstock.logd.acks import PubAck
from penstock.logd.batch import SCHEMA, Compression, Record, build_batch, encode_body
from penstock.logd.client.following import PAUSE_FIRST_S, PAUSE_MAX_S, Patience
from penstock.logd.errors import NoAnswerError, RefusedError, UnavailableError
from penstock.logd.publisher.lanes import Lane, Lanes
from penstock.logd.publisher.outgoing import (
    Again,
    Batched,
    Outgoing,
    Plain,
    check_sendable,
    header_bytes,
    plain_headers,
)
from penstock.logd.publisher.partitioning import partition_subject

if TYPE_CHECKING:
    import nats

_NO_HEADERS: Final[Mapping[str, str]] = {}

GIVEN_UP: Final = "the publisher was closed before the answer came"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """How to publish.

    Attributes:
        in_flight_max: Messages and batches sent and not answered; further calls wait.
        ack_timeout_s: Seconds until a message without an answer is sent again.
        retry_s: Seconds from the first failure of a message until it is given up. Keep it below the
            streams' `dedup_window_s`, in which logd knows a message id; batches have no such limit.
        connect_timeout_s: Seconds to find a NATS server at first; afterwards it is looked for until
            the publisher is closed.
        stream: Only this stream's answer counts, where several store a subject.
        compression: Of batches.
        lanes_max: Subjects whose batches are numbered on from one another. Beyond it the subject
            idle longest is forgotten; when it comes back its batches are those of a new producer.
    """

    in_flight_max: int = 256
    ack_timeout_s: float = 5.0
    retry_s: float = 60.0
    connect_timeout_s: float = 10.0
    stream: str | None = None
    compression: Compression | None = None
    lanes_max: int = 10_000


class Publisher:
    """Publishes over a NATS connection; for any number of tasks of one event loop.

    Args:
        client: Connected; it stays the caller's to close, after `close`.
        options: How.
        rng: For the jitter of pauses between tries.
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
        self._slots = asyncio.Semaphore(self._options.in_flight_max)
        self._plain = Lane()
        self._lanes = Lanes(self._options.lanes_max)
        self._under_way: set[asyncio.Task[PubAck]] = set()
        self._id = secrets.token_hex(8)
        self._count = 0
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a NATS server has the connection now."""
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
            key: For compaction, and the partition; UTF-8 without white space around it.
            partitions: Of the stream; with several, the subject is that of the key's
                (`partition_subject`).
            headers: Further NATS headers, stored with the record.
            message_id: What makes a repeat one; chosen when None.

        Raises:
            PublishRefusedError: A stream will not store it, or would not within `retry_s`.
            RefusedError: `NATS_MAX_PAYLOAD`: NATS does not carry so much.
            UnavailableError: No answer within `retry_s`, or until the publisher was closed; it may
                be stored or not.
            ValueError: The subject is none to publish on, or the key or a header cannot be sent; or
                there is no key for one of several partitions.
        """
        subject = partition_subject(subject, key, partitions)
        task = await self.submit(subject, value, key=key, headers=headers, message_id=message_id)
        return await task

    async def submit(
        self,
        subject: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partitions: int = 1,
        headers: Mapping[str, str] = _NO_HEADERS,
        message_id: str | None = None,
    ) -> asyncio.Task[PubAck]:
        """`publish` without waiting for the answer: the task ends with it.

        Returns when the message's turn has come: at most `in_flight_max` have no answer.
        """
        subject = partition_subject(subject, key, partitions)
        extra = dict(headers) | self._expected_stream()
        made = plain_headers(message_id or self._next_id(), key=key, tombstone=False, extra=extra)
        check_sendable(subject, made)
        return await self._submit(self._plain, Plain(subject=subject, value=value, headers=made))

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

        Args:
            subject: That of every record.
            records: Not empty; or an Arrow batch of `penstock.logd.batch.SCHEMA` with offset deltas
                from 0. Any key will do; a value that is null is a tombstone.

        Returns:
            The ack; its `offset` is that of the last record.

        Raises:
            LogdError: As `publish`.
        """
        return await (await self.submit_batch(subject, records))

    async def submit_batch(
        self, subject: str, records: Sequence[Record] | pa.RecordBatch
    ) -> asyncio.Task[PubAck]:
        """`publish_batch` without waiting for the answer, as `submit`."""
        batch = records if isinstance(records, pa.RecordBatch) else build_batch(records)
        if batch.num_rows == 0 or not batch.schema.equals(SCHEMA):
            msg = "a batch has at least one record, and the schema penstock.logd.batch.SCHEMA"
            raise ValueError(msg)
        body = encode_body(batch, compression=self._options.compression)
        headers = self._expected_stream()
        check_sendable(subject, headers)
        lane = self._lanes.of(subject)
        message = Batched(
            subject=subject,
            body=body,
            count=batch.num_rows,
            producer_id=lane.producer_id,
            previous=0,
            sequence=0,
            headers=headers,
        )
        return await self._submit(lane, message)

    async def flush(self) -> None:
        """Wait until everything submitted has its answer or is given up; tasks hold which."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def close(self) -> None:
        """Give up what has no answer yet; calls that wait for their turn are refused."""
        self._closed = True
        await asyncio.sleep(0)  # so that each has begun, and can say why it ends
        for task in list(self._under_way):
            task.cancel()
        await self.flush()

    # Parts.

    async def _submit(self, lane: Lane, message: Plain | Batched) -> asyncio.Task[PubAck]:
        with lane.used():
            async with lane.turn:
                await lane.room(self._options.in_flight_max)
                await self._slots.acquire()
                if self._closed:
                    self._slots.release()
                    raise UnavailableError("the publisher is closed")
                if isinstance(message, Batched):
                    message = message.numbered(lane.sequence)
                    lane.sequence += 1
                task = asyncio.create_task(self._deliver(message, lane))
                lane.window.append(task)
                lane.users += 1
        self._under_way.add(task)
        task.add_done_callback(partial(self._ended, lane))
        return task

    def _ended(self, lane: Lane, task: asyncio.Task[PubAck]) -> None:
        lane.users -= 1
        self._under_way.discard(task)
        self._slots.release()
        if self._closed and not task.cancelled():
            task.exception()  # who closes the publisher may not want to know what it gave up

    async def _deliver(self, message: Outgoing, lane: Lane) -> PubAck:
        try:
            return await self._until_acked(message, lane)
        except asyncio.CancelledError:
            if self._closed:
                raise UnavailableError(GIVEN_UP) from None
            raise

    async def _until_acked(self, message: Outgoing, lane: Lane) -> PubAck:
        outcome = await self._attempt(message)
        if isinstance(outcome, PubAck):
            return outcome
        first_s, max_s = self._pauses_s
        patience = Patience(
            self._options.retry_s, self._rng, pause_max_s=max_s, pause_first_s=first_s
        )
        patience.failed(monotonic_ns())
        await lane.before_me()
        unanswered: NoAnswerError | None = None
        while True:
            error = outcome.error
            if isinstance(error, NoAnswerError):
                unanswered = error
            elif unanswered is not None and isinstance(error, UnavailableError):
                error = unanswered  # an earlier attempt may have been stored
            await asyncio.sleep(patience.pause(error, monotonic_ns()))
            message = message.after(outcome)
            outcome = await self._attempt(message)
            if isinstance(outcome, PubAck):
                return outcome

    async def _attempt(self, message: Outgoing) -> PubAck | Again:
        client, options = self._client, self._options
        if client.is_closed:
            raise UnavailableError("the NATS connection is closed")
        if not client.is_connected:
            return Again(UnavailableError("not connected to NATS"))
        payload = message.payload()
        # nats-py counts the payload alone; the server counts both, and hangs up.
        if header_bytes(message.headers) + len(payload) > client.max_payload:
            raise _too_large(client.max_payload)
        try:
            reply = await client.request(
                message.subject,
                payload,
                timeout=options.ack_timeout_s,
                headers=message.headers or None,
            )
        except NoRespondersError:
            text = f"nobody listens on {message.subject!r}: no stream stores it, or logd is away"
            return Again(UnavailableError(text))
        except (NatsTimeoutError, TimeoutError):
            text = f"no answer on {message.subject!r} within {options.ack_timeout_s:g} s"
            if options.stream is not None:
                text += f"; does stream {options.stream!r} exist, and store this subject?"
            return Again(NoAnswerError(text, cause="silent"))
        except MaxPayloadError:
            raise _too_large(client.max_payload) from None
        except (Error, OSError) as error:
            text = f"NATS: {error or type(error).__name__}"
            return Again(NoAnswerError(text, cause="closed"))
        return message.read(reply.data)

    def _expected_stream(self) -> dict[str, str]:
        stream = self._options.stream
        return {} if stream is None else {"Nats-Expected-Stream": stream}

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._id}-{self._count}"


def _too_large(limit: int) -> RefusedError:
    text = f"the NATS server takes messages of at most {limit} bytes"
    return RefusedError("NATS_MAX_PAYLOAD", text, limit=limit)
