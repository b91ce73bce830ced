import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.format.acks import Nack, PubAck, decode_ack, encode_ack
from penstock.logd.intake.turn import AckRun
from penstock.logd.partition.acks import stored_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "logd" / "acks-1.ndjson"
ACKS = [
    PubAck(stream="logs", offset=7, epoch=1),
    PubAck(stream="logs", offset=7, epoch=1, duplicate=True),
    PubAck(stream="traces", offset=1006, epoch=3, count=1000),
    PubAck(stream="logs", offset=-1, epoch=2, duplicate=True),
    PubAck(stream="logs", nack=Nack.WRONG_LAST_SEQUENCE, description="wrong last sequence: 5"),
    PubAck(stream="logs", nack=Nack.SEQUENCE_GAP, description="gap", sequence=41),
    PubAck(stream="logs", nack=Nack.BUSY, description="too much in flight"),
]


def test_acks_keep_their_bytes() -> None:
    lines = GOLDEN.read_bytes().splitlines()
    assert [encode_ack(ack) for ack in ACKS] == lines
    assert [decode_ack(line) for line in lines] == ACKS


@pytest.mark.parametrize("first", [0, 1, 7, 8, 9, 10, 98, 99, 2**40, 10**12 - 3])
def test_a_run_s_acks_are_those_of_its_messages_whatever_their_digits(first: int) -> None:
    replies = [b"_INBOX.%d" % number if number % 3 else b"" for number in range(120)]
    expected = []
    for offset, reply in enumerate(replies, first):
        body = encode_ack(PubAck(stream="a_b-1", offset=offset, epoch=3))
        expected += [b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body)] if reply else []
    assert stored_lines("a_b-1", 3, AckRun(first + 119, first, replies)) == expected


def test_sequence_counts_from_one_as_jetstream_does() -> None:
    body = json.loads(encode_ack(PubAck(stream="logs", offset=0, epoch=1)))
    assert body == {"stream": "logs", "seq": 1, "offset": 0, "epoch": 1}


@pytest.mark.parametrize("nack", list(Nack))
def test_refusal_has_the_shape_of_a_jetstream_error(nack: Nack) -> None:
    ack = PubAck(stream="s", nack=nack, description="why", sequence=0)
    body = json.loads(encode_ack(ack))
    assert body["error"] == {"code": nack.code, "err_code": nack.err_code, "description": "why"}
    assert decode_ack(encode_ack(ack)) == ack


def test_refusals_have_numbers_of_their_own() -> None:
    assert len({nack.err_code for nack in Nack}) == len(Nack)


def test_refusals_that_time_can_cure_may_be_retried() -> None:
    retryable = {Nack.STORAGE_FAILED, Nack.BUSY, Nack.SEQUENCE_GAP, Nack.UNKNOWN_PRODUCER}
    retryable |= {Nack.STREAM_FULL, Nack.NOT_ENOUGH_REPLICAS}
    assert {nack for nack in Nack if nack.retryable} == retryable


@given(
    st.text(max_size=20),
    st.integers(-1, 2**53),
    st.integers(0, 2**53),
    st.integers(1, 2**31),
    st.booleans(),
)
def test_ack_round_trips(stream: str, offset: int, epoch: int, count: int, duplicate: bool) -> None:
    ack = PubAck(stream=stream, offset=offset, epoch=epoch, count=count, duplicate=duplicate)
    assert decode_ack(encode_ack(ack)) == ack


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"stream":1}',
        b'{"stream":"s"}',
        b'{"stream":"s","offset":1}',
        b'{"stream":"s","offset":null,"epoch":1}',
        b'{"stream":"s","offset":"x","epoch":1}',
        b'{"stream":"s","offset":1,"epoch":1,"count":[]}',
        b'{"stream":"s","error":1}',
        b'{"stream":"s","error":{}}',
        b'{"stream":"s","error":{"err_code":[]}}',
        b'{"stream":"s","error":{"err_code":1}}',
        b'{"stream":"s","error":{"err_code":20002},"sequence":"x"}',
        b"\xff",
    ],
)
def test_other_answers_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_ack(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(
    st.fixed_dictionaries(
        {"stream": st.just("s")},
        optional=dict.fromkeys(("offset", "epoch", "count", "duplicate", "sequence"), json_values)
        | {"error": json_values | st.fixed_dictionaries({"err_code": json_values})},
    )
)
def test_any_json_is_an_ack_or_a_value_error(body: object) -> None:
    try:
        ack = decode_ack(json.dumps(body).encode())
    except ValueError:
        return
    assert isinstance(ack, PubAck)
