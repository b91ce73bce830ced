"""Checksums of what this node holds of a range of offsets: one step of a verification.

Every frame of the range is read and its CRC checked, whatever of it was checked before. Damage ends
nothing: it is named, and the rest is read on.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.logd.api.operations import Document, Verify
from penstock.logd.api.server import Response
from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError
from penstock.logd.format.batch import decode_body
from penstock.logd.format.record_checksums import checksum_of, encode_checksums, located
from penstock.logd.format.rows import slice_rows
from penstock.logd.partition.partition import Partition
from penstock.logd.storage import CommitLog


class ReadRange(Struct):
    """A log's records in a range of offsets.

    Attributes:
        first: First offset, at or above the requested one.
        next_offset: End of the range, exclusive; more records may follow.
        size: Bytes of the frames that were read.
        damaged: Ranges [first, upto) whose frames are damaged.
        missing: Ranges [first, upto) without a frame.
        batches: The records with their positions.
    """

    first: int
    next_offset: int
    size: int = 0
    damaged: list[tuple[int, int]] = msgspec.field(default_factory=list)
    missing: list[tuple[int, int]] = msgspec.field(default_factory=list)
    batches: list[pa.RecordBatch] = msgspec.field(default_factory=list)


class Verification:
    """Reads ranges, one at a time: the disk is for publishers and readers first."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verify")

    async def verify(self, partition: Partition, request: Verify) -> Response:
        """The checksum of a range, and with `records` that of each record in it.

        Raises:
            RefusedError: `STREAM_RECREATED`.
            OSError: The disk failed.
        """
        incarnation = partition.stream.incarnation
        if request.incarnation not in (None, incarnation):
            message = f"stream {request.stream!r} was deleted and made again"
            raise RefusedError("STREAM_RECREATED", message, incarnation=incarnation)
        upto = min(request.upto, partition.high_watermark + 1)
        work = self._thread.submit(
            _verify, partition.log, max(request.offset, partition.start_offset), upto, request
        )
        found, payload = await asyncio.wrap_future(work)
        standing = {
            "incarnation": incarnation,
            "start_offset": partition.start_offset,
            "high_watermark": partition.high_watermark,
        }
        return Response(standing | found, payload=payload)


def _verify(log: CommitLog, first: int, upto: int, request: Verify) -> tuple[Document, bytes]:
    held = read_range(log, first, upto, bytes_max=request.bytes_max)
    found = {
        "first": held.first,
        "next_offset": held.next_offset,
        "records": sum(batch.num_rows for batch in held.batches),
        "bytes": held.size,
        "checksum": checksum_of(held.batches),
        "damaged": [list(part) for part in held.damaged],
        "missing": [list(part) for part in held.missing],
    }
    return found, encode_checksums(held.batches) if request.records else b""


def read_range(log: CommitLog, first: int, upto: int, *, bytes_max: int) -> ReadRange:
    """Read what a log holds of [first, upto), up to about so many bytes, one frame at least.

    Where retention deletes the beginning meanwhile, the range begins where the log then does.

    Raises:
        OSError: The disk failed.
    """
    while True:
        held = ReadRange(first, first)
        try:
            while held.next_offset < upto and held.size < bytes_max:
                _read_on(log, held, upto, bytes_max)
        except RefusedError:  # OUT_OF_RANGE: what begins the range is no more
            assert log.start_offset > first, first
            first = log.start_offset
        else:
            return held


def _read_on(log: CommitLog, held: ReadRange, upto: int, bytes_max: int) -> None:
    """Read up to the next damage, or to the end."""
    position = held.next_offset
    try:
        for header, body in log.frames(position, upto=upto):
            if header.base_offset > position:
                held.missing.append((position, header.base_offset))
            end = min(header.next_offset, upto)
            try:
                rows = slice_rows(header, decode_body(body), position, upto)
                held.batches.append(located(rows, header.base_offset))
            except CorruptError:
                held.damaged.append((max(position, header.base_offset), end))
            position = held.next_offset = end
            held.size += header.frame_length
            if held.size >= bytes_max:
                return
        if position < upto:
            held.missing.append((position, upto))
            held.next_offset = upto
    except CorruptFrameError as error:
        end = min(max(error.next_offset, position + 1), upto)
        held.damaged.append((max(error.offset, position), end))
        held.next_offset = end
