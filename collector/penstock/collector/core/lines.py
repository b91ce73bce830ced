"""Cutting bytes into lines of bounded length."""

from typing import NamedTuple


class Line(NamedTuple):
    """One line without its newline.

    Attributes:
        end: Position after its newline in the stream.
        truncated: It was longer than allowed; `text` is its beginning.
        time_ns: When it was written, where the line says so.
        stream: Of a container, where the line says so.
        continued: Its beginning was a line before it, which was not waited for any longer.
    """

    text: bytes
    end: int
    truncated: bool = False
    time_ns: int | None = None
    stream: str = ""
    continued: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to say of it but its text."""
        return not (self.truncated or self.continued or self.stream) and self.time_ns is None


class LineCutter:
    """Turns a byte stream into lines; a line without its newline yet is waited for.

    Args:
        position: Of the stream's first byte that will be fed.
        bytes_max: Longer lines are cut; their rest is skipped.
    """

    def __init__(self, bytes_max: int, *, position: int = 0) -> None:
        self._bytes_max = bytes_max
        self._partial = bytearray()
        self._skipping = False
        self._rest_skipped = False
        self.continues = False
        """The line that is waited for has its beginning in one that was flushed."""
        self.position = position
        """Position after the last byte fed."""
        self.line_start = position
        """Position of the first byte of the line that is waited for."""

    def feed(self, data: bytes) -> list[Line]:
        """Add bytes; returns the lines that they complete."""
        lines: list[Line] = []
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            line = self._complete(data[at:end], self.position + end + 1)
            if line is not None:
                lines.append(line)
            at = end + 1
        self.position += len(data)
        self._keep(data[at:])
        return lines

    def flush(self) -> Line | None:
        """What is left without a newline, as a line; None when nothing is.

        What comes up to the next newline is then a line that continues it; of one that was cut
        it is skipped.
        """
        if not self.waits:
            return None
        skipped = self._rest_skipped
        line = self._complete(b"", self.position)
        self.continues = True
        self._rest_skipped = skipped or (line is not None and line.truncated)
        return line

    @property
    def waits(self) -> bool:
        """Whether a line has begun and not ended."""
        return self.line_start < self.position

    def _complete(self, rest: bytes, end: int) -> Line | None:
        """The line that ends here; None when it is the rest of one, and has nothing to add."""
        text = bytes(self._partial) + rest if self._partial else rest
        truncated = self._skipping or len(text) > self._bytes_max
        self._partial.clear()
        self._skipping = False
        self.line_start = end
        text = text[: self._bytes_max].removesuffix(b"\r")
        if not self.continues:
            return Line(text, end, truncated)
        skipped, self.continues, self._rest_skipped = self._rest_skipped, False, False
        return None if skipped or not text else Line(text, end, truncated, continued=True)

    def _keep(self, rest: bytes) -> None:
        self._partial += rest
        if len(self._partial) > self._bytes_max:
            self._skipping = True
            del self._partial[self._bytes_max :]
