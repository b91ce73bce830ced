"""Puts partitions on their subjects: those this node leads, and those it stands by for.

A stream whose pause is held is on no subject. With `warm_standby` every replica in sync is on it,
leader or not, and stays there as the leader changes: what the new one heard and the log does not
have it takes first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from penstock.logd.byte_budget import ByteBudget
from penstock.logd.cluster.host import Host
from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.cluster.waking import Waking, WakingHost
from penstock.logd.core.cluster.records import Partition, PartitionKey, StreamRecord
from penstock.logd.core.replication.events import StepDown
from penstock.logd.errors import RefusedError
from penstock.logd.standby import Standby, StandbySettings

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Subscribed:
    """A partition on its subject, or about to be.

    Attributes:
        stands: Whether the subscription does.
    """

    replica: HostedReplica
    stands: bool = False


class SubscribingHost(Host, WakingHost, Protocol):
    """The node, as far as it is needed here."""


class Subscribing:
    """Of one node. Used on the event loop.

    Args:
        host: Where partitions are put on their subjects.
        record: Of a partition and its stream; None: there is none.
        standby: What is kept while other nodes lead.

    Attributes:
        closing: Whether nothing is put on its subject any more.
    """

    def __init__(
        self,
        host: SubscribingHost,
        record: Callable[[PartitionKey], tuple[StreamRecord, Partition] | None],
        standby: StandbySettings,
    ) -> None:
        self.closing = False
        self._host = host
        self._listening = host.listening
        self._waking = Waking(host)
        self._record = record
        self._standby = standby
        self._budget = ByteBudget(standby.bytes_max)
        self._subscribed: dict[PartitionKey, _Subscribed] = {}

    def look(self, replica: HostedReplica) -> None:
        """It leads or leads no more, is in sync or not, or its stream's options may be others."""
        record = self._record(replica.place)
        options = None if record is None else record[0].options
        turned = self._waking.rest(replica, paused=options is not None and options.paused)
        if replica.partition.internal or record is None or options is None or not options.listens:
            self.end(replica)
            replica.heard = replica.leading  # it is on no subject, as it should
            return
        stands_by = self._is_to_stand_by(replica, *record)
        if self.closing or not (replica.leading or stands_by):
            self.end(replica)
            return
        if stands_by is not (replica.partition.leadership.standby is not None):
            replica.partition.leadership.stand_by(self._make(replica) if stands_by else None)
        found = self._subscribed.get(replica.place)
        if found is None or found.replica is not replica:
            found = self._subscribed[replica.place] = _Subscribed(replica)
            replica.heard = False  # what was said while it was to be on no subject
            self._host.spawn(self._begin(found, options.queue_group or ""))
            return
        if turned:
            self._listening.hand_over(self._waking.taker(replica))
        if found.stands and replica.leading:
            self._take(replica)

    def end(self, replica: HostedReplica) -> None:
        """Take it off its subject, if it is on it."""
        found = self._subscribed.get(replica.place)
        if found is not None and found.replica is replica:
            del self._subscribed[replica.place]
            self._listening.remove(replica.partition.label)
            replica.heard = False
            if replica.leading:
                replica.led_ns = self._host.clock.monotonic_ns()
        replica.partition.leadership.stand_by(None)

    def forget(self, replica: HostedReplica) -> None:
        """It is closed."""
        self.end(replica)
        self._waking.forget(replica)

    async def _begin(self, found: _Subscribed, queue: str) -> None:
        replica = found.replica
        try:
            await self._listening.add(self._waking.taker(replica), queue)
        except RefusedError as error:  # the NATS server does not permit it: elsewhere it may
            _log.error("cannot listen", stream=replica.partition.label, reason=str(error))
            if self._subscribed.get(replica.place) is found:
                del self._subscribed[replica.place]
            if replica.leading:
                replica.handle(StepDown())
            return
        if self._subscribed.get(replica.place) is found:
            found.stands = True
            if replica.leading:
                self._take(replica)

    def _take(self, replica: HostedReplica) -> None:
        """It leads, and is on its subject: say what is missing, and take what it has kept."""
        leadership, label = replica.partition.leadership, replica.partition.label
        standby = leadership.standby
        now_ns = self._host.clock.monotonic_ns()
        if not replica.heard:
            replica.heard = True
            from_ns = now_ns if standby is None else standby.covered_ns or now_ns
            # Nobody led before the first epoch: the stream is new.
            if (replica.epoch > 1 or replica.has_led) and from_ns > replica.led_ns:
                self._listening.missed(label, now_ns - replica.led_ns, now_ns - from_ns)
            self._listening.begins(label)
        if standby is None or leadership.declined is not None:
            return
        released = standby.release()
        if released.missing:
            self._listening.lost(label, released.missing, now_ns - released.missing_ns)
        if released.messages:
            _log.info("takes what it kept", stream=label, messages=len(released.messages))
            self._waking.taker(replica).take(released.messages)

    def _is_to_stand_by(
        self, replica: HostedReplica, stream: StreamRecord, partition: Partition
    ) -> bool:
        """Whether it may be elected, and is to go on where the leader before it stopped."""
        wanted = stream.options.warm_standby and not stream.options.read_only
        in_sync = stream.is_open and self._host.node in partition.isr
        return wanted and in_sync and stream.incarnation == replica.key.incarnation

    def _make(self, replica: HostedReplica) -> Standby:
        return Standby(
            replica.partition.intake,
            self._budget,
            age_ns=self._standby.age_ns,
            clock=self._host.clock,
            led_ns=lambda: replica.led_ns,
        )
