"""Events of a Kubernetes cluster, watched at its API server.

What came is durable in the spool before its resource version is saved, and the next watch goes on
after that one. So nothing is left out while the server knows it, which is an hour by default; after
a crash, what came between the last sync and the last saved version comes again. When the server has
forgotten that version (410 Gone), every event that is left is listed, and those of a later version
are taken: resource versions are numbers that rise. The cluster's events need one collector: each
that has this source takes all of them.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field
from typing_extensions import override

from penstock.base.uncancelled import uncancelled
from penstock.collector.decode.formats.kubernetes_events import event_line
from penstock.collector.sources.containers.kubernetes_api import (
    Changes,
    KubernetesApi,
    Listed,
    Object,
    Resource,
    follow,
)
from penstock.collector.sources.containers.settings import ApiSection
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.logd.errors import LogdError
from penstock.logd.storage import Checkpoint
from penstock.service import ConfigError

_ALL = ""
"""Key of the position of all namespaces together, which is no namespace's name."""


class KubernetesEventsSettings(ApiSection, SourceSettings):
    """Events of a Kubernetes cluster, by its API."""

    type: Literal["kubernetes_events"]
    namespaces: list[str] = Field(
        default=[], max_length=256, description="only of these; none: of all"
    )
    types: list[Literal["Normal", "Warning"]] = Field(default=["Normal", "Warning"], min_length=1)
    start_at: Literal["beginning", "end"] = Field(
        default="beginning", description="of the events that are there at the first start"
    )
    cluster: str | None = Field(
        default=None, min_length=1, max_length=255, description="`k8s.cluster.name` of the events"
    )
    service: str = Field(default="kubernetes", min_length=1)


class KubernetesEventsSource(Source):
    """Watches the events of a cluster or of some namespaces.

    Args:
        resource: The collector's defaults.
        checkpoint: Keeps the resource versions.
    """

    settings = KubernetesEventsSettings

    @classmethod
    @override
    def from_settings(cls, settings: Any, context: SourceContext) -> Self:
        checkpoint = Checkpoint(context.data_dir / f"kubernetes-events-{context.name}")
        return cls(settings, context.resource, checkpoint, spool_writer=context.spool_writer())

    def __init__(
        self,
        section: KubernetesEventsSettings,
        resource: Mapping[str, Any],
        checkpoint: Checkpoint,
        *,
        spool_writer: SpoolWriter,
    ) -> None:
        self.name = spool_writer.source
        self._section = section
        facts = {"service.name": section.service}
        if section.cluster is not None:
            facts["k8s.cluster.name"] = section.cluster
        # The collector's own host is not where the events happened.
        self._resource = {
            key: value for key, value in resource.items() if not key.startswith("host.")
        } | facts
        self._checkpoint = checkpoint
        self._spool_writer = spool_writer
        self._api = KubernetesApi(section, f"source {self.name}")
        self._versions: dict[str, str] = {}
        self._trouble: dict[str, str] = {}
        self._stopping = asyncio.Event()
        self._saving = asyncio.Lock()

    @override
    async def start(self) -> None:
        try:
            saved = self._checkpoint.load() or {}
            versions = saved.get("versions", {})
            self._versions = {str(key): str(value) for key, value in versions.items()}
        except (LogdError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"source {self.name}: {self._checkpoint.path}: cannot be read: {error}",
                fix="remove the file: the events are then read as at the first start",
            ) from None

    @override
    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = [
                tasks.create_task(self._follow(namespace))
                for namespace in self._section.namespaces or [_ALL]
            ]
            await self._stopping.wait()
            for task in following:
                task.cancel()

    @override
    async def stop(self) -> None:
        self._stopping.set()

    @property
    @override
    def trouble(self) -> str:
        return next(iter(self._trouble.values()), "")

    async def _follow(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/events" if namespace else "/api/v1/events"
        types = set(self._section.types)
        query = {"fieldSelector": f"type={types.pop()}"} if len(types) == 1 else {}
        resource = Resource(path, "list and watch events", query)

        async def take(found: Listed | Changes) -> None:
            self._trouble.pop(namespace, None)
            await self._take(namespace, found)

        def failed(why: str) -> None:
            self._trouble[namespace] = why
            self._spool_writer.note("kubernetes_requests_failed")
            self._spool_writer.log.warning(
                "kubernetes_events_unavailable", server=self._section.server, error=why
            )

        version = self._versions.get(namespace, "")
        await follow(self._api, resource, version=version, take=take, failed=failed)

    async def _take(self, namespace: str, found: Listed | Changes) -> None:
        if isinstance(found, Listed):
            events = self._new(namespace, found)
        else:
            events = [one.item for one in found.items if one.kind != "DELETED"]
        if events:
            notes: Counter[str] = Counter()
            now_ns = self._spool_writer.clock.unix_ns()
            lines = [event_line(event, self._resource, now_ns, notes) for event in events]
            for what, count in notes.items():
                self._spool_writer.note(what, count)
            payload = Payload("ndjson", b"\n".join(lines), len(lines))
            await self._spool_writer.persist_with_retry(payload, leave=_read_again)
        if found.version != self._versions.get(namespace):
            await self._save(namespace, found.version)

    def _new(self, namespace: str, listed: Listed) -> list[Object]:
        """Return the events of a list that were not taken yet, the oldest first."""
        known = self._versions.get(namespace)
        if known is None and self._section.start_at == "end":
            return []
        events = sorted(listed.items, key=_number)
        if known is None:
            return events
        if not known.isdecimal() or _as_number(listed.version) < int(known):
            self._spool_writer.note("positions_reset")
            self._spool_writer.log.warning(
                "kubernetes_events_position_reset",
                position=known,
                server_position=listed.version,
                reason="the server is another, or was restored: events may come again",
            )
            return events
        self._spool_writer.note("positions_forgotten")
        new = [event for event in events if _number(event) > int(known)]
        self._spool_writer.log.warning(
            "kubernetes_events_position_forgotten",
            position=known,
            taken=len(new),
            reason="the server does not know it any more: events that it removed since are lost",
        )
        return new

    async def _save(self, namespace: str, version: str) -> None:
        self._versions[namespace] = version
        async with self._saving:  # each namespace saves, and the file is one
            try:
                document = {"versions": {**self._versions}}
                await uncancelled(asyncio.to_thread(self._checkpoint.save, document))
            except OSError as error:
                self._spool_writer.log.warning("position_write_failed", error=error.strerror)


def _number(event: Object) -> int:
    return _as_number(str(event["metadata"].get("resourceVersion") or ""))


def _as_number(version: str) -> int:
    return int(version) if version.isdecimal() else -1


def _read_again(_: Payload) -> None:
    """The position does not move past events that are not durable: nothing of them is lost."""
