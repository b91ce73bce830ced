"""Takes the rules and quotas of a lone logd into the cluster that its node has become a part of.

They come before its streams, so that whoever could use those still can. They come only where the
cluster has no others: of two sets put together nobody has said that they mean it, and what one
allows on `*` would hold for the streams of the other. What is not taken over stays in its file,
nobody follows it, and the node's health says so.
"""

import asyncio
from pathlib import Path
from typing import Final, Protocol

import structlog

from penstock.logd.core.cluster.access import (
    AccessCommand,
    AccessRecord,
    AccessTable,
    PutAcl,
    PutQuota,
    table_of,
)
from penstock.logd.core.cluster.codec import read_as
from penstock.logd.core.cluster.state import Refused, Result
from penstock.logd.errors import CorruptError
from penstock.logd.limits import ACL_RULES_PER_REQUEST_MAX
from penstock.logd.store import Checkpoint

_ADOPTED: Final = "access.adopted"
_log = structlog.get_logger()


class State(Protocol):
    """The cluster's state, as far as it is about rules."""

    @property
    def access(self) -> AccessTable:
        """Rules and quotas there are."""


class Group(Protocol):
    """What applies commands."""

    @property
    def state(self) -> State:
        """As this node has it."""

    async def insist(self, command: AccessCommand, /) -> Result:
        """Have a command applied, however long that takes."""

    async def catch_up(self) -> None:
        """Wait until the state has all that was committed."""


class AccessAdoption:
    """Of one node. Used on the event loop.

    Args:
        data_dir: Of the node.

    Attributes:
        problem: Why there are rules that nobody follows; empty when there are none.
    """

    def __init__(self, data_dir: Path) -> None:
        self.problem = ""
        self._file = data_dir / "access"

    async def run(self, group: Group) -> None:
        """Take over what there is.

        Raises:
            OSError: The disk failed.
        """
        try:
            document = await asyncio.to_thread(Checkpoint(self._file).load)
            if document is None:
                return
            own = table_of(read_as(AccessRecord, document, where=str(self._file)))
        except CorruptError as error:
            self._refuse(str(error))
            return
        while (command := await self._next(group, own)) is not None:
            result = await group.insist(command)
            if isinstance(result, Refused) and result.code != "STALE_VERSION":
                self._refuse(result.message)
        if not self.problem:
            await asyncio.to_thread(self._file.rename, self._file.with_name(_ADOPTED))
            _log.info("rules adopted", rules=len(own.rules), quotas=len(own.quotas))

    async def _next(self, group: Group, own: AccessTable) -> AccessCommand | None:
        """What is to be done next; None: nothing more, or it must not be done."""
        await group.catch_up()
        present = group.state.access
        foreign = present.rules.keys() - own.rules.keys() or [
            one for one, quota in present.quotas.items() if own.quotas.get(one) != quota
        ]
        if foreign and not self.problem:
            self._refuse("the cluster has rules or quotas of its own")
        if self.problem:
            return None
        missing = [rule for one, rule in sorted(own.rules.items()) if one not in present.rules]
        if missing:
            some = tuple(missing[:ACL_RULES_PER_REQUEST_MAX])
            return PutAcl(rules=some, based_on=present.version)
        for principal, quota in sorted(own.quotas.items()):
            if principal not in present.quotas:
                return PutQuota(quota=quota, based_on=present.version)
        return None

    def _refuse(self, reason: str) -> None:
        fix = f"add those that are wanted by hand, then remove {self._file}"
        self.problem = f"rules of the lone logd are not in the cluster: {reason}; {fix}"
        _log.error("rules not adopted", reason=reason)
