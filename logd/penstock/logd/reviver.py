"""Opens again the logs that failed for want of space, once there is some.

A write that the system refuses for want of space has written nothing that counts: the log cuts its
tail off, and what was accepted and not committed has been refused. So the log may be opened again
as after a restart, with a new leader epoch, while its readers go on. A failed sync is another
matter, whatever its error: nobody knows what the disk has then, and the log stays failed until logd
is started again by somebody who has looked. So do logd's own streams: who uses one has read what it
holds, and would go on with the log that failed. A log that could not be opened for want of space is
opened in the same way.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.core.metadata import is_internal
from penstock.logd.errors import LogdError
from penstock.logd.limits import REOPEN_FREE_BYTES_MIN
from penstock.logd.streams import StreamSet

_NS_PER_S: Final = 1_000_000_000
_LOOK_S: Final = 1.0
_WAIT_MIN_S: Final = 1
_WAIT_MAX_S: Final = 60
_FORGET_NS: Final = 600 * _NS_PER_S
"""Nanoseconds after which an earlier failure of a stream makes it wait no longer."""

_log = structlog.get_logger()


@dataclass(slots=True)
class _Attempt:
    """When a stream was last opened again, or tried to be."""

    backoff: Backoff
    at_ns: int = 0
    wait_s: float = 0.0


class Reviver:
    """Looks at the streams every second. Used on the event loop.

    Args:
        streams: Of the daemon.
        clock: For the pauses between attempts, which double.

    Attributes:
        revived: Logs opened again since the start.
    """

    def __init__(self, streams: StreamSet, clock: Clock) -> None:
        self.revived = 0
        self._streams = streams
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Open again what can be."""
        for partition in list(self._streams.partitions()):
            own = is_internal(partition.name)
            if partition.out_of_space and not own and self._is_due(partition.name):
                await self._revive(partition.name)
        for unopened in self._streams.unopened():
            own = is_internal(unopened.name)
            if unopened.out_of_space and not own and self._is_due(unopened.name):
                await self._revive(unopened.name)

    def _is_due(self, name: str) -> bool:
        attempt = self._attempts.get(name)
        if attempt is None:
            return True
        return self._clock.monotonic_ns() >= attempt.at_ns + int(attempt.wait_s * _NS_PER_S)

    async def _revive(self, name: str) -> None:
        try:
            directory = self._streams.directory_of(name)
            free = await asyncio.to_thread(self._streams.disk.available_bytes, directory)
            if free < REOPEN_FREE_BYTES_MIN:
                return
            self._note_attempt(name)
            await self._streams.open(name)
        except (OSError, LogdError) as error:
            _log.warning("stream not opened again", stream=name, error=str(error))
            return
        self.revived += 1
        _log.info("stream opened again", stream=name)

    def _note_attempt(self, name: str) -> None:
        now_ns = self._clock.monotonic_ns()
        attempt = self._attempts.setdefault(name, _Attempt(Backoff(_WAIT_MIN_S, _WAIT_MAX_S)))
        if now_ns - attempt.at_ns >= _FORGET_NS:
            attempt.backoff.reset()
        attempt.at_ns, attempt.wait_s = now_ns, attempt.backoff.next_wait()
