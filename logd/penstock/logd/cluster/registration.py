"""Has a node registered: where it is reached, its storage, its process."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from penstock.logd.cluster.group import OTHER_DISK, MetadataGroup
from penstock.logd.core.cluster.commands import RegisterNode
from penstock.logd.core.cluster.state import Refused
from penstock.logd.errors import UnavailableError
from penstock.service import ConfigError

_TRY_S: Final = 10.0
"""Seconds one try may take; it is repeated."""
_AGAIN_S: Final = 0.5
"""Seconds until it is tried again."""
_FAREWELL_S: Final = 1.0
"""Seconds in which a node that was removed answers what it was asked, above all to be removed."""

_log = structlog.get_logger()


class NotWantedError(ConfigError):
    """The cluster does not let this node take part, or no more."""

    def __init__(self, refused: Refused) -> None:
        fix = "correct node, or the section cluster"
        if refused.code == "NODE_REMOVED":
            fix = "let it join as a new node: another name, and an empty data_dir"
        super().__init__(f"the cluster refuses this node: {refused.message}", fix=fix)


class Registration:
    """Of one node. Used on the event loop.

    Args:
        group: Keeps it.
        command: What is to be registered at the moment.
        on_done: Called after each.
        on_lost: Called with the reason when the cluster knows the node by another disk.
    """

    def __init__(
        self,
        group: MetadataGroup,
        command: Callable[[], RegisterNode],
        on_done: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._group = group
        self._command = command
        self._on_done = on_done
        self._on_lost = on_lost
        self._wanted = asyncio.Event()
        self._wanted.set()

    def again(self) -> None:
        """The cluster does not have it, or what it has is out of date."""
        self._wanted.set()

    async def run(self) -> None:
        """Register whenever that is wanted, at first at once, until cancelled.

        Raises:
            NotWantedError: The cluster refuses.
        """
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                result = await self._group.change(self._command(), timeout_s=_TRY_S, anyone=True)
            except UnavailableError as error:
                _log.warning("node not registered yet", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
                self._wanted.set()
                continue
            if isinstance(result, Refused) and result.code == OTHER_DISK:
                self._on_lost(result.message)
                continue
            if isinstance(result, Refused):
                await asyncio.sleep(_FAREWELL_S)
                raise NotWantedError(result)
            _log.info("node registered")
            self._on_done()
