"""How far each sink has come, told to logd as cursors: the consumer is `JOB/SINK`.

`penstock logd cursors` and whatever watches consumers' lag then show a router's sinks beside every
other reader. The cursors are for people: a job goes on from its checkpoint, never from them.
"""

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Final

import structlog

from penstock.base.clock import BlockingClock
from penstock.logd.client import Cursor, LogClient
from penstock.logd.errors import LogdError, RefusedError
from penstock.logd.limits import CURSORS_PER_REQUEST_MAX
from penstock.router.core.offsets import Offsets, StreamPartition

INTERVAL_S: Final = 5.0
"""Between two commits of cursors; each is a durable write of logd's."""


_Place = tuple[str, StreamPartition]
"""A sink, and a partition that it reads."""


class PublishedPositions:
    """The cursors of one job.

    Args:
        job: Its name.
        streams: That it reads; it keeps its place in others, too, and they may be gone.
        client: Of logd.
        clock: Time.
    """

    def __init__(
        self, job: str, streams: Collection[str], client: LogClient, clock: BlockingClock
    ) -> None:
        self._job = job
        self._streams = frozenset(streams)
        self._client = client
        self._clock = clock
        self._known: dict[_Place, int] = {}
        self._next_ns = clock.monotonic_ns()
        self._log = structlog.get_logger()
        self.problem: str | None = None

    def publish(self, positions: Mapping[str, Offsets], *, now: bool = False) -> None:
        """Commit what has changed, by sink, when that is due again or wanted `now`.

        A failure is logged once and tried again later; it holds up nothing, no other stream either.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._next_ns and not now:
            return
        self._next_ns = now_ns + round(INTERVAL_S * 1e9)
        changed = {
            (sink, at): offset
            for sink, position in positions.items()
            for at, offset in position.next.items()
            if at.stream in self._streams and self._known.get((sink, at)) != offset
        }
        problem = self._commit(changed, positions)
        if problem is not None and self.problem is None:
            self._log.warning("cursors are not published", reason=problem)
        self.problem = problem

    def _commit(
        self, changed: Mapping[_Place, int], positions: Mapping[str, Offsets]
    ) -> str | None:
        """Commit cursors in pieces that logd takes; returns why some are not committed.

        A piece counts whole or not at all, so of one that is refused each stream is tried alone.
        """
        problem = None
        places, size = sorted(changed), CURSORS_PER_REQUEST_MAX
        waiting = [places[first : first + size] for first in range(0, len(places), size)]
        while waiting:
            piece = waiting.pop()
            try:
                self._client.set_cursors(
                    [self._cursor(place, changed[place], positions) for place in piece], rewind=True
                )
            except RefusedError as error:
                by_stream = [list(it) for _, it in groupby(piece, _stream_of)]
                if len(by_stream) > 1:
                    waiting += by_stream
                else:
                    problem = str(error)
                continue
            except LogdError as error:
                return str(error)
            self._known |= {place: changed[place] for place in piece}
        return problem

    def _cursor(self, place: _Place, offset: int, positions: Mapping[str, Offsets]) -> Cursor:
        sink, at = place
        return Cursor(
            consumer=f"{self._job}/{sink}",
            stream=at.stream,
            partition=at.partition,
            offset=offset,
            incarnation=positions[sink].incarnations.get(at.stream, ""),
        )


def _stream_of(place: _Place) -> tuple[str, str]:
    """Of one sink: another may have got to a stream's new life already."""
    sink, at = place
    return sink, at.stream
