"""Directories that inotify watches, so that files nobody writes to cost nothing.

inotify tells of local file systems only: what another machine writes to NFS, or a program behind
FUSE, comes without an event. So a directory is watched if its file system is one of `_LOCAL`; if
one directory of a source is not, the source polls. inotify does not tell everything on a local
one either: a write through a memory map, through a hard link in another directory, or more events
than the kernel's queue holds. That is why a source that watches looks at everything now and then.

The event loop waits for the events beside its sockets: a directory in which nothing happens costs
no wake-up.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inotify_simple import INotify, flags

_PAUSE_S: Final = 0.05
"""Seconds without a look at events after some were read; the kernel keeps equal ones once."""
_WRITTEN: Final = flags.MODIFY | flags.ATTRIB
_NAMES: Final = (
    flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
    | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
)  # fmt: skip
_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs"}
    | {"tmpfs", "xfs", "zfs"}
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")

Directory = tuple[str, int, int]
"""Path, device and inode."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes since the last call.

    Attributes:
        written: Paths of files that were written to.
        names: Whether a name was created, removed or changed.
    """

    written: frozenset[str]
    names: bool


class Watcher:
    """Watches directories, not what is below them.

    Args:
        wake: Called on the event loop when something changed.
        log: A structlog logger.
    """

    def __init__(self, wake: Callable[[], None], log: Any) -> None:
        self._wake = wake
        self._log = log
        self._inotify: INotify | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._watched: frozenset[Directory] = frozenset()
        self._paths: dict[int, str] = {}
        self._written: set[str] = set()
        self._names = False
        self._reason = ""

    @property
    def is_on(self) -> bool:
        """True if changes are reported; otherwise files must be polled."""
        return self._inotify is not None

    def watch(self, directories: Iterable[str]) -> bool:
        """Watch these directories and no others, if all of them can be watched.

        Returns:
            Whether another watch has begun: what happened before it must be looked for.
        """
        try:
            watched = frozenset(_identified(directories))
            if self.is_on and watched == self._watched:
                return False
            _check(watched)
            self.close()
            self._begin(sorted(path for path, *_ in watched))
        except OSError as error:
            self.close()
            if str(error) != self._reason:
                self._reason = str(error)
                self._log.info("files_polled", reason=self._reason)
            return False
        self._watched = watched
        self._reason = ""
        return True

    def take(self) -> Changes:
        """Return what changed since this was called last."""
        changes = Changes(frozenset(self._written), self._names)
        self._written, self._names = set(), False
        return changes

    def close(self) -> None:
        """Watch nothing any more."""
        inotify, self._inotify = self._inotify, None
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if inotify is not None:
            asyncio.get_running_loop().remove_reader(inotify.fileno())
            inotify.close()

    def _begin(self, paths: list[str]) -> None:
        """Report what happens in these directories from now on.

        Raises:
            OSError: A directory cannot be watched, or the user has as many watches as may be.
        """
        self._inotify = inotify = INotify(nonblocking=True)
        self._paths = {inotify.add_watch(path, _WRITTEN | _NAMES): path for path in paths}
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        if self._inotify is not None:
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._read)

    def _read(self) -> None:
        """Note what the kernel reported; where its queue overflowed, everything is looked at."""
        inotify = self._inotify
        if inotify is None:
            return
        for event in inotify.read(timeout=0):
            if event.mask & _WRITTEN and event.name:
                self._written.add(f"{self._paths[event.wd].rstrip('/')}/{event.name}")
            else:
                self._names = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(inotify.fileno())
        self._pause = loop.call_later(_PAUSE_S, self._listen)
        self._wake()


def _identified(directories: Iterable[str]) -> Iterator[Directory]:
    for path in directories:
        status = Path(path).stat()
        yield path, status.st_dev, status.st_ino


def _check(directories: Iterable[Directory]) -> None:
    """Raise an OSError where inotify does not say what happens in a directory."""
    if not sys.platform.startswith("linux"):
        raise OSError(f"there is no inotify on {sys.platform}")
    mounts = dict(_mounts(os.fsdecode(Path("/proc/self/mountinfo").read_bytes())))
    for path, *_ in directories:
        kind = file_system_of(os.path.realpath(path), mounts)
        if kind not in _LOCAL:
            raise OSError(f"{path} is on a file system of type {kind}")


def file_system_of(path: str, mounts: Mapping[str, str]) -> str:
    """Return the type of the file system that a path without links is on.

    Args:
        path: Absolute.
        mounts: Types by mount point, the root among them.
    """
    while path not in mounts and path != "/":
        path = path.rpartition("/")[0] or "/"
    return mounts.get(path, "unknown")


def _mounts(text: str) -> Iterator[tuple[str, str]]:
    """Mount points and types, in the order of mounting: a later one hides an earlier one.

    A line is ``36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw`` (proc(5)).
    """
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4]
        yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), point), after.split(" ")[0]
