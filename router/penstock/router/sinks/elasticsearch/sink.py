"""The Elasticsearch and OpenSearch sink: documents by the bulk API, each created once.

    POST URL/_bulk
    {"create":{"_index":"logs-penstock-default","_id":"logs.5f2c19aa-0-120"}}
    {"@timestamp":"2026-11-21T08:00:00.123456000Z","message":"…",…}

`_id` is the record's position in the log and the operation is `create`, so a document that comes
again is answered with 409 and counts as there. That holds for each backing index: after a data
stream has rolled over, a record sent again is stored again in the new one.

Documents are those of the Elastic Common Schema (`penstock.specs.formats.ecs`), or with `documents:
record` the records as they lie in the log with `@timestamp`. The index may name `{kind}` and
`{service}`.

`attributes`, `resource` and `context` are objects in a document, whose names may have dots: so an
index may have each as one `flattened` field (`penstock.router.sinks.elasticsearch.index_template`),
into which a dotted name would not lead.

Each document has its own outcome: what the destination has no room for now (429, 503) is sent
again alone, what its mapping refuses (400) goes to the dead letters.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson
from pydantic import field_validator
from typing_extensions import override

from penstock.router.columns.json_objects import write_lines
from penstock.router.deadletters.writer import as_text
from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import DeliveryResult, Failed, Fault, PartialFailure, Success
from penstock.router.sinks.http.client import HttpRequest
from penstock.router.sinks.http.encode import Json, cached, position_of, record_of, section, time_ns
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Replay
from penstock.service.config_types import Secret
from penstock.specs.formats.ecs import GROUPS, numbers_apart, time_text, to_ecs

_FOREIGN_IN_INDEX: Final = re.compile(r"[^a-z0-9._-]")
_AGAIN: Final = frozenset({401, 403, 404, 429, 503})
"""Statuses of one document that may pass: no room, or a closed or missing index."""
_THERE: Final = frozenset({200, 201, 409})
_OF_PIPELINE: Final = re.compile(r"400 illegal_argument_exception: pipeline with id \[.*not exist")
"""Pattern of a missing pipeline, which is retried, as a missing index is."""
_INDEX: Final = re.compile(r"(?![-_+])[^\sA-Z\\/*?\"<>|,#:]{1,255}|<.+>")
"""Pattern of the names of indices that Elasticsearch accepts, or of date math."""
_FILTER: Final = "filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason"


class ElasticsearchSink(HttpTaskSettings):
    """Documents for Elasticsearch or OpenSearch."""

    type: Literal["elasticsearch"]
    index: str = "logs-penstock-default"
    documents: Literal["ecs", "record"] = "ecs"
    pipeline: str | None = None
    api_key: Secret | None = None

    @field_validator("index")
    @classmethod
    def _index_has_a_name_that_there_can_be(cls, index: str) -> str:
        shown = index.replace("{kind}", "k").replace("{service}", "s")
        if _INDEX.fullmatch(shown) is None or shown in (".", ".."):
            message = 'lower case, none of \\ / * ? " < > | , # : or blanks, not - _ or + first'
            raise ValueError(f"no name of an index: {message}")
        return index

    @override
    def about(self) -> str:
        return f"documents in {self.index} at {self.shown_url}; once per index"


class Elasticsearch(HttpTaskSink):
    """Creates documents; see the module's docstring."""

    config_class = ElasticsearchSink
    _config: ElasticsearchSink
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "`create` with the record's position in the log as `_id`; 409 counts as there",
        within="one index (a data stream until it rolls over)",
    )

    @override
    def encode(self, row: Row) -> Item | Fault:
        record = record_of(row)
        try:
            document = _raw(row) if record is None else self._document(row, record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            document = _raw(row)  # a record that breaks its spec is still a text
        content = write_lines([{"create": self._action(row, record)}, document])
        return Item(content, len(content))

    @override
    def place_of(self, row: Row) -> str | None:
        action = self._action(row, record_of(row))
        return f"{action['_index']}/_doc/{action['_id']}"

    def _action(self, row: Row, record: Json | None) -> dict[str, str]:
        place = f"{row['partition']}-{row['offset']}"
        return {
            "_index": self._index(row, record or {}),
            "_id": f"{self.context.stream_tag(*position_of(row))}-{place}",
        }

    def _document(self, row: Row, record: Json) -> Json:
        if "@timestamp" in record:
            return _grouped(record)  # the step `map: ecs` made it
        moment = {"@timestamp": time_text(time_ns(row, record))}
        if self._config.documents == "ecs":
            return moment | _grouped(to_ecs(record))
        return moment | (numbers_apart(record) if row["kind"] == "metric" else record)

    def _index(self, row: Row, record: Json) -> str:
        index = self._config.index
        if "{" not in index:
            return index
        service = str(section(record, "resource").get("service.name", "unknown"))
        for place, name in (("{kind}", str(row["kind"])), ("{service}", service)):
            index = index.replace(place, _fit_index(name))
        return index

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        secrets = self.own_headers()
        if self._config.api_key is not None:
            secrets["Authorization"] = f"ApiKey {self._config.api_key.read()}"
        pipeline = f"&pipeline={self._config.pipeline}" if self._config.pipeline else ""
        return HttpRequest(
            self.query(self.path("/_bulk"), _FILTER + pipeline),
            {"Content-Type": "application/x-ndjson"},
            b"".join(item.content for item in request.items),
            self._config.compression,
            secrets=secrets,
        )

    @override
    def classify_answer(self, answer: HttpResponse, request: Request) -> DeliveryResult:
        if answer.status // 100 != 2:
            return super().classify_answer(answer, request)
        return classify_items(answer, len(request.items))


def _grouped(document: Json) -> Json:
    """A document of `to_ecs` with the members of each group in one object."""
    found: Json = {}
    for name, value in document.items():
        group, _, member = name.removeprefix("penstock.").partition(".")
        if member and group in GROUPS and name.startswith("penstock."):
            found.setdefault(f"penstock.{group}", {})[member] = value
        else:
            found[name] = value
    return found


@cached
def _fit_index(name: str) -> str:
    return _FOREIGN_IN_INDEX.sub("_", name.lower())


def _raw(row: Row) -> Json:
    """Whatever it is, as it was published."""
    content = as_text(row["value"])
    text = content.get("value", content.get("value_base64"))
    moment = time_text(time_ns(row, record_of(row) or {}))
    return {"@timestamp": moment, "message": text, "penstock.kind": "raw"}


_OF_DOCUMENT: Final = frozenset(
    {
        "document_parsing_exception",
        "illegal_argument_exception",
        "mapper_parsing_exception",
        "strict_dynamic_mapping_exception",
    }
)
"""Types of errors that are about the document, and not about its index or the cluster."""


def classify_items(answer: HttpResponse, count: int) -> DeliveryResult:
    """Return the result for each of `count` documents of a bulk answer, whose status is a 2xx.

    One that names no documents is none of Elasticsearch's, and says nothing of them.
    """
    try:
        said = orjson.loads(answer.body)
        if said["errors"] is False:
            return Success()
        outcomes = [next(iter(item.values())) for item in said["items"]]
        statuses = [int(outcome["status"]) for outcome in outcomes]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, StopIteration, AttributeError):
        outcomes, statuses = [], []
    if len(statuses) != count:
        reason = f"an answer that names {len(statuses)} of {count} documents: {answer.fault.reason}"
        return Failed(Fault(f"http_{answer.status}", reason, answer.status))
    refused, failed, again, reasons = [], [], [], set()
    for place, (status, outcome) in enumerate(zip(statuses, outcomes, strict=True)):
        fault = _fault(status, outcome)
        if status in _THERE:
            continue
        if status in _AGAIN or _OF_PIPELINE.match(fault.reason):
            again.append(place)
            reasons.add(fault.reason)
        elif status >= 500:
            failed.append((place, fault))
            reasons.add(fault.reason)
        else:
            refused.append((place, fault))
    reason = "; ".join(sorted(reasons)[:3])
    return PartialFailure(tuple(refused), tuple(failed), tuple(again), reason, answer.after_s)


def _fault(status: int, outcome: Mapping[str, Any]) -> Fault:
    error = outcome.get("error")
    about = error if isinstance(error, dict) else {}
    kind, reason = about.get("type", "no type"), str(about.get("reason", ""))
    text = f"{status} {kind}: {reason[:200]}"
    return Fault(f"http_{status}", text, status, about_record=kind in _OF_DOCUMENT)
