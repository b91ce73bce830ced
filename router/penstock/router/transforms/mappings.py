"""Presets that turn a record's JSON object into what another product calls a document."""

from collections.abc import Callable
from typing import Any, Final

import orjson

from penstock.specs.ecs import to_ecs

Json = dict[str, Any]

_NANOSECONDS: Final = 1_000_000_000

CIM_CONTEXT: Final = {
    "user.id": "user_id",
    "user.name": "user",
    "user.email": "user_email",
    "account.id": "account_id",
    "request.id": "request_id",
    "session.id": "session_id",
    "client.address": "src",
    "user_agent.original": "http_user_agent",
}
CIM_RESOURCE: Final = {
    "service.name": "app",
    "service.version": "app_version",
    "host.name": "host",
    "deployment.environment.name": "environment",
    "process.pid": "process_id",
    "cloud.provider": "vendor_cloud",
    "cloud.region": "vendor_region",
}
CIM_ATTRIBUTES: Final = {
    "http.request.method": "http_method",
    "http.response.status_code": "status",
    "http.route": "uri_route",
    "url.path": "uri_path",
    "url.query": "uri_query",
    "url.full": "url",
    "server.address": "dest",
    "server.port": "dest_port",
    "client.address": "src",
    "client.port": "src_port",
    "http.response.body.size": "bytes_out",
    "http.request.body.size": "bytes_in",
    "exception.type": "error_type",
    "exception.message": "error_message",
    "db.system.name": "vendor_product",
    "db.query.text": "query",
}
CIM_FIELDS: Final = {
    "body": "message",
    "name": "operation",
    "trace_id": "trace_id",
    "span_id": "span_id",
    "parent_span_id": "parent_span_id",
    "record_id": "event_id",
    "schema": "vendor_schema",
    "kind": "vendor_kind",
    "action": "action",
    "reason": "reason",
}
_CIM_SEVERITIES: Final = ((21, "critical"), (17, "high"), (13, "medium"), (9, "low"))
_CIM_OUTCOMES: Final = {"OK": "success", "ERROR": "failure"}
_OURS: Final = "penstock."

LOKI_LABELS: Final = {
    "service.name": "service_name",
    "service.namespace": "service_namespace",
    "deployment.environment.name": "deployment_environment",
    "k8s.namespace.name": "k8s_namespace_name",
    "k8s.container.name": "k8s_container_name",
    "cloud.region": "cloud_region",
}
"""Those of few values; each other value of a label is a stream of its own to Loki."""


def to_cim(record: Json) -> Json:
    """A record as an event of Splunk's Common Information Model: flat, `_time` in seconds."""
    event: Json = {"_time": record.get("time_unix_nano", 0) / _NANOSECONDS}
    tables = {"context": CIM_CONTEXT, "resource": CIM_RESOURCE, "attributes": CIM_ATTRIBUTES}
    for key, value in record.items():
        if key in tables and isinstance(value, dict):
            for name, member in value.items():
                event.setdefault(str(tables[key].get(name, name)), member)
        elif key in CIM_FIELDS:
            event[CIM_FIELDS[key]] = value
        elif key != "time_unix_nano":
            event.setdefault(_OURS + key, value)
    if (number := record.get("severity_number")) is not None:
        found = (word for least, word in _CIM_SEVERITIES if number >= least)
        event["severity"] = next(found, "informational")
    if (outcome := _CIM_OUTCOMES.get(str(record.get("status_code")))) is not None:
        event["result"] = outcome
    if (began := record.get("time_unix_nano")) and (ended := record.get("end_time_unix_nano")):
        event["duration"] = (ended - began) / _NANOSECONDS
    return event


def to_loki(record: Json) -> Json:
    """A record as an entry of Loki's: a few labels, a line, and the rest as structured metadata."""
    resource, attributes = record.get("resource") or {}, record.get("attributes") or {}
    labels = {
        label: str(resource[name])
        for name, label in LOKI_LABELS.items()
        if resource.get(name) not in (None, "")
    }
    labels["kind"] = str(record.get("kind"))
    if level := record.get("severity_text"):
        labels["level"] = str(level).lower()
    more = {name: value for name, value in resource.items() if name not in LOKI_LABELS}
    more |= attributes | (record.get("context") or {})
    more |= {key: record[key] for key in ("trace_id", "span_id", "record_id") if key in record}
    return {
        "labels": labels,
        "timestamp": str(record.get("time_unix_nano", 0)),
        "line": _line(record),
        "metadata": {_label(name): _text(value) for name, value in more.items()},
    }


PRESETS: Final[dict[str, Callable[[Json], Json]]] = {
    "ecs": to_ecs,
    "splunk_cim": to_cim,
    "loki": to_loki,
}


def _line(record: Json) -> str:
    body = record.get("body", record.get("name"))
    return body if isinstance(body, str) else _text(body if body is not None else record)


def _label(name: str) -> str:
    """A name as Loki takes it: letters, digits and underscores."""
    fit = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return f"_{fit}" if fit[:1].isdigit() else fit


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
