"""Reads of a fetch: byte ranges of files, or frames made of the records of some subjects.

Frames with the records of some subjects only: the copy path of a fetch.

A filtered frame keeps its range, so records keep their offsets; like a compacted one it says that
records are missing from it on purpose. A frame in which nothing matches is left out.
"""

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec.structs import replace

from penstock.base.lazy_module import LazyModule
from penstock.logd.api.operations import Document, Fetch
from penstock.logd.api.server import Response, ResponseSlot, Waiting
from penstock.logd.cluster.streams import describe_standing
from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError, UnavailableError
from penstock.logd.format.batch import decode_body, encode_body
from penstock.logd.format.frame import FrameHeader, crc32c, encode_header
from penstock.logd.format.rows import split_frames
from penstock.logd.format.subjects import check_filter, matches
from penstock.logd.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, FILTER_BYTES_MAX
from penstock.logd.partition.partition import Partition
from penstock.logd.storage import FileRange
from penstock.logd.storage.reader import LogReader

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

Body = bytes | memoryview


def filter_ranges(
    ranges: Iterable[FileRange], subject: str, *, log: LogReader, bytes_max: int
) -> tuple[bytes, int]:
    """Read frames and keep the records whose subjects a filter matches.

    One frame is decoded at a time, so that memory is bounded by what one may decode to.

    Args:
        ranges: The ranges to read; not empty.
        subject: The filter.
        log: The log that has them.
        bytes_max: Maximum bytes of the result; the rest is left for the next fetch, after one
            frame.

    Returns:
        Whole frames, and the offset after the last one looked at.

    Raises:
        CorruptFrameError: The first frame is damaged; what comes before damage is kept.
        UnavailableError: The log was cut meanwhile, and has none of them.
    """
    parts: list[bytes] = []
    size, next_offset = 0, 0
    for header, body in _sound_frames(ranges, log):
        kept = _filter_frame(header, body, subject)
        length = sum(len(part) for part in kept)
        if size and size + length > bytes_max:
            break
        parts.extend(kept)
        size += length
        next_offset = header.next_offset
    if not next_offset:
        raise UnavailableError("the records were taken back while they were read")
    return b"".join(parts), next_offset


def _sound_frames(
    ranges: Iterable[FileRange], log: LogReader
) -> Iterator[tuple[FrameHeader, Body]]:
    """Yield the frames up to the first damaged one; raise if that is the first of all."""
    none = True
    try:
        for frame in _frames(ranges, log):
            yield frame
            none = False
    except CorruptFrameError:
        if none:
            raise


def _frames(ranges: Iterable[FileRange], log: LogReader) -> Iterator[tuple[FrameHeader, Body]]:
    for part in ranges:
        offset = part.base_offset
        if log.cipher is not None:
            yield from log.frames(offset, upto=part.next_offset)
            continue
        data = memoryview(part.file.read(part.position, part.length))
        try:
            for frame in split_frames(data):
                yield frame
                offset = frame[0].next_offset
        except CorruptError:  # rotted since it was checked first; the log says what is damaged
            yield from log.frames(offset, upto=part.next_offset)


def _filter_frame(header: FrameHeader, body: Body, subject: str) -> tuple[bytes, ...]:
    batch = decode_body(body, where=f"offset {header.base_offset}")
    kept = batch.filter(_matching(batch.column("subject"), subject))
    if kept.num_rows == 0:
        return ()
    if kept.num_rows == batch.num_rows:
        return (encode_header(header), bytes(body))
    smaller = encode_body(kept)
    changed = replace(
        header,
        record_count=kept.num_rows,
        body_length=len(smaller),
        body_crc=crc32c(smaller),
        compacted=True,
    )
    return (encode_header(changed), smaller)


def _matching(subjects: pa.Array, wanted: str) -> pa.Array:
    matching = [name for name in pc.unique(subjects).to_pylist() if matches(wanted, name)]
    return pc.is_in(subjects, value_set=pa.array(matching, pa.string()))


_FILTER_THREADS: Final = 2
"""Threads that decode and filter; fetches that filter wait for one another, and for nobody else."""


class FetchReading:
    """Answers the fetches of one daemon.

    Args:
        filter_bytes_max: Maximum bytes that a fetch with a payload made in memory reads and sends.
    """

    def __init__(self, *, filter_bytes_max: int = FILTER_BYTES_MAX) -> None:
        self._filter_bytes_max = filter_bytes_max
        self._filters = ThreadPoolExecutor(_FILTER_THREADS, thread_name_prefix="filter")

    async def fetch(self, partition: Partition, request: Fetch, turn: ResponseSlot) -> Response:
        """Read from an offset on; wait for records if asked to.

        Raises:
            RefusedError: `OUT_OF_RANGE`, `STREAM_RECREATED`, `RECORDS_LOST`, `BAD_SUBJECT`.
            CorruptError: The first frame is damaged.
            UnavailableError: The log failed, and what is asked for was taken back.
        """
        _check_incarnation(partition, request)
        wait_s = min(request.wait_ms_max, FETCH_WAIT_MS_MAX) / 1000
        until = asyncio.get_running_loop().time() + wait_s
        if request.subject is None:
            return await self._plain(partition, request, turn, until)
        check_filter(request.subject)
        return await self._filtered(partition, request, turn, until)

    async def _plain(
        self, partition: Partition, request: Fetch, turn: ResponseSlot, until: float
    ) -> Response:
        copied = partition.log.cipher is not None
        bytes_max = min(request.bytes_max, self._filter_bytes_max if copied else FETCH_BYTES_MAX)
        while True:
            latest = _check_history(partition, request, request.offset, request.log_epoch)
            ranges = await _read(partition, request, request.offset, bytes_max)
            next_offset = ranges[-1].next_offset if ranges else request.offset
            length = sum(part.length for part in ranges)
            enough = length >= request.bytes_min or next_offset <= partition.high_watermark
            if enough or not await _wait_for(partition, next_offset, turn.waiting, until):
                break
        if not copied or not ranges:
            return Response(_standing(partition, next_offset, latest), ranges)
        await turn.take()  # a connection holds one payload in memory at a time
        read = partition.log.read_frames
        frames = await asyncio.to_thread(
            read, request.offset, bytes_max=bytes_max, upto=next_offset
        )
        if not frames:
            raise UnavailableError(f"offset {request.offset} of {partition.name} was taken back")
        payload = b"".join(
            [part for header, body in frames for part in (encode_header(header), body)]
        )
        end = frames[-1][0].next_offset
        return Response(_standing(partition, end, latest), payload=payload)

    async def _filtered(
        self, partition: Partition, request: Fetch, turn: ResponseSlot, until: float
    ) -> Response:
        """Look at no more than `bytes_max` bytes; say how far, though nothing may match."""
        assert request.subject is not None
        bytes_max = min(request.bytes_max, self._filter_bytes_max)
        left, position, epoch = bytes_max, request.offset, request.log_epoch
        while True:
            latest = _check_history(partition, request, position, epoch)
            ranges = await _read(partition, request, position, left)
            payload = b""
            if ranges:
                await turn.take()  # a connection holds one payload in memory at a time
                work = self._filters.submit(
                    filter_ranges, ranges, request.subject, log=partition.log, bytes_max=bytes_max
                )
                payload, position = await asyncio.wrap_future(work)
                left, epoch = left - sum(part.length for part in ranges), latest
            if payload or left <= 0:
                break
            if position > partition.high_watermark:
                turn.give_back()
                if not await _wait_for(partition, position, turn.waiting, until):
                    break
        return Response(_standing(partition, position, latest), payload=payload)


async def _read(
    partition: Partition, request: Fetch, offset: int, bytes_max: int
) -> list[FileRange]:
    end = partition.high_watermark + 1
    if not partition.start_offset <= offset <= end:
        raise _out_of_range(partition, request, offset)
    if offset == end:
        return []
    try:
        ranges = await asyncio.to_thread(partition.log.read, offset, bytes_max=bytes_max, upto=end)
    except RefusedError:  # deleted meanwhile; the log's own range is that of its writer
        raise _out_of_range(partition, request, offset) from None
    if not ranges and partition.log.failure:  # committed, but not synced: it will never be there
        raise UnavailableError(f"offset {offset} of {partition.name}: {partition.log.failure}")
    return ranges


async def _wait_for(partition: Partition, offset: int, waiting: Waiting, until: float) -> bool:
    """Wait for a record at an offset; False when there is none in time, or never will be."""
    if partition.closed or asyncio.get_running_loop().time() >= until:
        return False
    event = partition.wait_until(max(offset, partition.high_watermark + 1))
    return await waiting.wait(event, until) and not partition.closed


def _check_incarnation(partition: Partition, request: Fetch) -> None:
    present = partition.stream.incarnation
    if request.incarnation not in (None, present):
        message = f"stream {request.stream!r} was deleted and made again"
        raise RefusedError("STREAM_RECREATED", message, incarnation=present)


def _check_history(partition: Partition, request: Fetch, offset: int, log_epoch: int | None) -> int:
    """Refuse a reader that has read what is no more: it must not take what is there for the rest.

    As Kafka's KIP-320: what leaders up to the reader's epoch have ordered ends where the next epoch
    begins. If the reader has got further, an election has cost records that it has read. A replica
    that knows of no later epoch is behind, at most, and cannot tell.

    Asked before each look at the log, as a wait may outlast an election. What is found is answered
    under the epoch of before: were it read under a later one, the next fetch would tell.

    Args:
        partition: The partition to be read.
        request: The request, for errors.
        offset: Up to which the reader has read, or a filter for it.
        log_epoch: Under which; None: it does not say.

    Returns:
        The last epoch there is.

    Raises:
        RefusedError: `RECORDS_LOST`.
    """
    epochs = partition.role.epochs
    latest = epochs.latest
    if log_epoch is None or log_epoch >= latest:
        return latest
    end = epochs.end_of(log_epoch, partition.log.end_offset)
    if offset > end:
        where = f"{request.stream}/{request.partition}"
        message = f"what was read of {where} from offset {end} on is lost; others are there now"
        raise RefusedError("RECORDS_LOST", message, offset=end)
    return latest


def _out_of_range(partition: Partition, request: Fetch, offset: int) -> RefusedError:
    start, end = partition.start_offset, partition.high_watermark + 1
    where = f"{request.stream}/{request.partition}"
    message = f"offset {offset} of {where} is not in {start} to {end}"
    written = partition.log.end_offset
    return RefusedError("OUT_OF_RANGE", message, earliest=start, latest=end, end_offset=written)


def _standing(partition: Partition, next_offset: int, log_epoch: int) -> Document:
    return partition_standing(partition) | {"next_offset": next_offset, "log_epoch": log_epoch}


def partition_standing(partition: Partition) -> Document:
    """Return the offsets of a partition, as answers to readers have them."""
    standing = describe_standing(partition)
    del standing["size_bytes"], standing["damaged_offsets"]
    return standing | {
        "stream": partition.name,
        "partition": partition.number,
        "incarnation": partition.stream.incarnation,
    }
