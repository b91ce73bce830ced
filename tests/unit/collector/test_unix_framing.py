"""The framing of the Unix socket."""

import json
import struct

import pytest

from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import UNIX_FRAME_BYTES_MAX
from penstock.collector.sources.unix.framing import (
    FrameReader,
    decode_batch_header,
    encode_ack,
    encode_nack,
)
from tests.support.collector import encode_batch


def test_frames_come_out_however_they_arrive() -> None:
    stream = encode_batch("s", 1, [b"{}"]) + encode_batch("s", 2, [b"{}", b"{}"])
    whole = FrameReader().feed(stream)
    reader, parts = FrameReader(), []
    for at in range(len(stream)):
        parts += reader.feed(stream[at : at + 1])
    assert parts == whole
    assert [decode_batch_header(frame).sequence for frame in whole] == [1, 2]
    header = decode_batch_header(whole[1])
    assert whole[1][header.body_at :] == b"{}\n{}"


@pytest.mark.parametrize("length", [0, UNIX_FRAME_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_length_out_of_bounds_is_refused_before_anything_is_buffered(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(struct.pack(">I", length))


@pytest.mark.parametrize(
    "header",
    [
        "x",
        "[]",
        {"batch": 2, "sender": "s", "seq": 1, "count": 0},
        {"batch": 1, "sender": "", "seq": 1, "count": 0},
        {"batch": 1, "sender": "s", "seq": 0, "count": 0},
        {"batch": 1, "sender": "s", "seq": True, "count": 0},
        {"batch": 1, "sender": "s", "seq": 1, "count": 1 << 20},
        {"batch": 1, "sender": "s", "seq": 1, "count": 0, "codec": "lz4"},
        {"batch": 1, "sender": "\ud800", "seq": 1, "count": 0},
        {"batch": 1, "sender": "s", "seq": 1, "count": 0, "resource": {"a": "\ud800"}},
        {"batch": 1, "sender": "s", "seq": 1, "count": 0, "resource": {"a": 1 << 70}},
    ],
)
def test_a_header_that_is_not_one_is_refused(header: object) -> None:
    text = header if isinstance(header, str) else json.dumps(header)
    with pytest.raises(RemoteProtocolError):
        decode_batch_header(text.encode() + b"\n")


def test_a_batch_without_records_has_no_body() -> None:
    (frame,) = FrameReader().feed(encode_batch("s", 1, []))
    header = decode_batch_header(frame)
    assert (header.count, frame[header.body_at :]) == (0, b"")


def test_answers_are_framed_json() -> None:
    assert json.loads(encode_ack(7)[4:]) == {"ack": 7}
    assert json.loads(encode_nack(7, "why", retry=False)[4:]) == {
        "nack": 7, "reason": "why", "retry": False,
    }  # fmt: skip


def test_only_counters_are_read_from_a_senders_drops() -> None:
    """Their names go into the collector's status."""
    counts = {"full": 1, "\ud800": 1, "a b": 1, "big": 1 << 70, "low": -1, "yes": True}
    header = {"batch": 1, "sender": "s", "seq": 1, "count": 0, "dropped": {"log": counts}}
    assert decode_batch_header(json.dumps(header).encode()).dropped == {"log": {"full": 1}}
