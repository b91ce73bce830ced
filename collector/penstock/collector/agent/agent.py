"""The running collector: its parts, the order they start and stop in, and their exchange."""

import asyncio
import concurrent.futures
import dataclasses
import json
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import structlog
from prometheus_client import CollectorRegistry

from penstock.base.clock import Clock, SystemClock
from penstock.base.errors import DrainCutShortError
from penstock.base.files import atomic_write
from penstock.base.pluralize import pluralize
from penstock.collector import failpoints
from penstock.collector.agent.admin import SOCKET_NAME, AdminActions, ControlServer
from penstock.collector.agent.derived_config import (
    graph_of,
    own_subjects,
    resource_of,
    sizes_of,
    tables_of,
)
from penstock.collector.agent.records_endpoint import RECORDS_PATH, RecordsEndpoint
from penstock.collector.agent.reload import Reloads, Report, changed_keys
from penstock.collector.agent.route_fingerprint import UNKNOWN, route_fingerprint
from penstock.collector.checkpoint.checkpointer import Checkpointer
from penstock.collector.checkpoint.recovery import open_data_directory
from penstock.collector.config import CollectorConfig, NatsSection
from penstock.collector.delivery.core import Delivery, Reconnected
from penstock.collector.delivery.engine import Engine
from penstock.collector.delivery.publisher import Publisher
from penstock.collector.sources.settings import SourceSettings
from penstock.collector.sources.source import Source, SourceContext
from penstock.collector.sources.supervisor import (
    Difference,
    Runner,
    RunnerContext,
    SourceSet,
    difference,
    make_source,
)
from penstock.collector.telemetry import Metrics, describe
from penstock.collector.transforms.graph.graph import Graph
from penstock.logd.storage import REAL_DISK, Disk
from penstock.service import (
    ExitCode,
    Health,
    ServiceError,
    Status,
    Tracing,
    admin_server,
    notify,
    notify_reloading,
    release,
)

if TYPE_CHECKING:
    from penstock.service.tracing.spans import Tracer

ENDPOINTS_FILE: Final = "endpoints.json"


def write_endpoints(path: Path, admin: str, runners: Iterable[Runner]) -> None:
    """Name the admin server's address, and each source's: by its type the first one's."""
    endpoints = {"admin": admin}
    for runner in runners:
        source = runner.source
        if source.endpoint is not None:
            endpoints.setdefault(runner.section.type, source.endpoint)
            endpoints[source.name] = source.endpoint
        for part, address in source.endpoints.items():
            endpoints[f"{source.name}.{part}"] = address
    try:
        atomic_write(path, json.dumps(endpoints), durable=False)
    except OSError as error:  # the collector runs all the same
        structlog.get_logger().warning("endpoints_write_failed", error=str(error))


_WAIT_S = 1.0


class Reporter:
    """Keeps the last status, for when there is no time for a new one.

    Args:
        describe: Makes the status; called on the loop.
        first: The status before the first.
        clock: The clock.
    """

    def __init__(self, describe: Callable[[], Status], first: Status, clock: Clock) -> None:
        self._describe = describe
        self._clock = clock
        self.last, self._described_ns = first, clock.monotonic_ns()

    def now(self) -> Status:
        """Describe the collector; call it on the event loop."""
        self.last, self._described_ns = self._describe(), self._clock.monotonic_ns()
        return self.last

    def ask(self, loop: asyncio.AbstractEventLoop) -> Status:
        """Return the status to another thread: the last one where the loop is busy or closed.

        Its `age_ms` says then how many milliseconds ago that was.
        """
        asked: concurrent.futures.Future[None] = concurrent.futures.Future()

        def answer() -> None:
            self.now()
            asked.set_result(None)

        try:
            loop.call_soon_threadsafe(answer)
            asked.result(_WAIT_S)
        except (TimeoutError, RuntimeError):
            age_ms = max(1, (self._clock.monotonic_ns() - self._described_ns) // 1_000_000)
            return replace(self.last, info={**self.last.info, "age_ms": age_ms})
        return self.last


class Rerouting:
    """The change of the route fingerprint at a reload: `announce`, then `apply` or `take_back`.

    From the announcement until all that was read before the change is done, the checkpoint names
    none: a start reads such a record again, and it may get another subject.

    Args:
        fingerprint: Fingerprint of the configuration at the start.
        reached: Positions, by origin, up to which records may have been read by now.
    """

    def __init__(
        self,
        delivery: Delivery,
        checkpointer: Checkpointer,
        fingerprint: str,
        reached: Callable[[], Mapping[str, int]],
    ) -> None:
        self._delivery = delivery
        self._checkpointer = checkpointer
        self._fingerprint = fingerprint
        self._reached = reached
        self._undone: Mapping[str, int] | None = None
        self._before: tuple[str, Mapping[str, int] | None] | None = None
        checkpointer.settle_routing = self.settle

    async def announce(self, fingerprint: str) -> None:
        """Make durable that no fingerprint is to be relied on, if this is another one.

        Raises:
            ServiceError: The checkpoint cannot be written; nothing has changed.
        """
        if fingerprint == self._fingerprint:
            return
        self._before = self._checkpointer.routing, self._undone
        self._checkpointer.routing, self._undone = UNKNOWN, None
        if not await self._checkpointer.save():
            self.take_back()
            raise ServiceError(
                "the checkpoint cannot be written, and where records go would change",
                fix="look at the disk, and reload again",
            )

    def take_back(self) -> None:
        """No record was read by the other configuration."""
        if self._before is not None:
            (self._checkpointer.routing, self._undone), self._before = self._before, None

    def apply(self, fingerprint: str) -> UUID:
        """Records are read by the other one from now on; returns the incarnation to publish under.

        It is a new one: what an earlier run read and delivered may be read again now.
        """
        if self._before is not None:
            self._before, self._fingerprint = None, fingerprint
            self._undone = self._reached()
            self._checkpointer.incarnation = uuid4()
            self._delivery.retire_idle()
        return self._checkpointer.incarnation

    def settle(self) -> None:
        """Let the checkpoint name the fingerprint again, if nothing is read again from before."""
        undone, is_done = self._undone, self._delivery.is_done
        if undone is not None and all(is_done(*each) for each in undone.items()):
            self._checkpointer.routing, self._undone = self._fingerprint, None


Load = Callable[[], CollectorConfig]
"""Reads the configuration again."""

MakePublisher = Callable[[NatsSection, UUID, Callable[[], None], Clock, "Tracer | None"], Publisher]
"""Makes the way to logd of the arguments that a `Publisher` has."""


class Agent:
    """One collector.

    Args:
        config: Checked.
        config_path: Path of the configuration, for messages.
        load: Loads the configuration for a reload; None: a supervisor restarts the process instead.
        receives: False: only what waits in the spools is delivered.
        takes: Whether a source of the configuration is this process's.
        disk: The disk of the data directory's checkpoint and journals.
        make_publisher: Makes the connection to logd, again where a reload changes `nats`.
    """

    def __init__(  # noqa: PLR0913 - the last two are its ways to the outside
        self,
        config: CollectorConfig,
        config_path: Path,
        *,
        load: Load | None = None,
        receives: bool = True,
        takes: Callable[[SourceSettings], bool] = lambda _: True,
        disk: Disk = REAL_DISK,
        make_publisher: MakePublisher = Publisher,
    ) -> None:
        self._config = config
        self._load = load
        self._receives = receives
        self._takes = takes
        self._new_publisher = make_publisher
        self._clock = SystemClock()
        self._log = structlog.get_logger()
        graph = graph_of(config, str(config_path))
        directory = open_data_directory(
            config.data_dir, sizes_of(config), where=str(config_path), disk=disk
        )
        if directory.foreign:
            self._log.error("checkpoint_of_another_spool")
        fingerprint = route_fingerprint(config, graph)
        directory.fit_to_routing(fingerprint)
        self._directory = directory
        self._tracing = Tracing(config.tracing, "collector", config.name, own_subjects(config))
        self._publisher = self._make_publisher(config)
        engine = self._engine = Engine(directory, config, self._publisher, self._clock, graph)
        self._sources = SourceSet(self._runner_context(config))
        self._checkpointer = Checkpointer(
            directory,
            engine.spools,
            engine.delivery,
            engine.generations,
            engine.replayer,
            drops=engine.drops,
            file_sources=lambda: self._sources.file_sources,
        )
        self._rerouting = Rerouting(
            engine.delivery, self._checkpointer, fingerprint, engine.pipeline.reached
        )
        self._reloads = Reloads()
        self._reloading = asyncio.Lock()
        self._hung_up = False
        self._asked: set[asyncio.Task[Report]] = set()
        self._admin_address = ""
        self._endpoints_path = config.data_dir / ENDPOINTS_FILE
        self._health = Health.STARTING
        first = Status("collector", config.name, release(), self._health)
        self._reporter = Reporter(self._describe, first, self._clock)

    async def run(self, stop: asyncio.Event, *, within_s: float | None = None) -> None:
        """Collect until `stop` is set or all input has ended, then drain.

        Args:
            stop: Ends it.
            within_s: Maximum seconds of a delivery where nothing is received; None: unlimited.

        Raises:
            ServiceError: Something the collector needs is not there.
        """
        engine, registry, config = self._engine, CollectorRegistry(), self._config
        loop = asyncio.get_running_loop()
        Metrics(lambda: self._reporter.ask(loop), registry)
        actions = AdminActions(
            self.reload,
            engine.replayer,
            engine.drops,
            engine.pipeline.taps,
            self._reporter.now,
        ).actions
        records = RecordsEndpoint(actions, loop, is_guarded=config.admin_access is not None)
        admin = admin_server(
            lambda: self._reporter.ask(loop),
            registry,
            config.admin_access,
            hosts=config.admin_hosts,
            queries={RECORDS_PATH: records.answer},
        )
        control = ControlServer(
            config.admin_socket or config.data_dir / SOCKET_NAME,
            actions,
        )
        address = admin.start(config.admin)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            await control.start()
            await self._publisher.connect(config.name, config.connect_timeout_s, needed=False)
            self._recover()
            if self._receives:
                await self._sources.start(self._own(config))
            self._write_endpoints(address)
            held = await self._serve(stop, within_s)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            self._endpoints_path.unlink(missing_ok=True)
            await control.close()
            await self._publisher.close()
            await asyncio.to_thread(self._tracing.close)
            admin.close()
            self._directory.lock.release()
        if held:
            raise DrainCutShortError(
                f"{self._config.data_dir} still holds {pluralize(held, 'record')}",
                fix="what is held is safe: start the collector again once NATS and logd are there",
            )

    async def _serve(self, stop: asyncio.Event, within_s: float | None) -> int:
        """Run every part until it is to stop; returns how many records are still held."""
        async with asyncio.TaskGroup() as tasks:
            parts = [
                *self._engine.run(tasks),
                tasks.create_task(
                    self._checkpointer.run(lambda: self._config.checkpoint_interval_s)
                ),
            ]
            self._sources.run()
            self._health = Health.READY
            notify(READY=1)
            self._log.info("ready", sources=[r.name for r in self._sources.runners])
            await self._wait_for_end(stop, within_s)
            async with self._reloading:
                self._health = Health.DRAINING
            notify(STOPPING=1)
            failpoints.passed("drain_begun")
            await self._drain()
            await self._sources.cancel()
            for part in parts:
                part.cancel()
        await self._engine.settle()
        failpoints.passed("drain_ended")
        # A full spool needs no room any more: what it holds back is made again after the start.
        await self._checkpointer.save(lets_go=False)
        await self._engine.close()
        held = self._held()
        self._log.info("stopped", held=held)
        return held

    async def _wait_for_end(self, stop: asyncio.Event, within_s: float | None) -> None:
        end = self._sources.ended.wait() if self._receives else self._engine.deliver()
        waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(end)]
        timeout_s = None if self._receives else within_s
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
        for wait in waits:
            wait.cancel()

    async def _drain(self) -> None:
        """Bring what is held to logd within the time that is allowed."""
        try:
            async with asyncio.timeout(self._config.drain_timeout_s):
                # Some hand over what they received last, which a full spool makes wait.
                await self._sources.stop()
                await self._engine.deliver()
        except TimeoutError:
            self._log.warning("drain_timeout", timeout_s=self._config.drain_timeout_s)

    def _held(self) -> int:
        """Records that are not delivered; at least one for each unit that is still spooled."""
        self._reporter.now()
        held = sum(account.held for account in self._engine.ledger.accounts.values())
        return max(held, self._engine.units_held)

    # Start.

    def _recover(self) -> None:
        state = self._checkpointer.state
        waiting = self._engine.recover(state)
        self._checkpointer.begin()
        self._log.info("state_recovered", units_waiting=waiting, queues=len(state.queues))

    def _runner_context(self, config: CollectorConfig) -> RunnerContext:
        engine = self._engine
        context = SourceContext(
            name="",
            resource=resource_of(config),
            budget=engine.budget,
            descriptors=engine.descriptors,
            spool=engine.spools,
            ledger=engine.ledger,
            clock=self._clock,
            generations=engine.generations,
            pipeline=engine.pipeline,
            sender=engine.sender,
            save=self._save,
            known=frozenset(),
            data_dir=config.data_dir,
            node=config.name,
        )

        def make(section: SourceSettings) -> Source:
            # One that began in this process is not there for the first time either.
            known = frozenset(self._checkpointer.state.sources)
            return make_source(section, dataclasses.replace(context, known=known))

        return RunnerContext(make, engine.delivery, engine.ledger, self._clock)

    async def _save(self) -> bool:
        return await self._checkpointer.save()

    def _own(self, config: CollectorConfig) -> list[SourceSettings]:
        return [section for section in config.sources if self._takes(section)]

    def _make_publisher(self, config: CollectorConfig) -> Publisher:
        incarnation, tracer = self._directory.state.incarnation, self._tracing.tracer
        return self._new_publisher(
            config.nats, incarnation, self._on_nats_change, self._clock, tracer
        )

    def _write_endpoints(self, admin: str) -> None:
        self._admin_address = admin
        write_endpoints(self._endpoints_path, admin, self._sources.runners)

    # While it runs.

    def _on_nats_change(self) -> None:
        if self._publisher.is_connected:
            self._engine.sender.handle(Reconnected())

    # Reading the configuration again.

    def _on_hangup(self) -> None:
        if self._hung_up:
            return  # one that has not begun reads what is there by then
        self._hung_up = True
        task = asyncio.get_running_loop().create_task(self.reload())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def reload(self) -> Report:
        """Read the configuration again and run by it, or go on as before; never raises."""
        async with self._reloading:
            self._hung_up = False
            notify_reloading()
            generation, now_ns = self._reloads.generation, self._clock.unix_ns()
            try:
                after, graph = await self._next()
                report = await self._exchange(after, graph, generation, now_ns)
            except ServiceError as error:
                code = int(error.exit_code)
                report = Report("refused", generation, now_ns, error=str(error), exit_code=code)
            except Exception as error:  # noqa: BLE001 - it goes on as it ran
                self._log.exception("reload_failed")
                code = int(ExitCode.SOFTWARE)
                report = Report("refused", generation, now_ns, error=repr(error), exit_code=code)
            self._reloads.note(report)
            notify(READY=1)
            self._log.info("config_reloaded", **asdict(report))
            return report

    async def _next(self) -> tuple[CollectorConfig, Graph]:
        if self._load is None:
            raise ServiceError(
                "a worker cannot be reloaded by itself",
                fix="reload the collector that it is a worker of: name its data_dir",
            )
        if self._health is not Health.READY:
            raise ServiceError("nothing can be reloaded now", fix="restart the collector")
        after = await asyncio.to_thread(self._load)
        return after, await asyncio.to_thread(graph_of, after)

    async def _exchange(
        self, after: CollectorConfig, graph: Graph, generation: int, now_ns: int
    ) -> Report:
        before, tables_before = self._config, tables_of(self._engine.pipeline.graph)
        keys = changed_keys(before, after)
        sources = difference(self._own(before), self._own(after))
        if "resource" in keys:  # every source has it
            sources = Difference((), sources.added, sources.kept + sources.changed, sources.removed)
        names = {
            what: getattr(sources, what)
            for what in ("added", "changed", "removed")
            if getattr(sources, what)
        }
        if "transforms" not in keys and tables_of(graph) != tables_before:
            keys = (*keys, "transforms")
        if "sensitive" not in keys and graph.hash_key != self._engine.pipeline.graph.hash_key:
            keys = (*keys, "sensitive")  # its file holds another key
        if not keys and not names:
            return Report("unchanged", generation, now_ns)
        publisher, context = self._publisher, self._sources.context
        if "nats" in keys:
            publisher = self._make_publisher(after)
            await publisher.connect(after.name, after.connect_timeout_s)
        fingerprint = route_fingerprint(after, graph)
        try:
            await self._rerouting.announce(fingerprint)
            self._sources.context = self._runner_context(after)
            await self._sources.change(self._own(after), sources)
        except BaseException:
            self._rerouting.take_back()
            self._sources.context = context
            if publisher is not self._publisher:
                await publisher.close()
            raise
        failpoints.passed("reload_before_exchange")
        # Nothing else runs until all is exchanged.
        self._config = after
        if self._tracing.tracer is not None:
            self._tracing.tracer.add_own(own_subjects(after))
        publisher.incarnation = self._rerouting.apply(fingerprint)
        self._engine.exchange(after, graph, publisher)
        failpoints.passed("reload_after_exchange")
        old, self._publisher = self._publisher, publisher
        if old is not publisher:
            self._engine.sender.handle(Reconnected())
            await self._leave(old)
        self._write_endpoints(self._admin_address)
        return Report("applied", generation + 1, now_ns, sources=names, keys=keys)

    async def _leave(self, old: Publisher) -> None:
        try:
            await old.leave()
        except Exception as error:  # noqa: BLE001 - it runs by the new configuration all the same
            self._log.warning("nats_close_failed", error=repr(error))

    # What it says of itself.

    def _describe(self) -> Status:
        journals = {"spool": self._directory.spool, "spool-urgent": self._directory.urgent}
        runners = self._sources.runners
        reasons = [
            f"source {runner.name}: {trouble}"
            for runner in runners
            if (trouble := runner.trouble or runner.source.trouble)
        ]
        reasons += self._engine.troubles(nats=self._publisher.trouble)
        reasons += self._engine.descriptors.troubles
        reasons += [self._checkpointer.trouble] if self._checkpointer.trouble else []
        health = self._health
        if health is Health.READY and reasons:
            health = Health.DEGRADED
        status = describe(
            self._config.name,
            health=health,
            reasons=reasons,
            sources={runner.name: runner.section.type for runner in runners},
            lag={source.name: source.lag_bytes for source in self._sources.file_sources},
            partial={source.name: source.partial_bytes for source in self._sources.file_sources},
            ledger=self._engine.ledger,
            budget=self._engine.budget,
            delivery=self._engine.delivery,
            spools=journals,
            quarantine=self._directory.quarantine,
            drops=self._engine.drops,
            reloads=self._reloads,
            incarnation=self._publisher.incarnation,
        )
        now_ns = self._clock.monotonic_ns()
        accounts = self._engine.ledger.apps.items()
        status.info["apps"] = {source: one.as_dict(now_ns) for source, one in accounts if one}
        status.info["transforms"] = self._engine.pipeline.graph.counts()
        status.info["descriptors"] = self._engine.descriptors.as_dict()
        status.info["tracing"] = self._tracing.counts()
        return status
