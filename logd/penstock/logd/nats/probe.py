"""Up to when everything has come that was published: asked of the server again and again.

nats-server answers in the order in which it delivers. When a PONG comes, all has come that was
delivered to this connection before its PING; what came after may be lost with the connection.
"""

from typing import Final

from penstock.base.clock import Clock
from penstock.logd.nats.wire import Answer, Wire

INTERVAL_S: Final = 0.5
"""Seconds between two questions: as much may a gap seem longer than it was."""

_SILENT_NS: Final = 5_000_000_000
"""Nanoseconds after which a server that sends nothing, though it was asked, is taken for gone."""


class Probe:
    """Looks after one connection.

    Args:
        wire: It has the subscriptions.
        clock: For times.

    Attributes:
        complete_ns: What was published until then has come, by the monotonic clock.
    """

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self.complete_ns = clock.monotonic_ns()
        self._wire = wire
        self._clock = clock
        self._answer: Answer | None = None
        self._reads = wire.reads
        self._heard_ns = self.complete_ns

    def look(self) -> bool:
        """Ask, if the last question is answered; False when the server seems to be gone."""
        now_ns = self._clock.monotonic_ns()
        if self._answer is None or self._wire.reads != self._reads:
            self._reads, self._heard_ns = self._wire.reads, now_ns
        if self._answer is not None:
            return now_ns - self._heard_ns < _SILENT_NS
        self._answer = self._wire.ask()
        self._answer.add_done_callback(lambda answer: self._take(answer, now_ns))
        return True

    def _take(self, answer: Answer, asked_ns: int) -> None:
        self._answer = None
        if not answer.cancelled() and answer.exception() is None:
            self.complete_ns = asked_ns
