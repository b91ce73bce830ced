"""Which of many records' lines may hold something sensitive: one look at all of them.

Signs are looked for in the lines as they stand: quicker by far than to take each apart and to look
at each text. What is sought holds neither quotes nor backslashes, so it stands in a line as in the
text, unless a character stands there as its code. One automaton looks for all signs at once.
"""

from bisect import bisect
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import re2

from penstock.specs.detectors import BEARER, PARTS

_CODE: Final = r"\u"
"""What a character begins with that stands in JSON as its code: behind it anything could be."""
_NUMBER: Final = (
    r'(?:%(?:25)?[0-9A-Fa-f][0-9]|[^0-9.:]|[^"]:|[^o]":)[2-6](?:[ -]?[0-9]){12,18}[^0-9]'
)
"""A card's, other than as value of a key that ends in an o, as the records' own times: it is no
text. Within a text such a quote stands behind a backslash. In a URL a code, also one that is coded
again, may end in a digit."""


class LineSearch:
    """Tells lines that show a sign of something to scrub from those that show none.

    Args:
        lines: What `shows` is to be asked of.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._text = b"\n".join(lines)
        self._showing: dict[tuple[tuple[bytes, ...], bool], Collection[bytes]] = {}

    def shows(self, line: bytes, keys: tuple[bytes, ...], *, values: bool) -> bool:
        """Whether one of these keys can be in a line.

        Args:
            line: One of the lines.
            keys: With quotes around them.
            values: Also whether one of the detectors' patterns can be in one of its texts.
        """
        showing = self.showing(keys, values=values)
        return bool(showing) and line in showing

    def showing(self, keys: tuple[bytes, ...], *, values: bool) -> Collection[bytes]:
        """The lines that `shows` is true of."""
        showing = self._showing.get((keys, values))
        if showing is None:
            showing = self._showing[keys, values] = self._search(_automaton(keys, values=values))
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
def _automaton(keys: tuple[bytes, ...], *, values: bool) -> Any:
    signs = [re2.escape(sign) for sign in (_CODE, *(key.decode() for key in keys))]
    if values:
        signs += [*(re2.escape(part) for part in PARTS), "@", BEARER, _NUMBER]
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile("|".join(signs).encode(), options)
