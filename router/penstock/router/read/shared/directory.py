"""Sharing of what the sinks of a job read, and the directory in memory that it uses.

    /dev/shm/penstock-router-UID-RANDOM/    0700; the job holds its lock

Files there are never written to a disk, encrypted as the log on its disks may be. What a killed job
leaves is removed by the next job of the same user.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import structlog

from penstock.router.job.config import JobConfig

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - what is made there is a directory of our own
"""Directory of files in memory; not every system has it."""


class Sharing:
    """The shared directory of one job, from its start to its end.

    Attributes:
        options: Options of the source, for each sink's query.
    """

    def __init__(self, directory: Path, descriptor: int, max_bytes: int) -> None:
        self._directory = directory
        self._descriptor = descriptor
        self.options = {
            "shareIn": str(directory),
            "shareBytes": str(max_bytes),
        }

    @classmethod
    def begin(cls, config: JobConfig, memory: Path = MEMORY) -> Self | None:
        """Make the directory; None: nobody could share anything in it, or it cannot be made.

        Args:
            config: The job.
            memory: Directory in memory, if there is one.
        """
        most = config.source.max_shared_bytes
        # Of executors elsewhere each would need one, which nobody removes.
        if not most or len(config.sinks) == 1 or not config.spark.is_local or not memory.is_dir():
            return None
        try:
            return cls(*_made(memory, f"penstock-router-{os.getuid()}-"), most)
        except OSError as error:
            log = structlog.get_logger()
            log.warning("shared_reads_unavailable", reason=str(error))
            return None

    def end(self) -> None:
        """Remove it; Spark and its tasks have ended."""
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._descriptor)


def _made(memory: Path, beginning: str) -> tuple[Path, int]:
    """A directory and its lock, in place of those that nobody has locked."""
    for left in memory.glob(f"{beginning}*"):
        _remove_if_left(left)
    directory = Path(tempfile.mkdtemp(prefix=beginning, dir=memory))
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if not directory.exists():  # a job that starts now saw it before it was locked
        os.close(descriptor)
        raise FileNotFoundError(f"{directory} was removed by another job")
    return directory, descriptor


def _remove_if_left(directory: Path) -> None:
    with suppress(OSError):  # its job runs, another one has just removed it, or it is not ours
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(descriptor)
