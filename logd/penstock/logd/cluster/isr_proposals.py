"""Brings ISRs that leaders propose to the controller: those of one turn go in one command.

When a node dies, every partition that it replicated wants another ISR.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.core.cluster.commands import Basis, ChangeIsr, IsrChange
from penstock.logd.core.cluster.controller import CHANGES_PER_COMMAND_MAX
from penstock.logd.core.cluster.state import Each, Refused, Result
from penstock.logd.core.cluster.tables import Done
from penstock.logd.core.replication.effects import ProposeIsr
from penstock.logd.core.replication.events import IsrAnswered, Outcome
from penstock.logd.errors import RefusedError, UnavailableError

_CHANGE_S: Final = 5.0
"""Seconds one proposal may take; its leader proposes again what it still wants."""

_OUTCOMES: Final = {
    "STALE_VERSION": Outcome.STALE,
    "STALE_EPOCH": Outcome.DEPOSED,
    "OTHER_INCARNATION": Outcome.DEPOSED,
    "UNKNOWN_STREAM": Outcome.DEPOSED,
    "UNKNOWN_PARTITION": Outcome.DEPOSED,
    "NO_LEADER": Outcome.DEPOSED,
    "NOT_CONTROLLER": Outcome.LOST,
}

_Wish = tuple[HostedReplica, ProposeIsr]


class _Host(Protocol):
    @property
    def cluster(self) -> ClusterNode:
        """The way to the controller."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside."""


class IsrProposals:
    """Of one node. Used on the event loop."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._wishes: list[_Wish] = []

    def propose(self, replica: HostedReplica, proposal: ProposeIsr) -> None:
        """Ask the controller at the end of this turn; `IsrAnswered` comes back."""
        if not self._wishes:
            asyncio.get_running_loop().call_soon(self._send)
        self._wishes.append((replica, proposal))

    def _send(self) -> None:
        wishes, self._wishes = self._wishes, []
        for first in range(0, len(wishes), CHANGES_PER_COMMAND_MAX):
            self._host.spawn(self._ask(wishes[first : first + CHANGES_PER_COMMAND_MAX]))

    async def _ask(self, wishes: list[_Wish]) -> None:
        command = ChangeIsr(changes=tuple(_change(*wish) for wish in wishes))
        outcomes = [Outcome.LOST] * len(wishes)
        try:
            result = await self._host.cluster.group.change(command, timeout_s=_CHANGE_S)
            outcomes = _outcomes(result, len(wishes))
        except (RefusedError, UnavailableError):
            pass
        for (replica, proposal), outcome in zip(wishes, outcomes, strict=True):
            replica.handle(IsrAnswered(proposal.leader_epoch, proposal.number, outcome))


def _change(replica: HostedReplica, proposal: ProposeIsr) -> IsrChange:
    basis = Basis(
        stream=replica.place.stream,
        partition=replica.place.partition,
        incarnation=proposal.incarnation,
        leader_epoch=proposal.leader_epoch,
        version=proposal.version,
    )
    return IsrChange(basis=basis, isr=tuple(sorted(proposal.isr)))


def _outcomes(result: Result, count: int) -> list[Outcome]:
    if isinstance(result, Each):
        return [_outcome(part) for part in result.results]
    return [_outcome(result)] * count


def _outcome(result: Done | Refused) -> Outcome:
    if isinstance(result, Done):
        return Outcome.COMMITTED
    return _OUTCOMES.get(result.code, Outcome.REFUSED)
