"""The Splunk sink: events for the HTTP Event Collector, with indexer acknowledgement.

    POST URL/services/collector/event
    Authorization: Splunk TOKEN
    {"time":1795000000.123456,"source":"checkout","sourcetype":"penstock:log",
     "event":{…},"fields":{"penstock_id":"logs.5f2c19aa/0/120","penstock_kind":"log"}}{…

Objects follow one another without a separator. `event` is the record as it lies in the log.
`fields.penstock_id` is its place there, the same whenever it is sent: HEC recognises nothing that
comes again, but a search can (`| dedup penstock_id`).

With `acknowledge: true` a request counts as delivered once Splunk has answered that it is indexed
(`/services/collector/ack`), and is sent again when it has not after `acknowledge_timeout_s`; the
token must have "indexer acknowledgement" on. Without it, what an indexer holds in memory when it
dies is lost.

HEC indexes the objects before a bad one and none after it, and names it; what is behind it is
sent again. Codes are those of "Troubleshoot HTTP Event Collector" in Splunk's documentation.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson
from pydantic import Field
from typing_extensions import override

from penstock.router.columns.json_objects import write_json
from penstock.router.delivery.classify import HttpResponse, Meaning, classify_response, to_result
from penstock.router.delivery.result import (
    Accepted,
    DeliveryResult,
    Fault,
    PartialFailure,
    Rejected,
    Success,
)
from penstock.router.job.settings import Seconds
from penstock.router.sinks.http.client import HttpRequest
from penstock.router.sinks.http.encode import document_of, event_id, section, time_ns
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Replay, SinkContext
from penstock.service.config_types import Secret

_EVENT_PATH: Final = "/services/collector/event"
_ACK_PATH: Final = "/services/collector/ack"

_CODES: Final[Mapping[int, Meaning]] = {
    **dict.fromkeys((1, 2, 3, 4), Meaning.PAUSED),  # the token
    **dict.fromkeys((10, 11, 14, 16), Meaning.PAUSED),  # the channel; how the token is given
    **dict.fromkeys((9, 18, 19, 20, 23, 26, 27), Meaning.BUSY),
    8: Meaning.FAILED,
}
"""Codes in the body that say more than HTTP's."""

_INVALID_FORMAT: Final = 6
_INCORRECT_INDEX: Final = 7
_OF_ONE_EVENT: Final = frozenset({5, 6, 12, 13, 15, 28})


class SplunkHecSink(HttpTaskSettings):
    """Events for Splunk's HTTP Event Collector."""

    type: Literal["splunk_hec"]
    token: Secret
    index: str | None = None
    source: str | None = None
    sourcetype: str = "penstock:{kind}"
    acknowledge: bool = False
    acknowledge_timeout_s: Seconds = 300.0
    acknowledge_interval_s: Seconds = 1.0
    max_unacknowledged: Annotated[int, Field(ge=1, le=10_000)] = 100

    @override
    def about(self) -> str:
        return f"Splunk's event collector at {self.shown_url}; at least once"


class SplunkHec(HttpTaskSink):
    """Posts events; see the module's docstring."""

    config_class = SplunkHecSink
    _config: SplunkHecSink
    guarantee = Guarantee(
        Replay.AT_LEAST_ONCE,
        "each event carries its position in the log as `penstock_id`, so a search can `dedup` it",
    )

    def __init__(self, config: SplunkHecSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._policy = replace(
            self._policy,
            confirm_s=config.acknowledge_timeout_s,
            confirm_every_s=config.acknowledge_interval_s,
            max_unconfirmed=config.max_unacknowledged,
        )
        # The same in the tasks that send and in the driver, which asks for acknowledgements.
        self._channel = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{context.job}/{context.sink}"))

    @override
    def encode(self, row: Row) -> Item | Fault:
        record = document_of(row)
        resource = section(record, "resource")
        seconds, rest_ns = divmod(self._time_ns(row, record), 1_000_000_000)
        kind = str(row["kind"])
        about: dict[str, Any] = {
            "time": msgspec.Raw(f"{seconds}.{rest_ns // 1000:06}".encode()),
            "host": resource.get("host.name") or record.get("host"),
            "source": self._config.source or resource.get("service.name") or record.get("app"),
            "sourcetype": self._config.sourcetype.replace("{kind}", kind),
            "index": self._config.index,
            "event": record,
            "fields": {"penstock_id": event_id(row, self.context), "penstock_kind": kind},
        }
        body = write_json({name: value for name, value in about.items() if value is not None})
        return Item(body, len(body))

    @override
    def place_of(self, row: Row) -> str | None:
        index = f"index={self._config.index} " if self._config.index is not None else ""
        sourcetype = self._config.sourcetype.replace("{kind}", str(row["kind"]))
        return f'{index}sourcetype="{sourcetype}" penstock_id="{event_id(row, self.context)}"'

    def _time_ns(self, row: Row, record: dict[str, Any]) -> int:
        """The record's; an event that the step `map: splunk_cim` made has it in seconds."""
        moment_s = record.get("_time")
        if "time_unix_nano" not in record and isinstance(moment_s, int | float):
            return round(moment_s * 1_000_000) * 1000
        return time_ns(row, record)

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        body = b"".join(item.content for item in request.items)
        return HttpRequest(
            self.path(_EVENT_PATH), *self._headers(body), compression=self._config.compression,
            secrets=self._secrets(),
        )  # fmt: skip

    def _headers(self, body: bytes) -> tuple[dict[str, str], bytes]:
        headers = {"Content-Type": "application/json"}
        if self._config.acknowledge:
            headers["X-Splunk-Request-Channel"] = self._channel
        return headers, body

    def _secrets(self) -> dict[str, str]:
        return {**self.own_headers(), "Authorization": f"Splunk {self._config.token.read()}"}

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        said = read_answer(answer)
        verdict = classify_answer(answer, said, len(request.items))
        if isinstance(verdict, PartialFailure) and self._config.acknowledge:
            # What stood before the bad one was taken, but will never be acknowledged.
            if not verdict.refused:
                return classify_response(answer)
            refused = {at for at, _ in verdict.refused}
            rest = (at for at in range(len(request.items)) if at not in refused)
            return PartialFailure(verdict.refused, again=tuple(rest))
        if isinstance(verdict, Success) and self._config.acknowledge:
            ack = said.get("ackId")
            if ack is not None:
                return Accepted(str(ack))
            self.context.meter.count("unacknowledged", len(request.items))
        return verdict

    @override
    def confirmed(self, tokens: Sequence[str]) -> Iterable[str]:
        body = orjson.dumps({"acks": [int(token) for token in tokens]})
        path = self.query(self.path(_ACK_PATH), f"channel={self._channel}")
        try:
            answer = self.fetch(HttpRequest(path, *self._headers(body), secrets=self._secrets()))
        except OSError:
            return []
        found = read_answer(answer).get("acks") if answer and answer.status == 200 else None
        if not isinstance(found, dict):
            self.context.meter.count("acknowledgements_unanswered")
            return []
        return [token for token in tokens if found.get(token) is True]


def read_answer(answer: HttpResponse) -> dict[str, Any]:
    """HEC's JSON object; empty where something else answered."""
    try:
        found = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def classify_answer(answer: HttpResponse, said: Mapping[str, Any], count: int) -> DeliveryResult:
    """Return the result of HEC's answer to `count` objects."""
    code = said.get("code")
    if answer.status == 200:
        return Success()
    if isinstance(code, int) and code in _CODES:
        return to_result(_CODES[code], answer)
    bad = said.get("invalid-event-number")
    verdict = classify_response(answer)
    if answer.status != 400 or not isinstance(bad, int) or not 0 <= bad < count:
        return verdict
    reason = f"Splunk says {said.get('text', '')!r} (code {code})"
    fault = Fault(f"splunk_{code}", reason, answer.status)
    if code == _INCORRECT_INDEX:
        # Versions differ on whether the number is the bad object's or the next one's. What is
        # certainly before it is indexed; the rest is found out by sending it again.
        return PartialFailure(again=tuple(range(bad - 1, count))) if bad >= 2 else verdict
    if code in _OF_ONE_EVENT:
        # Splunk Cloud says of a body that is too large that its first event has no valid format.
        whole = code == _INVALID_FORMAT and bad == 0 and count > 1
        alone = (bad, replace(fault, about_record=True))
        found = PartialFailure(refused=(alone,), again=tuple(range(bad + 1, count)))
        return Rejected(fault) if whole else found
    return verdict
