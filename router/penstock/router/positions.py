"""How far each sink has come, told to logd as cursors: the consumer is `JOB/SINK`.

`penstock logd cursors` and whatever watches consumers' lag then show a router's sinks beside every
other reader. The cursors are for people: a job goes on from its checkpoint, never from them.
"""

from collections.abc import Mapping
from typing import Final

import structlog

from penstock.logd.client import Cursor, LogClient
from penstock.logd.errors import LogdError
from penstock.router.clock import Clock
from penstock.router.core.offsets import Offsets, StreamPartition

INTERVAL_S: Final = 5.0
"""Between two commits of cursors; each is a durable write of logd's."""


class PublishedPositions:
    """The cursors of one job."""

    def __init__(self, job: str, client: LogClient, clock: Clock) -> None:
        self._job = job
        self._client = client
        self._clock = clock
        self._known: dict[tuple[str, StreamPartition], int] = {}
        self._next_ns = clock.monotonic_ns()
        self._log = structlog.get_logger()
        self.problem: str | None = None

    def publish(self, positions: Mapping[str, Offsets], *, now: bool = False) -> None:
        """Commit what has changed, by sink, when that is due again or wanted `now`.

        A failure is logged once and tried again later; it holds up nothing.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_ns and not now:
            return
        self._next_ns = now_ns + round(INTERVAL_S * 1e9)
        changed = {
            (sink, at): offset
            for sink, position in positions.items()
            for at, offset in position.next.items()
            if self._known.get((sink, at)) != offset
        }
        if not changed:
            return
        cursors = [
            Cursor(
                consumer=f"{self._job}/{sink}",
                stream=at.stream,
                partition=at.partition,
                offset=offset,
                incarnation=positions[sink].incarnations.get(at.stream, ""),
            )
            for (sink, at), offset in sorted(changed.items())
        ]
        try:
            self._client.set_cursors(cursors, rewind=True)
        except LogdError as error:
            if self.problem is None:
                self._log.warning("cursors are not published", reason=str(error))
            self.problem = str(error)
            return
        self.problem = None
        self._known |= changed
