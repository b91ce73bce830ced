"""Enrich: the host, the container a log file belongs to, and rows of static tables."""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from typing_extensions import override

from penstock.collector.transforms.event import PASS, Event, Transform, Verdict
from penstock.collector.transforms.expression import Evaluate, to_text
from penstock.collector.transforms.paths import Fields, getter

_REMEMBERED_MAX: Final = 4096
"""Files whose container is remembered; the one not asked for longest is forgotten."""
_AGAIN_NS: Final = 60_000_000_000
"""A container whose configuration could not be read is looked for again after so long."""

# kubelet: <namespace>_<pod>_<uid>/<container>/<restarts>.log, and its links in /var/log/containers.
_POD: Final = re.compile(
    r"/pods/(?P<namespace>[a-z0-9.-]{1,63})_(?P<pod>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{32,36})"
    r"/(?P<container>[a-z0-9.-]{1,63})/(?P<restarts>[0-9]{1,9})\.log"
)
_LINK: Final = re.compile(
    r"/containers/(?P<pod>[a-z0-9.-]{1,253})_(?P<namespace>[a-z0-9.-]{1,63})_"
    r"(?P<container>[a-z0-9.-]{1,63})-(?P<id>[0-9a-f]{64})\.log\Z"
)
_DOCKER: Final = re.compile(r"/containers/(?P<id>[0-9a-f]{64})/(?P=id)-json\.log")

DOCKER_FACTS: Final = tuple(
    ("resource", name)
    for name in (
        "container.name",
        "container.image.name",
        "container.image.tags",
        "docker.compose.project",
        "docker.compose.service",
    )
)
"""Places of what is read of Docker's files, which may be there later, or not any more."""
PATH_FACTS: Final = tuple(
    ("resource", name)
    for name in (
        "container.id",
        "k8s.namespace.name",
        "k8s.pod.name",
        "k8s.pod.uid",
        "k8s.container.name",
        "k8s.container.restart_count",
    )
)
"""Places of what a log file's path says."""

ReadDocker = Callable[[str, str], Mapping[str, Any] | None]
"""Directory and id of a Docker container to its ``config.v2.json``; None when it cannot be read."""

Rows = Mapping[str, Mapping[str, Any]]
"""Of a table, by their keys."""


class Enrich(Transform):
    """Adds facts that the record does not have yet; what is there stays.

    Args:
        resource: Facts of the host.
        read_docker: How Docker's files are read; None: containers are not looked at.
        tables: For each table: what computes the key, rows by key, before which names are put.
    """

    outputs = (PASS,)

    def __init__(
        self,
        resource: Mapping[str, Any],
        read_docker: ReadDocker | None,
        tables: list[tuple[Evaluate, Rows, str]],
    ) -> None:
        self._resource = resource
        self._read_docker = read_docker
        self._tables = tables
        self._path = getter(("attributes", "log.file.path"))
        self._containers: OrderedDict[str, tuple[Mapping[str, Any], int | None]] = OrderedDict()

    @property
    def rows(self) -> list[Rows]:
        """Of each table."""
        return [rows for _, rows, _ in self._tables]

    @override
    def apply(self, event: Event, now_ns: int) -> Verdict:
        fields = event.fields
        facts = dict(self._resource)
        if self._read_docker is not None and (path := self._path(fields)).__class__ is str:
            facts |= self._container(str(path), now_ns)
        fields = _added(fields, "resource", facts)
        for key, rows, prefix in self._tables:
            row = rows.get(to_text(key(fields)) or "")
            if row:
                fields = _added(
                    fields, "attributes", {f"{prefix}{name}": value for name, value in row.items()}
                )
        event.fields = fields
        return PASS

    def _container(self, path: str, now_ns: int) -> Mapping[str, Any]:
        known = self._containers.get(path)
        if known is not None and (known[1] is None or now_ns < known[1]):
            self._containers.move_to_end(path)
            return known[0]
        facts, is_final = container_facts(path, self._read_docker)
        self._containers[path] = (facts, None if is_final else now_ns + _AGAIN_NS)
        if len(self._containers) > _REMEMBERED_MAX:
            self._containers.popitem(last=False)
        return facts


def container_facts(path: str, read_docker: ReadDocker | None) -> tuple[dict[str, Any], bool]:
    """What a log file's path says of its container, and whether that is all there will be."""
    if (match := _POD.search(path)) is not None:
        return {
            "k8s.namespace.name": match["namespace"],
            "k8s.pod.name": match["pod"],
            "k8s.pod.uid": match["uid"],
            "k8s.container.name": match["container"],
            "k8s.container.restart_count": int(match["restarts"]),
        }, True
    if (match := _LINK.search(path)) is not None:
        return {
            "k8s.namespace.name": match["namespace"],
            "k8s.pod.name": match["pod"],
            "k8s.container.name": match["container"],
            "container.id": match["id"],
        }, True
    if (match := _DOCKER.search(path)) is None:
        return {}, True
    identity = {"container.id": match["id"]}
    directory = path[: path.rindex("/")]
    config = read_docker(directory, match["id"]) if read_docker is not None else None
    if config is None:
        return identity, False
    return {**identity, **_docker_facts(config)}, True


def _docker_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    inner = config.get("Config")
    inner = inner if isinstance(inner, dict) else {}
    found: dict[str, Any] = {}
    if isinstance(name := config.get("Name"), str) and name.strip("/"):
        found["container.name"] = name.lstrip("/")
    if isinstance(image := inner.get("Image"), str) and image:
        repository, _, tag = image.rpartition(":")
        named = bool(repository) and "/" not in tag and "@" not in image
        found["container.image.name"] = repository if named else image
        if named:
            found["container.image.tags"] = [tag]
    labels = inner.get("Labels")
    for key, label in (
        ("docker.compose.project", "com.docker.compose.project"),
        ("docker.compose.service", "com.docker.compose.service"),
    ):
        if isinstance(labels, dict) and isinstance(labels.get(label), str):
            found[key] = labels[label]
    return found


def _added(fields: Fields, group: str, facts: Mapping[str, Any]) -> Fields:
    old = fields.get(group) or {}
    new = {name: value for name, value in facts.items() if name not in old}
    return {**fields, group: {**old, **new}} if new else fields
