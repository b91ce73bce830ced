"""The gRPC endpoint: which calls there are, who may make how many, and what is counted."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from typing_extensions import override

from penstock.logd.engine import Engine
from penstock.logd.liftbridge.config import GrpcSection
from penstock.logd.liftbridge.cursors import Positions
from penstock.logd.liftbridge.edge import Edge, GrpcDoor
from penstock.logd.liftbridge.errors import CallError, call_error
from penstock.logd.liftbridge.groups import Membership
from penstock.logd.liftbridge.managing import Managing
from penstock.logd.liftbridge.metadata import Describing
from penstock.logd.liftbridge.publishing import Context, Publishing
from penstock.logd.liftbridge.relay import Relay
from penstock.logd.liftbridge.subscribing import Subscribing
from penstock.logd.nats.dial import NatsAccess
from penstock.logd.tcp.listener import HANDSHAKE_S
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from penstock.service import UnavailableError
from penstock.service.clock import Clock
from penstock.service.config import split_host_port

SERVICE: Final = "proto.API"

_STOP_S: Final = 2.0
"""Seconds that calls under way have when logd stops; publishes among them get their acks."""

_METHODS: Final = wire.DESCRIPTOR.services_by_name["API"].methods_by_name
_Call = Callable[[Any, Context], Awaitable[Any]]


class GrpcServer:
    """Serves Liftbridge's API. Used on the event loop: `listen`, `run`, `stop`.

    Args:
        section: Of the configuration.
        engine: What keeps the streams.
        access: To NATS, for what is published here.
        node: This one's name.
        clock: For the connection to NATS.
        door: Its TLS, who may come in, and who may do what.

    Attributes:
        relay: For its connection to NATS.
    """

    def __init__(
        self,
        section: GrpcSection,
        engine: Engine,
        access: NatsAccess,
        *,
        node: str,
        clock: Clock,
        door: GrpcDoor,
    ) -> None:
        self._permits = permits = door.permits
        self.relay = Relay(access, node=node, bytes_max=section.publish_bytes_max, clock=clock)
        self._section = section
        self._door = door
        self._edge = Edge(door.authenticator, SERVICE)
        self._guard = _Guard(section.calls_max)
        self._subscribing = Subscribing(
            engine.streams, permits, subscriptions_max=section.subscriptions_max
        )
        self._health = health.HealthServicer()
        self._server = self._make(engine)

    def listen(self) -> str:
        """Bind the address; returns it with the port in use. Nobody is answered before `start`.

        Raises:
            UnavailableError: It cannot be listened on.
        """
        address = self._section.listen
        try:
            credentials = self._door.credentials()
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            message = f"grpc.listen: {address} cannot be listened on: {error}"
            fix = "stop whoever listens there, or choose another address"
            raise UnavailableError(message, fix=fix) from None
        host, _ = split_host_port(address)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Take no more calls, and end those under way after a while."""
        await self._health.enter_graceful_shutdown()
        self._subscribing.stopping = True
        await self._server.stop(_STOP_S)

    def info(self) -> dict[str, Any]:
        """For `/status`."""
        return {
            "calls": self._guard.calls,
            "subscriptions": self._subscribing.open,
            "messages_sent": self._subscribing.sent,
            "publishes_waiting_bytes": self.relay.gate.held,
            "nats_connected": self.relay.link.connected,
        }

    def metrics(self) -> Iterable[Metric]:
        """For Prometheus."""
        calls = CounterMetricFamily(
            "penstock_logd_grpc_calls", "Calls ended", labels=["method", "code"]
        )
        for (method, code), count in dict(self._guard.ended).items():
            calls.add_metric([method, code], count)
        publishes = CounterMetricFamily(
            "penstock_logd_grpc_publishes", "Publishes by what became of them", labels=["what"]
        )
        for what, count in dict(self.relay.counts).items():
            publishes.add_metric([what], count)
        yield from (calls, publishes)
        sent = CounterMetricFamily("penstock_logd_grpc_messages_sent", "Messages to subscribers")
        sent.add_metric([], self._subscribing.sent)
        yield sent
        for name, text, value in (
            ("grpc_calls_open", "Calls under way", self._guard.calls),
            ("grpc_subscriptions", "Subscriptions", self._subscribing.open),
            ("grpc_publish_bytes", "Bytes that wait for acks", self.relay.gate.held),
        ):
            gauge = GaugeMetricFamily(f"penstock_logd_{name}", text)
            gauge.add_metric([], value)
            yield gauge

    def _make(self, engine: Engine) -> grpc.aio.Server:
        section = self._section
        server = grpc.aio.server(
            interceptors=(self._edge, self._guard),  # in order
            options=(
                ("grpc.max_receive_message_length", section.message_bytes_max),
                ("grpc.max_send_message_length", -1),  # what is stored is to be had
                ("grpc.max_concurrent_streams", section.calls_per_connection_max),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
                ("grpc.keepalive_time_ms", int(section.keepalive_s * 1000)),
                ("grpc.keepalive_timeout_ms", int(section.keepalive_s * 1000)),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ),
        )
        streams, cursors = engine.streams, engine.cursors
        permits = self._permits
        managing, positions = Managing(streams, permits.creator), Positions(streams, cursors)
        membership = Membership(engine.groups, streams, timeout_s=section.consumer_timeout_s)
        describing = Describing(streams, cursors, membership, permits.guard)
        publishing = Publishing(streams, self.relay, permits, timeout_s=section.publish_timeout_s)
        calls: dict[str, _Call] = {
            "CreateStream": managing.create,
            "DeleteStream": managing.delete,
            "PauseStream": managing.pause,
            "SetStreamReadonly": managing.set_readonly,
            "Subscribe": self._subscribing.subscribe,
            "FetchMetadata": describing.fetch,
            "FetchPartitionMetadata": describing.fetch_partition,
            "Publish": publishing.publish,
            "PublishAsync": publishing.publish_async,
            "PublishToSubject": publishing.publish_to_subject,
            "SetCursor": positions.set,
            "FetchCursor": positions.fetch,
            "JoinConsumerGroup": membership.join,
            "LeaveConsumerGroup": membership.leave,
            "FetchConsumerGroupAssignments": membership.assignments,
            "ReportConsumerGroupCoordinator": membership.report,
        }
        handlers = {
            name: _handler(name, permits.around(name, call)) for name, call in calls.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server


class _Guard(grpc.aio.ServerInterceptor):
    """Bounds the calls under way, counts them, and says what went wrong with them.

    Attributes:
        calls: Under way.
        ended: By method and status code.
    """

    def __init__(self, calls_max: int) -> None:
        self.calls = 0
        self.ended: Counter[tuple[str, str]] = Counter()
        self._calls_max = calls_max

    @override
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.strip("/").partition("/")
        if handler is None or service != SERVICE:
            return handler  # nobody's, or the health service's, which answers in any case
        if handler.request_streaming:
            return handler._replace(stream_stream=self._around(method, handler.stream_stream))
        if handler.response_streaming:
            return handler._replace(unary_stream=self._around(method, handler.unary_stream))
        return handler._replace(unary_unary=self._around(method, handler.unary_unary))

    def _around(self, method: str, call: _Call) -> _Call:
        async def guarded(request: Any, context: Context) -> Any:
            self.calls += 1
            code = grpc.StatusCode.CANCELLED
            try:
                self._check_room()
                answer = await call(_sound(request), context)
                code = grpc.StatusCode.OK
            except Exception as error:  # noqa: BLE001 - one call must not end the daemon
                found = call_error(error, method)
                code = found.code
                await context.abort(code, str(found), found.trailers())
            else:
                return answer
            finally:
                self.calls -= 1
                self.ended[method, code.name] += 1

        return guarded

    def _check_room(self) -> None:
        if self.calls > self._calls_max:
            text = f"{self._calls_max} calls are under way already; try again later"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text, limit=self._calls_max)


class _Malformed(Exception):  # noqa: N818 - a value, raised where it can be told
    """A request that is no message of its method."""


def _parse(kind: Any, data: bytes) -> Any:
    """A request; one that is none is told of where everything is, not by gRPC as UNKNOWN."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        return _Malformed(str(error))


def _sound(request: Any) -> Any:
    """A request, or each of a stream of them.

    Raises:
        CallError: It could not be read.
    """
    if isinstance(request, _Malformed):
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"request: {request}")
    return _each_sound(request) if hasattr(request, "__aiter__") else request


async def _each_sound(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _sound(request)


def _handler(name: str, call: _Call) -> Any:
    """What gRPC needs to know of a method."""
    method = _METHODS[name]
    many_in, many_out = method.client_streaming, method.server_streaming
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[many_in, many_out]
    request = getattr(wire, method.input_type.name)
    response = getattr(wire, method.output_type.name)
    return make(
        call,
        request_deserializer=lambda data: _parse(request, data),
        response_serializer=response.SerializeToString,
    )
