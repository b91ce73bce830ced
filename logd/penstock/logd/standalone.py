"""The streams of a logd that is in no cluster, run.

Rules and quotas of a logd that is in no cluster.

<data_dir>/access   all of them (a checkpoint); there is none until the first is made

The streams of a daemon: which there are, and where their data lies.

    <data_dir>/metadata                          which streams there are (a checkpoint)
    <data_dir>/streams/<name>-<incarnation>/0    the log of partition 0
    <data_dir>/trash/                            data of deleted streams, on its way out

A stream's directory is made before the metadata names it, and leaves by a rename into the trash
after the metadata has marked it. Data that the metadata does not speak of is never removed.

Opens again the logs that failed for want of space, once there is some.

A write that the system refuses for want of space has written nothing that counts: the log cuts its
tail off, and what was accepted and not committed has been refused. So the log may be opened again
as after a restart, with a new leader epoch, while its readers go on. A failed sync is another
matter, whatever its error: nobody knows what the disk has then, and the log stays failed until logd
is started again by somebody who has looked. So do logd's own streams: who uses one has read what it
holds, and would go on with the log that failed. A log that could not be opened for want of space is
opened in the same way.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import orjson
import structlog
from prometheus_client.core import Metric

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock, SystemClock
from penstock.logd.activity import Event, Record, store_events
from penstock.logd.api.description import describe_stream
from penstock.logd.api.operations import LoneGroups
from penstock.logd.api.protocol import Document
from penstock.logd.api.stream_options import ConfiguredStream, ReplicationSettings
from penstock.logd.api.streams import StreamOutline
from penstock.logd.config import LogdConfig
from penstock.logd.directories import Descriptors, empty, make_directories, rename
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    LogFailedError,
    NotOpenError,
    RefusedError,
    UnavailableError,
)
from penstock.logd.limits import REOPEN_FREE_BYTES_MIN, STREAMS_MAX
from penstock.logd.metadata.access import (
    AccessCommand,
    AccessRecord,
    AccessTable,
    apply_access,
    record_of,
    table_of,
)
from penstock.logd.metadata.codec import read_as, write_document
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.streams import (
    NOBODY,
    Metadata,
    Owner,
    Stream,
    StreamConfig,
    check_not_internal,
    is_internal,
)
from penstock.logd.nats.protocol import NatsRefusedError
from penstock.logd.partition.context import PartitionContext, StreamLookup
from penstock.logd.partition.cursors import CURSORS_STREAM, CursorStore, Extent
from penstock.logd.partition.partition import OfflinePartition, Partition, cause_of
from penstock.logd.partition.purge import PurgePoint, check_purge
from penstock.logd.partition.subscriptions import Link, SubscriptionManager
from penstock.logd.security.quotas import Quota, quota_of
from penstock.logd.storage import Checkpoint


class LoneAccess:
    """As `penstock.logd.security.authorizer.Access`; `open` it first.

    Args:
        data_dir: It exists and is locked.
    """

    def __init__(self, data_dir: Path) -> None:
        self._checkpoint = Checkpoint(data_dir / "access")
        self._table = AccessTable()
        self._changing = asyncio.Lock()

    @property
    def table(self) -> AccessTable:
        """As `Access`."""
        return self._table

    def open(self) -> None:
        """Read what is kept.

        Raises:
            CorruptError, LaterVersionError: It is not understood, and nobody is let in by guesses.
            OSError: The disk failed.
        """
        document = self._checkpoint.load()
        if document is not None:
            where = str(self._checkpoint.path)
            self._table = table_of(read_as(AccessRecord, document, where=where))

    async def change(self, command: AccessCommand) -> bool:
        """As `Access`."""
        async with self._changing:
            changed = table_of(record_of(self._table))
            if not apply_access(changed, self._table.version + 1, command):
                return False
            document = orjson.loads(write_document(record_of(changed)))
            try:
                await asyncio.to_thread(self._checkpoint.save, document)
            except OSError as error:
                raise UnavailableError(f"{self._checkpoint.path}: {error}") from None
            self._table = changed
            return True


Result = TypeVar("Result")
_log = structlog.get_logger()


class StreamSet:
    """Opens, creates and deletes streams. Used on the event loop.

    Args:
        data_dir: It exists and is locked.
        link: Subscriptions are made on it.
        make_context: Given the lookup of streams, what partitions share.
        new_incarnation: Makes the id of a new stream.
        descriptors: No more streams are opened than it is enough for.
        streams_max: How many there may be.

    Attributes:
        subscription_manager: Which of them are on their subjects.
        disk: Holds them.
    """

    def __init__(
        self,
        data_dir: Path,
        link: Link,
        *,
        make_context: Callable[[StreamLookup], PartitionContext],
        new_incarnation: Callable[[], str],
        descriptors: Descriptors | None = None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self._data_dir = data_dir
        self._context = make_context(self)
        self._new_incarnation = new_incarnation
        self._descriptors = descriptors or Descriptors()
        self.streams_max = streams_max
        self.disk = self._context.disk
        self._checkpoint = Checkpoint(data_dir / "metadata", disk=self.disk)
        self._metadata = Metadata()
        self._partitions: dict[str, Partition] = {}
        self._offline_partition: dict[str, OfflinePartition] = {}
        context = self._context
        self.subscription_manager = SubscriptionManager(
            link, context.budget, context.clock, context.admission
        )
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    def partitions(self) -> list[Partition]:
        """Every partition, by stream name."""
        return [partition for _, partition in sorted(self._partitions.items())]

    def offline_partition(self) -> list[OfflinePartition]:
        """The streams whose logs cannot be opened, by name."""
        return [
            offline_partition for _, offline_partition in sorted(self._offline_partition.items())
        ]

    def all(self) -> list[Partition | OfflinePartition]:
        """Every stream, open or not, by name."""
        return [found for _, found in sorted((self._partitions | self._offline_partition).items())]

    def incarnation(self, stream: str, number: int = 0) -> str | None:
        """Of a stream, open or not; None where there is none with such a partition."""
        found = self._partitions.get(stream) or self._offline_partition.get(stream)
        return None if found is None or number else found.stream.incarnation

    def extent(self, stream: str, number: int) -> Extent:
        """As `penstock.logd.partition.cursors.CursorStreams`."""
        partition = self.partition(stream, number)
        end = partition.high_watermark + 1
        return Extent(partition.stream.incarnation, partition.start_offset, end)

    def find(self, stream: str) -> Partition | OfflinePartition:
        """A stream, open or not.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        found = self._partitions.get(stream) or self._offline_partition.get(stream)
        if found is None:
            raise RefusedError("UNKNOWN_STREAM", f"there is no stream {stream!r}", stream=stream)
        return found

    def partition(self, stream: str, number: int = 0) -> Partition:
        """One partition.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
            NotOpenError: Its log cannot be opened.
        """
        found = self.find(stream)
        if isinstance(found, OfflinePartition):
            raise NotOpenError(f"stream {stream!r}: {found.reason}", cause=found.cause)
        if number != found.number:
            message = f"stream {stream!r} has no partition {number}"
            raise RefusedError("UNKNOWN_PARTITION", message, stream=stream, partition=number)
        return found

    def match(self, subject: str) -> tuple[str, ...]:
        """Names of the streams that store what is published on a subject."""
        return self._metadata.match(subject)

    def knows(self, stream: str) -> bool:
        """Whether there is a stream of this name."""
        return self._metadata.knows(stream)

    async def start(
        self, configured: Iterable[StreamConfig], *, internal: Iterable[StreamConfig] = ()
    ) -> None:
        """Open every stream there is, and create those configured that there are not.

        Those of `internal` that there are get the options given here. A stream whose log cannot be
        opened keeps no other one from it: see `offline_partition`.

        Raises:
            CorruptError: The metadata is damaged or missing; nothing was removed.
            RefusedError: A configured stream differs in what cannot be changed,
                `TOO_MANY_STREAMS`, or `CLUSTERED`: it is not a lone logd's directory.
            OSError: The disk failed.
        """
        if (self._data_dir / "cluster").is_dir():
            message = f"{self._data_dir} is that of a node of a cluster"
            raise RefusedError("CLUSTERED", message)
        for name in ("streams", "trash"):
            (self._data_dir / name).mkdir(exist_ok=True)
        self._metadata = self._load()
        for stream in list(self._metadata.deleting()):
            await self._remove(stream)
        known = {stream.config.name for stream in self._metadata.streams()}
        own = [config for config in internal if config.name in known]
        await self._configure([*own, *configured])
        await asyncio.gather(*map(self._open_or_set_aside, self._metadata.streams()))
        await asyncio.to_thread(empty, self._data_dir / "trash")

    async def create(self, config: StreamConfig, owner: Owner = NOBODY) -> tuple[Partition, bool]:
        """Create a stream, or find it; whether it is new. On return it listens.

        Raises:
            RefusedError: As `Metadata.create`.
            UnavailableError: logd stops.
            NatsRefusedError: The NATS server does not permit its subject.
        """
        return await self._whole(self._create(config, owner))

    async def delete(self, name: str) -> None:
        """Delete a stream and its data; readers that wait for it are let go.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `RESERVED_NAME`.
        """
        check_not_internal(name)
        await self._whole(self._delete(name))

    async def reopen(self, partition: Partition) -> None:
        """Open a failed stream's log again and go on with it; readers do not notice.

        Raises:
            OSError, LogdError: It cannot be opened yet; everything is as it was.
        """
        await self._whole(self._reopen(partition))

    async def open(self, name: str) -> Partition:
        """Open a stream whose log could not be opened, or has failed, as a restart would.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `RESERVED_NAME`.
            NotOpenError: It still cannot be opened; everything is as it was.
        """
        check_not_internal(name)
        return await self._whole(self._open_again(name))

    async def close(self) -> list[str]:
        """Commit what was accepted and close every partition; none waits for another's disk.

        Returns:
            Streams of which something could not be written or synced at last, by name.
        """
        await asyncio.gather(*self._changes, return_exceptions=True)
        partitions = self.partitions()
        sound = await asyncio.gather(*(_drain(partition) for partition in partitions))
        return [found.name for found, whole in zip(partitions, sound, strict=True) if not whole]

    def draining(self) -> list[str]:
        """Streams that `close` still waits for."""
        return [partition.name for partition in self.partitions() if not partition.finished]

    async def _whole(self, change: Coroutine[Any, Any, Result]) -> Result:
        """Make a change, to its end even when whoever asked for it goes away meanwhile."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _create(self, config: StreamConfig, owner: Owner) -> tuple[Partition, bool]:
        async with self._changing:
            if self.subscription_manager.stopped:
                raise UnavailableError(f"stream {config.name!r} is not created: logd stops")
            for left in self._metadata.deleting():
                if left.config.name == config.name:  # the disk failed while it was deleted
                    await self._remove(left)
            changed = Metadata.restore(self._metadata.snapshot())
            stream, created = changed.create(
                config, self._new_incarnation(), streams_max=self.streams_max, owner=owner
            )
            if created:
                self._context.masters.check(config)
                self._descriptors.check(len(list(changed.streams())))
                await asyncio.to_thread(make_directories, self._directory(stream) / "0")
                await self._save(changed)
                _log.info("stream created", stream=config.name, subject=config.subject)
            if config.name not in self._partitions:  # new, or the disk failed when it was new
                try:
                    await self._open(stream)
                except NatsRefusedError:
                    await self._forget(config.name)
                    raise
            return self._partitions[config.name], created

    async def _reopen(self, partition: Partition) -> None:
        async with self._changing:
            name = partition.name
            if self._partitions.get(name) is not partition:
                return
            await asyncio.to_thread(partition.end_upkeep)
            directory = self._directory(partition.stream) / "0"
            again = await Partition.open(partition.stream, directory, self._context)
            again.count_on(partition)
            self._partitions[name] = again
            self.subscription_manager.hand_over(again.publish_queue)
            await _finish(partition)

    async def _delete(self, name: str) -> None:
        async with self._changing:
            await self._forget(name)

    async def _open_again(self, name: str) -> Partition:
        try:
            async with self._changing:
                if name in self._offline_partition:
                    await self._open(self._offline_partition[name].stream)
            if self.partition(name).failure:
                await self._reopen(self.partition(name))
        except (OSError, CorruptError) as error:
            message = f"stream {name!r} cannot be opened: {error}"
            raise NotOpenError(message, cause=cause_of(error)) from None
        return self.partition(name)

    async def _open(self, stream: Stream) -> None:
        name = stream.config.name
        directory = self._directory(stream)
        if not (directory / "0").is_dir():
            message = f"stream {name!r} has lost its data directory"
            raise CorruptError(message, where=str(directory))
        partition = await Partition.open(stream, directory / "0", self._context)
        self._partitions[name] = partition
        offline_partition = self._offline_partition.pop(name, None)
        if offline_partition is not None:
            partition.publish_queue.intake.counts = offline_partition.intake.counts
            partition.publish_queue.passed_over = offline_partition.passed_over
            self.subscription_manager.hand_over(partition.publish_queue)
        elif not is_internal(name):
            await self.subscription_manager.add(partition.publish_queue)

    async def _open_or_set_aside(self, stream: Stream) -> None:
        try:
            await self._open(stream)
        except (OSError, LogdError) as error:
            offline_partition = OfflinePartition(stream, error, self._context)
            _log.error(
                "stream failed", stream=offline_partition.name, reason=offline_partition.reason
            )
            self._offline_partition[offline_partition.name] = offline_partition
            if not is_internal(offline_partition.name):
                await self.subscription_manager.add(offline_partition)

    async def _forget(self, name: str) -> None:
        changed = Metadata.restore(self._metadata.snapshot())
        stream = changed.mark_deleted(name)
        await self._save(changed)
        partition = self._partitions.pop(name, None)
        self._offline_partition.pop(name, None)
        self.subscription_manager.remove(name)
        if partition is not None:
            await _finish(partition)
        await self._remove(stream)
        await asyncio.to_thread(empty, self._data_dir / "trash")
        _log.info("stream deleted", stream=name, incarnation=stream.incarnation)

    async def _configure(self, configured: Iterable[StreamConfig]) -> None:
        """Take over the options of streams there are, and add those there are not, all at once."""
        changed = Metadata.restore(self._metadata.snapshot())
        present = {stream.config.name for stream in changed.streams()}
        altered, added = False, list[Stream]()
        for config in configured:
            if config.name in present:
                altered |= changed.alter(config)
            else:
                self._context.masters.check(config)
                added.append(changed.create(config, self._new_incarnation())[0])
        self._descriptors.check(len(list(changed.streams())))
        if added:
            paths = [self._directory(stream) / "0" for stream in added]
            await asyncio.to_thread(make_directories, *paths)
        if altered or added:
            await self._save(changed)
        for stream in added:
            _log.info("stream created", stream=stream.config.name, subject=stream.config.subject)

    async def _remove(self, stream: Stream) -> None:
        """Move the data of a stream that is marked as deleted out of the way, and forget it."""
        directory = self._directory(stream)
        trash = self._data_dir / "trash" / directory.name
        if directory.is_dir():
            await asyncio.to_thread(rename, directory, trash)
        changed = Metadata.restore(self._metadata.snapshot())
        changed.forget(stream.config.name)
        await self._save(changed)

    async def _save(self, metadata: Metadata) -> None:
        await asyncio.to_thread(self._checkpoint.save, metadata.snapshot())
        self._metadata = metadata

    def _load(self) -> Metadata:
        document = self._checkpoint.load()
        present = sorted(path.name for path in (self._data_dir / "streams").iterdir())
        if document is None:
            if present:
                raise CorruptError(
                    f"the file is missing, but there are streams: {', '.join(present[:5])}",
                    where=str(self._data_dir / "metadata"),
                )
            return Metadata()
        metadata = Metadata.restore(document)
        known = {self._directory(stream).name for stream in metadata.streams()}
        known |= {self._directory(stream).name for stream in metadata.deleting()}
        for name in present:
            if name not in known:
                _log.warning("directory belongs to no stream; left alone", directory=name)
        return metadata

    def directory_of(self, name: str) -> Path:
        """Where the data of an open stream, or of one that could not be opened, lies.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        return self._directory(self._metadata.get(name))

    def _directory(self, stream: Stream) -> Path:
        return self._data_dir / "streams" / f"{stream.config.name}-{stream.incarnation}"


async def _drain(partition: Partition) -> bool:
    await partition.wait_drained()
    return await _finish(partition)


async def _finish(partition: Partition) -> bool:
    """Close it; whether its log could be synced, or had failed before."""
    partition.close()
    try:
        await asyncio.to_thread(partition.finish)
    except LogFailedError as error:
        _log.error("log failed while closing", stream=partition.name, error=str(error))
        return False
    return True


class LoneActivity:
    """As `penstock.logd.activity.Sink`.

    Args:
        streams: Where it is; `start` them first.
        config: Of the stream, which is made with the first event.
    """

    def __init__(self, streams: StreamSet, config: StreamConfig) -> None:
        self._streams = streams
        self._config = config

    async def store(self, events: Sequence[Event]) -> None:
        """As `Sink`."""
        try:
            partition = self._streams.partition(self._config.name)
        except RefusedError:
            partition, _ = await self._streams.create(self._config)
        await store_events(partition, events)


class LoneStreams:
    """A cluster of one node, as `penstock.logd.api.streams.Streams`.

    Args:
        node: Its name.
        streams: What it has.
        cursors: Of the consumers.
        addresses: Where it is reached: `fetch` and `admin`.
        quotas: Of principals; by default there are none.
    """

    def __init__(
        self,
        node: str,
        streams: StreamSet,
        cursors: CursorStore,
        addresses: Callable[[], Mapping[str, str]],
        quotas: Callable[[], Mapping[str, Quota]] = dict,
    ) -> None:
        self.node = node
        self._quotas = quotas
        self._purging = asyncio.Lock()
        self._streams = streams
        self._cursors = cursors
        self._addresses = addresses

    def cluster(self) -> Document:
        """Nobody but itself."""
        itself = {"node": self.node, "rack": "", "state": "active", "live": True}
        nodes = [itself | dict(self._addresses())]
        return {"cluster": None, "controller": self.node, "nodes": nodes}

    def describe(self, stream: str | None = None, *, internal: bool = False) -> list[Document]:
        """As `Streams`."""
        if stream is not None:
            return [describe_stream(self._streams.find(stream), self.node)]
        found = self._streams.all()
        shown = (one for one in found if internal or not is_internal(one.name))
        return [describe_stream(one, self.node) for one in shown]

    def names(self) -> list[str]:
        """As `Streams`."""
        return [found.name for found in self._streams.all()]

    def outline(self, stream: str) -> StreamOutline:
        """As `Streams`."""
        found = self._streams.find(stream)
        return StreamOutline(found.stream, 1, ReplicationOptions(replication_factor=1))

    def match(self, subject: str) -> tuple[str, ...]:
        """As `Streams`."""
        return self._streams.match(subject)

    def partition(self, stream: str, number: int, *, replica: bool = False) -> Partition:
        """As `Streams`; everything is here."""
        del replica
        return self._streams.partition(stream, number)

    async def create(
        self, config: StreamConfig, replication: ReplicationSettings, *, creator: str = ""
    ) -> tuple[Document, bool]:
        """As `Streams`, of one partition with one replica."""
        check_possible(replication)
        quota = quota_of(self._quotas(), creator) if creator else None
        owner = Owner(creator, None if quota is None else quota.streams)
        partition, created = await self._streams.create(config, owner)
        return describe_stream(partition, self.node), created

    async def delete(self, stream: str) -> None:
        """As `Streams`."""
        await self._streams.delete(stream)
        await self._cursors.forget_stream(stream)

    async def open(self, stream: str) -> Document:
        """As `Streams`."""
        return describe_stream(await self._streams.open(stream), self.node)

    async def purge(self, stream: str, partition: int, before: int) -> int:
        """As `Streams`; it is written down beside the log first."""
        async with self._purging:  # none overtakes another on its way to the disk
            found = self._streams.partition(stream, partition)
            start, end = found.start_offset, found.high_watermark + 1
            check_purge(stream, before, start=start, end=end)
            point = PurgePoint(max(before, start), found.epoch)
            await asyncio.to_thread(point.save, found.log.directory)
            found.purging.set(point, found.high_watermark)
            return found.start_offset

    async def alter(self, stream: str, options: Mapping[str, Any]) -> Document:
        """Refused."""
        del stream, options
        self._refuse("options of a stream follow its configuration file")

    async def set_mode(
        self,
        stream: str,
        *,
        paused: bool | None,
        read_only: bool | None,
        held: bool | None = None,
    ) -> Document:
        """Refused."""
        del stream, paused, read_only, held
        self._refuse("its streams are neither paused nor read-only")

    async def drain(self, node: str, *, undo: bool) -> None:
        """Refused."""
        del node, undo
        self._refuse("there is nowhere to move its streams")

    async def remove_node(self, node: str) -> None:
        """Refused."""
        del node
        self._refuse("it is the only node")

    async def move(self, stream: str, partition: int, replicas: tuple[str, ...] | None) -> None:
        """Refused."""
        del stream, partition, replicas
        self._refuse("there is nowhere to move its streams")

    async def observe(self, stream: str, partition: int, observers: tuple[str, ...]) -> None:
        """Refused."""
        del stream, partition, observers
        self._refuse("there is no other node to copy its streams to")

    async def elect(self, stream: str, partition: int) -> Document:
        """Refused."""
        del stream, partition
        self._refuse("it leads whatever it has")

    async def step_down(self, heir: str | None) -> str:
        """Refused."""
        del heir
        self._refuse("nobody else can decide")

    async def rebalance(self) -> int:
        """Refused."""
        self._refuse("there is nowhere to move its streams")

    def _refuse(self, why: str) -> NoReturn:
        raise RefusedError("NOT_CLUSTERED", f"{self.node} is in no cluster: {why}", node=self.node)


def check_possible(replication: ReplicationSettings) -> None:
    """Refuse what one node cannot do, rather than leave it out."""
    possible = ReplicationSettings().model_dump()
    for key, value in replication.model_dump().items():
        if value == possible[key] or (
            key in ("replication_factor", "min_isr") and value in (1, "all")
        ):
            continue
        raise RefusedError("NOT_CLUSTERED", f"{key}: {value} needs a cluster", key=key)


_NS_PER_S: Final = 1_000_000_000
_LOOK_S: Final = 1.0
_WAIT_MIN_S: Final = 1
_WAIT_MAX_S: Final = 60
_FORGET_NS: Final = 600 * _NS_PER_S
"""Nanoseconds after which an earlier failure of a stream makes it wait no longer."""


@dataclass(slots=True)
class _Attempt:
    """When a stream was last opened again, or tried to be."""

    backoff: Backoff
    at_ns: int = 0
    wait_s: float = 0.0


class Reviver:
    """Looks at the streams every second. Used on the event loop.

    Args:
        streams: Of the daemon.
        clock: For the pauses between attempts, which double.

    Attributes:
        revived: Logs opened again since the start.
    """

    def __init__(self, streams: StreamSet, clock: Clock) -> None:
        self.revived = 0
        self._streams = streams
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Open again what can be."""
        for partition in list(self._streams.partitions()):
            own = is_internal(partition.name)
            if partition.out_of_space and not own and self._is_due(partition.name):
                await self._revive(partition.name)
        for offline_partition in self._streams.offline_partition():
            own = is_internal(offline_partition.name)
            if offline_partition.out_of_space and not own and self._is_due(offline_partition.name):
                await self._revive(offline_partition.name)

    def _is_due(self, name: str) -> bool:
        attempt = self._attempts.get(name)
        if attempt is None:
            return True
        return self._clock.monotonic_ns() >= attempt.at_ns + int(attempt.wait_s * _NS_PER_S)

    async def _revive(self, name: str) -> None:
        try:
            directory = self._streams.directory_of(name)
            free = await asyncio.to_thread(self._streams.disk.available_bytes, directory)
            if free < REOPEN_FREE_BYTES_MIN:
                return
            self._note_attempt(name)
            await self._streams.open(name)
        except (OSError, LogdError) as error:
            _log.warning("stream not opened again", stream=name, error=str(error))
            return
        self.revived += 1
        _log.info("stream opened again", stream=name)

    def _note_attempt(self, name: str) -> None:
        now_ns = self._clock.monotonic_ns()
        attempt = self._attempts.setdefault(name, _Attempt(Backoff(_WAIT_MIN_S, _WAIT_MAX_S)))
        if now_ns - attempt.at_ns >= _FORGET_NS:
            attempt.backoff.reset()
        attempt.at_ns, attempt.wait_s = now_ns, attempt.backoff.next_wait()


class LoneEngine:
    """As `penstock.logd.engine.Engine`.

    Args:
        config: Without a section `cluster`; its data directory exists and is locked.
        link: Subscriptions are made on it.
        make_context: Given the lookup of streams by subject, what partitions share.
    """

    def __init__(
        self,
        config: LogdConfig,
        link: Link,
        make_context: Callable[[StreamLookup], PartitionContext],
    ) -> None:
        node, activity = config.node, config.activity_section.stream()
        streams = StreamSet(
            config.data_dir,
            link,
            make_context=make_context,
            new_incarnation=lambda: secrets.token_hex(8),
            descriptors=Descriptors.raised(config.connections()),
            streams_max=config.streams_max,
        )
        self.access = access = LoneAccess(config.data_dir)
        self.cursors = CursorStore(streams, cursors_max=config.cursors_max)
        self.streams = LoneStreams(
            node, streams, self.cursors, lambda: self._addresses, lambda: access.table.quotas
        )
        self.activity = LoneActivity(streams, activity)
        self._internal = [CURSORS_STREAM, activity]
        self.groups = LoneGroups(node)
        self._set = streams
        self._reviver = Reviver(streams, SystemClock())
        self._addresses: Mapping[str, str] = {}

    @property
    def subscription_manager(self) -> SubscriptionManager:
        """As `Engine`."""
        return self._set.subscription_manager

    @property
    def streams_max(self) -> int:
        """As `Engine`."""
        return self._set.streams_max

    @property
    def revived(self) -> int:
        """As `Engine`."""
        return self._reviver.revived

    def partitions(self) -> list[Partition]:
        """As `Engine`."""
        return self._set.partitions()

    def offline_partition(self) -> list[OfflinePartition]:
        """As `Engine`."""
        return self._set.offline_partition()

    def reasons(self) -> Sequence[str]:
        """As `Engine`; what is wrong its partitions say themselves."""
        return ()

    def info(self) -> dict[str, Any]:
        """As `Engine`."""
        return {}

    def metrics(self) -> Iterable[Metric]:
        """As `Engine`."""
        return ()

    async def open(
        self, configured: Sequence[ConfiguredStream], addresses: Mapping[str, str]
    ) -> None:
        """As `Engine`."""
        self._addresses = addresses
        for settings in configured:
            check_possible(settings.replication())
        configs = [settings.stream_config() for settings in configured]
        self.access.open()
        await self._set.start(configs, internal=self._internal)
        await self.cursors.start()

    def watch(self, record: Record) -> None:
        """As `Engine`; there is only one node, which leads."""
        del record

    async def run(self) -> None:
        """As `Engine`."""
        await self._reviver.run()

    async def retire(self) -> None:
        """There is nobody else."""

    async def close(self) -> list[str]:
        """As `Engine`."""
        return await self._set.close()

    def draining(self) -> list[str]:
        """As `Engine`."""
        return self._set.draining()
