"""One partition's replica: who is in sync, what is committed, under which leader epoch.

The high watermark is the offset of the last record that every in-sync replica has made durable, -1
when there is none. It never goes back. Today a partition has one replica, which leads; the rule is
already the one that holds for several.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

NodeId = NewType("NodeId", str)


@dataclass(frozen=True, slots=True)
class Synced:
    """A replica made everything below `upto` durable, while following the leader of `epoch`."""

    node: NodeId
    epoch: int
    upto: int


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """Everything up to and including `offset` is committed now."""

    offset: int


class Replica:
    """The leader's view of a partition.

    Args:
        isr: The in-sync replicas, the leader included.
        epoch: The leader epoch; `Synced` of any other is not for this leader and changes nothing.
        high_watermark: What is committed already.
    """

    def __init__(self, *, isr: Iterable[NodeId], epoch: int, high_watermark: int) -> None:
        self.isr = frozenset(isr)
        self.epoch = epoch
        self.high_watermark = high_watermark
        self._synced = dict.fromkeys(self.isr, high_watermark + 1)
        assert self.isr
        assert high_watermark >= -1

    def handle(self, event: Synced, now_ns: int) -> list[HighWatermark]:
        """Take what a replica has synced; answer with the high watermark when it rises."""
        del now_ns  # leases and lag will need it
        if event.epoch != self.epoch or event.node not in self.isr:
            return []
        self._synced[event.node] = max(self._synced[event.node], event.upto)
        committed = min(self._synced.values()) - 1
        if committed <= self.high_watermark:
            return []
        self.high_watermark = committed
        return [HighWatermark(committed)]

    def next_deadline_ns(self) -> int | None:
        """When `handle` must be called though nothing happened: never, today."""
        return None
