"""One search over many records' lines for those that may hold something sensitive.

The detectors' expression runs over the lines as they are, which is much quicker than taking each
apart and searching each text. A match in a text is also a match in the text's line, unless a
character is written as its code there. A match that no text can make sensitive counts for nothing:
the domain has no existing top-level label, or the number has no check digit. The part that all
lines share is searched once.

An at-sign is looked for by itself: lines name many hosts and algorithms behind one, and each match
that is nothing takes RE2 as long as a search through twenty lines.
"""

from bisect import bisect
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, repeat
from typing import Any, Final, NamedTuple

import re2

from penstock.specs.redact.detectors import (
    MAY_BE_NOTHING,
    Detectors,
    address_in,
    compile_bytes,
    is_nothing,
)

_CODES: Final = r"\\[u/]"
"""JSON's code for a character, or an escaped slash: anything could stand behind it. The expression
knows quotes, backslashes and line breaks behind a backslash."""
_SHARED: Final = -1
"""Place of what all lines share."""
_ALIKE_MIN: Final = 8
"""Least number of lines for which to find common parts is quicker than to search each."""


class LineParts(NamedTuple):
    """The parts of lines, as who makes the lines knows them: no string of theirs is cut.

    Attributes:
        shared: What lines have in common.
        own: The rest of each line, at least.
    """

    shared: bytes
    own: list[bytes]

    def part(self, part: slice) -> "LineParts":
        """Return the parts of some of the lines."""
        return LineParts(self.shared, self.own[part])


class LineSearch:
    """Tells lines that show a sign of something to scrub from those that show none.

    Args:
        lines: JSON objects; what `shows` is to be asked of.
        parts: Their parts; None: those that the lines have in common are looked for.
    """

    def __init__(self, lines: Sequence[bytes], parts: LineParts | None = None) -> None:
        self._lines, self._known = lines, parts
        self._places: dict[tuple[tuple[bytes, ...], Detectors | None], Sequence[int]] = {}
        self._showing: dict[tuple[tuple[bytes, ...], Detectors | None], Collection[bytes]] = {}

    def shows(self, line: bytes, keys: tuple[bytes, ...], detectors: Detectors | None) -> bool:
        """Return whether a line may have one of these keys or a match of a detector.

        Args:
            line: One of the lines.
            keys: Keys in their quotes.
            detectors: Those that may match one of its texts; None: none may.
        """
        showing = self._showing.get((keys, detectors))
        if showing is None:
            showing = {self._lines[place] for place in self.places(keys, detectors)}
            self._showing[keys, detectors] = showing
        return bool(showing) and line in showing

    def places(self, keys: tuple[bytes, ...], detectors: Detectors | None) -> Sequence[int]:
        """Places of the lines that `shows` is true of, in order."""
        places = self._places.get((keys, detectors))
        if places is None:
            places = self._places[keys, detectors] = self._search(keys, detectors)
        return places

    @cached_property
    def _parts(self) -> list[bytes]:
        """The part that all lines share, then the rest of each."""
        if self._known is not None:
            return [self._known.shared, *self._known.own]
        before, after = _common(self._lines)
        if not (before or after):
            return [b"", *self._lines]
        begin, end = len(before), -len(after) or None
        return [before + b"\n" + after, *(line[begin:end] for line in self._lines)]

    @cached_property
    def _text(self) -> bytes:
        return b"\n".join(self._parts)

    @cached_property
    def _ends(self) -> list[int]:
        """Ends of the parts in the text, with their line breaks."""
        return list(accumulate(len(part) + 1 for part in self._parts))

    def _search(self, keys: tuple[bytes, ...], detectors: Detectors | None) -> Sequence[int]:
        """Places of the lines that hold a sign."""
        found = {*self._matches(keys, detectors)}
        if detectors is not None and "email" in detectors.searching:
            found.update(self._addresses())
        return range(len(self._lines)) if _SHARED in found else sorted(found)

    def _addresses(self) -> Iterator[int]:
        """Places of the lines that may have an address."""
        text, ends = self._text, self._ends
        at = address_in(text, 0)
        while at >= 0:
            part = bisect(ends, at)
            yield part - 1
            at = address_in(text, ends[part])

    def _matches(self, keys: tuple[bytes, ...], detectors: Detectors | None) -> Iterator[int]:
        """Places of the lines that hold another sign, each looked at up to its first."""
        automaton, text = _automaton(keys, detectors), self._text
        names = detectors.searching if detectors is not None else ()
        harmless = [(name, names.index(name) + 1) for name in MAY_BE_NOTHING if name in names]
        match = automaton.search(text)
        while match is not None:
            spans = [(name, match.span(group)) for name, group in harmless]
            if any(span[0] >= 0 and is_nothing(name, text, *span) for name, span in spans):
                match = automaton.search(text, match.start() + 1)
                continue
            part = bisect(self._ends, match.end() - 1)
            yield part - 1
            if part in (0, len(self._ends) - 1):
                break
            match = automaton.search(text, self._ends[part])


def _common(lines: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the common beginning and end of all lines, cut where no string of theirs is cut."""
    if len(lines) < _ALIKE_MIN:
        return b"", b""
    before = _beginning(min(lines), max(lines))
    quote = before.rfind(b'"')
    before = before[: quote if before.count(b'"') % 2 else quote + 1]
    if b"\\" in before:  # a quote may be a part of its string
        return b"", b""
    samples = [line[::-1] for line in (lines[0], lines[len(lines) // 2], lines[-1])]
    after = reduce(_beginning, samples)[::-1]
    after = after.removeprefix(b'"')  # a backslash may be before it
    if after.count(b'"') % 2:
        after = after[after.index(b'"') + 1 :]
    if (
        b"\\" in after
        or not all(map(bytes.endswith, lines, repeat(after)))
        or min(map(len, lines)) < len(before) + len(after)
    ):
        after = b""
    return before, after


def _beginning(one: bytes, other: bytes) -> bytes:
    """Return the common beginning."""
    size = min(len(one), len(other))
    differing = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return one[: size - (differing.bit_length() + 7) // 8]


@lru_cache(maxsize=1024)
def _automaton(keys: tuple[bytes, ...], detectors: Detectors | None) -> Any:
    signs = [_CODES, *(re2.escape(key.decode("latin-1")) for key in keys)]
    pattern = detectors.pattern_of_lines if detectors is not None else ""
    return compile_bytes("|".join((*signs, pattern) if pattern else signs))
