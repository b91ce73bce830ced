"""Who takes part in `groups_world`: nodes that coordinate, and clients that are members."""

from random import Random
from typing import Final

from penstock.logd.controller.group_messages import Member
from penstock.logd.controller.groups import GroupCoordinator
from penstock.logd.metadata.records import GroupPartition, ReplicationOptions
from penstock.logd.metadata.state import ClusterState

MS: Final = 1_000_000
FAULTS_NS: Final = 12_000 * MS
END_NS: Final = 18_000 * MS
SESSION_MS: Final = 1000
RAFT_LEASE_NS: Final = 350 * MS
ONE: Final = ReplicationOptions(replication_factor=1)


class Machine:
    """Something with a clock that may pause or stop."""

    def __init__(self, random: Random) -> None:
        self.rate = random.uniform(0.955, 1.045)
        self.offset = random.randrange(10**12)
        self.paused_until = 0
        self.up = True
        self.timer = 0

    def clock(self, now: int) -> int:
        return self.offset + int(now * self.rate)

    def true_time(self, clock: int) -> int:
        return int((clock - self.offset) / self.rate) + 1


class Node(Machine):
    def __init__(self, random: Random, drift_percent: int) -> None:
        super().__init__(random)
        self.state = ClusterState()
        self.applied = 0
        self.core = GroupCoordinator(drift_percent=drift_percent)
        self.raft_until = 0


class Client(Machine):
    def __init__(self, random: Random, member: str, streams: tuple[str, ...]) -> None:
        super().__init__(random)
        self.name, self.streams = member, streams
        self.core = Member("g", member, streams, session_ms=SESSION_MS)
        self.offsets: dict[GroupPartition, int] = {}
