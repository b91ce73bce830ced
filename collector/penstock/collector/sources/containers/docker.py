"""Containers of a Docker engine that write files: their name, image and labels.

The engine is asked over its Unix socket, once a container: `GET /containers/{id}/json`, of the
Docker Engine API (1.24 and later, by the path without a version). A file waits `wait_s` for that at
most: it is its own spool. After that its records have what the path says, the container's id.
Labels and image of a container never change; its name may, so it is asked again when it is
`refresh_s` old.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog
from typing_extensions import override

from penstock.base.clock import Clock
from penstock.base.http.client import Request, fetch
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import DOCKER_ANSWER_BYTES_MAX, POD_LABELS_MAX
from penstock.collector.sources.containers.file_facts import (
    FILES_KNOWN_MAX,
    NOTHING,
    ContainerFacts,
    FileFacts,
)
from penstock.collector.sources.containers.pod_facts import image_of, matches
from penstock.collector.sources.containers.settings import DockerSection
from penstock.collector.transforms.enrich import container_facts

_AGAIN_S: Final = 1.0
"""Between two attempts at one container that is not known."""
_SAY_AGAIN_NS: Final = 60 * 10**9


@dataclass(slots=True)
class _Container:
    """One container.

    Attributes:
        facts: None before the first answer about it.
        asked_ns: Time when it was met.
        due_ns: Time when it is asked for next.
        is_given_up: It was not known in time.
    """

    facts: FileFacts | None
    asked_ns: int
    due_ns: int
    is_given_up: bool = False


class Containers(ContainerFacts):
    """The containers of one engine.

    Args:
        section: Where the engine is.
        source: The source's name, for messages.
        note: Counts something of the source.
        clock: Clock of waits.
    """

    def __init__(
        self, section: DockerSection, *, source: str, note: Callable[[str], None], clock: Clock
    ) -> None:
        self._section = section
        self._note = note
        self._clock = clock
        self._known: OrderedDict[str, _Container] = OrderedDict()
        self._wanted = asyncio.Event()
        self._silent_until_ns = 0
        self._log = structlog.get_logger().bind(source=source)

    @override
    def facts(self, path: str) -> FileFacts | None:
        own, _ = container_facts(path, None)
        if not own or "k8s.pod.name" in own:
            return NOTHING
        container_id = own["container.id"]
        now_ns = self._clock.monotonic_ns()
        known = self._known.get(container_id)
        if known is None:
            known = self._known[container_id] = _Container(None, now_ns, now_ns)
            if len(self._known) > FILES_KNOWN_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(container_id)
        if now_ns >= known.due_ns:
            self._wanted.set()
        if known.facts is not None:
            return known.facts
        if now_ns - known.asked_ns < self._section.wait_s * 1e9:
            return None
        if not known.is_given_up:
            known.is_given_up = True
            self._note("docker_files_not_enriched")
            self._log.warning(
                "container_unknown", path=path, reason="Docker did not say in time what it is"
            )
        return FileFacts(own, is_whole=False)

    @override
    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            now_ns = self._clock.monotonic_ns()
            for container_id in [key for key, one in self._known.items() if now_ns >= one.due_ns]:
                await self._ask(container_id)

    async def _ask(self, container_id: str) -> None:
        """Ask for one container; what was known of it stays when that fails."""
        wait_s = _AGAIN_S
        try:
            facts = FileFacts(await self._inspect(container_id))
        except (OSError, RemoteProtocolError, ValueError) as error:
            self._failed(str(error) or type(error).__name__)
        else:
            wait_s = self._section.refresh_s
            if (known := self._known.get(container_id)) is not None:
                known.facts = facts
        if (known := self._known.get(container_id)) is not None:
            if known.facts is not None:
                wait_s = self._section.refresh_s  # one that was removed has what it had
            known.due_ns = self._clock.monotonic_ns() + int(wait_s * 1e9)

    async def _inspect(self, container_id: str) -> dict[str, Any]:
        answer = await fetch(
            "http://docker",
            Request(f"/containers/{container_id}/json"),
            timeout_s=self._section.timeout_s,
            body_bytes_max=DOCKER_ANSWER_BYTES_MAX,
            address=self._section.socket,
        )
        if answer.status != 200:
            raise RemoteProtocolError(f"HTTP {answer.status}")
        document = orjson.loads(answer.body)
        if not isinstance(document, dict):
            raise RemoteProtocolError("the answer is no container")
        return {"container.id": container_id, **self._facts_of(document)}

    def _facts_of(self, document: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        config = document.get("Config") or {}
        if isinstance(name := document.get("Name"), str) and name.strip("/"):
            found["container.name"] = name.lstrip("/")
        found |= image_of(config.get("Image"))
        labels = config.get("Labels") or {}
        wanted = [name for name in sorted(labels) if matches(name, self._section.labels)]
        if len(wanted) > POD_LABELS_MAX:
            self._note("docker_labels_left_out")
        for name in wanted[:POD_LABELS_MAX]:
            found[f"container.label.{name}"] = str(labels[name])
        return found

    def _failed(self, why: str) -> None:
        self._note("docker_requests_failed")
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._silent_until_ns:
            self._silent_until_ns = now_ns + _SAY_AGAIN_NS
            self._log.warning(
                "docker_unavailable",
                socket=str(self._section.socket),
                error=why,
                reason="records of new containers have only their id",
            )
