"""The only place where product code reads the time; everything else takes it as input."""

import time
from datetime import UTC, datetime
from typing import Final, Protocol

from typing_extensions import override

_BOOT_TIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_ns() -> int:
    """Nanoseconds since some moment, for durations; never steps back."""
    return time.monotonic_ns()  # noqa: TID251 - this is the one clock module


def boot_ns() -> int:
    """Nanoseconds for durations; counts the time that the machine is suspended, where Linux can."""
    return time.clock_gettime_ns(_BOOT_TIME)


unix_ns = time.time_ns  # noqa: TID251 - this is the one clock module
"""Nanoseconds since 1970-01-01 UTC, for timestamps on records; may step."""


class Clock(Protocol):
    """Two clocks that must not be mixed: durations and dates."""

    def monotonic_ns(self) -> int:
        """Nanoseconds for measuring durations; never steps back."""
        ...

    def unix_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC, for timestamps on records; may step."""
        ...


class BlockingClock(Clock, Protocol):
    """A clock for code that owns its thread, and may wait in it."""

    def elapsed_ns(self) -> int:
        """Nanoseconds for durations that go on while the machine is suspended."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...


def text_now(clock: Clock) -> str:
    """The time in UTC to the second, by ISO 8601."""
    return datetime.fromtimestamp(clock.unix_ns() // 10**9, UTC).isoformat()


class SystemClock:
    """The machine's clocks: a `Clock` and a `BlockingClock`."""

    def monotonic_ns(self) -> int:
        """Nanoseconds for measuring durations; never steps back."""
        return monotonic_ns()

    def elapsed_ns(self) -> int:
        """Nanoseconds for durations that go on while the machine is suspended."""
        return boot_ns()

    def unix_ns(self) -> int:
        """Nanoseconds since 1970-01-01 UTC, for timestamps on records; may step."""
        return unix_ns()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


class BootClock(SystemClock):
    """Durations that go on while the machine is suspended: for leases, which others see end."""

    @override
    def monotonic_ns(self) -> int:
        return time.clock_gettime_ns(_BOOT_TIME)
