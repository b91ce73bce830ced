"""The Fluent forward parser, fed what clients send and what attackers might."""

import gzip
import socket
import struct
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from fluent.event import Event
from fluent.sender import EventTime, FluentSender

from penstock.collector.errors import RemoteProtocolError, UndecodableError
from penstock.collector.limits import (
    FORWARD_BAD_ENTRIES_MAX,
    FORWARD_MESSAGE_BYTES_MAX,
    UNIT_DECOMPRESSED_BYTES_MAX,
    UNIT_RECORDS_MAX,
)
from penstock.collector.sources.forward import protocol
from penstock.collector.sources.forward.protocol import (
    BadEntry,
    MessageReader,
    decode_message,
    encode_ack,
)

ENTRY = [1_700_000_000, {"message": "hi"}]


def packed(value: Any) -> bytes:
    data: bytes = msgpack.packb(value)
    return data


TOO_LONG = packed(["t", "x" * (FORWARD_MESSAGE_BYTES_MAX + 100)])[:-50]
"""A message that has not ended."""


def one(data: bytes) -> protocol.Message:
    (message,) = MessageReader().feed(data)
    return message


@pytest.mark.parametrize(
    "message",
    [
        ["app.x", *ENTRY],
        ["app.x", *ENTRY, {"size": 1}],
        ["app.x", [ENTRY]],
        ["app.x", packed(ENTRY), {"size": 1}],
        ["app.x", gzip.compress(packed(ENTRY)), {"compressed": "gzip"}],
        ["app.x", zstandard.compress(packed(ENTRY)), {"compressed": "zstd"}],
    ],
    ids=["message", "message with option", "forward", "packed", "gzip", "zstd"],
)
def test_every_mode_yields_the_same_event(message: list[Any]) -> None:
    framed = one(packed(message))
    assert framed.count == 1
    (event,) = decode_message(framed.raw)
    assert event == protocol.Event("app.x", 1_700_000_000_000_000_000, {"message": "hi"}, {})


def test_a_stream_is_cut_the_same_however_it_arrives() -> None:
    stream = b"".join(packed(["t", [ENTRY] * n, {"chunk": f"c{n}"}]) for n in range(1, 6))
    whole = MessageReader().feed(stream)
    reader, parts = MessageReader(), []
    for at in range(len(stream)):
        parts += reader.feed(stream[at : at + 1])
    assert parts == whole
    assert [message.count for message in whole] == [1, 2, 3, 4, 5]
    assert [message.chunk for message in whole] == ["c1", "c2", "c3", "c4", "c5"]
    assert b"".join(message.raw for message in whole) == stream
    assert list(protocol.messages_in(stream)) == [message.raw for message in whole]


def test_event_time_keeps_its_nanoseconds() -> None:
    stamp = msgpack.ExtType(0, struct.pack(">II", 1_700_000_000, 123_456_789))
    (event,) = decode_message(packed(["t", stamp, {}]))
    assert isinstance(event, protocol.Event)
    assert event.time_ns == 1_700_000_000_123_456_789


def test_fluent_bit_entries_with_metadata_are_read() -> None:
    (event,) = decode_message(packed(["t", [[[5, {"meta": 1}], {"a": 1}]]]))
    assert isinstance(event, protocol.Event)
    assert (event.time_ns, event.record) == (5_000_000_000, {"a": 1})
    assert event.metadata == {"meta": 1}


def test_what_has_no_place_of_a_message_is_counted() -> None:
    entries = [[5, {"a": 1}, "more", 2], [[5, {"m": 1}, 3], {"a": 2}], [[5, 7], {"a": 3}]]
    notes = Counter[str]()
    found = decode_message(packed(["t", entries, {"chunk": "c", "size": 3, "tenant": "x"}]), notes)
    assert [event.record for event in found if isinstance(event, protocol.Event)] == [
        {"a": 1}, {"a": 2}, {"a": 3},
    ]  # fmt: skip
    assert notes == {"event_elements_dropped": 4, "options_unknown": 1}
    notes.clear()
    options = {"chunk": "c", "size": 1, "compressed": "text", "fluent_signal": 0}
    decode_message(packed(["t", [[[5, {}], {"a": 1}]], options]), notes)
    assert notes == {}


def test_what_fluent_logger_sends_is_read(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        sender = FluentSender("app", host=f"unix://{tmp_path}/s", nanosecond_precision=True)
        assert sender.emit_with_time("web", EventTime(1_700_000_000.5), {"k": "v"})
        sender.close()
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as sent:
            made = sent.read()
    (event,) = decode_message(one(made).raw)
    assert event == protocol.Event("app.web", 1_700_000_000_500_000_000, {"k": "v"}, {})
    assert Event  # the client's own event class exists in the version tested


def test_options_are_read_from_bin_as_well() -> None:
    body = gzip.compress(packed(ENTRY) * 2)
    message = one(packed(["t", body, {b"compressed": b"gzip", b"chunk": b"abc"}]))
    assert (message.count, message.chunk) == (2, b"abc")
    assert len(decode_message(message.raw)) == 2
    with pytest.raises(UndecodableError, match="is not logs"):
        decode_message(packed(["t", body, {b"fluent_signal": 1}]))


def test_all_members_of_a_gzip_body_are_read() -> None:
    body = gzip.compress(packed(ENTRY)) + gzip.compress(packed(ENTRY))
    message = one(packed(["t", body, {"compressed": "gzip"}]))
    assert message.count == 2
    assert len(decode_message(message.raw)) == 2


@pytest.mark.parametrize("made_of", [[None], b"\xc0"])
def test_a_message_of_too_many_records_breaks_the_protocol(made_of: Any) -> None:
    assert one(packed(["t", made_of * UNIT_RECORDS_MAX])).count == UNIT_RECORDS_MAX
    with pytest.raises(RemoteProtocolError, match=f"more than {UNIT_RECORDS_MAX} records"):
        one(packed(["t", made_of * (UNIT_RECORDS_MAX + 1)]))


def test_a_decompression_bomb_is_refused() -> None:
    bomb = gzip.compress(bytes(UNIT_DECOMPRESSED_BYTES_MAX + 1), compresslevel=1)
    raw = packed(["t", bomb, {"compressed": "gzip"}])
    with pytest.raises(UndecodableError, match="after decompression"):
        decode_message(raw)
    assert one(raw).count == 1


@pytest.mark.parametrize(
    "raw",
    [
        packed(["t", b"\xc1", {}]),
        packed([7, 1, {}]),
        packed(["t", b"xx", {"compressed": "gzip"}]),
        packed(["t", b"xx", {"compressed": "zstd"}]),
        packed(["t", b"xx", {"compressed": "lz4"}]),
        packed(["t", packed(ENTRY), {"fluent_signal": 1}]),
    ],
)
def test_what_cannot_be_read_is_named_and_counted_as_one(raw: bytes) -> None:
    assert one(raw).count == 1
    with pytest.raises(UndecodableError):
        decode_message(raw)


@pytest.mark.parametrize("bad", [[1, "no map"], [1], "text", [msgpack.ExtType(0, b""), None]])
def test_an_entry_that_is_no_record_takes_no_other_along(bad: Any) -> None:
    for entries in ([ENTRY, bad, ENTRY], b"".join(map(packed, (ENTRY, bad, ENTRY)))):
        message = one(packed(["t", entries, {"chunk": "c"}]))
        first, second, third = decode_message(message.raw)
        assert message.count == 3
        assert (
            first == third == protocol.Event("t", 1_700_000_000_000_000_000, {"message": "hi"}, {})
        )
        assert second == BadEntry(packed(["t", [bad]]), "forward: an entry is not [time, record]")
        assert decode_message(second.raw) == [second]


def test_a_message_of_too_many_bad_entries_is_refused_whole() -> None:
    most = [ENTRY, *[None] * FORWARD_BAD_ENTRIES_MAX]
    assert len(decode_message(packed(["t", most]))) == len(most)
    with pytest.raises(UndecodableError):
        decode_message(packed(["t", [*most, None]]))


def test_an_entry_that_nests_too_deep_to_be_written_again_is_named_with_its_message() -> None:
    raw = packed(["t", packed(ENTRY) + b"\x91" * 1023 + b"\xc0"])
    good, bad = decode_message(raw)
    assert isinstance(good, protocol.Event)
    assert bad == BadEntry(raw, "forward: an entry is not [time, record]")


@pytest.mark.parametrize("behind", [b"\xc1", packed(5), TOO_LONG], ids=["no", "number", "long"])
def test_what_is_complete_is_good_whatever_comes_behind_it(behind: bytes) -> None:
    reader = MessageReader()
    assert len(reader.feed(packed(["t", *ENTRY]) * 2 + behind)) == 2
    for read_on in (reader.check, lambda: reader.feed(packed(["t", *ENTRY]))):
        with pytest.raises(RemoteProtocolError):
            read_on()


def test_nil_is_a_keepalive() -> None:
    assert MessageReader().feed(b"\xc0" + packed(["t", 1, {}]) + b"\xc0") == [
        protocol.Message(packed(["t", 1, {}]), 1, None)
    ]


@pytest.mark.parametrize(
    "data",
    [b'{"json": 1}', b'["json"]', b"\xc1", packed({"a": 1}), packed([1, 2, 3, 4, 5]), packed(5)],
)
def test_what_is_not_the_protocol_ends_the_connection(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        MessageReader().feed(data)


def test_a_message_that_never_ends_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=f"above {FORWARD_MESSAGE_BYTES_MAX} bytes"):
        MessageReader().feed(TOO_LONG)


def test_an_ack_repeats_the_chunk() -> None:
    assert msgpack.unpackb(encode_ack("abc=")) == {"ack": "abc="}


def test_random_bytes_never_raise_anything_else() -> None:
    state = zlib.crc32(b"seed")
    for _ in range(2000):
        state = zlib.crc32(state.to_bytes(4, "big"))
        noise = state.to_bytes(4, "big") * (1 + state % 7)
        try:
            for message in MessageReader().feed(b"\x93\xa1t" + noise):
                decode_message(message.raw)
        except (RemoteProtocolError, UndecodableError):
            continue
        except Exception as error:
            raise AssertionError(f"{error!r} of {noise!r}") from error


def test_a_chunk_that_is_not_unicode_is_acknowledged_as_it_came() -> None:
    message = one(b"\x93\xa1t\x90\x81\xa5chunk\xa2a\xff")
    assert message.chunk is not None
    assert encode_ack(message.chunk) == b"\x81\xa3ack\xa2a\xff"


def test_a_large_message_in_small_pieces_is_looked_at_once() -> None:
    """The pieces before the last are not read again, which would take minutes."""
    raw = packed(["app", [[5, {}]] * 1_000_000]) + packed(["b", 5, {}])
    reader = MessageReader()
    begun_s = time.process_time()
    values = [value for at in range(0, len(raw), 512) for value in reader.cut(raw[at : at + 512])]
    assert time.process_time() - begun_s < 5
    assert b"".join(values) == raw
    assert len(values) == 2
    assert reader.waiting_bytes == 0
