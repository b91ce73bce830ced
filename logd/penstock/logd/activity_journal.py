"""Events that wait to be written to `__activity`, in a file: a kill of the process loses none.

The file is lines, one an event, oldest first:

    8 hexadecimal digits: CRC32 of the rest | space | JSON: {"id", "kind", "value"} | newline

`value` is the event's own JSON, as text. A line that is cut or changed is passed over and counted.
What has been stored since is in the file until all is, or until the rest is written anew: the
event's id keeps it from being stored twice.

A line is in the page cache when `append` returns: what happens to the process does not matter. To
outlast the machine it takes `sync`, which whoever is answered waits for.
"""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import structlog

from penstock.logd.store.disk import REAL_DISK, Disk

_REWRITE_BYTES: Final = 1024 * 1024
"""Bytes of the file from which on it is worth while to leave out what is stored."""

_CRC_LENGTH: Final = 8
_log = structlog.get_logger()


class Event(NamedTuple):
    """What is to be written."""

    id: str
    kind: str
    value: bytes


class ActivityJournal:
    """The file. Used on the event loop, but for `sync`.

    Args:
        path: Of the file; it is made if it is not there.
        disk: The file system.

    Attributes:
        found: What was in it.
        passed_over: Lines that were cut or changed.
        appended: How many events `append` took.
        synced: As many of them outlast the machine, or are known not to.
        problem: Why it cannot be written; empty: it can.

    Raises:
        OSError: It can be neither read nor made.
    """

    def __init__(self, path: Path, *, disk: Disk = REAL_DISK) -> None:
        self._path = path
        self._disk = disk
        self._file = disk.open(path) if disk.exists(path) else disk.create(path)
        disk.sync_directory(path.parent)
        self._size = self._file.size()
        self.appended = self.synced = 0
        self.passed_over = 0
        self.problem = ""
        self.found = tuple(self._read())
        if self.passed_over:
            _log.warning("activity journal", path=str(path), lines_passed_over=self.passed_over)
            self._rewrite(self.found)

    def append(self, event: Event) -> bool:
        """Write an event behind the others; whether that was possible."""
        taken = self._write(self._size, _line(event))
        self.appended += taken
        return taken

    def settle(self, waiting: Iterable[Event], waiting_count: int) -> None:
        """Take in what still waits after some was stored; the rest need not be in the file."""
        if not self._size or (waiting_count and self._size < _REWRITE_BYTES):
            return
        if not waiting_count:
            self._truncate(0)
            return
        left = b"".join(map(_line, waiting))
        if len(left) * 2 < self._size:
            self._replace(left)

    def sync(self) -> bool:
        """Make what was appended outlast the machine; whether that was possible. On any thread."""
        upto = self.appended  # what is appended meanwhile may be synced or not
        try:
            self._file.sync()
        except OSError as error:
            self._failed(error)
            return False
        finally:
            self.synced = max(self.synced, upto)
        return True

    def _read(self) -> Iterator[Event]:
        for line in self._file.read(0, self._size).split(b"\n"):
            event = _event(line)
            if event is not None:
                yield event
            elif line:
                self.passed_over += 1

    def _rewrite(self, events: Iterable[Event]) -> None:
        self._replace(b"".join(map(_line, events)))

    def _replace(self, data: bytes) -> None:
        """Put another file in place: a kill leaves the old one or the new one.

        Not `penstock.base.files.atomic_write`: the file stays open, and is the journal's from the
        rename on, also where the directory's sync fails.
        """
        temporary = self._path.with_name(self._path.name + ".tmp")
        try:
            file = self._disk.create(temporary)
            file.write(0, [data])
            file.sync()
            self._disk.rename(temporary, self._path)
            self._file, self._size = file, len(data)  # the one before has no name any more
            self._disk.sync_directory(self._path.parent)
        except OSError as error:
            self._failed(error)
            return
        self.problem = ""

    def _write(self, position: int, data: bytes) -> bool:
        try:
            self._file.write(position, [data])
        except OSError as error:
            self._truncate(position)
            self._failed(error)
            return False
        self._size, self.problem = position + len(data), ""
        return True

    def _truncate(self, size: int) -> None:
        try:
            self._file.truncate(size)
        except OSError as error:
            self._failed(error)
            return
        self._size = size

    def _failed(self, error: OSError) -> None:
        if not self.problem:
            _log.error("activity journal", path=str(self._path), error=str(error))
        self.problem = f"{self._path}: {error.strerror or error}"


def _line(event: Event) -> bytes:
    body = orjson.dumps({"id": event.id, "kind": event.kind, "value": event.value.decode()})
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _event(line: bytes) -> Event | None:
    """The event of a line; None: it is none."""
    body = line[_CRC_LENGTH + 1 :]
    if line[:_CRC_LENGTH] != b"%08x" % zlib.crc32(body) or not body:
        return None
    document = orjson.loads(body)
    return Event(document["id"], document["kind"], document["value"].encode())
