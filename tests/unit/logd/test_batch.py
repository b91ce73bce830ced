from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError
from penstock.logd.format.batch import (
    SCHEMA,
    SCHEMA_VERSION,
    Compression,
    Record,
    build_batch,
    decode_body,
    describe_body,
    encode_body,
    stream_prefix,
)
from penstock.logd.format.frame import check_body, decode_header, encode_header

GOLDEN = Path(__file__).parents[2] / "golden" / "logd"
RECORDS = [
    Record(
        "telemetry.logs.checkout",
        b'{"schema":"log/1.0"}',
        1_700_000_000_000_000_000,
        key=b"k",
        headers=(("Nats-Msg-Id", b"1"), ("x", b""), ("x", b"\xff")),
        reply="_INBOX.a",
    ),
    Record("telemetry.logs.ä", b"", -1),
    Record("t", None, 2**62),
]
COMPRESSIONS: list[Compression | None] = [None, "zstd", "lz4"]
int64s = st.integers(-(2**63), 2**63 - 1)
records = st.builds(
    Record,
    st.text(max_size=8),
    st.none() | st.binary(max_size=40),
    int64s,
    st.none() | st.binary(max_size=8),
    st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=4)), max_size=3).map(tuple),
    st.none() | st.text(max_size=8),
)


def records_of(batch: pa.RecordBatch) -> list[Record]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = {name: batch.column(name).to_pylist() for name in SCHEMA.names if name != "timestamp"}
    return [
        Record(
            columns["subject"][row],
            columns["value"][row],
            times[row],
            columns["key"][row],
            tuple(columns["headers"][row] or ()),
            columns["reply"][row],
        )
        for row in range(batch.num_rows)
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_golden_body_of_schema_1_is_read(compression: Compression | None) -> None:
    """Arrow may encode differently one day; it must go on reading these bytes."""
    body = (GOLDEN / f"body-1-{compression or 'plain'}.bin").read_bytes()
    batch = decode_body(body)
    assert batch.schema.equals(SCHEMA)
    assert records_of(batch) == RECORDS


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=6), st.sampled_from(COMPRESSIONS))
def test_batch_round_trips(some: list[Record], compression: Compression | None) -> None:
    batch = build_batch(some)
    body = encode_body(batch, compression=compression)
    assert len(body) % 8 == 0
    decoded = decode_body(body)
    assert records_of(decoded) == some
    assert decoded.column("offset_delta").to_pylist() == list(range(len(some)))


def test_header_describes_its_body() -> None:
    batch = build_batch(RECORDS)
    body = encode_body(batch, compression="zstd")
    header = describe_body(body, batch, producer_id=b"p" * 16, producer_sequence=9)
    assert (header.base_offset, header.leader_epoch) == (0, 0)
    assert (header.record_count, header.last_offset_delta) == (3, 2)
    assert (header.first_timestamp_ns, header.max_timestamp_ns) == (10**9 * 1_700_000_000, 2**62)
    assert (header.producer_id, header.producer_sequence) == (b"p" * 16, 9)
    assert header.schema_version == SCHEMA_VERSION
    check_body(header, body)
    assert decode_header(encode_header(header)) == header


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_prefix_and_bodies_are_an_arrow_stream(compression: Compression | None) -> None:
    bodies = [encode_body(build_batch([record]), compression=compression) for record in RECORDS]
    stream = pa.ipc.open_stream(b"".join([stream_prefix(), *bodies]))
    assert stream.schema.equals(SCHEMA)
    assert [records_of(batch) for batch in stream] == [[record] for record in RECORDS]


def test_batch_of_another_schema_is_not_encoded() -> None:
    with pytest.raises(AssertionError):
        encode_body(pa.RecordBatch.from_pydict({"value": [b"x"]}))


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 64, stream_prefix()], ids=range(4))
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError, match="not an Arrow batch"):
        decode_body(data, where="peer")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_harmed_bodies_decode_or_are_corrupt(compression: Compression | None) -> None:
    """The CRC finds rot; this is for a producer that sends rubbish with a good CRC."""
    random = Random(3)
    good = encode_body(build_batch(RECORDS * 5), compression=compression)
    for _ in range(1500):
        bad = bytearray(good)
        for _ in range(random.choice((1, 1, 2, 8))):
            bad[random.randrange(len(bad))] = random.randrange(256)
        try:
            batch = decode_body(bytes(bad[: random.choice((len(bad), random.randrange(len(bad))))]))
        except CorruptError:
            continue
        assert batch.schema.equals(SCHEMA)
