"""What nodes and the controller tell each other all the time, and how long it holds."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.logd.core.cluster.records import NodeId, PartitionKey

NS_PER_MS: Final = 1_000_000

Unfit: TypeAlias = Literal["", "failed", "hole", "diverged"]
"""Why a replica cannot lead: its disk failed, records are missing from its middle, or it disagrees
with its leader below the high watermark."""

END_UNKNOWN: Final = -1
"""The end of a log that is not open."""

Reason: TypeAlias = Literal["not_controller", "register", "late", "behind", "no_raft_lease"]
"""Why a heartbeat gets no lease: asked of a node that does not decide; the process is not the one
that is registered; a later one of the process was heard before; it has not applied that it lost a
leadership, or is losing one; the controller may itself have been replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things take; the same on every node of a cluster.

    Attributes:
        heartbeat_interval_ms: Between two heartbeats of a node.
        lease_ms: From the sending of a heartbeat that is answered.
        drift_percent: By how much one node's monotonic clock may run faster than another's.
        unclean_wait_ms: How long no replica with every acked record is there before a stream that
            allows it gets a leader without.
        plan_interval_ms: Between two looks at what is to be moved.
        rebalance_after_ms: How long nodes neither came nor went before leaderships are evened out.
        moves_max: Partitions whose replicas move at a time.
        transfers_max: Leaderships handed over at a time.
    """

    heartbeat_interval_ms: int = 150
    lease_ms: int = 600
    drift_percent: int = 10
    unclean_wait_ms: int = 30_000
    plan_interval_ms: int = 1000
    rebalance_after_ms: int = 30_000
    moves_max: int = 4
    transfers_max: int = 8

    @property
    def lease_wait_ns(self) -> int:
        """How long after its last answer a controller takes a lease to be running."""
        return self.lease_ms * NS_PER_MS * (100 + self.drift_percent) // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """Where a node's replica stands.

    Attributes:
        leader_epoch: The epoch it knows.
        last_epoch: The epoch of the last frame in its log; 0: the log is empty.
        end_offset: The next offset to be written; `END_UNKNOWN` of a log that is not open.
        unfit: Why it cannot lead; empty: it can.
        resigned: It leads in no epoch up to `leader_epoch`, not even if it is fit again: what it
            wrote last may be lost.
        forgetful: It has lost ids or sequences of what was stored, and not got them back yet: it
            would store repeats. Another one is to lead, if there is one.
    """

    key: PartitionKey
    incarnation: str
    leader_epoch: int
    last_epoch: int
    end_offset: int
    unfit: Unfit = ""
    resigned: bool = False
    forgetful: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A node is there.

    Attributes:
        sequence: Rises with every heartbeat of one process.
        applied_index: It has applied the log of the metadata group up to there.
        reports: Of partitions that differ from what it said before; with `full`, of all.
        deaf: It has no connection to NATS: publishers do not reach it.
    """

    node: NodeId
    storage: str
    boot: str
    sequence: int
    applied_index: int
    reports: tuple[PartitionReport, ...] = ()
    full: bool = False
    deaf: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """A lease from the time the heartbeat was sent.

    Attributes:
        send_full: The next heartbeat is to report every partition.
    """

    boot: str
    sequence: int
    lease_ms: int
    send_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRefusal:
    """No lease."""

    boot: str
    sequence: int
    reason: Reason
    send_full: bool = False
