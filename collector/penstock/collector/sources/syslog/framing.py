"""Syslog messages out of a byte stream (RFC 6587).

Each frame says for itself how it ends. ``LEN SP <`` opens an octet-counted one; anything else runs
to a newline or NUL. A count that is none is therefore text, and a sender may even mix the two. So
is one of more than seven digits: no message is that long, and what it claims, the messages of
hours, would be skipped.
"""

import re
from typing import Final

from penstock.collector.sources.network.framing import PADDING, Fault, Message

_COUNTED: Final = re.compile(rb"([1-9][0-9]{0,6}) <")
_MAYBE_COUNTED: Final = re.compile(rb"[1-9][0-9]{0,6}( ?)\Z")
_ENDS: Final = re.compile(rb"[\n\0]")


class SyslogCutter:
    """Turns a stream into messages.

    Args:
        bytes_max: Longer messages are cut; their rest is skipped.
    """

    def __init__(self, bytes_max: int) -> None:
        self.fault: Fault | None = None
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._skip_bytes = 0
        self._skip_line = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a message that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes; returns the messages that they complete."""
        self._buffer += data
        messages: list[Message] = []
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

    def flush(self) -> Message | None:
        """Return what the connection's end left without a line end, as a message, if anything."""
        text = bytes(self._buffer)
        self._buffer.clear()
        counted = _COUNTED.match(text)
        if counted is not None:
            return Message(text[counted.end() - 1 :], truncated=True)
        text = text.strip(PADDING)
        return Message(text) if text else None

    def _take_counted(self, at: int, messages: list[Message]) -> int:
        """Take whole octet-counted messages that follow one another; return where they end."""
        data, most = bytes(self._buffer), self._bytes_max
        while (counted := _COUNTED.match(data, at)) is not None:
            begin = counted.end() - 1
            end = begin + int(counted[1])
            if end > len(data) or end - begin > most:
                break
            messages.append(Message(data[begin:end].rstrip(PADDING)))
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
            while at < len(self._buffer) and self._buffer[at] in PADDING:
                at += 1
        return at

    def _next(self, at: int) -> tuple[Message, int] | None:
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
            cut = Message(bytes(self._buffer[at : at + self._bytes_max]), truncated=True)
            return cut, stop
        if end is None:
            return None
        return Message(bytes(self._buffer[at:stop]).rstrip(PADDING)), end.end()

    def _counted(self, length: int, begin: int) -> tuple[Message, int] | None:
        there = len(self._buffer) - begin
        if length > self._bytes_max and there >= self._bytes_max:
            cut = bytes(self._buffer[begin : begin + self._bytes_max])
            self._skip_bytes = length - self._bytes_max
            return Message(cut, truncated=True), begin + self._bytes_max
        if there < length:
            return None
        text = bytes(self._buffer[begin : begin + length])
        return Message(text.rstrip(PADDING)), begin + length
