"""Which of many records' lines may hold something sensitive: one look at all of them.

The detectors' expression is looked for in the lines as they stand: quicker by far than to take each
apart and to look at each text. What it finds in a text it finds in the text's line as well, unless
a character stands there as its code.
"""

from bisect import bisect
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import re2

from penstock.specs.redact.detectors import compile_bytes

_CODES: Final = r"\\[u/]"
"""What a character begins with that stands in JSON as its code, or as a slash may: behind it
anything could be. The expression knows of quotes, backslashes and line breaks behind a backslash.
"""


class LineSearch:
    """Tells lines that show a sign of something to scrub from those that show none.

    Args:
        lines: What `shows` is to be asked of.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._text = b"\n".join(lines)
        self._showing: dict[tuple[tuple[bytes, ...], str], Collection[bytes]] = {}

    def shows(self, line: bytes, keys: tuple[bytes, ...], pattern: str) -> bool:
        """Whether one of these keys can be in a line.

        Args:
            line: One of the lines.
            keys: With quotes around them.
            pattern: Of `Detectors`, which can be in one of its texts; may be empty.
        """
        showing = self.showing(keys, pattern)
        return bool(showing) and line in showing

    def showing(self, keys: tuple[bytes, ...], pattern: str) -> Collection[bytes]:
        """The lines that `shows` is true of."""
        showing = self._showing.get((keys, pattern))
        if showing is None:
            showing = self._showing[keys, pattern] = self._search(_automaton(keys, pattern))
        return showing

    def _search(self, automaton: Any) -> Collection[bytes]:
        """The lines that hold a sign, each looked at up to its first."""
        found: set[bytes] = set()
        match = automaton.search(self._text)
        if match is None:
            return found
        ends = list(accumulate(len(line) + 1 for line in self._lines))
        while match is not None:
            at = bisect(ends, match.end() - 1)
            found.add(self._lines[at])
            match = automaton.search(self._text, ends[at]) if at + 1 < len(ends) else None
        return found


@lru_cache(maxsize=1024)
def _automaton(keys: tuple[bytes, ...], pattern: str) -> Any:
    signs = [_CODES, *(re2.escape(key.decode("latin-1")) for key in keys)]
    return compile_bytes("|".join((*signs, pattern) if pattern else signs))
