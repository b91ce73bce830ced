"""Events of Kubernetes (core/v1 `Event`) as log records, in OpenTelemetry's names.

    message                 the body
    type                    the severity: Normal is INFO, Warning is WARN
    lastTimestamp, …        the time: of the last of a series, else of the event or its creation
    involvedObject          resource: `k8s.object.*`, and `k8s.pod.name` or what its kind is called
    source.host             resource: `k8s.node.name`
    reason, action, count   attributes: `k8s.event.*`

The names are those of the OpenTelemetry Collector's receiver `k8s_events`. An event that happens
again is the same object with a higher `count`: each change is a record. What has no place: labels,
annotations and `managedFields` of the event, and the object that it is `related` to.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.collector.decode.attributes import clean_text, flatten
from penstock.collector.decode.severity import INFO, WARN, Severity
from penstock.collector.decode.shapes import log_fields
from penstock.collector.decode.timestamps import iso_time_ns
from penstock.specs.limits import STRING_CHARACTERS_MAX

_LEVELS: Final[Mapping[str, Severity]] = {"Normal": INFO, "Warning": WARN}
_TIMES: Final = (
    ("series", "lastObservedTime"), ("lastTimestamp",), ("eventTime",), ("firstTimestamp",),
    ("metadata", "creationTimestamp"),
)  # fmt: skip
_KINDS: Final = {
    "Pod": "pod",
    "Node": "node",
    "Deployment": "deployment",
    "ReplicaSet": "replicaset",
    "StatefulSet": "statefulset",
    "DaemonSet": "daemonset",
    "Job": "job",
    "CronJob": "cronjob",
    "Namespace": "namespace",
}
_OBJECT: Final = {
    "k8s.object.kind": "kind",
    "k8s.object.name": "name",
    "k8s.object.uid": "uid",
    "k8s.object.fieldpath": "fieldPath",
    "k8s.object.api_version": "apiVersion",
    "k8s.object.resource_version": "resourceVersion",
}
_EVENT: Final = {
    "k8s.event.reason": ("reason",),
    "k8s.event.action": ("action",),
    "k8s.event.start_time": ("firstTimestamp",),
    "k8s.event.name": ("metadata", "name"),
    "k8s.event.uid": ("metadata", "uid"),
    "k8s.event.count": ("count",),
    "k8s.event.reporting_controller": ("reportingComponent",),
    "k8s.event.reporting_instance": ("reportingInstance",),
}
_WITHOUT_PLACE: Final = {
    "event_labels_dropped": ("metadata", "labels"),
    "event_annotations_dropped": ("metadata", "annotations"),
    "managed_fields_dropped": ("metadata", "managedFields"),
    "related_objects_dropped": ("related",),
}
"""Facts of an event that its record has not, by the note that counts the events with them."""


def event_line(
    event: Mapping[str, Any], resource: Mapping[str, Any], now_ns: int, notes: Counter[str]
) -> bytes:
    """The record line of an event.

    Args:
        event: The object; fields of another type than documented are left out.
        resource: Facts of every event's resource.
        now_ns: Time of arrival; the event's where it names none that can be read.
        notes: Counts what was not understood.
    """
    level = _LEVELS.get(str(event.get("type")))
    if level is None:
        notes["levels_unknown"] += 1
    message = _found(event, "message")
    body = clean_text(message if isinstance(message, str) else "")
    if len(body) > STRING_CHARACTERS_MAX:
        notes["records_truncated"] += 1
        body = body[:STRING_CHARACTERS_MAX]
    attributes, left_out = flatten(_attributes(event))
    if left_out:
        notes["attributes_dropped"] += left_out
    for what, path in _WITHOUT_PLACE.items():
        if _found(event, *path):
            notes[what] += 1
    record = log_fields(
        level or INFO,
        _time_ns(event, now_ns, notes),
        now_ns,
        body,
        None,
        {**resource, **_resource(event)},
        attributes,
    )
    return orjson.dumps(record)


def _time_ns(event: Mapping[str, Any], now_ns: int, notes: Counter[str]) -> int:
    for path in _TIMES:
        value = _found(event, *path)
        if isinstance(value, str) and (time_ns := iso_time_ns(value)) is not None:
            return time_ns
    notes["timestamps_unreadable"] += 1
    return now_ns


def _resource(event: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _found(event, "involvedObject", key) for name, key in _OBJECT.items()}
    found["k8s.namespace.name"] = _found(event, "involvedObject", "namespace") or _found(
        event, "metadata", "namespace"
    )
    found["k8s.node.name"] = _found(event, "source", "host")
    kind = _KINDS.get(str(found["k8s.object.kind"]))
    if kind is not None:
        found[f"k8s.{kind}.name"] = found["k8s.object.name"]
        found[f"k8s.{kind}.uid"] = found["k8s.object.uid"]
    return {
        name: clean_text(value) for name, value in found.items()
        if isinstance(value, str) and value
    }  # fmt: skip


def _attributes(event: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _found(event, *path) for name, path in _EVENT.items()}
    component = found["k8s.event.reporting_controller"] or _found(event, "source", "component")
    found["k8s.event.reporting_controller"] = component
    count = _found(event, "series", "count")
    if isinstance(count, int):
        found["k8s.event.count"] = count
    return {
        name: clean_text(value) if isinstance(value, str) else value
        for name, value in found.items()
        if isinstance(value, (str, int)) and value != ""
    }


def _found(event: Mapping[str, Any], *path: str) -> Any:
    found: Any = event
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
