"""A Raft member's durable state: write-ahead log and snapshots in one directory.

    <directory>/%020d.wal                 segments, named after their first record
    <directory>/snapshot-<index>-<term>   at most one, but for a moment
    <directory>/synced                    the synced mark

One thread at a time calls it; every call blocks until what it did is durable. After an `OSError`
nothing is known of the last step: the member must halt (`MustHalt`), and recovery will say.
But for want of space in a write: what was written of the step was never synced, and the next try
begins with what a restart would do, which cuts it off. A failed sync is not tried again, whatever
its error: the page cache may hold what the disk will never have.
"""

from pathlib import Path
from typing import Final, Self

from penstock.logd.errors import NO_SPACE, RefusedError, UnavailableError
from penstock.logd.raft import (
    Entry,
    HardState,
    Membership,
    Persist,
    Recovered,
    Snapshot,
    initial_state,
)
from penstock.logd.raft.node import OutOfSpaceError
from penstock.logd.raft.recovery import Finding, Recovery, Segment, segment_path
from penstock.logd.raft.snapshots import remove_other_snapshots, write_snapshot
from penstock.logd.raft.wal import (
    Item,
    Mark,
    SegmentHead,
    SnapshotMark,
    Truncation,
    encode_mark,
    encode_step,
    open_mark,
)
from penstock.logd.replication.events import NodeId
from penstock.logd.storage.disk import REAL_DISK, Disk, File, make_directories, write_atomically

SEGMENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""A segment that has reached it takes no further step; one step may pass it."""


class RaftStorage:
    """The state of one member of one group. Made by `open`.

    Attributes:
        recovered: State with which `Raft` starts.
        findings: Findings and repairs of the recovery; none after a clean stop.
    """

    def __init__(self, recovery: Recovery, file: File, max_segment_bytes: int) -> None:
        self.recovered = recovery.recovered
        self.findings: tuple[Finding, ...] = tuple(recovery.findings)
        self._directory = recovery.directory
        self._disk = recovery.disk
        self._head = recovery.head
        self._segments = recovery.segments
        self._file = file
        self._size = recovery.size
        self._sequence = recovery.sequence
        self._step = recovery.step
        self._hard_state = self.recovered.hard_state
        self._mark = recovery.mark
        self._last_index = _last_index(self.recovered)
        self._max_segment_bytes = max_segment_bytes
        self._mark_file = open_mark(self._directory, self._disk)
        self._failed = self._out_of_space = self._syncing = False

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        group: str,
        node: NodeId,
        initial_members: Membership | None,
        disk: Disk = REAL_DISK,
    ) -> None:
        """Make the state of a new member, whole or not at all.

        Args:
            directory: Made if it is missing; empty.
            group: The group's identity.
            node: The member's name, never used in this group before.
            initial_members: The first members of a new group, the same for each; None: join one.
            disk: The file system.

        Raises:
            RefusedError: `EXISTS`: the directory holds state.
            OSError: The disk failed.
        """
        make_directories(disk, directory)
        names = [name for name in disk.list_directory(directory) if not name.endswith(".tmp")]
        if names:
            message = f"{directory} is not empty ({names[0]}, ...): it may hold a member's state"
            raise RefusedError("EXISTS", message)
        first = initial_state(initial_members) if initial_members else Recovered()
        items: list[Item] = [SegmentHead(group, node), first.hard_state, *first.entries]
        write_atomically(disk, segment_path(directory, 1), encode_step(items, sequence=1, step=1))

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        group: str,
        node: NodeId,
        disk: Disk = REAL_DISK,
        max_segment_bytes: int = SEGMENT_BYTES_MAX,
    ) -> Self:
        """Recover a member's state (`penstock.logd.raft.recovery`).

        Raises:
            CorruptError: What was promised is not all there: the member must not take part.
            RefusedError: `NO_STATE`, `OTHER_MEMBER`, `UNKNOWN_FORMAT`.
            OSError: The disk failed.
        """
        recovery = Recovery(directory, SegmentHead(group, node), disk)
        file = recovery.run()
        return cls(recovery, file, max_segment_bytes)

    def persist(self, effect: Persist) -> None:
        """Make everything in an effect durable.

        Raises:
            OutOfSpaceError: It is not; the same may be tried again, and nothing else.
            OSError: It is not; nor will anything else be.
            UnavailableError: A call before this one failed.
            CorruptError: What is found on the disk, before the next try, contradicts itself.
        """
        if self._failed and not self._out_of_space:
            raise UnavailableError("an earlier write of the Raft log failed; restart to recover")
        try:
            if self._out_of_space:
                self._recover()
            self._failed, self._out_of_space = True, False
            self._persist(effect)
        except OSError as error:
            self._out_of_space = error.errno in NO_SPACE and not self._syncing
            if self._out_of_space:
                raise OutOfSpaceError(error.errno, error.strerror) from error
            raise
        self._failed = False

    def _persist(self, effect: Persist) -> None:
        if effect.snapshot is not None:
            write_snapshot(self._directory, effect.snapshot, self._disk)
        if self._size >= self._max_segment_bytes:
            self._rotate()
        self._write(self._items(effect))
        if effect.snapshot is not None:
            self._clean_up(effect.snapshot)

    def _recover(self) -> None:
        """Find out what is there, as a restart would."""
        recovery = Recovery(self._directory, self._head, self._disk)
        file = recovery.run()
        self._file.close()
        self._file, self._size = file, recovery.size
        self._segments = recovery.segments
        self._sequence, self._step, self._mark = recovery.sequence, recovery.step, recovery.mark
        self._hard_state = recovery.recovered.hard_state
        self._last_index = _last_index(recovery.recovered)

    def close(self) -> None:
        """Give the files back; everything is durable already."""
        self._file.close()
        self._mark_file.close()

    def _items(self, effect: Persist) -> list[Item]:
        """The records of a step; from here on they count as written."""
        items: list[Item] = []
        if effect.hard_state is not None:
            self._hard_state = effect.hard_state
            items.append(effect.hard_state)
        if effect.snapshot is not None:
            snapshot = effect.snapshot
            items.append(SnapshotMark(snapshot.index, snapshot.term, effect.installed))
            self._mark = SnapshotMark(snapshot.index, snapshot.term, installed=False)
            if effect.installed:
                self._last_index = snapshot.index
        if effect.entries:
            first = effect.entries[0].index
            assert first <= self._last_index + 1, f"entry {first} after {self._last_index}"
            if first <= self._last_index:
                items.append(Truncation(first))
            items.extend(effect.entries)
            self._last_index = effect.entries[-1].index
        return items

    def _write(self, items: list[Item]) -> None:
        data = encode_step(items, sequence=self._sequence + 1, step=self._step + 1)
        self._file.write(self._size, [data])
        self._syncing = True  # stays so if that fails
        self._file.sync()
        self._syncing = False
        self._size += len(data)
        self._sequence += len(items)
        self._step += 1
        segment = self._segments[-1]
        for item in items:
            if isinstance(item, Entry):
                segment.last_index = max(segment.last_index, item.index)
        self._mark_file.write(0, [encode_mark(Mark(segment.first, self._size))])

    def _rotate(self) -> None:
        """Begin a segment that can stand without those before it, but for entries."""
        first = self._sequence + 1
        path = segment_path(self._directory, first)
        file = self._disk.create(path)
        self._disk.sync_directory(self._directory)  # before the mark can name it
        self._file.close()
        self._file, self._size = file, 0
        self._segments.append(Segment(path, first))
        hard_state: HardState = self._hard_state
        self._write([self._head, hard_state, *([self._mark] if self._mark else [])])

    def _clean_up(self, snapshot: Snapshot) -> None:
        """Delete what a durable snapshot stands for, the oldest first, each before the next."""
        remove_other_snapshots(self._directory, snapshot, self._disk)
        while len(self._segments) > 1 and self._segments[0].last_index <= snapshot.index:
            self._disk.unlink(self._segments.pop(0).path)
            self._disk.sync_directory(self._directory)


def _last_index(recovered: Recovered) -> int:
    entries, snapshot = recovered.entries, recovered.snapshot
    return entries[-1].index if entries else snapshot.index if snapshot else 0
