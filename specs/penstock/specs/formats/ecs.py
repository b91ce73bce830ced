"""Records as documents of the Elastic Common Schema, and back.

Documents are flat, with dotted keys. ECS's own fields are used where it has them, so that a
document is found by what people look for; what ECS has no field for lies under ``penstock``, whole.
Map ``penstock.attributes`` and ``penstock.resource`` as `flattened` there: as objects, one
service's ``user`` and another's ``user.id`` refuse each other.

A field of numbers takes no NaN and no infinity there: the word for such a value lies beside it, in
``penstock.value_not_finite``.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

Json = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_NS: Final = 1_000_000_000
_TIME: Final = re.compile(r"([0-9-]+)T([0-9:]+)\.([0-9]{9})Z")


def time_text(time_ns: int) -> str:
    """RFC 3339 with nine digits, as ``date_nanos`` takes it."""
    seconds, rest = divmod(time_ns, _SECOND_NS)
    return f"{_second_text(seconds)}.{rest:09}Z"


@lru_cache(256)
def _second_text(seconds: int) -> str:
    """The records of a batch have few seconds, and to write one out takes longest of all."""
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"


def time_ns(text: str) -> int:
    """Read a time that `time_text` wrote.

    Raises:
        ValueError: It is not of that form.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("a time is RFC 3339 with nine digits and Z")
    moment = datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00")
    return (moment - _EPOCH) // timedelta(seconds=1) * _SECOND_NS + int(found[3])


VERSION: Final = "9.3.0"
"""The version of ECS whose names are used."""

FIELDS: Final = {
    "schema": "event.dataset",
    "time_unix_nano": "@timestamp",
    "observed_time_unix_nano": "event.ingested",
    "end_time_unix_nano": "event.end",
    "record_id": "event.id",
    "trace_id": "trace.id",
    "span_id": "span.id",
    "parent_span_id": "parent.id",
    "scope": "log.logger",
    "severity_number": "event.severity",
    "severity_text": "log.level",
    "body": "message",
    "status_code": "event.outcome",
    "outcome": "event.outcome",
    "action": "event.action",
    "reason": "event.reason",
}
"""A record's field to ECS's; no kind has two fields of one name."""

CONTEXT: Final = {
    "user.id": "user.id",
    "user.name": "user.name",
    "user.email": "user.email",
    "account.id": "organization.id",
    "request.id": "http.request.id",
    "client.address": "client.address",
    "user_agent.original": "user_agent.original",
}
RESOURCE: Final = {
    "service.instance.id": "service.node.name",
    "deployment.environment.name": "service.environment",
    "host.arch": "host.architecture",
    "os.type": "host.os.type",
    "k8s.namespace.name": "orchestrator.namespace",
    "k8s.pod.name": "orchestrator.resource.name",
    **{
        name: name
        for name in (
            "service.name", "service.version", "host.name", "host.id", "process.pid",
            "container.id", "cloud.provider", "cloud.region", "cloud.availability_zone",
        )
    },
}  # fmt: skip
ATTRIBUTES: Final = {
    "exception.type": "error.type",
    "exception.message": "error.message",
    "exception.stacktrace": "error.stack_trace",
    "code.function.name": "log.origin.function",
    "code.file.path": "log.origin.file.name",
    "code.line.number": "log.origin.file.line",
    "thread.id": "process.thread.id",
    "thread.name": "process.thread.name",
    "http.request.method": "http.request.method",
    "http.response.status_code": "http.response.status_code",
    "url.path": "url.path",
    "server.address": "server.address",
}
GROUPS: Final = {"context": CONTEXT, "resource": RESOURCE, "attributes": ATTRIBUTES}

_OUTCOMES: Final = {"OK": "success", "ERROR": "failure", "UNSET": "unknown"}
_STATUS: Final = {outcome: code for code, outcome in _OUTCOMES.items()}
_TIMES: Final = frozenset(key for key in FIELDS if key.endswith("time_unix_nano"))
_CODECS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    **dict.fromkeys(_TIMES, (time_text, time_ns)),
    "status_code": (lambda code: _OUTCOMES.get(code, code), lambda it: _STATUS.get(it, it)),
}
"""Codes that are none of the spec's, as other versions may have, stay as they are."""
_OURS: Final = "penstock."
_NOT_FINITE: Final = "_not_finite"
_MEASURED: Final = frozenset({"value", "sum", "min", "max"})


def numbers_apart(record: Json) -> Json:
    """A record, or an exemplar, with the words for values that are no numbers under other names."""
    found = {
        f"{key}{_NOT_FINITE}" if key in _MEASURED and isinstance(value, str) else key: value
        for key, value in record.items()
    }
    if isinstance(found.get("exemplars"), list):
        found["exemplars"] = [
            numbers_apart(one) if isinstance(one, dict) else one for one in found["exemplars"]
        ]
    return found


def _numbers_together(record: Json) -> Json:
    """The reverse."""
    found = {
        key.removesuffix(_NOT_FINITE) if key.removesuffix(_NOT_FINITE) in _MEASURED else key: value
        for key, value in record.items()
    }
    if "exemplars" in found:
        found["exemplars"] = [_numbers_together(one) for one in found["exemplars"]]
    return found


def to_ecs(record: Json) -> Json:
    """A record's JSON object as a document; a field that is null says nothing."""
    document: Json = {"ecs.version": VERSION}
    if record.get("kind") == "metric":
        record = numbers_apart(record)
    for key, value in record.items():
        if value is None:
            continue
        if key in GROUPS:
            names = GROUPS[key]
            for name, member in value.items():
                document[names.get(name) or f"{_OURS}{key}.{name}"] = member
        elif key in FIELDS:
            document[FIELDS[key]] = _CODECS[key][0](value) if key in _CODECS else value
        else:
            document[_OURS + key] = value
    return document


def from_ecs(document: Json) -> Json:
    """A document that `to_ecs` made, as the record's JSON object; `schema` and `kind` first.

    Raises:
        KeyError: It is another document.
        ValueError: A time is not of ours.
    """
    kind = document[f"{_OURS}kind"]
    record: Json = {"schema": document[FIELDS["schema"]], "kind": kind}
    fields = {target: key for key, target in FIELDS.items()}
    fields["event.outcome"] = "outcome" if kind == "audit" else "status_code"
    members = {
        target: (group, name) for group, table in GROUPS.items() for name, target in table.items()
    }
    for target, value in document.items():
        if target in fields:
            key = fields[target]
            record[key] = _CODECS[key][1](value) if key in _CODECS else value
        elif target in members:
            group, name = members[target]
            record.setdefault(group, {})[name] = value
        elif target.startswith(_OURS):
            group, _, name = target.removeprefix(_OURS).partition(".")
            if group in GROUPS:
                record.setdefault(group, {})[name] = value
            else:
                record[target.removeprefix(_OURS)] = value
    return _numbers_together(record) if kind == "metric" else record
