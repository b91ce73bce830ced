"""Room on the disk that is kept for the checkpoint.

The room of what is delivered is given back once a checkpoint says that it is. On a disk that is
full none could be written, so nothing would ever be given back. A file of a size that a checkpoint
fits into stands by for that.
"""

import os
from pathlib import Path
from typing import Final

import structlog

NAME: Final = "reserve"
_BYTES_MIN: Final = 256 * 1024
_CHECKPOINTS: Final = 4


class Reserve:
    """The file.

    Args:
        directory: Of the collector's data.
        checkpoint: The file that it is for.
    """

    def __init__(self, directory: Path, checkpoint: Path) -> None:
        self._path = directory / NAME
        self._checkpoint = checkpoint
        self._bytes = 0
        self._log = structlog.get_logger()

    def make(self) -> None:
        """Take the room, or more of it, where there is some."""
        try:
            size = max(_BYTES_MIN, _CHECKPOINTS * self._checkpoint.stat().st_size)
            if size <= self._bytes:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        except OSError as error:  # it goes on without, as long as the disk has room
            self._log.debug("no room is kept for the checkpoint", error=str(error))
        else:
            self._bytes = size

    def give(self) -> None:
        """Give the room to who writes next."""
        self._bytes = 0
        self._path.unlink(missing_ok=True)
