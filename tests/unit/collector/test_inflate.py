"""Decompression within a bound."""

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.decompression import (
    ExpandsTooFarError,
    gunzip,
    undeflate,
    unlz4,
    unsnappy,
    unzstd,
)
from penstock.collector.errors import UndecodableError

Squeeze = Callable[[bytes], bytes]
BOTH = pytest.mark.parametrize(
    ("squeeze", "inflate"),
    [(gzip.compress, gunzip), (zstandard.compress, unzstd)],
    ids=["gzip", "zstd"],
)


PLAIN = b"penstock " * 30
PACKED = {
    # As github.com/golang/snappy 1.0 and github.com/pierrec/lz4 4.1 write it.
    "snappy framed": "ff060000734e61507059001e0000483763c88e022070656e73746f636b20fe0900fe0900fe09"
    "00fe09000509",
    "snappy": "8e022070656e73746f636b20fe0900fe0900fe0900fe09000509",
    "lz4": "04224d186470b91e0000009f70656e73746f636b200900e100fc00d06f636b2070656e73746f636b200000"
    "0000ea3fce46",
    "deflate": zlib.compress(PLAIN).hex(),
    "deflate without zlib's frame": zlib.compress(PLAIN)[2:-4].hex(),
}


@pytest.mark.parametrize("name", PACKED)
def test_what_others_pack_is_read_within_the_bound(name: str) -> None:
    inflate = {"snappy": unsnappy, "lz4": unlz4, "deflate": undeflate}[name.split(maxsplit=1)[0]]
    packed = bytes.fromhex(PACKED[name])
    assert inflate(packed, len(PLAIN)) == PLAIN
    assert inflate(b"", 0) == b""
    with pytest.raises(ExpandsTooFarError, match=f"more than {len(PLAIN) - 1} bytes"):
        inflate(packed, len(PLAIN) - 1)
    for bad in (packed[:-1], b"neither of them", packed[:7]):
        with pytest.raises(UndecodableError):
            inflate(bad, 1000)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for inflate in (undeflate, unlz4, unsnappy):
        with suppress(UndecodableError):
            inflate(b"\xff\x06\x00\x00sNaPpY" + data, 1000)
            inflate(data, 1000)


@BOTH
@given(parts=st.lists(st.binary(max_size=20_000), max_size=5))
def test_all_members_are_read(
    squeeze: Squeeze, inflate: Callable[[bytes, int], bytes], parts: list[bytes]
) -> None:
    whole = b"".join(parts)
    assert inflate(b"".join(map(squeeze, parts)), len(whole)) == whole


@BOTH
def test_a_bomb_is_refused_before_it_is_whole(
    squeeze: Squeeze, inflate: Callable[[bytes, int], bytes]
) -> None:
    with pytest.raises(ExpandsTooFarError, match="more than 1000 bytes"):
        inflate(squeeze(bytes(50_000_000)), 1000)


@BOTH
def test_many_tiny_members_cost_no_more_than_their_bytes(
    squeeze: Squeeze, inflate: Callable[[bytes, int], bytes]
) -> None:
    assert inflate(squeeze(b"a") * 20_000, 20_000) == b"a" * 20_000


@BOTH
def test_what_ends_early_or_is_something_else_is_refused(
    squeeze: Squeeze, inflate: Callable[[bytes, int], bytes]
) -> None:
    for data in (squeeze(b"abc" * 100)[:-3], b"neither", squeeze(b"a") + b"rest"):
        with pytest.raises(UndecodableError):
            inflate(data, 1000)
