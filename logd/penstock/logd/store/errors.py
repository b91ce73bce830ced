"""What the store raises besides the errors of `penstock.logd.errors`."""

import errno
from typing import Final

from penstock.logd.errors import CorruptError, UnavailableError

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""Errors of making a file that say nothing of the files there are: space, quota, descriptors."""

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a write that was refused before anything was promised."""


class LogFailedError(UnavailableError):
    """A write or sync of this log failed; it takes no more until it is opened again."""


class CorruptFrameError(CorruptError):
    """A frame of a log is damaged; what lies before and after it stays readable.

    Attributes:
        file: Path of the segment's log file.
        position: Byte in the file where the damage begins.
        offset: First offset that cannot be read.
        next_offset: First offset after the damage that can; the log's end if there is none.
    """

    def __init__(
        self, message: str, *, file: str, position: int, offset: int, next_offset: int
    ) -> None:
        self.file = file
        self.position = position
        self.offset = offset
        self.next_offset = next_offset
        super().__init__(
            f"{message} (offsets {offset} to {next_offset - 1})", where=f"{file} at {position}"
        )
