import contextlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.batch import Compression, Record, build_batch, encode_body
from penstock.logd.core.batch_check import describe_batch
from penstock.logd.core.body_size import decoded_size
from penstock.logd.envelope import BatchPayload
from penstock.logd.errors import CorruptError


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
    size = decoded_size(body(5000, compression))
    assert 50_000 <= size < 52_000


def test_a_batch_that_decodes_to_too_much_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(CorruptError, match="at most"):
        describe_batch(payload(body(8 * 1024 * 1024, "zstd")), "t.a")


def test_a_claim_of_terabytes_is_refused() -> None:
    sound = body(5000, "zstd")
    claim = struct.pack("<q", 50_000)
    assert sound.count(claim) == 1
    with pytest.raises(CorruptError, match="claims"):
        describe_batch(payload(sound.replace(claim, struct.pack("<q", 2**45))), "t.a")


@given(st.binary(max_size=300))
def test_any_bytes_are_measured_or_refused(data: bytes) -> None:
    with contextlib.suppress(CorruptError):
        decoded_size(data)


@pytest.mark.parametrize("seed", range(300))
def test_a_batch_with_flipped_bytes_is_described_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(body(200, rng.choice([None, "zstd", "lz4"])))
    for _ in range(rng.randrange(1, 5)):
        data[rng.randrange(min(len(data), 600))] = rng.randrange(256)
    with contextlib.suppress(CorruptError):
        describe_batch(payload(bytes(data)), "t.a")


def test_batch_with_a_record_of_another_subject_is_refused() -> None:
    with pytest.raises(CorruptError, match="another subject"):
        describe_batch(payload(body(8, None)), "t.b")
