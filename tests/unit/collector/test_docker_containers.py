"""What Docker says of containers, with a fake of its engine made from its documentation.

Of the Docker Engine API, `ContainerInspect`: `GET /containers/{id}/json` answers `Name` with a
slash before it, `Config.Image` and `Config.Labels`; 404 where there is no such container.
`tests/appliance/test_docker_engine.py` asks a real engine.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from penstock.base.clock import SystemClock
from penstock.collector.sources.containers.docker import Containers
from penstock.collector.sources.containers.file_facts import FileFacts, service_of
from penstock.collector.sources.containers.settings import DockerSection
from tests.support.waiting import wait_until_async

ID = "a" * 64
PATH = f"/var/lib/docker/containers/{ID}/{ID}-json.log"


class FakeEngine:
    """Serves containers on a Unix socket.

    Attributes:
        containers: Documents, by id.
        asked: Request lines.
    """

    def __init__(self) -> None:
        self.containers: dict[str, Any] = {}
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split()[1].decode()
        self.asked.append(target)
        found = self.containers.get(target.split("/")[2])
        body = json.dumps(found or {"message": "No such container"}).encode()
        status = b"200 OK" if found else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()
        writer.close()


def container(name: str, **labels: str) -> dict[str, Any]:
    config = {"Image": "registry:5000/shop/web:1.2", "Labels": labels}
    return {"Id": ID, "Name": f"/{name}", "Config": config}


@asynccontextmanager
async def asking(
    directory: Path, engine: FakeEngine | None, notes: Counter[str], **keys: Any
) -> AsyncIterator[Containers]:
    socket = directory / "docker.sock"
    server = None
    if engine is not None:
        server = await asyncio.start_unix_server(engine.serve, socket)
    section = DockerSection.model_validate({"socket": socket, "wait_s": 300} | keys)
    found = Containers(
        section, source="file", note=lambda what: notes.update([what]), clock=SystemClock()
    )
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if server is not None:
            server.close()


async def known(containers: Containers) -> FileFacts:
    await wait_until_async(lambda: containers.facts(PATH) is not None)
    found = containers.facts(PATH)
    assert found is not None
    return found


async def test_a_files_container_gives_name_image_and_chosen_labels(tmp_path: Path) -> None:
    engine, notes = FakeEngine(), Counter[str]()
    engine.containers[ID] = container("web-1", **{"team.name": "shop", "other": "x"})
    async with asking(tmp_path, engine, notes, labels=["team.*"]) as containers:
        assert containers.facts(PATH) is None, "it waits for the answer"
        found = await known(containers)
        other = containers.facts("/var/log/other.log")
    assert found == FileFacts({
        "container.id": ID,
        "container.name": "web-1",
        "container.image.name": "registry:5000/shop/web",
        "container.image.tags": ["1.2"],
        "container.label.team.name": "shop",
    })  # fmt: skip
    assert service_of(found.attributes, PATH) == "web-1"
    assert other == FileFacts({})
    assert engine.asked == [f"/containers/{ID}/json"]
    assert not notes


async def test_a_container_that_is_renamed_or_removed_keeps_what_it_had(tmp_path: Path) -> None:
    engine, notes = FakeEngine(), Counter[str]()
    engine.containers[ID] = container("before")

    def name() -> str:
        found = containers.facts(PATH)
        return "" if found is None else str(found.attributes["container.name"])

    async with asking(tmp_path, engine, notes, refresh_s=1) as containers:
        await wait_until_async(lambda: name() == "before")
        engine.containers[ID] = container("after")
        await wait_until_async(lambda: name() == "after")
        engine.containers.clear()
        await wait_until_async(lambda: bool(name() and notes["docker_requests_failed"]))
        assert name() == "after"


async def test_an_engine_that_does_not_answer_is_counted_and_named(tmp_path: Path) -> None:
    notes = Counter[str]()
    with structlog.testing.capture_logs() as logs:
        async with asking(tmp_path, None, notes, wait_s=0.2) as containers:
            assert await known(containers) == FileFacts({"container.id": ID}, is_whole=False)
            await wait_until_async(lambda: notes["docker_requests_failed"] >= 1)
    assert notes["docker_files_not_enriched"] == 1
    assert {"container_unknown", "docker_unavailable"} <= {one["event"] for one in logs}
