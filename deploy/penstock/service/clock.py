"""The only place where a daemon reads the time; everything else takes it as input."""

import time
from typing import Protocol

from typing_extensions import override


class Clock(Protocol):
    """Two clocks that must not be mixed: durations and dates."""

    def monotonic_ns(self) -> int:
        """Nanoseconds for measuring durations; never steps back."""
        ...

    def unix_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC, for timestamps on records; may step."""
        ...


class SystemClock(Clock):
    """The machine's clocks."""

    @override
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()  # noqa: TID251 - this is the one clock module

    @override
    def unix_ns(self) -> int:
        return time.time_ns()  # noqa: TID251 - this is the one clock module


class BootClock(SystemClock):
    """Durations that go on while the machine is suspended: for leases, which others see end."""

    @override
    def monotonic_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
