"""Messages out of a byte stream, and side by side in one unit of the spool.

In a stream a delimiter ends them, or their length stands before them:

    newline          ``message LF``; a CR before it is cut off
    nul              ``message NUL``, as GELF over TCP
    octet_counted    ``LEN SP message``, LEN in decimal digits (RFC 6587, section 3.4.1)
    length_prefix    LEN as an unsigned integer of 1, 2 or 4 bytes, then the message

A message that a delimiter ends may be longer than allowed: its beginning is kept and marked, and
its rest is skipped. One whose length stands before it is not skipped, because the length may be
anything: the stream ends there with a `Fault`.

A unit holds messages octet-counted: ``LEN SP message`` back to back.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple, Protocol

from penstock.collector.errors import UndecodableError

Framing = Literal["newline", "nul", "octet_counted", "length_prefix"]
ByteOrder = Literal["big", "little"]
PADDING: Final = b"\r\n\0"
"""Bytes around a message of text that are no part of it."""


class Message(NamedTuple):
    """One message; `truncated` when `text` is only its beginning."""

    text: bytes
    truncated: bool = False


class Fault(NamedTuple):
    """Why a stream cannot be read further.

    Attributes:
        text: The reason, for the log.
        lost: Messages that are given up with it.
    """

    text: str
    lost: int = 0


class Cutter(Protocol):
    """Turns the stream of one connection into messages.

    Attributes:
        fault: Why nothing more can be read of the stream; None while it can.
    """

    fault: Fault | None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a message that has begun and not ended."""
        ...

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes; returns the messages that they complete."""
        ...

    def flush(self) -> Message | None:
        """Return the message that the connection's end cuts off; None when none has begun."""
        ...


class DelimitedCutter:
    """Messages that end with one byte; the last one may lack it.

    Args:
        delimiter: The byte.
        max_bytes: Longer messages are cut; their rest is skipped.
    """

    def __init__(self, delimiter: bytes, max_bytes: int) -> None:
        self.fault: Fault | None = None
        self._delimiter = delimiter
        self._max_bytes = max_bytes
        self._partial = bytearray()
        self._is_skipping = False

    @property
    def waiting_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes; returns the messages that they complete."""
        first, *others = data.split(self._delimiter)
        messages: list[Message] = []
        self._add(first)
        for part in others:
            if (message := self._end()) is not None:
                messages.append(message)
            self._add(part)
        return messages

    def flush(self) -> Message | None:
        return self._end()

    def _add(self, part: bytes) -> None:
        self._partial += part[: max(0, self._max_bytes + 2 - len(self._partial))]
        # A carriage return before a line's end is no part of it, and may stand beyond the bound.
        is_ended = len(self._partial) == self._max_bytes + 1 and self._partial.endswith(b"\r")
        if len(self._partial) > self._max_bytes and not (is_ended and self._delimiter == b"\n"):
            self._is_skipping = True

    def _end(self) -> Message | None:
        text, cut = bytes(self._partial), self._is_skipping
        self._partial.clear()
        self._is_skipping = False
        if cut:
            return Message(text[: self._max_bytes], truncated=True)
        text = text.strip(PADDING)
        return Message(text) if text else None


class CountedCutter:
    """Messages with their length before them.

    Args:
        head: Form of the length.
        max_bytes: A longer message ends the stream.
    """

    def __init__(self, head: "DecimalHead | BinaryHead", max_bytes: int) -> None:
        self.fault: Fault | None = None
        self._head = head
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def waiting_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes; returns the messages that they complete."""
        self._buffer += data
        messages: list[Message] = []
        at = self._head.skip(self._buffer, 0)
        while self.fault is None and (found := self._head.read(self._buffer, at)) is not None:
            length, begin = found
            if length < 0:
                self.fault = Fault(f"a message must begin with its length as {self._head.form}")
            elif length > self._max_bytes:
                text = f"a message of {length} bytes; up to {self._max_bytes} are allowed"
                self.fault = Fault(text, lost=1)
            elif len(self._buffer) < begin + length:
                break
            else:
                at = begin + length
                if length:
                    messages.append(Message(bytes(self._buffer[begin:at])))
                at = self._head.skip(self._buffer, at)
        del self._buffer[:at]
        if self.fault is not None:
            self._buffer.clear()
        return messages

    def flush(self) -> Message | None:
        found = self._head.read(self._buffer, 0)
        text = bytes(self._buffer[found[1] :]) if found is not None else b""
        self._buffer.clear()
        return Message(text, truncated=True) if text else None


_DECIMAL: Final = re.compile(rb"([0-9]{1,10}) ")
_PADDED: Final = re.compile(rb"[\r\n\0]+")
_MAYBE_DECIMAL: Final = re.compile(rb"[0-9]{0,10}\Z")


class DecimalHead:
    """A length in decimal digits and a blank; line ends between messages are skipped."""

    form = "decimal digits and a blank"

    def skip(self, data: bytearray, at: int) -> int:
        """Return where the padding before a length ends."""
        found = _PADDED.match(data, at)
        return at if found is None else found.end()

    def read(self, data: bytearray, at: int) -> tuple[int, int] | None:
        """Read the length that stands at `at`, and where the message begins.

        None: it is not there yet. A length of -1: it is none.
        """
        if (found := _DECIMAL.match(data, at)) is not None:
            return int(found[1]), found.end()
        return None if _MAYBE_DECIMAL.match(data, at) else (-1, at)


class BinaryHead:
    """A length as an unsigned integer.

    Args:
        size: Its bytes.
        order: Which of them comes first.
    """

    form = "an integer"

    def __init__(self, size: int, order: ByteOrder) -> None:
        self._size = size
        self._order: ByteOrder = order

    def skip(self, _data: bytearray, at: int) -> int:
        """Return `at`: any byte may begin a length."""
        return at

    def read(self, data: bytearray, at: int) -> tuple[int, int] | None:
        """Read the length that stands at `at`, and where the message begins; None: not yet."""
        begin = at + self._size
        if len(data) < begin:
            return None
        return int.from_bytes(data[at:begin], self._order), begin


def pack_messages(messages: Iterable[bytes]) -> bytes:
    """Messages as a unit holds them."""
    return b"".join(b"%d %b" % (len(message), message) for message in messages)


def messages_in(unit: bytes) -> Iterator[bytes]:
    """The messages of a unit.

    Raises:
        UndecodableError: It is none.
    """
    at = 0
    while at < len(unit):
        space = unit.find(b" ", at, at + 12)
        length = unit[at:space]
        if space < 0 or not length.isdigit() or space + 1 + int(length) > len(unit):
            raise UndecodableError("not a unit of messages")
        at = space + 1 + int(length)
        yield unit[space + 1 : at]
