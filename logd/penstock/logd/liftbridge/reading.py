"""Records of a partition as Liftbridge's messages, a bounded chunk at a time."""

from collections.abc import Iterator
from typing import Final

from penstock.logd.batch import Record, decode_body
from penstock.logd.core.publish_options import MESSAGE_ID
from penstock.logd.fetch.streams import Readable
from penstock.logd.liftbridge.relay import RELAY_ID
from penstock.logd.rows import batch_records, slice_rows
from penstock.logd.wire import logd_liftbridge_pb2 as wire

CHUNK_BYTES: Final = 512 * 1024
"""Bytes of records that a subscription holds while its client takes them; one record may exceed
it. A frame that holds more is read again for the rest of it."""

CHUNK_ROWS: Final = 512

Rows = list[tuple[int, Record]]


def read_forward(partition: Readable, position: int, end: int) -> tuple[Rows, int]:
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


def read_backward(partition: Readable, position: int, end: int) -> tuple[Rows, int]:
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


def messages(partition: Readable, rows: Rows) -> Iterator[wire.Message]:
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
