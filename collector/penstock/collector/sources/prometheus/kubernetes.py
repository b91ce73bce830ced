"""Targets of scrapes that Kubernetes knows, with Prometheus's roles and labels.

    node            the kubelet of each node
    service         each port of each service
    pod             each port that a container of a pod declares; without any, the pod's address
    endpointslice   each address and port behind a service, with the labels of service and pod

Objects are watched; of each, what becomes of it is kept. The labels are those that Prometheus's
"kubernetes_sd_config" lists as `__meta_kubernetes_…`. An object's label or annotation has each
character that a label of Prometheus may not have as `_`, and beside it `…present_…`, which is
`true`.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import Field

from penstock.collector.sources.containers.kubernetes_api import (
    Changes,
    KubernetesApi,
    Listed,
    Object,
    Resource,
    follow,
)
from penstock.collector.sources.containers.settings import ApiSection
from penstock.collector.sources.prometheus.relabel import Labels

Role = Literal["node", "service", "pod", "endpointslice"]
_META: Final = "__meta_kubernetes_"
_ADDRESS: Final = "__address__"
_NOT_A_LABEL: Final = re.compile(r"[^A-Za-z0-9_]")
_SERVICE_NAME: Final = "kubernetes.io/service-name"
_PATHS: Final = {
    "nodes": "/api/v1",
    "pods": "/api/v1",
    "services": "/api/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
}
_WATCHED: Final[Mapping[Role, tuple[str, ...]]] = {
    "node": ("nodes",),
    "service": ("services",),
    "pod": ("pods",),
    "endpointslice": ("endpointslices", "services", "pods"),
}
_NODE_ADDRESSES: Final = ("InternalIP", "InternalDNS", "ExternalIP", "ExternalDNS", "Hostname")
"""In this order the address of a node is chosen, as Prometheus does."""
_Key = tuple[str, str]
_OBJECTS_MAX: Final = 50_000
"""Objects of one section that are kept; of a pod that is some KiB."""


class KubernetesTargets(ApiSection):
    """Objects of Kubernetes that are targets."""

    role: Role
    namespaces: list[str] = Field(
        default=[], max_length=256, description="only of these; none: of all"
    )
    own_node: bool = Field(
        default=False, description="only pods of the collector's node, which its `name` says"
    )
    label_selector: str = Field(
        default="", max_length=4096, description="only objects of the role with these labels"
    )
    max_objects: int = Field(default=_OBJECTS_MAX, ge=1, description="more are left out")


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of an object.

    Attributes:
        own: Its labels.
        parts: Labels of each target that it is.
        joined: Of each of those, service and pod whose labels it has, too.
    """

    own: Labels
    parts: list[Labels]
    joined: list[tuple[_Key, _Key]] = field(default_factory=list)


class KubernetesDiscovery:
    """Watches the objects of one section.

    Args:
        section: Which objects.
        node: The collector's node.
        where: Place of the section in the configuration, for messages.
        changed: Called when the targets may be others.
        note: Counts something of the source.
        failed: Takes the message of a request that failed.

    Raises:
        ConfigError: A file of the configuration cannot be used.
    """

    def __init__(
        self,
        section: KubernetesTargets,
        node: str,
        *,
        where: str,
        changed: Callable[[], None],
        note: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        self._section = section
        self._node = node
        self._api = KubernetesApi(section, where)
        self._changed = changed
        self._note = note
        self._failed = failed
        self._kept: dict[str, dict[_Key, _Kept]] = {kind: {} for kind in _WATCHED[section.role]}

    async def run(self) -> None:
        """Watch until cancelled."""
        namespaces = [] if self._section.role == "node" else self._section.namespaces
        async with asyncio.TaskGroup() as tasks:
            for kind in self._kept:
                for namespace in namespaces or [""]:
                    tasks.create_task(self._follow(kind, namespace))

    def targets(self) -> list[Labels]:
        """Return the labels of each target that is known now."""
        services, pods = self._kept.get("services", {}), self._kept.get("pods", {})
        found: list[Labels] = []
        for kept in self._kept[_WATCHED[self._section.role][0]].values():
            for index, part in enumerate(kept.parts):
                more: Labels = {}
                if kept.joined:
                    service, pod = kept.joined[index]
                    more = (services[service].own if service in services else {}) | (
                        pods[pod].own if pod in pods else {}
                    )
                found.append({**more, **kept.own, **part})
        return found

    async def _follow(self, kind: str, namespace: str) -> None:
        within = f"/namespaces/{namespace}" if namespace else ""
        query: dict[str, str] = {}
        is_of_role = kind == _WATCHED[self._section.role][0]
        if is_of_role and self._section.label_selector:
            query["labelSelector"] = self._section.label_selector
        if kind == "pods" and self._section.own_node:
            query["fieldSelector"] = f"spec.nodeName={self._node}"
        resource = Resource(f"{_PATHS[kind]}{within}/{kind}", f"list and watch {kind}", query)

        async def take(found: Listed | Changes) -> None:
            self._take(kind, namespace, found)

        await follow(self._api, resource, version="", take=take, failed=self._failed)

    def _take(self, kind: str, namespace: str, found: Listed | Changes) -> None:
        kept = self._kept[kind]
        if isinstance(found, Listed):
            keys = {_key(item) for item in found.items}
            for key in [key for key in kept if key not in keys and namespace in ("", key[0])]:
                del kept[key]
            for item in found.items:
                self._put(kind, item)
        for change in found.items if isinstance(found, Changes) else ():
            if change.kind == "DELETED":
                kept.pop(_key(change.item), None)
            else:
                self._put(kind, change.item)
        if found.items:
            self._changed()

    def _put(self, kind: str, item: Object) -> None:
        kept, key = self._kept[kind], _key(item)
        if key not in kept and len(kept) >= self._section.max_objects:
            self._note("kubernetes_objects_left_out")
            return
        try:
            kept[key] = _READ[kind](item)
        except (KeyError, TypeError, AttributeError, ValueError):
            kept.pop(key, None)
            self._note("kubernetes_objects_malformed")


def _key(item: Object) -> _Key:
    meta = item["metadata"]
    return str(meta.get("namespace") or ""), str(meta.get("name"))


def _node(item: Object) -> _Kept:
    own = _own(item, "node")
    status = item.get("status") or {}
    by_kind: dict[str, str] = {}
    for one in status.get("addresses") or ():
        by_kind.setdefault(one["type"], one["address"])
        own.setdefault(f"{_META}node_address_{_cleaned(one['type'])}", one["address"])
    address = next((by_kind[kind] for kind in _NODE_ADDRESSES if kind in by_kind), None)
    own["instance"] = item["metadata"]["name"]
    if address is None:
        return _Kept(own, [])
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", 10250)
    return _Kept(own, [{_ADDRESS: _joined(address, port)}])


def _service(item: Object) -> _Kept:
    own, spec = _own(item, "service"), item.get("spec") or {}
    own[f"{_META}service_type"] = str(spec.get("type", ""))
    if spec.get("type") == "ExternalName":
        own[f"{_META}service_external_name"] = str(spec.get("externalName", ""))
    else:
        own[f"{_META}service_cluster_ip"] = str(spec.get("clusterIP", ""))
    meta = item["metadata"]
    host = f"{meta['name']}.{meta['namespace']}.svc"
    parts = [
        {_ADDRESS: _joined(host, port["port"]), **_port("service_port", port, "port")}
        for port in spec.get("ports") or ()
    ]
    return _Kept(own, parts)


def _pod(item: Object) -> _Kept:
    own, spec, status = _own(item, "pod"), item.get("spec") or {}, item.get("status") or {}
    address = str(status.get("podIP") or "")
    ready = next((one["status"] for one in status.get("conditions") or ()
                  if one.get("type") == "Ready"), "Unknown")  # fmt: skip
    own |= {
        f"{_META}pod_ip": address,
        f"{_META}pod_ready": str(ready).lower(),
        f"{_META}pod_phase": str(status.get("phase", "")),
        f"{_META}pod_node_name": str(spec.get("nodeName", "")),
        f"{_META}pod_host_ip": str(status.get("hostIP", "")),
        f"{_META}pod_uid": str(item["metadata"].get("uid", "")),
    }
    for owner in item["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            own[f"{_META}pod_controller_kind"] = str(owner.get("kind", ""))
            own[f"{_META}pod_controller_name"] = str(owner.get("name", ""))
    if not address or status.get("phase") in ("Succeeded", "Failed"):
        return _Kept(own, [])
    return _Kept(own, [*_ports_of_containers(spec, status, address)])


def _ports_of_containers(spec: Object, status: Object, address: str) -> Iterator[Labels]:
    ids = {
        one["name"]: one.get("containerID", "")
        for key in ("containerStatuses", "initContainerStatuses")
        for one in status.get(key) or ()
    }
    for key, is_init in (("containers", "false"), ("initContainers", "true")):
        for container in spec.get(key) or ():
            name = container["name"]
            labels = {
                f"{_META}pod_container_name": name,
                f"{_META}pod_container_image": str(container.get("image", "")),
                f"{_META}pod_container_id": str(ids.get(name) or ""),
                f"{_META}pod_container_init": is_init,
            }
            ports = container.get("ports") or ()
            if not ports:  # one target without a port, which a rule may add
                yield {_ADDRESS: f"[{address}]" if ":" in address else address, **labels}
            for port in ports:
                yield {
                    _ADDRESS: _joined(address, port["containerPort"]),
                    **labels,
                    **_port("pod_container_port", port, "containerPort"),
                }


def _endpointslice(item: Object) -> _Kept:
    own, meta = _own(item, "endpointslice"), item["metadata"]
    own[f"{_META}endpointslice_address_type"] = str(item.get("addressType", ""))
    service = meta["namespace"], str((meta.get("labels") or {}).get(_SERVICE_NAME, ""))
    parts: list[Labels] = []
    joined: list[tuple[_Key, _Key]] = []
    for endpoint in item.get("endpoints") or ():
        labels, conditions = {}, endpoint.get("conditions") or {}
        for condition in ("ready", "serving", "terminating"):
            if isinstance(conditions.get(condition), bool):
                name = f"{_META}endpointslice_endpoint_conditions_{condition}"
                labels[name] = str(conditions[condition]).lower()
        if endpoint.get("nodeName"):
            labels[f"{_META}endpointslice_endpoint_node_name"] = str(endpoint["nodeName"])
        target = endpoint.get("targetRef") or {}
        pod = ("", "")
        if target:
            labels[f"{_META}endpointslice_address_target_kind"] = str(target.get("kind", ""))
            labels[f"{_META}endpointslice_address_target_name"] = str(target.get("name", ""))
        if target.get("kind") == "Pod":
            pod = str(target.get("namespace") or meta["namespace"]), str(target["name"])
        for address in endpoint.get("addresses") or ():
            for port in item.get("ports") or ():
                if port.get("port") is not None:
                    made = _port("endpointslice_port", port, "port", number="")
                    parts.append({**labels, **made, _ADDRESS: _joined(address, port["port"])})
                    joined.append((service, pod))
    return _Kept(own, parts, joined)


_READ: Final[Mapping[str, Callable[[Object], _Kept]]] = {
    "nodes": _node, "services": _service, "pods": _pod, "endpointslices": _endpointslice,
}  # fmt: skip


def _own(item: Object, kind: str) -> Labels:
    meta = item["metadata"]
    found = {f"{_META}{kind}_name": str(meta["name"])}
    if meta.get("namespace"):
        found[f"{_META}namespace"] = str(meta["namespace"])
    for key in ("label", "annotation"):
        for name, value in (meta.get(f"{key}s") or {}).items():
            found[f"{_META}{kind}_{key}_{_cleaned(name)}"] = str(value)
            found[f"{_META}{kind}_{key}present_{_cleaned(name)}"] = "true"
    return found


def _port(prefix: str, port: Object, key: str, *, number: str = "_number") -> Labels:
    return {
        f"{_META}{prefix}{number}": str(port[key]),
        f"{_META}{prefix}_name": str(port.get("name") or ""),
        f"{_META}{prefix}_protocol": str(port.get("protocol") or "TCP"),
    }


def _cleaned(name: str) -> str:
    return _NOT_A_LABEL.sub("_", name)


def _joined(host: str, port: object) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
