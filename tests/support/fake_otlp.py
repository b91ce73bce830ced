"""A fake OTLP receiver over HTTP and gRPC, made of the official messages.

It is written from the OpenTelemetry protocol specification. What it is sent again it stores again,
as the specification allows; a record with a certain text is rejected in a partial success.
"""

import gzip
import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from typing_extensions import override

from tests.support.fault_door import Answered, Asked, Backend

if TYPE_CHECKING:
    from collections.abc import Callable

_REQUESTS: Final[dict[str, tuple[Any, Any, str]]] = {
    "logs": (logs.ExportLogsServiceRequest, logs.ExportLogsServiceResponse, "log_records"),
    "traces": (traces.ExportTraceServiceRequest, traces.ExportTraceServiceResponse, "spans"),
    "metrics": (
        metrics.ExportMetricsServiceRequest,
        metrics.ExportMetricsServiceResponse,
        "data_points",
    ),
}


class FakeOtlp(Backend):
    """Keeps what it is sent.

    Attributes:
        members: Log records, spans and metrics in protobuf's JSON, by signal.
        rejected_text: A log record whose body holds it is rejected.
        refuses: Asked before each gRPC call; raises or aborts by the context it is given.
        exports: Requests that were taken.
    """

    def __init__(self) -> None:
        self.members: dict[str, list[dict[str, Any]]] = {name: [] for name in _REQUESTS}
        self.rejected_text = "POISON"
        self.exports = 0
        self.refuses: list[Callable[[Any], None]] = []
        self._lock = threading.Lock()

    @override
    def handle(self, asked: Asked) -> Answered:
        signal = asked.path.removeprefix("/v1/")
        if signal not in _REQUESTS:
            return Answered(404)
        if asked.headers.get("content-type") != "application/x-protobuf":
            return Answered(415)
        body = asked.body
        if asked.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        try:
            answer = self.export(signal, body)
        except DecodeError:
            return Answered(400, b"not protobuf")
        return Answered(200, answer, {"Content-Type": "application/x-protobuf"})

    def export(self, signal: str, body: bytes) -> bytes:
        """Take a request; returns the response's bytes."""
        request_type, response_type, counted = _REQUESTS[signal]
        request = MessageToDict(request_type.FromString(body))
        rejected = 0
        with self._lock:
            self.exports += 1
            for element in next(iter(request.values()), ()):
                scopes = next(value for key, value in element.items() if key.startswith("scope"))
                for scope in scopes:
                    key = next(k for k in ("logRecords", "spans", "metrics") if k in scope)
                    for member in scope[key]:
                        if self.rejected_text in str(member.get("body")):
                            rejected += 1
                        else:
                            found = {"resource": element.get("resource"), "scope": scope}
                            self.members[signal].append(member | {"_of": found})
        response = response_type()
        if rejected:
            refusal = type(response.partial_success)
            response.partial_success.CopyFrom(
                refusal(
                    **{f"rejected_{counted}": rejected},
                    error_message="some bodies were poisonous",
                )
            )
        return bytes(response.SerializeToString())


def serve_grpc(fake: FakeOtlp, credentials: Any = None) -> tuple[Any, int]:
    """A gRPC server for the fake, with TLS where it has credentials; returns it and its port."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    services = {"logs": "logs.v1.Logs", "traces": "trace.v1.Trace", "metrics": "metrics.v1.Metrics"}
    for signal, name in services.items():

        def export(body: bytes, context: Any, signal: str = signal) -> bytes:
            if fake.refuses:
                fake.refuses.pop(0)(context)
            return fake.export(signal, body)

        def checked(body: bytes, signal: str = signal) -> bytes:
            """As they came, for a test may look at each byte; gRPC answers what is no request."""
            _REQUESTS[signal][0].FromString(body)
            return body

        handler: Any = grpc.unary_unary_rpc_method_handler(export, request_deserializer=checked)
        service = f"opentelemetry.proto.collector.{name}Service"
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
        )
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, port
