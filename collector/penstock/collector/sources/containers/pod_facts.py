"""What a pod's object says of its containers, in OpenTelemetry's names (`k8s.*`, `container.*`).

The owner is the pod's controller: ``k8s.statefulset.name`` and its like. A pod of a Deployment is
owned by a ReplicaSet whose name is the Deployment's and the pod's label `pod-template-hash`; a pod
of a CronJob by a Job whose name ends in the minute for which it was scheduled, since 1970. So
neither is asked for, which would need the right to read them; a Job whose number is no time near
the pod's creation has no CronJob.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from penstock.collector.limits import POD_LABELS_MAX
from penstock.collector.sources.containers.kubernetes_api import Object

_CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""The annotation that has the UID by which a static pod's directory is named."""
_TEMPLATE_HASH: Final = "pod-template-hash"
_OWNERS: Final = ("ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController")
_SCHEDULED: Final = re.compile(r"(.+)-([0-9]{8})")
_NEAR_MINUTES: Final = 24 * 60
"""A Job may start so long after its minute, as of a CronJob that was suspended."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Names of labels and annotations that are wanted; patterns, as of a shell."""

    labels: Sequence[str]
    annotations: Sequence[str]


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The attributes of one pod.

    Attributes:
        uids: UIDs by which its directory of logs may be named.
        containers: The attributes of each of its containers, by name.
        container_ids: The id of a container's run, by its name and number of restarts.
        left_out: Number of labels and annotations above the limit.
    """

    key: tuple[str, str]
    uids: frozenset[str]
    attributes: Mapping[str, Any]
    containers: Mapping[str, Mapping[str, Any]]
    container_ids: Mapping[tuple[str, int], str]
    left_out: int = 0

    def of_container(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of one container's records; what its path says stays."""
        name = own.get("k8s.container.name", "")
        run = self.container_ids.get((name, own.get("k8s.container.restart_count", -1)))
        identity = {} if run is None else {"container.id": run}
        return {**self.attributes, **self.containers.get(name, {}), **identity, **own}


def facts_of(pod: Object, chosen: Chosen) -> PodFacts:
    """Return the facts of a pod's object; fields of another type than documented are left out."""
    meta, spec = _mapping(pod.get("metadata")), _mapping(pod.get("spec"))
    labels, annotations = _mapping(meta.get("labels")), _mapping(meta.get("annotations"))
    attributes = dict(_own(meta, spec, pod))
    attributes |= _owner(meta, labels)
    left_out = 0
    for names, patterns, prefix in (
        (labels, chosen.labels, "k8s.pod.label."),
        (annotations, chosen.annotations, "k8s.pod.annotation."),
    ):
        wanted = [name for name in sorted(names) if matches(name, patterns)]
        left_out += max(0, len(wanted) - POD_LABELS_MAX)
        attributes |= {f"{prefix}{name}": str(names[name]) for name in wanted[:POD_LABELS_MAX]}
    uids = {str(one) for one in (meta.get("uid"), annotations.get(_CONFIG_HASH)) if one}
    return PodFacts(
        (str(meta.get("namespace")), str(meta.get("name"))),
        frozenset(uids),
        attributes,
        {
            str(one["name"]): image_of(one.get("image"))
            for one in _containers(spec, "containers", "initContainers", "ephemeralContainers")
        },
        dict(_runs(_mapping(pod.get("status")))),
        left_out,
    )


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def image_of(image: object) -> dict[str, Any]:
    """Return the name of an image, and its tag where it has one."""
    if not isinstance(image, str) or not image:
        return {}
    name, _, tag = image.rpartition(":")
    if not name or "/" in tag or "@" in image:
        return {"container.image.name": image}
    return {"container.image.name": name, "container.image.tags": [tag]}


def _own(meta: Object, spec: Object, pod: Object) -> Mapping[str, Any]:
    found = {
        "k8s.node.name": spec.get("nodeName"),
        "k8s.pod.uid": meta.get("uid"),
        "k8s.pod.ip": _mapping(pod.get("status")).get("podIP"),
        "k8s.pod.start_time": _mapping(pod.get("status")).get("startTime"),
    }
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def _owner(meta: Object, labels: Object) -> dict[str, Any]:
    for owner in meta.get("ownerReferences") or ():
        kind, name = owner.get("kind"), owner.get("name")
        if not owner.get("controller") or kind not in _OWNERS or not isinstance(name, str):
            continue
        key = f"k8s.{kind.lower()}"
        found = {f"{key}.name": name, f"{key}.uid": str(owner.get("uid") or "")}
        suffix = f"-{labels.get(_TEMPLATE_HASH)}"
        if kind == "ReplicaSet" and name.endswith(suffix):
            found["k8s.deployment.name"] = name.removesuffix(suffix)
        if kind == "Job" and (cron_job := _cron_job(name, meta.get("creationTimestamp"))):
            found["k8s.cronjob.name"] = cron_job
        return {key: value for key, value in found.items() if value}
    return {}


def _cron_job(name: str, created: object) -> str:
    match = _SCHEDULED.fullmatch(name)
    if match is None or not isinstance(created, str):
        return ""
    try:
        minute = datetime.fromisoformat(created).timestamp() / 60
    except ValueError:
        return ""
    return match[1] if abs(minute - int(match[2])) <= _NEAR_MINUTES else ""


def _containers(spec: Object, *keys: str) -> list[Object]:
    found = [one for key in keys for one in spec.get(key) or ()]
    return [one for one in found if isinstance(one, dict) and "name" in one]


def _runs(status: Object) -> list[tuple[tuple[str, int], str]]:
    keys = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    return [
        ((str(one["name"]), restarts), container_id.rpartition("//")[2])
        for one in _containers(status, *keys)
        if isinstance(restarts := one.get("restartCount"), int)
        and isinstance(container_id := one.get("containerID"), str)
        and container_id
    ]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
