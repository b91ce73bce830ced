"""The stamp in a directory that names the version which wrote it; every start reads it first.

    DIRECTORY/format      penstock <kind> <version> <release that wrote it> <newline>

    stamp              action
    none               written before there were stamps, or new: version 1; stamped
    this version       go on
    an older one       upgraded step by step, stamped after each, told in the log
    a newer one        refused, nothing is touched
    of another kind    refused, nothing is touched
    not understood     refused, nothing is touched

The version says how files lie in the directory and what must be understood to write into it. Each
file has its own version besides, which its codec checks.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from penstock.base.errors import ExitCode, ServiceError
from penstock.base.files import atomic_write
from penstock.service.release import release

FILE_NAME: Final = "format"
FIRST: Final = 1
"""The format of a directory without a stamp."""

_STAMP: Final = re.compile(r"penstock ([a-z]+) ([0-9]{1,9}) ([0-9A-Za-z.+!-]{1,64})\n", re.ASCII)
_SIZE_MAX: Final = 256


class DataFormatError(ServiceError):
    """A directory that this version of the program must leave alone (exit code 78)."""

    exit_code = ExitCode.CONFIG


@dataclass(frozen=True, slots=True)
class Stamp:
    """The stamp of a directory."""

    kind: str
    version: int
    release: str


@dataclass(frozen=True, slots=True)
class DataFormat:
    """The format of one kind of directory, as this version of the program knows it.

    Attributes:
        kind: The kind of directory, such as `logd`.
        version: Version that is written.
        upgrades: The upgrade to the next version, by version; it may run again after a crash.
    """

    kind: str
    version: int = FIRST
    upgrades: Mapping[int, Callable[[Path], None]] = field(default_factory=dict)

    def check(self, directory: Path) -> Stamp | None:
        """Look, and change nothing; returns the stamp, if there is one.

        Raises:
            DataFormatError: This program must not use the directory.
        """
        path = directory / FILE_NAME
        try:
            with path.open("rb") as file:
                text = file.read(_SIZE_MAX).decode("ascii", "replace")
        except (FileNotFoundError, NotADirectoryError):  # the code that makes it reports the latter
            return None
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from None
        found = _STAMP.fullmatch(text)
        if found is None:
            raise _unreadable(path, "this is no stamp of Penstock's")
        stamp = Stamp(found[1], int(found[2]), found[3])
        self._judge(directory, stamp)
        return stamp

    def open(self, directory: Path) -> None:
        """Check, upgrade what is older, and stamp; the caller holds the directory's lock.

        Raises:
            DataFormatError: This program must not use the directory.
            OSError: The disk failed.
        """
        stamp = self.check(directory)
        if stamp is None:
            stamp = Stamp(self.kind, FIRST, "")
            self._stamp_first(directory)
        for version in range(stamp.version, self.version):
            self.upgrades[version](directory)
            self._write(directory, version + 1)
            structlog.get_logger().info(
                "data_upgraded",
                directory=str(directory),
                kind=self.kind,
                from_version=version,
                to_version=version + 1,
                written_by=stamp.release or "a release without stamps",
            )

    def _stamp_first(self, directory: Path) -> None:
        """A full disk is no reason not to start: what is there can still be read."""
        try:
            self._write(directory, FIRST)
        except OSError as error:
            structlog.get_logger().warning(
                "data_format_stamp_failed",
                directory=str(directory),
                error=str(error),
                retried="at the next start",
            )

    def _judge(self, directory: Path, stamp: Stamp) -> None:
        if stamp.kind != self.kind:
            raise DataFormatError(
                f"{directory} holds the data of a {stamp.kind}, not of a {self.kind}",
                fix=f"give each process its own directory; nothing in {directory} was changed",
            )
        if stamp.version > self.version:
            raise DataFormatError(
                f"{directory} has data format {stamp.version}, written by Penstock"
                f" {stamp.release}; this is Penstock {release()}, which reads up to"
                f" {self.version}",
                fix=f"start Penstock {stamp.release} or later on it, or restore a backup from"
                " before the upgrade into another directory; nothing was changed",
            )

    def _write(self, directory: Path, version: int) -> None:
        """Durable on return; a crash leaves the old stamp or the new one."""
        line = f"penstock {self.kind} {version} {release()}\n"
        atomic_write(directory / FILE_NAME, line)


def _unreadable(path: Path, reason: str) -> DataFormatError:
    return DataFormatError(
        f"{path}: {reason}",
        fix="restore the directory from a backup; if only this file is damaged, and you know which"
        " release wrote the others, remove it: that release takes the rest as its own",
    )
