"""Inspection: what is wrong in a log's directory, found without changing a byte of it.

Recovery runs over a shadow of the directory and reads every frame, so what is reported is what
opening the log would find (the letters are those of `penstock.logd.store.recovery`). On top of it
come the checks that recovery has no need of: bodies decode, epochs do not fall, the small files
beside the segments are sound, and the segment that the synced mark speaks of is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from penstock.logd.batch import SCHEMA_VERSION, decode_body
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.frame import FrameHeader
from penstock.logd.memory import Memory
from penstock.logd.store.config import LogConfig
from penstock.logd.store.epochs import EpochFile
from penstock.logd.store.index import Claim
from penstock.logd.store.key_file import InspectedKeys, Masters
from penstock.logd.store.mark import load_mark
from penstock.logd.store.names import EPOCHS_NAME, KEYS_COPY_NAME, KEYS_NAME, MARK_NAME, MEMORY_NAME
from penstock.logd.store.recovery import Finding, Recovery
from penstock.logd.store.scan import Found, FrameReader
from penstock.logd.store.segment import LOG_SUFFIX, Segment, segment_path
from penstock.logd.store.shadow import ShadowDisk
from penstock.logd.store.swap import REPLACED_SUFFIX
from penstock.logd.store.vault import decrypted

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
    """How bad a problem is."""

    NOTE = "note"
    """Worth knowing, nothing is wrong."""
    LEFTOVER = "leftover"
    """What a crash leaves; the next start puts it right, and no record is lost."""
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
        meaning: To readers.
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
    """What a log's directory holds.

    Attributes:
        bytes: Of the log files, damage included.
        start_offset: First offset that is kept.
        end_offset: After the last record.
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
        directory: Of the log; it exists.
        progress: Called with numbers of bytes read.
        masters: Master keys, for a log that is encrypted.

    Attributes:
        report: What was found.
        findings: What recovery would do.
        shadow: The directory as recovery would leave it.
        segments: As recovery would leave them; none when it would refuse to open the log.
        epochs: (epoch, start offset) as the frames show them.
        epochs_fault: What is wrong with the epoch file's bytes; empty: nothing, or it is missing.
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
        self.shadow = ShadowDisk()
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
        mark = load_mark(self._directory, self.shadow)  # before the segments: logd may add some
        logs = sorted(self._directory.glob(f"*{LOG_SUFFIX}"))
        self.report.segments = len(logs)
        self.report.bytes = sum(path.stat().st_size for path in logs)
        self._check_small_files()
        if self._keys.fault:
            self._tell(self._directory / KEYS_NAME, self._keys.fault, self._keys.meaning)
        elif self._keys.note:
            meaning = "each frame's CRCs were checked; what is in them was not looked at"
            self._tell(
                self._directory / KEYS_NAME, self._keys.note, meaning, severity=Severity.NOTE
            )
        self._survey()
        self._tell_keyless()
        if self.epochs_fault or (not self.epochs_sound and self.epochs):
            reason = self.epochs_fault or "the file is missing or empty"
            reason += f"; frames are of epochs up to {self._epoch}"
            meaning = "nothing to readers: the next start makes it again from the frames"
            path = self._directory / EPOCHS_NAME
            self._tell(path, reason, meaning, severity=Severity.LEFTOVER)
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
            self._tell(epochs, str(error), "logd does not start; frames are as they were")

    def _check_memory(self) -> None:
        """After the frames: of a log that is written to, it is then not older than they are."""
        path, start = self._directory / MEMORY_NAME, self.report.start_offset
        problem, memory = "the file is missing", None
        try:
            memory = Memory.load(self._directory, disk=self.shadow, vault=self._keys.vault)
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
            self._tell(path, reason, meaning)
        elif memory is None and path.exists():
            meaning = "nothing to readers: the next start reads the whole log instead"
            self._tell(path, problem, meaning, severity=Severity.LEFTOVER)
        elif memory is not None and memory.lost:
            reason = f"what was remembered below offset {memory.lost} was lost once"
            self._tell(path, reason, "nothing to readers", severity=Severity.NOTE)

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
            self._tell(Path(error.where), str(error), "logd does not open this log", row="K")
        except RefusedError as error:
            meaning = "this version does not open the log; use the one that wrote it"
            self._tell(Path(str(error.detail["file"])), str(error), meaning, row="M")
        self.findings = recovery.report.findings
        self.report.problems += map(self._problem, self.findings)
        if self.segments:
            self.report.start_offset = self.segments[0].base_offset
            self.report.end_offset = self.segments[-1].end_offset
        if self.report.start_offset:
            reason = f"the log begins at offset {self.report.start_offset}"
            meaning = "earlier records were removed by retention, or their segments are missing"
            first = segment_path(self._directory, self.report.start_offset)
            self._tell(first, reason, meaning, severity=Severity.NOTE)

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
                self._tell(path, reason, meaning, severity=Severity.LEFTOVER)
            return
        last = self.segments[-1].base_offset if self.segments else -1
        self.marked = mark.base_offset <= last
        refused = bool(self.report.segments) and not self.segments
        if last < mark.base_offset < mark.end_offset and not refused:
            self._tell(
                segment_path(self._directory, mark.base_offset),
                f"the segment was synced up to offset {mark.end_offset}, and is missing",
                f"{_lost(mark.base_offset, mark.end_offset)}; logd would give them out again",
                offset=mark.base_offset,
                next_offset=mark.end_offset,
            )

    def _note_copies(self) -> None:
        for path in sorted(self._directory.glob(f"*{TORN_SUFFIX}")):
            meaning = "nothing to readers; remove it when nobody needs it"
            self._tell(path, "copy of a torn tail", meaning, severity=Severity.NOTE)
        for path in sorted(self._directory.glob(f"*{REPLACED_SUFFIX}")):
            reason = "what was left of a segment that a damaged rewriting took the place of"
            meaning = "nothing to readers; it may hold what is damaged: keep it until then"
            self._tell(path, reason, meaning, severity=Severity.NOTE)

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
        elif header.encrypted and self._keys.readable and self._keys.vault is None:
            first = header.base_offset if self._keyless is None else self._keyless[0]
            self._keyless, reason = (first, header.next_offset), ""
        elif self._keys.readable:
            reason = self._wrong_body(reader, found)
        else:
            reason = ""
        if reason:
            self._tell_frame(reader, found, reason, "readers are given the frame, and refuse it")

    def _tell_keyless(self) -> None:
        """Once for the log: without its keys no frame can be read, and each is as any other."""
        if self._keyless is not None:
            first, after = self._keyless
            path = self._directory / KEYS_NAME
            reason = f"the log's keys are missing ({KEYS_NAME}, {KEYS_COPY_NAME})"
            meaning = f"logd does not open this log; {_lost(first, after)}"
            self._tell(path, reason, meaning, offset=first, next_offset=after)

    def _wrong_body(self, reader: FrameReader, found: Found) -> str:
        """What is wrong with a body whose CRC holds; empty if nothing is."""
        segment = int(Path(reader.name).stem)
        try:
            frame = decrypted(self._keys.vault, found.header, reader.body_of(found), segment)
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
            self._tell_frame(reader, found, reason, meaning)

    def _tell_frame(self, reader: FrameReader, found: Found, reason: str, meaning: str) -> None:
        self._tell(
            Path(reader.name),
            reason,
            meaning,
            position=found.position,
            offset=found.header.base_offset,
            next_offset=found.header.next_offset,
        )

    def _tell(
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
    """What is wrong with a body whose CRC holds; empty if nothing is."""
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
