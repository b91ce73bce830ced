"""Sampling of traces, and folding of repeated records.

**Sampling.** Every process that asks for the same share keeps the same traces. The last 56 bits of
the trace's id decide, as in OpenTelemetry's consistent probability sampling (OTEP 235): a trace is
kept when they are not below the rejection threshold. So all records of a trace stay or go together,
and a process that keeps a larger share keeps every trace that others keep.

**Folding.** After some equal records within a window, further ones become one with a count. Two
steps keep this cheap. First only the text of a message is counted. Once it is frequent, whole
records are compared by a key of the caller's, until so many differ that the text is known to vary.
So a message with other attributes each time is never folded, however frequent it is.

Invariant: swallowed = the sum of the counts returned by `due`, now or later.
"""

from enum import Enum, auto
from typing import Any, Final, NamedTuple

_RANDOM_BITS: Final = 56
_RANDOM_DIGITS: Final = _RANDOM_BITS // 4


class Sampler:
    """Keeps a share of the traces.

    Args:
        probability: Above 0, up to 1.

    Raises:
        ValueError: It is not in that range.
    """

    def __init__(self, probability: float) -> None:
        if not 0 < probability <= 1:
            raise ValueError("a sampling probability is above 0 and at most 1")
        self._threshold = round((1 - probability) * (1 << _RANDOM_BITS))
        self.weight: Final = 1 / probability
        """The number of records that each kept one stands for."""

    def keeps(self, trace_id: str) -> bool:
        """Return whether records of the trace, given as 32 hex digits, are kept."""
        return int(trace_id[-_RANDOM_DIGITS:], 16) >= self._threshold


WINDOW_NS: Final = 1_000_000_000
_TEXTS_MAX: Final = 1_000
"""Further texts within a window are not counted, hence not folded."""


class Step(Enum):
    """The decision on a record."""

    PASS = auto()
    COMPARE = auto()
    """The text is frequent: `swallow` decides."""
    ROLL = auto()
    """The window is over: call `due`, then `classify` again."""


class Folded(NamedTuple):
    """The last of the records that were swallowed, and how many they were."""

    record: Any
    times: int


class Folder:
    """Says of each record whether it goes out now.

    Args:
        max_repeats: Records of one text that go out within a window before they are compared.
        window_ns: Its length in nanoseconds.
    """

    def __init__(self, max_repeats: int, window_ns: int = WINDOW_NS) -> None:
        self._max_repeats = max_repeats
        self._window_ns = window_ns
        self._end_ns = 0
        self._texts: dict[str, int] = {}
        self._varieties: dict[str, int] = {}
        self._seen: set[Any] = set()
        self._swallowed: dict[Any, Folded] = {}

    def is_over(self, now_ns: int) -> bool:
        """Return whether the window has ended; also if the clock was set back."""
        return not 0 < self._end_ns - now_ns <= self._window_ns

    def classify(self, text: str, now_ns: int) -> Step:
        """Count a text; says what to do with its record."""
        if not 0 < self._end_ns - now_ns <= self._window_ns:
            return Step.ROLL
        texts = self._texts
        count = texts.get(text, 0) + 1
        if count <= self._max_repeats:
            if count > 1 or len(texts) < _TEXTS_MAX:
                texts[text] = count
            return Step.PASS
        varies = self._varieties.get(text, 0) > self._max_repeats
        return Step.PASS if varies else Step.COMPARE

    def swallow(self, text: str, key: Any, record: Any) -> bool:
        """True when the record must not go out: `due` returns the last such one of its key."""
        if key not in self._seen:
            self._seen.add(key)
            self._varieties[text] = self._varieties.get(text, 0) + 1
            return False
        before = self._swallowed.get(key)
        self._swallowed[key] = Folded(record, (before.times if before else 0) + 1)
        return True

    def due(self, now_ns: int) -> list[Folded]:
        """Begin a window; returns what the one before swallowed."""
        self._end_ns = now_ns + self._window_ns
        due = list(self._swallowed.values())
        for memory in (self._texts, self._varieties, self._seen, self._swallowed):
            memory.clear()
        return due

    @property
    def is_holding(self) -> bool:
        return bool(self._swallowed)
