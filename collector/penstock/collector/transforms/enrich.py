"""Enrich: the host, the container a log file belongs to, and rows of static tables."""

import csv
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.sources.settings import Section
from penstock.collector.transforms.expressions.expression import (
    Evaluate,
    compile_expression,
    to_text,
)
from penstock.collector.transforms.expressions.paths import Fields, getter
from penstock.collector.transforms.transform import (
    PASS,
    Event,
    Expression,
    SettingsError,
    Transform,
    TransformContext,
    TransformSettings,
    Verdict,
)
from penstock.service import FilePath

_REMEMBERED_MAX: Final = 4096
"""Files whose container is cached; the one not asked for longest is forgotten."""
_TABLE_BYTES_MAX: Final = 16 * 1024 * 1024
_TABLE_ROWS_MAX: Final = 100_000
"""A table stays in memory; larger ones belong into a join in the router."""
_DOCKER_CONFIG_BYTES_MAX: Final = 1024 * 1024
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
"""The rows of a table by their keys."""


class TableSection(Section):
    """Rows of a file, looked up by a key; read when the collector starts."""

    file: FilePath
    key: Expression
    column: str = Field(min_length=1)
    prefix: str = Field(default="", max_length=64)


class EnrichSettings(TransformSettings):
    """Facts are added that the record does not have."""

    type: Literal["enrich"]
    host: bool = False
    container: bool = False
    tables: list[TableSection] = Field(default=[])

    @model_validator(mode="after")
    def _does_something(self) -> "EnrichSettings":
        if not (self.host or self.container or self.tables):
            msg = "set `host`, `container` or `tables`"
            raise ValueError(msg)
        return self


class Enrich(Transform):
    """Adds facts that the record does not have yet; what is there stays.

    Args:
        resource: Facts of the host.
        read_docker: Reader of Docker's files; None: containers are not looked at.
        tables: For each table: function of the key, rows by key, and the names that the rows are
            put before.
    """

    settings = EnrichSettings
    outputs = (PASS,)

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: TransformContext) -> Self:
        where = f"transforms.{context.name}.tables"
        tables: list[tuple[Evaluate, Rows, str]] = [
            (compile_expression(table.key).evaluate, _rows(where, table), table.prefix)
            for table in settings.tables
        ]
        return cls(
            context.resource if settings.host else {},
            _read_docker if settings.container else None,
            tables,
        )

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
        """The rows of each table."""
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
    """Return a container's facts from its log file's path, and whether these are complete."""
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


def _rows(key_path: str, table: TableSection) -> dict[str, dict[str, Any]]:
    """A table's rows by the text in its key column.

    Raises:
        SettingsError: It cannot be read, is too large, or has a key twice.
    """
    where = f"{key_path}: {table.file}"
    try:
        if table.file.stat().st_size > _TABLE_BYTES_MAX:
            raise SettingsError(f"{where} has more than {_TABLE_BYTES_MAX} bytes")
        text = table.file.read_text(encoding="utf-8")
        rows = (
            json.loads(text)
            if table.file.suffix == ".json"
            else [*csv.DictReader(text.splitlines())]
        )
    except OSError as error:
        raise SettingsError(f"{where} cannot be read: {error.strerror}") from None
    except (ValueError, csv.Error, RecursionError) as error:
        raise SettingsError(
            f"{where} is neither CSV nor, as *.json, a list of objects: {error}"
        ) from None
    if not isinstance(rows, list) or len(rows) > _TABLE_ROWS_MAX:
        raise SettingsError(f"{where} must be a list of at most {_TABLE_ROWS_MAX} rows")
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, 1):
        values = dict(row) if isinstance(row, dict) else {}
        key = values.pop(table.column, None)
        if key is None or str(key) in found:
            problem = "has no" if key is None else "repeats the"
            raise SettingsError(f"{where}: row {number} {problem} {table.column}")
        found[str(key)] = {k: v for k, v in values.items() if k and _is_scalar(v)}
    return found


def _is_scalar(value: Any) -> bool:
    return value.__class__ in {str, int, float, bool}


def _read_docker(directory: str, container_id: str) -> Mapping[str, Any] | None:
    path = Path(directory) / "config.v2.json"
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_DOCKER_CONFIG_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    is_its_own = isinstance(found, dict) and found.get("ID") == container_id
    return found if is_its_own else None
