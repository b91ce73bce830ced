"""Subscribe: one partition, from a position on, record by record.

The first message is empty: it says that the subscription stands. A client that takes messages
slowly is held up by HTTP/2; what is read ahead for it is a chunk (`reading.CHUNK_BYTES`).
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc

from penstock.logd.cluster.streams import ClusterStreams
from penstock.logd.errors import RefusedError
from penstock.logd.format.batch import Record, decode_body
from penstock.logd.format.rows import batch_records, slice_rows
from penstock.logd.intake.options import MESSAGE_ID
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.permissions import CallAuthorization
from penstock.logd.liftbridge.publish import RELAY_ID, Context
from penstock.logd.partition.partition import Partition
from penstock.logd.security.principal import current_caller
from penstock.logd.wire import logd_liftbridge_pb2 as wire

CHUNK_BYTES: Final = 512 * 1024
"""Bytes of records that a subscription holds while its client takes them; one record may exceed
it. A frame that holds more is read again for the rest of it."""

CHUNK_ROWS: Final = 512

Rows = list[tuple[int, Record]]


def read_forward(partition: Partition, position: int, end: int) -> tuple[Rows, int]:
    """Records from an offset on, below `end`, and the offset after what was looked at.

    Called on a worker's thread.

    Raises:
        RefusedError: `OUT_OF_RANGE`: the offset is not there any more.
        CorruptFrameError: The frame there is damaged.
    """
    rows: Rows = []
    held = 0
    upto = partition.high_watermark + 1
    for header, body in partition.log.read_frames(position, bytes_max=CHUNK_BYTES, upto=upto):
        if header.base_offset >= end:
            break
        batch = slice_rows(header, decode_body(body), position, end)
        count = min(batch.num_rows, CHUNK_ROWS - len(rows))
        part = batch.slice(0, count)
        while count > 1 and held + part.nbytes > CHUNK_BYTES:
            count //= 2
            part = part.slice(0, count)
        if rows and held + part.nbytes > CHUNK_BYTES:
            break
        held += part.nbytes
        rows += batch_records(header, part)
        if count < batch.num_rows:
            return rows, rows[-1][0] + 1 if rows else position
        position = min(header.next_offset, end)
    return rows, position


def read_backward(partition: Partition, position: int, end: int) -> tuple[Rows, int]:
    """Records at an offset and before it, of one frame, the newest first; and what is next.

    Called on a worker's thread.

    Raises:
        RefusedError, CorruptFrameError: As `read_forward`.
    """
    ((header, body), *_) = partition.log.read_frames(position, bytes_max=1, upto=end)
    batch = slice_rows(header, decode_body(body), header.base_offset, position + 1)
    count = min(batch.num_rows, CHUNK_ROWS)
    part = batch.slice(batch.num_rows - count)
    while count > 1 and part.nbytes > CHUNK_BYTES:
        count //= 2
        part = part.slice(part.num_rows - count)
    rows = list(batch_records(header, part))[::-1]
    whole = count == batch.num_rows
    return rows, header.base_offset - 1 if whole else rows[-1][0] - 1


def messages(partition: Partition, rows: Rows) -> Iterator[wire.Message]:
    """The records as subscribers get them, one at a time."""
    for offset, record in rows:
        headers = dict(record.headers)
        if headers.get(MESSAGE_ID, b"").startswith(RELAY_ID):
            del headers[MESSAGE_ID]  # the relay's, not the publisher's
        headers.setdefault("subject", record.subject.encode())
        headers.setdefault("reply", (record.reply or "").encode())
        yield wire.Message(
            offset=offset,
            key=record.key or b"",
            value=record.value or b"",
            timestamp=record.timestamp_ns,
            stream=partition.name,
            partition=partition.number,
            subject=record.subject,
            replySubject=record.reply or "",
            headers=headers,
        )


_Read: TypeAlias = Callable[[Partition, int, int], tuple[Rows, int]]

_LOOK_S: Final = 0.5
"""Seconds after which a subscription that waits looks whether it is still at the right place."""


class SubscribeService:
    """Answers subscribers.

    Args:
        streams: Streams of the daemon or its cluster.
        permits: Authorization of readers.
        max_subscriptions: At a time.

    Attributes:
        open: Subscriptions now.
        stopping: They are to end, for logd stops.
        sent: Messages sent.
    """

    def __init__(
        self, streams: ClusterStreams, permits: CallAuthorization, *, max_subscriptions: int
    ) -> None:
        self._permits = permits
        self.open = 0
        self.stopping = False
        self.sent = 0
        self._streams = streams
        self._max_subscriptions = max_subscriptions
        self._members: dict[tuple[str, int, str], _Member] = {}

    async def subscribe(self, request: wire.SubscribeRequest, context: Context) -> None:
        """Send a partition's records until its caller has enough, or there are no more to come."""
        if self.open >= self._max_subscriptions:
            text = f"there are {self.open} subscriptions already; try again later"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text, limit=self._max_subscriptions)
        self.open += 1
        try:
            if request.consumer.groupId:
                await self._as_member(request, context)
            else:
                await self._serve(request, context)
        finally:
            self.open -= 1

    async def _as_member(self, request: wire.SubscribeRequest, context: Context) -> None:
        """Serve one member of a group at a time; a later epoch takes the place of an earlier."""
        consumer = request.consumer
        if not consumer.consumerId or request.readISRReplica:
            text = "consumer: a member of a group has a consumerId and reads from the leader"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
        place = (request.stream, request.partition, consumer.groupId)
        before = self._members.get(place)
        if before is not None and before.epoch > consumer.groupEpoch:
            text = f"consumer {consumer.consumerId!r} is not assigned this partition now"
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, text)
        serving = asyncio.create_task(self._serve(request, context))
        member = self._members[place] = _Member(consumer.groupEpoch, serving)
        if before is not None:
            before.replaced = True
            before.serving.cancel()
        try:
            await serving
        except asyncio.CancelledError:
            if not member.replaced:
                raise
        finally:
            serving.cancel()
            if self._members.get(place) is member:
                del self._members[place]

    async def _serve(self, request: wire.SubscribeRequest, context: Context) -> None:
        outline = self._streams.outline(request.stream)
        if request.resume and outline.replication.paused:
            await self._streams.set_mode(request.stream, paused=False, read_only=None)
        caller = current_caller()
        course = _Course(
            self._streams,
            request,
            lambda: self.stopping,
            lambda: self._permits.read(caller, request.stream),
        )
        partition = course.partition()
        position = await _start(partition, request)
        stop = await _stop(partition, request)
        _check_order(position, stop, reverse=request.reverse)
        await context.write(wire.Message())
        if request.reverse:
            await self._backward(course, position, stop, context)
        else:
            await self._forward(course, position, stop, context)

    async def _forward(
        self, course: "_Course", position: int, stop: int | None, context: Context
    ) -> None:
        while stop is None or position <= stop:
            partition = course.again()
            end = partition.high_watermark + 1
            if stop is not None:
                end = min(end, stop + 1)
            if position < end:
                rows, position = await course.read(read_forward, position, end)
                await self._send(partition, rows, context)
            elif not await course.wait(partition, position):
                raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "end of read-only partition")
        raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "stop offset reached")

    async def _backward(
        self, course: "_Course", position: int, stop: int | None, context: Context
    ) -> None:
        partition = course.again()
        # What is not committed yet is waited for: it has an offset already.
        while position > partition.high_watermark:
            await course.wait(partition, position)
            partition = course.again()
        while position >= max(stop or 0, partition.start_offset):
            rows, position = await course.read(
                read_backward, position, partition.high_watermark + 1
            )
            partition = course.again()
            last = max(stop or 0, partition.start_offset)  # a frame may begin below
            await self._send(partition, [row for row in rows if row[0] >= last], context)
        raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "stop offset reached")

    async def _send(self, partition: Partition, rows: Rows, context: Context) -> None:
        caller = current_caller()
        for message in messages(partition, rows):
            await self._permits.spend(caller, message.ByteSize())
            await context.write(message)
            self.sent += 1


@dataclass(slots=True, eq=False)
class _Member:
    """A member of a group that reads a partition here."""

    epoch: int
    serving: "asyncio.Task[None]"
    replaced: bool = False


class _Course:
    """One subscription's way through the leaders and incarnations of a partition."""

    def __init__(
        self,
        streams: ClusterStreams,
        request: wire.SubscribeRequest,
        stopping: Callable[[], bool],
        permit: Callable[[], None],
    ) -> None:
        self._streams = streams
        self._stopping = stopping
        self._permit = permit
        self._stream, self._number = request.stream, request.partition
        self._replica = request.readISRReplica
        self._incarnation = streams.outline(request.stream).stream.incarnation

    def partition(self) -> Partition:
        """Return the partition at the node that serves it; see `Streams.partition`."""
        return self._streams.partition(self._stream, self._number, replica=self._replica)

    def again(self) -> Partition:
        """Return the partition of an open subscription; clients retry on UNAVAILABLE only."""
        if self._stopping():
            raise CallError(grpc.StatusCode.UNAVAILABLE, "this node stops")
        self._permit()
        try:
            partition = self.partition()
        except RefusedError as error:
            if error.code == "NOT_HERE":
                raise CallError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
            raise
        if partition.stream.incarnation != self._incarnation:
            text = f"stream {self._stream!r} was deleted and made again"
            raise CallError(grpc.StatusCode.NOT_FOUND, text)
        return partition

    async def read(self, how: _Read, position: int, end: int) -> tuple[Rows, int]:
        """Read a chunk on a worker's thread."""
        partition = self.again()
        start, latest = partition.start_offset, partition.log.end_offset
        if position < start:  # purged, though its file may be there
            message = f"offset {position} is not in {start} to {latest}"
            raise RefusedError("OUT_OF_RANGE", message, earliest=start, latest=latest)
        rows, after = await asyncio.to_thread(how, partition, position, end)
        if after == position:  # committed, and lost again with the disk: it will never be there
            raise CallError(grpc.StatusCode.UNAVAILABLE, f"offset {position} cannot be read")
        return rows, after

    async def wait(self, partition: Partition, offset: int) -> bool:
        """Wait for a record at an offset, or a while; False when none will come."""
        if partition.closed:  # it is deleted, opened again, or logd stops
            await asyncio.sleep(_LOOK_S / 10)
            if self.again() is partition:
                raise CallError(grpc.StatusCode.UNAVAILABLE, "the partition is closed")
            return True
        written = partition.log.end_offset
        if offset >= written and self._streams.outline(self._stream).replication.read_only:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await partition.wait_until(offset)
        return True


async def _start(partition: Partition, request: wire.SubscribeRequest) -> int:
    """The offset of the first record wanted; one that does not exist yet is waited for."""
    log = partition.log
    first, end = partition.start_offset, log.end_offset
    match request.startPosition:
        case wire.NEW_ONLY:
            return max(end - 1, 0) if request.reverse else end
        case wire.EARLIEST:
            return first
        case wire.LATEST:
            return max(end - 1, first)
        case wire.TIMESTAMP:
            found = await asyncio.to_thread(log.offset_for_timestamp, request.startTimestamp)
            return min(max(found, first), end)
        case wire.OFFSET:
            return _within(request.startOffset, partition, reverse=request.reverse)
        case _:
            text = f"startPosition {request.startPosition} is not known"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


def _within(offset: int, partition: Partition, *, reverse: bool) -> int:
    """Return the begin of a subscription whose offset the partition may not have.

    Liftbridge begins with the oldest record below the first offset, and beyond the end with the
    next one that is committed, or backward with the last one that is. Its clients rely on that: a
    group's member without a cursor begins before the first offset. They would ask again for ever.
    """
    first, committed = partition.start_offset, partition.high_watermark
    if offset > partition.log.end_offset:
        offset = committed if reverse else committed + 1
    return max(offset, first)


async def _stop(partition: Partition, request: wire.SubscribeRequest) -> int | None:
    """The offset of the last record wanted; None: there is none."""
    log = partition.log
    match request.stopPosition:
        case wire.STOP_ON_CANCEL:
            return None
        case wire.STOP_OFFSET:
            return request.stopOffset
        case wire.STOP_LATEST:
            if log.end_offset <= partition.start_offset:
                raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the partition is empty")
            return log.end_offset - 1
        case wire.STOP_TIMESTAMP:
            # The last record that is not later: the one before the first that is.
            later = await asyncio.to_thread(log.offset_for_timestamp, request.stopTimestamp + 1)
            return min(later, log.end_offset) - 1
        case _:
            text = f"stopPosition {request.stopPosition} is not known"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


def _check_order(start: int, stop: int | None, *, reverse: bool) -> None:
    if stop is not None and (stop > start if reverse else stop < start):
        text = f"the stop offset {stop} comes before the start offset {start}"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
