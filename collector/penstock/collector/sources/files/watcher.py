"""Directories that inotify watches, so that files nobody writes to cost nothing.

inotify tells of local file systems only: what another machine writes to NFS, or a program behind
FUSE, comes without an event. So a directory is watched if its file system is one of `_LOCAL`; if
one directory of a source is not, the source polls. inotify does not tell everything on a local
one either: a write through a memory map, through a hard link in another directory, or more events
than the kernel's queue holds. That is why a source that watches looks at everything now and then.

`watchfiles` reads the events on its own thread, which wakes the event loop.
"""

import asyncio
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_STEP_MS: Final = 50
"""Between two looks of the thread at what the kernel reported."""
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
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._watched: frozenset[Directory] = frozenset()
        self._written: set[str] = set()
        self._names = False
        self._reason = ""

    @property
    def is_on(self) -> bool:
        """True if changes are reported; otherwise files must be polled."""
        return self._thread is not None

    async def watch(self, directories: Iterable[str]) -> bool:
        """Watch these directories and no others, if all of them can be watched.

        Returns:
            Whether another watch has begun: what happened before it must be looked for.
        """
        try:
            watched = frozenset(_identified(directories))
            if self.is_on and watched == self._watched:
                return False
            _check(watched)
            thread, stopping = await self._begin(sorted(path for path, *_ in watched))
        except OSError as error:
            self._refuse(error)
            await self.close()
            return False
        await self.close()
        self._thread, self._stopping, self._watched = thread, stopping, watched
        self._reason = ""
        return True

    def take(self) -> Changes:
        """Return what changed since this was called last."""
        changes = Changes(frozenset(self._written), self._names)
        self._written, self._names = set(), False
        return changes

    async def close(self) -> None:
        """Watch nothing any more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            await asyncio.to_thread(thread.join)

    async def _begin(self, paths: list[str]) -> tuple[threading.Thread, threading.Event]:
        """Return when a thread reads events.

        Raises:
            OSError: A directory cannot be watched.
        """
        stopping = threading.Event()
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            from watchfiles import Change, watch

            try:
                for changes in watch(
                    *paths, watch_filter=None, step=_STEP_MS, debounce=4 * _STEP_MS,
                    rust_timeout=_STEP_MS, yield_on_timeout=True, recursive=False,
                    stop_event=stopping, raise_interrupt=False,
                ):  # fmt: skip
                    written = {path for change, path in changes if change is Change.modified}
                    names = len(written) < len({path for _, path in changes})
                    loop.call_soon_threadsafe(self._note, ready, written, names)
            except Exception as error:  # noqa: BLE001 - whatever it is, files are polled then
                loop.call_soon_threadsafe(self._fail, ready, stopping, error)

        thread = threading.Thread(target=read, name="inotify", daemon=True)
        thread.start()
        try:
            await ready
        except BaseException:
            stopping.set()
            raise
        return thread, stopping

    def _note(self, ready: "asyncio.Future[None]", written: set[str], names: bool) -> None:
        if not ready.done():
            ready.set_result(None)
        self._written |= written
        self._names |= names
        if written or names:
            self._wake()

    def _fail(
        self, ready: "asyncio.Future[None]", stopping: threading.Event, error: Exception
    ) -> None:
        if not ready.done():
            ready.set_exception(error if isinstance(error, OSError) else OSError(str(error)))
        elif stopping is self._stopping:
            self._refuse(error)
            self._thread = None
            self._wake()

    def _refuse(self, error: Exception) -> None:
        """Say once why files are polled."""
        if str(error) != self._reason:
            self._reason = str(error)
            self._log.info("files_polled", reason=self._reason)


def _identified(directories: Iterable[str]) -> Iterator[Directory]:
    for path in directories:
        status = Path(path).stat()
        yield path, status.st_dev, status.st_ino


def _check(directories: Iterable[Directory]) -> None:
    """Raise an OSError where inotify does not say what happens in a directory."""
    if not sys.platform.startswith("linux"):
        raise OSError(f"there is no inotify on {sys.platform}")
    mounts = dict(_mounts(Path("/proc/self/mountinfo").read_text()))
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
