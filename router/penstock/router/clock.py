"""The router's only clock; Spark's Python workers load it without the daemons' libraries."""

import time
from typing import Protocol

from typing_extensions import override


class Clock(Protocol):
    """Time and its passing, as the router's shells need them."""

    def monotonic_ns(self) -> int:
        """Nanoseconds for measuring durations."""
        ...

    def elapsed_ns(self) -> int:
        """Nanoseconds that pass while the machine is suspended, too."""
        ...

    def unix_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...


class SystemClock(Clock):
    """The machine's clocks."""

    @override
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()  # noqa: TID251 - this is the one clock module

    @override
    def elapsed_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    @override
    def unix_ns(self) -> int:
        return time.time_ns()  # noqa: TID251 - this is the one clock module

    @override
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
