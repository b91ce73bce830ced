"""OTLP over gRPC: the method ``Export`` of the services for logs, traces and metrics."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from penstock.collector.decode.otlp_messages import SIGNALS, Encoding, Signal
from penstock.collector.sources.otlp_answer import Answer, Code
from penstock.service import UnavailableError

Take = Callable[[Signal, bytes, Encoding], Awaitable[Answer]]
_STREAMS_MAX: Final = 64
"""Requests at once on one connection."""
_STOP_GRACE_S: Final = 2.0
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class OtlpGrpc:
    """One gRPC server.

    Args:
        name: Of the source, for messages.
        take: Makes a request's records durable, or says why not.
        message_bytes_max: Of a request, before and after decompression; gRPC itself refuses more.
        reuse_port: Other processes of this user may listen there, too.
    """

    def __init__(
        self, name: str, take: Take, *, message_bytes_max: int, reuse_port: bool = False
    ) -> None:
        self._name = name
        self._take = take
        options = (
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_concurrent_streams", _STREAMS_MAX),
            ("grpc.so_reuseport", int(reuse_port)),
        )
        self._server = grpc.aio.server(options=options)
        for signal in SIGNALS:
            handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
                self._method(signal)
            )
            service = grpc.method_handlers_generic_handler(signal.service, {"Export": handler})
            self._server.add_generic_rpc_handlers((service,))

    async def start(self, address: str, credentials: grpc.ServerCredentials | None) -> str:
        """Listen; returns the address in use.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            raise UnavailableError(
                f"source {self._name}: cannot listen on {address}",
                fix="stop what uses the port, or set another with the source's key `grpc`",
            )
        await self._server.start()
        return f"{address.rpartition(':')[0]}:{port}"

    async def stop(self) -> None:
        """Refuse what comes and let what is being taken end."""
        await self._server.stop(_STOP_GRACE_S)

    def _method(self, signal: Signal) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def export(
            request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]"
        ) -> bytes:
            answer = await self._take(signal, request, Encoding.PROTOBUF)
            if answer.code is not Code.OK:
                context.set_trailing_metadata((("grpc-status-details-bin", answer.body),))
                await context.abort(_CODES[answer.code], answer.message)
            return answer.body

        return export
