"""A collector of files without a network: real files in, a clock that tests move, a log in memory.

It has everything of a collector but its NATS connection and its admin endpoint: the data directory
with its checkpoint, the engine, the sources. What a test sees is what users and operators see: the
records in the log, the checkpoint on disk, the counters, the account of each source.
"""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson
from pydantic import TypeAdapter
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.collector.agent.derived_config import graph_of, resource_of, sizes_of
from penstock.collector.agent.route_fingerprint import route_fingerprint
from penstock.collector.checkpoint.checkpointer import Checkpointer
from penstock.collector.checkpoint.recovery import open_data_directory
from penstock.collector.checkpoint.state import State, read_state
from penstock.collector.config import CollectorConfig
from penstock.collector.delivery.core import Flush, Publish, Stored
from penstock.collector.delivery.engine import Engine
from penstock.collector.delivery.publisher import Publisher
from penstock.collector.ledger import Account
from penstock.collector.registry import AnySource
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.sources.supervisor import RunnerContext, SourceSet, difference, make_source
from penstock.logd.storage import Checkpoint
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.collector.delivery.ordered_queue import QueueKey

_SECTION: TypeAdapter[SourceSettings] = TypeAdapter(AnySource)
FAR = 1 << 40
"""More batches than any test sends."""


class MovableClock(SystemClock):
    """The machine's clock, which tests move on."""

    def __init__(self) -> None:
        self._ahead_ns = 0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._ahead_ns += int(seconds * 1e9)

    @override
    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self._ahead_ns


class MemoryLog:
    """Takes batches as logd does: in order, each record of a queue once.

    Attributes:
        records: What it has.
        accepts: How many batches it still acknowledges; those beyond wait.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.accepts = FAR
        self._last: dict[QueueKey, int] = {}
        self._waiting: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    @property
    def bodies(self) -> list[str]:
        """Of the records."""
        return [record["body"] for record in self.records]

    @property
    def is_open(self) -> bool:
        """Whether it takes whatever comes."""
        return self.accepts > FAR // 2

    async def publish(self, effect: Publish) -> Stored:
        """Store a batch once it may be."""
        if self.accepts == 0:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.put_nowait(turn)
            await turn
        else:
            self.accepts -= 1
        last, batch = self._last.get(effect.queue, 0), effect.batch
        found = zip(batch.sequences, batch.lines, strict=True)
        self.records += [orjson.loads(line) for sequence, line in found if sequence > last]
        self._last[effect.queue] = max(last, batch.last)
        return Stored(effect.request)

    def accept(self, batches: int) -> None:
        """Acknowledge so many more, those that wait first."""
        while batches and not self._waiting.empty():
            turn = self._waiting.get_nowait()
            if not turn.done():
                turn.set_result(None)
                batches -= 1
        self.accepts += batches


class FilesCollector:
    """One data directory, and the collectors that run on it one after the other.

    `poll` lets the sources look once, and reports what that brought; `run` lets them go on by
    themselves.

    Args:
        root: A directory for the test.
        sources: Sections of the configuration; without, all of `files` that end in `.log`.
        options: Others of the configuration.

    Attributes:
        make: Makes another source than a collector does, of the sections that it likes.
    """

    def __init__(self, root: Path, *sources: dict[str, Any], **options: Any) -> None:
        self.files = root / "files"
        self.files.mkdir(exist_ok=True)
        self.make: Callable[[SourceSettings], Source | None] = lambda _: None
        self._carrying: list[asyncio.Task[None]] = []
        self._polls = False
        self.data_dir = root / "data"
        self.clock = MovableClock()
        self.log = MemoryLog()
        self.config = CollectorConfig.model_validate(
            {
                "data_dir": self.data_dir,
                "sources": sources or [self.section()],
                "batch": {"max_records": 1},
                **options,
            }
        )

    def section(self, **options: Any) -> dict[str, Any]:
        """Of a file source."""
        include = [f"{self.files}/*.log"]
        return {
            "type": "file", "include": include, "service": "app", "poll_ms": 10,
            "rotate_wait_s": 3600, **options,
        }  # fmt: skip

    # Its life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start as the process does; nothing is looked at before `poll` or `run`."""
        config = self.config
        graph = graph_of(config)
        directory = open_data_directory(config.data_dir, sizes_of(config), where="collector.yaml")
        directory.fit_to_routing(route_fingerprint(config, graph))
        publisher = Publisher(config.nats, directory.state.incarnation, lambda: None, self.clock)
        engine = self.engine = Engine(directory, config, publisher, self.clock, graph)
        engine.sender.publish = self.log.publish
        context = SourceContext(
            name="",
            resource=resource_of(config),
            budget=engine.budget,
            descriptors=engine.descriptors,
            spool=engine.spools,
            ledger=engine.ledger,
            clock=self.clock,
            generations=engine.generations,
            pipeline=engine.pipeline,
            sender=engine.sender,
            save=self.save,
            known=frozenset(),
            data_dir=config.data_dir,
            node=config.name,
        )

        def make_one(section: SourceSettings) -> Source:
            known = frozenset(self._checkpointer.state.sources)
            return self.make(section) or make_source(section, replace(context, known=known))

        runners = RunnerContext(make_one, engine.delivery, engine.ledger, self.clock)
        self.sources = SourceSet(runners)
        self._checkpointer = Checkpointer(
            directory,
            engine.spools,
            engine.delivery,
            engine.generations,
            engine.replayer,
            drops=engine.drops,
            file_sources=lambda: self.sources.file_sources,
        )
        engine.recover(directory.state)
        self._checkpointer.begin()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._carrying = engine.run(self._group)
        await self.sources.start(config.sources)
        self._polls = True

    def run(self) -> None:
        """Let the sources look by themselves from now on."""
        self._polls = False
        self.sources.run()

    async def change(self, *sources: dict[str, Any]) -> None:
        """Exchange what runs for these sources, or for none, as a reload does."""
        sections = [_SECTION.validate_python({"name": one["type"], **one}) for one in sources]
        before = [runner.section for runner in self.sources.runners]
        await self.sources.change(sections, difference(before, sections))

    async def stop(self) -> None:
        """Stop as the process does; what the log does not take is read again."""
        await self.stop_sources()
        if self.log.is_open:
            await self.engine.deliver()
        assert await self.save()
        await self.engine.settle()
        await self.kill()

    async def stop_sources(self) -> None:
        """Read nothing more; delivery goes on."""
        await self.sources.stop()
        if self._polls:
            self._polls = False
            for source in self.sources.file_sources:
                await source.run()  # which closes the files, and returns

    async def kill(self) -> None:
        """End with what the last checkpoint says."""
        if self._carrying:
            for task in self._carrying:
                task.cancel()
            await self._group.__aexit__(None, None, None)
            self._carrying = []
            await self.sources.cancel()
            await self.stop_sources()
            await self.engine.close()
            self.engine.directory.lock.release()

    async def restart(self, *, kill: bool = False) -> None:
        """Stop, or kill, and start again on the same data."""
        await (self.kill() if kill else self.stop())
        await self.start()

    # What it does.

    async def poll(self) -> None:
        """Let each source look until there is nothing more at once, and the log take it."""
        for source in self.sources.file_sources:
            while await source.poll():
                pass
        await self.deliver()

    async def poll_once(self) -> bool:
        """Let each source look once, and the log take it; whether more is there at once."""
        more = [await source.poll() for source in self.sources.file_sources]
        await self.deliver()
        return any(more)

    async def deliver(self, batches: int = 0) -> None:
        """Let the log take what it may, and so many batches more."""
        delivery, sender = self.engine.delivery, self.engine.sender
        takes = self.log.accepts + batches
        left = max(0, delivery.pending_records - takes)
        self.log.accept(batches)
        sender.handle(Flush())
        await wait_until_async(lambda: delivery.pending_records <= left)

    async def save(self) -> bool:
        """Write the checkpoint; whether it could be."""
        return await self._checkpointer.save()

    # What it says.

    async def checkpoint(self) -> State:
        """What a restart would find, were it killed after the next checkpoint."""
        assert await self.save()
        document = Checkpoint(self.data_dir / "checkpoint").load()
        assert document is not None
        return read_state(document)

    async def positions(self) -> dict[int, int]:
        """By generation, what the checkpoint says."""
        return {file.generation: file.position for file in (await self.checkpoint()).files}

    def account(self, source: str = "file") -> Account:
        """Of a source."""
        return self.engine.ledger[source]

    def counters(self, source: str = "file") -> Counter[str]:
        """What it counted besides records."""
        return +self.account(source).notes

    @property
    def lag_bytes(self) -> int:
        """Of all its files."""
        return sum(source.lag_bytes for source in self.sources.file_sources)

    @property
    def pending(self) -> int:
        """Records that were read and are not in the log."""
        return self.engine.delivery.pending_records

    @property
    def bodies(self) -> list[str]:
        """Of the records that the log has."""
        return self.log.bodies
