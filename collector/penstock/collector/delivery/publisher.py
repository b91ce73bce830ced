"""The way to logd: one NATS connection, batches out as requests, acks back as events."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, assert_never
from uuid import UUID, uuid5

import pyarrow as pa
from nats.errors import Error, MaxPayloadError, NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from penstock.base.clock import Clock
from penstock.collector import failpoints
from penstock.collector.config import NatsSection
from penstock.collector.delivery.connection import NatsLink
from penstock.collector.delivery.core import (
    Behind,
    Delivery,
    Effect,
    Event,
    Failed,
    Flush,
    Publish,
    Quarantine,
    Refused,
    Settled,
    Stored,
    Tick,
)
from penstock.collector.delivery.ordered_queue import Batch, QueueKey
from penstock.collector.limits import (
    NATS_OVERHEAD_BYTES,
    PENDING_BYTES_MAX,
    URGENT_PENDING_BYTES_MAX,
)
from penstock.logd.errors import CorruptError
from penstock.logd.format.acks import Nack, PubAck, decode_batch_ack
from penstock.logd.format.batch import SCHEMA, SCHEMA_VERSION, dense_deltas, encode_body
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.service.tracing import span_of, trace_of

if TYPE_CHECKING:
    from penstock.service.tracing.spans import Tracer

Answer = Stored | Behind | Refused | Failed

_RESYNC: Final = (Nack.SEQUENCE_GAP, Nack.UNKNOWN_PRODUCER)
_LEAVE_POLL_S: Final = 0.05


class Publisher:
    """Sends batches and reads their acks.

    Args:
        incarnation: Made with the data directory; with a queue's key it makes a producer id, so
            that a new spool, whose offsets start again, is never taken for the old one, nor
            records that are routed otherwise for those before. Another one holds from what is sent
            next.
        on_change: Called when the connection is lost or found.
        tracer: Has spans of batches from here to their acks; None: there are none.
    """

    def __init__(
        self,
        config: NatsSection,
        incarnation: UUID,
        on_change: Callable[[], None],
        clock: Clock,
        tracer: "Tracer | None" = None,
    ) -> None:
        self._tracer = tracer
        self._timeout_s = config.ack_timeout_s
        self.incarnation = incarnation
        self._link = NatsLink(config, clock, on_change)
        self._unanswered = 0

    @property
    def is_connected(self) -> bool:
        return self._link.is_connected

    @property
    def trouble(self) -> str:
        """Why nothing can be published now; empty when it can."""
        return self._link.trouble

    async def connect(self, name: str, timeout_s: float, *, needed: bool = True) -> None:
        """Connect; from then on the connection is kept up for ever: see `NatsLink.open`."""
        await self._link.open(name, timeout_s, needed=needed)

    async def publish(self, effect: Publish) -> Answer:
        """Send one batch and wait for what logd says to it; never raises for what can happen."""
        if not self.is_connected:
            return Failed(effect.request, "nats_disconnected")
        tracer = self._tracer
        if tracer is None or tracer.is_own(effect.queue.subject):
            return await self._publish(effect)
        begun_ns = tracer.now_ns()
        answer = await self._publish(effect)
        self._trace(tracer, effect, answer, tracer.now_ns() - begun_ns)
        return answer

    def _trace(self, tracer: "Tracer", effect: Publish, answer: Answer, ago_ns: int) -> None:
        """Make the span of a batch, which began some time ago and has its answer now."""
        batch, is_stored = effect.batch, isinstance(answer, Stored)
        trace_id = trace_of(producer_id(self.incarnation, effect.queue), batch.last)
        # A batch is sent several times, perhaps, and stored once: that is what logd links to.
        span_id = span_of(trace_id) if is_stored else 0
        span = tracer.start(
            "publish", kind="PRODUCER", trace_id=trace_id, span_id=span_id, ago_ns=ago_ns
        )
        if span is None:
            return
        error = ""
        if not isinstance(answer, Stored):
            error = "sequence" if isinstance(answer, Behind) else answer.reason
        tracer.end(
            span,
            error=error,
            attributes={
                "messaging.destination.name": effect.queue.subject,
                "messaging.batch.message_count": len(batch),
                "messaging.message.body.size": len(batch.body or b""),
                "penstock.source": effect.queue.source,
            },
        )

    async def _publish(self, effect: Publish) -> Answer:
        batch = effect.batch
        if batch.body is None:
            batch.body = encode_lines(effect.queue.subject, batch)
        data = encode_batch(
            BatchPayload(
                schema_version=SCHEMA_VERSION,
                record_count=len(batch),
                producer_id=producer_id(self.incarnation, effect.queue),
                previous_sequence=effect.previous,
                sequence=batch.last,
                body=batch.body,
            )
        )
        if len(data) > self._link.client.max_payload - NATS_OVERHEAD_BYTES:
            return Refused(effect.request, "nats_max_payload")
        return await self._request(effect.request, effect.queue.subject, data)

    async def _request(self, request: int, subject: str, data: bytes) -> Answer:
        failpoints.passed("publish_before_request")
        self._unanswered += 1
        try:
            reply = await self._link.client.request(subject, data, timeout=self._timeout_s)
        except NoRespondersError:
            return Failed(request, "no_responders")
        except (NatsTimeoutError, TimeoutError):
            return Failed(request, "ack_timeout", may_be_stored=True)
        except MaxPayloadError:
            return Refused(request, "nats_max_payload")
        except (Error, OSError) as error:
            return Failed(request, f"nats: {type(error).__name__}", may_be_stored=True)
        finally:
            self._unanswered -= 1
        failpoints.passed("publish_after_ack")
        return read_answer(request, reply.data)

    async def leave(self) -> None:
        """Close the connection once what was sent is answered, or can be no more."""
        while self._unanswered:  # noqa: ASYNC110 - each has its timeout
            await asyncio.sleep(_LEAVE_POLL_S)
        await self.close()

    async def close(self) -> None:
        """Close the connection; what is unanswered stays unanswered."""
        await self._link.close()


def producer_id(incarnation: UUID, queue: QueueKey) -> bytes:
    """The identity under which logd counts a queue's sequences."""
    names = [queue.origin, queue.source, queue.subject]
    if queue.branch:
        names.append(str(queue.branch))
    return uuid5(incarnation, "\n".join(names)).bytes


def encode_lines(subject: str, batch: Batch) -> bytes:
    """A queue's batch as the log's Arrow body."""
    count = len(batch)
    types = {field.name: field.type for field in SCHEMA}
    deltas = dense_deltas(count).buffers()[1].slice(0, 4 * count)  # a part of it would go as it is
    columns = {
        "offset_delta": pa.Array.from_buffers(types["offset_delta"], count, [None, deltas]),
        "timestamp": pa.array(batch.timestamps, pa.int64()).view(types["timestamp"]),
        "subject": pa.repeat(subject, count),
        "value": pa.array(batch.lines, types["value"]),
    }
    arrays = [columns.get(name, pa.nulls(count, type_)) for name, type_ in types.items()]
    return encode_body(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), compression="zstd")


def read_answer(request: int, data: bytes) -> Answer:
    """Read logd's answer to a request for its batch."""
    try:
        ack = decode_batch_ack(data)
    except (CorruptError, ValueError):
        return Failed(request, "reply_is_not_from_logd", may_be_stored=True)
    return _read_ack(request, ack)


def _read_ack(request: int, ack: PubAck) -> Answer:
    if ack.nack is None:
        return Stored(request, duplicate=ack.duplicate)
    if ack.nack in _RESYNC and ack.sequence is not None:
        return Behind(request, ack.sequence)
    reason = ack.nack.name.lower()
    if ack.nack in (Nack.BAD_BATCH, Nack.MESSAGE_TOO_LARGE, Nack.BAD_HEADER):
        return Refused(request, f"{reason}: {ack.description}"[:200])
    return Failed(request, reason, may_be_stored=ack.nack is Nack.STORAGE_FAILED)


class Sender:
    """Runs one `Delivery` on the event loop.

    Args:
        publish: Sends a batch and returns logd's answer; may be exchanged for another.
        quarantine: Returns when a refused batch is durably in quarantine.
    """

    def __init__(
        self,
        delivery: Delivery,
        clock: Clock,
        *,
        publish: Callable[[Publish], Awaitable[Answer]],
        quarantine: Callable[[Quarantine], Awaitable[None]],
    ) -> None:
        self.delivery = delivery
        self._clock = clock
        self.publish = publish
        self._quarantine = quarantine
        self._effects: asyncio.Queue[Effect] = asyncio.Queue()
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._pending_bytes = 0
        self._urgent_bytes = 0

    def handle(self, event: Event) -> None:
        """Apply an event now; what it causes happens in `run`."""
        for effect in self.delivery.handle(event, self._clock.monotonic_ns()):
            self._effects.put_nowait(effect)
        self._urgent_bytes = self.delivery.urgent_bytes
        self._pending_bytes = self.delivery.pending_bytes - self._urgent_bytes
        self._room.set()
        self._arm()

    async def wait_for_room(self, *, urgent: bool = False) -> None:
        """Return when more records may be read; urgent ones have separate room."""
        while not self._has_room(urgent=urgent):
            self._room.clear()
            await self._room.wait()

    def _has_room(self, *, urgent: bool) -> bool:
        if urgent:
            return self._urgent_bytes < URGENT_PENDING_BYTES_MAX
        return self._pending_bytes < PENDING_BYTES_MAX

    async def run(self) -> None:
        """Carry out effects in order until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                effect = await self._effects.get()
                match effect:
                    case Publish():
                        tasks.create_task(self._send(effect))
                    case Quarantine():
                        tasks.create_task(self._settle(effect))
                    case _:
                        assert_never(effect)

    async def drain(self) -> None:
        """Return when nothing is pending."""
        self.handle(Flush())
        while self.delivery.pending_records:
            self._room.clear()
            await self._room.wait()

    async def _send(self, effect: Publish) -> None:
        self.handle(await self.publish(effect))

    async def _settle(self, effect: Quarantine) -> None:
        await self._quarantine(effect)
        self.handle(Settled(effect.queue, effect.batch))

    def _arm(self) -> None:
        deadline_ns = self.delivery.next_deadline_ns()
        if self._timer is not None:
            if deadline_ns is not None and deadline_ns == self._timer_ns:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ns is not None:
            wait_s = max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9
            self._timer_ns = deadline_ns
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.handle(Tick())
