"""Keeps the metadata group's members as the state wants them, on the node that leads it."""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from penstock.logd.cluster.controlling import Controlling
from penstock.logd.cluster.group import MetadataGroup
from penstock.logd.core.cluster.joining import HandOver, Step, next_step
from penstock.logd.core.node import NodeId
from penstock.logd.core.raft import BusyError, NotLeaderError
from penstock.logd.errors import RefusedError, UnavailableError

_LOOK_S: Final = 0.5
"""Seconds between two looks: a learner catches up, a node comes to life, without a word."""

_log = structlog.get_logger()


class Joining:
    """Used on the event loop.

    Args:
        node: This one.
        group: Its members are changed.
        controlling: Knows whether this node decides, and who lives.
    """

    def __init__(self, node: NodeId, group: MetadataGroup, controlling: Controlling) -> None:
        self._node = node
        self._group = group
        self._controlling = controlling
        self._wanted = asyncio.Event()

    def look(self) -> None:
        """Nodes or members are other ones."""
        self._wanted.set()

    async def run(self) -> None:
        """Take step after step until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wanted.wait()
            self._wanted.clear()
            controller = self._controlling.controller
            if not controller.decides:
                continue
            nodes, members = self._group.state.nodes, self._group.member.membership
            step = next_step(members, nodes, controller.live(), self._node)
            if step is not None and await self._take(step):
                self._wanted.set()

    async def _take(self, step: Step) -> bool:
        """Whether it was taken; it is tried again later otherwise."""
        member = self._group.member
        try:
            if isinstance(step, HandOver):
                await member.transfer(step.to)
                return False  # what comes of it shows
            await member.change(step)
        except (NotLeaderError, BusyError, UnavailableError, RefusedError) as error:
            _log.debug("group not changed yet", step=str(step), reason=str(error))
            return False
        _log.info("group changed", change=str(step))
        return True
