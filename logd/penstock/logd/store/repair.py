"""Repair: what can safely be put right in a log's directory while no process uses it.

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
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from typing_extensions import override

from penstock.logd.store.disk import REAL_DISK, write_atomically
from penstock.logd.store.epochs import save_epochs
from penstock.logd.store.inspection import TORN_SUFFIX, Inspection
from penstock.logd.store.names import EPOCHS_NAME
from penstock.logd.store.recovery import bases_of
from penstock.logd.store.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from penstock.logd.store.swap import SWAP_SUFFIX, find_swaps


class Deed(StrEnum):
    """What a repair does to a file."""

    REMOVE = "remove"
    SWAP = "swap"
    CUT = "cut"
    INDEX = "index"
    EPOCHS = "epochs"


@dataclass(frozen=True, slots=True)
class Action:
    """One change that a repair makes.

    Attributes:
        position: Where a log file is cut.
        data: Bytes of the new index file.
        epochs: (epoch, start offset) of the new epoch file.
    """

    deed: Deed
    path: Path
    position: int = 0
    data: bytes = b""
    epochs: tuple[tuple[int, int], ...] = ()

    @override
    def __str__(self) -> str:
        """The change, for people."""
        match self.deed:
            case Deed.REMOVE:
                return f"{self.path}: {_kind(self.path)} removed"
            case Deed.SWAP:
                return f"{self.path}: put in the place of the segments it stands for"
            case Deed.CUT:
                return f"{self.path}: cut at {self.position}, the tail copied to {_copy(self).name}"
            case Deed.INDEX:
                return f"{self.path}: index made again from the log"
            case Deed.EPOCHS:
                latest = self.epochs[-1][0] if self.epochs else 0
                return f"{self.path}: made again from the log, whose last epoch is {latest}"


def plan(inspection: Inspection) -> list[Action]:
    """The changes to make, in order; none to a log that recovery would refuse to open."""
    if not inspection.segments:
        return []
    actions = [
        Action(Deed.REMOVE, Path(finding.file))
        for finding in inspection.findings
        if finding.row in "CO"
    ]
    swaps = [finding for finding in inspection.findings if finding.row == "N"]
    actions += [Action(Deed.SWAP, Path(finding.file)) for finding in swaps]
    torn = [finding for finding in inspection.findings if finding.row in "FG"]
    safe = [finding for finding in torn if finding.row == "F" and inspection.marked]
    actions += [Action(Deed.CUT, Path(finding.file), finding.position) for finding in safe]
    left = {Path(finding.file).stem for finding in torn if finding not in safe}
    left |= {Path(f.file).stem[:20] for f in inspection.findings if f.row == "P"}
    if not inspection.epochs_sound and (inspection.epochs or inspection.epochs_fault):
        path, epochs = inspection.report.directory / EPOCHS_NAME, tuple(inspection.epochs)
        actions.append(Action(Deed.EPOCHS, path, epochs=epochs))
    return [*actions, *_indexes(inspection, left)]


def apply(actions: list[Action]) -> None:
    """Make the changes, each durable before the next.

    Raises:
        OSError: The disk failed; what was done is done, and repairing again goes on.
    """
    for action in actions:
        match action.deed:
            case Deed.REMOVE:
                REAL_DISK.unlink(action.path)
                REAL_DISK.sync_directory(action.path.parent)
            case Deed.SWAP:
                _swap(action.path)
            case Deed.CUT:
                _cut(action)
            case Deed.INDEX:
                log = REAL_DISK.open(action.path.with_suffix(LOG_SUFFIX))
                log.sync()
                log.close()
                write_atomically(REAL_DISK, action.path, action.data)
            case Deed.EPOCHS:
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
            yield Action(Deed.INDEX, path, data=bytes(data))


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
