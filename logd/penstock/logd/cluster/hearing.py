"""Whether publishers reach this node."""

from collections.abc import Callable
from typing import Final

from penstock.base.clock import Clock

_DEAF_NS: Final = 1_000_000_000
"""A connection that has been away for less is about to come back."""


class Hearing:
    """Of one node. Used on the event loop.

    Args:
        connected: Whether there is a connection to NATS, both ways.
        clock: For how long.
    """

    def __init__(self, connected: Callable[[], bool], clock: Clock) -> None:
        self._connected = connected
        self._clock = clock
        self._heard_ns = clock.monotonic_ns()

    def is_deaf(self) -> bool:
        """Whether they do not; asked at every heartbeat."""
        now_ns = self._clock.monotonic_ns()
        if self._connected():
            self._heard_ns = now_ns
        return now_ns - self._heard_ns >= _DEAF_NS
