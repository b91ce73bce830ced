"""Files that rotation compressed before they were read to their end, read on in what it left."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from typing_extensions import override

from penstock.collector.decompression import GZIP, ZSTD, Packing, unpack
from penstock.collector.descriptors import Descriptors
from penstock.collector.errors import UndecodableError
from penstock.collector.limits import COMPRESSED_PIECES_MAX, FILE_READ_BYTES, HEAD_BYTES
from penstock.collector.sources.files.compressed_identity import End, Fit, Next, Seen, choose, fit
from penstock.collector.sources.files.identity import DIGEST_BYTES, FileState, Verdict
from penstock.collector.sources.files.settings import FileSettings
from penstock.collector.sources.files.tail import Tail, make_cutter
from penstock.collector.sources.line_framing import Line

_PACKINGS: Final[dict[str, Packing]] = {".gz": GZIP, ".zst": ZSTD}

_AGAIN_MAX_NS: Final = 60 * 10**9
"""Between two looks at what cannot be read."""

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change: while it is the same, so is the file."""

Span = tuple[int, int]
"""Two positions, the second exclusive."""


class Stream:
    """The decompressed bytes of a file, read from its beginning in bounded chunks.

    Raises:
        OSError: It cannot be opened, or is not the one that the stamp is of.
    """

    def __init__(self, path: Path, stamp: Stamp) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._file: BinaryIO = os.fdopen(descriptor, "rb", buffering=FILE_READ_BYTES)
        if _stamp_of(os.fstat(descriptor)) != stamp:
            self._file.close()
            raise ChangedError(str(path))
        self._pieces: Iterator[bytes] = unpack(self._file.read, _PACKINGS[path.suffix])
        self._ready = bytearray()
        self._broken: UndecodableError | None = None

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def read(self) -> tuple[bytes, bool]:
        """Return at most `FILE_READ_BYTES`, perhaps none, and whether that was the end.

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
class Look:
    """One compressed file being looked at.

    Attributes:
        since_ns: Time when the file was first found unchanged.
        again: It could not be read; it is looked at again.
        is_logged: The operator knows that it cannot be read.
        not_before_ns: Time before which it is not looked at again.
    """

    path: Path
    stamp: Stamp
    since_ns: int
    again: bool = False
    is_logged: bool = False
    not_before_ns: int = 0
    head: bytes = b""
    length: int = 0
    end: End = End.OPEN
    reason: str = ""
    stream: Stream | None = None
    digests: dict[Span, str] = field(default_factory=dict)
    _spans: dict[Span, hashlib.blake2b] = field(default_factory=dict)
    _fits: dict[int, Fit] = field(default_factory=dict)

    @property
    def modified_ns(self) -> int:
        return self.stamp[3]

    def seen(self, *, fresh: bool = False) -> Seen:
        """Return what was seen so far, for the decision."""
        return Seen(
            self.head, self.length, self.end, self.modified_ns, fresh, self.again, self.digests
        )

    def fit(self, state: FileState) -> Fit:
        """Compare it with a file that is gone; the result is cached until more is seen."""
        known = self._fits.get(state.generation)
        if known is None:
            known = fit(state, self.seen())
            if known is not Fit.UNDECIDED:
                self._fits[state.generation] = known
        return known

    def step(self, bytes_max: int, spans: Iterable[Span]) -> None:
        """Look on, or again when it was looked at to its end; `spans` are digested on the way.

        Raises:
            OSError: It cannot be read now.
        """
        if self.stream is None:
            self.stream = Stream(self.path, self.stamp)
            self.head, self.length, self.end, self.digests = b"", 0, End.OPEN, {}
            self._spans = {span: hashlib.blake2b(digest_size=DIGEST_BYTES) for span in spans}
        self._fits = {key: one for key, one in self._fits.items() if one is Fit.OTHER}
        try:
            data, ended = self.stream.read()
        except UndecodableError as error:
            self.refuse(str(error))
            return
        self._take(data)
        if self.length > bytes_max:
            self.refuse(f"more than max_decompressed_bytes ({bytes_max}) after decompression")
        elif ended:
            self.end = End.WHOLE
            self.close()

    def _take(self, data: bytes) -> None:
        self.head += data[: HEAD_BYTES - len(self.head)]
        start, self.length = self.length, self.length + len(data)
        for (first, end), digest in list(self._spans.items()):
            digest.update(data[max(0, first - start) : max(0, end - start)])
            if self.length >= end:
                self.digests[first, end] = digest.hexdigest()
                del self._spans[first, end]

    def refuse(self, reason: str, *, again: bool = False) -> None:
        """It is not looked at to its end."""
        self.end, self.reason, self.again = End.BROKEN, reason, again
        if again:  # what was seen of it before says nothing now
            self.head, self.length, self.digests = b"", 0, {}
        self._fits = {key: one for key, one in self._fits.items() if one is Fit.OTHER}
        self.close()

    def renewed(self, now_ns: int) -> "Look":
        """Return a look that opens the file again; its age and whether it was logged stay.

        At once for the first time; then after a pause that grows with how long it has failed.
        """
        pause_ns = min(now_ns - self.since_ns, _AGAIN_MAX_NS)
        return Look(self.path, self.stamp, self.since_ns, False, self.is_logged, now_ns + pause_ns)

    def close(self) -> None:
        """Give the descriptor back."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None


class ChangedError(OSError):
    """A file is not the one that was looked at."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = f"it changed after it was looked at: {reason}"


def compressed_in(
    directory: Path, complain: Callable[[str, OSError], None]
) -> Iterator[tuple[Path, Stamp]]:
    """The compressed files of a directory; a link that leads nowhere is none, and complained of.

    Raises:
        OSError: The directory cannot be read now.
    """
    for path in siblings(directory):
        if path.suffix in _PACKINGS:
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # it went between the listing and now
            except OSError as error:
                path.lstat()  # it is a link; else nothing is known of the directory now
                complain(str(path), error)
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, _stamp_of(status)


def homes(state: FileState) -> list[Path]:
    """Return the directories that may hold other names of a file: its path's and its target's."""
    path = Path(state.path)
    target = Path(os.path.realpath(path))  # never raises, also where links go round
    return list(dict.fromkeys((path.parent, target.parent)))


class Names:
    """The names that files have now; each directory is listed once."""

    def __init__(self) -> None:
        self._known: dict[Path, dict[tuple[int, int], Path]] = {}
        self._doubts: dict[Path, OSError] = {}

    def of(self, state: FileState) -> Path | None:
        """A name in the file's directory; None when it has none there.

        Raises:
            OSError: It cannot be found out now.
        """
        near = homes(state)
        for home in near:
            if home not in self._known:
                self._known[home] = dict(self._named(home))
            path = self._known[home].get((state.device, state.inode))
            if path is not None:
                return path
        for doubt in (self._doubts[home] for home in near if home in self._doubts):
            raise doubt
        return None

    def _named(self, directory: Path) -> Iterator[tuple[tuple[int, int], Path]]:
        for path in siblings(directory):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # it went between the listing and now, or is a link that leads nowhere
            except OSError as error:
                if not os.path.islink(path):  # noqa: PTH114 - which never raises; what a link leads to has its own directory
                    self._doubts[directory] = error
                continue
            yield (status.st_dev, status.st_ino), path


def siblings(directory: Path) -> list[Path]:
    """Return a directory's entries, sorted by name; none where there is no such directory.

    Raises:
        OSError: It cannot be found out now.
    """
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


Decided = list[tuple[FileState, Tail | None]]
"""Files for which it is known, each with what reads its rest, if there is any."""


class Search:
    """Looks for what is unread of files that are gone, a step at a time, in their directories.

    Args:
        note: Counts something of the source.
        complain: Says once that something cannot be read.
        log: A structlog logger.
        descriptors: Budget of open files.
        is_held: Whether transforms hold records of an origin: its file is followed to its end even
            where all of it was read.
    """

    def __init__(
        self,
        section: FileSettings,
        note: Callable[[str], None],
        complain: Callable[[str, OSError], None],
        log: Any,
        descriptors: Descriptors,
        *,
        is_held: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._descriptors = descriptors
        self._is_held = is_held
        self._section = section
        self._note = note
        self._complain = complain
        self._log = log
        self._looks: dict[Path, Look] = {}
        self._open: Look | None = None
        self._taken: set[Stamp] = set()
        self._homes: dict[int, list[Path]] = {}
        self._by_home: dict[Path, list[Look]] = {}
        self._readable: set[Path] = set()
        self._listed_ns: int | None = None
        self._waits = False

    def seek(self, lost: Sequence[FileState], now_ns: int) -> tuple[Decided, bool]:
        """Take one step.

        Returns:
            What is decided, and whether the next step is worth taking at once.
        """
        if self._list(lost, now_ns):
            self._waits = False
        elif self._waits:
            return [], False
        decided: Decided = []
        alike: list[FileState] = []
        for state in sorted(lost, key=lambda state: -state.position):
            if not self._readable.issuperset(self._homes[state.generation]):
                continue
            todo, look = self._choose(state, now_ns)
            while todo is Next.LOOK:
                assert look is not None
                if self._step(look, lost):
                    return decided, True
                todo, look = self._choose(state, now_ns)
            if todo is Next.ALIKE:
                alike.append(state)
            else:
                decided += self._settle(todo, state, look)
        if not decided:  # else one of these may have been another's
            for state in alike:
                self._tell_alike(state)
                decided += self._settle(Next.GIVE_UP, state, None)
        self._waits = not decided
        return decided, False

    def release(self, stamp: Stamp) -> None:
        """A compressed file could not be read on: what is there now is looked at again."""
        self._taken.discard(stamp)
        for path in [path for path, look in self._looks.items() if look.stamp == stamp]:
            self._looks.pop(path).close()
        self._listed_ns = None

    def close(self) -> None:
        """Stop looking."""
        self._open = None
        self._listed_ns = None
        for look in self._looks.values():
            look.close()
        self._looks.clear()
        self._by_home.clear()

    def _settle(self, todo: Next, state: FileState, look: Look | None) -> Decided:
        if todo is Next.GIVE_UP:
            self._give_up(state)
            return [(state, None)]
        if look is not None:
            try:
                return [(state, self._read_on(state, look))]
            except OSError as error:
                self._complain(str(look.path), error)
        return []

    def _list(self, lost: Sequence[FileState], now_ns: int) -> bool:
        """See which compressed files there are; false when that was seen just now."""
        generations = {state.generation for state in lost}
        if (
            self._listed_ns is not None
            and now_ns - self._listed_ns < self._section.poll_ms * 1_000_000
            and generations <= self._homes.keys()
        ):
            return False
        self._listed_ns = now_ns
        self._homes = {state.generation: homes(state) for state in lost}
        self._readable = set()
        found: dict[Path, Look] = {}
        self._by_home = {}
        for directory in sorted({home for some in self._homes.values() for home in some}):
            try:
                for path, stamp in compressed_in(directory, self._complain):
                    look = self._looks.get(path)
                    if look is None or look.stamp != stamp:
                        look = Look(path, stamp, now_ns)
                    elif look.again and now_ns >= look.not_before_ns:
                        look = look.renewed(now_ns)
                    found[path] = look
                    self._by_home.setdefault(directory, []).append(look)
                self._readable.add(directory)
            except OSError as error:
                self._complain(str(directory), error)
        for path, look in self._looks.items():
            if found.get(path) is not look:
                look.close()
        self._looks = found
        return True

    def _candidates(self, state: FileState) -> list[Look]:
        """Each file once, whatever its names, if it may be the one."""
        looks = {
            look.stamp: look
            for home in self._homes[state.generation]
            for look in self._by_home.get(home, ())
            if look.stamp not in self._taken and look.fit(state) is not Fit.OTHER
        }
        return list(looks.values())

    def _choose(self, state: FileState, now_ns: int) -> tuple[Next, Look | None]:
        wait_ns = self._section.rotate_wait_s * 1e9
        looks = self._candidates(state)
        found = {
            str(look.path): look.seen(fresh=now_ns - look.since_ns < wait_ns) for look in looks
        }
        todo, name = choose(state, found, {str(look.path): look.fit(state) for look in looks})
        if todo not in (Next.LOOK, Next.READ):
            for look in looks:
                broken = look.fit(state) in (Fit.BROKEN, Fit.UNKNOWN)
                if broken and not found[str(look.path)].fresh:
                    self._refuse(look, state)
        return todo, self._looks.get(Path(name))

    def _step(self, look: Look, lost: Sequence[FileState]) -> bool:
        """Look on in a file; false when nothing could be read of it now."""
        if self._open is not None and self._open is not look:
            self._open.close()
        self._open = look
        try:
            look.step(
                self._section.max_decompressed_bytes,
                {state.mark.span for state in lost if state.mark is not None},
            )
        except OSError as error:
            self._complain(str(look.path), error)
            look.refuse(error.strerror or str(error), again=True)
            return False
        return True

    def _refuse(self, look: Look, state: FileState) -> None:
        if look.is_logged:
            return
        look.is_logged = True
        self._note("compressed_refused")
        self._log.warning(
            "compressed_file_unreadable",
            path=str(look.path),
            reason=look.reason,
            file=state.path,
            position=state.position,
            fix="let the collector read it, put an intact one in its place, or remove it",
        )

    def _tell_alike(self, state: FileState) -> None:
        self._note("compressed_alike")
        self._log.warning(
            "compressed_files_ambiguous",
            paths=[str(look.path) for look in self._candidates(state)],
            file=state.path,
            position=state.position,
            reason="each may have the unread rest of the file; none is read",
        )

    def _give_up(self, state: FileState) -> None:
        self._note("files_gone")
        self._log.warning(
            "file_gone",
            path=state.path,
            position=state.position,
            reason="no compressed file beside it has its rest",
        )

    def _read_on(self, state: FileState, look: Look) -> Tail | None:
        if look.length == state.position and not self._is_held(state.origin):
            self._taken.add(look.stamp)
            self._log.info("rotated_file_finished", path=state.path)
            return None
        self._descriptors.make_room()
        stream = Stream(look.path, look.stamp)
        self._taken.add(look.stamp)
        self._note("compressed_read")
        self._log.info(
            "file_continued_compressed",
            path=state.path,
            compressed=str(look.path),
            generation=state.generation,
            position=state.position,
        )
        lines, joiner = make_cutter(self._section, state.position, look.head)
        tail = CompressedTail(
            state,
            stream.descriptor,
            lines,
            joiner,
            stream=stream,
            length=look.length,
            stamp=look.stamp,
            files=self._descriptors,
        )
        self._descriptors.admit(tail)
        return tail


@dataclass(slots=True)
class CompressedTail(Tail):
    """The rest of a file that is gone; its content cannot change.

    Attributes:
        stream: The whole content, from its beginning.
        length: Its bytes.
        stamp: The compressed file's stamp.
        offset: Number of lines that were read, or skipped.
    """

    stream: Stream = field(kw_only=True)
    length: int = field(kw_only=True)
    stamp: Stamp = field(kw_only=True)
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
    def mark(self, end: int) -> None:
        """Do nothing: the mark that the file was known by stays good."""

    @override
    def has_name(self, path: str) -> bool:
        return False

    @override
    def read(self, now_ns: int) -> tuple[int, Sequence[Line], bool]:
        """Read as any tail does.

        Raises:
            OSError: It is not what it was; what is unread is to be looked for again.
        """
        if self.failed:
            raise ChangedError(self.failed)
        try:
            data, at_end = self.stream.read()
        except (UndecodableError, OSError) as error:
            self.failed = str(error)
            raise ChangedError(self.failed) from error
        skipped = max(0, self.lines.position - self.offset)
        self.offset += len(data)
        return *self.feed(data[skipped:], now_ns), at_end

    @override
    def close(self) -> None:
        if self.files is not None:
            self.files.release(self)
        self.stream.close()
