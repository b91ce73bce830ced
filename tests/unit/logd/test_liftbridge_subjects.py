"""What a gRPC client may have logd publish on: nothing that is NATS's or logd's own."""

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.publish import PublishService
from penstock.logd.net.byte_semaphore import ByteSemaphore
from penstock.logd.wire import logd_liftbridge_pb2 as wire


class Permissive:
    """Allows everything, as `publish` on `*` does."""

    async def publish_to_subject(self, *_: object) -> None:
        """Allowed."""


class Relayed:
    """Takes down where a message goes, and that it was stored."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    async def publish(self, subject: str, *_: object, **__: object) -> wire.Ack:
        self.subjects.append(subject)
        return wire.Ack()

    def forward(self, inbox: str, _: wire.Ack) -> None:
        self.subjects.append(inbox)


@pytest.mark.parametrize(
    ("subject", "inbox"),
    [
        ("$JS.API.STREAM.DELETE.orders", ""),
        ("$SYS.REQ.SERVER.PING", ""),
        ("_INBOX.abc.1", ""),
        ("_PENSTOCK.PROBE.1", ""),
        ("orders", "$JS.API.STREAM.DELETE.orders"),
        ("orders", "_PENSTOCK.PROBE.1"),
    ],
)
async def test_logd_publishes_for_nobody_where_no_stream_stores(subject: str, inbox: str) -> None:
    relay: Any = Relayed()
    permits: Any = Permissive()
    nothing: Any = None
    context: Any = SimpleNamespace(time_remaining=lambda: 1.0)
    publishing = PublishService(
        nothing, relay, permits, room=ByteSemaphore(1 << 20), bytes_max=1 << 20, timeout_s=1
    )
    request = wire.PublishToSubjectRequest(subject=subject, ackInbox=inbox)
    with pytest.raises(CallError) as refused:
        await publishing.publish_to_subject(request, context)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert relay.subjects == []
    request = wire.PublishToSubjectRequest(subject="orders", ackInbox="_INBOX.mine")
    await publishing.publish_to_subject(request, context)
    assert relay.subjects == ["orders", "_INBOX.mine"]
