"""Publish, PublishAsync and PublishToSubject: what is published is relayed, and always waited for.

A publisher that asks for no ack (`NONE`) is not answered, but its message is stored as one that is
acked by every replica in sync, and what goes wrong with it is reported.

Publishes of gRPC clients on their way to a partition's leader, over NATS, and the acks back.

Any node takes a publish: it goes to the subject of its partition as a publish envelope with an ack
inbox of this daemon, so the leader stores and acks it. A publish is sent again, under the same
`Nats-Msg-Id`, as long as its deadline allows: when no node is subscribed, when the leader is busy,
and when no ack comes. Within the stream's window of ids it is stored once.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import grpc

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.cluster.streams import ClusterStreams, StreamOutline
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.acks import Nack
from penstock.logd.format.headers import format_headers
from penstock.logd.format.publish_envelope import (
    decode_ack_envelope,
    encode_ack,
    encode_publish,
    is_literal,
)
from penstock.logd.format.subjects import is_inbox, is_reserved
from penstock.logd.intake.options import EXPECTED_STREAM, MESSAGE_ID
from penstock.logd.intake.turn import Message
from penstock.logd.liftbridge.errors import CallError, call_error
from penstock.logd.liftbridge.permissions import CallAuthorization
from penstock.logd.metadata.streams import StreamConfig, check_not_internal
from penstock.logd.nats.connect import NatsAccess
from penstock.logd.nats.link import ANSWERS_ONLY, NatsLink
from penstock.logd.net.byte_semaphore import ByteSemaphore
from penstock.logd.security.principal import current_caller
from penstock.logd.wire import logd_liftbridge_pb2 as wire

RELAY_ID: Final = b"penstock.grpc."
"""Prefix of the `Nats-Msg-Id` of a relayed publish; subscribers do not see it."""

_RESEND_S: Final = 2.0
"""Seconds without an ack after which a publish is sent again: far above what an ack takes, and
about what a cluster takes to find the next leader."""

_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_OVERHEAD: Final = 1024
"""Bytes that a publish takes besides its message while it waits."""

_RETRYABLE: Final = frozenset(nack.err_code for nack in Nack if nack.retryable)
_NO_RESPONDERS: Final = b"NATS/1.0 503"

_Heard = wire.Ack | Literal["silence", "unsent", "nobody"]


class Relay:
    """Sends publishes and waits for their acks. Used on the event loop.

    Args:
        access: Access to NATS.
        node: This one's name.
        bytes_max: Maximum bytes of publishes that wait for their ack.
        clock: Clock of the link.
        resend_s: Seconds without an ack after which a publish is sent again.
        pause_s: Seconds before the first repeat of what was refused for now.

    Attributes:
        link: Its connection; the maker of the relay runs it.
        gate: Semaphore of the waiting bytes.
        counts: Publishes by what became of them, and `resent`.
    """

    def __init__(
        self,
        access: NatsAccess,
        *,
        node: str,
        bytes_max: int,
        clock: Clock,
        resend_s: float = _RESEND_S,
        pause_s: float = _PAUSE_S,
    ) -> None:
        rng = random.Random()  # noqa: S311 - jitter, not a secret
        self.link = NatsLink(
            access,
            name=f"{node}/grpc",
            on_messages=self.on_messages,
            rng=rng,
            clock=clock,
            timing=ANSWERS_ONLY,
        )
        self.gate = ByteSemaphore(bytes_max)
        self.counts: Counter[str] = Counter()
        self._resend_s, self._pause_s = resend_s, pause_s
        self._token = secrets.token_hex(8)
        self._inbox = f"_INBOX.{self._token}"
        self._published = 0
        self._waiting: dict[str, tuple[asyncio.Future[_Heard], str]] = {}
        self.link.subscribe(f"{self._inbox}.*")

    @property
    def waiting(self) -> int:
        """Publishes without an answer yet."""
        return len(self._waiting)

    async def publish(
        self, subject: str, message: wire.Message, *, stream: str, repeat: bool, timeout_s: float
    ) -> wire.Ack:
        """Publish a message and wait for its ack.

        Args:
            subject: Subject to publish to.
            message: Message to publish; its ack inbox is filled in.
            stream: Stream whose answer counts; empty: any that stores the subject.
            repeat: Whether it may be sent again without knowing whether it was stored.
            timeout_s: Maximum seconds of the publish.

        Raises:
            CallError: It is refused, or no ack came in time.
        """
        self._published += 1
        number = str(self._published)
        message.ackInbox = f"{self._inbox}.{number}"
        line = self._line(subject, message, number, stream)
        size = await self._room(len(line), timeout_s)
        problem, backoff = "", Backoff(self._pause_s, _PAUSE_S_MAX)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    wait_s = self._resend_s if repeat else None
                    answer = await self._once(number, stream, line, wait_s)
                    match answer:
                        case "silence":
                            problem = "no ack came"
                            self.counts["resent"] += 1
                            continue
                        case "unsent":
                            problem = "NATS takes nothing now"
                        case "nobody":
                            problem = f"nobody stores {subject!r} now"
                        case _ if answer.errorNumber in _RETRYABLE:
                            problem = answer.errorMessage
                        case _:
                            self.counts["refused" if answer.ackError else "stored"] += 1
                            return answer
                    await asyncio.sleep(backoff.next_wait())
        except TimeoutError:
            self.counts["unanswered"] += 1
            text = f"not known to be stored within {timeout_s:.3g} s: {problem or 'no ack came'}"
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        finally:
            self._waiting.pop(number, None)
            self.gate.give(size)

    async def _once(self, number: str, stream: str, line: bytes, wait_s: float | None) -> _Heard:
        """Publish once; return the answer of the stream, or, where none is named, from any."""
        answer: asyncio.Future[_Heard] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, stream
        if not self.link.write(line):
            return "unsent"
        await asyncio.wait((answer,), timeout=wait_s)
        return answer.result() if answer.done() else "silence"

    def forward(self, inbox: str, ack: wire.Ack) -> None:
        """Tell whom else a publisher wants to know; lost like any NATS message."""
        body = encode_ack(ack)
        if len(body) > self.link.max_payload:  # the server would hang up on everybody's publishes
            self.counts["not_forwarded"] += 1
            return
        self.link.write(b"PUB %b %d\r\n%b\r\n" % (inbox.encode(), len(body), body))

    def _line(self, subject: str, message: wire.Message, number: str, stream: str) -> bytes:
        """Return the NATS message of a publish.

        Raises:
            CallError: It exceeds NATS's maximum payload.
        """
        payload = encode_publish(message)
        pairs = [(EXPECTED_STREAM, stream.encode())] if stream else []
        if MESSAGE_ID not in message.headers:
            pairs.append((MESSAGE_ID, RELAY_ID + f"{self._token}.{number}".encode()))
        headers = format_headers(tuple(pairs))
        total = len(headers) + len(payload)
        if total > self.link.max_payload:
            text = f"message of {total} bytes with its envelope; NATS takes {self.link.max_payload}"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
        head = f"HPUB {subject} {message.ackInbox} {len(headers)} {total}\r\n".encode()
        return b"".join((head, headers, payload, b"\r\n"))

    async def _room(self, length: int, timeout_s: float) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.gate.take(length + _OVERHEAD)
        except TimeoutError:
            text = "too many publishes wait for their acks; try again later"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text) from None

    def on_messages(self, messages: dict[bytes, list[Message]]) -> None:
        """Take what the link brings: acks, and who is not there."""
        for came in messages.values():
            for message in came:
                waiting = self._waiting.get(message.subject.decode().rpartition(".")[2])
                if waiting is None or waiting[0].done():
                    continue  # of one that has its answer
                answers, stream = waiting
                if message.headers.startswith(_NO_RESPONDERS):
                    answers.set_result("nobody")
                    continue
                try:
                    ack = decode_ack_envelope(message.payload)
                except CorruptError:  # another node's answer to the same message
                    self.counts["foreign"] += 1
                    continue
                if stream and not ack.errorNumber and ack.stream != stream:
                    self.counts["foreign"] += 1
                    continue
                answers.set_result(ack)


Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

ASYNC_IN_FLIGHT_MAX: Final = 256
"""Publishes of one PublishAsync that wait for their acks; then nothing more is read of it, and
HTTP/2 holds its client up."""

_MARGIN_S: Final = 0.05
"""Seconds before a caller's own deadline at which a publish is given up: it gets the reason."""

_CODES: Final = {
    Nack.READ_ONLY: grpc.StatusCode.FAILED_PRECONDITION,
    Nack.WRONG_LAST_SEQUENCE: grpc.StatusCode.FAILED_PRECONDITION,
    Nack.STREAM_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_ASYNC_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: wire.PublishAsyncError.BAD_REQUEST,
    grpc.StatusCode.NOT_FOUND: wire.PublishAsyncError.NOT_FOUND,
    grpc.StatusCode.INTERNAL: wire.PublishAsyncError.INTERNAL,
    grpc.StatusCode.PERMISSION_DENIED: wire.PublishAsyncError.PERMISSION_DENIED,
}
_BY_NUMBER: Final = {nack.err_code: nack for nack in Nack}


class PublishService:
    """Answers publishers.

    Args:
        streams: Streams of the daemon or its cluster.
        relay: The way to the leaders.
        permits: Authorization of publishers.
        room: Room for the messages of streams of publishes.
        bytes_max: Maximum bytes of one request.
        timeout_s: Maximum seconds of a publish whose caller sets no deadline.
    """

    def __init__(
        self,
        streams: ClusterStreams,
        relay: Relay,
        permits: CallAuthorization,
        *,
        room: ByteSemaphore,
        bytes_max: int,
        timeout_s: float,
    ) -> None:
        self._streams = streams
        self._bytes_max = bytes_max
        self._permits = permits
        self._room = room
        self._relay = relay
        self._timeout_s = timeout_s

    async def publish(self, request: wire.PublishRequest, context: Context) -> wire.PublishResponse:
        """Store one message in a partition."""
        ack = await self._to_partition(request, _time_left(context, self._timeout_s))
        if request.ackInbox:
            self._relay.forward(request.ackInbox, ack)
        return wire.PublishResponse(ack=ack, correlationId=request.correlationId)

    async def publish_to_subject(
        self, request: wire.PublishToSubjectRequest, context: Context
    ) -> wire.PublishToSubjectResponse:
        """Publish on a subject; the first ack of a stream that stores it counts."""
        _check_subject("subject", request.subject)
        _check_not_reserved("subject", request.subject)
        _check_inbox(request.ackInbox)
        await self._permits.publish_to_subject(current_caller(), request)
        message = wire.Message(
            key=request.key,
            value=request.value,
            headers=request.headers,
            correlationId=request.correlationId,
            ackPolicy=_waited_for(request.ackPolicy),
            offset=-1,
        )
        ack = await self._relay.publish(
            request.subject,
            message,
            stream="",
            repeat=True,
            timeout_s=_time_left(context, self._timeout_s),
        )
        _check_stored(ack)
        ack.ackInbox, ack.ackPolicy = request.ackInbox, request.ackPolicy
        if request.ackInbox:
            self._relay.forward(request.ackInbox, ack)
        return wire.PublishToSubjectResponse(ack=ack)

    async def publish_async(
        self, requests: AsyncIterator[wire.PublishRequest], context: Context
    ) -> None:
        """Store messages as they come, and answer each when its ack is there."""
        places = asyncio.Semaphore(ASYNC_IN_FLIGHT_MAX)
        writing = asyncio.Lock()

        async def one(request: wire.PublishRequest) -> None:
            try:
                response = await self._answer(request)
                if response is not None:
                    async with writing:
                        await context.write(response)
            finally:
                places.release()

        async with asyncio.TaskGroup() as tasks:
            async for request in requests:
                await places.acquire()
                taken = await self._room.take(request.ByteSize())
                give = partial(self._give, taken)
                tasks.create_task(one(request)).add_done_callback(give)

    def _give(self, size: int, _: asyncio.Task[None]) -> None:
        """Return the room of a task that is done, or was cancelled before it began."""
        self._room.give(size)

    async def _answer(self, request: wire.PublishRequest) -> wire.PublishResponse | None:
        """Store one of many; None where its publisher wants no answer."""
        try:
            # gRPC would end the stream, and with it every publish of a client that shares it.
            check_size(request.ByteSize(), self._bytes_max)
            ack = await self._to_partition(request, self._timeout_s)
        except Exception as error:  # noqa: BLE001 - the others go on
            if isinstance(error, RefusedError):
                self._permits.refused("PublishAsync", request, error)
            return wire.PublishResponse(
                correlationId=request.correlationId,
                ack=wire.Ack(),  # clients that know no asyncError look at it
                asyncError=_async_error(error),
            )
        if request.ackPolicy == wire.NONE:
            return None
        return wire.PublishResponse(ack=ack, correlationId=request.correlationId)

    async def _to_partition(self, request: wire.PublishRequest, timeout_s: float) -> wire.Ack:
        if not request.stream:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "stream: none is named")
        check_not_internal(request.stream)
        _check_inbox(request.ackInbox)
        outline = await self._permitted(request)
        config = outline.stream.config
        _check_partition(outline, request.partition)
        _check_publishable(config)
        if config.expected_offset and request.ackPolicy == wire.NONE:
            text = f"stream {config.name!r} checks expected offsets: ackPolicy must not be NONE"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
        if not outline.replication.listens:  # else a message wakes it
            await self._streams.set_mode(config.name, paused=False, read_only=None)
        subject = config.subject
        if request.partition:
            subject = f"{subject}.{request.partition}"
        message = wire.Message(
            key=request.key,
            value=request.value,
            stream=config.name,
            partition=request.partition,
            headers=request.headers,
            correlationId=request.correlationId,
            ackPolicy=_waited_for(request.ackPolicy),
            offset=request.expectedOffset,
        )
        ack = await self._relay.publish(
            subject,
            message,
            stream=config.name,
            repeat=config.dedup_window_s > 0,
            timeout_s=timeout_s,
        )
        _check_stored(ack)
        ack.partitionSubject = subject
        ack.ackInbox, ack.ackPolicy = request.ackInbox, request.ackPolicy
        return ack

    async def _permitted(self, request: wire.PublishRequest) -> StreamOutline:
        """The stream of a publish, if its caller may."""
        caller = current_caller()
        try:
            outline = self._streams.outline(request.stream)
        except RefusedError:
            self._permits.unknown(caller, request.stream)
            raise
        await self._permits.publish(caller, outline, request.partition, request)
        return self._streams.outline(request.stream)


def _waited_for(policy: wire.AckPolicy) -> wire.AckPolicy:
    """Return the policy for the leader: an ack in any case."""
    return wire.ALL if policy == wire.NONE else policy


def _time_left(context: Context, timeout_s: float) -> float:
    remaining: float | None = context.time_remaining()
    return timeout_s if remaining is None else max(remaining - _MARGIN_S, _MARGIN_S)


def _check_partition(outline: StreamOutline, number: int) -> None:
    if not 0 <= number < outline.partitions:
        name = outline.stream.config.name
        raise CallError(grpc.StatusCode.NOT_FOUND, f"stream {name!r} has no partition {number}")


def _check_publishable(config: StreamConfig) -> None:
    """Refuse a publish by the name of a stream whose subject has wildcards: which is meant?"""
    if not is_literal(config.subject):
        text = (
            f"stream {config.name!r} stores {config.subject!r}, which has wildcards:"
            " publish to one of its subjects with PublishToSubject"
        )
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


def check_size(size: int, most: int) -> None:
    """Refuse a request that is larger than one of its method may be.

    Raises:
        CallError: It is.
    """
    if size > most:
        text = f"request: it has {size} bytes, and one of this method up to {most}"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text, limit=most)


def _check_inbox(inbox: str) -> None:
    if inbox:
        _check_subject("ackInbox", inbox)
        if not is_inbox(inbox):
            _check_not_reserved("ackInbox", inbox)


def _check_not_reserved(key: str, subject: str) -> None:
    """Refuse what no stream stores: NATS would take it for a request of logd's own."""
    if is_reserved(subject):
        text = f"{key}: {subject[:80]!r} carries NATS's or logd's own traffic"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


def _check_subject(key: str, subject: str) -> None:
    if not is_literal(subject):
        text = f"{key}: {subject[:80]!r} is no subject to publish to"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


def _check_stored(ack: wire.Ack) -> None:
    if not ack.errorNumber:
        return
    nack = _BY_NUMBER.get(ack.errorNumber, Nack.BUSY)
    code = _CODES.get(nack, grpc.StatusCode.INVALID_ARGUMENT)
    raise CallError(code, ack.errorMessage, error=ack.errorNumber)


def _async_error(error: Exception) -> wire.PublishAsyncError:
    found = call_error(error, "PublishAsync")
    code = _ASYNC_CODES.get(found.code, wire.PublishAsyncError.UNKNOWN)
    match _BY_NUMBER.get(int(found.facts.get("error", 0))):
        case Nack.READ_ONLY:
            code = wire.PublishAsyncError.READONLY
        case Nack.WRONG_LAST_SEQUENCE:
            code = wire.PublishAsyncError.INCORRECT_OFFSET
        case _:
            pass
    return wire.PublishAsyncError(code=code, message=str(found))
