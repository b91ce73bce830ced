"""How streams come into a cluster that do not say how many replicas they want."""

import asyncio
from typing import Final

from penstock.logd.cluster.adoption import check_adopted
from penstock.logd.cluster.decisions import Decisions
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.core.cluster.state import ClusterState
from penstock.logd.core.cluster.tables import Done
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.logd.replication_settings import ReplicationSettings

_REPLICAS: Final = 3
"""Of a stream that does not say how many; fewer in a smaller cluster."""

_GONE_S: Final = 5.0
"""Seconds for nodes to remove the data of a stream that was deleted, before its name is free. Those
that are there need less than one."""

_AGAIN_S: Final = 0.05

_FOUNDERS_S: Final = 30.0
"""Seconds of a node for which it waits for founders that have never come."""


async def make_stream(
    cluster: ClusterNode,
    decisions: Decisions,
    config: StreamConfig,
    replication: ReplicationSettings,
    *,
    timeout_s: float,
    creator: str = "",
) -> Done:
    """Create a stream, or find it.

    Where nobody says how many replicas, one that is there has as many as it was made with: there
    may have been fewer nodes then, or it is made on two nodes at once that know of different ones.
    Where one of that name was deleted just now, its data is waited for to be gone.

    Raises:
        RefusedError: As `Decisions.create`; `STREAM_DELETING` if nodes still have such data then.
        UnavailableError: Not in time; it may still be done.
    """
    until = asyncio.get_running_loop().time() + min(_GONE_S, timeout_s)
    while True:
        factor = _factor(await cluster.group.read(timeout_s=timeout_s), config.name)
        try:
            return await decisions.create(
                config,
                replication.options(factor=factor),
                partitions=replication.partitions,
                timeout_s=timeout_s,
                creator=creator,
            )
        except RefusedError as error:
            if error.code == "STREAM_DELETING" and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(_AGAIN_S)
                continue
            said = replication.replication_factor is not None
            if error.code != "STREAM_DIFFERS" or said:
                raise
            now = await cluster.group.read(timeout_s=timeout_s)
            if _factor(now, config.name) == factor:  # it differs in something else
                raise


async def make_internal(
    cluster: ClusterNode, decisions: Decisions, config: StreamConfig, *, timeout_s: float
) -> None:
    """Create a stream of logd's own, as whichever node is first to need it would have it.

    Raises:
        RefusedError: As `Decisions.create`.
        UnavailableError: Not in time, or not yet: how many replicas it gets is seen only when every
            founder has come once, or does not come; and a node may bring one of its name.
    """
    state = await cluster.group.read(timeout_s=timeout_s)
    absent = sorted(cluster.founders - state.nodes.keys())
    if absent and cluster.age_s < _FOUNDERS_S:
        raise UnavailableError(f"stream {config.name} is not made yet: no word of {absent[0]}")
    check_adopted(state)
    try:
        await make_stream(cluster, decisions, config, ReplicationSettings(), timeout_s=timeout_s)
    except RefusedError as error:
        if error.code != "STREAM_DIFFERS":  # another node made it, by a configuration of its own
            raise
    await cluster.group.read(timeout_s=timeout_s)


def _factor(state: ClusterState, name: str) -> int:
    found = state.streams.get(name)
    if found is not None and found.is_open:
        return found.options.replication_factor
    return min(_REPLICAS, len(state.active()) or 1)
