"""The socket's frames: fixed bytes, and answers in any portions."""

import json
import struct

import pytest

from penstock.specs.emit.delivery.core import Acked, Nacked
from penstock.specs.emit.delivery.transport import (
    AnswerReader,
    RemoteProtocolError,
    Report,
    encode_batch,
)


def frame(message: object) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


def test_batch_has_these_bytes() -> None:
    report = Report({"log": {"queue_full": 3}}, emitted=45, acked=40, queued=1, spooled=2)
    lines = [b'{"a":1}', b'{"b":2}']
    found = encode_batch("id-1", 7, lines, b'{"service.name":"x"}', report)
    body = (
        b'{"batch":1,"sender":"id-1","seq":7,"count":2,"resource":{"service.name":"x"},'
        b'"dropped":{"log":{"queue_full":3}},'
        b'"account":{"emitted":45,"acked":40,"queued":1,"spooled":2},"codec":"none"}\n{"a":1}\n{"b":2}'
    )
    assert found == len(body).to_bytes(4, "big") + body


def test_answers_are_read_in_any_portions() -> None:
    stream = (
        frame({"ack": 1}) + frame({"nack": 2, "reason": "full", "retry": True}) + frame({"ack": 3})
    )
    for size in (1, 2, 3, 7, len(stream)):
        reader = AnswerReader()
        found = [
            a for at in range(0, len(stream), size) for a in reader.feed(stream[at : at + size])
        ]
        assert [answer.sequence for answer in found] == [1, 2, 3]
        assert isinstance(found[1], Nacked)
        assert found[1].retry
        assert found[2] == Acked(3)


@pytest.mark.parametrize(
    "data",
    [frame({"hello": 1}), frame([1]), frame({"ack": "1"}), b"\0\0\0\2{]", b"\xff\xff\xff\xff"],
)
def test_anything_else_breaks_the_protocol(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        AnswerReader().feed(data)
