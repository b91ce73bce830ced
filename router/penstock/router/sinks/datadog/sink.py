"""The Datadog sink: logs and metrics to its intake, traces to a Datadog Agent.

    POST https://http-intake.logs.SITE/api/v2/logs     an array of logs
    POST https://api.SITE/api/v2/series                {"series":[{"metric":…,"points":[…]}]}
    POST AGENT/v0.4/traces                             msgpack: an array of traces
    DD-API-KEY: KEY                                    (not to the Agent)

What is no metric and no span is a log. `datadog_bodies` says how records are mapped. Spans need
`agent_url`: the public intake of traces is for Agents alone.

Datadog recognises nothing that comes again. Each log and span has its position in the log as
`penstock_id`; a gauge of the same second and tags replaces itself, and what is a count (sums of
delta temporality) counts twice after a crash.

An intake says 202 to what it then drops or cuts off, so that is refused here and becomes a dead
letter: a log of more than 1 MB, or more than two hours ahead of (`logs_future_s`) or 18 behind the
router's clock (`logs_past_s`), and a point more than ten minutes ahead (`future_s`) or an hour
behind (`past_s`; larger where "historical metrics ingestion" is on). It names no
record that it refuses with 400: those are looked for in halves. What it rejects in an answer of 202
it does not name either, so the whole request becomes dead letters. A limit of Datadog's rate of
metrics says in `X-RateLimit-Reset` when to come again.
"""

from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

import msgspec
import orjson
from pydantic import HttpUrl, model_validator
from typing_extensions import override

from penstock.router.columns.json_objects import write_json
from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.classify import classify_response as usual_result
from penstock.router.delivery.result import DeliveryResult, Fault, PartialFailure, Paused, Success
from penstock.router.job.settings import Seconds
from penstock.router.sinks.datadog.encode import log_of, metric_name, series_of, span_of, traces_of
from penstock.router.sinks.http.client import HttpRequest, Transport
from penstock.router.sinks.http.encode import document_of, event_id, record_of, time_ns, untimely
from penstock.router.sinks.http.metric_names import MetricNames
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Preview, Replay, SinkContext
from penstock.service.config_types import Form, Secret

_LOGS_MAX: Final = 1000
_REQUEST_BYTES_MAX: Final = 5_000_000
_LOG_BYTES_MAX: Final = 1_000_000
"""Limits of Datadog's "Send logs": logs and bytes of a request, bytes of a log.

Those of metrics are larger.
"""

_PATHS: Final = {"logs": "/api/v2/logs", "metrics": "/api/v2/series", "traces": "/v0.4/traces"}
_TAKEN: Final = {"logs": 202, "metrics": 202, "traces": 200}
_Site = Annotated[
    str,
    Form(r"^[a-z0-9][a-z0-9.-]{3,60}$", "a host's name of a-z 0-9 . -, as in datadoghq.com"),
]


class DatadogSink(HttpTaskSettings):
    """Logs, metrics and traces for Datadog."""

    type: Literal["datadog"]
    api_key: Secret
    site: _Site = "datadoghq.com"
    url: HttpUrl = HttpUrl("https://http-intake.logs.datadoghq.com")
    metrics_url: HttpUrl = HttpUrl("https://api.datadoghq.com")
    agent_url: HttpUrl | None = None
    future_s: Seconds = 600.0
    past_s: Seconds = 3600.0
    logs_future_s: Seconds = 2 * 3600.0
    logs_past_s: Seconds = 18 * 3600.0

    @model_validator(mode="before")
    @classmethod
    def _urls_are_those_of_the_site(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        site = given.get("site", "datadoghq.com")
        logs = given.get("url", f"https://http-intake.logs.{site}")
        metrics = given.get("url", f"https://api.{site}")
        return {**given, "url": logs, "metrics_url": given.get("metrics_url", metrics)}

    @model_validator(mode="after")
    def _requests_are_not_larger_than_datadog_takes(self) -> Self:
        if self.batch.max_records > _LOGS_MAX or self.batch.max_bytes > _REQUEST_BYTES_MAX:
            raise ValueError(f"batch: at most {_LOGS_MAX} records and {_REQUEST_BYTES_MAX} bytes")
        return self

    @override
    def about(self) -> str:
        return f"Datadog at {self.shown_url}; at least once"


class Datadog(HttpTaskSink):
    """Posts logs, series and traces; see the module's docstring."""

    config_class = DatadogSink
    _config: DatadogSink
    guarantee = Guarantee(
        Replay.AT_LEAST_ONCE,
        "logs and spans carry their position in the log as `penstock_id`, a gauge of the same"
        " second replaces itself, counts count again",
    )

    def __init__(self, config: DatadogSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._urls = {"logs": str(config.url), "metrics": str(config.metrics_url)}
        if config.agent_url is not None:
            self._urls["traces"] = str(config.agent_url)
        self._transports: dict[str, Transport] = {}
        self._names = MetricNames(context.sink, context.meter)

    @override
    def open(self) -> None:
        self._transports = {group: self._transport_to(url) for group, url in self._urls.items()}

    @override
    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()

    @override
    def encode(self, row: Row) -> Item | Fault | None:
        record, index = record_of(row), event_id(row, self.context)
        if record is not None and row["kind"] == "metric":
            return self._points(record)
        if record is not None and row["kind"] == "span":
            if "traces" not in self._urls:
                return Fault("no_agent", "Datadog takes spans by its Agent alone: set agent_url")
            span = msgspec.msgpack.encode(span_of(record, index))
            return Item((record["trace_id"], span), len(span), "traces")
        document = document_of(row) if record is None else record
        moment_ns = time_ns(row, document)
        config = self._config
        if fault := self._untimely(moment_ns, config.logs_future_s, config.logs_past_s):
            return fault
        body = write_json(log_of(document, moment_ns, index))
        if len(body) > _LOG_BYTES_MAX:
            return Fault("log_too_large", f"{len(body)} bytes; Datadog would cut it off")
        return Item(body, len(body) + 1, "logs")

    @override
    def place_of(self, row: Row) -> str | None:
        record = record_of(row)
        if record is not None and row["kind"] == "metric":
            return f"metric {metric_name(str(record.get('name')))}"
        return f'@penstock_id:"{event_id(row, self.context)}"'

    def _points(self, record: dict[str, Any]) -> Item | Fault | None:
        config = self._config
        if fault := self._untimely(record["time_unix_nano"], config.future_s, config.past_s):
            return fault
        self._names.note(record["name"], metric_name(record["name"]))
        series = series_of(record)
        if not series:
            self.context.meter.count("left_out_not_finite")
            return None
        body = orjson.dumps(series)[1:-1]
        return Item(body, len(body) + 1, "metrics")

    def _untimely(self, moment_ns: int, future_s: float, past_s: float) -> Fault | None:
        ahead_ns, fate = moment_ns - self.context.clock.unix_ns(), "Datadog would drop it"
        return untimely(ahead_ns, future_s=future_s, past_s=past_s, fate=fate)

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        group, contents = request.group, _contents(request)
        headers, secrets = {"Content-Type": "application/json"}, self.own_headers()
        compression = self._config.compression
        if group == "traces":
            traces = traces_of([(trace, msgspec.Raw(span)) for trace, span in contents])
            body = msgspec.msgpack.encode(traces)
            headers = {"Content-Type": "application/msgpack"}
            headers["X-Datadog-Trace-Count"] = str(len(traces))
            compression = "none"
        else:
            joined = b",".join(contents)
            body = b'{"series":[' + joined + b"]}" if group == "metrics" else b"[" + joined + b"]"
            secrets["DD-API-KEY"] = self._config.api_key.read()
        path = urlsplit(self._urls[group]).path.rstrip("/") + _PATHS[group]
        return HttpRequest(path, headers, body, compression, secrets=secrets)

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        self._towards(request.group)
        self._transport = self._transports[request.group]
        return super().exchange(request, attempt)

    @override
    def show(self, request: Request) -> Preview:
        self._towards(request.group)
        shown = super().show(request)
        if request.group != "traces":
            return shown
        spans = [(trace, msgspec.msgpack.decode(it)) for trace, it in _contents(request)]
        body = orjson.dumps(traces_of(spans)).decode()
        return Preview(shown.target, shown.records, body, shown.headers)

    def _towards(self, group: str) -> None:
        """Set the address of the group in work, which messages show."""
        parts = urlsplit(self._urls[group])
        self.address = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        return classify_answer(answer, request.group, len(request.items))


def _contents(request: Request) -> list[Any]:
    return [item.content for item in request.items]


def classify_answer(answer: HttpResponse, group: str, count: int) -> DeliveryResult:
    """Return the result of Datadog's answer to `count` records of a group."""
    if answer.status // 100 == 2:
        return _taken(answer, group, count)
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.status == 429 and not answer.after_s and reset.isdecimal():
        answer = HttpResponse(answer.status, answer.headers, answer.body, float(reset))
    return usual_result(answer)


def _taken(answer: HttpResponse, group: str, count: int) -> DeliveryResult:
    """Return the result of a 2xx; one that Datadog does not use comes from a proxy in between."""
    if answer.status != _TAKEN[group]:
        return Paused(f"not an answer of Datadog: {answer.fault.reason}")
    try:
        said = orjson.loads(answer.body) if group == "metrics" else {}
    except orjson.JSONDecodeError:
        said = {}
    errors = said.get("errors") if isinstance(said, dict) else None
    if not errors:
        return Success()
    reason = f"Datadog took the request but for some of its {count} records: {str(errors)[:200]}"
    fault = Fault("datadog_errors", reason, answer.status)
    return PartialFailure(refused=tuple((index, fault) for index in range(count)))
