"""A data directory without its daemon: what is in it, whether it is sound, and its repair.

`penstock.logd.streams` says how the data directory of a lone logd is laid out, and those of
`penstock.logd.cluster`, `holdings` and `node`, that of a cluster's node: there the node's part of
the Raft log says which streams there are. A partition's directory may stand alone too, as in a
backup.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.logd.consensus.records import SegmentHead
from penstock.logd.consensus.recovery import Recovery as RaftRecovery
from penstock.logd.core.cluster.commands import decode_command
from penstock.logd.core.cluster.state import ClusterState
from penstock.logd.core.metadata import Metadata
from penstock.logd.core.node import NodeId
from penstock.logd.core.raft import EntryKind
from penstock.logd.directories import DATA_FORMAT
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.purging import PURGED_NAME, PurgePoint
from penstock.logd.store import Checkpoint, DirectoryLock, Masters
from penstock.logd.store.inspection import (
    Inspection,
    PartitionReport,
    Problem,
    Severity,
    verdict_of,
)
from penstock.logd.store.lock import FILE_NAME as LOCK_NAME
from penstock.logd.store.recovery import TEMPORARY_SUFFIX
from penstock.logd.store.repair import Action, Deed, apply, plan
from penstock.logd.store.segment import LOG_SUFFIX
from penstock.logd.store.shadow import ShadowDisk
from penstock.service.data_format import DataFormatError

METADATA_NAME: Final = "metadata"
STREAMS_NAME: Final = "streams"
TRASH_NAME: Final = "trash"
CLUSTER_NAME: Final = "cluster"
_MADE_HERE: Final = "held-"
_CLUSTERED: Final = re.compile(r"(.+)-[0-9a-f]+-[0-9a-f]{16}")
"""`<name>-<incarnation>` of a stream that a cluster made: `<index>-<nonce>`."""

_LIVE_TRIES: Final = 3
"""Times that a log is read whose segments a running logd removes or merges meanwhile."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition's log lies.

    Attributes:
        stream: Its name; the directory's where the metadata does not know it.
        known: Whether the metadata speaks of the stream.
    """

    stream: str
    partition: int
    directory: Path
    known: bool = True


@dataclass(slots=True)
class DataDirectory:
    """What a data directory, or a partition's directory, is made of.

    Attributes:
        root: Whose lock protects it; None for a partition's directory that stands alone.
        problems: With what is not a partition's log.
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
    """What a check found, and what a repair did or would do.

    Attributes:
        problems: With what is not a partition's log.
        actions: Of a repair.
    """

    problems: list[Problem]
    partitions: list[tuple[Place, PartitionReport]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    @property
    def all_problems(self) -> list[Problem]:
        """Those of the partitions too."""
        found = [problem for _, report in self.partitions for problem in report.problems]
        return [*self.problems, *found]

    @property
    def verdict(self) -> str:
        """The worst of all verdicts."""
        return verdict_of(self.all_problems)


def look(path: Path) -> DataDirectory:
    """What there is in a directory, by its metadata and its names; nothing is changed.

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
        directory: To protect.
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
        directory: As `look` found it.
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
        report.actions += [Action(Deed.REMOVE, path) for path in leftovers]
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
    """What the file says up to where readers find nothing; in a cluster the metadata says it."""
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
            self._tell(_damage(missing, reason, "logd does not start; every record is missing"))
        for path in present:
            self._add_stream(path)
        self._note_leftovers()
        return self._found

    def _load_metadata(self) -> None:
        path = self._path / METADATA_NAME
        try:
            document = Checkpoint(path, disk=ShadowDisk()).load()
            if document is None:
                self._metadata_sound = False
                if _directories(self._path / STREAMS_NAME):
                    reason = "the file is missing, but there are streams"
                    self._tell(_damage(path, reason, "logd does not start"))
                return
            metadata = Metadata.restore(document)
        except (CorruptError, RefusedError) as error:
            self._metadata_sound = False
            self._tell(
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
        disk = ShadowDisk()
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
            self._tell(_damage(Path(where), str(error), meaning))
            return
        for finding in recovery.findings:
            meaning = "nothing to readers: the next start does that"
            file = Path(finding.file)
            self._tell(_note(file, finding.action, meaning, Severity.LEFTOVER, finding.row))
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
            self._tell(_note(path, reason, "readers do not get it"))
        name = self._known.get(path.name) or _stream_name(path.name, clustered=self._clustered)
        for directory in _directories(path):
            if directory.name.isdigit():
                self._found.places.append(Place(name, int(directory.name), directory, known))
        for mark in sorted(path.glob(f"{_MADE_HERE}*")):
            directory = path / mark.name.removeprefix(_MADE_HERE)
            if not directory.is_dir():
                reason = f"partition {directory.name} of stream {name!r} has lost its directory"
                meaning = "this node does not open its replica; others may have every record"
                self._tell(_damage(directory, reason, meaning))

    def _note_leftovers(self) -> None:
        for path in _directories(self._path / TRASH_NAME):
            self._tell(_note(path, "data of a deleted stream", "the next start removes it"))
        for path in sorted(self._path.glob(f"*{TEMPORARY_SUFFIX}")):
            problem = _note(path, "temporary file", "nothing to readers", Severity.LEFTOVER)
            self._tell(problem)

    def _tell(self, problem: Problem) -> None:
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
