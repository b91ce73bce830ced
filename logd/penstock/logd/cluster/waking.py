"""Streams that are paused: what rests meanwhile, and what ends it.

The leader of each partition stays on its subject. The first message that it takes has the
controller end the pause, as an operator would; until that is known, messages are stored as ever.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

import structlog

from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.cluster.node import ClusterNode
from penstock.logd.core.cluster.commands import WakeStream
from penstock.logd.core.cluster.state import Refused
from penstock.logd.core.turn import Message
from penstock.logd.errors import LogdError
from penstock.logd.leadership import Leadership
from penstock.logd.listening import Listening

_ASK_S: Final = 10.0
"""Seconds one try to end a pause may take; the next message begins another."""

_TEND_S: Final = 1.0
_FORGET_MAX: Final = 10_000
"""Message ids forgotten at a time: some milliseconds of the event loop."""

_log = structlog.get_logger()


class WakingHost(Protocol):
    """The node, as far as it is needed here."""

    @property
    def listening(self) -> Listening:
        """For the time."""

    @property
    def cluster(self) -> ClusterNode:
        """The way to the controller."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside, until the node is closed."""


class Sleeper:
    """A `penstock.logd.listening.Taker` for a stream that is paused: takes, and tells of it."""

    def __init__(self, leadership: Leadership, waking: "Waking", replica: HostedReplica) -> None:
        self._leadership = leadership
        self._waking = waking
        self._replica = replica
        self.stream = leadership.stream
        self.intake = leadership.intake
        self.budget = leadership.budget

    @property
    def passed_over(self) -> int:
        """As `Leadership`."""
        return self._leadership.passed_over

    @passed_over.setter
    def passed_over(self, count: int) -> None:
        self._leadership.passed_over = count

    @property
    def label(self) -> str:
        """As `Leadership`."""
        return self._leadership.label

    @property
    def subject(self) -> str:
        """As `Leadership`."""
        return self._leadership.subject

    @property
    def stands_by(self) -> bool:
        """As `Leadership`."""
        return self._leadership.stands_by

    def on_subject(self, *, here: bool) -> None:
        """As `Leadership`."""
        self._leadership.on_subject(here=here)

    def take(self, messages: list[Message]) -> None:
        """As `Leadership`; a message that is taken here ends the pause."""
        if messages and self._leadership.leads:
            self._waking.wake(self._replica)
        self._leadership.take(messages)


class Waking:
    """Of one node. Used on the event loop."""

    def __init__(self, host: WakingHost) -> None:
        self._host = host
        self._resting: set[HostedReplica] = set()
        self._asking: set[str] = set()
        self._tending = False

    def taker(self, replica: HostedReplica) -> Leadership | Sleeper:
        """What takes the messages of a partition that this node leads."""
        leadership = replica.partition.leadership
        return Sleeper(leadership, self, replica) if replica in self._resting else leadership

    def rest(self, replica: HostedReplica, *, paused: bool) -> bool:
        """A replica's stream is paused, or is not; whether that is news."""
        if paused == (replica in self._resting):
            return False
        replica.partition.upkeep.resting = paused
        if paused:
            self._resting.add(replica)
        else:
            self._resting.discard(replica)
        if self._resting and not self._tending:
            self._tending = True
            self._host.spawn(self._tend())
        return True

    def forget(self, replica: HostedReplica) -> None:
        """It is closed."""
        self._resting.discard(replica)

    def wake(self, replica: HostedReplica) -> None:
        """A message has come for a partition whose stream is paused."""
        stream, incarnation = replica.place.stream, replica.key.incarnation
        if incarnation not in self._asking:
            self._asking.add(incarnation)
            self._host.spawn(self._ask(WakeStream(stream=stream, incarnation=incarnation)))

    async def _ask(self, command: WakeStream) -> None:
        try:
            result = await self._host.cluster.group.change(command, timeout_s=_ASK_S)
            problem = result.message if isinstance(result, Refused) else ""
        except LogdError as error:
            problem = str(error)
        finally:
            self._asking.discard(command.incarnation)
        if problem:
            _log.warning("stream not woken", stream=command.stream, reason=problem)
        else:
            _log.info("stream woken by a message", stream=command.stream)

    async def _tend(self) -> None:
        """Give back what a stream at rest has in mind and needs no more."""
        while self._resting:
            await asyncio.sleep(_TEND_S)
            now_ns = self._host.listening.now().unix_ns
            for replica in list(self._resting):
                replica.partition.intake.dedup.message_ids.expire(now_ns, _FORGET_MAX)
        self._tending = False
