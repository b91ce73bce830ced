"""A partition of a test's own, which leads as soon as it is open: no node is around it.

It is the core that every replica runs, with a view that it gives itself and a lease that does not
end.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from penstock.logd.errors import CorruptError
from penstock.logd.metadata.streams import Stream
from penstock.logd.partition.context import PartitionContext
from penstock.logd.partition.log_writer import Durable, LogResult, StartMoved
from penstock.logd.partition.partition import Partition, recover
from penstock.logd.replication.events import (
    BeginEpoch,
    Effect,
    Electable,
    EpochSaved,
    HighWatermark,
    Lead,
    LeaderAndIsr,
    LeaderAndIsrChanged,
    LeaseRenewed,
    LogStartMoved,
    NodeId,
    ReleaseLeadership,
    Stop,
    StorageFailed,
    Synced,
)
from penstock.logd.replication.log_state import Epochs, LogState
from penstock.logd.replication.replica import Replica
from penstock.logd.storage import CommitLog, EpochFile

FOREVER_NS: Final = (1 << 63) - 1


class LoneReplica:
    """As `Role`: leads a log that was just recovered, under its next epoch, and asks nobody.

    Attributes:
        epoch: The leader epoch.
        epochs: Of the log.
        high_watermark: Offset of the last committed record; -1 when there is none.

    Raises:
        CorruptError: The log ends below the beginning of an epoch: records have been lost.
        OSError: The disk failed.
    """

    def __init__(self, node: NodeId, incarnation: str, log: CommitLog, epochs: EpochFile) -> None:
        end = log.end_offset
        for number, begun in epochs.entries[-1:]:
            if begun > end:  # what lay below was durable when the epoch began
                message = f"epoch {number} began at offset {begun}, the log ends at {end}"
                raise CorruptError(f"{message}: records have been lost", where=str(log.directory))
        self.epochs = epochs
        self.epoch = epochs.latest + 1
        state = LogState.opened(
            start=log.start_offset, end=end, epochs=Epochs(epochs.entries), high_watermark=end - 1
        )
        self._replica = Replica(node, incarnation, state, boot="")
        self._replica.handle(LeaseRenewed(FOREVER_NS), 0)
        view = LeaderAndIsr(
            incarnation=incarnation,
            version=1,
            leader_epoch=self.epoch,
            leader=node,
            isr=frozenset({node}),
            replicas=(node,),
        )
        begun_epoch = self._replica.handle(LeaderAndIsrChanged(view), 0)
        assert begun_epoch == [BeginEpoch(self.epoch, end)], begun_epoch
        epochs.begin(self.epoch, end)
        led = self._replica.handle(EpochSaved(self.epoch), 0)
        assert led == [Lead(self.epoch, end)], led
        self.high_watermark = self._replica.high_watermark

    def settle(self, result: LogResult, now_ns: int) -> bool:
        """Take what the log's writer says; whether the high watermark has risen.

        What is handed to the log's writer need not be told before: that is for whoever may have to
        cut it off again, and it costs a message alone in flight as much as being parsed.
        """
        if isinstance(result, StartMoved):
            self._replica.handle(LogStartMoved(result.start), now_ns)
            return False
        assert isinstance(result, Durable), result
        risen = _has_committed(self._replica.handle(Synced(result.upto), now_ns))
        self.high_watermark = self._replica.high_watermark
        return risen

    def submitted(self, upto: int) -> None:
        """Nothing follows from it."""

    def failed(self, reason: str, now_ns: int) -> None:
        """The log takes no writes any more."""
        _has_committed(self._replica.handle(StorageFailed(reason), now_ns))

    def dedup_saved(self) -> None:
        """Nothing: no leader sends it what it remembers."""


def _has_committed(effects: Iterable[Effect]) -> bool:
    risen = False
    for effect in effects:
        match effect:
            case HighWatermark():
                risen = True
            case Stop() | ReleaseLeadership() | Electable():
                pass  # nobody else could lead: the partition says itself that it has failed
            case _:
                raise AssertionError(f"{effect} of a partition with one replica")
    return risen


async def open_partition(
    stream: Stream,
    directory: Path,
    context: PartitionContext,
    kind: type[Partition] = Partition,
) -> Partition:
    """Open a partition that leads."""
    make_role = partial(LoneReplica, context.node, stream.incarnation)
    recovered = await asyncio.to_thread(recover, stream, (directory, 0), context, make_role)
    opened = kind(stream, 0, recovered, context)
    opened.publish_queue.lead(opened.epoch, opened.log.end_offset, opened.high_watermark)
    return opened
