"""Data directories of collectors: opened when they are stopped, refused when they run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.base.errors import DamagedDataError
from penstock.collector.agent.admin import SOCKET_NAME
from penstock.collector.agent.worker_plan import directory_of, left_behind
from penstock.collector.checkpoint.recovery import DATA_FORMAT, UnreadableError
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.storage import CommitLog, DirectoryLock, LogConfig
from penstock.logd.storage.reader import UNREADABLE
from penstock.service import UnavailableError

Function = TypeVar("Function", bound=Callable[..., Any])


def journal_argument(*names: str) -> Callable[[Function], Function]:
    """An argument DIR: a journal of one of these names, or a data directory that has the first."""

    def found(_: click.Context, __: click.Parameter, given: Path) -> Path:
        inside = given / names[0]
        if inside.is_dir():
            return inside
        if given.name in names and any(given.glob("*.log")):
            return given
        wanted = " or ".join(names)
        raise click.BadParameter(
            f"{given} is neither a collector's data directory nor its {wanted}"
        )

    return click.argument(
        "directory",
        metavar="DIR",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        callback=found,
    )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep the collector out that owns a spool or quarantine.

    Raises:
        UnavailableError: It runs.
        UnreadableError: The disk does not give something of it.
        DataFormatError: A later version wrote its data directory.
    """
    DATA_FORMAT.check(directory.resolve().parent)
    try:
        lock = DirectoryLock(directory.resolve().parent)
    except LogdError as error:
        raise UnavailableError(str(error), fix="stop the collector first") from None
    try:
        yield
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise UnreadableError(directory, error) from None
    finally:
        lock.release()


def is_running(directory: Path) -> bool:
    """Return whether the collector that owns a spool or quarantine runs."""
    try:
        DirectoryLock(directory.resolve().parent).release()
    except RefusedError:
        return True
    return False


def of_workers(directory: Path) -> dict[int, Path]:
    """Return the directory of the same name (spool or quarantine) of every other worker."""
    data_dir = directory.resolve().parent
    found = {
        index: directory_of(data_dir, index) / directory.name
        for index in left_behind(data_dir, count=1)
    }
    return {index: path for index, path in found.items() if path.is_dir()}


def socket_of(data_dir: Path) -> Path:
    """Return the socket that a collector listens on unless its configuration says otherwise."""
    return data_dir / SOCKET_NAME


@contextmanager
def opened(directory: Path) -> Iterator[CommitLog]:
    """A log of a stopped collector.

    Raises:
        UnavailableError: The collector runs.
        DamagedDataError: The log cannot be opened, or what is read of it is damaged.
    """
    with locked(directory):
        try:
            log = CommitLog.open(directory, LogConfig())
        except CorruptError as error:
            raise DamagedDataError(
                str(error), fix=f"look at it with `penstock collector spool check {directory}`"
            ) from None
        try:
            yield log
        except CorruptError as error:
            raise DamagedDataError(
                str(error), fix="start the collector: it skips and counts what is damaged"
            ) from None
        finally:
            log.close()
