"""Puts the partitions that this node leads on their subjects, but for those that are held."""

from collections.abc import Callable

import structlog

from penstock.logd.cluster.hosting import HostedReplica
from penstock.logd.cluster.waking import Waking, WakingHost
from penstock.logd.core.cluster.records import PartitionKey, ReplicationOptions
from penstock.logd.core.replication.events import StepDown
from penstock.logd.errors import RefusedError
from penstock.service.clock import Clock

_log = structlog.get_logger()


class Subscribing:
    """Of one node. Used on the event loop.

    Args:
        host: Where partitions are put on their subjects.
        options: Of the stream that a partition is of; None: it is no more.
        clock: As of the replicas.
    """

    def __init__(
        self,
        host: WakingHost,
        options: Callable[[PartitionKey], ReplicationOptions | None],
        clock: Clock,
    ) -> None:
        self._listening = host.listening
        self._options = options
        self._spawn = host.spawn
        self._waking = Waking(host)
        self._clock = clock
        self._subscribed: dict[PartitionKey, HostedReplica] = {}

    def look(self, replica: HostedReplica) -> None:
        """It leads or leads no more, or its stream's options may be others."""
        options = self._options(replica.place)
        turned = self._waking.rest(replica, paused=options is not None and options.paused)
        if replica.partition.internal or options is None or not options.listens:
            self.end(replica)
            replica.heard = replica.leading  # it is on no subject, as it should
        elif not replica.leading:
            self.end(replica)
        elif self._subscribed.get(replica.place) is not replica:
            self._subscribed[replica.place] = replica
            self._spawn(self._begin(replica, options.queue_group or ""))
        elif turned:
            self._listening.hand_over(self._waking.taker(replica))

    def end(self, replica: HostedReplica) -> None:
        """Take it off its subject, if it is on it."""
        if self._subscribed.get(replica.place) is replica:
            del self._subscribed[replica.place]
            self._listening.remove(replica.partition.label)
            replica.heard = False
            replica.led_ns = self._clock.monotonic_ns()

    def forget(self, replica: HostedReplica) -> None:
        """It is closed."""
        self.end(replica)
        self._waking.forget(replica)

    async def _begin(self, replica: HostedReplica, queue: str) -> None:
        try:
            await self._listening.add(self._waking.taker(replica), queue)
        except RefusedError as error:  # the NATS server does not permit it: elsewhere it may
            _log.error("cannot listen", stream=replica.partition.label, reason=str(error))
            self._subscribed.pop(replica.place, None)
            replica.handle(StepDown())
            return
        replica.heard = self._subscribed.get(replica.place) is replica
        if replica.epoch > 1 or replica.has_led:  # else the stream is new
            missed_ns = self._clock.monotonic_ns() - replica.led_ns
            self._listening.missed(replica.partition.label, missed_ns)
