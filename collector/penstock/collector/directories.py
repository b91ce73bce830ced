"""Data directories of collectors that may run: opened when they do not, told of when they do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.collector.control import SOCKET_NAME
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.store import CommitLog, DirectoryLock, LogConfig
from penstock.service import ExitCode, ServiceError, UnavailableError


class DamagedError(ServiceError):
    """What was looked at is damaged."""

    exit_code = ExitCode.DATA


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep the collector out that owns a spool or quarantine.

    Raises:
        UnavailableError: It runs.
    """
    try:
        lock = DirectoryLock(directory.resolve().parent)
    except LogdError as error:
        raise UnavailableError(str(error), fix="stop the collector first") from None
    try:
        yield
    finally:
        lock.release()


def is_running(directory: Path) -> bool:
    """Whether the collector that owns a spool or quarantine runs."""
    try:
        DirectoryLock(directory.resolve().parent).release()
    except RefusedError:
        return True
    return False


def socket_of(data_dir: Path) -> Path:
    """Where a collector listens unless its configuration says otherwise."""
    return data_dir / SOCKET_NAME


@contextmanager
def opened(directory: Path) -> Iterator[CommitLog]:
    """A log of a stopped collector.

    Raises:
        UnavailableError: The collector runs.
        DamagedError: The log cannot be opened, or what is read of it is damaged.
    """
    with locked(directory):
        try:
            log = CommitLog.open(directory, LogConfig())
        except CorruptError as error:
            raise DamagedError(
                str(error), fix=f"look at it with `penstock collector spool check {directory}`"
            ) from None
        try:
            yield log
        except CorruptError as error:
            raise DamagedError(
                str(error), fix="start the collector: it skips and counts what is damaged"
            ) from None
        finally:
            log.close()
