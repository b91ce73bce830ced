"""Requests of gRPC are read when there is room for them, and give it back whatever happens."""

import asyncio
from typing import Any

import grpc
import pytest

from penstock.logd.errors import RefusedError
from penstock.logd.liftbridge.calls import PLAIN_BYTES_MAX, REQUEST_S, CallGuard, Requests
from penstock.logd.liftbridge.errors import CallError, call_error
from penstock.logd.net.byte_semaphore import ByteSemaphore
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from tests.support.waiting import wait_until_async

MOST = 256 * 1024


class Sending:
    """A call's context; its request is there when a test says so."""

    def __init__(self, request: Any = None) -> None:
        self.request = request
        self.there = asyncio.Event()
        self.read_from = asyncio.Event()
        if request is not None:
            self.there.set()

    async def read(self) -> Any:
        self.read_from.set()
        await self.there.wait()
        return self.request


async def held(request: Any, _: Any) -> Any:
    """A method that is not done before its task is cancelled."""
    del request
    await asyncio.Event().wait()


async def echo(request: Any, _: Any) -> Any:
    return request


def requests(
    room: int = 2 * MOST, *, max_streams: int = 1, request_s: float = REQUEST_S
) -> Requests:
    return Requests(
        ByteSemaphore(room),
        bytes_max=MOST,
        received_max=MOST,
        max_streams=max_streams,
        request_s=request_s,
    )


async def test_requests_are_read_when_there_is_room_for_them() -> None:
    reading = requests()
    call = reading.handler("Publish", held).stream_unary
    slow = [Sending() for _ in range(3)]
    calls = [asyncio.create_task(call(None, one)) for one in slow]
    await slow[0].read_from.wait()
    await slow[1].read_from.wait()
    assert reading.room.held == 2 * MOST
    assert not slow[2].read_from.is_set()  # though all of it may have come
    slow[0].request = wire.PublishRequest(value=b"x")
    slow[0].there.set()
    calls[1].cancel()
    await slow[2].read_from.wait()
    for one in calls:
        one.cancel()
    await asyncio.wait(calls)
    assert reading.room.held == 0


async def test_a_request_holds_what_it_is_long_until_it_is_done() -> None:
    reading = requests()
    request = wire.PublishRequest(value=b"x" * 1000)
    call = asyncio.create_task(
        reading.handler("Publish", held).stream_unary(None, Sending(request))
    )
    await wait_until_async(lambda: reading.room.held == request.ByteSize())
    call.cancel()
    await asyncio.wait([call])
    assert reading.room.held == 0


async def test_a_request_that_does_not_come_is_given_up() -> None:
    reading = requests(request_s=0.01)
    with pytest.raises(CallError, match="did not come") as refused:
        await reading.handler("Publish", echo).stream_unary(None, Sending())
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    assert reading.room.held == 0


@pytest.mark.parametrize(
    ("method", "request_", "problem"),
    [
        ("SetCursor", wire.SetCursorRequest(stream="x" * PLAIN_BYTES_MAX), "up to 65536"),
        ("Publish", grpc.aio.EOF, "there is none"),
    ],
)
async def test_what_is_no_request_is_refused(method: str, request_: Any, problem: str) -> None:
    reading = requests()
    with pytest.raises(CallError, match=problem) as refused:
        await reading.handler(method, echo).stream_unary(None, Sending(request_))
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert reading.room.held == 0


async def test_a_malformed_request_is_refused_where_it_is_told() -> None:
    handler = requests().handler("Publish", echo)
    with pytest.raises(CallError, match="request: ") as refused:
        await handler.stream_unary(None, Sending(handler.request_deserializer(b"\xff")))
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_of_publishes_are_bounded() -> None:
    reading = requests(max_streams=1)
    call = reading.handler("PublishAsync", held).stream_stream
    first = asyncio.create_task(call(None, Sending()))
    await asyncio.sleep(0)
    assert reading.streams == 1
    with pytest.raises(CallError, match="1 streams of publishes"):
        await call(None, Sending())
    first.cancel()
    await asyncio.wait([first])
    assert reading.streams == 0


async def test_calls_are_bounded_once_it_is_known_whose_they_are() -> None:
    authorizer = CallGuard(max_calls=1)
    with authorizer.under_way():
        assert authorizer.calls == 1
        with pytest.raises(CallError, match="1 calls are under way") as refused:
            authorizer.under_way().__enter__()
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    assert authorizer.calls == 0


@pytest.mark.parametrize(
    "refusal",
    ["BUSY", "NOT_LEADER", "NOT_YET", "STALE_EPOCH", "STALE_VERSION", "STREAM_DELETING",
     "TOO_MANY_REQUESTS", "UNAVAILABLE"],
)  # fmt: skip
def test_what_passes_by_itself_is_to_be_tried_again(refusal: str) -> None:
    error = call_error(RefusedError(refusal, "not now"), "CreateStream")
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert ("penstock-refusal", refusal) in error.trailers()
