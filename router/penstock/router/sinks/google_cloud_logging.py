"""The Google Cloud Logging sink: entries by the REST API of version 2.

    POST https://logging.googleapis.com/v2/entries:write
    Authorization: Bearer TOKEN
    {"partialSuccess":true,"resource":{"type":"global"},"entries":[
      {"logName":"projects/P/logs/penstock-log","insertId":"logs.5f2c19aa-0-120",
       "timestamp":"2026-11-22T08:00:00.123456789Z","severity":"INFO","jsonPayload":{…}}]}

`insertId` is the record's position in the log and `timestamp` the record's own, so of entries that
came twice a query shows one ("LogEntry" in Google's reference). What Cloud Logging routes on, to
BigQuery, Pub/Sub or Cloud Storage, may have both.

With `partialSuccess` the good entries of a request are written; an error names the others by their
places: what is wrong with an entry is a dead letter, what is not its fault is sent again. An entry
further ahead than `future_s` (Google: a day), or older than `past_s` (Google: what the log's bucket
keeps, 30 days by default), would be answered with success and not be ingested; it becomes a dead
letter here.

The payload is the record, its `body` as `message`. Numbers there are doubles, so an integer that
would be rounded is a text.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import quote

import orjson
from pydantic import Field, HttpUrl, model_validator
from typing_extensions import override

from penstock.router.columns.json_objects import text_of, write_json
from penstock.router.delivery.classify import HttpResponse, Meaning
from penstock.router.delivery.classify import classify_response as usual_result
from penstock.router.delivery.result import DeliveryResult, Fault, PartialFailure, Paused, Success
from penstock.router.job.settings import Seconds
from penstock.router.sinks.http.client import HttpRequest
from penstock.router.sinks.http.encode import (
    Json,
    cached,
    document_of,
    position_of,
    section,
    time_ns,
    untimely,
)
from penstock.router.sinks.http.google_credentials import GoogleToken, NoTokenError
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings, RequestBatch
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Replay, SinkContext
from penstock.service.config_types import Form
from penstock.specs.formats.ecs import time_text

_SCOPE: Final = "https://www.googleapis.com/auth/logging.write"
_PATH: Final = "/v2/entries:write"
_PARTIAL: Final = "google.logging.v2.WriteLogEntriesPartialErrors"
_REQUEST_BYTES_MAX: Final = 10_000_000
_EXACT_MAX: Final = 2**53
_DAY_S: Final = 86_400.0
_OF_THE_ENTRY: Final = frozenset({3, 11})
"""INVALID_ARGUMENT and OUT_OF_RANGE of google.rpc.Code; no other code is the entry's fault."""
_SEVERITIES: Final = ("DEFAULT", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_SEVERITIES_FROM: Final = (1, 9, 13, 17, 21)
_EMPTY: Final = b'{"partialSuccess":true,"resource":,"entries":[]}'
_TRACE: Final = re.compile(r"[0-9a-f]{32}")


class CloudLoggingSink(HttpTaskSettings):
    """Entries for Google Cloud Logging."""

    type: Literal["google_cloud_logging"]
    project: Annotated[
        str,
        Form(
            r"^[a-z][a-z0-9.:-]{2,62}$", "a project's id: 3 to 63 of a-z 0-9 . : -, a letter first"
        ),
    ]
    log: Annotated[
        str, Form(r"^[A-Za-z0-9/_.{}-]{1,400}$", "1 to 400 characters of A-Z a-z 0-9 / _ . - { }")
    ] = "penstock-{kind}"
    credentials_file: Path | None = None
    resource_type: str = "global"
    resource_labels: dict[str, str] = Field(default_factory=dict)
    url: HttpUrl = HttpUrl("https://logging.googleapis.com")
    future_s: Seconds = _DAY_S
    past_s: Seconds = 30 * _DAY_S
    batch: RequestBatch = RequestBatch(max_records=1000, max_bytes=4 * 1024 * 1024)

    @model_validator(mode="after")
    def _requests_are_not_larger_than_google_takes(self) -> Self:
        if self.batch.max_bytes > _REQUEST_BYTES_MAX:
            raise ValueError(f"batch: at most {_REQUEST_BYTES_MAX} bytes")
        return self

    @override
    def about(self) -> str:
        return f"entries of {self.project}/{self.log} in Google Cloud Logging; once for queries"


class CloudLogging(HttpTaskSink):
    """Writes entries; see the module's docstring."""

    config_class = CloudLoggingSink
    _config: CloudLoggingSink
    differing: ClassVar[Mapping[int, Meaning]] = {409: Meaning.BUSY}
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "`insertId` is the record's position in the log",
        within="Cloud Logging's own queries (not what it routes on to other services)",
    )

    def __init__(self, config: CloudLoggingSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._token = GoogleToken(config.credentials_file, scope=_SCOPE, timeout_s=config.timeout_s)
        resource = {"type": config.resource_type, "labels": config.resource_labels}
        self._resource = orjson.dumps(resource)
        self.empty_size = len(_EMPTY) + len(self._resource)

    @override
    def encode(self, row: Row) -> Item | Fault:
        document = document_of(row)
        moment_ns = time_ns(row, document)
        ahead_ns, config = moment_ns - self.context.clock.unix_ns(), self._config
        fate = "it would not be ingested (past_s)"
        if fault := untimely(ahead_ns, future_s=config.future_s, past_s=config.past_s, fate=fate):
            return fault
        body = write_json(self._entry(row, document, moment_ns))
        return Item(body, len(body) + 1)

    def _entry(self, row: Row, document: Json, moment_ns: int) -> Json:
        project, trace = self._config.project, document.get("trace_id")
        resource = section(document, "resource")
        named = {
            "service": resource.get("service.name"),
            "version": resource.get("service.version"),
            "host": resource.get("host.name"),
        }
        found = {
            "logName": self._log_name(row),
            "insertId": self._insert_id(row),
            "timestamp": time_text(moment_ns),
            "severity": severity_of(document),
            "labels": {name: text_of(it) for name, it in named.items() if it is not None},
            "jsonPayload": payload_of(document),
        }
        if isinstance(trace, str) and _TRACE.fullmatch(trace):
            found |= {"trace": f"projects/{project}/traces/{trace}"}
            found |= {"spanId": document["span_id"]} if document.get("span_id") else {}
        return found

    def _log_name(self, row: Row) -> str:
        log = self._config.log.replace("{kind}", str(row["kind"]))
        return f"projects/{self._config.project}/logs/{_quoted(log)}"

    def _insert_id(self, row: Row) -> str:
        tag = self.context.stream_tag(*position_of(row))
        return f"{tag}-{row['partition']}-{row['offset']}"

    @override
    def place_of(self, row: Row) -> str | None:
        return f'logName="{self._log_name(row)}" insertId="{self._insert_id(row)}"'

    @override
    def join_task(self, first: Self) -> None:
        self._token = first._token

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        """Without the token: `exchange` has that, and a preview asks for none."""
        entries = b",".join(item.content for item in request.items)
        body = b'{"partialSuccess":true,"resource":%b,"entries":[%b]}' % (self._resource, entries)
        secrets = {**self.own_headers(), "Authorization": ""}
        headers = {"Content-Type": "application/json"}
        return HttpRequest(
            self.path(_PATH), headers, body, self._config.compression, secrets=secrets
        )

    @override
    def exchange(self, request: Request, attempt: int) -> DeliveryResult:
        try:
            token = self._token.read()
        except NoTokenError as error:
            return error.verdict
        made = self.request_of(request, attempt)
        secrets = {**made.secrets, "Authorization": f"Bearer {token}"}
        return self.send(replace(made, secrets=secrets), request)

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        if answer.status == 401:
            self._token.forget()
        return classify_answer(answer, len(request.items), self.differing)


@cached
def _quoted(log: str) -> str:
    return quote(log, safe="")


def classify_answer(
    answer: HttpResponse, count: int, differing: Mapping[int, Meaning]
) -> DeliveryResult:
    """Return the result of an answer to `count` entries."""
    if answer.status // 100 == 2:
        other = Paused(f"not an answer of Cloud Logging: {answer.fault.reason}")
        return Success() if answer.status == 200 else other
    refused, again, reasons = [], [], set()
    for index, code, said in entry_errors(answer.body):
        if not 0 <= index < count:
            return usual_result(answer, differing)
        fault = Fault(f"google_{code}", f"Cloud Logging says {said[:200]!r} (code {code})")
        if code in _OF_THE_ENTRY:
            refused.append((index, fault))
        else:
            again.append(index)
            reasons.add(fault.reason)
    if not refused and not again:
        return usual_result(answer, differing)
    reason = "; ".join(sorted(reasons)[:3])
    return PartialFailure(
        refused=tuple(refused), again=tuple(again), reason=reason, after_s=answer.after_s
    )


def entry_errors(body: bytes) -> list[tuple[int, int, str]]:
    """Place, code and text of each entry that was not written; empty where nothing says so."""
    try:
        details = orjson.loads(body)["error"].get("details", [])
        return [
            (int(index), int(status["code"]), str(status.get("message", "")))
            for detail in details
            if detail.get("@type", "").endswith(_PARTIAL)
            for index, status in detail["logEntryErrors"].items()
        ]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return []


def severity_of(document: Json) -> str:
    number = document.get("severity_number")
    if type(number) is int:
        return _SEVERITIES[bisect_right(_SEVERITIES_FROM, number)]
    return "ERROR" if document.get("status_code") == "ERROR" else "DEFAULT"


def payload_of(document: Json) -> Json:
    """The record as a Struct."""
    message = document.get("body", document.get("name", document.get("value")))
    found: Json = {} if message is None else {"message": _exact(message)}
    found |= _exact(document)
    if "message" not in document:  # which a record may have, beside its body
        found.pop("body", None)
    return found


def _exact(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {name: it if type(it) is str else _exact(it) for name, it in value.items()}
    if kind is list:
        return [_exact(it) for it in value]
    return str(value) if kind is int and abs(value) > _EXACT_MAX else value
