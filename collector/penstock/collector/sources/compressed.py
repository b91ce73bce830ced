"""Files that rotation compressed before they were read to their end, read on in what it left."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from typing_extensions import override

from penstock.collector.core.compressed import End, Fit, Next, Seen, choose, fit
from penstock.collector.core.files import FileState, Verdict
from penstock.collector.core.inflate import GZIP, ZSTD, Packing, unpack
from penstock.collector.core.lines import Line
from penstock.collector.errors import UndecodableError
from penstock.collector.limits import COMPRESSED_PIECES_MAX, FILE_READ_BYTES, HEAD_BYTES
from penstock.collector.source_sections import FileSource as FileSection
from penstock.collector.sources.tail import Tail, make_cutter

_PACKINGS: Final[dict[str, Packing]] = {".gz": GZIP, ".zst": ZSTD}

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change: while it is the same, so is the file."""


class Search:
    """Looks for what is unread of files that are gone, a step at a time, in their directories.

    Args:
        note: Counts something of the source.
        complain: Says once that something cannot be read.
        log: A structlog logger.
    """

    def __init__(
        self,
        section: FileSection,
        note: Callable[[str], None],
        complain: Callable[[str, OSError], None],
        log: Any,
    ) -> None:
        self._section = section
        self._note = note
        self._complain = complain
        self._log = log
        self._looks: dict[Path, _Look] = {}
        self._open: _Look | None = None
        self._taken: set[Stamp] = set()

    def seek(
        self, lost: Sequence[FileState], now_ns: int
    ) -> tuple[list[tuple[FileState, Tail | None]], bool]:
        """Take one step.

        Returns:
            Files for which it is decided, each with what reads its rest, if there is any; and
            whether the next step is worth taking at once.
        """
        listed = self._list({Path(state.path).parent for state in lost}, now_ns)
        decided: list[tuple[FileState, Tail | None]] = []
        for state in sorted(lost, key=lambda state: -state.position):
            if Path(state.path).parent not in listed:
                continue
            todo, look = self._choose(state, now_ns)
            while todo is Next.LOOK:
                assert look is not None
                if self._step(look):
                    return decided, True
                todo, look = self._choose(state, now_ns)
            if todo is Next.GIVE_UP:
                self._give_up(state)
                decided.append((state, None))
            elif look is not None:
                try:
                    decided.append((state, self._read_on(state, look)))
                except OSError as error:
                    self._complain(str(look.path), error)
        return decided, False

    def close(self) -> None:
        """Nothing is looked for now."""
        self._open = None
        for look in self._looks.values():
            look.close()
        self._looks.clear()

    def _list(self, directories: set[Path], now_ns: int) -> set[Path]:
        """See which compressed files there are; returns the directories that could be read."""
        found: dict[Path, _Look] = {}
        readable = set()
        for directory in directories:
            try:
                for path, stamp in _compressed_in(directory):
                    look = self._looks.get(path)
                    if look is None or look.stamp != stamp:
                        look = _Look(path, stamp, now_ns)
                    elif look.again:
                        look = _Look(path, stamp, now_ns, again=True)
                    found[path] = look
                readable.add(directory)
            except OSError as error:
                self._complain(str(directory), error)
        for path, look in self._looks.items():
            if found.get(path) is not look:
                look.close()
        self._looks = found
        return readable

    def _choose(self, state: FileState, now_ns: int) -> tuple[Next, "_Look | None"]:
        wait_ns = self._section.rotate_wait_s * 1e9
        directory = Path(state.path).parent
        looks = [
            look
            for look in self._looks.values()
            if look.path.parent == directory and look.stamp not in self._taken
        ]
        found = {
            str(look.path): look.seen(fresh=now_ns - look.since_ns < wait_ns) for look in looks
        }
        todo, name = choose(state, found)
        if todo in (Next.WAIT, Next.GIVE_UP):
            for look in looks:
                one = found[str(look.path)]
                if not one.fresh and fit(state, one) in (Fit.BROKEN, Fit.UNKNOWN):
                    self._refuse(look, state)
        return todo, self._looks.get(Path(name))

    def _step(self, look: "_Look") -> bool:
        """Look on in a file; false when nothing could be read of it now."""
        if self._open is not None and self._open is not look:
            self._open.close()
        self._open = look
        try:
            look.step(self._section.decompressed_bytes_max)
        except OSError as error:
            self._complain(str(look.path), error)
            look.refuse(error.strerror or str(error), again=True)
            return False
        return True

    def _refuse(self, look: "_Look", state: FileState) -> None:
        if look.told:
            return
        look.told = True
        self._note("compressed_refused")
        self._log.warning(
            "a compressed file that may have what is unread of another cannot be read; put a whole"
            " one in its place, or remove it to give that up",
            path=str(look.path),
            reason=look.reason,
            file=state.path,
            position=state.position,
        )

    def _give_up(self, state: FileState) -> None:
        self._note("files_gone")
        self._log.warning(
            "a file is gone since the last run, and no compressed file beside it has its rest",
            path=state.path,
            position=state.position,
        )

    def _read_on(self, state: FileState, look: "_Look") -> Tail | None:
        if look.length == state.position:
            self._taken.add(look.stamp)
            self._log.info("rotated file is done", path=state.path)
            return None
        stream = Stream(look.path, look.stamp)
        self._taken.add(look.stamp)
        self._note("compressed_read")
        self._log.info(
            "file goes on in a compressed one",
            path=state.path,
            compressed=str(look.path),
            generation=state.generation,
            position=state.position,
        )
        lines, joiner = make_cutter(self._section, state.position)
        return CompressedTail(
            state, stream.descriptor, lines, joiner, stream=stream, length=look.length
        )


@dataclass(slots=True)
class CompressedTail(Tail):
    """The rest of a file that is gone; its content cannot change.

    Attributes:
        stream: The whole content, from its beginning.
        length: Its bytes.
        offset: How many of them were read, or passed over.
    """

    stream: "Stream" = field(kw_only=True)
    length: int = field(kw_only=True)
    offset: int = 0
    failed: str = ""

    @property
    @override
    def key(self) -> tuple[int, int]:
        return -1, self.state.generation  # another file may have the device and inode by now

    @property
    @override
    def size(self) -> int:
        return self.length

    @override
    def verdict(self) -> Verdict:
        return Verdict.SAME

    @override
    def has_name(self, path: Path) -> bool:
        return False

    @override
    def read(self, now_ns: int) -> tuple[int, list[Line], bool]:
        """As any tail.

        Raises:
            OSError: It is not what it was; what is unread is looked for again by the next run.
        """
        if self.failed:
            raise _ChangedError(self.failed)
        try:
            data, at_end = self.stream.read()
        except (UndecodableError, OSError) as error:
            self.failed = str(error)
            raise _ChangedError(self.failed) from error
        passed_over = max(0, self.lines.position - self.offset)
        self.offset += len(data)
        return *self.feed(data[passed_over:], now_ns), at_end

    @override
    def close(self) -> None:
        self.stream.close()


class Stream:
    """What a compressed file becomes, read from its beginning in bounded pieces.

    Raises:
        OSError: It cannot be opened, or is not the one that the stamp is of.
    """

    def __init__(self, path: Path, stamp: Stamp) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._file: BinaryIO = os.fdopen(descriptor, "rb", buffering=FILE_READ_BYTES)
        if _stamp_of(os.fstat(descriptor)) != stamp:
            self._file.close()
            raise _ChangedError(str(path))
        self._pieces: Iterator[bytes] = unpack(self._file.read, _PACKINGS[path.suffix])
        self._ready = bytearray()
        self._broken: UndecodableError | None = None

    @property
    def descriptor(self) -> int:
        """Of the compressed file."""
        return self._file.fileno()

    def read(self) -> tuple[bytes, bool]:
        """At most `FILE_READ_BYTES`, perhaps none, and whether that was the end.

        Raises:
            UndecodableError: It is broken, and everything before that was returned.
        """
        ended = False
        for _ in range(COMPRESSED_PIECES_MAX):
            if len(self._ready) > FILE_READ_BYTES or self._broken is not None:
                break
            try:
                piece = next(self._pieces, None)
            except UndecodableError as error:
                self._broken = error
                break
            if piece is None:
                ended = True
                break
            self._ready += piece
        if self._broken is not None and not self._ready:
            raise self._broken
        data = bytes(self._ready[:FILE_READ_BYTES])
        del self._ready[:FILE_READ_BYTES]
        return data, ended

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()


@dataclass(slots=True)
class _Look:
    """One compressed file being looked at.

    Attributes:
        since_ns: When it was first seen as it is.
        again: It could not be read; it is looked at anew.
        told: The operator knows that it cannot be read.
    """

    path: Path
    stamp: Stamp
    since_ns: int
    again: bool = False
    told: bool = False
    head: bytes = b""
    length: int = 0
    end: End = End.OPEN
    reason: str = ""
    stream: Stream | None = None

    def seen(self, *, fresh: bool) -> Seen:
        """For the decision."""
        return Seen(self.head, self.length, self.end, fresh or self.again)

    def step(self, bytes_max: int) -> None:
        """Look on.

        Raises:
            OSError: It cannot be read now.
        """
        if self.stream is None:
            self.stream = Stream(self.path, self.stamp)
            self.head, self.length = b"", 0
        self.again = False
        try:
            data, ended = self.stream.read()
        except UndecodableError as error:
            self.refuse(str(error))
            return
        self.head += data[: HEAD_BYTES - len(self.head)]
        self.length += len(data)
        if self.length > bytes_max:
            self.refuse(f"more than decompressed_bytes_max ({bytes_max}) after decompression")
        elif ended:
            self.end = End.WHOLE
            self.close()

    def refuse(self, reason: str, *, again: bool = False) -> None:
        """It is not looked at to its end."""
        self.end, self.reason, self.again = End.BROKEN, reason, again
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None


class _ChangedError(OSError):
    """A file is not the one that was looked at."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = f"it changed after it was looked at: {reason}"


def _compressed_in(directory: Path) -> Iterator[tuple[Path, Stamp]]:
    for path in siblings(directory):
        if path.suffix in _PACKINGS:
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    yield path, _stamp_of(status)


def siblings(directory: Path) -> list[Path]:
    """What is in a directory, by name; nothing when there is none.

    Raises:
        OSError: That cannot be told now.
    """
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
