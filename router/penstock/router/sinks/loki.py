"""The Loki sink: lines with labels, which Loki recognises when they come again.

    POST URL/loki/api/v1/push
    {"streams":[{"stream":{"service_name":"checkout"},
                 "values":[["1795000000123456789","line",{"trace_id":"…"}]]}]}

Loki drops an entry that has the labels, time, line and metadata of one that it has. All four come
from the record alone, so a batch that comes again adds nothing while its entries are within Loki's
window (by default as old as the newest of their stream less one hour).

`labels` says which label comes from where: `resource.NAME`, `attributes.NAME`, `context.NAME` or a
field of the record. Labels make streams, so only what has few values is fit for one. Everything
else that identifies a record is structured metadata: all that fits within Loki's limits, and of
what the step `map: loki` made all, which Loki takes or refuses. The line is the body of a log
record, and for every other kind, and with `line: record`, the record's JSON.

Loki may store part of a request and refuse the rest with 400 without saying which, so a refused
request is bisected; the entries that it had are recognised.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal

from pydantic import Field
from typing_extensions import override

from penstock.router.columns.json_objects import text_of, write_json, write_sorted
from penstock.router.delivery.result import Fault
from penstock.router.sinks.http.client import HttpRequest
from penstock.router.sinks.http.encode import Json, cached, document_of, event_id, section, time_ns
from penstock.router.sinks.http.request_sink import Item, Request, Row
from penstock.router.sinks.http.settings import HttpTaskSettings
from penstock.router.sinks.http.task_sink import HttpTaskSink
from penstock.router.sinks.sink import Guarantee, Replay, SinkContext
from penstock.service.config_types import Secret

_LABELS: Final = {
    "service_name": "resource.service.name",
    "deployment_environment": "resource.deployment.environment.name",
    "kind": "kind",
}
_MAPPED: Final = frozenset({"labels", "timestamp", "line", "metadata"})
"""Keys of a record after the step `map: loki`."""
_METADATA_FIELDS: Final = ("severity_text", "severity_number", "trace_id", "span_id", "event_name")
_SECTIONS: Final = ("attributes", "context", "resource")
_ID: Final = "penstock_id"
_METADATA_BYTES_MAX: Final = 48 * 1024
"""Loki's own limit is 64 KB and 128 names for an entry; what is beyond is in `line: record`."""
_METADATA_NAMES_MAX: Final = 100
_UTF8_MAX: Final = 4
_FOREIGN_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


class LokiSink(HttpTaskSettings):
    """Lines for Grafana Loki."""

    type: Literal["loki"]
    labels: dict[str, str] = Field(default_factory=lambda: dict(_LABELS))
    fixed_labels: dict[str, str] = Field(default_factory=dict)
    line: Literal["body", "record"] = "body"
    tenant: str | None = None
    token: Secret | None = None

    @override
    def about(self) -> str:
        return f"Loki at {self.shown_url}; once within its window for late entries"


class Loki(HttpTaskSink):
    """Pushes lines; see the module's docstring."""

    config_class = LokiSink
    _config: LokiSink
    guarantee = Guarantee(
        Replay.EFFECTIVELY_ONCE,
        "Loki drops an entry whose labels, time, line and metadata it has",
        within="Loki's window for late entries (an hour behind the newest of a stream)",
    )
    empty_size = len(b'{"streams":[]}')

    def __init__(self, config: LokiSink, context: SinkContext) -> None:
        super().__init__(config, context)
        self._paths = {label: _path_of(field_path) for label, field_path in config.labels.items()}

    @override
    def place_of(self, row: Row) -> str | None:
        labels = self._labels_of(document_of(row)).items()
        selector = ", ".join(
            f"{name}={write_json(text_of(value)).decode()}" for name, value in labels
        )
        return f'{{{selector}}} | {_ID}="{event_id(row, self.context)}"'

    def _labels_of(self, record: Json) -> Json:
        if record.keys() >= _MAPPED:
            named = record["labels"].items()
            return {name: value for name, value in named if name and value not in (None, "")}
        return self._labels(record)

    @override
    def encode(self, row: Row) -> Item | Fault:
        record = document_of(row)
        labels = self._labels_of(record)
        if record.keys() >= _MAPPED:
            line, time_text = record["line"], record["timestamp"]
            metadata = _named([("metadata", record["metadata"])])
        else:
            time_text = str(time_ns(row, record))
            line, metadata = self._line(row, record), _metadata(record)
        metadata |= {_ID: event_id(row, self.context)}
        entry, stream = write_json([time_text, line, metadata]), write_sorted(labels)
        return Item((stream, entry), len(stream) + len(entry) + len(b'{"stream":,"values":[]},'))

    def _labels(self, record: Json) -> dict[str, str]:
        labels: dict[str, str] = {}
        for label, (part, name) in self._paths.items():
            value = (section(record, part) if part else record).get(name)
            if value is not None and value != "":
                labels[label] = text_of(value)
        return labels | self._config.fixed_labels or {"job": "penstock"}

    def _line(self, row: Row, record: Json) -> str:
        body = record.get("body")
        if self._config.line == "body" and row["kind"] == "log" and isinstance(body, str):
            return body
        if row["kind"] == "raw":
            return str(record.get("value") or record.get("value_base64") or "")
        text: bytes = row["value"]
        return text.decode(errors="replace")

    @override
    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        streams: dict[bytes, list[bytes]] = {}
        for item in request.items:
            labels, entry = item.content
            streams.setdefault(labels, []).append(entry)
        body = b",".join(
            b'{"stream":' + labels + b',"values":[' + b",".join(entries) + b"]}"
            for labels, entries in streams.items()
        )
        headers = {"Content-Type": "application/json"}
        if self._config.tenant:
            headers["X-Scope-OrgID"] = self._config.tenant
        secrets = self.own_headers()
        if self._config.token is not None:
            secrets["Authorization"] = f"Bearer {self._config.token.read()}"
        return HttpRequest(
            self.path("/loki/api/v1/push"), headers, b'{"streams":[' + body + b"]}",
            self._config.compression, secrets=secrets,
        )  # fmt: skip


def _path_of(field_path: str) -> tuple[str, str]:
    """The part of a record, or "" for the record itself, and the name in there."""
    first, _, rest = field_path.partition(".")
    return (first, rest) if first in _SECTIONS else ("", field_path)


def _metadata(record: Json) -> dict[str, str]:
    """The record's fields and attributes as flat text, within what Loki takes."""
    own: Json = {name: record[name] for name in _METADATA_FIELDS if name in record}
    named = _named([("record", own), *((part, section(record, part)) for part in _SECTIONS)])
    if len(named) <= _METADATA_NAMES_MAX and _bytes_at_most(named) <= _METADATA_BYTES_MAX:
        return named
    kept: dict[str, str] = {}
    held = 0
    for key, text in named.items():
        size = len(key) + len(text.encode())
        if held + size <= _METADATA_BYTES_MAX and len(kept) < _METADATA_NAMES_MAX:
            kept[key] = text
            held += size
    return kept


def _bytes_at_most(named: dict[str, str]) -> int:
    """More than names and texts have, unless these have no character beyond ASCII."""
    return len("".join(named)) + _UTF8_MAX * len("".join(named.values()))


def _named(parts: Iterable[tuple[str, Json]]) -> dict[str, str]:
    """Texts by their names as Loki takes names; an empty name or value is none.

    A name that has another value already gets that of its part in front.
    """
    found: dict[str, str] = {}
    for part, entries in parts:
        for name, value in entries.items():
            text = value if isinstance(value, str) else text_of(value)
            if not name or not text or value is None:
                continue
            key = fit_name(name)
            while key == _ID or (key in found and found[key] != text):
                key = f"{part}_{key}"
            found[key] = text
    return found


@cached
def fit_name(name: str) -> str:
    """A name as Loki and Prometheus take it: letters, digits and `_`, no digit first."""
    fitted = _FOREIGN_IN_NAME.sub("_", name)
    return f"_{fitted}" if fitted[:1].isdigit() else fitted
