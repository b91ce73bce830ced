"""The logd process: start in order, serve, drain in order."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
import structlog
from msgspec.structs import replace

from penstock.base.clock import BootClock, SystemClock
from penstock.base.errors import DamagedDataError, DrainCutShortError, ExitCode
from penstock.base.files import atomic_write
from penstock.logd.api.server import FetchServer
from penstock.logd.cluster.config import ClusterSection
from penstock.logd.cluster.engine import ClusterEngine
from penstock.logd.cluster.replica_manager import NatsReachability
from penstock.logd.compaction.scheduler import CompactionSettings, CompactionThread
from penstock.logd.config import ENV_PREFIX, LogdConfig
from penstock.logd.directories import DATA_FORMAT
from penstock.logd.encryption.master_keys import EncryptionSection, MasterKeys
from penstock.logd.encryption.rotation import Rotation
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.intake.admission import ByteBudget, DiskSpace
from penstock.logd.intake.turn import Message
from penstock.logd.limits import WORKERS_MAX
from penstock.logd.listeners import Listeners
from penstock.logd.nats.connect import NatsAccess
from penstock.logd.nats.jetstream_hints import JetStreamHints
from penstock.logd.nats.link import ANSWERS_ONLY, LinkEvent, NatsLink
from penstock.logd.nats.protocol import NatsRefusedError, NatsSetupError
from penstock.logd.net.peer_tls import PeerTls
from penstock.logd.partition.acks import AckSender, LoopDispatcher
from penstock.logd.partition.context import PartitionContext, StreamLookup
from penstock.logd.partition.log_writer import WriterPool
from penstock.logd.replication.events import NodeId
from penstock.logd.security.reloader import CredentialReloader, ListenerSetupError
from penstock.logd.storage import DirectoryLock
from penstock.logd.telemetry import Telemetry
from penstock.service import (
    AdminServer,
    ConfigError,
    Health,
    ServiceError,
    Tracing,
    UnavailableError,
    load_config,
)

if TYPE_CHECKING:
    from penstock.logd.liftbridge.server import GrpcServer

NEWER_FIX: Final = (
    "a later Penstock wrote it: start that one, or restore a backup from before the upgrade into"
    " another data_dir; nothing was changed"
)

OPENING_FIXES: Final = {
    "TOO_MANY_STREAMS": "raise the limit, or lower max_connections",
    "CLUSTERED": "give the configuration its section `cluster` back, or use another data_dir",
    "NOT_ENOUGH_NODES": "ask for no more replicas than there are nodes",
    "NATS_REFUSED": "permit logd's user to subscribe to the stream's subject",
    "UNKNOWN_FORMAT": NEWER_FIX,
}
"""Fix for streams that cannot be opened, by the refusal's code."""


INITIAL_MEMBERS_FIX: Final = (
    "name this node alone as the initial member, on every node; the others join it"
)


def prepare_directory(config: LogdConfig, config_path: Path) -> None:
    """Make the data directory, if need be.

    Raises:
        ConfigError: This user cannot write there.
    """
    directory = config.data_dir
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK | os.X_OK)
        reason = "not writable by this user"
    except OSError as error:
        writable, reason = False, error.strerror or str(error)
    if not writable:
        raise ConfigError(
            f"{config_path}: data_dir: {directory}: {reason}",
            fix="name a directory that this user may write to",
        )


def lock_directory(config: LogdConfig) -> DirectoryLock:
    """Take the data directory for this process, if this version understands what is in it.

    Raises:
        UnavailableError: Another one has it.
        DataFormatError: A later version wrote it, or another part of Penstock.
    """
    DATA_FORMAT.check(config.data_dir)  # before anything is written, the lock's file included
    try:
        lock = DirectoryLock(config.data_dir)
    except RefusedError as error:
        raise UnavailableError(
            f"another logd runs: {error}",
            fix=f"stop process {error.detail.get('pid')}, or use another data_dir",
        ) from None
    DATA_FORMAT.open(config.data_dir)
    return lock


def write_endpoints(path: Path, endpoints: dict[str, str]) -> None:
    """Write down where the process listens.

    Raises:
        OSError: The disk failed.
    """
    atomic_write(path, orjson.dumps(endpoints) + b"\n", durable=False)


def read_encryption(config_path: Path) -> EncryptionSection | None:
    """The section `encryption` as the configuration's file has it now.

    Raises:
        CorruptError: The file is not understood.
    """
    try:
        return load_config(LogdConfig, config_path, env_prefix=ENV_PREFIX).encryption
    except ConfigError as error:
        raise CorruptError(str(error)) from None


def watch_masters(
    reloader: CredentialReloader, config_path: Path, masters: MasterKeys, engine: ClusterEngine
) -> None:
    """Follow the master keys that the configuration's file names, if any are used."""
    if masters.used:
        read = partial(read_encryption, config_path)
        reloader.watch(Rotation(config_path, read, masters, engine.partitions))


def service_error(error: Exception, config: LogdConfig, config_path: Path) -> ServiceError:
    """Return the operator's error for a failure of the node's part in its cluster."""
    match error:
        case ListenerSetupError() | NatsSetupError():
            return ConfigError(f"{config_path}: {error.key}: {error}", fix=error.fix)
        case RefusedError():
            return _config_error(error, config, config_path)
        case CorruptError():
            fix = "nothing was changed; restore the file from a backup"
            if config.cluster is not None:
                fix = "nothing was changed; give the node an empty data_dir and another name, so"
                fix += " that it gets everything from the others"
            return DamagedDataError(str(error), fix=fix)
        case _:
            fix = "see to the disk, then start again"
            return UnavailableError(f"{config.data_dir}: {error}", fix=fix)


def _config_error(error: RefusedError, config: LogdConfig, config_path: Path) -> ConfigError:
    """Return the error for a node that is refused as it is configured."""
    if error.code == "UNKNOWN_FORMAT":
        return ConfigError(f"{config.data_dir}: {error}", fix=NEWER_FIX)
    if error.code == "OTHER_INITIAL_MEMBERS":
        return ConfigError(
            f"{config_path}: cluster.initial_members: {error}", fix=INITIAL_MEMBERS_FIX
        )
    if config.cluster is None:
        return ConfigError(f"{config_path}: {error}", fix=OPENING_FIXES["CLUSTERED"])
    fix = "give each node its own name and data_dir, and all of them the same cluster"
    return ConfigError(f"{config_path}: cluster: {error}", fix=fix)


def first_of(errors: ExceptionGroup[Exception]) -> Exception:
    """One of the errors in a group of groups."""
    first = errors.exceptions[0]
    return first_of(first) if isinstance(first, ExceptionGroup) else first


_RETRY_S = 0.2
_log = structlog.get_logger()


async def run_daemon(config: LogdConfig, config_path: Path, stop: asyncio.Event) -> None:
    """Run until `stop` is set.

    Raises:
        ServiceError: Of the class that says who must act.
    """
    prepare_directory(config, config_path)
    lock = lock_directory(config)
    ended: Exception | None = None
    with ExitStack() as stack:
        try:
            daemon = _Daemon(config, config_path)
        except (LogdError, OSError) as error:
            raise service_error(error, config, config_path) from None
        await daemon.start(stack)
        try:
            await daemon.serve(stop)
        except* (LogdError, OSError, ServiceError) as errors:
            ended = first_of(errors)
    if isinstance(ended, ServiceError):
        raise ended
    if ended is not None:
        raise service_error(ended, config, config_path)
    lock.release()  # only now: after a failure a thread may still write, as long as the process is


class LastSyncFailedError(ServiceError):
    """Error of the last sync: acked records may be lost (exit code 74)."""

    exit_code = ExitCode.IO


class _Daemon:
    """One run of the process."""

    def __init__(self, config: LogdConfig, config_path: Path) -> None:
        self._config = config
        self._config_path = config_path
        self._endpoints: dict[str, str] = {}
        rng = random.Random()  # noqa: S311 - jitter, not a secret
        clock, self._reloader = (
            SystemClock(),
            CredentialReloader(config.tls, config.auth, SystemClock()),
        )
        access = self._nats_access()
        self._data_link = NatsLink(
            access,
            name=f"{config.node}/data",
            on_messages=self._on_messages,
            rng=rng,
            clock=clock,
            on_event=self._on_link_event,
        )
        self._ack_link = NatsLink(
            access,
            name=f"{config.node}/acks",
            on_messages=_ignore,
            rng=rng,
            clock=clock,
            timing=ANSWERS_ONLY,
        )
        self._budget = ByteBudget(config.max_intake_bytes)
        self._tracing = Tracing(config.tracing, "logd", config.node)
        self._dispatcher = LoopDispatcher()
        self._acks = AckSender(self._ack_link, self._dispatcher)
        self._compaction_thread = CompactionThread(_compaction(config), SystemClock())
        self._masters = config.masters()
        self._engine = self._make_engine()
        watch_masters(self._reloader, config_path, self._masters, self._engine)
        self._listeners = Listeners(config, self._engine, tracer=self._tracing.tracer)
        self._listeners.keep_from_streams(self._acks)
        self._server = FetchServer(
            self._listeners.api,
            config.fetch_limits(),
            tls=self._reloader.fetch_tls(),
            authenticator=self._reloader.authenticator,
        )
        self._reloader.count_listener("fetch", self._server.listener)
        self._grpc = self._make_grpc(access)
        self._hints = self._make_hints(access)
        self._telemetry = Telemetry(
            node=config.node,
            engine=self._engine,
            budget=self._budget,
            acks=self._acks,
            data_link=self._data_link,
            ack_link=self._ack_link,
            server=self._server,
            listeners=self._listeners,
            reloader=self._reloader,
            data_dir=config.data_dir,
            max_metrics_streams=config.max_metrics_streams,
            grpc=self._grpc,
            hints=self._hints,
            spans=self._tracing.counts,
        )

    async def start(self, stack: ExitStack) -> None:
        """Recover the streams, connect, listen; on return everything works."""
        config = self._config
        admin_address = self._open_admin(stack)
        workers = ThreadPoolExecutor(WORKERS_MAX, thread_name_prefix="worker")
        asyncio.get_running_loop().set_default_executor(workers)
        fetch_address = self._server.listener.listen(config.fetch)
        endpoints = {"fetch": fetch_address, "admin": admin_address}
        if self._grpc is not None:
            endpoints["grpc"] = self._grpc.listen()
        for part in (self._tracing, self._server.listener, self._ack_link, self._data_link):
            stack.callback(part.close)
        with self._opening():
            await self._engine.open(config.streams, endpoints)
        self._compaction_thread.start()
        stack.callback(self._compaction_thread.close)
        try:
            await self._connect(self._ack_link)
            await self._connect(self._data_link)
            if self._grpc is not None:
                stack.callback(self._grpc.relay.link.close)
                await self._connect(self._grpc.relay.link)
        except BaseException:
            await self._engine.close()
            raise
        stack.callback(self._endpoints_path.unlink, missing_ok=True)
        self._endpoints = endpoints

    @property
    def _endpoints_path(self) -> Path:
        return self._config.data_dir / "endpoints.json"

    async def _begin(self, stop: asyncio.Event) -> bool:
        """Say that everything works once it does; False: it was stopped before.

        Raises:
            ServiceError: It cannot work.
        """
        starting = asyncio.create_task(self._engine.started())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return False
        with self._opening():
            await starting
        self._check_permitted()
        if self._grpc is not None:
            await self._grpc.start()
        try:
            write_endpoints(self._endpoints_path, self._endpoints)
        except OSError as error:
            fix = "see to the disk, then start again"
            raise UnavailableError(f"{self._endpoints_path}: {error}", fix=fix) from None
        self._telemetry.health = Health.READY
        _log.info(
            "ready",
            node=self._config.node,
            fetch=self._endpoints["fetch"],
            admin=self._endpoints["admin"],
            nats=self._data_link.shown(),
            streams=[partition.name for partition in self._engine.partitions()],
        )
        return True

    def _open_admin(self, stack: ExitStack) -> str:
        """Answer probes, and SIGHUP, from the first moment on; returns where."""
        loop, reloader = asyncio.get_running_loop(), self._reloader
        reloader.authenticator.on_failure = partial(self._listeners.not_let_in, loop)
        stack.callback(reloader.close)
        loop.add_signal_handler(signal.SIGHUP, reloader.reload)
        stack.callback(loop.remove_signal_handler, signal.SIGHUP)
        admin = AdminServer(
            self._telemetry.status,
            self._telemetry.registry,
            probe=self._telemetry.probe,
            tls=reloader.admin_tls(),
            admit=reloader.admit(self._listeners.may_see_status()),
            hosts=self._config.admin_hosts,
        )
        address = admin.start(self._config.admin)
        stack.callback(admin.close)
        return address

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(self._engine.run())
            background = [
                tasks.create_task(self._data_link.run()),
                tasks.create_task(self._engine.subscription_manager.run()),
                tasks.create_task(self._ack_link.run()),
                tasks.create_task(self._reloader.run()),
            ]
            try:
                begun = await self._begin(stop)
            except BaseException:
                await self._engine.close()
                raise
            if begun:
                background.append(tasks.create_task(self._server.listener.run()))
                background.append(tasks.create_task(self._listeners.activity.run()))
                if self._grpc is not None:
                    background.append(tasks.create_task(self._grpc.run()))
                if self._hints is not None:
                    background.append(tasks.create_task(self._hints.run()))
                await stop.wait()
            try:
                if self._hints is not None:
                    self._hints.link.close()
                await self._listeners.close()
                await self._engine.retire()
                if self._grpc is not None:
                    await self._grpc.stop()
                    self._grpc.relay.link.close()
                await self._drain()
            finally:
                working.cancel()
                self._data_link.close()
                self._ack_link.close()
                for task in background:
                    task.cancel()

    async def _drain(self) -> None:
        """Take no more messages; commit and ack what was taken; close the logs."""
        self._telemetry.health = Health.DRAINING
        try:
            async with asyncio.timeout(self._config.drain_timeout_s):
                self._engine.subscription_manager.stop()
                await self._data_link.flush(self._config.drain_timeout_s / 2)
                unsynced = await self._engine.close()
        except TimeoutError:
            waiting = ", ".join(self._engine.draining())
            raise DrainCutShortError(
                f"stopping took longer than {self._config.drain_timeout_s:g} s; still writing:"
                f" {waiting or 'none'}",
                fix="nothing acked is lost; see to the disk, or raise drain_timeout_s",
                at_once=True,  # a thread may hang in a write or sync that the disk never answers
            ) from None
        finally:
            await asyncio.sleep(0)  # acks of the last commit are written at the turn's end
            await self._ack_link.flush(1.0)
        if unsynced:
            raise LastSyncFailedError(
                f"could not be synced: {', '.join(unsynced)}",
                fix="see to the disk; the last records of fsync policy interval or never may be"
                " lost",
            )
        _log.info("stopped")

    def _make_engine(self) -> ClusterEngine:
        config = self._config
        clock = BootClock()
        reachability = NatsReachability(self._is_connected, clock)
        tls = None if config.cluster is None else self._peer_tls(config.cluster)
        engine = ClusterEngine(
            config, self._data_link, self._surroundings, clock, reachability, tls
        )
        if config.cluster is not None:
            self._reloader.count_listener("peer", engine.endpoint.listener)
        return engine

    def _peer_tls(self, section: ClusterSection) -> PeerTls | None:
        if section.tls is None:
            return None
        server, client = self._reloader.peer_sources(section.tls.files())
        return PeerTls(server=server, client=client, named=section.tls.named_nodes)

    def _nats_access(self) -> NatsAccess:
        access = self._config.nats.access()
        tls = access.tls
        if tls is None:
            return access
        held = self._reloader.dialling("nats.tls", tls.paths(), tls.context)
        return replace(access, source=held.current)

    def _make_grpc(self, access: NatsAccess) -> "GrpcServer | None":
        if (section := self._config.grpc) is None:
            return None
        from penstock.logd.liftbridge.auth import GrpcListener  # gRPC is loaded where it is used
        from penstock.logd.liftbridge.server import GrpcServer

        return GrpcServer(
            section,
            self._engine,
            access,
            node=self._config.node,
            clock=SystemClock(),
            listener=GrpcListener(
                authenticator=self._reloader.authenticator,
                tls=self._reloader.tls,
                certificates=self._reloader.needs_certificates,
                permits=self._listeners.call_permits(),
            ),
        )

    def _make_hints(self, access: NatsAccess) -> JetStreamHints | None:
        if not self._config.nats.jetstream_hints:
            return None
        node, stored = self._config.node, self._listeners.is_stored
        return JetStreamHints(access, node=node, clock=SystemClock(), stored=stored)

    def _is_connected(self) -> bool:
        return self._data_link.connected and self._ack_link.connected

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Convert errors of opening streams to errors for the operator."""
        try:
            yield
        except RefusedError as error:
            fix = "restore the stream's subject, or delete the stream and its data first"
            raise ConfigError(
                f"{self._config_path}: streams: {error}", fix=OPENING_FIXES.get(error.code, fix)
            ) from None
        except CorruptError as error:
            raise DamagedDataError(
                str(error), fix="nothing was changed; restore the file from a backup"
            ) from None
        except OSError as error:
            raise UnavailableError(
                f"{self._config.data_dir}: {error}", fix="see to the disk, then start again"
            ) from None

    async def _connect(self, link: NatsLink) -> None:
        """Connect for the first time, as long as `connect_timeout_s` allows."""
        problem = "no answer"
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                while True:
                    try:
                        await link.connect()
                    except OSError as error:
                        problem = str(error) or "no answer in time"
                        await asyncio.sleep(_RETRY_S)
                    else:
                        return
        except NatsSetupError as error:
            raise ConfigError(f"{self._config_path}: {error.key}: {error}", fix=error.fix) from None
        except NatsRefusedError as error:
            raise ConfigError(
                f"{self._config_path}: nats: {link.shown()} refuses: {error}",
                fix="correct nats.url, or what logd logs in with: nats.user and nats.password,"
                " nats.token, nats.nkey_seed_file, nats.credentials_file or nats.tls",
            ) from None
        except TimeoutError:
            raise UnavailableError(
                f"{self._config_path}: nats.url: {link.shown()} cannot be reached: {problem}",
                fix="start nats-server there, or correct nats.url",
            ) from None

    def _check_permitted(self) -> None:
        """Refuse to start when the server does not permit a stream of the configuration.

        Other streams may have lost their permission since they were made; they are reported.
        """
        denied = self._engine.subscription_manager.denied()
        for settings in self._config.streams:
            if settings.name in denied:
                raise ConfigError(
                    f"{self._config_path}: streams: {settings.name}: {self._data_link.shown()}"
                    f" refuses: {denied[settings.name]}",
                    fix="permit logd's user to subscribe to the stream's subject",
                )

    def _surroundings(self, lookup: StreamLookup) -> PartitionContext:
        return PartitionContext(
            node=NodeId(self._config.node),
            budget=self._budget,
            acks=self._acks,
            dispatcher=self._dispatcher,
            writer_pool=WriterPool(),
            clock=SystemClock(),
            streams_for=lookup.match,
            knows_stream=lookup.knows,
            retention_interval_s=self._config.retention_interval_s,
            admission=self._config.admission_policy(),
            space=DiskSpace(self._config.min_free_bytes),
            compaction_thread=self._compaction_thread,
            masters=self._masters,
            tracer=self._tracing.tracer,
        )

    def _on_messages(self, messages: dict[bytes, list[Message]]) -> None:
        self._engine.subscription_manager.on_messages(messages)

    def _on_link_event(self, event: LinkEvent) -> None:
        self._engine.subscription_manager.on_event(event)


def _compaction(config: LogdConfig) -> CompactionSettings:
    return CompactionSettings(
        interval_s=config.compaction_interval_s,
        bytes_per_s_max=config.max_compaction_bytes_per_s,
        memory_bytes=config.compaction_memory_bytes,
        dirty_ratio=config.compaction_dirty_ratio,
    )


def _ignore(messages: dict[bytes, list[Message]]) -> None:
    """The link for acks has no subscriptions."""
    assert not messages
