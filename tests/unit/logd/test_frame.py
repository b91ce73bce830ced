from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import (
    BODY_SIZE_MAX,
    HEADER_SIZE,
    NO_TIMESTAMP,
    FrameHeader,
    check_body,
    crc32c,
    decode_header,
    encode_header,
    parse_frames,
    version_not_known,
)
from tests.support.frames import make_frame

GOLDEN = Path(__file__).parents[2] / "golden" / "logd"
HEADER = FrameHeader(
    base_offset=2**40 + 1,
    leader_epoch=7,
    record_count=6,
    last_offset_delta=5,
    body_length=64,
    body_crc=0xDEADBEEF,
    first_timestamp_ns=-5,
    max_timestamp_ns=1_700_000_000_000_000_000,
    schema_version=1,
    producer_id=bytes(range(16)),
    producer_sequence=2**64 - 1,
)
COMPACTED = replace(HEADER, record_count=3, compacted=True)
EMPTY = replace(
    COMPACTED, record_count=0, first_timestamp_ns=NO_TIMESTAMP, max_timestamp_ns=NO_TIMESTAMP
)
headers = st.builds(
    lambda count, gap, rewritten, **fields: FrameHeader(
        record_count=count,
        last_offset_delta=count - 1 + gap,
        compacted=rewritten or gap > 0,
        **fields,
    ),
    count=st.integers(1, 2**31),
    gap=st.integers(0, 2**31 - 1),
    rewritten=st.booleans(),
    base_offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(0, 2**63 - 1),
    body_length=st.integers(1, BODY_SIZE_MAX // 8).map(lambda words: words * 8),
    body_crc=st.integers(0, 2**32 - 1),
    first_timestamp_ns=st.integers(-(2**63), 2**63 - 1),
    max_timestamp_ns=st.integers(-(2**63), 2**63 - 1),
    schema_version=st.integers(0, 255),
    producer_id=st.binary(min_size=16, max_size=16),
    producer_sequence=st.integers(0, 2**64 - 1),
)


@pytest.mark.parametrize(
    ("data", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA)]
)
def test_crc32c_is_the_one_of_rfc_3720(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc
    assert crc32c(memoryview(data)) == crc


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("frame-header-1-dense.bin", HEADER),
        ("frame-header-1-compacted.bin", COMPACTED),
        ("frame-header-1-empty.bin", EMPTY),
    ],
)
def test_header_of_version_1_keeps_its_bytes(name: str, header: FrameHeader) -> None:
    golden = (GOLDEN / name).read_bytes()
    assert encode_header(header) == golden
    assert decode_header(golden) == header


def test_header_with_missing_records_that_does_not_say_why_is_refused() -> None:
    """No writer ever made one: before compaction, offset deltas were checked to be dense."""
    golden = (GOLDEN / "frame-header-1.bin").read_bytes()
    assert encode_header(replace(COMPACTED, compacted=False)) == golden
    with pytest.raises(CorruptError, match="out of range"):
        decode_header(golden)


@pytest.mark.parametrize(("position", "value"), [(6, 8), (7, 128), (44, 1), (47, 1)])
def test_header_with_an_unknown_flag_or_reserved_byte_is_refused(position: int, value: int) -> None:
    later = bytearray(encode_header(HEADER))
    later[position] |= value
    assert version_not_known(bytes(later)) == "", "without its CRC it is damage"
    later[8:12] = crc32c(bytes(later[:8] + later[12:HEADER_SIZE])).to_bytes(4, "little")
    with pytest.raises(CorruptError, match=r"flags .* are not known"):
        decode_header(bytes(later))
    assert version_not_known(bytes(later)).startswith("frame flags")
    assert version_not_known(encode_header(HEADER)) == ""


@given(headers)
def test_header_round_trips(header: FrameHeader) -> None:
    assert decode_header(encode_header(header)) == header


def test_header_knows_its_ends() -> None:
    assert (HEADER.last_offset, HEADER.next_offset) == (2**40 + 6, 2**40 + 7)
    assert HEADER.frame_length == HEADER_SIZE + 64


def test_header_is_placed_without_touching_the_rest() -> None:
    placed = HEADER.at(base_offset=9, leader_epoch=2)
    assert placed == replace(HEADER, base_offset=9, leader_epoch=2)


def test_header_ignores_what_follows() -> None:
    assert decode_header(memoryview(encode_header(HEADER) + b"body")) == HEADER


def test_every_flipped_bit_of_a_header_is_found() -> None:
    good = encode_header(HEADER)
    for bit in range(HEADER_SIZE * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            decode_header(bytes(bad))


def test_every_short_header_is_found() -> None:
    good = encode_header(HEADER)
    for length in range(HEADER_SIZE):
        with pytest.raises(CorruptError, match=f"here: {length} bytes"):
            decode_header(good[:length], where="here")


@pytest.mark.parametrize(
    ("position", "data", "message"),
    [(0, b"X", "magic"), (4, b"\x02", "format version 2"), (8, b"\0\0\0\0", "header CRC")],
)
def test_header_errors_say_what_is_wrong(position: int, data: bytes, message: str) -> None:
    bad = bytearray(encode_header(HEADER))
    bad[position : position + len(data)] = data
    with pytest.raises(CorruptError, match=message):
        decode_header(bytes(bad))


@pytest.mark.parametrize(
    "change",
    [
        {"base_offset": -1},
        {"record_count": 0},
        {"record_count": 5},
        {"record_count": 7},
        {"record_count": 7, "compacted": True},
        {"body_length": 0},
        {"body_length": 63},
        {"body_length": BODY_SIZE_MAX + 8},
    ],
    ids=str,
)
def test_header_with_a_field_out_of_range_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(CorruptError, match="out of range"):
        decode_header(encode_header(replace(HEADER, **change)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_header(b"PNSF\x01" + data)


def test_body_is_checked() -> None:
    body = bytes(range(64))
    header = replace(HEADER, body_crc=crc32c(body))
    check_body(header, body)
    check_body(header, memoryview(body))
    with pytest.raises(CorruptError, match="63 bytes, not 64"):
        check_body(header, body[:-1])
    for bit in range(64 * 8):
        bad = bytearray(body)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError, match="body CRC"):
            check_body(header, bytes(bad), where="file at 5")


def join(*frames: tuple[FrameHeader, bytes]) -> bytes:
    return b"".join(encode_header(header) + body for header, body in frames)


def test_frames_are_parsed_from_bytes_as_they_were_put_together() -> None:
    frames = [make_frame(5, b"one", records=3), make_frame(8, b"two" * 100)]
    assert parse_frames(join(*frames)) == frames
    assert parse_frames(memoryview(join(*frames))) == frames
    assert parse_frames(b"") == []


@given(st.data())
def test_damaged_frames_are_never_parsed(data: st.DataObject) -> None:
    frames = [make_frame(5, b"one", records=3), make_frame(8, b"two" * 100)]
    sound = join(*frames)
    if data.draw(st.booleans()):
        position = data.draw(st.integers(0, len(sound) - 1))
        change = data.draw(st.integers(1, 255))
        bad = sound[:position] + bytes([sound[position] ^ change]) + sound[position + 1 :]
    else:
        bad = sound[: data.draw(st.integers(1, len(sound) - 1))]
        if bad == join(frames[0]):
            return
    with pytest.raises(CorruptError, match="peer at"):
        parse_frames(bad, where="peer")


def test_frames_that_do_not_follow_one_another_are_refused() -> None:
    with pytest.raises(CorruptError, match="begins at offset 9, not at 8"):
        parse_frames(join(make_frame(5, b"one", records=3), make_frame(9, b"two")))
