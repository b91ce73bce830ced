"""Worker processes that run one configuration, with one admin endpoint and socket for all of them.

A worker that ends is started again after a pause that doubles; it keeps its spool. If a worker
cannot start because its configuration or environment is wrong, the whole collector ends. `/status`
has the workers' stages under ``worker-<n>/``, `/metrics` their metrics with the label `worker`.
The admin socket is served by `worker_control`.

Each worker inherits the text of its configuration files, whatever the files say by then.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import (
    Callable,
    Iterable,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector as PrometheusCollector
from typing_extensions import override

from penstock.base.backoff import Backoff, Restarts
from penstock.base.clock import SystemClock
from penstock.collector.agent.admin import SOCKET_NAME, ControlServer
from penstock.collector.agent.derived_config import digest_of_tables, graph_of
from penstock.collector.agent.records_endpoint import RECORDS_PATH, RecordsEndpoint
from penstock.collector.agent.reload import changed_keys
from penstock.collector.agent.worker_control import Reloading, WorkerControl
from penstock.collector.agent.worker_plan import (
    Share,
    config_of,
    control_of,
    directory_of,
    left_behind,
)
from penstock.collector.config import CollectorConfig, Texts, read_texts, write_inherited
from penstock.collector.limits import (
    RESTART_CALM_S,
    RESTART_MAX_S,
    RESTART_MIN_S,
    WORKER_START_S,
    WORKER_STOP_S,
)
from penstock.collector.sources.unix.apps import merge_apps
from penstock.collector.telemetry import RELOADS_HELP
from penstock.logd.errors import RefusedError
from penstock.logd.storage import DirectoryLock
from penstock.service import (
    ConfigError,
    ExitCode,
    Health,
    ServiceError,
    Stage,
    Status,
    UnavailableError,
    admin_server,
    ask_admin,
    notify,
)

_PROGRAM: Final = (sys.executable, "-P", "-m", "penstock.collector")
_ASK_S: Final = 2.0
_READY_POLL_S: Final = 0.1
_ORPHAN_POLL_S: Final = 0.5
_FOR_GOOD: Final = frozenset({ExitCode.CONFIG, ExitCode.USAGE, ExitCode.UNAVAILABLE})
_WORST: Final = (Health.FAILED, Health.STARTING, Health.DRAINING, Health.DEGRADED, Health.READY)


async def stop_when_orphaned(
    stop: asyncio.Event,
    supervisor: int,
    *,
    parent: Callable[[], int] = os.getppid,
    poll_s: float = _ORPHAN_POLL_S,
) -> None:
    """Drain and end this worker once the process that started it is gone, perhaps already.

    Args:
        stop: Set then.
        supervisor: The process id of who started it.
        parent: Says whose child this process is now.
        poll_s: Seconds between two checks.
    """
    while parent() == supervisor:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(poll_s)
    stop.set()


class WorkerEndedError(ServiceError):
    """A worker could not start, or not deliver everything; the exit code is its own."""

    def __init__(self, index: int, code: int, when: str = "") -> None:
        super().__init__(f"worker {index} ended with {code}{when}", fix="its log above says why")
        with suppress(ValueError):
            self.exit_code = ExitCode(code)


@dataclass(frozen=True, slots=True)
class Revision:
    """A configuration that workers run by.

    Attributes:
        texts: The text of its files.
        tables: The digest of the rows of its tables, and of its hash key.
    """

    texts: Texts
    config: CollectorConfig
    tables: str


@dataclass(eq=False, slots=True)
class _Restarting:
    """A restart by another configuration.

    Attributes:
        after: The configuration that it shall run by.
        before: The one that it ran by.
        drained: Set when the process before has ended, and another is about to be started.
        ended: The exit code of the process that was started, if it ends before it is ready; None:
            the collector is stopped, and nothing is started any more.
    """

    after: Revision
    before: Revision
    drained: asyncio.Event
    ended: asyncio.Future[int | None]


class Worker:
    """One process, started again when it ends.

    Args:
        revision: First revision of its configuration.
        program: Program to start, with the command `run` and its options.
        start_s: Maximum seconds in which it becomes ready after a restart with another
            configuration.
        stop_s: Maximum seconds in which it ends, beside the configured `drain_timeout_s`.
    """

    def __init__(
        self,
        share: Share,
        revision: Revision,
        *,
        program: Sequence[str] = _PROGRAM,
        start_s: float = WORKER_START_S,
        stop_s: float = WORKER_STOP_S,
    ) -> None:
        self.share = share
        self.revision = revision
        self._program = program
        self._start_s = start_s
        self._stop_s = stop_s
        config = revision.config
        access = config.admin_access
        self._access = access and access.model_copy(update={"cert_file": None})
        self._endpoints = directory_of(config.data_dir, share.index) / "endpoints.json"
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._restarting: _Restarting | None = None
        self._was_ready = False
        self._done = False
        self._restarts = Restarts(Backoff(RESTART_MIN_S, RESTART_MAX_S), calm=RESTART_CALM_S)
        self._clock = SystemClock()
        self._log = structlog.get_logger().bind(worker=share.index)

    async def run(self) -> int:
        """Keep it running until it is stopped or done; returns its exit code."""
        try:
            return await self._run()
        finally:
            self._done = True
            if self._restarting is not None:
                self._restarting.ended.set_result(None)

    async def _run(self) -> int:
        while True:
            began_ns = self._clock.monotonic_ns()
            code = await self._run_process()
            self._was_ready |= self.endpoint is not None or self._restarts.count > 0
            if self._stopping.is_set() and code == -signal.SIGTERM:
                return ExitCode.TEMPORARY  # it had not begun; what it has is delivered next time
            if self._stopping.is_set():
                return code
            restarting = self._restarting
            is_done = code == 0 and not self.share.receives
            if restarting is not None and (is_done or restarting.drained.is_set()):
                restarting.ended.set_result(code)
                self._restarting = None
                self.revision = restarting.before
            if is_done:
                return code
            if self._restarting is None and restarting is None:
                if code in _FOR_GOOD and not self._was_ready:
                    return code
                wait_s = self._restarts.failed((self._clock.monotonic_ns() - began_ns) / 1e9)
                self._log.error("worker_restarting", code=code)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait_s)
                if self._stopping.is_set():
                    return code if code > 0 else ExitCode.TEMPORARY
            self._begin_restart()

    def _begin_restart(self) -> None:
        """The process has ended: what is started next runs by what a restart asked for."""
        if self._restarting is not None:
            self.revision = self._restarting.after
            self._was_ready = True  # else a configuration that fails would end the whole collector
            self._wake.clear()
            self._restarting.drained.set()

    async def _run_process(self) -> int:
        self._endpoints.unlink(missing_ok=True)
        self._process = await self._begin(self.revision.texts)
        waits = self._restarting is not None and not self._restarting.drained.is_set()
        if self._stopping.is_set() or waits:  # it was asked while this process was being started
            self._send(signal.SIGTERM)
        code = await self._process.wait()
        self._process = None
        return code

    async def restart(self, revision: Revision) -> None:
        """Let it drain and start it by another configuration; returns when it is ready.

        Raises:
            ServiceError: It was not ready in time or ended: it runs by the configuration before.
        """
        if self._done:
            return  # it had only to deliver what an earlier run left
        ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        restarting = _Restarting(revision, self.revision, asyncio.Event(), ended)
        self._restarting = restarting
        self._wake.set()
        self._send(signal.SIGTERM)
        try:
            await self._wait_until_ready(restarting)
        finally:
            if self._restarting is restarting:
                self._restarting = None

    async def _wait_until_ready(self, restarting: _Restarting) -> None:
        ended, drained = restarting.ended, asyncio.ensure_future(restarting.drained.wait())
        within_s = restarting.before.config.drain_timeout_s + self._stop_s
        either: list[asyncio.Future[Any]] = [drained, ended]
        first = asyncio.FIRST_COMPLETED
        done, _ = await asyncio.wait(either, timeout=within_s, return_when=first)
        if not done:
            self._log.error("worker_killed", seconds=within_s, reason="it did not end in time")
            self._send(signal.SIGKILL)  # what it acknowledged is in its spool
            await asyncio.wait(either, return_when=first)
        drained.cancel()
        deadline_ns = self._clock.monotonic_ns() + int(self._start_s * 1e9)
        hangs = False
        while not ended.done() and self.endpoint is None:
            await asyncio.wait([ended], timeout=_READY_POLL_S)
            if not hangs and self._clock.monotonic_ns() > deadline_ns:
                hangs = True
                self._send(signal.SIGKILL)
        if not ended.done():
            return
        index, code = self.share.index, ended.result()
        if code is None:
            raise UnavailableError("the collector is being stopped", fix="start it again")
        if hangs:
            raise UnavailableError(
                f"worker {index} was not ready within {self._start_s:g} s with the configuration"
                " that was read; it runs by the one before",
                fix="its log above says why",
            )
        if code != 0 or self.share.receives:
            when = " with the configuration that was read; it runs by the one before"
            raise WorkerEndedError(index, code, when)

    async def _begin(self, texts: Texts) -> asyncio.subprocess.Process:
        share, inherited = self.share, write_inherited(texts)
        try:
            # Of its own session: what a terminal sends to all is passed on once, by us.
            return await asyncio.create_subprocess_exec(
                *(*self._program, "run"),
                *(part for path in texts for part in ("--config", str(path))),
                *("--worker", f"{share.index}/{share.count}/{os.getpid()}"),
                *("--inherited", str(inherited)),
                start_new_session=True,
                pass_fds=(inherited,),
            )
        finally:
            os.close(inherited)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on; SIGTERM also ends `run`."""
        if number is signal.SIGTERM:
            self._stopping.set()
            self._wake.set()
        self._send(number)

    @property
    def endpoint(self) -> str | None:
        """Address of the worker's admin endpoint; None while it has none."""
        with suppress(OSError, ValueError, KeyError):
            return str(json.loads(self._endpoints.read_text())["admin"])
        return None

    def get(self, path: str) -> bytes | None:
        """Return the worker's answer, or None while it does not answer. Call it in a thread."""
        if self.endpoint is None:
            return None
        with suppress(OSError, ConfigError):  # it says itself what it has against a file
            return ask_admin(self.endpoint, path, self._access, timeout_s=_ASK_S)
        return None


class Workers(PrometheusCollector):
    """All workers of one configuration.

    Args:
        config: At the start.
        texts: The files that say it.
        load: Makes a configuration of what they say.
    """

    def __init__(
        self,
        config: CollectorConfig,
        count: int,
        texts: Texts,
        *,
        load: Callable[[Texts], CollectorConfig],
    ) -> None:
        self._config = config
        self._load = load
        self._paths = [*texts]
        self._asked: set[asyncio.Task[None]] = set()
        shares = [Share(index, count) for index in range(count)]
        shares += [Share(index, count) for index in left_behind(config.data_dir, count)]
        for share in shares:
            config_of(config, share)  # what cannot be shared is said before anything runs
        revision = Revision(texts, config, digest_of_tables(graph_of(config)))
        self._workers = [Worker(share, revision) for share in shares]
        sockets = {s.index: control_of(config.data_dir, s.index) for s in shares}
        self._control = WorkerControl(
            {index: path for index, path in sockets.items() if index < count},
            draining={index: path for index, path in sockets.items() if index >= count},
            check=self._check,
            status=self.status,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`, then drain.

        Raises:
            WorkerEndedError: One could not start, or holds what it could not deliver.
        """
        self._expect_nobody()
        registry = CollectorRegistry()
        registry.register(self)
        loop = asyncio.get_running_loop()
        is_guarded = self._config.admin_access is not None
        records = RecordsEndpoint(self._control.actions, loop, is_guarded=is_guarded)
        admin = admin_server(
            self.status,
            registry,
            self._config.admin_access,
            hosts=self._config.admin_hosts,
            queries={RECORDS_PATH: records.answer},
        )
        admin.start(self._config.admin)
        control = ControlServer(
            self._config.admin_socket or self._config.data_dir / SOCKET_NAME, self._control.actions
        )
        await control.start()
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        tasks = {asyncio.create_task(worker.run()): worker for worker in self._workers}
        ready = asyncio.create_task(self._tell_when_ready())
        stopped = asyncio.create_task(stop.wait())
        ended: list[asyncio.Task[int]] = []
        try:
            running = set(tasks)
            while running and not stopped.done():
                done, _ = await asyncio.wait(
                    {*running, stopped}, return_when=asyncio.FIRST_COMPLETED
                )
                running -= done
                ended += [task for task in tasks if task in done]
                if any(tasks[task].share.receives for task in ended):
                    break
        finally:
            notify(STOPPING=1)
            self._signal(signal.SIGTERM)
            await asyncio.gather(*tasks)
            ready.cancel()
            stopped.cancel()
            loop.remove_signal_handler(signal.SIGHUP)
            await control.close()
            await asyncio.to_thread(admin.close)
        for task in (*ended, *tasks):  # who ended by itself says why, and not who was then stopped
            if task.result() != 0:
                raise WorkerEndedError(tasks[task].share.index, task.result())

    def _expect_nobody(self) -> None:
        """The admin socket of a collector that runs must not be taken from it."""
        directory = self._config.data_dir
        try:
            directory.mkdir(parents=True, exist_ok=True)
            DirectoryLock(directory).release()
        except RefusedError as error:
            raise UnavailableError(
                f"data_dir: {error}",
                fix="stop the other collector, or give this one its own data_dir",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"data_dir: {directory} cannot be written: {error.strerror}",
                fix="create the directory and let this process's user write to it",
            ) from None

    def _on_hangup(self) -> None:
        task = asyncio.get_running_loop().create_task(self._control.reload_once_more())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    def _check(self) -> Reloading:
        """Return the reload to the files' current configuration; call it on a thread."""
        texts = read_texts(self._paths)
        config = self._load(texts)
        keys = changed_keys(self._config, config)
        for worker in self._workers:
            config_of(config, worker.share)
        revision = Revision(texts, config, digest_of_tables(graph_of(config)))
        others = [worker for worker in self._workers if not _are_equal(worker.revision, revision)]
        return Reloading(
            keys, {worker.share.index: partial(worker.restart, revision) for worker in others}
        )

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.signal(number)

    async def _tell_when_ready(self) -> None:
        while (  # noqa: ASYNC110 - processes tell nobody
            await asyncio.to_thread(self.status)
        ).health is Health.STARTING:
            await asyncio.sleep(_READY_POLL_S)
        notify(READY=1)

    def status(self) -> Status:
        """Everything the workers say of themselves; called on threads."""
        statuses = {worker.share.index: _read(worker.get("/status")) for worker in self._workers}
        wanted = [worker.share.index for worker in self._workers if worker.share.receives]
        health = [Health(statuses[i]["health"]) if statuses[i] else Health.STARTING for i in wanted]
        reasons = [
            f"worker {i}: {reason}"
            for i, one in statuses.items()
            if one
            for reason in one["reasons"]
        ]
        reasons += [f"worker {i} does not answer" for i in wanted if not statuses[i]]
        last = self._control.reloads.last
        if last is not None and last.result == "partial":
            reasons.append(f"workers run by different configurations: reload again: {last.error}")
        stages = [
            Stage(**{**stage, "name": f"worker-{i}/{stage['name']}"})
            for i, one in statuses.items()
            if one
            for stage in one["stages"]
        ]
        return Status(
            component="collector",
            name=self._config.name,
            version=next((one["version"] for one in statuses.values() if one), ""),
            health=min(health, key=_WORST.index),
            reasons=tuple(reasons),
            stages=tuple(stages),
            info={
                "reloads": self._control.reloads.as_dict(),
                "workers": {
                    str(i): {**one["info"], "started_ms": one["started_ms"]}
                    for i, one in statuses.items()
                    if one
                },
                "reconciliation": _merged(
                    one["info"].get("reconciliation", {}) for one in statuses.values() if one
                ),
                "apps": _merged_apps(
                    one["info"].get("apps", {}) for one in statuses.values() if one
                ),
            },
        )

    @override
    def collect(self) -> Iterable[Metric]:
        """The workers' metrics, each sample with its worker."""
        families: dict[str, Metric] = {}
        for worker in self._workers:
            text = worker.get("/metrics")
            for family in text_string_to_metric_families((text or b"").decode()):
                whole = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "worker": str(worker.share.index)}
                    whole.add_sample(sample.name, labels, sample.value)
        name = "penstock_collector_reloads"
        reloads = families.setdefault(name, Metric(name, RELOADS_HELP, "counter"))
        for result, count in self._control.reloads.counts.items():
            reloads.add_sample(f"{name}_total", {"result": result}, count)
        return families.values()


def _are_equal(one: Revision, other: Revision) -> bool:
    """Return whether both configure the same; comments in the files may differ."""
    return (one.config, one.tables) == (other.config, other.tables)


def _read(body: bytes | None) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(body) if body else {}
    return status


def _merged(accounts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Accounts of the same source added up."""
    whole: dict[str, Any] = {}
    for account in accounts:
        for source, counts in account.items():
            _add(whole.setdefault(source, {}), counts)
    return whole


def _merged_apps(accounts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    by_source: dict[str, list[Any]] = {}
    for account in accounts:
        for source, apps in account.items():
            by_source.setdefault(source, []).append(apps)
    return {source: merge_apps(apps) for source, apps in by_source.items()}


def _add(into: dict[str, Any], counts: dict[str, Any]) -> None:
    for name, count in counts.items():
        if isinstance(count, dict):
            _add(into.setdefault(name, {}), count)
        else:
            into[name] = into.get(name, 0) + count
