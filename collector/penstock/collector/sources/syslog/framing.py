"""Syslog messages out of a byte stream (RFC 6587), and kept side by side in one unit.

Each frame says for itself how it ends. ``LEN SP <`` opens an octet-counted one; anything else runs
to a newline or NUL. A count that is none is therefore text, and a sender may even mix the two. So
is one of more than seven digits: no message is that long, and what it claims, the messages of
hours, would be skipped.

A unit of the spool holds messages octet-counted: ``LEN SP message`` back to back.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.collector.errors import UndecodableError

_COUNTED: Final = re.compile(rb"([1-9][0-9]{0,6}) <")
_MAYBE_COUNTED: Final = re.compile(rb"[1-9][0-9]{0,6}( ?)\Z")
_ENDS: Final = re.compile(rb"[\n\0]")
_PADDING: Final = b"\r\n\0"


class SyslogMessage(NamedTuple):
    """One message; `truncated` when `text` is only its beginning."""

    text: bytes
    truncated: bool = False


class SyslogCutter:
    """Turns a stream into messages.

    Args:
        bytes_max: Longer messages are cut; their rest is skipped.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._skip_bytes = 0
        self._skip_line = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a message that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[SyslogMessage]:
        """Add bytes; returns the messages that they complete."""
        self._buffer += data
        messages: list[SyslogMessage] = []
        at = self._take_counted(self._skip(0), messages)
        while True:
            at = self._skip(at)
            found = self._next(at)
            if found is None:
                break
            message, at = found
            if message.text:
                messages.append(message)
        del self._buffer[:at]
        return messages

    def flush(self) -> SyslogMessage | None:
        """Return what the connection's end left without a line end, as a message, if anything."""
        text = bytes(self._buffer)
        self._buffer.clear()
        counted = _COUNTED.match(text)
        if counted is not None:
            return SyslogMessage(text[counted.end() - 1 :], truncated=True)
        text = text.strip(_PADDING)
        return SyslogMessage(text) if text else None

    def _take_counted(self, at: int, messages: list[SyslogMessage]) -> int:
        """Take whole octet-counted messages that follow one another; return where they end."""
        data, most = bytes(self._buffer), self._bytes_max
        while (counted := _COUNTED.match(data, at)) is not None:
            begin = counted.end() - 1
            end = begin + int(counted[1])
            if end > len(data) or end - begin > most:
                break
            messages.append(SyslogMessage(data[begin:end].rstrip(_PADDING)))
            at = end
        return at

    def _skip(self, at: int) -> int:
        """Return where the next message begins."""
        if self._skip_line:
            end = _ENDS.search(self._buffer, at)
            if end is None:
                return len(self._buffer)
            self._skip_line, at = False, end.end()
        skipped = min(self._skip_bytes, len(self._buffer) - at)
        self._skip_bytes -= skipped
        at += skipped
        if self._skip_bytes == 0:
            while at < len(self._buffer) and self._buffer[at] in _PADDING:
                at += 1
        return at

    def _next(self, at: int) -> tuple[SyslogMessage, int] | None:
        """The message that begins at `at`, and where it ends; None when it is not whole."""
        if at == len(self._buffer) or _MAYBE_COUNTED.match(self._buffer, at):
            return None
        counted = _COUNTED.match(self._buffer, at)
        if counted is not None:
            return self._counted(int(counted[1]), counted.end() - 1)
        end = _ENDS.search(self._buffer, at)
        stop = len(self._buffer) if end is None else end.start()
        if stop - at > self._bytes_max:
            self._skip_line = end is None
            cut = SyslogMessage(bytes(self._buffer[at : at + self._bytes_max]), truncated=True)
            return cut, stop
        if end is None:
            return None
        return SyslogMessage(bytes(self._buffer[at:stop]).rstrip(_PADDING)), end.end()

    def _counted(self, length: int, begin: int) -> tuple[SyslogMessage, int] | None:
        there = len(self._buffer) - begin
        if length > self._bytes_max and there >= self._bytes_max:
            cut = bytes(self._buffer[begin : begin + self._bytes_max])
            self._skip_bytes = length - self._bytes_max
            return SyslogMessage(cut, truncated=True), begin + self._bytes_max
        if there < length:
            return None
        text = bytes(self._buffer[begin : begin + length])
        return SyslogMessage(text.rstrip(_PADDING)), begin + length


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
            raise UndecodableError("not a unit of syslog messages")
        at = space + 1 + int(length)
        yield unit[space + 1 : at]
