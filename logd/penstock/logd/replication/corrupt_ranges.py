"""Damaged ranges of one replica's log, and how they are filled from peers.

A replica with a hole may follow, but leaves the ISR. It asks its peers in turn for the range, also
while there is no leader. What comes may be the beginning of it, and is taken only if every frame's
epoch is the one that this log has at that offset: then it is the record that was lost, whether it
is committed or not, since one epoch has one leader.

It leads only if no other replica is in sync, so that none is known to have more, and if all that is
damaged is committed: then it is damage that is known and reported. Reads of it get an error, and no
follower gets past it without its own copy. A range that is not known to be committed never
becomes so while it is damaged, unless an operator takes the loss with an unclean election, or
there is only one replica, which commits all that it has.
"""

from collections.abc import Sequence
from itertools import pairwise

from penstock.logd.replication.events import (
    AskRange,
    Effect,
    Finding,
    NodeId,
    Patch,
    RangeCame,
    RangeCorrupt,
    RangePatched,
    ReplicationSettings,
    Tell,
)
from penstock.logd.replication.log_state import Epochs, LogState


class CorruptRanges:
    """The damaged ranges of one log, worked on one at a time."""

    def __init__(self, settings: ReplicationSettings) -> None:
        self._settings = settings
        self._ranges: list[tuple[int, int]] = []
        self._turn = 0
        self._patching = False
        self._retry_ns: int | None = None

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def first(self) -> int | None:
        """The lowest damaged offset; None if there is none."""
        return min((first for first, _ in self._ranges), default=None) if self._ranges else None

    @property
    def end(self) -> int:
        """Above the highest damaged offset; 0 if there is none."""
        return max((upto for _, upto in self._ranges), default=0)

    def sound_upto(self, first: int, upto: int) -> int:
        """Return the end of the part of [first, upto) before any damage."""
        return min([upto, *(max(a, first) for a, b in self._ranges if first < b)])

    def found(self, event: RangeCorrupt) -> list[Effect]:
        """Note a damaged range; the next `ask` begins with it if it is the only one."""
        if (event.first, event.upto) in self._ranges or event.first >= event.upto:
            return []
        self._ranges.append((event.first, event.upto))
        return [Tell(Finding.HOLE, event.first, event.upto)]

    def ask(self, peers: Sequence[NodeId], now_ns: int) -> list[Effect]:
        """Ask the next peer for the first range, unless that was done a moment ago."""
        if not self._ranges or not peers:
            return []
        if self._retry_ns is not None and now_ns < self._retry_ns:
            return []
        self._patching = False
        first, upto = self._ranges[0]
        node = peers[self._turn % len(peers)]
        self._turn += 1
        self._retry_ns = now_ns + self._settings.retry_ns
        return [AskRange(node, first, upto)]

    def came(self, event: RangeCame, log: LogState, now_ns: int) -> list[Effect]:
        """Take frames from whichever peer; what is not right is waited out, and another asked."""
        wanted = any(a == event.first and event.upto <= b for a, b in self._ranges)
        if self._patching or not wanted or log.cutting or not _covers(event, log.epochs):
            return []
        self._patching = True
        self._retry_ns = now_ns + self._settings.patch_retry_ns
        return [Patch(event.first, event.upto, event.spans, log.cuts)]

    def patched(self, event: RangePatched) -> None:
        """A range is whole again, or the beginning of one."""
        left = [
            part
            for a, b in self._ranges
            for part in ((a, min(b, event.first)), (max(a, event.upto), b))
        ]
        self._ranges = [(a, b) for a, b in left if a < b]
        self._reset_request()

    def clip(self, start: int, end: int, *, cut: bool) -> None:
        """Forget what does not lie in [start, end) any more, as the log was cut or deleted."""
        clipped = [(max(a, start), min(b, end)) for a, b in self._ranges]
        clipped = [(a, b) for a, b in clipped if a < b]
        if cut or clipped != self._ranges:
            self._ranges = clipped
            self._reset_request()

    def next_deadline_ns(self) -> int | None:
        """Return when to ask a peer again; None: nothing is damaged."""
        return self._retry_ns if self._ranges else None

    def _reset_request(self) -> None:
        self._patching, self._retry_ns = False, None


def _covers(event: RangeCame, epochs: Epochs) -> bool:
    spans = event.spans
    if not spans:
        return False
    tiled = all(a.next_offset == b.base_offset for a, b in pairwise(spans))
    reaches = spans[0].base_offset <= event.first and spans[-1].next_offset >= event.upto
    return tiled and reaches and all(epochs.epoch_at(s.base_offset) == s.epoch for s in spans)
