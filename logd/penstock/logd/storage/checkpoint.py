"""Small documents that are replaced as a whole: leader epochs, synced mark, high watermark.

The file is one line of text so that a person can read it:

    PNSC1 <CRC-32C of the JSON, 8 hex digits> <JSON object> <newline>

`PNSC1` names the format and its version. A crash while saving leaves the old document or the new
one. A damaged file is reported and left where it is.

The epoch file: at which offset each leader epoch began.

A checkpoint whose document is `{"epochs": [[epoch, start offset], ...]}`, both rising. What they
mean: `penstock.logd.replication.log_state`.

Each frame's header has its leader epoch, so a file that is damaged, missing or empty is made again
from the frames. An epoch under which nothing was stored is then forgotten; no record depends on it.

The synced mark: how far the active segment is known to be durable.

One file per log, `synced`, of 32 bytes that are overwritten after each sync, little-endian:

    offset size field
         0    4 magic            b"PNSM"
         4    1 format version   1
         5    1 closed           1: the log was closed cleanly, and ends here; else 0
         6    2 reserved         zero
         8    8 base offset      of the active segment
        16    8 log size         bytes of its log file that are durable
        24    4 CRC-32C          of bytes 0-24 and 28-32
        28    4 records          after the base offset that those bytes hold

The mark is not synced after writing, except before records are removed: it is a lower bound. After
a killed process it is exact, for the page cache outlives the process; after a power loss it may be
some syncs old or damaged, and then recovery knows less. It is what tells a record that was acked
and has rotted from one that was never durable.

With `closed` the mark is a clean-shutdown note: when it was written, everything up to its log size
had been synced, and nothing was written after it. It is believed only where the last segment, its
file's size and its index say the same; then the log is opened without a sync. It stays as it is
until something is synced. A kill in between leaves a log that is longer than it says. A power loss
may bring it back after later ones, with a log that is longer, or that ends where it did when all of
that was durable. Before records are removed it is taken back, durably. So what it is believed of is
durable always.

What a replica knows besides its log, so that it need not ask for it after a start.

A checkpoint whose document is `{"high_watermark": offset, "agreed_epoch": epoch}`. Mostly it is
written without a sync: after a crash it may be older or missing, and what it says is then too low,
which costs time and no record (`penstock.logd.replication.replica`).
"""

import json
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import NO_TIMESTAMP, FrameHeader, crc32c
from penstock.logd.replication.log_state import Entry, Epochs
from penstock.logd.storage.disk import REAL_DISK, Disk, File, write_atomically
from penstock.logd.storage.index import Claim

MAGIC: Final = b"PNSC"
FORMAT_VERSION: Final = b"1"


class Checkpoint:
    """A JSON object in a file.

    Args:
        path: The file; its directory exists.
        disk: The file system.
    """

    def __init__(self, path: Path, *, disk: Disk = REAL_DISK) -> None:
        self.path = path
        self._disk = disk

    def load(self) -> dict[str, Any] | None:
        """The document that was saved last; None when none was.

        Raises:
            CorruptError: The file is damaged.
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
        """
        data = self._disk.read(self.path)
        return None if data is None else _decode(data, str(self.path))

    def save(self, document: dict[str, Any], *, durable: bool = True) -> None:
        """Replace the document; durable on return, unless it may as well be lost by a crash.

        Raises:
            OSError: The disk failed; the old document is still there, or the new one already.
        """
        text = _encode(document)
        line = b"%s%s %08x %s\n" % (MAGIC, FORMAT_VERSION, crc32c(text), text)
        write_atomically(self._disk, self.path, line, durable=durable)


def _encode(document: dict[str, Any]) -> bytes:
    """A million ids take json 1.7 s in which no other thread runs, orjson a tenth of that."""
    try:
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # file names need not be UTF-8; json writes what stands for their bytes
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _decode(data: bytes, where: str) -> dict[str, Any]:
    head, crc, text = (*data.rstrip(b"\n").split(b" ", 2), b"", b"")[:3]
    if not head.startswith(MAGIC) or crc != b"%08x" % crc32c(text) or not data.endswith(b"\n"):
        raise CorruptError("checkpoint magic or CRC does not match", where=where)
    if head[len(MAGIC) :] != FORMAT_VERSION:
        version = head[len(MAGIC) :].decode("ascii", "replace")
        message = f"{where}: checkpoint format version {version} is not known"
        raise RefusedError("UNKNOWN_FORMAT", message, version=version, file=where)
    document = json.loads(text)
    if not isinstance(document, dict):
        raise CorruptError("checkpoint is not a JSON object", where=where)
    return document


class EpochFile:
    """Leader epochs of one partition; every change is durable on return, unless it says otherwise.

    Args:
        path: The file; its directory exists.
        disk: The file system.

    Attributes:
        unsaved: Whether an epoch began that `save` has not made durable yet.

    Raises:
        CorruptError: The file is damaged; nothing was changed.
    """

    def __init__(self, path: Path, *, disk: Disk = REAL_DISK) -> None:
        self._checkpoint = Checkpoint(path, disk=disk)
        self.unsaved = False
        self._epochs = _epochs(self._checkpoint.load(), str(path))

    @classmethod
    def open(
        cls, path: Path, headers: Callable[[], Iterable[FrameHeader]], *, disk: Disk = REAL_DISK
    ) -> tuple["EpochFile", str]:
        """The file of a log; made again from the headers of its frames if it has to be.

        Args:
            path: The file; its directory exists.
            headers: Gives those of every sound frame, in order; looked at only if needed.
            disk: The file system.

        Returns:
            The file, and why it was made again; empty: it was not.

        Raises:
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
            OSError: The disk failed.
        """
        reason, damaged = "the file was missing or empty", True
        try:
            file = cls(path, disk=disk)
        except CorruptError as error:
            reason = str(error)
        else:
            if file.entries:
                return file, ""
            damaged = False
        found = epochs_of(headers())
        if found or damaged:
            save_epochs(path, found, disk=disk)
        return cls(path, disk=disk), reason if found or damaged else ""

    @property
    def entries(self) -> list[Entry]:
        """(epoch, start offset), rising."""
        return self._epochs.entries

    @property
    def latest(self) -> int:
        """The last epoch; 0 when there has been none."""
        return self._epochs.latest

    def begin(self, epoch: int, start_offset: int, *, save: bool = True) -> None:
        """Record that an epoch began; without `save` only in memory.

        A crash then forgets it. So `save` must come before the first record of the epoch is stored:
        of an epoch without records nothing depends on anything.

        Raises:
            RefusedError: `STALE_EPOCH`: not above the last one, or it would begin before that.
        """
        changed = Epochs(self.entries)
        changed.begin(epoch, start_offset)
        if save:
            self._save(changed)
        else:
            self._epochs, self.unsaved = changed, True

    def save(self) -> None:
        """Make durable what `begin` left in memory."""
        if self.unsaved:
            self._save(self._epochs)

    def epoch_at(self, offset: int) -> int:
        """The epoch that an offset belongs to; 0 before the first."""
        return self._epochs.epoch_at(offset)

    def end_of(self, epoch: int, end_offset: int) -> int:
        """Return the end of the records that leaders up to an epoch have ordered, exclusive.

        Args:
            epoch: Epoch of an earlier leader.
            end_offset: End of the log.
        """
        return self._epochs.end_offset_for(epoch, end_offset)[1]

    def truncate_to(self, offset: int) -> None:
        """Forget epochs that began at or above an offset, as the log was truncated to it."""
        changed = Epochs(self.entries)
        changed.truncate_to(offset)
        if changed.entries != self.entries:
            self._save(changed)

    def clear(self) -> None:
        """Forget all, as the log was reset."""
        self._save(Epochs())

    def recover(self, end_offset: int) -> None:
        """Fit a log that lost its tail with a crash; the number of the last epoch is kept."""
        changed = Epochs(self.entries)
        changed.recover(end_offset)
        if changed.entries != self.entries:
            self._save(changed)

    def _save(self, epochs: Epochs) -> None:
        self._checkpoint.save({"epochs": epochs.entries})
        self._epochs, self.unsaved = epochs, False


def epochs_of(headers: Iterable[FrameHeader]) -> list[Entry]:
    """(epoch, start offset) as frames show them."""
    found: list[Entry] = []
    for header in headers:
        if header.leader_epoch > (found[-1][0] if found else 0):
            found.append((header.leader_epoch, header.base_offset))
    return found


def save_epochs(path: Path, entries: list[Entry], *, disk: Disk = REAL_DISK) -> None:
    """Write an epoch file, durably.

    Raises:
        OSError: The disk failed.
    """
    Checkpoint(path, disk=disk).save({"epochs": Epochs(entries).entries})


def _epochs(document: dict[str, object] | None, where: str) -> Epochs:
    if document is None:
        return Epochs()
    rows = document.get("epochs")
    if not isinstance(rows, list):
        raise CorruptError("not an epoch file", where=where)
    try:
        entries = [(int(epoch), int(start)) for epoch, start in rows]
    except (TypeError, ValueError):
        raise CorruptError("epochs are not pairs of numbers", where=where) from None
    try:
        return Epochs(entries)
    except ValueError as error:
        raise CorruptError(str(error), where=where) from None


EPOCHS_NAME: Final = "epochs"
"""File with the first offset of each leader epoch: `penstock.logd.storage.checkpoint`."""

MEMORY_NAME: Final = "producers"
"""File with the producer state: `penstock.logd.partition.producer_snapshot`."""

REPLICA_NAME: Final = "replica"
"""File with a replica's state besides its log: `penstock.logd.storage.checkpoint`."""

KEYS_NAME: Final = "keys"
"""An encrypted log's keys, and a copy: `penstock.logd.encryption.key_file`."""

KEYS_COPY_NAME: Final = "keys.copy"

MARK_NAME: Final = "synced"
"""File with the durable end of the active segment: `penstock.logd.storage.checkpoint`."""


FILE_NAME: Final = MARK_NAME
MARK_MAGIC: Final = b"PNSM"
MARK_FORMAT_VERSION: Final = 1
SIZE: Final = 32

_LAYOUT: Final = struct.Struct("<4sBB2xqqII")
assert _LAYOUT.size == SIZE


class SyncedMark:
    """The mark of one log; written by the log's writer, read once by recovery.

    Its file is opened when something is written, and made if it is missing.

    Args:
        directory: Directory of the log.
        disk: The file system.
        closed: Whether the mark says that the log was closed cleanly, and that was believed.

    Attributes:
        closed: Whether the file says so.
    """

    def __init__(self, directory: Path, disk: Disk, *, closed: bool = False) -> None:
        self.closed = closed
        self._directory = directory
        self._disk = disk
        self._file: File | None = None

    def write(
        self, base_offset: int, end_offset: int, log_size: int, *, closed: bool = False
    ) -> None:
        """Say what has just been synced, and whether that is the end.

        Raises:
            OSError: The mark was not written; the log itself is as durable as before.
        """
        self.closed = False
        mark = encode_mark(base_offset, end_offset, log_size, closed=closed)
        self._opened().write(0, [mark])
        self.closed = closed

    def lower(self) -> None:
        """Claim nothing, durably: what was claimed is about to be removed.

        Raises:
            OSError: The mark may still claim what it did; nothing must be removed.
        """
        self.write(0, 0, 0)
        self._opened().sync()

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> File:
        if self._file is None:
            path = self._directory / FILE_NAME
            exists = self._disk.exists(path)
            self._file = self._disk.open(path) if exists else self._disk.create(path)
        return self._file


def encode_mark(base_offset: int, end_offset: int, log_size: int, *, closed: bool = False) -> bytes:
    """Encode a mark, its CRC included."""
    records = min(end_offset - base_offset, 0xFFFFFFFF)
    fields = (MARK_MAGIC, MARK_FORMAT_VERSION, closed, base_offset, log_size)
    bare = _LAYOUT.pack(*fields, 0, records)
    crc = crc32c(bare[:24] + bare[28:])
    return bare[:24] + crc.to_bytes(4, "little") + bare[28:]


def load_mark(directory: Path, disk: Disk) -> tuple[Claim, bool] | None:
    """Load the mark, and whether the log was closed cleanly there.

    None when it is missing, damaged, or of another version.
    """
    data = disk.read(f"{directory}/{FILE_NAME}")
    if data is None or len(data) < SIZE:
        return None
    data = data[:SIZE]
    magic, version, closed, base_offset, log_size, crc, records = _LAYOUT.unpack(data)
    if (magic, version, crc) != (MARK_MAGIC, MARK_FORMAT_VERSION, crc32c(data[:24] + data[28:])):
        return None
    claim = Claim(
        base_offset=base_offset,
        end_offset=base_offset + records,
        log_size=log_size,
        max_timestamp_ns=NO_TIMESTAMP,
    )
    return claim, closed == 1


class ReplicaFile:
    """The file of one partition's replica.

    Args:
        directory: Directory of the log.
        disk: The file system.
    """

    def __init__(self, directory: Path, *, disk: Disk = REAL_DISK) -> None:
        self._checkpoint = Checkpoint(directory / REPLICA_NAME, disk=disk)

    def save(self, high_watermark: int, agreed_epoch: int, *, durable: bool = False) -> None:
        """Replace what it says.

        Args:
            high_watermark: Offset of the last record known to be committed; -1: none.
            agreed_epoch: The last epoch whose leader's log this one agreed with.
            durable: On return no crash takes it back.

        Raises:
            OSError: The disk failed; the old file is still there, or the new one already.
        """
        document = {"high_watermark": high_watermark, "agreed_epoch": agreed_epoch}
        self._checkpoint.save(document, durable=durable)

    def load(self) -> tuple[int, int]:
        """(high watermark, agreed epoch) as written down last; (-1, 0) if that cannot be read.

        Raises:
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
            OSError: The disk failed.
        """
        try:
            document = self._checkpoint.load() or {}
            return int(document.get("high_watermark", -1)), int(document.get("agreed_epoch", 0))
        except (CorruptError, TypeError, ValueError):
            return -1, 0
