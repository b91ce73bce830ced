"""How far long work has come, on a terminal's standard error; elsewhere nothing."""

import sys
from types import TracebackType
from typing import Final, Self

from penstock.base.clock import Clock, SystemClock
from penstock.base.pluralize import pluralize
from penstock.logd.cli.text import human_bytes, on_terminal

_EVERY_NS: Final = 200_000_000


class Progress:
    """A line that is written over a few times a second, and wiped at the end.

    Args:
        label: What is done.
        total: Records there are to do; None: nobody knows.
        clock: For the rate.
        shown: Whether there is a terminal; None: as it is.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        clock: Clock | None = None,
        shown: bool | None = None,
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._label = label
        self._total = total
        self._clock = clock or SystemClock()
        self._shown = on_terminal() if shown is None else shown
        self._begun_ns = self._clock.monotonic_ns()
        self._told_ns = self._begun_ns
        self._written = False

    def __enter__(self) -> Self:
        """Begun."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe the line."""
        self.hide()

    def hide(self) -> None:
        """Wipe the line, and show no more: what comes next has the terminal."""
        self._shown = False
        if self._written:
            self._written = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def advance(self, records: int, size_bytes: int = 0) -> None:
        """So much more is done."""
        self.records += records
        self.bytes += size_bytes
        now_ns = self._clock.monotonic_ns()
        if self._shown and now_ns - self._told_ns >= _EVERY_NS:
            self._told_ns, self._written = now_ns, True
            sys.stderr.write(f"\r{self.line()}\x1b[K")
            sys.stderr.flush()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return (self._clock.monotonic_ns() - self._begun_ns) / 1e9

    def line(self) -> str:
        """What is done, and how fast."""
        words = [pluralize(self.records, "record", form=",")]
        if self._total:
            words[0] = f"{self.records:,} of {self._total:,} records"
            words.append(f"{min(self.records * 100 // self._total, 100)} %")
        if self.bytes:
            words.append(human_bytes(self.bytes))
        words.append(f"{self.records / max(self.seconds, 1e-9):,.0f} records/s")
        return f"{self._label}: {', '.join(words)}"
