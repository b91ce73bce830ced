"""Graylog Extended Log Format: its chunks and compression over UDP, and its fields.

From Graylog's "GELF Payload Specification" 1.1. A chunk is ``1e 0f``, a message id of 8 bytes, its
number and the number of chunks (a byte each, 128 at most), then data; the data of all chunks in
their order is the message. A message is a JSON object, plain or compressed by gzip or zlib.

    short_message    the record's body
    timestamp        its time, in seconds since 1970
    level            its severity, as syslog numbers them
    host             `host.name` of its resource
    _name            the attribute `name`; it keeps the underscore where the message has both
    others           attributes under their names
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.collector.decode.lines import read_object
from penstock.collector.decode.severity import SYSLOG
from penstock.collector.decompression import gunzip, undeflate
from penstock.collector.errors import UndecodableError

_CHUNK: Final = b"\x1e\x0f"
_HEAD_BYTES: Final = 12
MAX_CHUNKS: Final = 128
"""Chunks of one message, by the specification."""
_GZIP: Final = b"\x1f\x8b"
_VERSIONS: Final = (None, "1.0", "1.1", 1.0, 1.1)
"""Versions that say nothing more of a message."""
_OWN: Final = ("version", "host", "short_message", "timestamp", "level")
_CHUNK_OVERHEAD_BYTES: Final = 128
"""Bytes that holding a chunk costs besides its data."""


def is_chunk(datagram: bytes) -> bool:
    """Return whether a datagram is a part of a message."""
    return datagram.startswith(_CHUNK)


def is_compressed(message: bytes) -> bool:
    """Return whether a message begins as gzip or zlib data does; JSON cannot begin so."""
    if message.startswith(_GZIP):
        return True
    return message[:1] == b"\x78" and int.from_bytes(message[:2], "big") % 31 == 0


@dataclass(slots=True)
class _Pending:
    """A message that lacks chunks.

    Attributes:
        parts: The data of the chunks by their numbers.
        until_s: Time after which it is given up.
        size: Bytes that it takes.
    """

    count: int
    until_s: float
    parts: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


class ChunkBuffer:
    """Puts chunks together; bounded in messages, bytes and time.

    Args:
        max_messages: Messages that may lack chunks at once; beyond it the oldest is given up.
        max_bytes: Bytes of them all; likewise.
        timeout_s: Seconds from a message's first chunk to its last.

    Attributes:
        size: Bytes held.
        lost: Number of messages that were given up, by reason, since they were taken out.
        ignored: Number of chunks that were no part of a message: malformed, repeated, or late.
    """

    def __init__(self, *, max_messages: int, max_bytes: int, timeout_s: float) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._pending: OrderedDict[tuple[str, bytes], _Pending] = OrderedDict()
        self._ended: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self.size = 0
        self.lost: Counter[str] = Counter()
        self.ignored = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, chunk: bytes, peer: str, now_s: float) -> bytes | None:
        """Take a chunk; returns the message if it is whole now.

        Args:
            chunk: The datagram.
            peer: Address of its sender, whose ids tell its messages apart.
            now_s: Monotonic time.
        """
        self.expire(now_s)
        if len(chunk) < _HEAD_BYTES:
            self.ignored += 1
            return None
        number, count = chunk[10], chunk[11]
        if not number < count <= MAX_CHUNKS:
            self.ignored += 1
            return None
        key = peer, chunk[2:10]
        pending = self._pending.get(key)
        if pending is None and key in self._ended:
            self.ignored += 1  # of a message that was whole, or counted as lost
            return None
        if pending is None:
            pending = self._pending[key] = _Pending(count, now_s + self._timeout_s)
        if number in pending.parts or count != pending.count:
            self.ignored += 1
            return None
        pending.parts[number] = chunk[_HEAD_BYTES:]
        self._resize(pending, len(chunk) + _CHUNK_OVERHEAD_BYTES)
        if len(pending.parts) == count:
            self._take(key, now_s)
            return b"".join(pending.parts[index] for index in range(count))
        while len(self._pending) > self._max_messages or self.size > self._max_bytes:
            self.drop_oldest("chunk_buffer_full", now_s)
        return None

    def expire(self, now_s: float) -> None:
        """Give up the messages whose time is over."""
        while self._pending and next(iter(self._pending.values())).until_s <= now_s:
            self.drop_oldest("chunks_missing", now_s)
        while self._ended and next(iter(self._ended.values())) <= now_s:
            self._ended.popitem(last=False)

    def drop_oldest(self, reason: str, now_s: float) -> None:
        """Give up the message whose first chunk came first."""
        self._take(next(iter(self._pending)), now_s)
        self.lost[reason] += 1

    def _resize(self, pending: _Pending, more: int) -> None:
        pending.size += more
        self.size += more

    def _take(self, key: tuple[str, bytes], now_s: float) -> None:
        """Remove a message; its id is known for a while, as late chunks of it begin no other."""
        self.size -= self._pending.pop(key).size
        self._ended[key] = now_s + self._timeout_s
        self._ended.move_to_end(key)
        if len(self._ended) > self._max_messages:
            self._ended.popitem(last=False)


class GelfMessage(NamedTuple):
    """The parts of a message.

    Attributes:
        text: The short message.
        level: Name of its level, or what stands in its place; empty: there is none.
        time: Its timestamp as it is written; None: there is none.
        is_known_version: Whether it is of a version that is read here, or names none.
    """

    text: str
    host: str
    level: str
    time: Any
    attributes: dict[str, Any]
    is_known_version: bool


def inflate(message: bytes, max_bytes: int) -> bytes:
    """A message without its compression.

    Raises:
        UndecodableError: It is not what its beginning says, or becomes more than `max_bytes`.
    """
    if not is_compressed(message):
        return message
    unpack = gunzip if message.startswith(_GZIP) else undeflate
    return unpack(message, max_bytes)


def read_gelf(message: bytes) -> tuple[GelfMessage, bool]:
    """A message, and whether a strict reader of JSON would have refused it.

    Raises:
        UndecodableError: It is none.
    """
    fields, is_repaired = read_object(message)
    if fields is None:
        raise UndecodableError("gelf: the message is no JSON object")
    text = fields.get("short_message")
    if not isinstance(text, str):
        raise UndecodableError("gelf: `short_message` is missing, or no text")
    host = fields.get("host")
    return GelfMessage(
        text,
        host if isinstance(host, str) else "",
        _level(fields.get("level")),
        fields.get("timestamp"),
        _attributes(fields),
        fields.get("version") in _VERSIONS,
    ), is_repaired


def _level(value: Any) -> str:
    if value is None:
        return ""
    found = SYSLOG(value) if isinstance(value, (int, str)) else None
    return str(value)[:64] if found is None else found[1]


def _attributes(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if key in _OWN:
            continue
        name = key[1:] if len(key) > 1 and key.startswith("_") else key
        found[key if name in fields and name != key else name] = value
    return found
