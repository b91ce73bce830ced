"""Recovery: what a log does with what it finds when it is opened.

A *claim* is what an index file says: the log file was synced up to `log size`, and its records end
at `end offset`. A log with a following segment was synced whole before that segment was made.

    row found                                              action
    A   no directory, or no segment in it                  made, first segment at offset 0
    B   log size and end are exactly what is claimed       trusted; checked when first read
    S   every segment as B, and the synced mark says that  as B, and known to be durable: nothing
        the log was closed where the last one ends         is synced, and no file is kept open
    Q   last segment: longer than a sound index says       trusted so far; scanned from there on
    C   temporary files (`*.tmp`)                          removed
    D   index files without a log file                     removed
    E   index missing, short, damaged, foreign, or stale   log scanned, index rebuilt
        or flagged as that of a damaged log
    F   last segment: bad bytes at or after the claimed    cut off (torn tail)
        size, no sound frame after them
    G   last segment: bad bytes at or after the claimed    copied to `<segment>.<position>.torn`,
        size, some of them sectors never written, and      cut off (a group of writes torn by a
        sound frames after them                            power loss)
    H   last segment: other bad bytes                      kept, reported, never served; a new
                                                           segment takes appends
    I   earlier segment: bad bytes anywhere                kept, reported, never served
    J   earlier segment ends before the next one begins    reported
    K   earlier segment ends after the next one begins     opening refused
    L   last segment empty                                 it takes appends
    M   sound frame or index of a later format version     opening refused, logs unchanged
    N   swap file, sound (of compaction, or with damage    takes the place of what it replaces
        filled from a replica)
    O   swap file that is damaged, what it was to          removed
        replace still whole
    P   swap file that is damaged, what it replaces not    takes its place; its damage is row I;
        whole any more                                     what was left is kept as `*.replaced`
    R   reset file                                         everything removed; an empty segment
                                                           begins at the offset in its name

Rows H, I and J are damage: records are lost unless a replica or a backup has them, and readers are
told which. Nothing is ever removed but torn tails, temporary files, orphaned index files, what a
sound rewritten segment stands for (`penstock.logd.storage.swap`), and what a log held that was
reset on purpose (`penstock.logd.storage.swap`). The claims come from index files
(`penstock.logd.storage.index`) and from the synced mark (`penstock.logd.storage.checkpoint`),
whichever claims more.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.logd.errors import CorruptError
from penstock.logd.format.frame import NO_TIMESTAMP
from penstock.logd.storage.checkpoint import load_mark
from penstock.logd.storage.disk import Disk, File, make_directories, write_atomically
from penstock.logd.storage.index import Claim, SparseIndex, decode_index, empty_claim
from penstock.logd.storage.scan import Damage, Found, FrameReader, has_lost_sector, scanner, walk
from penstock.logd.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from penstock.logd.storage.swap import Swap, find_resets, find_swaps, is_sound, is_whole


class IndexRebuild:
    """A segment's index, made again frame by frame, or from where a sound one ends.

    Attributes:
        position: Position in the log file to begin at.
        end_offset: Offset after the last accepted frame.
    """

    def __init__(
        self,
        base_offset: int,
        interval_bytes: int,
        index: SparseIndex | None = None,
        claim: Claim | None = None,
    ) -> None:
        claim = claim or empty_claim(base_offset)
        self.position, self.end_offset = claim.log_size, claim.end_offset
        self._base_offset = base_offset
        self._index = index or SparseIndex(interval_bytes)
        self._unchecked = len(self._index)
        if not self._unchecked:
            self._index.offer(base_offset, 0, NO_TIMESTAMP)  # also where damage comes first
        self._max_timestamp_ns = claim.max_timestamp_ns
        self._damaged = False
        self._skipped = False

    def take(self, found: Found) -> None:
        """Add a sound frame; the first after damage gets an entry, to start behind it."""
        header = found.header
        self._index.offer(
            header.base_offset, found.position, self._max_timestamp_ns, force=self._skipped
        )
        self._skipped = False
        self._max_timestamp_ns = max(self._max_timestamp_ns, header.max_timestamp_ns)
        self.end_offset = header.next_offset

    def skip(self, damage: Damage) -> None:
        """Pass over damage; its offsets stay used."""
        self._damaged = self._skipped = True
        self.end_offset = max(self.end_offset, damage.next_offset)

    def segment(self, directory: Path, size: int, *, disk: Disk) -> Segment:
        """The segment of everything taken and skipped."""
        claim = Claim(
            base_offset=self._base_offset,
            end_offset=self.end_offset,
            log_size=size,
            max_timestamp_ns=self._max_timestamp_ns,
            damaged=self._damaged,
        )
        unchecked = len(self._index) if self._damaged else self._unchecked
        return Segment(directory, self._index, claim, disk=disk, unchecked=unchecked)


TEMPORARY_SUFFIX: Final = ".tmp"
_NAME_DIGITS: Final = 20
_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)

Observe = Callable[[FrameReader, Found], None]


class Finding(Struct, frozen=True):
    """One thing recovery found and did.

    Attributes:
        row: Letter of the recovery table.
        file: Path.
        position: Byte in the file where it begins.
        offset: First offset that it touches.
        next_offset: First offset after it.
        action: Repair, in words.
    """

    row: str
    file: str
    position: int
    offset: int
    next_offset: int
    action: str


class RecoveryReport(Struct):
    """Findings and repairs of opening a log.

    Attributes:
        findings: Findings in the order of the files; none for a log that was closed cleanly.
        bytes_scanned: Bytes of log files read, for want of a trusted claim.
        bytes_truncated: Bytes of torn tails.
    """

    findings: list[Finding] = msgspec.field(default_factory=list)
    bytes_scanned: int = 0
    bytes_truncated: int = 0

    @property
    def clean(self) -> bool:
        """True if nothing was found that a clean shutdown would not leave."""
        return not self.findings

    @property
    def damages(self) -> list[Finding]:
        """Records that are lost unless a replica or a backup has them."""
        return [finding for finding in self.findings if finding.row in "HIJ"]


class Recovery:
    """One opening of a log's directory. Call `run` or `survey` once.

    Args:
        directory: Directory of the log.
        interval_bytes: Interval of the indexes that are rebuilt.
        disk: The file system.
        observe: Called with every sound frame; no index then spares a segment its scan.

    Attributes:
        report: Findings and repairs.
        closed: Whether the log was closed cleanly, as `run` found (row S).
    """

    def __init__(
        self,
        directory: Path,
        *,
        interval_bytes: int,
        disk: Disk,
        observe: Observe | None = None,
    ) -> None:
        self.report = RecoveryReport()
        self.closed = False
        self._directory = directory
        self._interval_bytes = interval_bytes
        self._disk = disk
        self._observe = observe
        self._names: frozenset[str] = frozenset()

    def run(self) -> tuple[list[Segment], File | None]:
        """The segments in order, the last of them for appends, and that one's file if it is open.

        Everything they hold is durable when this returns.

        Raises:
            CorruptError: Segments overlap (row K).
            RefusedError: `UNKNOWN_FORMAT` (row M).
            OSError: The disk failed.
        """
        make_directories(self._disk, self._directory)
        segments = self.survey()
        if segments and self._was_closed(segments[-1]):
            self.closed = True
            return segments, None
        if segments:
            file = segments[-1].pin()
            file.sync()
            self._disk.sync_directory(self._directory)
            if not segments[-1].damaged:
                return segments, file
            segments[-1].save_index()
        base = segments[-1].end_offset if segments else 0
        segment, file = Segment.create(
            self._directory, base, interval_bytes=self._interval_bytes, disk=self._disk
        )
        return [*segments, segment], file

    def survey(self) -> list[Segment]:
        """The segments in order, tidied and recovered; none is made for appends, nothing is synced.

        Raises:
            CorruptError: Segments overlap (row K).
            RefusedError: `UNKNOWN_FORMAT` (row M).
            OSError: The disk failed.
        """
        bases = self._tidy()
        segments: list[Segment] = []
        for base, next_base in zip(bases, [*bases[1:], None], strict=False):
            segments.append(self._segment(base, next_base))
        return segments

    def _was_closed(self, last: Segment) -> bool:
        """Return whether nothing has to be synced, for the log was closed cleanly (row S)."""
        if not self.report.clean or not last.index_saved:
            return False
        mark = load_mark(self._directory, self._disk)
        if mark is None or not mark[1]:
            return False
        claim, reached = mark[0], (last.base_offset, last.end_offset, last.size)
        return reached == (claim.base_offset, claim.end_offset, claim.log_size)

    def _tidy(self) -> list[int]:
        """Remove leftovers; the base offsets of what is there."""
        names = self._disk.list_directory(self._directory)
        for reset in find_resets(self._directory, names):
            reset.complete(self._disk, interval_bytes=self._interval_bytes)
            action = f"reset completed: the log is empty and begins at offset {reset.start}"
            found = Finding("R", str(reset.path), 0, reset.start, reset.start, action)
            self.report.findings.append(found)
            names = self._disk.list_directory(self._directory)
        for swap in find_swaps(self._directory, names):
            self._settle(swap, bases_of(names))
            names = self._disk.list_directory(self._directory)
        bases = bases_of(names)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self._remove("C", name, "temporary file removed")
        for name in filter(_is_index, names):
            for suffix in _INDEX_SUFFIXES:
                base = _base_offset(name, suffix)
                if base >= 0 and base not in bases:
                    self._remove("D", name, "index without a log removed")
        self._names = frozenset(names)
        return bases

    def _settle(self, swap: Swap, bases: list[int]) -> None:
        """Complete a swap that was interrupted, or undo it."""
        sound = is_sound(swap, self._disk)
        if not sound and is_whole(swap, self._disk, bases):
            self._remove("O", swap.path.name, "damaged copy removed; what it replaces is whole")
            return
        if not sound:
            swap.set_aside(self._disk, bases)
        swap.complete(self._disk, bases)
        row, what = ("N", "a rewritten") if sound else ("P", "a damaged rewritten")
        action = f"{what} segment took the place of offsets {swap.base_offset} to"
        self.report.findings.append(
            Finding(
                row,
                str(swap.path),
                0,
                swap.base_offset,
                swap.base_offset if sound else swap.end_offset,
                f"{action} {swap.end_offset - 1}",
            )
        )

    def _remove(self, row: str, name: str, action: str) -> None:
        path = self._directory / name
        self._disk.unlink(path)
        self.report.findings.append(Finding(row, str(path), 0, 0, 0, action))

    def _segment(self, base: int, next_base: int | None) -> Segment:
        path = segment_path(self._directory, base)
        file = self._disk.open(path)
        size = file.size()
        index, claim = self._load_index(base)
        fits = claim.log_size == size and next_base in (None, claim.end_offset)
        trusted = index is not None and fits and not claim.damaged
        if index is not None and trusted and self._observe is None:
            return Segment(
                self._directory, index, claim, disk=self._disk, unchecked=len(index), saved=True
            )
        if next_base is None and index is not None and not claim.damaged and claim.log_size < size:
            self._note("Q", path, _reached(claim), "index of an earlier state: the rest was read")
            if self._observe is None:
                rebuild = IndexRebuild(base, self._interval_bytes, index, claim)
                return self._rebuild_last(path, file, self._strongest(claim), rebuild)
        elif not trusted and (size or next_base is not None):
            self._note("E", path, _nothing_at(base), "no index to trust: rebuilt from the log")
        if next_base is None:
            rebuild = IndexRebuild(base, self._interval_bytes)
            return self._rebuild_last(path, file, self._strongest(claim), rebuild)
        segment = self._rebuild_sealed(path, file, base, next_base)
        if not trusted:
            segment.save_index()
        return segment

    def _load_index(self, base: int) -> tuple[SparseIndex | None, Claim]:
        data = []
        stem = f"{base:0{_NAME_DIGITS}d}"
        for suffix in _INDEX_SUFFIXES:
            if stem + suffix not in self._names:
                return None, empty_claim(base)
            data.append(self._disk.read(f"{self._directory}/{stem}{suffix}") or b"")
        try:
            index, claim = decode_index(
                data[0], data[1], interval_bytes=self._interval_bytes, where=stem
            )
        except CorruptError:
            return None, empty_claim(base)
        if claim.base_offset != base:
            return None, empty_claim(base)
        return index, claim

    def _strongest(self, claim: Claim) -> Claim:
        mark, _ = load_mark(self._directory, self._disk) or (claim, False)
        if mark.base_offset == claim.base_offset and mark.log_size > claim.log_size:
            return mark
        return claim

    def _rebuild_sealed(self, path: Path, file: File, base: int, next_base: int) -> Segment:
        """Scan a segment that was synced whole: whatever is bad in it is damage (rows I, J, K)."""
        size = file.size()
        rebuild = IndexRebuild(base, self._interval_bytes)
        reader = scanner(file, end=size, name=str(path))
        for item in walk(reader, 0, base, end_offset=next_base, deep=True):
            if isinstance(item, Found):
                self._take(reader, rebuild, item)
            elif item.offset == item.next_offset and item.end == reader.end:
                self._note("I", path, item, "bytes behind the last record: kept, not served")
                size = item.position
            else:
                rebuild.skip(item)
                row = "I" if item.end > item.position else "J"
                self._note(row, path, item, f"{item.reason}: kept, not served")
        self.report.bytes_scanned += reader.end
        if rebuild.end_offset > next_base:
            message = f"ends at offset {rebuild.end_offset}, the next begins at {next_base}"
            raise CorruptError(f"segment {message}", where=str(path))
        return rebuild.segment(self._directory, size, disk=self._disk)

    def _rebuild_last(
        self, path: Path, file: File, claim: Claim, rebuild: IndexRebuild
    ) -> Segment:  # fmt: skip
        """Scan the rest of the last segment: tell torn writes (rows F, G) from damage (row H)."""
        size, begin = file.size(), rebuild.position
        reader = scanner(file, end=size, name=str(path))
        pending: list[Damage] = []
        torn: tuple[str, Damage] | None = None
        start = rebuild.end_offset
        walked = walk(reader, begin, start, end_offset=claim.end_offset, deep=True)
        for item in walked:
            if isinstance(item, Damage):
                pending.append(item)
                continue
            unsynced = [damage for damage in pending if damage.position >= claim.log_size]
            lost = [damage for damage in unsynced if has_lost_sector(reader, damage)]
            if lost:
                torn = ("G", unsynced[0])
                break
            self._note_damages(path, rebuild, pending)
            pending = []
            self._take(reader, rebuild, item)
        else:
            unsynced = [damage for damage in pending if damage.position >= claim.log_size]
            torn = ("F", unsynced[0]) if unsynced else None
        self._note_damages(path, rebuild, [d for d in pending if d.position < claim.log_size])
        self.report.bytes_scanned += size - begin
        if torn is not None:
            self._cut(path, file, *torn)
            size = torn[1].position
        return rebuild.segment(self._directory, size, disk=self._disk)

    def _take(self, reader: FrameReader, rebuild: IndexRebuild, found: Found) -> None:
        rebuild.take(found)
        if self._observe is not None:
            self._observe(reader, found)

    def _note_damages(self, path: Path, rebuild: IndexRebuild, damages: list[Damage]) -> None:
        for damage in damages:
            rebuild.skip(damage)
            self._note("H", path, damage, f"{damage.reason}: kept, not served")

    def _cut(self, path: Path, file: File, row: str, damage: Damage) -> None:
        """Cut a torn tail off; with sound frames in it, keep a copy for people to look at."""
        length = file.size() - damage.position
        action = f"torn tail of {length} bytes cut off"
        if row == "G":
            copy = path.with_suffix(f".{damage.position}.torn")
            write_atomically(self._disk, copy, file.read(damage.position, length))
            action += f", copied to {copy.name}"
        file.truncate(damage.position)
        self.report.bytes_truncated += length
        self._note(row, path, damage, action)

    def _note(self, row: str, path: Path, damage: Damage, action: str) -> None:
        self.report.findings.append(
            Finding(row, str(path), damage.position, damage.offset, damage.next_offset, action)
        )


def _nothing_at(offset: int) -> Damage:
    return Damage(0, 0, offset, offset, "")


def _reached(claim: Claim) -> Damage:
    return Damage(claim.log_size, claim.log_size, claim.end_offset, claim.end_offset, "")


def bases_of(names: list[str]) -> list[int]:
    """The base offsets of the log files among a directory's names."""
    logs = [name for name in names if name.endswith(LOG_SUFFIX)]  # most names are no log's
    return sorted(base for name in logs if (base := _base_offset(name, LOG_SUFFIX)) >= 0)


def _is_index(name: str) -> bool:
    return name.endswith(_INDEX_SUFFIXES)


def _base_offset(name: str, suffix: str) -> int:
    """The base offset in a segment file's name; -1 if it is not one."""
    if not name.endswith(suffix):
        return -1
    stem = name.removesuffix(suffix)
    ours = len(stem) == _NAME_DIGITS and stem.isascii()
    return int(stem) if ours and stem.isdigit() else -1
