"""Progress of one member's log, as the leader knows it, and what it may be sent.

    state       sends                                            leaves it when
    PROBE       one message, then waits for its answer or        an append is acknowledged
                for the next heartbeat's
    REPLICATE   on and on, supposing that all arrives; in        an append is rejected (PROBE)
                flight are at most so many messages and bytes
    SNAPSHOT    one chunk, then waits                            the snapshot's end is acknowledged

In any state what is not in the log any more can only go as a snapshot. `match < next` always;
`next == match + 1` in PROBE after a rejection and in SNAPSHOT. After etcd's tracker.Progress.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum

from penstock.logd.raft.messages import Entry, Snapshot


class ProgressState(Enum):
    """Mode in which a member is sent the log."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Inflights:
    """Appends that were sent and not answered, the oldest first.

    Args:
        messages_max: Maximum messages in flight.
        bytes_max: Maximum bytes in flight; one message may exceed it.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._sent: deque[tuple[int, int]] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        """Messages in flight."""
        return len(self._sent)

    @property
    def is_full(self) -> bool:
        """True if the next message must wait."""
        return len(self._sent) >= self._messages_max or self.bytes >= self._bytes_max

    def add(self, last_index: int, size: int) -> None:
        """Note a message by its last entry."""
        assert not self.is_full
        self._sent.append((last_index, size))
        self.bytes += size

    def acknowledge(self, index: int) -> None:
        """All messages that end at or before `index` have arrived."""
        while self._sent and self._sent[0][0] <= index:
            self.bytes -= self._sent.popleft()[1]

    def clear(self) -> None:
        """None is in flight any more."""
        self._sent.clear()
        self.bytes = 0


class Progress:
    """One member's progress, as its leader sees it.

    Attributes:
        match: The last entry known to be durable there, and the leader's.
        next: The next entry to send.
        waiting: PROBE: one is under way.
        snapshot, snapshot_offset, chunk_round: SNAPSHOT: what is sent, how much of it has
            arrived, and the heartbeat round at which the last chunk left.
        commit_sent: The commit index it was last sent.
        acked_round: The last heartbeat it has answered.
        last_contact_ns: Time when that heartbeat was sent; the election, before the first.
    """

    __slots__ = (
        "acked_round",
        "chunk_round",
        "commit_sent",
        "inflights",
        "last_contact_ns",
        "match",
        "next",
        "snapshot",
        "snapshot_offset",
        "state",
        "waiting",
    )

    def __init__(self, next_index: int, last_contact_ns: int, inflights: Inflights) -> None:
        self.state = ProgressState.PROBE
        self.match = 0
        self.next = next_index
        self.inflights = inflights
        self.waiting = False
        self.snapshot: Snapshot | None = None
        self.snapshot_offset = 0
        self.chunk_round = 0
        self.commit_sent = 0
        self.acked_round = 0
        self.last_contact_ns = last_contact_ns

    @property
    def is_paused(self) -> bool:
        """True if nothing may be sent now."""
        match self.state:
            case ProgressState.PROBE:
                return self.waiting
            case ProgressState.REPLICATE:
                return self.inflights.is_full
            case ProgressState.SNAPSHOT:
                return True

    def sent(self, entries: Sequence[Entry], commit: int) -> None:
        """An append with these entries has left."""
        self.commit_sent = commit
        if self.state is ProgressState.PROBE:
            self.waiting = True
        elif entries:
            self.next = entries[-1].index + 1
            self.inflights.add(entries[-1].index, sum(entry.size for entry in entries))

    def acknowledge(self, index: int) -> bool:
        """Everything up to `index` is durable there; whether that is news."""
        if index < self.match or (index == self.match and self.state is not ProgressState.PROBE):
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.waiting = False
        if self.state is ProgressState.REPLICATE:
            self.inflights.acknowledge(index)
        elif self.snapshot is None or index >= self.snapshot.index:
            self._become(ProgressState.REPLICATE)
            self.next = index + 1
        return True

    def reject(self, previous_index: int, possible_match: int) -> bool:
        """An append on `previous_index` was rejected; whether that was the last one that counts.

        Args:
            previous_index: Index before the rejected append.
            possible_match: The last entry that both logs may share.
        """
        if self.state is ProgressState.SNAPSHOT or previous_index <= self.match:
            return False  # a delayed answer: what it says is known better by now
        if self.state is ProgressState.PROBE and previous_index != self.next - 1:
            return False
        self._become(ProgressState.PROBE)
        self.next = max(self.match + 1, min(previous_index, possible_match + 1))
        return True

    def begin_snapshot(self, snapshot: Snapshot) -> None:
        """Send this snapshot from its first byte."""
        self._become(ProgressState.SNAPSHOT)
        self.snapshot = snapshot
        self.next = self.match + 1

    def resume(self) -> None:
        """A heartbeat was answered: what a probe waits for may be lost."""
        self.waiting = False

    def _become(self, state: ProgressState) -> None:
        self.state = state
        self.waiting = False
        self.inflights.clear()
        self.snapshot = None
        self.snapshot_offset = 0
        self.chunk_round = 0
