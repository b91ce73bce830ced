"""The client's only clock: for deadlines and pauses."""

import time


def monotonic_ns() -> int:
    """Nanoseconds since some moment; never goes back."""
    return time.monotonic_ns()  # noqa: TID251 - this is the client's clock
