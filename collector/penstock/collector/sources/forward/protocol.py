"""Fluent forward protocol v1, the server's side: messages of a stream, and the handshake.

A connection carries msgpack values back to back, without framing. A message is an array; the type
of its second element tells the mode:

    Message                  [tag, time, record, option?]
    Forward                  [tag, [[time, record], ...], option?]
    PackedForward            [tag, bytes of [time, record] back to back, option?]
    CompressedPackedForward  the same, compressed with gzip or zstd (several members allowed)

`option` may hold ``chunk``: the sender wants ``{"ack": chunk}`` once the message is safe. A time is
an integer, a float or an EventTime: extension type 0 of two big-endian 32-bit numbers, seconds and
nanoseconds. A bare nil is a keepalive. Fluent Bit sends ``[[time, metadata], record]`` entries.

A text may come as msgpack's `str` or as its `bin`: Ruby packs a string of unknown encoding, as
Fluentd reads it from a file, as `bin`. Both are read as text, keys as well as values.

The handshake with a shared key:

    server  ["HELO", {"nonce": bytes, "auth": salt or "", "keepalive": true}]
    client  ["PING", its host name, its salt, digest of the key, user name, digest of the password]
    server  ["PONG", true, "", own host name, digest of the key], or
            ["PONG", false, reason, "", ""], and the connection ends

A digest is SHA-512 in hex: of the sender's salt, the sender's host name, the nonce and the shared
key; that of a password is of the auth salt, the user's name and the password.
"""

import hashlib
import hmac
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from penstock.collector.decompression import gunzip, unzstd
from penstock.collector.errors import RemoteProtocolError, UndecodableError
from penstock.collector.limits import (
    FORWARD_BAD_ENTRIES_MAX,
    FORWARD_MESSAGE_BYTES_MAX,
    UNIT_DECOMPRESSED_BYTES_MAX,
    UNIT_RECORDS_MAX,
)
from penstock.collector.sources.forward.fragments import Fragment, fragment_of
from penstock.specs.limits import DEPTH_MAX

_OPTIONS: Final = frozenset({"chunk", "compressed", "fluent_signal", "size"})
"""Options of a message; `size` is the number of its events, which are counted anyway."""
_NO_ENTRY: Final = "forward: an entry is not [time, record]"
_HOLD_BYTES: Final = frozenset({bytes, dict, list})
_TEXT_DEPTH_MAX: Final = DEPTH_MAX
"""Deeper values end as JSON text in one attribute, whatever they are."""
_EVENT_TIME: Final = struct.Struct(">II")
_MSGPACK_ERRORS: Final = (
    ValueError,
    TypeError,
    RecursionError,
    msgpack.exceptions.UnpackException,
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it came, counted but not decoded.

    Attributes:
        raw: Its bytes.
        count: Records in it, or 1 when its entries cannot be counted: what is undecodable is one
            record in quarantine.
        chunk: Chunk id to acknowledge; None when the sender wants no ack.
        fragment: Fragment of a line, when the record is one alone.
    """

    raw: bytes
    count: int
    chunk: bytes | str | None
    fragment: Fragment | None = None


class Event(NamedTuple):
    """One record of a message.

    Attributes:
        time_ns: None when the sender gave none.
        metadata: Metadata that Fluent Bit sends beside the record.
    """

    tag: str
    time_ns: int | None
    record: dict[Any, Any]
    metadata: dict[Any, Any]


@dataclass(frozen=True, slots=True)
class BadEntry:
    """An entry of a message that is no record; `raw` is a message of it alone."""

    raw: bytes
    reason: str


class MessageReader:
    """Cuts a byte stream into messages.

    What is complete is good, whatever comes behind it: an error is raised once that was returned,
    by `check` or by the next call.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._unpacker = _unpacker()
        self._cut = 0
        self._started = False
        self._error: RemoteProtocolError | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a message that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes; returns the messages that they complete.

        Raises:
            RemoteProtocolError: Not the protocol, or a message above the limit.
        """
        return self.read(self.cut(data))

    def read(self, values: list[bytes]) -> list[Message]:
        """Values as messages, up to one that is none.

        Raises:
            RemoteProtocolError: The first is none.
        """
        messages: list[Message] = []
        for value in values:
            try:
                found = read_message(value)
            except RemoteProtocolError as error:
                self._error = error
                break
            if found is not None:
                messages.append(found)
        if not messages:
            self.check()
        return messages

    def check(self) -> None:
        """Check that the stream can be read on.

        Raises:
            RemoteProtocolError: The bytes after the last returned message violate the protocol.
        """
        if self._error is not None:
            raise self._error

    def cut(self, data: bytes) -> list[bytes]:
        """Add bytes; returns the msgpack values that they complete, each as its bytes.

        Raises:
            RemoteProtocolError: Not msgpack, or a value above the limit.
        """
        self.check()
        if not self._started and data[:1] in (b"{", b"["):
            raise RemoteProtocolError("the JSON form of the forward protocol is not supported")
        self._started = True
        self._buffer += data
        values: list[bytes] = []
        at = 0
        try:
            self._unpacker.feed(data)
            while at < len(self._buffer):
                self._unpacker.skip()  # goes on where it had to stop for want of data
                end = self._unpacker.tell() - self._cut
                values.append(bytes(self._buffer[at:end]))
                at = end
        except msgpack.OutOfData:
            pass
        except _MSGPACK_ERRORS as error:
            self._error = RemoteProtocolError(f"not msgpack: {type(error).__name__}")
        del self._buffer[:at]
        self._cut += at
        if len(self._buffer) > FORWARD_MESSAGE_BYTES_MAX:
            self._error = RemoteProtocolError(f"message above {FORWARD_MESSAGE_BYTES_MAX} bytes")
        if not values:
            self.check()
        return values


def encode_ack(chunk: bytes | str) -> bytes:
    """The answer to a message that names a chunk."""
    packed: bytes = msgpack.packb({"ack": chunk}, unicode_errors="surrogateescape")
    return packed


def messages_in(unit: bytes) -> Iterator[bytes]:
    """The messages of a spooled unit, each as its bytes.

    Raises:
        UndecodableError: It is none.
    """
    unpacker = _unpacker()
    at = 0
    while at < len(unit):
        try:
            if at == 0:
                unpacker.feed(unit)
            unpacker.skip()
        except (*_MSGPACK_ERRORS, msgpack.OutOfData) as error:
            raise UndecodableError(f"forward: not a unit: {type(error).__name__}") from None
        end = unpacker.tell()
        yield unit[at:end]
        at = end


def decode_message(raw: bytes, notes: Counter[str] | None = None) -> list[Event | BadEntry]:
    """Read the records of a message; an entry that is none takes no other along.

    Args:
        raw: The message.
        notes: Counts options of the message and elements of its events that have no place.

    Raises:
        UndecodableError: With the reason; no record of the message can be trusted.
    """
    try:
        message = _unpack(raw)
        tag, option = _tag(message[0]), _option(message)
        _refuse_foreign(option.get("fluent_signal", 0))
        found, beyond = _events(tag, _entries(message, message[1]), raw)
    except UndecodableError:
        raise
    except (*_MSGPACK_ERRORS, IndexError, KeyError) as error:
        raise UndecodableError(f"forward: {type(error).__name__}: {error}"[:200]) from None
    if notes is not None:
        if not option.keys() <= _OPTIONS:
            notes["options_unknown"] += len(option.keys() - _OPTIONS)
        if beyond:
            notes["event_elements_dropped"] += beyond
    return found


def _refuse_foreign(signal: Any) -> None:
    """1 and 2 are Fluent Bit's own metrics and traces, in its own formats."""
    if signal != 0:
        raise UndecodableError(f"forward: fluent_signal {signal!r} is not logs"[:200])


def _entries(message: list[Any], entries: Any) -> Iterator[Any]:
    if isinstance(entries, list):
        yield from entries
    elif isinstance(entries, (bytes, str)):
        unpacker = _unpacker()
        unpacker.feed(_packed(message, entries))
        yield from unpacker
    else:
        yield message[1:3]


def _events(tag: str, entries: Iterator[Any], raw: bytes) -> tuple[list[Event | BadEntry], int]:
    """The events of a message, and the number of their elements that have no place."""
    found: list[Event | BadEntry] = []
    bad = beyond = 0
    for entry in entries:
        event = _event(tag, entry)
        if event is None:
            bad += 1
        elif len(entry) > 2 or entry[0].__class__ is list:
            beyond += _beyond(entry)
        if bad > FORWARD_BAD_ENTRIES_MAX:
            raise UndecodableError(_NO_ENTRY)
        found.append(event or BadEntry(_alone(tag, entry, raw), _NO_ENTRY))
    return found, beyond


def _beyond(entry: list[Any]) -> int:
    """Elements behind an event's record, behind its metadata, and metadata that are none."""
    found, head = len(entry) - 2, entry[0]
    if isinstance(head, list):
        found += max(0, len(head) - 2) + (len(head) > 1 and not isinstance(head[1], dict))
    return found


def _alone(tag: str, entry: Any, raw: bytes) -> bytes:
    """A message of one entry; the whole one when that nests too deep to be written again."""
    try:
        alone: bytes = msgpack.packb([tag, [entry]], unicode_errors="surrogateescape")
    except _MSGPACK_ERRORS:
        return raw
    return alone


def _event(tag: str, entry: Any) -> Event | None:
    if not isinstance(entry, list) or len(entry) < 2 or not isinstance(entry[1], dict):
        return None
    time, metadata = entry[0], {}
    if isinstance(time, list) and time:  # Fluent Bit: [time, metadata]
        metadata = time[1] if len(time) > 1 and isinstance(time[1], dict) else {}
        time = time[0]
    return Event(tag, _time_ns(time), _with_text(entry[1]), _with_text(metadata))


def _with_text(fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields with each `bin` as text; bytes that are no UTF-8 are kept as surrogates."""
    for key, value in fields.items():
        if key.__class__ is bytes or value.__class__ in _HOLD_BYTES:
            break
    else:
        return fields
    return {_as_text(key): _as_text(value, _TEXT_DEPTH_MAX) for key, value in fields.items()}


def _as_text(value: Any, depth: int = 0) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if depth and isinstance(value, dict):
        return {_as_text(key): _as_text(one, depth - 1) for key, one in value.items()}
    if depth and isinstance(value, list):
        return [_as_text(one, depth - 1) for one in value]
    return value


def _time_ns(time: Any) -> int | None:
    if isinstance(time, msgpack.ExtType) and time.code == 0 and len(time.data) == _EVENT_TIME.size:
        seconds, nanoseconds = _EVENT_TIME.unpack(time.data)
        return int(seconds) * 1_000_000_000 + int(nanoseconds) or None
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        return None
    if not 0 < time < 1 << 33:
        return None
    return int(time) * 1_000_000_000 + int((time % 1) * 1_000_000_000)


def read_message(raw: bytes) -> Message | None:
    """Count a message's records and find its chunk; None for a keepalive.

    Raises:
        RemoteProtocolError: It is no message.
    """
    if raw == b"\xc0":
        return None
    try:
        message = _unpack(raw)
    except _MSGPACK_ERRORS as error:
        raise RemoteProtocolError(f"not a forward message: {type(error).__name__}") from None
    if not isinstance(message, list) or not 2 <= len(message) <= 4:
        raise RemoteProtocolError("not a forward message: an array of 2 to 4 elements is expected")
    chunk = _option(message).get("chunk")
    return Message(
        raw,
        _count(message, message[1]),
        chunk if isinstance(chunk, (str, bytes)) else None,
        fragment_of(_as_text(message[2], 1)) if len(message) > 2 else None,
    )


def _option(message: list[Any]) -> dict[Any, Any]:
    """The message's last element, where that is no record."""
    at = 2 if isinstance(message[1], (list, bytes, str)) else 3
    if len(message) <= at or not isinstance(message[at], dict):
        return {}
    return {_as_text(key): value for key, value in message[at].items()}


def _count(message: list[Any], entries: Any) -> int:
    if isinstance(entries, list):
        return _bounded(len(entries))
    if not isinstance(entries, (bytes, str)):
        return 1
    try:
        unpacker = _unpacker()
        unpacker.feed(_packed(message, entries))
        count = 0
        while True:
            try:
                unpacker.skip()
            except msgpack.OutOfData:
                return count
            count = _bounded(count + 1)
    except (*_MSGPACK_ERRORS, UndecodableError):
        return 1


def _bounded(count: int) -> int:
    if count > UNIT_RECORDS_MAX:
        raise RemoteProtocolError(f"more than {UNIT_RECORDS_MAX} records in a message")
    return count


def _packed(message: list[Any], entries: bytes | str) -> bytes:
    data = entries.encode("utf-8", "surrogateescape") if isinstance(entries, str) else entries
    compressed = _as_text(_option(message).get("compressed")) or "text"
    if compressed == "text":
        return data
    if compressed == "gzip":
        return gunzip(data, UNIT_DECOMPRESSED_BYTES_MAX)
    if compressed == "zstd":
        return unzstd(data, UNIT_DECOMPRESSED_BYTES_MAX)
    raise UndecodableError(f"forward: compression {compressed!r} is not supported")


def _unpacker() -> Any:
    return msgpack.Unpacker(
        raw=False,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=UNIT_DECOMPRESSED_BYTES_MAX,
    )


def _unpack(raw: bytes) -> Any:
    return msgpack.unpackb(raw, raw=False, unicode_errors="surrogateescape", strict_map_key=False)


def _tag(value: Any) -> str:
    if not isinstance(value, (str, bytes)):
        raise UndecodableError("forward: the tag is not text")
    return _text(value)


def _text(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return data.decode("utf-8", "replace")


NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets that a sender must know.

    Attributes:
        users: Passwords by name; with none the shared key is enough.
    """

    shared_key: str
    users: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a PING; `refusal` is empty when the sender may go on."""

    frame: bytes
    refusal: str = ""


class Handshake:
    """One connection's handshake.

    Args:
        secrets: Secrets that the sender must know.
        host: Our name. Senders refuse one that is their own host's.
        nonce: `NONCE_BYTES` of randomness.
        auth_salt: Random bytes for the digest of passwords.
    """

    def __init__(self, secrets: Secrets, host: str, *, nonce: bytes, auth_salt: bytes) -> None:
        self._secrets = secrets
        self._host = host
        self._nonce = nonce
        self._auth_salt = auth_salt if secrets.users else b""

    def hello(self) -> bytes:
        """Return the server's first message."""
        options = {"nonce": self._nonce, "auth": self._auth_salt, "keepalive": True}
        return _pack(["HELO", options])

    def answer(self, ping: bytes) -> Pong:
        """Check the client's message, whatever it is."""
        fields = _fields(ping)
        if fields is None:
            return _refuse("a PING of six elements is expected")
        host, salt, digest, user, password_digest = fields
        key = self._secrets.shared_key.encode()
        if not hmac.compare_digest(digest, _digest(salt, host, self._nonce, key)):
            return _refuse("shared_key mismatch")
        if self._secrets.users:
            password = self._secrets.users.get(user.decode("utf-8", "replace"))
            right = _digest(self._auth_salt, user, (password or "").encode())
            # The comparison is made for an unknown user, too: its time must tell nothing.
            if not hmac.compare_digest(password_digest, right) or password is None:
                return _refuse("username/password mismatch")
        own = self._host.encode()
        proof = _digest(salt, own, self._nonce, key).decode()
        return Pong(_pack(["PONG", True, "", self._host, proof]))


def _fields(ping: bytes) -> list[bytes] | None:
    try:
        message = msgpack.unpackb(ping, raw=True)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
        return None
    if not isinstance(message, list) or len(message) != 6 or message[0] != b"PING":
        return None
    return message[1:] if all(isinstance(field, bytes) for field in message) else None


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha512(b"".join(parts)).hexdigest().encode()


def _refuse(reason: str) -> Pong:
    return Pong(_pack(["PONG", False, reason, "", ""]), reason)


def _pack(message: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(message)
    return packed
