"""Where the other nodes are, remembered over restarts.

A node that starts knows nothing of the state until a leader tells it what is committed. Before that
it must reach a majority to have a leader, and nodes that joined are no founders.
"""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import structlog

from penstock.logd.core.cluster.records import Node, NodeState
from penstock.logd.store import Checkpoint
from penstock.logd.store.errors import NO_SPACE

_AGAIN_S: Final = 5.0
_log = structlog.get_logger()


class AddressBook:
    """Used on the event loop.

    Args:
        path: Where it is kept.
        founders: The nodes that founded the cluster.

    Raises:
        OSError: The disk failed.
    """

    def __init__(self, path: Path, founders: Mapping[str, str]) -> None:
        self._checkpoint = Checkpoint(path)
        self._founders = founders
        self._known: dict[str, str] = self._checkpoint.load() or {}
        self._changed = asyncio.Event()

    def update(self, nodes: Mapping[str, Node], members: Collection[str]) -> dict[str, str]:
        """Take in the nodes of the state, which at first is an old one: it may lack some.

        Returns:
            Whom to reach, where: the founders and every node, but for those that were removed and
            are no members of the metadata group any more. Founders are where the configuration
            says: when all of them have moved, nobody else could tell.
        """
        gone = {node.id for node in nodes.values() if node.state is NodeState.REMOVED}
        gone -= set(members)
        told = {node.id: node.addresses.peer for node in nodes.values()}
        known = {name: at for name, at in (self._known | told).items() if name not in gone}
        if known != self._known:
            self._known = known
            self._changed.set()
        founders = {name: at for name, at in self._founders.items() if name not in gone}
        return self._known | founders

    async def run(self) -> None:
        """Keep it on disk until cancelled; without space there it is tried again.

        Raises:
            OSError: The disk failed.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await asyncio.to_thread(self._checkpoint.save, dict(self._known))
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                _log.warning("addresses of the nodes not saved", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
                self._changed.set()
