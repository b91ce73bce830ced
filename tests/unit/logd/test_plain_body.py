"""Bodies made by hand: the same bytes as pyarrow's."""

import struct
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.format.batch import SCHEMA, decode_body, encode_body
from penstock.logd.format.plain_body import PLAIN_ROWS_MAX, encode_plain_body, has_no_headers
from penstock.logd.intake.turn import Message, MessageRun
from penstock.logd.partition import log_writer
from penstock.logd.partition.log_writer import build_frames


class Row(NamedTuple):
    """A plain message and when it came."""

    timestamp_ns: int
    subject: bytes
    reply: bytes
    value: bytes


WORDS = st.text(st.characters(max_codepoint=127), max_size=20).map(str.encode)
ROWS = st.builds(
    Row,
    st.integers(-(2**63), 2**63 - 1),
    WORDS,
    st.just(b"") | WORDS,
    st.binary(max_size=20) | st.sampled_from((b"", b"x" * 4096)),
)


def by_hand(rows: list[Row]) -> bytes | None:
    timestamps, subjects, replies, values = zip(*rows, strict=True)
    return encode_plain_body(struct.pack(f"<{len(rows)}q", *timestamps), subjects, replies, values)


def by_arrow(rows: list[Row]) -> bytes:
    count = len(rows)
    columns = [
        pa.array(range(count), pa.int32()),
        pa.array([row.timestamp_ns for row in rows], pa.int64()).cast(SCHEMA.field(1).type),
        pa.array([row.subject.decode() for row in rows], pa.string()),
        pa.array([None] * count, pa.binary()),
        pa.array([None] * count, SCHEMA.field("headers").type),
        pa.array([row.reply.decode() or None for row in rows], pa.string()),
        pa.array([row.value for row in rows], pa.binary()),
    ]
    return encode_body(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


@given(st.lists(ROWS, min_size=1, max_size=40))
def test_a_body_made_by_hand_is_what_pyarrow_writes(rows: list[Row]) -> None:
    body = by_hand(rows)
    assert body == by_arrow(rows)
    batch = decode_body(body)
    assert batch.num_rows == len(rows)


@pytest.mark.parametrize("reply", [b"", b"_INBOX.a"])
def test_a_body_made_by_hand_is_what_pyarrow_writes_whatever_its_rows(reply: bytes) -> None:
    for count in range(1, PLAIN_ROWS_MAX + 1):  # bitmaps and offsets end in every way
        rows = [Row(n, b"a.b", reply if n % 3 else b"r", b"v" * (n % 11)) for n in range(count)]
        assert by_hand(rows) == by_arrow(rows)


@pytest.mark.parametrize(
    ("subject", "reply"), [("ä".encode(), b""), (b"a", "ä".encode()), (b"\xff", b"")]
)
def test_words_that_are_more_than_ascii_are_left_to_pyarrow(subject: bytes, reply: bytes) -> None:
    assert by_hand([Row(1, b"a", b"", b"x"), Row(1, subject, reply, b"x")]) is None


@given(st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_frames_hold_the_same_rows_whoever_made_their_bodies(parts: list[list[Row]]) -> None:
    runs: list[MessageRun] = []
    for part in parts:
        base = runs[-1].next_offset if runs else 7
        messages = [Message(row.subject, row.reply, b"", row.value) for row in part]
        runs.append(MessageRun(base, part[0].timestamp_ns, messages))
    ((_, body),) = build_frames(runs, epoch=1)
    arrow = decode_body(log_writer.arrow_body(runs))
    assert decode_body(body).equals(arrow)


@given(st.lists(ROWS, min_size=1, max_size=40), st.data())
def test_a_body_says_without_decoding_that_it_has_no_headers(
    rows: list[Row], data: st.DataObject
) -> None:
    bare = by_arrow(rows)
    assert has_no_headers(bare)
    assert not has_no_headers(bare[:600])
    headers: list[object] = [None] * len(rows)
    headers[data.draw(st.integers(0, len(rows) - 1))] = data.draw(
        st.sampled_from(([], [("Nats-Msg-Id", b"7")]))
    )
    batch = decode_body(bare).set_column(
        4, SCHEMA.field("headers"), pa.array(headers, SCHEMA.field("headers").type)
    )
    assert not has_no_headers(encode_body(batch))
    assert not has_no_headers(encode_body(batch, compression="zstd"))
