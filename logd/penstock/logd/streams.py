"""The streams of a daemon: which there are, and where their data lies.

    <data_dir>/metadata                          which streams there are (a checkpoint)
    <data_dir>/streams/<name>-<incarnation>/0    the log of partition 0
    <data_dir>/trash/                            data of deleted streams, on its way out

A stream's directory is made before the metadata names it, and leaves by a rename into the trash
after the metadata has marked it. Data that the metadata does not speak of is never removed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import structlog

from penstock.logd.core.metadata import (
    NOBODY,
    Metadata,
    Owner,
    Stream,
    StreamConfig,
    check_not_internal,
    is_internal,
)
from penstock.logd.cursors import Extent
from penstock.logd.descriptors import Descriptors
from penstock.logd.directories import empty, make_directories, rename
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    NotOpenError,
    RefusedError,
    UnavailableError,
)
from penstock.logd.limits import STREAMS_MAX
from penstock.logd.listening import Link, Listening
from penstock.logd.nats.errors import NatsRefusedError
from penstock.logd.partition import Partition
from penstock.logd.store import Checkpoint, LogFailedError
from penstock.logd.surroundings import StreamLookup, Surroundings
from penstock.logd.unopened import Unopened, cause_of

Result = TypeVar("Result")
_log = structlog.get_logger()


class StreamSet:
    """Opens, creates and deletes streams. Used on the event loop.

    Args:
        data_dir: It exists and is locked.
        link: Subscriptions are made on it.
        make_surroundings: Given the lookup of streams, what partitions share.
        new_incarnation: Makes the id of a new stream.
        descriptors: No more streams are opened than it is enough for.
        streams_max: How many there may be.

    Attributes:
        listening: Which of them are on their subjects.
        disk: Holds them.
    """

    def __init__(
        self,
        data_dir: Path,
        link: Link,
        *,
        make_surroundings: Callable[[StreamLookup], Surroundings],
        new_incarnation: Callable[[], str],
        descriptors: Descriptors | None = None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self._data_dir = data_dir
        self._around = make_surroundings(self)
        self._new_incarnation = new_incarnation
        self._descriptors = descriptors or Descriptors()
        self.streams_max = streams_max
        self.disk = self._around.disk
        self._checkpoint = Checkpoint(data_dir / "metadata", disk=self.disk)
        self._metadata = Metadata()
        self._partitions: dict[str, Partition] = {}
        self._unopened: dict[str, Unopened] = {}
        around = self._around
        self.listening = Listening(link, around.budget, around.clock, around.admission)
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    def partitions(self) -> list[Partition]:
        """Every partition, by stream name."""
        return [partition for _, partition in sorted(self._partitions.items())]

    def unopened(self) -> list[Unopened]:
        """The streams whose logs cannot be opened, by name."""
        return [unopened for _, unopened in sorted(self._unopened.items())]

    def all(self) -> list[Partition | Unopened]:
        """Every stream, open or not, by name."""
        return [found for _, found in sorted((self._partitions | self._unopened).items())]

    def incarnation(self, stream: str, number: int = 0) -> str | None:
        """Of a stream, open or not; None where there is none with such a partition."""
        found = self._partitions.get(stream) or self._unopened.get(stream)
        return None if found is None or number else found.stream.incarnation

    def extent(self, stream: str, number: int) -> Extent:
        """As `penstock.logd.cursors.CursorStreams`."""
        partition = self.partition(stream, number)
        end = partition.high_watermark + 1
        return Extent(partition.stream.incarnation, partition.start_offset, end)

    def find(self, stream: str) -> Partition | Unopened:
        """A stream, open or not.

        Raises:
            RefusedError: `UNKNOWN_STREAM`.
        """
        found = self._partitions.get(stream) or self._unopened.get(stream)
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
        if isinstance(found, Unopened):
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
        opened keeps no other one from it: see `unopened`.

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
            if self.listening.stopped:
                raise UnavailableError(f"stream {config.name!r} is not created: logd stops")
            for left in self._metadata.deleting():
                if left.config.name == config.name:  # the disk failed while it was deleted
                    await self._remove(left)
            changed = Metadata.restore(self._metadata.snapshot())
            stream, created = changed.create(
                config, self._new_incarnation(), streams_max=self.streams_max, owner=owner
            )
            if created:
                self._around.masters.check(config)
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
            again = await Partition.open(partition.stream, directory, self._around)
            again.count_on(partition)
            self._partitions[name] = again
            self.listening.hand_over(again.leadership)
            await _finish(partition)

    async def _delete(self, name: str) -> None:
        async with self._changing:
            await self._forget(name)

    async def _open_again(self, name: str) -> Partition:
        try:
            async with self._changing:
                if name in self._unopened:
                    await self._open(self._unopened[name].stream)
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
        partition = await Partition.open(stream, directory / "0", self._around)
        self._partitions[name] = partition
        unopened = self._unopened.pop(name, None)
        if unopened is not None:
            partition.leadership.intake.counts = unopened.intake.counts
            partition.leadership.passed_over = unopened.passed_over
            self.listening.hand_over(partition.leadership)
        elif not is_internal(name):
            await self.listening.add(partition.leadership)

    async def _open_or_set_aside(self, stream: Stream) -> None:
        try:
            await self._open(stream)
        except (OSError, LogdError) as error:
            unopened = Unopened(stream, error, self._around)
            _log.error("stream failed", stream=unopened.name, reason=unopened.reason)
            self._unopened[unopened.name] = unopened
            if not is_internal(unopened.name):
                await self.listening.add(unopened)

    async def _forget(self, name: str) -> None:
        changed = Metadata.restore(self._metadata.snapshot())
        stream = changed.mark_deleted(name)
        await self._save(changed)
        partition = self._partitions.pop(name, None)
        self._unopened.pop(name, None)
        self.listening.remove(name)
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
                self._around.masters.check(config)
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
