"""The acks that a new leader owes for records of the leaders before it."""

import pyarrow as pa

from penstock.logd.batch import decode_body
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.turn import PendingAck
from penstock.logd.store import CommitLog, CorruptFrameError


def inherited_acks(log: CommitLog, first: int, upto: int, config: StreamConfig) -> list[PendingAck]:
    """Acks of plain messages in [first, upto), in order; their reply subjects lie in the log.

    Producers of batches are not answered: they ask again, and are told of the duplicate.
    """
    acks: list[PendingAck] = []
    if not config.ack_on_reply or config.ack_policy == "none":
        return acks
    first = max(first, log.start_offset)
    while first < upto:
        try:
            for header, body in log.frames(first, upto=upto):
                if not header.producer_sequence:
                    acks += _acks(header.base_offset, decode_body(body), first)
                first = header.next_offset
        except CorruptFrameError as error:
            first = error.next_offset
        else:
            break
    return acks


def _acks(base_offset: int, batch: pa.RecordBatch, first: int) -> list[PendingAck]:
    replies = batch.column("reply")
    if replies.null_count == batch.num_rows:
        return []
    deltas = batch.column("offset_delta").to_pylist()
    return [
        PendingAck(base_offset + delta, reply.encode(), base_offset + delta)
        for delta, reply in zip(deltas, replies.to_pylist(), strict=True)
        if reply and base_offset + delta >= first
    ]
