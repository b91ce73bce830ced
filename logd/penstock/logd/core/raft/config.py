"""What an operator may choose about a Raft member, and its bounds."""

from dataclasses import dataclass
from typing import Final

from penstock.logd.core.node import NodeId

MILLISECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """One member's settings. Times in nanoseconds; all members should have the same.

    Attributes:
        node: This member. A name is used for one life: a member that lost its disk returns under
            another one, because its votes and acks are forgotten and must not be repeated.
        disk: Id of the directory that holds its state, made with it, of letters and digits; empty:
            the group's members have none, and a lost disk is not noticed.
        group: The group's identity, made when it is founded.
        election_timeout_min_ns, election_timeout_max_ns: A follower waits a random time between
            them for its leader; it refuses others its vote for the least of them.
        heartbeat_ns: Between two heartbeats.
        clock_drift: How much faster than the leader's another clock may run, as a fraction.
        append_bytes_max: Of the entries in one message; one larger entry goes alone.
        inflight_messages_max, inflight_bytes_max: Sent to a follower and not yet answered.
        entry_bytes_max: Of one proposal's data.
        uncommitted_bytes_max: Of proposals that are not committed.
        apply_bytes_max: Of the entries in one `Apply`.
        reads_max: Reads that wait, each of this member's and those forwarded to it.
        snapshot_chunk_bytes: Of a snapshot in one message; one is under way to a follower.
        snapshot_bytes_max: Of a snapshot; a larger one is not taken from a leader.
        snapshot_entries, snapshot_log_bytes: Applied since the last snapshot before one is wanted.
        entries_kept: Left in memory behind a snapshot, for followers that are a little behind.
        promotion_lag_max: Entries that a learner may lack when it is promoted.
    """

    node: NodeId
    group: str
    disk: str = ""
    election_timeout_min_ns: int = 400 * MILLISECOND
    election_timeout_max_ns: int = 800 * MILLISECOND
    heartbeat_ns: int = 100 * MILLISECOND
    clock_drift: float = 0.1
    append_bytes_max: int = 256 * 1024
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 4 * 1024 * 1024
    entry_bytes_max: int = 1024 * 1024
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    apply_bytes_max: int = 1024 * 1024
    reads_max: int = 1024
    snapshot_chunk_bytes: int = 256 * 1024
    snapshot_bytes_max: int = 256 * 1024 * 1024
    snapshot_entries: int = 10_000
    snapshot_log_bytes: int = 16 * 1024 * 1024
    entries_kept: int = 1000
    promotion_lag_max: int = 1000

    def __post_init__(self) -> None:
        """Settings that contradict each other are a bug of the caller."""
        assert 0 < self.heartbeat_ns < self.election_timeout_min_ns <= self.election_timeout_max_ns
        assert min(self.append_bytes_max, self.snapshot_chunk_bytes, self.apply_bytes_max) > 0
        assert min(self.inflight_messages_max, self.inflight_bytes_max) > 0
        assert 0 <= self.clock_drift < 1
