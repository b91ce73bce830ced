"""Around every call: how many there may be, whose request is read when, what is counted.

gRPC runs the code of a method with one request only when that has been read whole, for any sender
it. So to gRPC every method takes a stream of requests, which on the wire is the same: the code runs
when a call's headers are there, and reads a request once it is known whose it is and there is room
for the largest that it may be.

gRPC reflection: tools such as grpcurl ask the endpoint which calls and messages there are.

It is served on request (`grpc.reflection`), under the names of both versions, whose messages are
the same on the wire. It tells what is public, but its calls last as long as a client likes: so
clients are authenticated for it, and its calls count against `max_calls`, as Liftbridge's do.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio
from typing_extensions import override

from penstock.logd.liftbridge.errors import CallError, call_error
from penstock.logd.liftbridge.permissions import PUBLISHING
from penstock.logd.liftbridge.publish import Context, check_size
from penstock.logd.net.byte_semaphore import ByteSemaphore
from penstock.logd.wire import logd_liftbridge_pb2 as wire

SERVICES: Final = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


def reflection_handlers(*services: str) -> tuple[Any, ...]:
    """Generic handlers of reflection that describe these services, and itself."""
    servicer = aio.ReflectionServicer([*services, *SERVICES])

    async def info(requests: AsyncIterator[Any], context: Any) -> None:
        async for answer in servicer.ServerReflectionInfo(requests, context):
            await context.write(answer)

    handler = grpc.stream_stream_rpc_method_handler(
        info,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        for name in SERVICES
    )


SERVICE: Final = "proto.API"
GUARDED: Final = (SERVICE, *SERVICES)
"""Services whose callers are authenticated, and whose calls are bounded and counted."""

PLAIN_BYTES_MAX: Final = 64 * 1024
"""Bytes of a request that publishes nothing; some are held for as long as a subscription lasts."""

REQUEST_S: Final = 10.0
"""Seconds that a request may take to arrive, waiting for room included."""

_METHODS: Final = wire.DESCRIPTOR.services_by_name["API"].methods_by_name
Call = Callable[[Any, Context], Awaitable[Any]]


class CallGuard(grpc.aio.ServerInterceptor):
    """Bounds the calls under way, counts them, and says what went wrong with them.

    Args:
        max_calls: Calls under way of those who may make any.

    Attributes:
        calls: Number of calls in progress.
        ended: Number of ended calls by method and status code.
    """

    def __init__(self, max_calls: int) -> None:
        self.calls = 0
        self.ended: Counter[tuple[str, str]] = Counter()
        self._max_calls = max_calls

    @override
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.strip("/").partition("/")
        if handler is None or service not in GUARDED:
            return handler  # nobody's, or the health service's, which answers in any case
        return wrapped(handler, lambda call: self._context(method, call))

    def _context(self, method: str, call: Call) -> Call:
        async def guarded(requests: Any, context: Context) -> Any:
            code = grpc.StatusCode.CANCELLED
            try:
                answer = await call(requests, context)
                code = grpc.StatusCode.OK
            except Exception as error:  # noqa: BLE001 - one call must not end the daemon
                found = call_error(error, method)
                code = found.code
                await context.abort(code, str(found), found.trailers())
            else:
                return answer
            finally:
                self.ended[method, code.name] += 1

        return guarded

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A call goes on: it is known whose it is, or that need not be.

        Those that are refused before take no place from others.

        Raises:
            CallError: There are too many.
        """
        if self.calls >= self._max_calls:
            text = f"{self._max_calls} calls are under way already; try again later"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text, limit=self._max_calls)
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1


class Requests:
    """Reads requests, as far as there is room for them. Used on the event loop.

    Args:
        room: Bytes of requests that are read or worked on, those of streams once they are read.
        bytes_max: Maximum bytes of one request.
        received_max: Maximum bytes of a request that is read; above `bytes_max` it is refused then.
        max_streams: Calls with streams of requests, each of which may hold one besides.
        request_s: Seconds that a request may take to come.

    Attributes:
        room: The argument.
        streams: Calls with streams of requests now.
    """

    def __init__(
        self,
        room: ByteSemaphore,
        *,
        bytes_max: int,
        received_max: int,
        max_streams: int,
        request_s: float = REQUEST_S,
    ) -> None:
        self.room = room
        self.streams = 0
        self._bytes_max = bytes_max
        self._received_max = received_max
        self._max_streams = max_streams
        self._request_s = request_s

    def handler(self, name: str, call: Call) -> Any:
        """Return gRPC's handler of a method.

        Args:
            name: The method's name.
            call: Receives its request, or an async iterator over them.
        """
        method = _METHODS[name]
        make: Any = (
            grpc.stream_stream_rpc_method_handler
            if method.server_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        request = getattr(wire, method.input_type.name)
        response = getattr(wire, method.output_type.name)
        return make(
            self._many(call) if method.client_streaming else self._one(name, call),
            request_deserializer=lambda data: _parse(request, data),
            response_serializer=response.SerializeToString,
        )

    def _one(self, name: str, call: Call) -> Call:
        most = self._bytes_max if name in PUBLISHING else PLAIN_BYTES_MAX

        async def read(_: Any, context: Context) -> Any:
            taken = 0
            try:
                try:
                    async with asyncio.timeout(self._request_s):
                        taken = await self.room.take(self._received_max)
                        request = _sound(await context.read())
                except TimeoutError:
                    raise _too_slow(self._request_s) from None
                kept = request.ByteSize()
                check_size(kept, most)
                taken -= self._give(taken - min(kept, taken))
                return await call(request, context)
            finally:
                self.room.give(taken)

        return read

    def _give(self, size: int) -> int:
        self.room.give(size)
        return size

    def _many(self, call: Call) -> Call:
        async def read(requests: Any, context: Context) -> Any:
            if self.streams >= self._max_streams:
                text = f"there are {self.streams} streams of publishes already; try again later"
                raise CallError(grpc.StatusCode.UNAVAILABLE, text, limit=self._max_streams)
            self.streams += 1
            try:
                return await call(_each_sound(requests), context)
            finally:
                self.streams -= 1

        return read


def wrapped(handler: Any, intercept: Callable[[Call], Call]) -> Any:
    """A handler of the service, with something around what it calls."""
    if handler.response_streaming:
        return handler._replace(stream_stream=intercept(handler.stream_stream))
    return handler._replace(stream_unary=intercept(handler.stream_unary))


def _too_slow(request_s: float) -> CallError:
    text = f"request: it did not come within {request_s:g} s, or there was no room to read it"
    return CallError(grpc.StatusCode.UNAVAILABLE, text)


class _Malformed(Exception):  # noqa: N818 - a value, raised where it can be told
    """A request that is no message of its method."""


def _parse(kind: Any, data: bytes) -> Any:
    """A request; one that is malformed is refused where all errors are, not by gRPC as UNKNOWN."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        return _Malformed(str(error))


def _sound(request: Any) -> Any:
    """A request.

    Raises:
        CallError: There is none, or it could not be read.
    """
    if request is grpc.aio.EOF:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, "request: there is none")
    if isinstance(request, _Malformed):
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"request: {request}")
    return request


async def _each_sound(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _sound(request)
