"""Compressed files, looked at and read in bounded steps."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from penstock.collector.core.compressed import End, Fit, Seen, fit
from penstock.collector.core.files import DIGEST_BYTES, FileState
from penstock.collector.core.inflate import GZIP, ZSTD, Packing, unpack
from penstock.collector.errors import UndecodableError
from penstock.collector.limits import COMPRESSED_PIECES_MAX, FILE_READ_BYTES, HEAD_BYTES

_PACKINGS: Final[dict[str, Packing]] = {".gz": GZIP, ".zst": ZSTD}

_AGAIN_MAX_NS: Final = 60 * 10**9
"""Between two looks at what cannot be read."""

Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change: while it is the same, so is the file."""

Span = tuple[int, int]
"""Two positions, the second exclusive."""


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
            raise ChangedError(str(path))
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
class Look:
    """One compressed file being looked at.

    Attributes:
        since_ns: When it was first met as it is.
        again: It could not be read; it is looked at anew.
        told: The operator knows that it cannot be read.
        not_before_ns: When it may be looked at anew.
    """

    path: Path
    stamp: Stamp
    since_ns: int
    again: bool = False
    told: bool = False
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
        """When it was last written."""
        return self.stamp[3]

    def seen(self, *, fresh: bool = False) -> Seen:
        """For the decision."""
        return Seen(
            self.head, self.length, self.end, self.modified_ns, fresh, self.again, self.digests
        )

    def fit(self, state: FileState) -> Fit:
        """What it is to a file that is gone, compared once as long as nothing more is seen."""
        known = self._fits.get(state.generation)
        if known is None:
            known = fit(state, self.seen())
            if known is not Fit.UNDECIDED:
                self._fits[state.generation] = known
        return known

    def step(self, bytes_max: int, spans: Iterable[Span]) -> None:
        """Look on, or anew when it was looked at to its end; `spans` are digested on the way.

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
            self.refuse(f"more than decompressed_bytes_max ({bytes_max}) after decompression")
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
        """To be opened again; how long it is known, and what was told, stay.

        At once for the first time; then after a pause that grows with how long it has failed.
        """
        pause_ns = min(now_ns - self.since_ns, _AGAIN_MAX_NS)
        return Look(self.path, self.stamp, self.since_ns, False, self.told, now_ns + pause_ns)

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
                path.lstat()  # it is a link; else nothing can be told of the directory now
                complain(str(path), error)
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, _stamp_of(status)


def homes(state: FileState) -> list[Path]:
    """Where other names of a file may be: beside its path, and beside what that links to."""
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
            OSError: That cannot be told now.
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
                if not os.path.islink(path):  # noqa: PTH114 - which never raises; what a link leads to has a directory of its own
                    self._doubts[directory] = error
                continue
            yield (status.st_dev, status.st_ino), path


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
