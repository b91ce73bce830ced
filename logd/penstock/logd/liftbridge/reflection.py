"""gRPC reflection: tools such as grpcurl ask the endpoint which calls and messages there are.

It is served on request (`grpc.reflection`), under the names of both versions, whose messages are
the same on the wire. It tells what is public, but its calls last as long as a client likes: so
clients are authenticated for it, and its calls count against `calls_max`, as Liftbridge's do.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

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
