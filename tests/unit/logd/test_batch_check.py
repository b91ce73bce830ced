import contextlib
import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError
from penstock.logd.format.batch import SCHEMA, Compression, Record, build_batch, encode_body
from penstock.logd.format.body_claims import read_claims
from penstock.logd.format.envelope import BatchPayload
from penstock.logd.intake.batch_check import describe_batch
from penstock.logd.metadata.streams import StreamConfig

LIMITS = StreamConfig(name="logs", subject="t.>")


def body(size: int, compression: Compression | None) -> bytes:
    records = [Record("t.a", bytes(size), 1, headers=(("a", b"b"),)) for _ in range(10)]
    return encode_body(build_batch(records), compression=compression)


def payload(data: bytes, count: int = 10) -> BatchPayload:
    return BatchPayload(
        schema_version=1,
        record_count=count,
        producer_id=b"p" * 16,
        previous_sequence=0,
        sequence=1,
        body=data,
    )


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_size_is_that_of_the_decoded_buffers(compression: Compression | None) -> None:
    size = read_claims(body(5000, compression)).decoded_bytes
    assert 50_000 <= size < 52_000


def test_a_batch_that_decodes_to_too_much_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(CorruptError, match="at most"):
        describe_batch(payload(body(8 * 1024 * 1024, "zstd")), "t.a", LIMITS)


def test_a_claim_of_terabytes_is_refused() -> None:
    sound = body(5000, "zstd")
    claim = struct.pack("<q", 50_000)
    assert sound.count(claim) == 1
    with pytest.raises(CorruptError, match="claims"):
        describe_batch(payload(sound.replace(claim, struct.pack("<q", 2**45))), "t.a", LIMITS)


@given(st.binary(max_size=300))
def test_any_bytes_are_measured_or_refused(data: bytes) -> None:
    with contextlib.suppress(CorruptError):
        read_claims(data)


@pytest.mark.parametrize("seed", range(300))
def test_a_batch_with_flipped_bytes_is_described_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(body(200, rng.choice([None, "zstd", "lz4"])))
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(min(len(data), 600))] = rng.randrange(256)
    try:
        described = describe_batch(payload(bytes(data)), "t.a", LIMITS)
    except CorruptError as error:
        assert str(error)  # noqa: PT017 - either is right
    else:
        assert described.body_length >= 0


def test_what_follows_the_message_in_a_body_is_refused() -> None:
    """To a reader of the log as one Arrow stream it would be the next message."""
    sound = body(8, None)
    for extra in (bytes(8), b"\xff\xff\xff\xff" + bytes(4), sound):
        with pytest.raises(CorruptError, match="as long as"):
            describe_batch(payload(sound + extra), "t.a", LIMITS)


def test_metadata_before_v5_is_refused_for_it_can_hide_a_compression() -> None:
    sound = bytearray(body(8, None))
    message = 8 + struct.unpack_from("<I", sound, 8)[0]
    vtable = message - struct.unpack_from("<i", sound, message)[0]
    version = message + struct.unpack_from("<H", sound, vtable + 4)[0]
    assert struct.unpack_from("<h", sound, version) == (4,)
    struct.pack_into("<h", sound, version, 3)
    with pytest.raises(CorruptError, match="V5"):
        describe_batch(payload(bytes(sound)), "t.a", LIMITS)


def records(**columns: object) -> bytes:
    """Three good records, some columns replaced."""
    batch = build_batch([Record("t.a", b"v", 1) for _ in range(3)])
    for name, values in columns.items():
        index = SCHEMA.get_field_index(name)
        batch = batch.set_column(index, SCHEMA.field(name), pa.array(values, SCHEMA.types[index]))
    return encode_body(batch)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"offset_delta": [0, 2, 3]}, "deltas"),
        ({"offset_delta": [-1, 0, 1]}, "deltas"),
        ({"offset_delta": [2, 1, 0]}, "deltas"),
        ({"offset_delta": [0, None, 2]}, "nulls"),
        ({"timestamp": [0, None, 2]}, "nulls"),
        ({"subject": ["t.a", None, "t.a"]}, "nulls"),
        ({"subject": ["t.a", "t.a", "t.b"]}, "another subject"),
        ({"key": [b"k", None, b""]}, "keys"),
        ({"key": [b"k", None, b"k" * 4097]}, "keys"),
    ],
    ids=str,
)
def test_columns_that_are_not_as_they_must_be_are_refused(
    columns: dict[str, object], said: str
) -> None:
    with pytest.raises(CorruptError, match=said):
        describe_batch(payload(records(**columns), 3), "t.a", LIMITS)


def test_text_that_is_not_utf8_is_refused() -> None:
    sound = records(reply=["good", "good", "good"])
    assert sound.count(b"goodgoodgood") == 1
    with pytest.raises(CorruptError, match="UTF"):
        describe_batch(payload(sound.replace(b"goodgood", b"good\xff\xfe__"), 3), "t.a", LIMITS)


def test_keys_tombstones_and_any_timestamp_are_taken() -> None:
    extremes = [-(2**63), 0, 2**63 - 1]
    sound = records(key=[b"k", None, b"l"], value=[None, b"", None], timestamp=extremes)
    header = describe_batch(payload(sound, 3), "t.a", LIMITS)
    assert (header.first_timestamp_ns, header.max_timestamp_ns) == (extremes[0], extremes[2])


def test_a_count_of_records_that_is_claimed_wrongly_is_refused() -> None:
    for count in (2, 4, 2**32 - 1):
        with pytest.raises(CorruptError, match="records"):
            describe_batch(payload(records(), count), "t.a", LIMITS)


def test_batch_with_a_record_of_another_subject_is_refused() -> None:
    with pytest.raises(CorruptError, match="another subject"):
        describe_batch(payload(body(8, None)), "t.b", LIMITS)
