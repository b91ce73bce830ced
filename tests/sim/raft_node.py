"""One simulated node: a Raft member, its disk, its state machine, and a clock of its own."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from penstock.logd.raft import Persist, Raft, RaftConfig
from penstock.logd.raft.messages import MILLISECOND
from penstock.logd.replication.events import NodeId
from tests.sim.raft_checkers import Chain
from tests.sim.raft_storage import SimStorage


def sim_config(node: NodeId, disk: str = "") -> RaftConfig:
    """A fifth of the default times, for more elections, and bounds so small that they are met."""
    return RaftConfig(
        node=node,
        group="sim",
        disk=disk,
        election_timeout_min_ns=80 * MILLISECOND,
        election_timeout_max_ns=160 * MILLISECOND,
        heartbeat_ns=20 * MILLISECOND,
        append_bytes_max=150,
        inflight_messages_max=3,
        inflight_bytes_max=300,
        entry_bytes_max=100,
        uncommitted_bytes_max=600,
        apply_bytes_max=200,
        reads_max=4,
        snapshot_chunk_bytes=80,
        snapshot_bytes_max=200,
        snapshot_entries=15,
        entries_kept=4,
        promotion_lag_max=5,
    )


@dataclass(frozen=True)
class Write:
    """A proposal that became an entry."""

    tag: int
    index: int
    term: int


@dataclass(eq=False)
class Node:
    """A node that runs; a crash ends it and only its storage stays.

    Attributes:
        rate: How fast its clock runs; `now_ns` is the world's.
        applied, chain: The state machine.
        promised_ns: Until when, on its clock, it may vote for nobody but its leader.
        writing: What waits until its disk is free.
        batch: What its disk was told and has not finished.
        writes: Proposals that wait, by index.
        reads: Tags of reads that wait.
        paused_until_ns: It does nothing before.
        disk: Directory id; empty: nobody has one.
    """

    name: NodeId
    storage: SimStorage
    world_now_ns: list[int]
    random: Random
    rate: float
    offset_ns: int
    applied: int = 0
    chain: Chain = 0
    promised_ns: int = 0
    writing: deque[Persist] = field(default_factory=deque)
    batch: deque[Persist] = field(default_factory=deque)
    writes: dict[int, Write] = field(default_factory=dict)
    reads: set[int] = field(default_factory=set)
    paused_until_ns: int = 0
    wakes_ns: int = -1
    up: bool = True
    disk: str = ""

    def __post_init__(self) -> None:
        self.raft = Raft(sim_config(self.name, self.disk), self.storage.recover(), self.random)

    def clock_ns(self) -> int:
        """Its monotonic clock now."""
        return self.offset_ns + int(self.world_now_ns[0] * self.rate)

    def world_ns(self, clock_ns: int) -> int:
        """The world's time at which the clock shows this, or a little later."""
        return int((clock_ns - self.offset_ns) / self.rate) + MILLISECOND // 100
