"""A message that PublishAsync denies is taken down, though the call goes on."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.logd.core.metadata import StreamConfig
from penstock.logd.errors import RefusedError
from penstock.logd.fetch.groups import LoneGroups
from penstock.logd.liftbridge.gate import Gate
from penstock.logd.liftbridge.permits import CallPermits
from penstock.logd.liftbridge.publishing import Publishing
from penstock.logd.security.principal import end_call, set_caller
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from tests.support.guarded_api import Recorder, guarded, somebody


def test_a_denied_message_of_many_is_taken_down(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path, StreamConfig(name="orders", subject="orders")) as found:
            recorder = Recorder()
            permits = CallPermits(
                found.guard, found.api._throttle, LoneGroups("me"), recorder, lambda _: ""
            )
            nothing: Any = None
            publishing = Publishing(
                found.inner._streams,
                nothing,
                permits,
                room=Gate(1 << 20),
                bytes_max=1 << 20,
                timeout_s=1,
            )
            before = set_caller(somebody("bob"))
            answer = await publishing._answer(wire.PublishRequest(stream="orders", value=b"x"))
            end_call(before)
            assert answer is not None
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
            permits = CallPermits(
                found.guard, found.api._throttle, LoneGroups("me"), recorder, lambda _: ""
            )

            async def done(*_: object) -> str:
                return "done"

            delete = permits.around("DeleteStream", done)
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
