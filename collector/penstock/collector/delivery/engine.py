"""The engine that carries records from the spools to the log; the agent runs it."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import structlog

from penstock.base.clock import Clock
from penstock.collector.agent.derived_config import limits_of, resource_of, sizes_of
from penstock.collector.checkpoint.recovery import DataDirectory
from penstock.collector.checkpoint.state import (
    INDEX_BITS,
    SPOOL_ORIGIN,
    SPOOL_ORIGINS,
    URGENT_ORIGIN,
    State,
)
from penstock.collector.config import CollectorConfig, WhenFull
from penstock.collector.delivery.core import Delivery, Quarantine, Released
from penstock.collector.delivery.pipeline import Pipeline
from penstock.collector.delivery.publisher import Publisher, Sender
from penstock.collector.descriptors import Descriptors
from penstock.collector.drops.journal import DropJournal
from penstock.collector.drops.sampler import DropSampler
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.ledger import Ledger
from penstock.collector.limits import KIB, MIB
from penstock.collector.sources.files.identity import Generations
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.memory_budget import Budget
from penstock.collector.spool.quarantine import Quarantine as QuarantineLog
from penstock.collector.spool.reader import Reader
from penstock.collector.spool.replay import Replayer
from penstock.collector.spool.spool import Spool, Spooling, Spools
from penstock.collector.spool.urgency import Kind
from penstock.collector.spool.writer import Payload, SpoolWriter, leave_where_it_fails
from penstock.collector.telemetry import troubles
from penstock.collector.transforms.graph.graph import Graph
from penstock.service import UnavailableError, raise_open_files

_LOOK_S: Final = 0.1
"""Between looks for what is due; the shortest interval is as long."""

_IDLE_S: Final = 1.0
"""The same where no transform makes records: nothing is due, until a reload brings one."""


_UNIT_BYTES: Final = 256 * KIB
"""Size at which a unit of created records is full; its last record may go beyond it."""

_MADE_BYTES_MAX: Final = 16 * MIB
"""Created records that wait for the spool; beyond it what they are made of is not read on."""

_WAIT_S: Final = 1.0
"""Longest wait of a spool's reader for that, a slice: a full spool gets room by reading on."""


class CreatedRecords:
    """Brings records that transforms make to the spool, as from a source with the transform's name.

    Once all that is made is durable, the records that it was made of are released: reading need not
    meet them again. What does not become durable and is not made again is counted as dropped at
    the end.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sender: Sender,
        *,
        spool: Spooling,
        ledger: Ledger,
        budget: Budget,
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._sender = sender
        self._spool = spool
        self._ledger = ledger
        self._budget = budget
        self._clock = clock
        self._made: deque[tuple[str, Payload]] = deque()
        self._made_bytes = 0
        self._released = Released({}, 0)
        self._was_cut = False
        self._keeping = asyncio.Lock()
        self._flushed = asyncio.Event()
        self._kept = asyncio.Event()
        pipeline.flush = self.flush

    async def run(self) -> None:
        """Take what is due, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self._makes_records else _IDLE_S):
                    await self._flushed.wait()
            self._flushed.clear()
            async with self._keeping:
                self._flush(everything=False)
                await self._keep()

    @property
    def _makes_records(self) -> bool:
        pipeline = self._pipeline
        return bool(pipeline.retired or self._made or pipeline.graph.aggregators())

    async def flush(self, origin: str) -> None:
        """Take what may not wait for its time; returns when records of the origin may be read on.

        A spool's reader waits for a while only, for its reading on is what gives a full spool room.
        """
        self._flush(everything=False)
        self._flushed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S if origin in SPOOL_ORIGINS else None):
                while self._made_bytes > _MADE_BYTES_MAX:
                    self._kept.clear()
                    await self._kept.wait()

    async def finish(self) -> bool:
        """Take all there is, as before the end; whether there was any."""
        found = self._keeping.locked()  # `run` may be at it
        async with self._keeping:
            self._flush(everything=True)
            found |= bool(self._made)
            await self._keep()
        return found

    async def leave(self) -> None:
        """Hand over what there is without waiting for room; called at the end.

        `give_up` settles what does not become durable.
        """
        self._flush(everything=True)
        made, self._made = self._made, deque()
        self._made_bytes = 0
        for name, payload in made:
            leave = partial(self._left, name)
            try:
                future = await self._spool_writer(name).offer(payload, wait=False)
            except (SpoolFullError, SpoolFailedError):
                leave(payload)
            else:
                leave_where_it_fails(future, payload, leave)

    def give_up(self) -> None:
        """Release all where nothing is left, else count what is not made again as dropped.

        What is left holds the positions of the records that it was made of back, but for those of a
        spool that needed its room: it is made again by the next process, and no loss.
        """
        self._was_cut = False
        self._release()
        for name, payload in self._made:
            if not self._sender.delivery.holds_all_of(name):
                self._ledger.dropped(name, "stopped", payload.count)
        self._made.clear()

    def _release(self) -> None:
        """Let the positions move past records of which nothing is left in memory."""
        if not (self._made or self._was_cut) and self._sender.delivery.holds_anything:
            self._sender.handle(self._released)

    def _flush(self, *, everything: bool) -> None:
        pipeline = self._pipeline
        while pipeline.retired:
            self._take(pipeline.retired.pop(0), everything=True)
        self._take(pipeline.graph, everything=everything)
        self._released = Released(pipeline.graph.held_since_ns(), self._clock.monotonic_ns())

    def _take(self, graph: Graph, *, everything: bool) -> None:
        clock = self._clock
        due = graph.flush(clock.monotonic_ns(), clock.unix_ns(), everything=everything)
        self._pipeline.record_drops(graph)
        for name, lines in due.items():
            for part in _parts(lines):
                payload = Payload("ndjson", b"\n".join(part), len(part))
                self._made.append((name, payload))
                self._made_bytes += len(payload.data)

    async def _keep(self) -> None:
        while self._made:
            name, payload = self._made.popleft()
            try:
                await self._spool_writer(name).persist_with_retry(
                    payload, leave=partial(self._left, name)
                )
            except asyncio.CancelledError:
                self._was_cut = True  # it may be on its way to the disk
                raise
            finally:
                self._made_bytes -= len(payload.data)
                self._kept.set()
        self._release()

    def _left(self, name: str, payload: Payload) -> None:
        self._made.append((name, payload))
        self._made_bytes += len(payload.data)

    def _spool_writer(self, name: str) -> SpoolWriter:
        return SpoolWriter(
            name,
            spool=self._spool,
            ledger=self._ledger,
            clock=self._clock,
            share=self._budget.share(name),
        )


def _parts(lines: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Lines in units that any spool has room for; a stop may leave hundreds of megabytes."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line) + 1
        if size >= _UNIT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


class Engine:
    """Spools, quarantine, drop journal, pipeline and delivery of one data directory.

    Args:
        directory: Open; the engine closes its journals.
        config: Configuration until `exchange`.
        publisher: Publisher until `exchange`.
        graph: Graph until `exchange`.
    """

    def __init__(
        self,
        directory: DataDirectory,
        config: CollectorConfig,
        publisher: Publisher,
        clock: Clock,
        graph: Graph,
    ) -> None:
        self.directory = directory
        self.ledger = Ledger()
        receive = config.receive
        self.descriptors = Descriptors(raise_open_files(), clock)
        self._share_out_descriptors(config)
        self.budget = Budget(
            bytes_max=receive.max_bytes,
            share_bytes_max=receive.max_source_bytes,
            descriptors=self.descriptors,
        )
        self._config = config
        self._log = structlog.get_logger()
        state = directory.state
        self.spools = Spools(
            Spool(directory.spool, self.ledger, when_full=self._when_full),
            Spool(directory.urgent, self.ledger, when_full=self._when_full, origin=URGENT_ORIGIN),
        )
        self.quarantine = QuarantineLog(directory.quarantine, state.quarantine, clock)
        drops = config.drops
        sampler = DropSampler(drops.max_rate if drops.enabled else 0, drops.max_text_bytes)
        self.drops = DropJournal(directory.drops, sampler, clock, max_age_s=drops.max_age_s)
        self.delivery = Delivery(
            limits_of(config),
            jitter=random.random,
            done=state.queues,
            urgent=(URGENT_ORIGIN,),
            noted=state.new_from,
        )
        self.sender = Sender(
            self.delivery,
            clock,
            publish=publisher.publish,
            quarantine=self._quarantine_batch,
        )
        self.pipeline = Pipeline(
            self.sender,
            self.quarantine,
            self.ledger,
            graph=graph,
            resource=resource_of(config),
            clock=clock,
            drops=self.drops,
        )
        self._created = CreatedRecords(
            self.pipeline,
            self.sender,
            spool=self.spools,
            ledger=self.ledger,
            budget=self.budget,
            clock=clock,
        )
        self._readers = [
            Reader(spool, self.pipeline, self.sender, self.ledger, clock)
            for spool in self.spools.both
        ]
        self.replayer = Replayer(directory.quarantine, self.spools.bulk, clock, done=state.replayed)
        self.generations = Generations(following=state.next_generation, known=state.files)

    def _share_out_descriptors(self, config: CollectorConfig) -> None:
        section = config.descriptors
        self.descriptors.share_out(
            reserve=section.reserve,
            max_files=section.max_files,
            reads_files=any(source.type == "file" for source in config.sources),
        )

    @property
    def journals(self) -> tuple[Journal, ...]:
        """Everything that is written, in the order in which it is closed."""
        directory = self.directory
        return directory.urgent, directory.spool, directory.quarantine, directory.drops

    def recover(self, state: State) -> int:
        """Know again what was taken and not delivered; returns how many units wait.

        Raises:
            UnavailableError: The disk does not let it be read.
        """
        try:
            return self._recover(state)
        except OSError as error:
            raise UnavailableError(
                f"data_dir: {self.directory.path} cannot be read: {error}",
                fix="look at what the kernel says of its disk, and at the limit of open files",
            ) from None

    def _recover(self, state: State) -> int:
        waiting = 0
        senders = {URGENT_ORIGIN: state.urgent_senders, SPOOL_ORIGIN: state.senders}
        for spool, reader in zip(self.spools.both, self._readers, strict=True):
            cursor = state.cursor_of(spool.origin)
            spool.recover(senders[spool.origin], cursor)
            reader.begin(cursor)
            waiting += spool.journal.log.end_offset - cursor
        self.quarantine.recover(self._begins(state))
        return waiting

    def _begins(self, state: State) -> dict[tuple[str, str], int]:
        """Return, by origin and source, the sequence before which nothing is read again."""
        sources = {section.name or section.type for section in self._config.sources}
        sources |= {key.source for key in state.queues} | {*self.pipeline.graph.aggregators()}
        spooled = {
            (origin, source): state.cursor_of(origin) << INDEX_BITS
            for origin in SPOOL_ORIGINS
            for source in sources
        }
        return spooled | {(file.origin, file.source): file.position for file in state.files}

    def run(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Begin to carry; the tasks end when they are cancelled."""
        return [
            *(tasks.create_task(journal.run()) for journal in self.journals),
            tasks.create_task(self.sender.run()),
            *(tasks.create_task(reader.run()) for reader in self._readers),
            tasks.create_task(self._finish_replay()),
            tasks.create_task(self._created.run()),
            tasks.create_task(self.drops.run()),
        ]

    async def deliver(self) -> None:
        """Return when everything that was handed over is in the log."""
        await self._read_spools()
        while await self._created.finish():  # a transform may take what another one has made
            await self._read_spools()
        await self.sender.drain()

    async def _read_spools(self) -> None:
        for spool in self.spools.both:
            await spool.journal.commit()
        for reader in self._readers:
            await reader.wait_until_read()

    @property
    def units_held(self) -> int:
        """Units on disk that are not done."""
        logs = (
            (spool.journal.log, self.delivery.cursor(spool.origin)) for spool in self.spools.both
        )
        return sum(log.end_offset - max(log.start_offset, cursor) for log, cursor in logs)

    def troubles(self, *, nats: str) -> list[str]:
        """Why it does not carry as it should, with what NATS has; empty when it does."""
        journals = {
            "spool": self.directory.spool,
            "spool-urgent": self.directory.urgent,
            "quarantine": self.directory.quarantine,
        }
        reading = [reader.trouble for reader in self._readers if reader.trouble]
        if self.directory.drops.failure:
            reading.append(f"drops: {self.directory.drops.failure}")
        return [*reading, *troubles(self.delivery, journals, nats=nats)]

    async def settle(self) -> None:
        """Make durable what can be, and count the rest as dropped; called at the end."""
        await self._created.leave()
        await self.drops.offer()
        for journal in self.journals:
            await journal.commit()
        await self.spools.settle()
        await asyncio.sleep(0)  # what waited for that runs first
        self._created.give_up()
        for reader in self._readers:
            reader.give_up()

    async def close(self) -> None:
        """Close the journals."""
        for journal in self.journals:
            await journal.close()

    def exchange(self, config: CollectorConfig, graph: Graph, publisher: Publisher) -> None:
        """Go on under another configuration, from what is taken next; cannot fail."""
        self._config = config
        self.delivery.limit(limits_of(config))
        self.pipeline.replace(graph, resource_of(config))
        sizes = sizes_of(config)
        self.directory.spool.resize(sizes.spool)
        self.directory.urgent.resize(sizes.urgent)
        self.directory.quarantine.resize(sizes.quarantine)
        self.directory.drops.resize(sizes.drops)
        drops = config.drops
        self.drops.sampler.limit(drops.max_rate if drops.enabled else 0, drops.max_text_bytes)
        self.drops.max_age_s = drops.max_age_s
        self.sender.publish = publisher.publish
        receive = config.receive
        self.budget.limit(bytes_max=receive.max_bytes, share_bytes_max=receive.max_source_bytes)
        self._share_out_descriptors(config)

    def _when_full(self, kind: Kind) -> WhenFull:
        return self._config.spool.policy(kind)

    async def _finish_replay(self) -> None:
        """Put into the spool what a replay had marked when the process was killed."""
        try:
            await self.replayer.finish()
        except (SpoolFullError, SpoolFailedError, OSError) as error:
            self._log.warning("replay_unfinished", error=str(error))

    async def _quarantine_batch(self, effect: Quarantine) -> None:
        dropped = await self.quarantine.put_batch(effect)
        account = self.ledger[effect.queue.source]
        account.dropped["quarantine_full"] += dropped
        account.quarantined -= dropped
        self._log.warning(
            "records_rejected",
            subject=effect.queue.subject,
            count=len(effect.batch),
            reason=effect.reason,
        )
