"""Opens replicas again whose logs failed for want of space, once there is some."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.core.cluster.records import PartitionKey
from penstock.logd.errors import UnavailableError
from penstock.logd.limits import REOPEN_FREE_BYTES_MIN

_WAIT_S: Final = 5.0
"""Seconds after a log has failed, or was last opened again."""


class _Replicas(Protocol):
    def each(self) -> list[HostedReplica]:
        """Every open replica."""

    def reopen(self, place: PartitionKey) -> Coroutine[Any, Any, None]:
        """Open one again."""


class Reviving:
    """Of one node. Used on the event loop."""

    def __init__(self, replicas: _Replicas) -> None:
        self._replicas = replicas
        self._since_s: dict[PartitionKey, float] = {}

    async def look(self) -> int:
        """Open again what can be; how many."""
        now_s, opened = asyncio.get_running_loop().time(), 0
        for replica in self._replicas.each():
            place = replica.place
            if not replica.partition.out_of_space:
                self._since_s.pop(place, None)
            elif now_s - self._since_s.setdefault(place, now_s) >= _WAIT_S:
                self._since_s[place] = now_s
                opened += await self._revive(replica)
        return opened

    async def _revive(self, replica: HostedReplica) -> bool:
        with suppress(OSError, UnavailableError):
            free = await asyncio.to_thread(replica.log.disk.available_bytes, replica.log.directory)
            if free >= REOPEN_FREE_BYTES_MIN:
                await self._replicas.reopen(replica.place)
                return True
        return False
