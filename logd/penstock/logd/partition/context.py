"""The context that all partitions of a daemon share."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.logd.compaction.scheduler import CompactionThread
from penstock.logd.encryption.master_keys import MasterKeys
from penstock.logd.intake.admission import NEVER_LEAVE, AdmissionPolicy, ByteBudget, DiskSpace
from penstock.logd.limits import FRAMES_UNREMEMBERED_MAX
from penstock.logd.partition.acks import AckSender, LoopDispatcher
from penstock.logd.partition.log_writer import WriterPool
from penstock.logd.replication.events import NodeId
from penstock.logd.storage.disk import REAL_DISK, Disk

if TYPE_CHECKING:
    from penstock.service.tracing.spans import Tracer


class StreamLookup(Protocol):
    """Finds the streams of the cluster, as the node knows them."""

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the streams that store what is published on a subject."""
        ...

    def knows(self, stream: str) -> bool: ...


class PartitionContext(Struct, frozen=True):
    """Services that all partitions of a daemon share."""

    node: NodeId
    budget: ByteBudget
    acks: AckSender
    dispatcher: LoopDispatcher
    writer_pool: WriterPool
    clock: Clock
    streams_for: Callable[[str], Collection[str]]
    knows_stream: Callable[[str], bool]
    retention_interval_s: float = 30.0
    admission: AdmissionPolicy = NEVER_LEAVE
    space: DiskSpace = msgspec.field(default_factory=DiskSpace)
    compaction_thread: CompactionThread | None = None
    masters: MasterKeys = msgspec.field(default_factory=lambda: MasterKeys({}))
    tracer: "Tracer | None" = None
    disk: Disk = REAL_DISK
    frames_unremembered_max: int = FRAMES_UNREMEMBERED_MAX
