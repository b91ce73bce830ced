"""A stream in a directory, as it was up to one high watermark.

    DIRECTORY/
      manifest           what it is, once it is whole; a checkpoint, see `penstock.logd.storage`
      manifest.partial   the same so far, while it is being made
      0-00000000000000000000.frames   whole frames of partition 0 from that offset on, as fetched

The manifest has `format` ("penstock-backup"), `version` (1), `release`, `taken`, of the stream its
name (`stream`), `subject`, `incarnation` and `options`, and `partitions`: each has `start`, `end`,
`epoch`, the last leader epoch that was read, `skipped`, ranges that were damaged (a frame without
records stands for each), and `files`, of these each has `name`, `start`, `end`,
`bytes`, `records` and `crc32c`. Ends are exclusive. Frames have their own CRCs
(`penstock.logd.format.frame`); that of a file says that it is whole, and not another one.

A file is durable before the manifest names it. What was cut short goes on behind the last file that
is named; the range stays the one that was there when it was begun. Records are as they were read:
those of an encrypted stream are not encrypted here, so files are for their owner only.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.base.files import sync_directories
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.batch import SCHEMA_VERSION, build_batch, encode_body
from penstock.logd.format.frame import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    FrameHeader,
    check_body,
    crc32c,
    decode_header,
    encode_header,
)
from penstock.logd.format.rows import Frame
from penstock.logd.metadata.codec import FORMER_STREAM_OPTIONS
from penstock.logd.storage import Checkpoint
from penstock.logd.storage.rewrite import trim_frame

MANIFEST: Final = "manifest"
PARTIAL: Final = "manifest.partial"
FORMAT: Final = "penstock-backup"
VERSION: Final = 1
FILE_BYTES: Final = 256 * 1024 * 1024
"""A file ends with the frame that makes it so large."""

_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BackupFile:
    """Frames of one partition, end to end."""

    name: str
    start: int
    end: int
    bytes: int
    records: int
    crc32c: int


@dataclass(slots=True)
class BackupPartition:
    """One partition's part.

    Attributes:
        end: Exclusive.
        files: In order of offsets.
        epoch: The last leader epoch of the log that was read; None: nothing was.
        skipped: Ranges [first, upto) that were damaged: frames without records stand for them.
    """

    start: int
    end: int
    files: list[BackupFile] = field(default_factory=list)
    epoch: int | None = None
    skipped: list[list[int]] = field(default_factory=list)

    @property
    def reached(self) -> int:
        """The first offset that no file has."""
        return self.files[-1].end if self.files else self.start


@dataclass(slots=True)
class Manifest:
    """Description of a backup."""

    release: str
    taken: str
    stream: str
    subject: str
    incarnation: str
    options: dict[str, Any]
    partitions: list[BackupPartition]

    @classmethod
    def load(cls, path: Path) -> "Manifest | None":
        """The manifest in a file; None: there is none.

        Raises:
            CorruptError: It is damaged, or something else.
            RefusedError: `UNKNOWN_FORMAT`: a later version wrote it.
        """
        document = Checkpoint(path).load()
        if document is None:
            return None
        if document.get("format") != FORMAT:
            raise CorruptError("this is no manifest of a backup", where=str(path))
        if document.get("version") != VERSION:
            message = f"{path}: backup format version {document.get('version')} is not known"
            raise RefusedError("UNKNOWN_FORMAT", message)
        try:
            parts = [
                BackupPartition(
                    part["start"],
                    part["end"],
                    [BackupFile(**one) for one in part["files"]],
                    part.get("epoch"),
                    part.get("skipped", []),
                )
                for part in document.pop("partitions")
            ]
            del document["format"], document["version"]
            options = {
                FORMER_STREAM_OPTIONS.get(name, name): value
                for name, value in document.pop("options").items()
            }
            return cls(**document, options=options, partitions=parts)
        except (AttributeError, KeyError, TypeError) as error:
            raise CorruptError(
                f"the manifest is not understood: {error!r}", where=str(path)
            ) from None

    def save(self, path: Path) -> None:
        """Write it, durably.

        Raises:
            OSError: The disk failed.
        """
        Checkpoint(path).save({"format": FORMAT, "version": VERSION, **asdict(self)})


class FileWriter:
    """Writes one file of a partition.

    Args:
        directory: Directory of the backup.
        partition: Partition of the stream.
        start: The first offset.
    """

    def __init__(self, directory: Path, partition: int, start: int) -> None:
        self._path = directory / f"{partition}-{start:020d}.frames"
        self._file = open(self._path, "wb", opener=_private)  # noqa: SIM115 - Path.open takes no opener
        self._start = self.end = start
        self.bytes = self._records = self._crc = 0

    def write(self, header: FrameHeader, body: bytes | memoryview) -> None:
        """Write the frame that comes next."""
        for piece in (encode_header(header), body):
            self._file.write(piece)
            self._crc = crc32c(piece, self._crc)
            self.bytes += len(piece)
        self._records += header.record_count
        self.end = header.next_offset

    def close(self) -> BackupFile:
        """Make it durable."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_directories([self._path.parent])
        name, start = self._path.name, self._start
        return BackupFile(name, start, self.end, self.bytes, self._records, self._crc)

    def abandon(self) -> None:
        """Leave it as it is: it is rewritten."""
        self._file.close()


def cut(frame: Frame, start: int, end: int) -> tuple[FrameHeader, bytes | memoryview]:
    """A frame without what lies outside of a range: compaction may have laid frames together."""
    header, body = frame
    if start <= header.base_offset and header.next_offset <= end:
        return frame
    return trim_frame(header, bytes(body), start, end)


def empty_frame(first: int, upto: int) -> Frame:
    """A frame without records for a range of offsets, as compaction may leave one."""
    body = encode_body(build_batch([]))
    header = FrameHeader(
        base_offset=first,
        leader_epoch=0,
        record_count=0,
        last_offset_delta=upto - first - 1,
        body_length=len(body),
        body_crc=crc32c(body),
        first_timestamp_ns=NO_TIMESTAMP,
        max_timestamp_ns=NO_TIMESTAMP,
        schema_version=SCHEMA_VERSION,
        compacted=True,
    )
    return header, memoryview(body)


def frames_of(directory: Path, file: BackupFile) -> Iterator[tuple[FrameHeader, bytes]]:
    """The frames of a file, each of them checked.

    Raises:
        CorruptError: It is not what was written.
        OSError: It cannot be read.
    """
    path, expected, crc = directory / file.name, file.start, 0
    with path.open("rb") as opened:
        while head := opened.read(HEADER_SIZE):
            where = f"{path} at {opened.tell() - len(head)}"
            header = decode_header(head, where=where)
            body = opened.read(header.body_length)
            check_body(header, body, where=where)
            if header.base_offset != expected:
                message = f"a frame begins at offset {header.base_offset}, not at {expected}"
                raise CorruptError(message, where=where)
            crc, expected = crc32c(body, crc32c(head, crc)), header.next_offset
            yield header, body
        if (expected, crc, opened.tell()) != (file.end, file.crc32c, file.bytes):
            raise CorruptError("it is not the file that was written", where=str(path))


def check_chain(manifest: Manifest) -> None:
    """Look whether each partition's files follow each other from its start to its end.

    Raises:
        CorruptError: They do not.
    """
    if not manifest.partitions:
        raise CorruptError("it holds no partition: the stream was not open when it was made")
    for number, part in enumerate(manifest.partitions):
        expected = part.start
        for file in part.files:
            if file.start != expected or Path(file.name).name != file.name:
                raise CorruptError(f"partition {number}: file {file.name} does not follow")
            expected = file.end
        if expected != part.end:
            raise CorruptError(f"partition {number} ends at {expected}, not at {part.end}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
