"""Files that are replaced whole, and names that outlast a power loss.

A process that is killed, and a machine that loses power, leave a file as it was or as it was to be,
never a mix. `atomic_writer` takes these steps; a durable file needs all of them:

    1 create          a temporary file in the same directory, under a name that is free
    2 write
    3 sync            the file's bytes are on the disk before its name leads to them
    4 rename          over the old file, or, for one that may not be there yet, a hard link
    5 sync directory  the name is on the disk

A crash between them leaves the old file, and the temporary one beside it, whose name begins with a
dot. An error removes the temporary one.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final


class FileSystem:
    """The steps above, done by the operating system; a test puts one that crashes in its place."""

    def create(self, path: Path, mode: int | None) -> BinaryIO:
        """Make a file that is not there yet.

        Args:
            path: Its name.
            mode: Its permissions, whatever the umask says; None: those that the umask leaves.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o666 if mode is None else mode)
        if mode is not None:
            os.fchmod(descriptor, mode)
        return os.fdopen(descriptor, "wb")

    def sync(self, file: BinaryIO) -> None:
        """Make a file's bytes durable."""
        file.flush()
        os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what has it."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which nothing may have."""
        try:
            target.hardlink_to(source)
        except FileExistsError as error:
            raise FileExistsError(error.errno, error.strerror, str(target)) from None

    def unlink(self, path: Path) -> None:
        """Remove a file's name, if there is one."""
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_SYSTEM: Final = FileSystem()


def atomic_write(  # noqa: PLR0913 - each is one property of a file
    path: Path,
    data: bytes | str,
    *,
    mode: int | None = None,
    exclusive: bool = False,
    durable: bool = True,
    parents: bool = False,
    system: FileSystem = _SYSTEM,
) -> None:
    """Write a whole file, in place of the one that has its name.

    Args:
        path: The file.
        data: Its content; text is written as UTF-8.
        mode: Its permissions, as in 0o600; None: those that the umask leaves.
        exclusive: Refuse to replace a file. It takes a file system with hard links.
        durable: False leaves out both syncs: a killed process leaves the old or the new file as
            before, and a power loss may leave an empty one. For files that each start writes again.
        parents: Make the directories above it that are missing.
        system: File system that performs the steps.

    Raises:
        FileExistsError: With `exclusive`: something has the name.
        OSError: The disk failed; the file is as it was, unless only its directory's sync failed.
    """
    with atomic_writer(
        path, mode=mode, exclusive=exclusive, durable=durable, parents=parents, system=system
    ) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def atomic_writer(  # noqa: PLR0913 - as above
    path: Path,
    *,
    temporary: Path | None = None,
    mode: int | None = None,
    exclusive: bool = False,
    durable: bool = True,
    parents: bool = False,
    system: FileSystem = _SYSTEM,
) -> Iterator[BinaryIO]:
    """A file to write that takes its name at the end of the block, unless the block raises.

    Args:
        path: The file; all arguments are those of `atomic_write`.
        temporary: The name on the way, in the same directory, for a file so long that people meet
            it there. The caller says what it means that the name is taken.
        mode: See there.
        exclusive: See there.
        durable: See there.
        parents: See there.
        system: See there.

    Raises:
        FileExistsError: `temporary` is taken; or see there.
        OSError: See there.
    """
    changed = make_directories(path.parent) if parents else []
    if temporary is None:
        # Of this thread alone, on this machine: whatever has the name was left by a crash.
        temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")
        system.unlink(temporary)
    file = system.create(temporary, mode)
    try:
        with file:
            yield file
            if durable:
                system.sync(file)
        if exclusive:
            system.link(temporary, path)
            system.unlink(temporary)
        else:
            system.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            system.unlink(temporary)
        raise
    if durable:
        for directory in (path.parent, *changed):
            system.sync_directory(directory)


def make_directories(path: Path) -> list[Path]:
    """Make a directory with its missing parents.

    Returns:
        The directories that got a new name, for `sync_directories`.
    """
    changed = []
    missing = path
    while not missing.exists():
        missing = missing.parent
        changed.append(missing)
    path.mkdir(parents=True, exist_ok=True)
    return changed


def sync_directories(paths: Iterable[Path]) -> None:
    """Make the names in directories durable, once each."""
    for path in dict.fromkeys(paths):
        _SYSTEM.sync_directory(path)
