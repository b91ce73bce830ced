"""Looking at live records: bounded, sampled, and never in the way of what is looked at.

in          a record's line as it was decoded, before it is checked
out         as it goes into the log, with its subject
quarantine  as it was refused, with the reason
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, get_args

from penstock.collector.limits import TAP_RECORDS_MAX

Point = Literal["in", "out", "quarantine"]
POINTS: Final[tuple[Point, ...]] = get_args(Point)
_LINE_CHARACTERS_MAX: Final = 64 * 1024


@dataclass(slots=True)
class Tap:
    """One look.

    Attributes:
        source: Pattern of the sources' names, as for files.
        subject: Pattern of the subjects; only at `out`.
        every: One record of so many is shown.
        missed: Records that were not shown because nobody read fast enough.
    """

    point: Point
    source: str = "*"
    subject: str = "*"
    every: int = 1
    missed: int = 0
    _seen: int = 0
    _waiting: deque[Mapping[str, Any]] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, source: str, line: bytes, more: Mapping[str, str]) -> None:
        """A record passes."""
        self._seen += 1
        if self._seen % self.every:
            return
        if len(self._waiting) >= TAP_RECORDS_MAX:
            self.missed += 1
            return
        text = line.decode("utf-8", "backslashreplace")[:_LINE_CHARACTERS_MAX]
        self._waiting.append({"source": source, **more, "record": text})
        self._news.set()

    async def next(self) -> Mapping[str, Any]:
        """The next record, with how many were missed so far."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        return {**self._waiting.popleft(), "missed": self.missed}


class Taps:
    """Every look at one collector."""

    def __init__(self) -> None:
        self._taps: list[Tap] = []

    @property
    def active(self) -> bool:
        return bool(self._taps)

    @contextmanager
    def open(self, tap: Tap) -> Iterator[Tap]:
        """Look until the context ends."""
        self._taps.append(tap)
        try:
            yield tap
        finally:
            self._taps.remove(tap)

    def show(self, point: Point, source: str, lines: Iterable[bytes], **more: str) -> None:
        """Records pass a point."""
        subject = more.get("subject", "")
        for tap in self._taps:
            if tap.point == point and fnmatchcase(source, tap.source):
                if subject and not fnmatchcase(subject, tap.subject):
                    continue
                for line in lines:
                    tap.offer(source, line, more)


def read_tap(request: Mapping[str, Any]) -> Tap:
    """The look that a request asks for.

    Raises:
        ValueError: It is wrong.
    """
    point, every = request.get("point", "out"), request.get("every", 1)
    if point not in POINTS:
        msg = f"point must be one of {', '.join(POINTS)}"
        raise ValueError(msg)
    if type(every) is not int or every < 1:
        msg = "every must be a number from 1"
        raise ValueError(msg)
    return Tap(point, str(request.get("source", "*")), str(request.get("subject", "*")), every)
