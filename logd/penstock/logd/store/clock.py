"""The store's only clock: when a segment was begun."""

import time


def now_ns() -> int:
    """Nanoseconds since 1970 UTC."""
    return time.time_ns()  # noqa: TID251 - this is the store's clock
