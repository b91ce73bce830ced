"""Recovery: what a Raft member does with what it finds on its disk.

    row found                                                   action
    A   no segment, no snapshot, no synced mark                 refused, `NO_STATE`: found or join
    B   segments of another node or group                       refused, `OTHER_MEMBER`
    C   temporary files (`*.tmp`)                               removed
    D   last segment: bad bytes that can only be a step which   cut off with the rest of the step
        was never synced: behind the synced mark, no record
        of a later step behind them, and cut short or with
        a sector that was never written
    E   the same of a whole segment (its head is the step)      removed
    F   any other bad bytes                                     opening fails
    G   a missing segment: records' sequence has a gap, the     opening fails
        mark names one that is not there, or none is there
    H   the snapshot that the log names is missing or bad       opening fails
    I   snapshots that the log does not name                    removed
    J   entries that do not follow on each other, or on the     opening fails
        snapshot
    K   a later format version                                  refused, `UNKNOWN_FORMAT`

Where opening fails (`CorruptError`), nothing was changed but by rows C and D, and the member must
not vote or acknowledge: what it had promised is not all there. It cannot repair itself; its group
has everything. Remove it from the group, move its directory away, and let the node join again
under a new name: under the old one, its forgotten votes could be given twice.

A step that was synced can look like row D only if the disk loses a sector that it had reported
durable, in the last step before a power loss that also took the mark back.
"""

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.raft import Entry, HardState, Recovered
from penstock.logd.raft.snapshots import PREFIX, load_snapshot, remove_other_snapshots
from penstock.logd.raft.wal import FILE_NAME as MARK_NAME
from penstock.logd.raft.wal import (
    Mark,
    Record,
    SegmentHead,
    SnapshotMark,
    Truncation,
    decode_record,
    load_mark,
    records_behind,
)
from penstock.logd.storage.disk import Disk, File

SUFFIX: Final = ".wal"
SECTOR_BYTES: Final = 512
REPAIR: Final = (
    "this node must not take part: remove it from its group, move the directory away, and let "
    "it join again under a new name"
)


class Segment(Struct):
    """A file of records.

    Attributes:
        first: Sequence of its first record; its name.
        last_index: The greatest index of an entry in it; 0: none.
    """

    path: Path
    first: int
    last_index: int = 0


class Finding(Struct, frozen=True):
    """One thing recovery found and did, by the letter of its row."""

    row: str
    file: str
    action: str


class Recovery(Struct):
    """State of a member's disk. Call `run` once.

    Attributes:
        recovered: The state for `Raft`.
        segments: Segments in order; the last takes the next records at `size`.
        sequence, step: Those of the last record.
        mark: The snapshot that the log names.
        findings: None after a clean stop.
    """

    directory: Path
    head: SegmentHead
    disk: Disk
    recovered: Recovered = msgspec.field(default_factory=Recovered)
    segments: list[Segment] = msgspec.field(default_factory=list)
    size: int = 0
    sequence: int = 0
    step: int = 0
    mark: SnapshotMark | None = None
    findings: list[Finding] = msgspec.field(default_factory=list)
    _hard_state: HardState = msgspec.field(default_factory=HardState)
    _entries: list[Entry] = msgspec.field(default_factory=list)

    def run(self) -> File:
        """Read everything; the last segment's file, all of it durable.

        Raises:
            CorruptError: Rows F, G, H, J.
            RefusedError: `NO_STATE`, `OTHER_MEMBER`, `UNKNOWN_FORMAT`.
            OSError: The disk failed.
        """
        names = self._names()
        firsts = [int(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX)]
        synced = load_mark(self.directory, self.disk)
        if not firsts or synced.segment > firsts[-1]:
            self._fail("G", self.directory, "a segment of the log is missing")
        for first in firsts:
            self._read(first, synced, last=first == firsts[-1])
        self._load()
        file = self.disk.open(self.segments[-1].path)
        file.sync()  # what a killed process wrote is read, but maybe not durable yet
        self.disk.sync_directory(self.directory)
        return file

    def _names(self) -> list[str]:
        """Return the names in the directory; remove temporary files."""
        exists = self.disk.exists(self.directory)
        names = self.disk.list_directory(self.directory) if exists else []
        for name in [name for name in names if name.endswith(".tmp")]:
            self.disk.unlink(self.directory / name)
            self._note("C", self.directory / name, "temporary file removed")
        names = [name for name in names if not name.endswith(".tmp")]
        if not any(name.endswith(SUFFIX) or name.startswith((PREFIX, MARK_NAME)) for name in names):
            message = f"{self.directory} holds no Raft state; found a group or join one first"
            raise RefusedError("NO_STATE", message)
        return names

    def _read(self, first: int, synced: Mark, *, last: bool) -> None:
        path = segment_path(self.directory, first)
        file = self.disk.open(path)
        data = file.read(0, file.size())
        position, step_begin = 0, 0
        step: list[Record] = []
        if self.segments and first != self.sequence + 1:
            self._fail("G", path, f"begins with record {first}, not {self.sequence + 1}")
        segment = Segment(path, first)
        sequence = first - 1
        while position < len(data):
            record = decode_record(data, position)
            if record is None or not self._fits(record, sequence, step):
                break
            step.append(record)
            sequence, position = record.sequence, record.end
            if record.left == 0:
                self._take(segment, step)
                step, step_begin = [], position
        if step_begin < len(data) or not data:
            bad = max(position, step_begin)
            claimed = synced.size if synced.segment == first else 0
            self._judge(path, data, bad, step_begin, claimed, last=last)
            if step_begin == 0:
                self.disk.unlink(path)
                self._note("E", path, "segment removed that was never synced")
                return
            file.truncate(step_begin)
            self._note("D", path, f"{len(data) - step_begin} bytes of an unfinished step cut off")
        self.segments.append(segment)
        self.size = step_begin

    def _fits(self, record: Record, sequence: int, step: list[Record]) -> bool:
        """Return whether an intact record is the next one."""
        if record.sequence != sequence + 1:
            return False
        if step:
            return record.step == step[-1].step and record.left == step[-1].left - 1
        return record.step == self.step + 1 or self.step == 0

    def _judge(
        self, path: Path, data: bytes, bad: int, step_begin: int, claimed: int, *, last: bool
    ) -> None:
        """Tell a torn step (rows D, E) from damage (row F)."""
        where = f"at byte {bad}"
        if not last:
            self._fail("F", path, f"damaged {where}, in a segment that was finished")
        if bad < claimed:
            self._fail("F", path, f"damaged {where}, below {claimed} that were durable")
        torn = self.step + 1
        if any(record.step > torn for record in records_behind(data, bad)):
            self._fail("F", path, f"damaged {where}, before records that were written later")
        if not _is_cut_short(data, bad) and not _lacks_sector(data, step_begin):
            self._fail("F", path, f"damaged {where}, by something else than a power loss")
        if step_begin == 0 and not self.segments:
            self._fail("F", path, f"damaged {where}, in the only segment's head")

    def _take(self, segment: Segment, step: list[Record]) -> None:
        """Replay a whole step."""
        for record in step:
            self._replay(segment, record)
        self.sequence, self.step = step[-1].sequence, step[-1].step

    def _replay(self, segment: Segment, record: Record) -> None:
        match record.item:
            case SegmentHead() as head:
                if head != self.head:
                    message = f"{segment.path} is of node {head.node} in group {head.group}"
                    raise RefusedError("OTHER_MEMBER", message)
            case HardState() as hard_state:
                self._hard_state = hard_state
            case Entry() as entry:
                if self._entries and entry.index != self._entries[-1].index + 1:
                    after = self._entries[-1].index
                    self._fail("J", segment.path, f"entry {entry.index} follows on {after}")
                self._entries.append(entry)
                segment.last_index = max(segment.last_index, entry.index)
            case Truncation(index):
                self._entries = [entry for entry in self._entries if entry.index < index]
            case SnapshotMark() as mark:
                # As a later segment's head repeats it, without taking the entries behind it.
                self.mark = SnapshotMark(mark.index, mark.term, installed=False)
                if mark.installed:
                    self._entries = []

    def _load(self) -> None:
        """Load the snapshot and join the entries to it."""
        snapshot = None
        if self.mark is not None:
            try:
                snapshot = load_snapshot(self.directory, self.mark.index, self.mark.term, self.disk)
            except CorruptError as error:
                raise CorruptError(f"row H: {error}; {REPAIR}", where=error.where) from error
        base = snapshot.index if snapshot else 0
        entries = tuple(entry for entry in self._entries if entry.index > base)
        if entries and entries[0].index != base + 1:
            text = f"entries begin at {entries[0].index}, the snapshot ends at {base}"
            self._fail("J", self.directory, text)
        for name in remove_other_snapshots(self.directory, snapshot, self.disk):
            self._note("I", self.directory / name, "snapshot removed that the log does not name")
        self.recovered = Recovered(self._hard_state, snapshot, entries)

    def _note(self, row: str, path: Path, action: str) -> None:
        self.findings.append(Finding(row, str(path), action))

    def _fail(self, row: str, path: Path, what: str) -> None:
        raise CorruptError(f"row {row}: {what}; {REPAIR}", where=str(path))


def segment_path(directory: Path, first: int) -> Path:
    """The file of the segment whose first record has this sequence."""
    return directory / f"{first:020}{SUFFIX}"


def _is_cut_short(data: bytes, position: int) -> bool:
    """Return whether the file ends within the record here, so that its last bytes are missing."""
    length = int.from_bytes(data[position + 4 : position + 8], "little")
    return len(data) - position < 37 or position + 37 + length > len(data)


def _lacks_sector(data: bytes, position: int) -> bool:
    """Return whether a sector of the bytes from `position` on is all zeros: never written."""
    while position < len(data):
        end = min((position // SECTOR_BYTES + 1) * SECTOR_BYTES, len(data))
        if not any(data[position:end]):
            return True
        position = end
    return False
