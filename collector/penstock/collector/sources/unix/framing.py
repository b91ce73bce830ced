"""The framing between `penstock.specs` and the collector, the collector's side of it.

Both directions carry frames: a length, unsigned 32-bit big-endian, then that many bytes.

Client to collector, one batch a frame: a JSON header line, a newline, then record lines joined by
newlines; with codec ``zstd`` everything after the header line is one zstd frame.

    {"batch":1,"sender":"<its id>","seq":7,"count":2,"resource":{...},
     "dropped":{"log":{"queue_full":3}},
     "account":{"emitted":45,"acked":40,"queued":0,"spooled":0},"codec":"none"}

``account`` may be missing: then the sender is in no account of applications.

Collector to client: ``{"ack":7}`` once the batch is durable, or
``{"nack":7,"reason":"...","retry":true}``. After a nack that allows a retry the collector takes
nothing later of that sender on the connection; the client sends again from there on.
"""

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import (
    UNIT_RECORDS_MAX,
    UNIX_FRAME_BYTES_MAX,
    UNIX_HEADER_BYTES_MAX,
)
from penstock.collector.sources.unix.apps import SenderReport

BATCH_VERSION = 1
SERVICE_CHARACTERS_MAX: Final = 64
"""Characters of a service's name in the account of applications."""
_LENGTH = struct.Struct(">I")
_REASON: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of one batch.

    Attributes:
        sender: Identifies the sender's process; sequences are counted per sender.
        dropped: Records the sender itself dropped since it started, by kind and reason.
        account: What the sender says of all its records; None: it does not say it.
        body_at: Position of the record lines in the frame.
    """

    sender: str
    sequence: int
    count: int
    resource: Mapping[str, Any]
    dropped: Mapping[str, Mapping[str, int]]
    codec: str
    body_at: int
    account: SenderReport | None = None

    @property
    def service(self) -> str:
        """Name of the service; empty: the resource has none."""
        name = self.resource.get("service.name")
        return name[:SERVICE_CHARACTERS_MAX] if isinstance(name, str) else ""


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; returns the frames that they complete.

        Raises:
            RemoteProtocolError: A length is 0 or above the limit.
        """
        self._buffer += data
        frames: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if not 0 < length <= UNIX_FRAME_BYTES_MAX:
                raise RemoteProtocolError(
                    f"frame of {length} bytes; 1 to {UNIX_FRAME_BYTES_MAX} are allowed"
                )
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return frames


def decode_batch_header(frame: bytes) -> BatchHeader:
    """Read the header line of a batch.

    Raises:
        RemoteProtocolError: Not a batch of a version that is known, or a field is out of range.
    """
    end = frame.find(b"\n", 0, UNIX_HEADER_BYTES_MAX)
    if end < 0:
        if len(frame) > UNIX_HEADER_BYTES_MAX:
            raise RemoteProtocolError(f"no header line within {UNIX_HEADER_BYTES_MAX} bytes")
        end = len(frame)
    try:
        header = json.loads(frame[:end])
    except (ValueError, RecursionError):
        raise RemoteProtocolError("the header line is not JSON") from None
    if not isinstance(header, dict) or header.get("batch") != BATCH_VERSION:
        raise RemoteProtocolError("not a batch of version 1")
    try:
        return _read_header(header, min(end + 1, len(frame)))
    except RemoteProtocolError as error:
        sequence = header.get("seq")
        error.sequence = sequence if type(sequence) is int else None
        raise


def _read_header(header: dict[str, Any], body_at: int) -> BatchHeader:
    return BatchHeader(
        sender=_field(header, "sender", str),
        sequence=_number(header, "seq", 1, (1 << 63) - 1),
        count=_number(header, "count", 0, UNIT_RECORDS_MAX),
        resource=_resource(header.get("resource")),
        dropped=_dropped(header.get("dropped")),
        codec=_codec(header.get("codec", "none")),
        body_at=body_at,
        account=_account(header.get("account")),
    )


def _account(value: object) -> SenderReport | None:
    """Return a well-formed report: it is a sender's, and no data."""
    if not isinstance(value, dict):
        return None
    names = ("emitted", "acked", "queued", "spooled")
    found = [count for name in names if type(count := value.get(name)) is int]
    if len(found) < len(names) or not all(0 <= count < 1 << 63 for count in found):
        return None
    return SenderReport(*found)


def encode_ack(sequence: int) -> bytes:
    """The frame that says: durable."""
    return _frame({"ack": sequence})


def encode_nack(sequence: int, reason: str, *, retry: bool) -> bytes:
    """The frame that says: not taken, and whether sending again can help."""
    return _frame({"nack": sequence, "reason": reason, "retry": retry})


def _frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def _field(header: dict[str, Any], key: str, kind: type[str]) -> str:
    value = header.get(key)
    if not isinstance(value, kind) or not 0 < len(value) <= 256 or not _is_unicode(value):
        raise RemoteProtocolError(f"header field {key!r} must be text of 1 to 256 characters")
    return value


def _is_unicode(text: str) -> bool:
    """JSON's escapes can make lone surrogates, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(header: dict[str, Any], key: str, low: int, high: int) -> int:
    value = header.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RemoteProtocolError(f"header field {key!r} must be a number from {low} to {high}")
    return value


def _resource(value: object) -> Mapping[str, Any]:
    """Return a resource that can be stored; JSON's text and numbers have no bounds.

    Raises:
        RemoteProtocolError: It cannot be encoded.
    """
    if not isinstance(value, dict):
        return {}
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise RemoteProtocolError("header field 'resource' is not encodable") from None
    return value


def _codec(value: object) -> str:
    if value not in ("none", "zstd"):
        raise RemoteProtocolError("header field 'codec' must be none or zstd")
    return str(value)


def _dropped(value: object) -> dict[str, dict[str, int]]:
    """Return the well-formed counters: they are a sender's, and no data."""
    if not isinstance(value, dict):
        return {}
    return {
        kind: {why: n for why, n in reasons.items() if _is_count(why, n)}
        for kind, reasons in value.items()
        if isinstance(reasons, dict)
    }


def _is_count(reason: str, count: object) -> bool:
    """Return whether this can be a counter: its reason becomes a name in the status."""
    return type(count) is int and 0 <= count < 1 << 63 and _REASON.fullmatch(reason) is not None
