"""Presets that turn a record's JSON object into what another product calls a document."""

from collections.abc import Callable
from typing import Any, Final

from penstock.router.columns.json_objects import text_of
from penstock.specs.formats.ecs import to_ecs

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
_CIM_GROUPS: Final = {
    "context": CIM_CONTEXT,
    "resource": CIM_RESOURCE,
    "attributes": CIM_ATTRIBUTES,
}
"""Groups of a record in order of precedence, for members that map to the same name."""
_CIM_PREFIXES: Final = tuple(f"{group}." for group in _CIM_GROUPS)
_CIM_NAMES: Final = frozenset(
    {"_time", "time_unix_nano", "severity", "result", "duration", *_CIM_GROUPS}.union(
        CIM_FIELDS.values(), *(names.values() for names in _CIM_GROUPS.values())
    )
)
"""Names that unmapped members may not have; Splunk's sink reads some of them."""
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
"""Labels of few values; each other value of a label is its own stream to Loki."""
_LOKI_IDS: Final = ("trace_id", "span_id", "record_id")
_LOKI_NAMES: Final = frozenset({"kind", "level", "penstock_id", *_LOKI_IDS, *LOKI_LABELS.values()})
"""Names that metadata of other origin may not have."""


def to_cim(record: Json) -> Json:
    """A record as an event of Splunk's Common Information Model: flat, `_time` in seconds.

    What the model has no name for keeps its own; if that is one of the model's, or taken, it is
    `attributes.NAME`, `context.NAME` or `resource.NAME`. Nothing takes the place of anything else.
    """
    event: Json = {"_time": record.get("time_unix_nano", 0) / _NANOSECONDS}
    groups = {name: record[name] for name in _CIM_GROUPS if isinstance(record.get(name), dict)}
    for key, value in record.items():
        if key in CIM_FIELDS:
            event[CIM_FIELDS[key]] = value
        elif key != "time_unix_nano" and key not in groups:
            event[_OURS + key] = value
    event |= _cim_judgement(record)
    for group, members in groups.items():
        for name, target in _CIM_GROUPS[group].items():
            if name in members:
                event[f"{group}.{name}" if target in event else target] = members[name]
    for group, members in groups.items():
        for name, member in members.items():
            if name not in _CIM_GROUPS[group]:
                apart = name in _CIM_NAMES or name in event or name.startswith(_CIM_PREFIXES)
                event[f"{group}.{name}" if apart else name] = member
    return event


def _cim_judgement(record: Json) -> Json:
    """Return the model's own fields of a record: severity, result, duration."""
    found: Json = {}
    if (number := record.get("severity_number")) is not None:
        words = (word for least, word in _CIM_SEVERITIES if number >= least)
        found["severity"] = next(words, "informational")
    if (outcome := _CIM_OUTCOMES.get(str(record.get("status_code")))) is not None:
        found["result"] = outcome
    if (began := record.get("time_unix_nano")) and (ended := record.get("end_time_unix_nano")):
        found["duration"] = (ended - began) / _NANOSECONDS
    return found


def to_loki(record: Json) -> Json:
    """A record as an entry of Loki's: a few labels, a line, and the rest as structured metadata.

    A name that is taken, or a label's, gets its group's in front: `attributes_NAME`.
    """
    resource = record.get("resource") or {}
    labels = {
        label: str(resource[name])
        for name, label in LOKI_LABELS.items()
        if resource.get(name) not in (None, "")
    }
    labels["kind"] = str(record.get("kind"))
    if level := record.get("severity_text"):
        labels["level"] = str(level).lower()
    metadata: dict[str, str] = {key: text_of(record[key]) for key in _LOKI_IDS if key in record}
    more = {name: value for name, value in resource.items() if name not in LOKI_LABELS}
    groups = {"context": record.get("context"), "resource": more}
    groups["attributes"] = record.get("attributes")
    for group, members in groups.items():
        for name, value in (members or {}).items():
            label = _label(name)
            while label in metadata or label in _LOKI_NAMES:
                label = f"{group}_{label}"
            metadata[label] = text_of(value)
    return {
        "labels": labels,
        "timestamp": str(record.get("time_unix_nano", 0)),
        "line": _line(record),
        "metadata": metadata,
    }


PRESETS: Final[dict[str, Callable[[Json], Json]]] = {
    "ecs": to_ecs,
    "splunk_cim": to_cim,
    "loki": to_loki,
}


def _line(record: Json) -> str:
    body = record.get("body", record.get("name"))
    return body if isinstance(body, str) else text_of(body if body is not None else record)


def _label(name: str) -> str:
    """A name as Loki takes it: letters, digits and underscores."""
    fit = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return f"_{fit}" if fit[:1].isdigit() else fit
