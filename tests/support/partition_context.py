"""What partitions share, for tests that open them without a daemon: acks go nowhere."""

import random
from typing import Final

from penstock.base.clock import Clock, SystemClock
from penstock.logd.encryption.master_keys import MasterKeys
from penstock.logd.intake.admission import NEVER_LEAVE, AdmissionPolicy, ByteBudget, DiskSpace
from penstock.logd.limits import FRAMES_UNREMEMBERED_MAX
from penstock.logd.nats.connect import NatsAccess
from penstock.logd.nats.link import NatsLink
from penstock.logd.nats.servers import parse_servers
from penstock.logd.partition.acks import AckSender, LoopDispatcher
from penstock.logd.partition.context import PartitionContext
from penstock.logd.partition.log_writer import WriterPool
from penstock.logd.replication.events import NodeId
from penstock.logd.storage import REAL_DISK, Disk
from penstock.service.tracing.spans import Tracer

WRITER_POOL: Final = WriterPool()
"""Its threads are not ended, as those of a daemon are not: all tests share them."""


class QuietLink:
    """A link for the data of streams that brings nothing."""

    def subscribe(self, subject: str, queue: str = "") -> bytes:
        return subject.encode()

    async def confirmed(self, sid: bytes) -> None:
        pass

    def unsubscribe(self, sid: bytes) -> None:
        pass

    pause = resume = unsubscribe


def make_context(
    *,
    budget_bytes: int = 1 << 20,
    clock: Clock | None = None,
    admission: AdmissionPolicy = NEVER_LEAVE,
    space: DiskSpace | None = None,
    masters: MasterKeys | None = None,
    tracer: Tracer | None = None,
    disk: Disk = REAL_DISK,
    frames_unremembered_max: int = FRAMES_UNREMEMBERED_MAX,
) -> PartitionContext:
    link = NatsLink(
        NatsAccess(servers=parse_servers("nats://127.0.0.1:1")),
        name="",
        on_messages=print,
        rng=random.Random(1),
        clock=SystemClock(),
    )
    dispatcher = LoopDispatcher()
    return PartitionContext(
        node=NodeId("n"),
        budget=ByteBudget(budget_bytes),
        acks=AckSender(link, dispatcher),
        dispatcher=dispatcher,
        writer_pool=WRITER_POOL,
        clock=clock or SystemClock(),
        admission=admission,
        space=space or DiskSpace(),
        masters=masters or MasterKeys({}),
        streams_for=lambda _: (),
        knows_stream=lambda _: False,
        tracer=tracer,
        disk=disk,
        frames_unremembered_max=frames_unremembered_max,
    )
