"""The client's only clock: for deadlines, pauses and sessions."""

import time


def monotonic_ns() -> int:
    """Nanoseconds since some moment; never goes back."""
    return time.monotonic_ns()  # noqa: TID251 - this is the client's clock


def awake_ns() -> int:
    """As `monotonic_ns`, and goes on while the machine sleeps, where the system can tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)
