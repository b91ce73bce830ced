"""The replica of a partition that has only one: it leads from its start, and nobody is asked.

It is the same core that replicates to others, with a view that this node gives itself and a lease
that does not end.
"""

from collections.abc import Iterable
from typing import Final

from penstock.logd.core.node import NodeId
from penstock.logd.core.replication.effects import (
    BeginEpoch,
    Effect,
    Electable,
    HighWatermark,
    Lead,
    Resign,
    Stop,
)
from penstock.logd.core.replication.epochs import Epochs
from penstock.logd.core.replication.events import (
    EpochSaved,
    LeaseRenewed,
    LogStartMoved,
    StorageFailed,
    Synced,
    Viewed,
)
from penstock.logd.core.replication.log_state import LogState
from penstock.logd.core.replication.replica import Replica
from penstock.logd.core.replication.view import View
from penstock.logd.errors import CorruptError
from penstock.logd.log_orders import Durable, Outcome, StartMoved
from penstock.logd.store import CommitLog, EpochFile

FOREVER_NS: Final = (1 << 63) - 1


class LoneReplica:
    """Leads a log that was just recovered, under its next epoch.

    Attributes:
        epoch: The leader epoch.
        epochs: Of the log.
        high_watermark: Offset of the last committed record; -1 when there is none.
        leads: It does.

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
        self.leads = True
        self.epochs = epochs
        self.epoch = epochs.latest + 1
        state = LogState.opened(
            start=log.start_offset, end=end, epochs=Epochs(epochs.entries), high_watermark=end - 1
        )
        self._replica = Replica(node, incarnation, state, boot="")
        self._replica.handle(LeaseRenewed(FOREVER_NS), 0)
        view = View(
            incarnation=incarnation,
            version=1,
            leader_epoch=self.epoch,
            leader=node,
            isr=frozenset({node}),
            replicas=(node,),
        )
        begun_epoch = self._replica.handle(Viewed(view), 0)
        assert begun_epoch == [BeginEpoch(self.epoch, end)], begun_epoch
        epochs.begin(self.epoch, end)
        led = self._replica.handle(EpochSaved(self.epoch), 0)
        assert led == [Lead(self.epoch, end)], led
        self.high_watermark = self._replica.high_watermark

    def settle(self, outcome: Outcome, now_ns: int) -> bool:
        """Take what the log's writer says; whether the high watermark has risen.

        What is handed to the log's writer need not be told before: that is for whoever may have to
        cut it off again, and it costs a message alone in flight as much as being parsed.
        """
        if isinstance(outcome, StartMoved):
            self._replica.handle(LogStartMoved(outcome.start), now_ns)
            return False
        assert isinstance(outcome, Durable), outcome
        risen = _has_committed(self._replica.handle(Synced(outcome.upto), now_ns))
        self.high_watermark = self._replica.high_watermark
        return risen

    def submitted(self, upto: int) -> None:
        """Not asked for."""
        raise AssertionError(upto)

    def failed(self, reason: str, now_ns: int) -> None:
        """The log takes no writes any more."""
        _has_committed(self._replica.handle(StorageFailed(reason), now_ns))

    def remembers(self) -> None:
        """Nothing: no leader sends it what it remembers."""


def _has_committed(effects: Iterable[Effect]) -> bool:
    risen = False
    for effect in effects:
        match effect:
            case HighWatermark():
                risen = True
            case Stop() | Resign() | Electable():
                pass  # nobody else could lead: the partition says itself that it has failed
            case _:
                raise AssertionError(f"{effect} of a partition with one replica")
    return risen
