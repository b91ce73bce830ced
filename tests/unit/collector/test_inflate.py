"""Decompression within a bound."""

import gzip
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.collector.core.inflate import ExpandsTooFarError, gunzip, unzstd
from penstock.collector.errors import UndecodableError

Squeeze = Callable[[bytes], bytes]
BOTH = pytest.mark.parametrize(
    ("squeeze", "inflate"),
    [(gzip.compress, gunzip), (zstandard.compress, unzstd)],
    ids=["gzip", "zstd"],
)


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
