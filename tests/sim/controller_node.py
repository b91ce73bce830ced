"""A node of `controller_world`: what it runs, and what it has on its disk."""

from random import Random
from typing import Final

from penstock.logd.controller.controller import Controller
from penstock.logd.controller.liveness import NodeLease, Timing
from penstock.logd.metadata.records import PartitionKey
from penstock.logd.metadata.state import ClusterState

MS: Final = 1_000_000
FAULTS_NS: Final = 3500 * MS
RECOVERY_NS: Final = 2000 * MS
CALM_NS: Final = 2500 * MS
RAFT_LEASE_NS: Final = 350 * MS
DATA_TICK_NS: Final = 80 * MS
TIMING: Final = Timing(plan_interval_ms=200, rebalance_after_ms=1500, moves_max=2)

Entry = tuple[int, int]
LogKey = tuple[str, str, int]


class SimNode:
    """A machine with its disk, and the process that runs on it."""

    def __init__(self, name: str, random: Random, timing: Timing) -> None:
        self.name = name
        self.rate = random.uniform(0.955, 1.045)
        self.offset = random.randrange(10**12)
        self.timing = timing
        self.up = True
        self.paused_until = 0
        self.known = name
        self.hears, self.is_heard = True, True
        self.boots = 0
        self.storage = "disk-1"
        self.logs: dict[LogKey, list[Entry]] = {}
        self.snapshot: tuple[int, bytes] = (0, b"")
        self.start(ClusterState(), 0)

    def start(self, state: ClusterState, applied: int) -> None:
        self.boots += 1
        self.state, self.applied = state, applied
        self.lease = NodeLease(self.timing)
        self.controller = Controller(self.timing)
        self.raft_until = 0
        self.progress: dict[tuple[LogKey, int], dict[str, tuple[int, int]]] = {}
        self.pending: dict[LogKey, tuple[int, set[str]]] = {}
        self.failed: set[LogKey] = set()
        self.resigned: dict[LogKey, int] = {}
        self.timer = 0
        self.full = True

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    def clock(self, now: int) -> int:
        return self.offset + int(now * self.rate)

    def true_time(self, clock: int) -> int:
        return int((clock - self.offset) / self.rate) + 1

    def believes(self, now: int) -> list[tuple[LogKey, PartitionKey]]:
        """What it takes itself to lead."""
        if not self.up or not self.lease.is_valid(self.clock(now)):
            return []
        found = []
        for key, stream, partition in self.state.partitions():
            if partition.leader != self.name:
                continue
            log = (key.stream, stream.incarnation, key.partition)
            if self.resigned.get(log, 0) < partition.leader_epoch:
                found.append((log, key))
        return found
