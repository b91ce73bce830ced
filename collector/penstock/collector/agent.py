"""The running collector: its parts, the order they start and stop in, and its checkpoint."""

import asyncio
import concurrent.futures
import contextlib
import json
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry

from penstock.collector.admission import admission, scrubber_of
from penstock.collector.assembly import Parts, make_source
from penstock.collector.config import CollectorConfig
from penstock.collector.core.batch import Limits
from penstock.collector.core.delivery import Delivery, Quarantine, Reconnected
from penstock.collector.core.files import Generations
from penstock.collector.core.ledger import Ledger
from penstock.collector.courier import Courier
from penstock.collector.journal import Journal
from penstock.collector.pipeline import Pipeline
from penstock.collector.publisher import Publisher
from penstock.collector.quarantine import Quarantine as QuarantineLog
from penstock.collector.sources.file import FileSource
from penstock.collector.spool import ORIGIN, Spool
from penstock.collector.state import State, read_state
from penstock.collector.telemetry import Metrics, describe, troubles
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.store import Checkpoint, DirectoryLock
from penstock.service import (
    AdminServer,
    ConfigError,
    ExitCode,
    Health,
    ServiceError,
    Status,
    UnavailableError,
)
from penstock.service.clock import SystemClock

if TYPE_CHECKING:
    from penstock.collector.sources.source import Source

_STATUS_WAIT_S = 1.0
ENDPOINTS_FILE = "endpoints.json"


class DrainCutShortError(ServiceError):
    """The process stopped with records in its spool; they are safe and go on at the next start."""

    exit_code = ExitCode.TEMPORARY


class Agent:
    """One collector."""

    def __init__(self, config: CollectorConfig, config_path: Path) -> None:
        self._config = config
        self._where = config_path
        self._resource = {"host.name": socket.gethostname(), **config.resource}
        self._clock = SystemClock()
        self._log = structlog.get_logger()
        self._lock = self._lock_directory()
        self._checkpoint = Checkpoint(config.data_dir / "checkpoint")
        self._state = self._load_state()
        self._ledger = Ledger()
        self._spool_journal = self._open("spool", config.spool.bytes_max)
        self._quarantine_journal = self._open("quarantine", config.quarantine.bytes_max)
        log = self._spool_journal.log
        if self._state.fit_to_spool(log.start_offset, log.end_offset):
            self._log.error("the spool is not the one of the checkpoint; beginning a new chain")
        self._spool = Spool(
            self._spool_journal,
            self._ledger,
            drop_newest=config.spool.when_full == "drop_newest",
        )
        self._quarantine = QuarantineLog(
            self._quarantine_journal, self._state.incarnation, self._clock
        )
        self._publisher = Publisher(config.nats, self._state.incarnation, self._on_nats_change)
        self._courier = Courier(
            Delivery(_limits(config), jitter=random.random, done=self._state.lanes),
            self._clock,
            publish=self._publisher.publish,
            quarantine=self._quarantine_batch,
        )
        self._pipeline = Pipeline(
            self._spool,
            self._courier,
            self._quarantine,
            self._ledger,
            admit=admission(config.subject_prefix, scrubber_of(config.sensitive)),
            resource=self._resource,
        )
        self._generations = Generations(
            following=self._state.next_generation, known=self._state.files
        )
        self._sources: list[Source] = []
        self._saving = asyncio.Lock()
        self._saved: dict[str, Any] = {}
        self._health = Health.STARTING
        self._ended = asyncio.Event()
        self.status = Status("collector", config.name, "0.1.0", Health.STARTING)

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until `stop` is set or all input has ended, then drain.

        Raises:
            ServiceError: Something the collector needs is not there.
        """
        registry = CollectorRegistry()
        loop = asyncio.get_running_loop()
        Metrics(lambda: self._ask_status(loop), registry)
        admin = AdminServer(lambda: self._ask_status(loop), registry)
        address = admin.start(self._config.admin)
        try:
            await self._publisher.connect(self._config.name, self._config.connect_timeout_s)
            self._recover()
            await self._start_sources()
            self._write_endpoints(address)
            held = await self._serve(stop)
        finally:
            self._endpoints_path.unlink(missing_ok=True)
            await self._publisher.close()
            admin.close()
            self._lock.release()
        if held:
            raise DrainCutShortError(
                f"{held} records are still held in {self._config.data_dir}",
                fix="nothing is lost: start the collector again once NATS and logd are there",
            )

    async def _serve(self, stop: asyncio.Event) -> int:
        """Run every part until told to stop; returns how many records are still held."""
        async with asyncio.TaskGroup() as tasks:
            parts = [
                tasks.create_task(self._spool_journal.run()),
                tasks.create_task(self._quarantine_journal.run()),
                tasks.create_task(self._courier.run()),
                tasks.create_task(self._pipeline.run(self._state.cursor)),
                tasks.create_task(self._save_regularly()),
            ]
            sources = [tasks.create_task(source.run()) for source in self._sources]
            watch = tasks.create_task(self._watch_inputs(sources))
            self._health = Health.READY
            self._log.info("collecting", sources=[source.name for source in self._sources])
            await self._wait_for_end(stop)
            self._health = Health.DRAINING
            watch.cancel()
            held = await self._drain(sources)
            for part in (*parts, *sources):
                part.cancel()
        await self._save()
        await self._spool_journal.close()
        await self._quarantine_journal.close()
        self._log.info("stopped", held=held)
        return held

    async def _wait_for_end(self, stop: asyncio.Event) -> None:
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(self._ended.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _watch_inputs(self, sources: list[asyncio.Task[None]]) -> None:
        """End the process when every source has: standard input alone ends by itself."""
        await asyncio.wait(sources)
        self._ended.set()

    async def _drain(self, sources: list[asyncio.Task[None]]) -> int:
        """Bring what is held to logd within the time that is allowed."""
        try:
            async with asyncio.timeout(self._config.drain_timeout_s):
                # Some hand over what they received last, which a full spool makes wait.
                await asyncio.gather(*(source.stop() for source in self._sources))
                finite = [
                    task
                    for task, source in zip(sources, self._sources, strict=True)
                    if source.endpoint is None
                ]
                if finite:
                    await asyncio.wait(finite)
                await self._spool_journal.commit()
                await self._pipeline.wait_until_read(self._spool_journal.durable_offset)
                await self._courier.drain()
        except TimeoutError:
            self._log.warning("drain cut short", timeout_s=self._config.drain_timeout_s)
        self._describe()
        return sum(account.held for account in self._ledger.accounts.values())

    # Start.

    def _lock_directory(self) -> DirectoryLock:
        directory = self._config.data_dir
        try:
            for part in (directory, directory / "spool", directory / "quarantine"):
                part.mkdir(parents=True, exist_ok=True)
            return DirectoryLock(directory)
        except OSError as error:
            raise ConfigError(
                f"{self._where}: data_dir: {directory} cannot be written: {error.strerror}",
                fix="create the directory and let this process's user write to it",
            ) from None
        except RefusedError as error:
            raise UnavailableError(
                f"{self._where}: data_dir: {error}",
                fix="stop the other collector, or give this one a data_dir of its own",
            ) from None

    def _load_state(self) -> State:
        try:
            document = self._checkpoint.load()
            return State() if document is None else read_state(document)
        except (LogdError, KeyError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{self._checkpoint.path}: the checkpoint cannot be read: {error}",
                fix="restore it from a copy; if there is none, move the data_dir away: the "
                "collector then reads all files again and what the spool held is not sent",
            ) from None

    def _open(self, part: str, bytes_max: int) -> Journal:
        journal = Journal(self._config.data_dir / part, bytes_max=bytes_max)
        try:
            journal.open()
        except (CorruptError, RefusedError, OSError) as error:
            raise ConfigError(
                f"{journal.directory}: cannot be opened: {error}",
                fix=f"look at it with `penstock collector spool check {journal.directory}`",
            ) from None
        return journal

    def _recover(self) -> None:
        log = self._spool_journal.log
        self._spool.recover(self._state.senders, self._state.cursor)
        self._quarantine.recover()
        self._saved = self._state.as_document()
        self._checkpoint.save(self._saved)
        waiting = log.end_offset - self._state.cursor
        self._log.info("recovered", units_waiting=waiting, lanes=len(self._state.lanes))

    async def _start_sources(self) -> None:
        parts = Parts(
            resource=self._resource,
            spool=self._spool,
            ledger=self._ledger,
            clock=self._clock,
            generations=self._generations,
            pipeline=self._pipeline,
            courier=self._courier,
            save=self._save,
            known=frozenset(self._state.sources),
            data_dir=self._config.data_dir,
        )
        for section in self._config.sources:
            source = make_source(section, parts)
            await source.start()
            self._sources.append(source)

    @property
    def _endpoints_path(self) -> Path:
        return self._config.data_dir / ENDPOINTS_FILE

    def _write_endpoints(self, admin: str) -> None:
        endpoints = {"admin": admin}
        for section, source in zip(self._config.sources, self._sources, strict=True):
            if source.endpoint is not None:
                endpoints.setdefault(section.type, source.endpoint)
                endpoints[source.name] = source.endpoint
            for part, address in source.endpoints.items():
                endpoints[f"{source.name}.{part}"] = address
        temporary = self._endpoints_path.with_suffix(".new")
        temporary.write_text(json.dumps(endpoints))
        temporary.replace(self._endpoints_path)

    # While it runs.

    async def _quarantine_batch(self, effect: Quarantine) -> None:
        dropped = await self._quarantine.put_batch(effect)
        account = self._ledger[effect.lane.source]
        account.dropped["quarantine_full"] += dropped
        account.quarantined -= dropped
        self._log.warning(
            "logd refused records for good",
            subject=effect.lane.subject,
            count=len(effect.batch),
            reason=effect.reason,
        )

    def _on_nats_change(self) -> None:
        if self._publisher.is_connected:
            self._courier.handle(Reconnected())

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._config.checkpoint_interval_s)
            await self._save()

    async def _save(self) -> bool:
        """Write the checkpoint; then, and only then, give back what it has passed.

        Returns:
            Whether what is known now is durable.
        """
        async with self._saving:
            delivery = self._courier.delivery
            files = [source for source in self._sources if isinstance(source, FileSource)]
            names = {source.name for source in files}
            absent = [s for s in self._generations.known.values() if s.source not in names]
            state = State(
                incarnation=self._state.incarnation,
                cursor=delivery.cursor(ORIGIN),
                senders=self._spool.senders.snapshot(),
                lanes=delivery.done(),
                files=[*absent, *(state for source in files for state in source.states)],
                next_generation=self._generations.following,
                sources=sorted({*self._state.sources, *names}),
            )
            document = state.as_document()
            if document == self._saved:
                return True
            try:
                await asyncio.to_thread(self._checkpoint.save, document)
            except OSError as error:
                self._log.warning("checkpoint cannot be written", error=str(error))
                return False
            self._state, self._saved = state, document
            await self._spool_journal.delete_before(state.cursor)
            return True

    def _ask_status(self, loop: asyncio.AbstractEventLoop) -> Status:
        """The status of now, for another thread; the last one when the loop has no time."""
        asked: concurrent.futures.Future[None] = concurrent.futures.Future()

        def answer() -> None:
            self._describe()
            asked.set_result(None)

        with contextlib.suppress(TimeoutError, RuntimeError):  # busy, or closed already
            loop.call_soon_threadsafe(answer)
            asked.result(_STATUS_WAIT_S)
        return self.status

    def _describe(self) -> None:
        delivery = self._courier.delivery
        reasons = troubles(delivery, self._spool_journal, connected=self._publisher.is_connected)
        health = self._health
        if health is Health.READY and reasons:
            health = Health.DEGRADED
        self.status = describe(
            self._config.name,
            health=health,
            reasons=reasons,
            sources={
                source.name: section.type
                for section, source in zip(self._config.sources, self._sources, strict=False)
            },
            lag={s.name: s.lag_bytes for s in self._sources if isinstance(s, FileSource)},
            ledger=self._ledger,
            delivery=delivery,
            spool=self._spool_journal,
            quarantine=self._quarantine_journal,
        )


def _limits(config: CollectorConfig) -> Limits:
    return Limits(
        batch_bytes_max=config.batch.bytes_max,
        batch_records_max=config.batch.records_max,
        batch_age_ns=config.batch.age_ms * 1_000_000,
    )
