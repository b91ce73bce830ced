from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.logd.errors import CorruptError
from penstock.logd.format.envelope import (
    BATCH_HEADER_SIZE,
    COOKIE,
    TYPE_BATCH,
    TYPE_BATCH_ACK,
    BatchPayload,
    decode_batch,
    decode_envelope,
    encode_batch,
    encode_envelope,
)
from penstock.logd.format.frame import crc32c

GOLDEN = Path(__file__).parents[2] / "golden" / "logd" / "envelope-batch-1.bin"
BATCH = BatchPayload(
    schema_version=1,
    record_count=1000,
    producer_id=bytes(range(1, 17)),
    previous_sequence=41,
    sequence=2**63,
    body=b"arrow ipc message padded" * 2,
)


def payload_of(batch: BatchPayload) -> bytes:
    envelope = decode_envelope(encode_batch(batch))
    assert envelope is not None
    return bytes(envelope.payload)


def test_batch_of_version_1_keeps_its_bytes() -> None:
    assert encode_batch(BATCH) == GOLDEN.read_bytes()
    envelope = decode_envelope(GOLDEN.read_bytes())
    assert envelope is not None
    assert envelope.type == TYPE_BATCH
    assert decode_batch(envelope.payload) == BATCH


def test_cookie_is_not_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        COOKIE.decode()


@given(st.integers(0, 255), st.binary(max_size=300))
def test_envelope_round_trips(kind: int, payload: bytes) -> None:
    envelope = decode_envelope(encode_envelope(kind, payload))
    assert envelope is not None
    assert (envelope.type, bytes(envelope.payload)) == (kind, payload)


@pytest.mark.parametrize("data", [b"", b"\xb9", COOKIE[:3], b"plain message", b"\0" * 40])
def test_message_without_the_cookie_is_no_envelope(data: bytes) -> None:
    assert decode_envelope(data) is None


def test_envelope_without_a_crc_is_taken() -> None:
    envelope = decode_envelope(COOKIE + bytes([0, 8, 0, TYPE_BATCH_ACK]) + b"{}")
    assert envelope is not None
    assert (envelope.type, bytes(envelope.payload)) == (TYPE_BATCH_ACK, b"{}")


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (b"", "too short"),
        (b"\0\x08\0", "too short"),
        (b"\1\x08\0\0", "version 1"),
        (b"\0\xff\0\0", "header length 255"),
        (b"\0\x0c\0\0\0\0\0\0", "header length 12"),
        (b"\0\x08\1\0", "header length 8"),
        (b"\0\x0c\1\0\0\0", "header length 12"),
        (b"\0\x0c\1\0\0\0\0\1x", "CRC"),
    ],
)
def test_envelope_that_breaks_the_format_is_corrupt(rest: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        decode_envelope(COOKIE + rest)


def test_every_flipped_bit_of_a_payload_is_found() -> None:
    good = encode_batch(BATCH)
    for bit in range(8 * 8, len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError, match="CRC"):
            decode_envelope(bytes(bad))


@given(st.binary(max_size=300))
def test_any_bytes_after_the_cookie_are_an_envelope_or_corrupt(data: bytes) -> None:
    try:
        envelope = decode_envelope(COOKIE + data)
    except CorruptError:
        return
    assert envelope is not None
    assert len(envelope.payload) in {len(data) - 4, len(data) - 8}


@given(
    st.integers(0, 255),
    st.integers(1, 2**32 - 1),
    st.binary(min_size=16, max_size=16).filter(any),
    st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2, unique=True).map(sorted),
    st.integers(1, 40).map(lambda words: b"x" * 8 * words),
)
def test_batch_round_trips(
    schema: int, count: int, producer: bytes, sequences: list[int], body: bytes
) -> None:
    batch = BatchPayload(
        schema_version=schema,
        record_count=count,
        producer_id=producer,
        previous_sequence=sequences[0],
        sequence=sequences[1],
        body=body,
    )
    assert decode_batch(payload_of(batch)) == batch


@pytest.mark.parametrize(
    "change",
    [{"producer_id": bytes(16)}, {"previous_sequence": 2**63}, {"sequence": 41}],
    ids=str,
)
def test_batch_that_breaks_the_rules_is_not_encoded(change: dict[str, int | bytes]) -> None:
    with pytest.raises(AssertionError):
        encode_batch(replace(BATCH, **change))


@pytest.mark.parametrize(
    ("position", "data", "message"),
    [
        (0, b"\2", "version 2"),
        (4, bytes(4), "out of range"),
        (8, bytes(16), "out of range"),
        (24, (2**63).to_bytes(8, "little"), "out of range"),
        (32, (41).to_bytes(8, "little"), "out of range"),
    ],
)
def test_batch_with_a_field_out_of_range_is_corrupt(
    position: int, data: bytes, message: str
) -> None:
    payload = bytearray(payload_of(BATCH))
    payload[position : position + len(data)] = data
    with pytest.raises(CorruptError, match=message):
        decode_batch(bytes(payload))


def test_batch_of_a_wrong_length_is_corrupt() -> None:
    payload = payload_of(BATCH)
    for length in [*range(BATCH_HEADER_SIZE + 1), len(payload) - 1, len(payload) - 7]:
        with pytest.raises(CorruptError):
            decode_batch(payload[:length])


@given(st.binary(max_size=200))
def test_any_payload_is_a_batch_or_corrupt(payload: bytes) -> None:
    try:
        batch = decode_batch(b"\1" + payload)
    except CorruptError:
        return
    assert batch.body == payload[BATCH_HEADER_SIZE - 1 :]


def test_header_checksum_place_is_liftbridge_s() -> None:
    data = encode_envelope(3, b"payload")
    assert data[:8] == b"\xb9\x0e\x43\xb4\x00\x0c\x01\x03"
    assert int.from_bytes(data[8:12], "big") == crc32c(b"payload")
