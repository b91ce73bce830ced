"""What partitions share, for tests that open them without a daemon: acks go nowhere."""

import random

from penstock.logd.ack_sender import AckSender
from penstock.logd.byte_budget import ByteBudget
from penstock.logd.core.replica import NodeId
from penstock.logd.core.servers import parse_servers
from penstock.logd.nats_dial import NatsAccess
from penstock.logd.nats_link import NatsLink
from penstock.logd.partition import Surroundings
from penstock.service.clock import SystemClock


def make_surroundings() -> Surroundings:
    link = NatsLink(
        NatsAccess(servers=parse_servers("nats://127.0.0.1:1")),
        name="",
        on_messages=print,
        rng=random.Random(1),
        clock=SystemClock(),
    )
    return Surroundings(
        node=NodeId("n"),
        budget=ByteBudget(1 << 20),
        acks=AckSender(link),
        clock=SystemClock(),
        streams_for=lambda _: (),
    )
