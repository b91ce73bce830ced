"""When a query that failed is started again: after a pause that doubles while it keeps failing."""

from typing import Final

_NANOSECONDS: Final = 1_000_000_000
FIRST_PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
CALM_S: Final = 120.0
"""Seconds without a failure after which the pauses start small again."""


class Restarts:
    """The failures of one query."""

    def __init__(self) -> None:
        self.count = 0
        self._streak = 0
        self._failed_at_ns: int | None = None

    def failed(self, now_ns: int) -> int:
        """Note a failure; returns when to start again."""
        if self._failed_at_ns is None or now_ns - self._failed_at_ns > CALM_S * _NANOSECONDS:
            self._streak = 0
        pause_s = min(FIRST_PAUSE_S * 2**self._streak, PAUSE_MAX_S)
        self.count += 1
        self._streak = min(self._streak + 1, 16)
        self._failed_at_ns = now_ns + int(pause_s * _NANOSECONDS)
        return self._failed_at_ns
