"""Purge of a partition: readers find nothing there, and files are deleted as soon as possible.

An operator says up to which offset. Readers are refused at once (`OUT_OF_RANGE`); every whole
segment file below it goes, and the one that is written to, if all of it lies below. What the
segment that holds the offset has below it goes with that segment.

A purge is about the records that leaders up to its epoch have ordered, and all of those were
committed. A log that has lost some of them since, by an unclean election or a power loss, has
others at their offsets, of later epochs: those were not purged.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from msgspec import Struct

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.metadata.streams import check_not_internal
from penstock.logd.storage import Checkpoint, CommitLog, EpochFile

PURGED_NAME: Final = "purged"
"""The file of a partition in which 0.1.0 kept this, outside of a cluster."""


class PurgePoint(Struct, frozen=True):
    """Range that was purged.

    Attributes:
        before: The first offset that was not purged.
        epoch: Epoch of the leader that knew all below to be committed.
    """

    before: int = 0
    epoch: int = 0

    @classmethod
    def load(cls, directory: Path) -> "PurgePoint":
        """Load the file that 0.1.0 wrote beside a log; an empty range without one.

        Raises:
            CorruptError: The file is damaged.
            OSError: The disk failed.
        """
        document = Checkpoint(directory / PURGED_NAME).load()
        if document is None:
            return cls()
        before, epoch = document.get("before"), document.get("epoch")
        if not isinstance(before, int) or not isinstance(epoch, int):
            raise CorruptError("it is no purge point", where=str(directory / PURGED_NAME))
        return cls(before, epoch)


class Purging:
    """Purge of one replica. Used on the event loop.

    Args:
        log: The log.
        epochs: The log's epochs.
        order: Requests the deletion of whole segments below an offset; never waits.
    """

    def __init__(self, log: CommitLog, epochs: EpochFile, order: Callable[[int], None]) -> None:
        self._log = log
        self._epochs = epochs
        self._point = PurgePoint()
        self._order = order
        self._ordered = 0

    def set(self, point: PurgePoint, high_watermark: int) -> None:
        """Take what was purged; it never becomes less."""
        if (point.epoch, point.before) > (self._point.epoch, self._point.before):
            self._point = point
            self._ordered = 0  # since then an election may have cost what was ordered beyond
        self.committed(high_watermark)

    def committed(self, high_watermark: int) -> None:
        """Have files deleted, if more of what was purged is known here to be committed."""
        if self._ordered < self._point.before:
            goal = min(self.start(), high_watermark + 1)
            if goal > self._ordered:
                self._ordered = goal
                self._order(goal)

    def start(self) -> int:
        """The first offset that is neither deleted nor purged."""
        start, point = self._log.start_offset, self._point
        if point.before <= start:
            return start
        return max(start, min(point.before, self._epochs.end_of(point.epoch, self._log.end_offset)))


def check_purge(stream: str, before: int, *, start: int, end: int, read_only: bool = False) -> None:
    """Refuse a purge that cannot be.

    Args:
        stream: Its name.
        before: First offset that is not purged.
        start: The first offset there is.
        end: After the last one that is committed.
        read_only: Whether the stream is to stay as it is.

    Raises:
        RefusedError: `RESERVED_NAME`, `READ_ONLY`, `OUT_OF_RANGE`.
    """
    check_not_internal(stream)
    if read_only:
        raise RefusedError("READ_ONLY", f"stream {stream!r} is read-only", stream=stream)
    if before > end:
        _out_of_range(stream, before, start, end)


def _out_of_range(stream: str, before: int, start: int, end: int) -> NoReturn:
    message = f"offset {before} of {stream} is not in {start} to {end}: only what is committed goes"
    raise RefusedError("OUT_OF_RANGE", message, earliest=start, latest=end)
