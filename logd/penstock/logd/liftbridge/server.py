"""The gRPC endpoint: which calls there are, who may make how many, and what is counted."""

from collections.abc import Iterable
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from prometheus_client.core import Metric

from penstock.base.clock import Clock
from penstock.base.sockets import split_host_port
from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.liftbridge.admin import AdminService, CursorService, MetadataService
from penstock.logd.liftbridge.auth import AuthInterceptor, GrpcListener
from penstock.logd.liftbridge.calls import SERVICE, Call, CallGuard, Requests, reflection_handlers
from penstock.logd.liftbridge.config import GrpcSection
from penstock.logd.liftbridge.groups import GroupService
from penstock.logd.liftbridge.publish import PublishService, Relay
from penstock.logd.liftbridge.subscribe import SubscribeService
from penstock.logd.metrics import family, value_of
from penstock.logd.nats.connect import NatsAccess
from penstock.logd.net.byte_semaphore import ByteSemaphore
from penstock.logd.net.listener import HANDSHAKE_S
from penstock.service import UnavailableError

_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_STOP_S: Final = 2.0
"""Seconds that calls under way have when logd stops; publishes among them get their acks."""

_WINDOW_BYTES: Final = 64 * 1024
"""Bytes of a call that a client may send before they are read; HTTP/2's own default."""

_IDLE_S: Final = 60.0
"""Seconds without a call after which a connection is closed; clients open another by themselves."""


class GrpcServer:
    """Serves Liftbridge's API. Used on the event loop: `listen`, `run`, `stop`.

    Args:
        section: Section of the configuration.
        engine: Engine that keeps the streams.
        access: Access to NATS, for relayed publishes.
        node: This one's name.
        clock: Clock of the connection to NATS.
        listener: Its TLS, authentication and authorization.

    Attributes:
        relay: Relay with its connection to NATS.
    """

    def __init__(
        self,
        section: GrpcSection,
        engine: ClusterEngine,
        access: NatsAccess,
        *,
        node: str,
        clock: Clock,
        listener: GrpcListener,
    ) -> None:
        self._permits = permits = listener.permits
        self.relay = Relay(access, node=node, bytes_max=section.max_publish_bytes, clock=clock)
        self._section = section
        self._listener = listener
        self._authorizer = CallGuard(section.max_calls)
        self._edge = AuthInterceptor(listener.authenticator, self._authorizer)
        self._requests = Requests(
            ByteSemaphore(section.max_request_bytes),
            bytes_max=section.max_message_bytes,
            received_max=section.received_bytes_max,
            max_streams=section.max_publish_streams,
        )
        self._subscriptions_here = SubscribeService(
            engine.streams, permits, max_subscriptions=section.max_subscriptions
        )
        self._health = health.HealthServicer()
        self._server = self._make(engine)

    def listen(self) -> str:
        """Bind the address; returns it with the port in use. No call is answered before `start`.

        Raises:
            UnavailableError: It cannot be listened on.
        """
        address = self._section.listen
        try:
            credentials = self._listener.credentials()
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            message = f"grpc.listen: {address} cannot be listened on: {error}"
            fix = "stop the process that listens there, or choose another address"
            raise UnavailableError(message, fix=fix) from None
        host, _ = split_host_port(address)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def run(self) -> None:
        """Keep the connection to NATS until cancelled."""
        await self.relay.link.run()

    async def stop(self) -> None:
        """Take no more calls, and end those under way after a while."""
        await self._health.enter_graceful_shutdown()
        self._subscriptions_here.stopping = True
        await self._server.stop(_STOP_S)

    def info(self) -> dict[str, Any]:
        """Return the fields for `/status`."""
        return {
            "calls": self._authorizer.calls,
            "subscriptions": self._subscriptions_here.open,
            "publish_streams": self._requests.streams,
            "request_bytes": self._requests.room.held,
            "messages_sent": self._subscriptions_here.sent,
            "publishes_waiting_bytes": self.relay.gate.held,
            "nats_connected": self.relay.link.connected,
        }

    def metrics(self) -> Iterable[Metric]:
        yield family("grpc_calls", dict(self._authorizer.ended).items())
        outcomes = dict(self.relay.counts)
        yield family("grpc_publishes", [((outcome,), count) for outcome, count in outcomes.items()])
        yield value_of("grpc_messages_sent", self._subscriptions_here.sent)
        yield value_of("grpc_calls_open", self._authorizer.calls)
        yield value_of("grpc_subscriptions", self._subscriptions_here.open)
        yield value_of("grpc_publish_streams", self._requests.streams)
        yield value_of("grpc_request_bytes", self._requests.room.held)
        yield value_of("grpc_publish_bytes", self.relay.gate.held)

    def _make(self, engine: ClusterEngine) -> grpc.aio.Server:
        section = self._section
        server = grpc.aio.server(
            interceptors=(self._authorizer, self._edge),  # in order
            options=server_options(section),
        )
        streams, cursors = engine.streams, engine.cursors
        permits = self._permits
        managing, positions = (
            AdminService(streams, permits.creator),
            CursorService(streams, cursors),
        )
        membership = GroupService(engine.groups, streams, timeout_s=section.consumer_timeout_s)
        describing = MetadataService(streams, cursors, membership, permits.authorizer)
        publishing = PublishService(
            streams,
            self.relay,
            permits,
            room=self._requests.room,
            bytes_max=section.max_message_bytes,
            timeout_s=section.publish_timeout_s,
        )
        calls: dict[str, Call] = {
            "CreateStream": managing.create,
            "DeleteStream": managing.delete,
            "PauseStream": managing.pause,
            "SetStreamReadonly": managing.set_readonly,
            "Subscribe": self._subscriptions_here.subscribe,
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
            name: self._requests.handler(name, permits.intercept(name, call))
            for name, call in calls.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if section.reflection:
            server.add_generic_rpc_handlers(reflection_handlers(SERVICE, _HEALTH))
        return server


def server_options(section: GrpcSection, *, idle_s: float = _IDLE_S) -> tuple[tuple[str, int], ...]:
    """Return gRPC's own limits on clients."""
    return (
        ("grpc.max_receive_message_length", section.received_bytes_max),
        ("grpc.max_send_message_length", -1),  # what is stored is to be had
        ("grpc.max_concurrent_streams", section.max_calls_per_connection),
        ("grpc.max_allowed_incoming_connections", section.max_connections),
        ("grpc.max_connection_idle_ms", int(idle_s * 1000)),
        ("grpc.http2.bdp_probe", 0),  # else a window grows to MiB for quick senders
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.keepalive_time_ms", int(section.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(section.keepalive_s * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    )
