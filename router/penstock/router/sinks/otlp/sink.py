"""The OTLP sink: logs, traces and metrics for any OpenTelemetry receiver, over HTTP or gRPC.

    POST URL/v1/logs, /v1/traces, /v1/metrics         application/x-protobuf
    opentelemetry.proto.collector.logs.v1.LogsService/Export, and so on

Records become OTLP's messages by the tables of `penstock.specs.formats.otlp`; events and audit
records are log records, and so is a row that is no record, its value being the body. Records of one
resource and scope that follow one another share them.

OTLP knows no identity: a record that is sent again is there again, unless the destination itself
tells spans by their ids, points by their series and time, and logs by `log.record.uid`.

A partial success names a number and no records, and must not be sent again. All records of such a
request go to the dead letters, where the reason says how many of them the destination has.
"""

from typing import Any, Final, Literal, Self

from pydantic import model_validator
from typing_extensions import override

from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import DeliveryResult, Fault
from penstock.router.job.config_errors import needed
from penstock.router.sinks.http.client import HttpRequest
from penstock.router.sinks.http.encode import Json, document_of
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HIDDEN, HttpTaskSettings
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext
from penstock.specs.formats.otlp import to_otlp

_MAPPING_ERRORS: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


class OtlpSink(HttpTaskSettings):
    """Logs, traces and metrics by OTLP."""

    type: Literal["otlp"]
    protocol: Literal["http", "grpc"] = "http"

    @model_validator(mode="after")
    def _grpc_has_the_compression(self) -> Self:
        if self.protocol == "grpc" and self.compression == "zstd":
            raise ValueError("compression: gRPC has gzip and none; zstd is for protocol: http")
        return self

    @override
    def about(self) -> str:
        return f"OTLP over {self.protocol} to {self.shown_url}; at least once"


class Otlp(HttpTaskSink):
    """Exports records; see the module's docstring."""

    config_class = OtlpSink
    _config: OtlpSink
    guarantee = Guarantee(
        Replay.AT_LEAST_ONCE,
        "the same records with the same ids",
    )

    def __init__(self, config: OtlpSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._messages = needed("penstock.router.sinks.otlp.encode", extra="otlp")
        self._grpc: Any = None
        if config.protocol == "grpc":
            self._grpc = needed("penstock.router.sinks.otlp.client", extra="otlp")
        self._channel: Any = None

    @override
    def open(self) -> None:
        super().open()
        if self._grpc is not None:
            self._channel = self._grpc.Channel(self._config, self.context.clock)

    @override
    def close(self) -> None:
        super().close()
        if self._channel is not None:
            self._channel.close()

    @override
    def encode(self, row: Row) -> Item | Fault:
        document = document_of(row)
        resource = document.pop("resource", None)
        try:
            element = _element(document, row)
            signal, content, size = self._messages.encode_element(element, resource)
        except _MAPPING_ERRORS as error:
            return Fault("not_encodable", f"{type(error).__name__}: {error}")
        return Item(content, size, signal)

    @override
    def place_of(self, row: Row) -> str | None:
        """Return the ids that the record has by itself: OTLP gives it none."""
        record = document_of(row)
        if row["kind"] == "span":
            return f"trace {record.get('trace_id')}, span {record.get('span_id')}"
        named = record.get("record_id")
        return None if row["kind"] == "metric" or named is None else f"log.record.uid {named}"

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        return HttpRequest(
            self.path(f"/v1/{request.group}"),
            {"Content-Type": "application/x-protobuf"},
            self._body(request),
            self._config.compression,
            secrets=self.own_headers(),
        )

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        if self._channel is None:
            return super().exchange(request, attempt)
        signal = self._messages.SIGNALS[request.group]
        verdict: DeliveryResult = self._channel.export(
            signal, self._body(request), len(request.items)
        )
        return verdict

    @override
    def show(self, request: Request) -> Preview:
        if self._config.protocol == "http":
            return super().show(request)
        names = sorted(name.lower() for name in self._config.headers)
        method = self._messages.SIGNALS[request.group].method
        return Preview(
            f"gRPC {self._config.url.host}:{self._config.url.port}{method}",
            len(request.items),
            self._body(request).decode(errors="replace"),
            tuple((name, HIDDEN) for name in names),
        )

    def _body(self, request: Request) -> bytes:
        body: bytes = self._messages.join_elements([item.content for item in request.items])
        return body

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        if answer.status == 200:
            signal = self._messages.SIGNALS[request.group]
            found: DeliveryResult = self._messages.partial_success(
                signal, answer.body, len(request.items)
            )
            return found
        return super().classify_answer(answer, request)


def _element(document: Json, row: Row) -> Json:
    """The record in OTLP's JSON, one element of a request."""
    if document["kind"] != "raw":
        return to_otlp(document)
    text = document.get("value")
    body = {"bytesValue": document["value_base64"]} if text is None else {"stringValue": text}
    fields = {
        "timeUnixNano": str(row["timestamp_ns"]),
        "body": body,
        "attributes": [{"key": "penstock.subject", "value": {"stringValue": row["subject"]}}],
    }
    return {"resource": {}, "scopeLogs": [{"logRecords": [fields]}]}
