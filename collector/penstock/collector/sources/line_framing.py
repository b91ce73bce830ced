"""Cutting bytes into lines of bounded length."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple, overload

from typing_extensions import override


class Line(NamedTuple):
    """One line without its newline.

    Attributes:
        end: Position after its newline in the stream.
        truncated: It was longer than allowed; `text` is its beginning.
        time_ns: Time when it was written, where the line has it.
        stream: The container's stream, if the line names it.
        continued: Its beginning was a line before it, which was not waited for any longer.
        attributes: Attributes of its container, if the line names them.
    """

    text: bytes
    end: int
    truncated: bool = False
    time_ns: int | None = None
    stream: str = ""
    continued: bool = False
    attributes: Mapping[str, str] | None = None

    @property
    def is_plain(self) -> bool:
        """True if the line has its text and no other fields."""
        return self[2:] == _UNMARKED


_UNMARKED: Final = (False, None, "", False, None)
"""The fields behind `end` of a line that is text alone."""


class TextLines(Sequence[Line]):
    """Lines that have their text and no other fields, as columns: as a `Line` each takes longer.

    Attributes:
        texts: Text of each.
        ends: Position after the newline of each.
    """

    __slots__ = ("ends", "texts")

    def __init__(self, texts: list[bytes], ends: list[int]) -> None:
        self.texts, self.ends = texts, ends

    @override
    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> list[Line]: ...
    @override
    def __getitem__(self, place: int | slice) -> Line | list[Line]:
        return [*self][place]

    @override
    def __iter__(self) -> Iterator[Line]:
        return map(Line, self.texts, self.ends)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    @override
    def __hash__(self) -> int:
        return hash((*self.texts, *self.ends))


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text encoding of a file.

    Attributes:
        codec: Python's name of it; empty: UTF-8, which is taken as it is.
        newline: Bytes that end a line.
    """

    codec: str = ""
    newline: bytes = b"\n"


UTF_8: Final = Encoding()
_UTF_16_LE: Final = Encoding("utf-16-le", b"\n\0")
_UTF_16_BE: Final = Encoding("utf-16-be", b"\0\n")


def encoding_of(name: str, head: bytes) -> Encoding:
    """The encoding of a name.

    Args:
        name: ``utf-8``, ``utf-16``, ``utf-16le``, ``utf-16be``, or one that has ASCII's newline.
        head: The file's first bytes: in UTF-16 its byte order mark may say which it is.
    """
    match name:
        case "utf-8":
            return UTF_8
        case "utf-16":
            return _UTF_16_BE if head.startswith(codecs.BOM_UTF16_BE) else _UTF_16_LE
        case "utf-16le":
            return _UTF_16_LE
        case "utf-16be":
            return _UTF_16_BE
        case _:
            return Encoding(name)


class LineCutter:
    """Turns a byte stream into lines; a line without its newline yet is waited for.

    Args:
        position: Position of the stream's first byte that will be fed.
        bytes_max: Longer lines are cut; their rest is skipped.
        encoding: The stream's encoding; lines are UTF-8.

    Attributes:
        replaced: Lines that had bytes which are no text in the encoding.
    """

    def __init__(self, bytes_max: int, *, position: int = 0, encoding: Encoding = UTF_8) -> None:
        self._encoding = encoding
        self._newline = encoding.newline
        self._unit = len(encoding.newline)
        self._codec = encoding.codec
        self._bytes_max = bytes_max - bytes_max % self._unit
        self.replaced = 0
        self._partial = bytearray()
        self._skipping = False
        self._rest_skipped = False
        self.continues = False
        """The line that is waited for has its beginning in one that was flushed."""
        self.position = position
        """Position after the last byte fed."""
        self.line_start = position
        """Position of the first byte of the line that is waited for."""

    def feed(self, data: bytes) -> Sequence[Line]:
        """Add bytes; returns the lines that they complete.

        Half of a character of UTF-16 at the end is left out: `position` says what was taken.
        """
        if self._encoding is UTF_8 and (cut := self._feed_plain(data)) is not None:
            return cut
        lines: list[Line] = []
        at = 0
        if self._unit > 1 and (odd := (self.position + len(data)) % self._unit):
            data = data[:-odd]
        while (end := self._find(data, at)) >= 0:
            line = self._complete(data[at:end], self.position + end + self._unit)
            if line is not None:
                lines.append(line)
            at = end + self._unit
        self.position += len(data)
        self._keep(data[at:])
        return lines

    def _feed_plain(self, data: bytes) -> TextLines | None:
        """Cut all lines at once; None where one needs a closer look."""
        if self._skipping or self.continues:
            return None
        texts = (bytes(self._partial) + data if self._partial else data).split(b"\n")
        rest = texts.pop()
        if not texts or max(map(len, texts)) > self._bytes_max:
            return None
        ends = [*accumulate([self.line_start, *(len(text) + 1 for text in texts)])][1:]
        if b"\r" in data or data.startswith(b"\n"):  # two bytes are looked for much more slowly
            texts = [text.removesuffix(b"\r") for text in texts]
        self.position += len(data)
        self.line_start = ends[-1]
        self._partial.clear()
        self._keep(rest)
        return TextLines(texts, ends)

    def flush(self) -> Line | None:
        """Return what is left without a newline, as a line; None when nothing is.

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
        return self.line_start < self.position

    def is_line_end(self, before: bytes) -> bool:
        """Return whether a line begins after these bytes of the stream."""
        return before.endswith(self._newline)

    def _find(self, data: bytes, at: int) -> int:
        """The next newline; in UTF-16 its bytes may stand across two characters, which is none."""
        found = data.find(self._newline, at)
        while found >= 0 and (self.position + found) % self._unit:
            found = data.find(self._newline, found + 1)
        return found

    def _decoded(self, text: bytes) -> bytes:
        try:
            decoded = text.decode(self._codec)
        except UnicodeDecodeError:
            self.replaced += 1
            decoded = text.decode(self._codec, "replace")
        if self.line_start == 0:
            decoded = decoded.removeprefix("\ufeff")
        return decoded.encode("utf-8", "replace")

    def _complete(self, rest: bytes, end: int) -> Line | None:
        """The line that ends here; None when it is the rest of one, and has nothing to add."""
        text = bytes(self._partial) + rest if self._partial else rest
        truncated = self._skipping or len(text) > self._bytes_max
        self._partial.clear()
        self._skipping = False
        text = text[: self._bytes_max]
        if self._codec:
            text = self._decoded(text)
        text = text.removesuffix(b"\r")
        self.line_start = end
        if not self.continues:
            return Line(text, end, truncated)
        skipped, self.continues, self._rest_skipped = self._rest_skipped, False, False
        return None if skipped or not text else Line(text, end, truncated, continued=True)

    def _keep(self, rest: bytes) -> None:
        self._partial += rest
        if len(self._partial) > self._bytes_max:
            self._skipping = True
            del self._partial[self._bytes_max :]


def parts_of(line: Line, bytes_max: int) -> list[Line]:
    """A long line as lines that continue one another, cut between characters.

    Their ends rise up to the end of the line, so that each is known by its own.
    """
    text = line.text
    parts: list[bytes] = []
    while len(text) > bytes_max:
        cut = bytes_max
        while cut > bytes_max - 4 and text[cut] & 0xC0 == 0x80:  # within a character
            cut -= 1
        parts.append(text[:cut])
        text = text[cut:]
    parts.append(text)
    last = len(parts) - 1
    return [
        line._replace(
            text=part,
            end=line.end - (last - index),
            truncated=line.truncated and index == last,
            continued=line.continued or index > 0,
        )
        for index, part in enumerate(parts)
    ]
