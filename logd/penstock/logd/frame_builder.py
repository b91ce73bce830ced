"""From accepted messages to frames: rows of several turns become one Arrow batch.

The committer builds frames when it is about to write, so everything that arrived during the last
sync shares a frame.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa

from penstock.logd.batch import SCHEMA, SCHEMA_VERSION, dense_deltas, encode_body
from penstock.logd.core.turn import Message, Run, Whole
from penstock.logd.frame import FrameHeader, crc32c
from penstock.logd.limits import FRAME_BYTES_MAX, FRAME_ROWS_MAX
from penstock.logd.plain_body import PLAIN_ROWS_MAX, encode_plain_body

_TIMESTAMP = SCHEMA.field("timestamp").type
_HEADERS = SCHEMA.field("headers").type


def build_frames(
    items: Iterable[Run | Whole], *, epoch: int
) -> Iterator[tuple[FrameHeader, bytes]]:
    """Build the frames of items at consecutive offsets.

    Args:
        items: In order of offsets. Runs are merged while the limits of a frame allow.
        epoch: The leader epoch.
    """
    runs: list[Run] = []
    rows = size = 0
    for item in items:
        if isinstance(item, Run) and (
            not runs
            or (rows + len(item.messages) <= FRAME_ROWS_MAX and size + item.size <= FRAME_BYTES_MAX)
        ):
            runs.append(item)
            rows += len(item.messages)
            size += item.size
            continue
        if runs:
            yield _build(runs, epoch)
        runs, rows, size = [], 0, 0
        if isinstance(item, Whole):
            yield item.header, item.body
        else:
            runs, rows, size = [item], len(item.messages), item.size
    if runs:
        yield _build(runs, epoch)


def _build(runs: Sequence[Run], epoch: int) -> tuple[FrameHeader, bytes]:
    count = sum(len(run.messages) for run in runs)
    simple = count <= PLAIN_ROWS_MAX and not any(run.extras for run in runs)
    body = (_plain_body(runs) if simple else None) or arrow_body(runs)
    header = FrameHeader(
        base_offset=runs[0].base_offset,
        leader_epoch=epoch,
        record_count=count,
        last_offset_delta=count - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=runs[0].timestamp_ns,
        max_timestamp_ns=max(run.timestamp_ns for run in runs),
        schema_version=SCHEMA_VERSION,
    )
    return header, body


def _messages(runs: Sequence[Run]) -> list[Message]:
    return runs[0].messages if len(runs) == 1 else [*chain(*(run.messages for run in runs))]


def _plain_body(runs: Sequence[Run]) -> bytes | None:
    """The body of messages without headers, if it can be made by hand."""
    subjects, replies, _, values = zip(*_messages(runs), strict=True)
    timestamps = b"".join([struct.pack("<q", run.timestamp_ns) * len(run.messages) for run in runs])
    return encode_plain_body(timestamps, subjects, replies, values)


def arrow_body(runs: Sequence[Run]) -> bytes:
    """The body of any messages, by pyarrow: what makes others by hand must say the same."""
    messages = _messages(runs)
    values: list[bytes | None] = [message[3] for message in messages]
    keys, headers = _keys_and_headers(runs, values)
    batch = pa.RecordBatch.from_arrays(
        [
            dense_deltas(len(messages)),
            _timestamps(runs),
            _subjects([message[0] for message in messages]),
            keys,
            headers,
            _replies([message[1] for message in messages]),
            pa.array(values, pa.binary()),
        ],
        schema=SCHEMA,
    )
    return encode_body(batch)


def _timestamps(runs: Sequence[Run]) -> pa.Array:
    parts = [pa.repeat(pa.scalar(run.timestamp_ns, _TIMESTAMP), len(run.messages)) for run in runs]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _subjects(subjects: Sequence[bytes | None]) -> pa.Array:
    """NATS does not check that subjects are UTF-8; the intake does."""
    return pa.array(subjects, pa.binary()).cast(pa.string())


def _replies(replies: Sequence[bytes]) -> pa.Array:
    if not any(replies):
        return pa.nulls(len(replies), pa.string())
    return _subjects([reply or None for reply in replies])


def _keys_and_headers(runs: Sequence[Run], values: list[bytes | None]) -> tuple[pa.Array, pa.Array]:
    """The two columns that most messages leave empty; makes a tombstone's value null."""
    count = len(values)
    if not any(run.extras for run in runs):
        return pa.nulls(count, pa.binary()), pa.nulls(count, _HEADERS)
    keys: list[bytes | None] = [None] * count
    headers: list[object] = [None] * count
    begin = 0
    for run in runs:
        for position, extras in run.extras.items():
            row = begin + position
            headers[row], keys[row] = extras.headers, extras.key
            if extras.tombstone:
                values[row] = None
        begin += len(run.messages)
    return pa.array(keys, pa.binary()), pa.array(headers, _HEADERS)
