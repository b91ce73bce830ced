"""OTLP over gRPC: the method ``Export`` of the services for logs, traces and metrics.

gRPC's own server bounds neither its connections nor what it reads of them. So connections are
accepted, counted and passed on by a `Listener` of ours, to a socket that has no name in any
directory; and a request is not read before there is room for the largest that is allowed, which
gRPC's flow control tells the sender. What it turns out to be smaller is given back then.

The first connection has gRPC and the decoder imported and the server started: 13 MiB that a
collector does without before. Where that fails the connection ends, for senders try that again, but
not a request that fails. A server with a certificate is started at once.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.base.lazy_module import LazyModule
from penstock.collector.decode.otlp.messages import DECODER, SIGNALS, Encoding, Signal
from penstock.collector.limits import READ_BYTES, REQUEST_TIMEOUT_S
from penstock.collector.sources.network.listener import Listener
from penstock.collector.sources.otlp.response import Answer, Code, Take, come_again
from penstock.collector.sources.otlp.settings import OtlpSettings
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import SpoolWriter
from penstock.service import UnavailableError

if TYPE_CHECKING:
    import grpc
    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, bytes]
    Export = Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]
else:
    grpc = LazyModule("grpc")

_STREAMS_MAX: Final = 64
"""Requests at once on one connection."""
_DESCRIPTORS_EACH: Final = 3
"""The sender's connection, and both ends of the one to gRPC's server."""
_STOP_GRACE_S: Final = 2.0


class OtlpGrpc:
    """One gRPC server.

    Args:
        section: The source's configuration.
        take: Makes a request's records durable, or says why not.

    Attributes:
        socket: Name of the socket of gRPC's own server, among abstract ones.
    """

    def __init__(self, section: OtlpSettings, take: Take, spool_writer: SpoolWriter) -> None:
        self._name = spool_writer.source
        self._take = take
        self._spool_writer = spool_writer
        self._log = structlog.get_logger().bind(source=spool_writer.source)
        self._max_message_bytes = section.max_message_bytes
        self._reuse_port = section.reuse_port
        self._calls = 0
        self.socket = f"penstock-otlp-{secrets.token_hex(16)}"
        self._listener = Listener(
            self._name,
            self._relay,
            max_connections=section.max_connections,
            note=spool_writer.note,
            descriptors=spool_writer.share.descriptors,
            each=_DESCRIPTORS_EACH,
        )
        self._starting = asyncio.Lock()
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str, credentials: "grpc.ServerCredentials | None") -> str:
        """Listen; returns the address in use.

        Raises:
            UnavailableError: The address is taken or not ours.
        """
        if credentials is not None:
            self._server = await self._started(credentials)
        try:
            await self._listener.listen_tcp(address, key="grpc", reuse_port=self._reuse_port)
        except UnavailableError:
            await self.stop()
            raise
        assert self._listener.endpoint is not None
        return self._listener.endpoint

    async def stop(self) -> None:
        """Refuse what comes and let what is being taken end."""
        try:
            async with self._starting:  # the first connection may have it started just now
                if self._server is not None:
                    await self._server.stop(_STOP_GRACE_S)
        finally:
            await self._listener.close()

    async def _started(self, credentials: "grpc.ServerCredentials | None") -> "grpc.aio.Server":
        """A server at our socket.

        Raises:
            UnavailableError: gRPC cannot listen there.
        """
        for name in ("grpc", DECODER):  # 60 ms, in which others are served
            await asyncio.to_thread(import_module, name)
        options = (
            ("grpc.max_receive_message_length", self._max_message_bytes),
            ("grpc.max_concurrent_streams", _STREAMS_MAX),
            ("grpc.http2.bdp_probe", 0),  # windows stay small: what they allow is read unasked
            ("grpc.http2.lookahead_bytes", READ_BYTES),
        )
        server = grpc.aio.server(options=options)
        for signal in SIGNALS:
            handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(
                self._method(signal)  # on the wire the same, but called before it is read
            )
            service = grpc.method_handlers_generic_handler(signal.service, {"Export": handler})
            server.add_generic_rpc_handlers((service,))
        inner = f"unix-abstract:{self.socket}"
        try:
            if credentials is None:
                server.add_insecure_port(inner)
            else:
                server.add_secure_port(inner, credentials)
        except RuntimeError as error:
            raise UnavailableError(
                f"source {self._name}: gRPC cannot be served: {error}",
                fix="see whether the machine is out of file descriptors or memory",
            ) from None
        await server.start()
        return server

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection's bytes on, both ways, until either side ends it."""
        try:
            async with self._starting:
                if self._server is None:
                    self._server = await self._started(None)
        except (UnavailableError, ImportError, OSError) as error:  # the next connection tries again
            self._log.error("grpc_unavailable", error=str(error))
            return
        ours, inner = await asyncio.open_unix_connection(f"\0{self.socket}", limit=READ_BYTES)
        ways = [asyncio.ensure_future(_pump(*way)) for way in ((reader, inner), (ours, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            inner.close()  # first: we may be cancelled again while we wait
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def _method(self, signal: Signal) -> "Export":
        async def export(requests: AsyncIterator[bytes], context: "Context") -> bytes:
            with Charge(self._spool_writer.share) as charge:
                answer = await self._export(signal, requests, charge)
            if answer.code is not Code.OK:
                context.set_trailing_metadata((("grpc-status-details-bin", answer.body),))
                codes = {int(it.value[0]): it for it in grpc.StatusCode}
                await context.abort(codes[answer.code], answer.message)
            return answer.body

        return export

    async def _export(
        self, signal: Signal, requests: AsyncIterator[bytes], charge: Charge
    ) -> Answer:
        limits = self._spool_writer.limits
        if self._calls >= limits.otlp_max_calls:
            return self._come_again("too many requests at once")
        self._calls += 1
        until_s = asyncio.get_running_loop().time() + limits.request_room_wait_s
        try:
            if not await charge.wait(self._max_message_bytes, limits.request_room_wait_s):
                return self._come_again("too much is being received at once")
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                body = await anext(requests, b"")
            charge.split(max(0, charge.size - len(body))).close()
            return await self._take(signal, body, Encoding.PROTOBUF, charge, until_s)
        except TimeoutError:
            return self._come_again(f"the request did not arrive within {REQUEST_TIMEOUT_S:g} s")
        finally:
            self._calls -= 1

    def _come_again(self, message: str) -> Answer:
        self._spool_writer.note("requests_deferred")
        return come_again(Encoding.PROTOBUF, Code.RESOURCE_EXHAUSTED, message)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()
