"""The pace of background work: so many bytes a second, half of the time, until told to stop.

Whoever works calls a `Pace` after each piece, of some milliseconds at the longest. The thread then
waits as long as the rate demands; and for as long as it has worked, so that the interpreter's lock
is free half of the time for those who serve publishers and readers.
"""

from collections.abc import Callable
from typing import Final

from penstock.base.clock import Clock

_NS_PER_S: Final = 1_000_000_000
_WORK_NS: Final = 4_000_000
"""Nanoseconds of work before a pause: less than publishers notice, more than a pause costs."""


class StoppedError(Exception):
    """The work is to end now; what it began is thrown away."""


class Pace:
    """Holds one thread's work to a rate.

    Args:
        bytes_per_s_max: Read and written.
        clock: To measure by.
        wait: Waits so many seconds, or less.
        stopped: Whether to end.

    Attributes:
        bytes_read: Since the start; so the next one.
        bytes_written: As reported.
    """

    def __init__(
        self,
        bytes_per_s_max: int,
        clock: Clock,
        *,
        wait: Callable[[float], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self._rate = bytes_per_s_max
        self._clock = clock
        self._wait = wait
        self._stopped = stopped
        self._working_since_ns = clock.monotonic_ns()
        self._free_ns = 0

    def read(self, length: int) -> None:
        """So many bytes were read.

        Raises:
            StoppedError: End now.
        """
        self.bytes_read += length
        self._spend(length)

    def wrote(self, length: int) -> None:
        """So many bytes were written.

        Raises:
            StoppedError: End now.
        """
        self.bytes_written += length
        self._spend(length)

    def _spend(self, length: int) -> None:
        now_ns = self._clock.monotonic_ns()
        self._free_ns = max(self._free_ns, now_ns) + length * _NS_PER_S // self._rate
        worked_ns = now_ns - self._working_since_ns
        if worked_ns >= _WORK_NS or self._free_ns - now_ns >= _WORK_NS:
            self._pause_until(max(self._free_ns, now_ns + worked_ns))
        if self._stopped():
            raise StoppedError

    def _pause_until(self, end_ns: int) -> None:
        while (now_ns := self._clock.monotonic_ns()) < end_ns and not self._stopped():
            self._wait((end_ns - now_ns) / _NS_PER_S)
        self._working_since_ns = self._clock.monotonic_ns()
