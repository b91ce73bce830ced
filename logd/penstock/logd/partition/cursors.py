"""Consumers' cursors, kept in the internal stream `__cursors`.

A commit is answered when its record is synced. The table in memory is built from the log at start;
the stream is made with the first cursor. Cursors go with their stream: those of one that is deleted
are deleted after it, at the next start if need be (in a cluster: by the next leader). Until then
they carry the incarnation of a stream that is no more, so that they are not used for the next
stream of the name.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog
from msgspec import Struct

from penstock.logd.controller.group_messages import GroupPosition, admit_commit
from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError, UnavailableError
from penstock.logd.format.batch import decode_body
from penstock.logd.format.headers import format_headers
from penstock.logd.intake.turn import Message
from penstock.logd.limits import CURSORS_PER_ANSWER_MAX, CURSORS_PER_REQUEST_MAX
from penstock.logd.metadata.cursors import (
    Change,
    CursorKey,
    CursorPosition,
    CursorTable,
    decode_change,
)
from penstock.logd.metadata.records import Group, GroupPartition
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.storage import CommitLog

if TYPE_CHECKING:
    from penstock.logd.partition.partition import Partition

CURSORS_STREAM: Final = StreamConfig(
    name="__cursors",
    subject="",
    ack_on_reply=False,
    max_segment_bytes=16 * 1024 * 1024,
    dedup_window_s=0,
    compact=True,
)
"""Configuration of the stream of cursors, whatever an earlier version stored."""

_log = structlog.get_logger()


class Extent(Struct, frozen=True):
    """Offsets that a cursor may have.

    Attributes:
        incarnation: The stream's incarnation.
        start: First offset kept.
        end: Exclusive; None: unknown here.
    """

    incarnation: str
    start: int = 0
    end: int | None = None


class Granted(NamedTuple):
    """Cursor that a member of a group commits; the epoch is that of the partition's grant."""

    key: CursorKey
    offset: int
    incarnation: str
    epoch: int


class CursorStreams(Protocol):
    """The streams, as cursors need them."""

    def partition(self, stream: str) -> "Partition":
        """The partition that holds cursors.

        Raises:
            RefusedError: There is none yet.
            UnavailableError: It cannot be opened.
        """

    def extent(self, stream: str, number: int) -> Extent:
        """Return the offsets that a cursor may have.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
        """

    def incarnation(self, stream: str, number: int) -> str | None:
        """Return the stream's incarnation; None: it has no such partition."""

    async def create(self, config: StreamConfig) -> "tuple[Partition, bool]":
        """Create the stream that holds cursors."""


class CursorStore:
    """Answers consumers. Used on the event loop.

    Args:
        streams: Streams that keep cursors; `start` it first.
        max_cursors: Further cursors are refused.
        groups: The consumer group of a name, as far as it is known here; by default there is none.

    Attributes:
        commits: Changes of cursors that were committed.
    """

    def __init__(
        self,
        streams: CursorStreams,
        *,
        max_cursors: int,
        groups: Callable[[str], Group | None] = lambda _: None,
    ) -> None:
        self.commits = 0
        self._groups = groups
        self._streams = streams
        self._table = CursorTable(max_cursors)
        self._partition: Partition | None = None
        self._problem = ""
        self._making = asyncio.Lock()
        self._pending: deque[tuple[int, Sequence[Change]]] = deque()

    def __len__(self) -> int:
        """Committed cursors."""
        return len(self._table)

    async def start(self) -> None:
        """Read what is committed, and forget the cursors of streams that are no more."""
        try:
            self._partition = self._streams.partition(CURSORS_STREAM.name)
        except RefusedError:
            return  # no consumer has committed one yet
        except UnavailableError as error:  # the streams are served all the same
            self._problem = str(error)
            return
        changes = await asyncio.to_thread(_read_changes, self._partition.log)
        self._table.append(changes)
        self._table.commit(changes)
        await self.forget_stale()

    def get(self, key: CursorKey) -> list[dict[str, Any]]:
        """One committed cursor, or none.

        Raises:
            UnavailableError: What is committed cannot be read; so the others.
        """
        self._check_readable()
        self._settle()
        position = self._table.get(key)
        return [] if position is None else [self._describe(key, position)]

    def page(
        self, *, consumer: str | None, stream: str | None, after: CursorKey | None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Committed cursors in order, those of one consumer or stream if named; and if more."""
        self._check_readable()
        self._settle()
        found: list[dict[str, Any]] = []
        if after is None and consumer is not None:
            after = CursorKey(consumer, "", -1)
        for key, position in self._table.walk(after):
            if consumer is not None and key.consumer != consumer:
                break
            if stream is not None and key.stream != stream:
                continue
            if len(found) == CURSORS_PER_ANSWER_MAX:
                return found, True
            found.append(self._describe(key, position))
        return found, False

    async def commit(
        self, wanted: Sequence[tuple[CursorKey, int, str | None]], *, rewind: bool
    ) -> list[dict[str, Any]]:
        """Commit cursors of consumers that are in no group, all of them or none.

        Args:
            wanted: Key, offset, and the stream's incarnation where the consumer knows it.
            rewind: Whether a cursor may go back.

        Raises:
            RefusedError: As `CursorTable.check`; `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`,
                `STREAM_RECREATED`, `OUT_OF_RANGE` beyond the end of the log, `GROUP_ACTIVE`.
            UnavailableError: They may not be durable.
        """

        def changes() -> list[Change]:
            return [self._ungrouped(key, offset, inc) for key, offset, inc in wanted]

        return await self._commit(changes, rewind=rewind)

    async def commit_granted(self, member: str, wanted: Sequence[Granted]) -> list[dict[str, Any]]:
        """Commit positions of partitions that were granted to a member of a group, all or none.

        Where one before got further, the answer says so: the position stays there.

        Raises:
            RefusedError: As `commit`; `FENCED`: the partition was granted to another since.
            UnavailableError: They may not be durable, or the grant is not known here yet.
        """

        def changes() -> list[Change]:
            return [self._granted(member, item) for item in wanted]

        return await self._commit(changes, rewind=False)

    async def _commit(
        self, resolve: Callable[[], list[Change]], *, rewind: bool
    ) -> list[dict[str, Any]]:
        self._check_readable()
        changes = resolve()
        self._table.check(changes, rewind=rewind)
        if self._partition is None:
            await self.make()
            changes = resolve()  # others may have been faster
            self._table.check(changes, rewind=rewind)
        await self._store(changes)
        return [self._describe(key, position) for key, position in changes if position is not None]

    async def delete(self, key: CursorKey) -> bool:
        """Delete a cursor; whether there was one.

        Raises:
            RefusedError: `GROUP_ACTIVE`.
            UnavailableError: It may not be durable.
        """
        self._check_readable()
        self._check_no_group(key)
        present = self._table.appended(key) is not None
        if present:
            await self._delete([key])
        return present

    async def forget_stale(self) -> None:
        """Delete the cursors of streams that are no more, and of those made again since.

        Raises:
            UnavailableError: They are deleted at the next start.
        """
        self._check_readable()
        cursors = self._table.all_appended()
        await self._delete(
            [key for key, position in cursors if not self._is_current(key, position)]
        )

    async def _delete(self, keys: Sequence[CursorKey]) -> None:
        for first in range(0, len(keys), CURSORS_PER_REQUEST_MAX):
            part = keys[first : first + CURSORS_PER_REQUEST_MAX]
            await self._store([(key, None) for key in part])

    async def _store(self, changes: Sequence[Change]) -> None:
        """Write and wait. From the caller's check to `append` nothing else gets a turn."""
        partition = self._partition
        assert partition is not None
        last = partition.store([_message(key, position) for key, position in changes])
        self._table.append(changes)
        self._pending.append((last, changes))
        await partition.wait_committed(last)
        self._settle()

    def _check_readable(self) -> None:
        if self._problem:
            raise UnavailableError(self._problem)

    def _settle(self) -> None:
        """Take note of what is committed, in order; the client may have gone."""
        while self._pending and self._pending[0][0] <= self._committed():
            _, changes = self._pending.popleft()
            self._table.commit(changes)
            self.commits += len(changes)

    def _committed(self) -> int:
        return -1 if self._partition is None else self._partition.high_watermark

    async def make(self) -> None:
        """Make what they are kept in, if that is not there."""
        async with self._making:
            if self._partition is None:
                self._partition, _ = await self._streams.create(CURSORS_STREAM)

    def _ungrouped(self, key: CursorKey, offset: int, incarnation: str | None) -> Change:
        self._check_no_group(key)
        position = self._position(key, offset, incarnation)
        before = self._table.appended(key)
        if before is None or before.incarnation != position.incarnation:
            return key, position
        return key, replace(position, epoch=before.epoch)  # who was fenced stays so

    def _granted(self, member: str, item: Granted) -> Change:
        key = item.key
        position = self._position(key, item.offset, item.incarnation)
        before = self._table.appended(key)
        stored = None
        if before is not None and before.incarnation == position.incarnation:
            stored = GroupPosition(offset=before.offset, epoch=before.epoch)
        now = admit_commit(
            self._groups(key.consumer),
            stored,
            member=member,
            partition=GroupPartition(key.stream, position.incarnation, key.partition),
            commit=GroupPosition(offset=item.offset, epoch=item.epoch),
        )
        return key, replace(position, offset=now.offset, epoch=now.epoch)

    def _check_no_group(self, key: CursorKey) -> None:
        """Refuse to move a cursor under members that read from it on."""
        group = self._groups(key.consumer)
        shares = () if group is None else group.shares
        if any(share.partition.stream == key.stream for share in shares):
            message = f"members of group {key.consumer!r} read {key.stream!r}: stop them first"
            raise RefusedError("GROUP_ACTIVE", message)

    def _position(self, key: CursorKey, offset: int, incarnation: str | None) -> CursorPosition:
        extent = self._streams.extent(key.stream, key.partition)
        present = extent.incarnation
        if incarnation not in (None, present):
            message = f"stream {key.stream!r} was deleted and made again"
            raise RefusedError("STREAM_RECREATED", message, incarnation=present)
        end = extent.end
        if end is not None and offset > end:
            message = f"cursor at offset {offset}: the log of {key.stream!r} ends at {end}"
            raise RefusedError("OUT_OF_RANGE", message, earliest=extent.start, latest=end)
        return CursorPosition(offset, present)

    def _is_current(self, key: CursorKey, position: CursorPosition) -> bool:
        present = self._streams.incarnation(key.stream, key.partition)
        return present == position.incarnation

    def _describe(self, key: CursorKey, position: CursorPosition) -> dict[str, Any]:
        current = self._is_current(key, position)
        return key._asdict() | asdict(position) | {"current": current}


def _message(key: CursorKey, position: CursorPosition | None) -> Message:
    pairs = [("Penstock-Key", key.encode())]
    if position is None:
        pairs.append(("Penstock-Tombstone", b"true"))
    subject = CURSORS_STREAM.name.encode()
    payload = b"" if position is None else position.encode()
    return Message(subject, b"", format_headers(tuple(pairs)), payload)


def _read_changes(log: CommitLog) -> list[Change]:
    """The last change of each cursor; damage is skipped and reported."""
    latest: dict[CursorKey, CursorPosition | None] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            for header, body in log.frames(offset):
                batch = decode_body(body, where=f"{log.directory} offset {header.base_offset}")
                latest |= dict(_changes(batch))
                offset = header.next_offset
        except CorruptFrameError as error:
            _log.error("cursors_lost", error=str(error), meaning="older cursors may count again")
            offset = max(error.next_offset, offset + 1)
    return list(latest.items())


def _changes(batch: Any) -> Iterable[Change]:
    columns = [batch.column(name).to_pylist() for name in ("key", "value")]
    for key, value in zip(*columns, strict=True):
        try:
            yield decode_change(key, value)
        except CorruptError as error:
            _log.error("cursor_record_skipped", error=str(error))
