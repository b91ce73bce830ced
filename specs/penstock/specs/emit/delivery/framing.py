r"""What an emitter and its collector say to each other over a Unix stream socket.

Both directions carry frames: a length, unsigned 32-bit big-endian, then that many bytes.

    emitter to collector, one batch a frame:
        {"batch":1,"sender":"<its id>","seq":7,"count":2,"resource":{...},
         "dropped":{"log":{"queue_full":3}},"codec":"none"}\n
        <record line>\n<record line>

    collector to emitter:
        {"ack":7}                                   the batch is durable
        {"nack":7,"reason":"...","retry":true}      it was not taken

``sender`` is new with every emitter, also when its ``service.instance.id`` is not. ``seq`` counts a
sender's batches from 1 without gaps and stays the same when a batch is sent again.
``dropped`` counts since the sender started. Record lines leave ``resource`` out when it is the
header's. Version 1; the length prefix and the keys shown may never change.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.specs import clock
from penstock.specs.emit.delivery.core import Acked, Nacked
from penstock.specs.errors import SpecError
from penstock.specs.limits import KIB

BATCH_VERSION: Final = 1
ANSWER_BYTES_MAX: Final = 64 * KIB
_LENGTH: Final = struct.Struct(">I")


class RemoteProtocolError(SpecError):
    """The collector sent something that is not an answer; the connection must be given up."""


def encode_batch(
    sender: str,
    sequence: int,
    lines: Sequence[bytes],
    resource_json: bytes,
    dropped: Mapping[str, Mapping[str, int]],
) -> bytes:
    """One batch as a frame."""
    header = (
        b'{"batch":%d,"sender":%b,"seq":%d,"count":%d,"resource":%b,"dropped":%b,"codec":"none"}'
        % (
            BATCH_VERSION,
            json.dumps(sender).encode(),
            sequence,
            len(lines),
            resource_json,
            json.dumps(dropped, separators=(",", ":")).encode(),
        )
    )
    body = b"\n".join((header, *lines))
    return _LENGTH.pack(len(body)) + body


class AnswerReader:
    """Cuts the collector's bytes into answers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Acked | Nacked]:
        """Add bytes; returns the answers that they complete.

        Raises:
            RemoteProtocolError: Not an answer, or one longer than any answer can be.
        """
        self._buffer += data
        answers: list[Acked | Nacked] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > ANSWER_BYTES_MAX:
                raise RemoteProtocolError("answer too long")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            answers.append(_answer(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return answers


def _answer(body: bytes) -> Acked | Nacked:
    try:
        message: Any = json.loads(body)
    except ValueError:
        raise RemoteProtocolError("answer is not JSON") from None
    if isinstance(message, dict):
        ack, nack = message.get("ack"), message.get("nack")
        if isinstance(ack, int):
            return Acked(ack)
        if isinstance(nack, int):
            return Nacked(nack, retry=message.get("retry") is True, jitter=clock.jitter())
    raise RemoteProtocolError("neither ack nor nack")
