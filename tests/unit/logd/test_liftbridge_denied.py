"""A message that PublishAsync denies is taken down, though the call goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from penstock.logd.errors import RefusedError
from penstock.logd.liftbridge.permissions import CallAuthorization
from penstock.logd.liftbridge.publish import PublishService
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.net.byte_semaphore import ByteSemaphore
from penstock.logd.security.principal import end_call, set_caller
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from tests.support.guarded_api import Recorder, guarded, somebody


class Call:
    """A stream of publishes and its answers, as gRPC has them."""

    def __init__(self, *requests: wire.PublishRequest) -> None:
        self.answers: list[wire.PublishResponse] = []
        self._requests = requests

    async def requests(self) -> AsyncIterator[wire.PublishRequest]:
        for request in self._requests:
            yield request

    async def write(self, answer: wire.PublishResponse) -> None:
        self.answers.append(answer)


def test_a_denied_message_of_many_is_taken_down(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path, StreamConfig(name="orders", subject="orders")) as found:
            recorder = Recorder()
            permits = CallAuthorization(
                found.authorizer, found.throttle, found.permits, recorder, lambda _: ""
            )
            nothing: Any = None
            publishing = PublishService(
                found.engine.streams,
                nothing,
                permits,
                room=ByteSemaphore(1 << 20),
                bytes_max=1 << 20,
                timeout_s=1,
            )
            before = set_caller(somebody("bob"))
            call = Call(wire.PublishRequest(stream="orders", value=b"x"))
            await publishing.publish_async(call.requests(), cast("Any", call))
            end_call(before)
            (answer,) = call.answers
            assert answer.asyncError.code == wire.PublishAsyncError.PERMISSION_DENIED
            ((kind, by, facts),) = recorder.recorded
            assert (kind, by, facts["result"]) == ("access.denied", "bob", "PERMISSION_DENIED")
            assert facts["request"]["stream"] == "orders"
            assert facts["request"]["api"] == "PublishAsync"

    asyncio.run(main())


def test_what_was_done_outlasts_the_machine_before_whoever_called_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path, StreamConfig(name="orders", subject="orders")) as found:
            recorder = Recorder()
            permits = CallAuthorization(
                found.authorizer, found.throttle, found.permits, recorder, lambda _: ""
            )

            async def done(*_: object) -> str:
                return "done"

            delete = permits.intercept("DeleteStream", done)
            nothing: Any = None
            for name, kept in (("root", 1), ("bob", 1), ("root", 3)):
                before = set_caller(somebody(name))
                with suppress(RefusedError):
                    await delete(wire.DeleteStreamRequest(name="orders"), nothing)
                end_call(before)
                assert recorder.kept_count == kept, "not what was denied"
            assert [kind for kind, *_ in recorder.recorded] == [
                "stream.delete", "access.denied", "stream.delete"
            ]  # fmt: skip

    asyncio.run(main())
