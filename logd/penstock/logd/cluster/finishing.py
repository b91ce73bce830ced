"""Closes replicas: what was accepted is written and synced first."""

import asyncio
from collections.abc import Sequence

import structlog

from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.store import LogFailedError

_log = structlog.get_logger()


async def finish_all(replicas: Sequence[HostedReplica]) -> list[str]:
    """Close them; none waits for another's disk.

    Returns:
        Streams of which something could not be written or synced at last, by name.
    """
    sound = await asyncio.gather(*map(finish, replicas))
    found = zip(replicas, sound, strict=True)
    return sorted({replica.place.stream for replica, whole in found if not whole})


async def finish(replica: HostedReplica) -> bool:
    """Close one; whether its log could be synced, or had failed before."""
    replica.detach()
    if not replica.partition.failure:
        replica.note()
    replica.partition.close()
    try:
        await asyncio.to_thread(replica.partition.finish)
    except LogFailedError as error:
        _log.error("log failed while closing", stream=replica.place.stream, error=str(error))
        return False
    return True
