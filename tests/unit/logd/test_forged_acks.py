"""What is no answer to a message does not say that it is stored."""

import pytest

from penstock.logd.format.acks import PubAck, encode_ack
from penstock.logd.format.envelope import TYPE_BATCH_ACK, encode_envelope
from penstock.logd.publisher.publisher import Plain, PublishBatch, PublishRetry

EXPECTED = {"Nats-Expected-Stream": "orders"}
PLAIN = Plain(subject="orders.a", value=b"v", headers=EXPECTED)
BATCH = PublishBatch(
    subject="orders.a", body=b"", count=3, producer_id=b"p", previous=0, sequence=1,
    headers=EXPECTED,
)  # fmt: skip


def answer(
    message: Plain | PublishBatch, *, stream: str = "orders", count: int
) -> PubAck | PublishRetry:
    body = encode_ack(PubAck(stream=stream, offset=7, epoch=1, count=count))
    return message.read(body if message is PLAIN else encode_envelope(TYPE_BATCH_ACK, body))


@pytest.mark.parametrize(("message", "count"), [(PLAIN, 1), (BATCH, 3)])
def test_only_the_stream_that_was_meant_says_that_it_stored(
    message: Plain | PublishBatch, count: int
) -> None:
    assert isinstance(answer(message, count=count), PubAck)
    assert isinstance(answer(message, stream="other", count=count), PublishRetry)


@pytest.mark.parametrize(("message", "count"), [(PLAIN, 2), (BATCH, 1), (BATCH, 4), (BATCH, 0)])
def test_an_ack_of_more_or_fewer_records_is_another_messages(
    message: Plain | PublishBatch, count: int
) -> None:
    found = answer(message, count=count)
    assert isinstance(found, PublishRetry)
    assert "not about these" in str(found.error)


def test_without_a_stream_that_is_meant_any_may_answer() -> None:
    body = encode_ack(PubAck(stream="other", offset=7, epoch=1))
    assert isinstance(Plain(subject="a", value=b"", headers={}).read(body), PubAck)


@pytest.mark.parametrize("data", [b"", b"+OK", b"{}", b'{"stream":"orders"}', b"\xff", b"[]"])
def test_what_is_no_ack_at_all_is_asked_for_again(data: bytes) -> None:
    for message in (PLAIN, BATCH):
        assert isinstance(message.read(data), PublishRetry)
