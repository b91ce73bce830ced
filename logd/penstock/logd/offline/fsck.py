"""Check and repair of a log's directory that no process uses: what is wrong, what is put right.

Recovery runs over a shadow of the directory and reads every frame, so what is reported is what
opening the log would find (the letters are those of `penstock.logd.storage.recovery`). On top of it
come the checks that recovery has no need of: bodies decode, epochs do not fall, the small files
beside the segments are sound, and the segment that the synced mark speaks of is there.

Repair: what can safely be put right in a log's directory while no process uses it.

Five things, each decided by an inspection:

- temporary files are removed (row C), and damaged copies of segments that are whole (row O);
- a rewritten segment that is sound takes the place of those that it stands for (row N);
- a torn tail is cut off (row F) when a sound synced mark shows that it was never durable, after a
  copy of it has been set aside as `<segment>.<position>.torn`;
- index files that are missing or wrong are made again (row E), the log file synced before, for an
  index is also a claim that it was;
- an epoch file that is damaged, missing or empty is made again from the frames.

Everything else stays as it is: damage (rows H to K and P), index files without a log (row D), and
writes torn by a power loss with sound frames among them (row G), which opening the log decides.

A data directory without its daemon: what is in it, whether it is sound, and its repair.

`penstock.logd.cluster.directories` says how a data directory is laid out,
`penstock.logd.cluster.import_standalone` what 0.1.0 had besides, and those of
`penstock.logd.cluster`, `holdings` and `node`, that of a cluster's node: there the node's part of
the Raft log says which streams there are. A partition's directory may stand alone too, as in a
backup.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from penstock.base.lazy_module import LazyModule
from penstock.logd.directories import DATA_FORMAT
from penstock.logd.encryption.cipher import decrypted
from penstock.logd.encryption.key_file import InspectedKeys, Masters
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.format.batch import SCHEMA_VERSION, decode_body
from penstock.logd.format.frame import FrameHeader
from penstock.logd.metadata.commands import decode_command
from penstock.logd.metadata.state import ClusterState
from penstock.logd.metadata.streams import Metadata
from penstock.logd.offline.overlay_disk import OverlayDisk
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.purge import PURGED_NAME, PurgePoint
from penstock.logd.raft import EntryKind
from penstock.logd.raft.recovery import Recovery as RaftRecovery
from penstock.logd.raft.wal import SegmentHead
from penstock.logd.replication.events import NodeId
from penstock.logd.storage import Checkpoint, DirectoryLock
from penstock.logd.storage.checkpoint import (
    EPOCHS_NAME,
    KEYS_COPY_NAME,
    KEYS_NAME,
    MARK_NAME,
    MEMORY_NAME,
    EpochFile,
    load_mark,
    save_epochs,
)
from penstock.logd.storage.disk import FILE_NAME as LOCK_NAME
from penstock.logd.storage.disk import REAL_DISK, write_atomically
from penstock.logd.storage.index import Claim
from penstock.logd.storage.log import LogConfig
from penstock.logd.storage.recovery import TEMPORARY_SUFFIX, Finding, Recovery, bases_of
from penstock.logd.storage.scan import Found, FrameReader
from penstock.logd.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from penstock.logd.storage.swap import REPLACED_SUFFIX, SWAP_SUFFIX, find_swaps
from penstock.service.data_format import DataFormatError

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

TORN_SUFFIX: Final = ".torn"

_LEFTOVERS: Final = {
    "C": ("temporary file", "nothing to readers: a write that did not end"),
    "D": ("index without a log file", "nothing to readers by itself"),
    "E": ("no index to trust", "nothing to readers: it is made again from the log"),
    "Q": ("index of an earlier state", "nothing to readers: the next start reads what came after"),
    "F": ("torn tail", "nothing to readers: nothing here is known to have been durable"),
    "G": (
        "writes torn by a power loss, with sound frames among them",
        "nothing here is known to have been durable; the next start sets a copy aside and cuts",
    ),
    "N": ("rewritten segment not in its place yet", "nothing to readers: the next start puts it"),
    "O": ("damaged copy of segments that are whole", "nothing to readers"),
    "R": (
        "reset that did not end",
        "the log is to be empty: the next start removes what is left of it",
    ),
}


class Severity(StrEnum):
    """Severity of a problem."""

    NOTE = "note"
    """Worth knowing, nothing is wrong."""
    LEFTOVER = "leftover"
    """A crash left it; the next start corrects it, and no record is lost."""
    DAMAGE = "damage"
    """Records cannot be read, or logd does not start, or would go wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing an inspection found.

    Attributes:
        row: Letter of the recovery table; empty where recovery does not look.
        position: Byte in the file.
        offset: First offset that it touches.
        next_offset: First offset after it; equal to `offset` where no record is touched.
        meaning: Meaning for readers.
    """

    severity: Severity
    file: str
    reason: str
    meaning: str
    row: str = ""
    position: int = 0
    offset: int = 0
    next_offset: int = 0


@dataclass(slots=True)
class PartitionReport:
    """Content of a log's directory.

    Attributes:
        bytes: Bytes of the log files, damage included.
        start_offset: First offset that is kept.
        end_offset: Offset after the last record.
    """

    directory: Path
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`sound`, `unclean` when only leftovers of a crash were found, or `damaged`."""
        return verdict_of(self.problems)


def verdict_of(problems: list[Problem]) -> str:
    """The verdict of the worst problem."""
    found = {problem.severity for problem in problems}
    if Severity.DAMAGE in found:
        return "damaged"
    return "unclean" if Severity.LEFTOVER in found else "sound"


class Inspection:
    """One look at a log's directory. Call `run` once.

    Args:
        directory: Directory of the log; it exists.
        progress: Called with numbers of bytes read.
        masters: Master keys, for a log that is encrypted.

    Attributes:
        report: Report of the inspection.
        findings: Findings and repairs of a recovery.
        shadow: The directory as recovery would leave it.
        segments: Segments after a recovery; none when it would refuse to open the log.
        epochs: (epoch, start offset) as the frames show them.
        epochs_fault: Fault of the epoch file's bytes; empty: there is none, or no file.
        epochs_sound: Whether the epoch file can be read, and is not empty.
        marked: Whether the synced mark is sound and speaks of a segment that is there.
    """

    def __init__(
        self,
        directory: Path,
        *,
        progress: Callable[[int], None] = lambda _: None,
        masters: Masters | None = None,
    ) -> None:
        self.report = PartitionReport(directory)
        self.findings: list[Finding] = []
        self.shadow = OverlayDisk()
        self.segments: list[Segment] = []
        self.marked = False
        self._keys = InspectedKeys(directory, masters, self.shadow)
        self._directory = directory
        self._progress = progress
        self._epochs: EpochFile | None = None
        self.epochs: list[tuple[int, int]] = []
        self.epochs_sound = False
        self.epochs_fault = ""
        self._epoch = 0
        self._rewritten = 0
        self._epochs_told: set[tuple[int, int]] = set()
        self._keyless: tuple[int, int] | None = None

    def run(self) -> PartitionReport:
        """Look at everything.

        Raises:
            FileNotFoundError: A file went away meanwhile, as under a running logd.
            OSError: A file cannot be read.
        """
        # Before the segments: logd may add some.
        mark, _ = load_mark(self._directory, self.shadow) or (None, False)
        logs = sorted(self._directory.glob(f"*{LOG_SUFFIX}"))
        self.report.segments = len(logs)
        self.report.bytes = sum(path.stat().st_size for path in logs)
        self._check_small_files()
        if self._keys.fault:
            self._report(self._directory / KEYS_NAME, self._keys.fault, self._keys.meaning)
        elif self._keys.note:
            meaning = "each frame's CRCs were checked; what is in them was not looked at"
            self._report(
                self._directory / KEYS_NAME, self._keys.note, meaning, severity=Severity.NOTE
            )
        self._survey()
        self._report_keyless()
        if self.epochs_fault or (not self.epochs_sound and self.epochs):
            reason = self.epochs_fault or "the file is missing or empty"
            reason += f"; frames are of epochs up to {self._epoch}"
            meaning = "nothing to readers: the next start makes it again from the frames"
            path = self._directory / EPOCHS_NAME
            self._report(path, reason, meaning, severity=Severity.LEFTOVER)
        if self.segments and self._keys.readable:
            self._check_memory()
        self._check_mark(mark)
        self._note_copies()
        return self.report

    def _check_small_files(self) -> None:
        epochs = self._directory / EPOCHS_NAME
        try:
            self._epochs = EpochFile(epochs, disk=self.shadow)
            self.epochs_sound = bool(self._epochs.entries)
        except CorruptError as error:
            self.epochs_fault = str(error)
        except RefusedError as error:
            self.epochs_sound = True  # of a later version
            self._report(epochs, str(error), "logd does not start; frames are as they were")

    def _check_memory(self) -> None:
        """After the frames: of a log that is written to, it is then not older than they are."""
        path, start = self._directory / MEMORY_NAME, self.report.start_offset
        problem, memory = "the file is missing", None
        try:
            memory = ProducerSnapshot.load(
                self._directory, disk=self.shadow, cipher=self._keys.cipher
            )
        except (CorruptError, RefusedError) as error:
            problem = str(error)
        if memory is not None and not start <= memory.offset <= self.report.end_offset:
            problem, memory = f"the file is of offset {memory.offset}, not of this log", None
        lost = start if memory is None else 0
        if self._rewritten > (start if memory is None else memory.offset):
            lost = self._rewritten
            problem = problem if memory is None else f"the file is of offset {memory.offset}"
        if lost:
            reason = f"{problem}; below offset {lost} records were removed or rewritten"
            meaning = "nothing to readers; repeats may be stored again, producers be unknown"
            self._report(path, reason, meaning)
        elif memory is None and path.exists():
            meaning = "nothing to readers: the next start reads the whole log instead"
            self._report(path, problem, meaning, severity=Severity.LEFTOVER)
        elif memory is not None and memory.lost:
            reason = f"the dedup state below offset {memory.lost} was lost once"
            self._report(path, reason, "nothing to readers", severity=Severity.NOTE)

    def _survey(self) -> None:
        recovery = Recovery(
            self._directory,
            interval_bytes=LogConfig().index_interval_bytes,
            disk=self.shadow,
            observe=self._observe,
        )
        try:
            self.segments = recovery.survey()
        except CorruptError as error:
            self._report(Path(error.where), str(error), "logd does not open this log", row="K")
        except RefusedError as error:
            meaning = "this version does not open the log; use the one that wrote it"
            self._report(Path(str(error.detail["file"])), str(error), meaning, row="M")
        self.findings = recovery.report.findings
        self.report.problems += map(self._problem, self.findings)
        if self.segments:
            self.report.start_offset = self.segments[0].base_offset
            self.report.end_offset = self.segments[-1].end_offset
        if self.report.start_offset:
            reason = f"the log begins at offset {self.report.start_offset}"
            meaning = "earlier records were removed by retention, or their segments are missing"
            first = segment_path(self._directory, self.report.start_offset)
            self._report(first, reason, meaning, severity=Severity.NOTE)

    def _problem(self, finding: Finding) -> Problem:
        severity = Severity.LEFTOVER if finding.row in _LEFTOVERS else Severity.DAMAGE
        reason, meaning = _LEFTOVERS.get(finding.row, (finding.action, ""))
        if finding.row in "FG":
            reason += f" of {Path(finding.file).stat().st_size - finding.position} bytes"
        return Problem(
            severity=severity,
            row=finding.row,
            file=finding.file,
            position=finding.position,
            offset=finding.offset,
            next_offset=finding.next_offset,
            reason=reason,
            meaning=meaning or _lost(finding.offset, finding.next_offset),
        )

    def _check_mark(self, mark: Claim | None) -> None:
        """A mark outlives the segment it speaks of only when that was lost."""
        path = self._directory / MARK_NAME
        if mark is None:
            reason = "the mark is damaged" if path.exists() else "there is no mark"
            meaning = "nothing to readers, but a torn tail cannot be told from damage"
            if self.report.segments:
                self._report(path, reason, meaning, severity=Severity.LEFTOVER)
            return
        last = self.segments[-1].base_offset if self.segments else -1
        self.marked = mark.base_offset <= last
        refused = bool(self.report.segments) and not self.segments
        if last < mark.base_offset < mark.end_offset and not refused:
            self._report(
                segment_path(self._directory, mark.base_offset),
                f"the segment was synced up to offset {mark.end_offset}, and is missing",
                f"{_lost(mark.base_offset, mark.end_offset)}; logd would give them out again",
                offset=mark.base_offset,
                next_offset=mark.end_offset,
            )

    def _note_copies(self) -> None:
        for path in sorted(self._directory.glob(f"*{TORN_SUFFIX}")):
            meaning = "nothing to readers; remove it when nobody needs it"
            self._report(path, "copy of a torn tail", meaning, severity=Severity.NOTE)
        for path in sorted(self._directory.glob(f"*{REPLACED_SUFFIX}")):
            reason = "what was left of a segment that a damaged rewriting took the place of"
            meaning = "nothing to readers; it may hold what is damaged: keep it until then"
            self._report(path, reason, meaning, severity=Severity.NOTE)

    def _observe(self, reader: FrameReader, found: Found) -> None:
        header = found.header
        self.report.frames += 1
        self.report.records += header.record_count
        self._progress(header.frame_length)
        if header.compacted:
            self._rewritten = header.next_offset
        self._check_epoch(reader, found)
        if header.schema_version != SCHEMA_VERSION:
            reason = f"schema version {header.schema_version} is not known"
        elif header.encrypted and self._keys.readable and self._keys.cipher is None:
            first = header.base_offset if self._keyless is None else self._keyless[0]
            self._keyless, reason = (first, header.next_offset), ""
        elif self._keys.readable:
            reason = self._wrong_body(reader, found)
        else:
            reason = ""
        if reason:
            self._report_frame(reader, found, reason, "readers are given the frame, and refuse it")

    def _report_keyless(self) -> None:
        """Once for the log: without its keys no frame can be read, and each is as any other."""
        if self._keyless is not None:
            first, after = self._keyless
            path = self._directory / KEYS_NAME
            reason = f"the log's keys are missing ({KEYS_NAME}, {KEYS_COPY_NAME})"
            meaning = f"logd does not open this log; {_lost(first, after)}"
            self._report(path, reason, meaning, offset=first, next_offset=after)

    def _wrong_body(self, reader: FrameReader, found: Found) -> str:
        """Return what is wrong with a body whose CRC holds; empty: nothing."""
        segment = int(Path(reader.name).stem)
        try:
            frame = decrypted(self._keys.cipher, found.header, reader.body_of(found), segment)
        except CorruptError as error:
            return str(error)
        return _wrong_rows(*frame)

    def _check_epoch(self, reader: FrameReader, found: Found) -> None:
        epoch = found.header.leader_epoch
        known = epoch
        if self._epochs is not None and self._epochs.entries:
            known = self._epochs.epoch_at(found.header.base_offset)
        if epoch > (self.epochs[-1][0] if self.epochs else 0):
            self.epochs.append((epoch, found.header.base_offset))
        expected = self._epoch = max(self._epoch, known)
        if epoch != expected and (epoch, expected) not in self._epochs_told:
            self._epochs_told.add((epoch, expected))
            reason = f"leader epoch {epoch} where {expected} was expected"
            meaning = "readers are not hindered; replicas would not agree where to go on"
            self._report_frame(reader, found, reason, meaning)

    def _report_frame(self, reader: FrameReader, found: Found, reason: str, meaning: str) -> None:
        self._report(
            Path(reader.name),
            reason,
            meaning,
            position=found.position,
            offset=found.header.base_offset,
            next_offset=found.header.next_offset,
        )

    def _report(
        self,
        file: Path,
        reason: str,
        meaning: str,
        *,
        severity: Severity = Severity.DAMAGE,
        **place: Any,
    ) -> None:
        self.report.problems.append(
            Problem(
                severity=severity,
                file=str(file),
                reason=reason.removeprefix(f"{file}: "),
                meaning=meaning,
                **place,
            )
        )


def _lost(offset: int, next_offset: int) -> str:
    if offset == next_offset:
        return "nothing to readers: no record is missing"
    return f"offsets {offset} to {next_offset - 1} cannot be read"


def _wrong_rows(header: FrameHeader, body: bytes) -> str:
    """Return what is wrong with a body whose CRC holds; empty: nothing."""
    try:
        batch = decode_body(body)
    except CorruptError as error:
        return str(error)
    if batch.num_rows != header.record_count:
        return f"the body has {batch.num_rows} rows, the header says {header.record_count}"
    if batch.num_rows == 0:
        return ""
    deltas = batch.column("offset_delta")
    rising = pc.all(pc.less(deltas.slice(0, len(deltas) - 1), deltas.slice(1)), min_count=0)
    first, last = deltas[0].as_py(), deltas[len(deltas) - 1].as_py()
    whole = last == header.last_offset_delta or (
        header.compacted and last < header.last_offset_delta
    )
    if not rising.as_py() or first < 0 or not whole:
        return f"the rows' offset deltas do not rise to {header.last_offset_delta}"
    return ""


class RepairAction(StrEnum):
    """Change that a repair makes to a file."""

    REMOVE = "remove"
    SWAP = "swap"
    CUT = "cut"
    INDEX = "index"
    EPOCHS = "epochs"


@dataclass(frozen=True, slots=True)
class Action:
    """One change that a repair makes.

    Attributes:
        position: Position at which a log file is truncated.
        data: Bytes of the new index file.
        epochs: (epoch, start offset) of the new epoch file.
    """

    deed: RepairAction
    path: Path
    position: int = 0
    data: bytes = b""
    epochs: tuple[tuple[int, int], ...] = ()

    @override
    def __str__(self) -> str:
        """The change, for people."""
        match self.deed:
            case RepairAction.REMOVE:
                return f"{self.path}: {_kind(self.path)} removed"
            case RepairAction.SWAP:
                return f"{self.path}: put in the place of the segments it stands for"
            case RepairAction.CUT:
                return f"{self.path}: cut at {self.position}, the tail copied to {_copy(self).name}"
            case RepairAction.INDEX:
                return f"{self.path}: index made again from the log"
            case RepairAction.EPOCHS:
                latest = self.epochs[-1][0] if self.epochs else 0
                return f"{self.path}: made again from the log, whose last epoch is {latest}"


def plan(inspection: Inspection) -> list[Action]:
    """The changes to make, in order; none to a log that recovery would refuse to open."""
    if not inspection.segments:
        return []
    actions = [
        Action(RepairAction.REMOVE, Path(finding.file))
        for finding in inspection.findings
        if finding.row in "CO"
    ]
    swaps = [finding for finding in inspection.findings if finding.row == "N"]
    actions += [Action(RepairAction.SWAP, Path(finding.file)) for finding in swaps]
    torn = [finding for finding in inspection.findings if finding.row in "FG"]
    safe = [finding for finding in torn if finding.row == "F" and inspection.marked]
    actions += [Action(RepairAction.CUT, Path(finding.file), finding.position) for finding in safe]
    left = {Path(finding.file).stem for finding in torn if finding not in safe}
    left |= {Path(f.file).stem[:20] for f in inspection.findings if f.row == "P"}
    if not inspection.epochs_sound and (inspection.epochs or inspection.epochs_fault):
        path, epochs = inspection.report.directory / EPOCHS_NAME, tuple(inspection.epochs)
        actions.append(Action(RepairAction.EPOCHS, path, epochs=epochs))
    return [*actions, *_indexes(inspection, left)]


def apply(actions: list[Action]) -> None:
    """Make the changes, each durable before the next.

    Raises:
        OSError: The disk failed; what was done is done, and repairing again goes on.
    """
    for action in actions:
        match action.deed:
            case RepairAction.REMOVE:
                REAL_DISK.unlink(action.path)
                REAL_DISK.sync_directory(action.path.parent)
            case RepairAction.SWAP:
                _swap(action.path)
            case RepairAction.CUT:
                _cut(action)
            case RepairAction.INDEX:
                log = REAL_DISK.open(action.path.with_suffix(LOG_SUFFIX))
                log.sync()
                log.close()
                write_atomically(REAL_DISK, action.path, action.data)
            case RepairAction.EPOCHS:
                save_epochs(action.path, list(action.epochs))


def _indexes(inspection: Inspection, left: set[str]) -> Iterator[Action]:
    """Index files that differ from those that recovery would leave."""
    last = inspection.segments[-1]
    if any(
        finding.row == "E" and Path(finding.file) == last.path for finding in inspection.findings
    ):
        last.save_index()
    for path, data in sorted(inspection.shadow.made.items()):
        if path.suffix not in (INDEX_SUFFIX, TIME_INDEX_SUFFIX) or path.stem in left:
            continue
        if not path.exists() or path.read_bytes() != data:
            yield Action(RepairAction.INDEX, path, data=bytes(data))


def _swap(path: Path) -> None:
    names = REAL_DISK.list_directory(path.parent)
    for swap in find_swaps(path.parent, [path.name]):
        swap.complete(REAL_DISK, bases_of(names))


def _kind(path: Path) -> str:
    return "damaged copy" if path.suffix == SWAP_SUFFIX else "temporary file"


def _cut(action: Action) -> None:
    file = REAL_DISK.open(action.path)
    tail = file.read(action.position, file.size() - action.position)
    write_atomically(REAL_DISK, _copy(action), tail)
    file.truncate(action.position)
    file.sync()
    file.close()


def _copy(action: Action) -> Path:
    return action.path.with_suffix(f".{action.position}{TORN_SUFFIX}")


METADATA_NAME: Final = "metadata"
STREAMS_NAME: Final = "streams"
TRASH_NAME: Final = "trash"
CLUSTER_NAME: Final = "cluster"
HELD_NAME: Final = "held"
_MADE_HERE: Final = "held-"
"""Begins the mark of a partition that is on this node as 0.1.0 made it, beside its directory."""

_CLUSTERED: Final = re.compile(r"(.+)-[0-9a-f]+-[0-9a-f]{16}")
"""`<name>-<incarnation>` of a stream that a cluster made: `<index>-<nonce>`."""

_LIVE_TRIES: Final = 3
"""Times that a log is read whose segments a running logd removes or merges meanwhile."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a partition's log.

    Attributes:
        stream: The stream's name; the directory's where the metadata does not know it.
        known: Whether the metadata knows the stream.
    """

    stream: str
    partition: int
    directory: Path
    known: bool = True


@dataclass(slots=True)
class DataDirectory:
    """Content of a data directory, or of a partition's directory.

    Attributes:
        root: Directory whose lock protects it; None for a lone partition's directory.
        problems: Problems outside of partitions' logs.
    """

    path: Path
    root: Path | None
    places: list[Place] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files."""
        logs = (log for place in self.places for log in place.directory.glob(f"*{LOG_SUFFIX}"))
        return sum(_size(log) for log in logs)

    def find(self, stream: str, partition: int = 0) -> Place:
        """One partition.

        Raises:
            RefusedError: `UNKNOWN_STREAM`, or `AMBIGUOUS_STREAM` when directories compete.
        """
        found = [p for p in self.places if (p.stream, p.partition) == (stream, partition)]
        found = [place for place in found if place.known] or found
        if not found:
            names = ", ".join(sorted({place.stream for place in self.places}))
            message = f"{self.path} has no stream {stream!r} with a partition {partition}"
            raise RefusedError("UNKNOWN_STREAM", f"{message}; it has: {names or 'none'}")
        if len(found) > 1:
            names = ", ".join(str(place.directory) for place in found)
            raise RefusedError("AMBIGUOUS_STREAM", f"stream {stream!r} may be any of {names}")
        return found[0]


@dataclass(slots=True)
class CheckReport:
    """Result of a check, and what a repair did or would do.

    Attributes:
        problems: Problems outside of partitions' logs.
        actions: Actions of the repair.
    """

    problems: list[Problem]
    partitions: list[tuple[Place, PartitionReport]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    @property
    def all_problems(self) -> list[Problem]:
        """Problems of the data directory and of its partitions."""
        found = [problem for _, report in self.partitions for problem in report.problems]
        return [*self.problems, *found]

    @property
    def verdict(self) -> str:
        """The worst of all verdicts."""
        return verdict_of(self.all_problems)


def look(path: Path) -> DataDirectory:
    """Return the content of a directory, by its metadata and its names; nothing is changed.

    Raises:
        RefusedError: `NOT_A_DATA_DIR`, `UNKNOWN_FORMAT`.
    """
    names = (METADATA_NAME, STREAMS_NAME, CLUSTER_NAME)
    if any((path / name).exists() for name in names):
        _check_format(path)
        return _Look(path).run()
    if not path.is_dir() or not any(path.glob(f"*{LOG_SUFFIX}")):
        message = f"{path} is neither a data directory of logd nor a partition's directory"
        raise RefusedError("NOT_A_DATA_DIR", message)
    whole = path.resolve()
    number = int(whole.name) if whole.name.isdigit() else 0
    place = Place(_stream_name(whole.parent.name, clustered=True), number, path)
    root = whole.parents[min(2, len(whole.parents) - 1)]
    if not (root / LOCK_NAME).exists():
        return DataDirectory(path, None, [place])
    _check_format(root)
    named = [found for found in _Look(root).run().places if found.directory == whole]
    return DataDirectory(path, root, [replace(found, directory=path) for found in named] or [place])


def _check_format(path: Path) -> None:
    try:
        DATA_FORMAT.check(path)
    except DataFormatError as error:
        raise RefusedError("UNKNOWN_FORMAT", error.reason) from None


@contextmanager
def locked(directory: DataDirectory, *, live: bool = False, make: bool = False) -> Iterator[str]:
    """Keep logd out meanwhile; a lock file that is there is not written to.

    Args:
        directory: Directory to lock.
        live: Go on when a process holds the lock.
        make: Make the lock file when it is missing.

    Yields:
        Why the lock is not held; empty when it is, or when there is none.

    Raises:
        RefusedError: `LOCKED`.
    """
    lock: DirectoryLock | None = None
    try:
        if directory.root is not None and (make or (directory.root / LOCK_NAME).exists()):
            unchanged = (directory.root / LOCK_NAME).exists()
            lock = DirectoryLock(directory.root, unchanged=unchanged)
    except RefusedError as error:
        if not live:
            raise
        yield str(error)
        return
    try:
        yield ""
    finally:
        if lock is not None:
            lock.release()


def check(
    directory: DataDirectory,
    *,
    live: bool = False,
    progress: Progress = lambda _: None,
    masters: Masters | None = None,
) -> CheckReport:
    """Verify everything, changing nothing.

    Args:
        directory: Directory that `look` found.
        live: A logd runs there; what it removes meanwhile is no damage.
        progress: Called with numbers of bytes read.
        masters: Master keys, for streams that are encrypted.

    Raises:
        PermissionError: A file may not be read.
    """
    report = CheckReport(list(directory.problems))
    for place in directory.places:
        _inspect(place, report, progress, masters, live_tries=_LIVE_TRIES if live else 0)
    return report


def repair(
    directory: DataDirectory, *, dry_run: bool = False, progress: Progress = lambda _: None
) -> CheckReport:
    """Put right what is safe to; `actions` says what was done, or would be.

    Raises:
        OSError: The disk failed; what was done is done.
    """
    report = CheckReport(list(directory.problems))
    if directory.root == directory.path:
        leftovers = sorted(directory.path.glob(f"*{TEMPORARY_SUFFIX}"))
        report.actions += [Action(RepairAction.REMOVE, path) for path in leftovers]
    for place in directory.places:
        inspection = _inspect(place, report, progress)
        report.actions += plan(inspection)
    if not dry_run:
        apply(report.actions)
    return report


def _inspect(
    place: Place,
    report: CheckReport,
    progress: Progress,
    masters: Masters | None = None,
    *,
    live_tries: int = 0,
) -> Inspection:
    inspection = Inspection(place.directory, progress=progress, masters=masters)
    logs = set(place.directory.glob(f"*{LOG_SUFFIX}"))
    try:
        damaged = inspection.run().verdict == "damaged"
        if damaged and live_tries > 1 and logs - set(place.directory.glob(f"*{LOG_SUFFIX}")):
            # Compaction merged segments under the look: two states of one log were compared.
            return _inspect(place, report, progress, masters, live_tries=live_tries - 1)
    except PermissionError:
        raise
    except OSError as error:
        removed = live_tries > 0 and isinstance(error, FileNotFoundError)
        if removed and live_tries > 1:
            return _inspect(place, report, progress, masters, live_tries=live_tries - 1)
        severity = Severity.LEFTOVER if removed else Severity.DAMAGE
        meaning = "not everything was read; check again" if removed else "it cannot be read"
        inspection.report.problems.append(_note(place.directory, str(error), meaning, severity))
        inspection.segments = []
    inspection.report.problems += _look_at_purge(place.directory, inspection.report)
    report.partitions.append((place, inspection.report))
    return inspection


def _look_at_purge(directory: Path, report: PartitionReport) -> list[Problem]:
    """Check the file with the purge point of a log; in a cluster the metadata has it."""
    try:
        point = PurgePoint.load(directory)
    except CorruptError as error:
        meaning = "logd does not open this log; records are as they were"
        return [_damage(directory / PURGED_NAME, str(error), meaning)]
    except FileNotFoundError:  # the log is being deleted
        return []
    if point.before <= report.start_offset:
        return []
    first, after = report.start_offset, min(point.before, report.end_offset)
    reason = f"purged below offset {point.before}, in epochs up to {point.epoch}"
    meaning = (
        f"readers do not get offsets {first} to {after - 1} of those, which go with their files"
    )
    return [_note(directory / PURGED_NAME, reason, meaning)]


class _Look:
    """One look at the names in a data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = DataDirectory(path, path)
        self._clustered = (path / CLUSTER_NAME).is_dir()
        self._known: dict[str, str] = {}
        self._deleting: set[str] = set()
        self._metadata_sound = True

    def run(self) -> DataDirectory:
        """The places and problems."""
        if self._clustered:
            self._load_cluster()
        if not self._clustered or (self._path / METADATA_NAME).exists():  # or not all taken over
            self._load_metadata()
        present = _directories(self._path / STREAMS_NAME)
        missing_ones = self._known.keys() - {path.name for path in present}
        for name in sorted(() if self._clustered else missing_ones):
            reason = f"stream {self._known[name]!r} has lost its data directory"
            missing = self._path / STREAMS_NAME / name
            self._report(_damage(missing, reason, "logd does not start; every record is missing"))
        for path in present:
            self._add_stream(path)
        for mark in sorted((self._path / HELD_NAME).glob("*")):
            name, _, number = mark.name.rpartition("-")
            self._check_held(self._path / STREAMS_NAME / name / number)
        self._note_leftovers()
        return self._found

    def _load_metadata(self) -> None:
        path = self._path / METADATA_NAME
        try:
            document = Checkpoint(path, disk=OverlayDisk()).load()
            if document is None:
                self._metadata_sound = False
                if _directories(self._path / STREAMS_NAME):
                    reason = "the file is missing, but there are streams"
                    self._report(_damage(path, reason, "logd does not start"))
                return
            metadata = Metadata.restore(document)
        except (CorruptError, RefusedError) as error:
            self._metadata_sound = False
            self._report(
                _damage(path, str(error), "logd does not start; streams are named by directory")
            )
            return
        self._known |= {
            f"{s.config.name}-{s.incarnation}": s.config.name for s in metadata.streams()
        }
        self._deleting |= {f"{s.config.name}-{s.incarnation}" for s in metadata.deleting()}

    def _load_cluster(self) -> None:
        """Read a node's part of the Raft log over a shadow of it, as its start would."""
        raft = self._path / CLUSTER_NAME / "raft"
        disk = OverlayDisk()
        try:
            node = Checkpoint(self._path / CLUSTER_NAME / "node", disk=disk).load() or {}
            head = SegmentHead(str(node.get("cluster")), NodeId(str(node.get("node"))))
            recovery = RaftRecovery(raft, head, disk)
            recovery.run()
            state = _state_of(recovery)
        except (LogdError, OSError) as error:
            self._metadata_sound = False
            where = getattr(error, "where", "") or str(raft)
            meaning = "this node does not start; streams are named by directory"
            self._report(_damage(Path(where), str(error), meaning))
            return
        for finding in recovery.findings:
            meaning = "nothing to readers: the next start does that"
            file = Path(finding.file)
            self._report(_note(file, finding.action, meaning, Severity.LEFTOVER, finding.row))
        for stream in state.streams.values():
            name = f"{stream.config.name}-{stream.incarnation}"
            self._known[name] = stream.config.name
            if not stream.is_open:
                self._deleting.add(name)

    def _add_stream(self, path: Path) -> None:
        known = path.name in self._known
        if self._metadata_sound and not known:
            deleted = path.name in self._deleting
            reason = (
                "the stream is being deleted" if deleted else "the directory belongs to no stream"
            )
            self._report(_note(path, reason, "readers do not get it"))
        name = self._known.get(path.name) or _stream_name(path.name, clustered=self._clustered)
        for directory in _directories(path):
            if directory.name.isdigit():
                self._found.places.append(Place(name, int(directory.name), directory, known))
        for mark in sorted(path.glob(f"{_MADE_HERE}*")):
            self._check_held(path / mark.name.removeprefix(_MADE_HERE))

    def _check_held(self, directory: Path) -> None:
        """Tell of a partition that was made on this node and is not there."""
        if not directory.is_dir():
            stream = directory.parent.name
            name = self._known.get(stream) or _stream_name(stream, clustered=self._clustered)
            reason = f"partition {directory.name} of stream {name!r} has lost its directory"
            meaning = "this node does not open its replica; others may have every record"
            self._report(_damage(directory, reason, meaning))

    def _note_leftovers(self) -> None:
        for path in _directories(self._path / TRASH_NAME):
            self._report(_note(path, "data of a deleted stream", "the next start removes it"))
        for path in sorted(self._path.glob(f"*{TEMPORARY_SUFFIX}")):
            problem = _note(path, "temporary file", "nothing to readers", Severity.LEFTOVER)
            self._report(problem)

    def _report(self, problem: Problem) -> None:
        self._found.problems.append(problem)


def _size(path: Path) -> int:
    """Bytes of a file; none when it has just been removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _state_of(recovery: RaftRecovery) -> ClusterState:
    """The metadata as the Raft log of one node has it; its last entries may not be committed.

    Raises:
        LogdError: It is not understood.
    """
    recovered = recovery.recovered
    snapshot = recovered.snapshot
    state = ClusterState.restore(snapshot.data) if snapshot is not None else ClusterState()
    for entry in recovered.entries:
        if entry.kind is EntryKind.COMMAND:
            state.apply(entry.index, decode_command(entry.data))
    return state


def _stream_name(directory: str, *, clustered: bool) -> str:
    """The stream's part of `<name>-<incarnation>`."""
    made_there = _CLUSTERED.fullmatch(directory) if clustered else None
    return made_there[1] if made_there else directory.rpartition("-")[0] or directory


def _directories(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []


def _damage(path: Path, reason: str, meaning: str) -> Problem:
    return _note(path, reason, meaning, Severity.DAMAGE)


def _note(
    path: Path, reason: str, meaning: str, severity: Severity = Severity.NOTE, row: str = ""
) -> Problem:
    reason = reason.removeprefix(f"{path}: ")
    return Problem(severity=severity, row=row, file=str(path), reason=reason, meaning=meaning)
