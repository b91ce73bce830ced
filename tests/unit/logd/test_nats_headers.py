import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.errors import CorruptError
from penstock.logd.format.headers import Pairs, format_headers, parse_headers

NAMES = st.text(string.ascii_letters + string.digits + "-_!#", min_size=1, max_size=20)
VALUES = st.binary(max_size=30).map(
    lambda value: value.replace(b"\r", b"").replace(b"\n", b"").strip(b" \t")
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=10).map(tuple))
def test_headers_round_trip(pairs: Pairs) -> None:
    assert parse_headers(format_headers(pairs), 99) == pairs


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: b"NATS/1.0\r\n" + tail))
def test_any_bytes_are_parsed_or_refused(block: bytes) -> None:
    with contextlib.suppress(CorruptError):
        parse_headers(block, 256)


def test_status_and_repeated_names_are_taken_as_they_are() -> None:
    block = b"NATS/1.0 503 No Responders\r\nA: 1\r\na:2\r\nA:  3 \r\n\r\n"
    assert parse_headers(block, 256) == (("A", b"1"), ("a", b"2"), ("A", b"3"))


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/2.0\r\n\r\n",
        b"NATS/1.0x\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n: v\r\n\r\n",
        b"NATS/1.0\r\na b: v\r\n\r\n",
        b"NATS/1.0\r\n" + b"a: b\r\n" * 300 + b"\r\n",
    ],
)
def test_malformed_blocks_are_refused(block: bytes) -> None:
    with pytest.raises(CorruptError):
        parse_headers(block, 256)
