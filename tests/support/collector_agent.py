"""A whole collector in this process: bytes go in at its sources, and a log that a test minds takes
what it publishes; it is asked as its operators ask it.
"""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from typing_extensions import override

from penstock.base.clock import Clock
from penstock.base.errors import DrainCutShortError
from penstock.collector.agent.admin import SOCKET_NAME, asking
from penstock.collector.agent.agent import ENDPOINTS_FILE, Agent
from penstock.collector.config import CollectorConfig, NatsSection
from penstock.collector.delivery.core import Publish, Stored
from penstock.collector.delivery.publisher import Answer, Publisher
from penstock.service.tracing.spans import Tracer
from tests.support.collector import encode_batch
from tests.support.waiting import wait_until_async


def config_of(directory: Path, **keys: Any) -> CollectorConfig:
    """A configuration with one source, a Unix socket `app`, unless the keys have others."""
    app = {"type": "unix", "name": "app", "path": str(directory / "app.sock")}
    given = {
        "name": "host-1",
        "data_dir": str(directory / "data"),
        "nats": {"url": "nats://127.0.0.1:1"},
        "admin": "127.0.0.1:0",
        "sources": [app],
        "batch": {"max_age_ms": 1},
        "drain_timeout_s": 0.1,
        **keys,
    }
    return CollectorConfig.model_validate(given)


class TestLog:
    """What stands where logd does.

    Attributes:
        published: Subject and records of each batch that was stored, in order.
        answer: What a batch is answered.
        leave_error: Raised when a connection to it is left.
    """

    __test__ = False

    def __init__(self) -> None:
        self.published: list[tuple[str, list[bytes]]] = []
        self.answer: Callable[[Publish], Answer] = lambda effect: Stored(effect.request)
        self.leave_error: Exception | None = None

    def publisher(
        self,
        config: NatsSection,
        incarnation: UUID,
        on_change: Callable[[], None],
        clock: Clock,
        tracer: Tracer | None,
    ) -> Publisher:
        """A connection to it; the agent's `make_publisher`."""
        return _Connection(self, config, incarnation, on_change, clock, tracer)

    @property
    def subjects(self) -> list[str]:
        """Of the batches that were stored."""
        return [subject for subject, _ in self.published]

    @property
    def records(self) -> list[dict[str, Any]]:
        """All that was stored."""
        return [json.loads(line) for _, lines in self.published for line in lines]


class _Connection(Publisher):
    def __init__(self, log: TestLog, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._log = log
        self._connected = False

    @property
    @override
    def is_connected(self) -> bool:
        return self._connected

    @property
    @override
    def trouble(self) -> str:
        return ""

    @override
    async def connect(self, name: str, timeout_s: float, *, needed: bool = True) -> None:
        self._connected = True

    @override
    async def publish(self, effect: Publish) -> Answer:
        answer = self._log.answer(effect)
        if isinstance(answer, Stored):
            self._log.published.append((effect.queue.subject, list(effect.batch.lines)))
        return answer

    @override
    async def leave(self) -> None:
        if self._log.leave_error is not None:
            raise self._log.leave_error
        await self.close()

    @override
    async def close(self) -> None:
        self._connected = False


class RunningAgent:
    """An agent that runs.

    Args:
        directory: Of its sockets; its data is in `data` there.
    """

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self._socket = directory / "app.sock"
        self._sender = str(uuid4())
        self._sequence = 0

    async def send(self, *lines: bytes) -> dict[str, Any]:
        """Send a batch to the source `app`; returns its answer."""
        self._sequence += 1
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        writer.write(encode_batch(self._sender, self._sequence, list(lines)))
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        writer.close()
        return answer

    async def ask(self, do: str, **more: Any) -> list[dict[str, Any]]:
        """Ask on the admin socket; returns the lines of the answer."""
        path = self.data_dir / SOCKET_NAME
        return [line async for line in asking(path, {"do": do, **more})]

    async def status(self) -> dict[str, Any]:
        """What the collector says of itself."""
        (answer,) = await self.ask("status")
        status: dict[str, Any] = answer["status"]
        return status

    async def reload(self) -> dict[str, Any]:
        """The report of a reload."""
        (answer,) = await self.ask("reload")
        report: dict[str, Any] = answer["report"]
        return report

    async def wait_for_status(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status for which something holds."""
        async with asyncio.timeout(30):
            while not condition(status := await self.status()):  # noqa: ASYNC110 - it is asked
                await asyncio.sleep(0.02)
        return status

    async def wait_for_reasons(self, *reasons: str) -> None:
        """Return when these are why it is degraded, and no others."""
        await self.wait_for_status(lambda status: tuple(status["reasons"]) == reasons)

    @property
    def endpoints(self) -> dict[str, str]:
        """Where it listens."""
        found: dict[str, str] = json.loads((self.data_dir / ENDPOINTS_FILE).read_text())
        return found


@contextlib.asynccontextmanager
async def running(
    directory: Path, agent: Agent, *, delivers: bool = True
) -> AsyncIterator[RunningAgent]:
    """Run an agent of `config_of`; it drains and stops at the end of the block.

    Args:
        directory: Of its sockets and its data.
        agent: To be run.
        delivers: False: records may be held at the end.
    """
    stop = asyncio.Event()
    task = asyncio.ensure_future(agent.run(stop))
    running = RunningAgent(directory)
    try:
        await wait_until_async(lambda: task.done() or (running.data_dir / ENDPOINTS_FILE).exists())
        if not task.done():
            await running.wait_for_status(lambda status: status["health"] != "starting")
            yield running
    finally:
        stop.set()
        with contextlib.nullcontext() if delivers else contextlib.suppress(DrainCutShortError):
            await task
