"""The producer state of an intake at one offset, and the file that stores it.

The file `producers` lies beside the segments and is replaced as a whole. Little-endian:

    offset size field
         0    4 magic            b"PNSR"
         4    1 format version   1
         5    3 reserved         zero
         8    4 CRC-32C          of everything after byte 12
        12    4 reserved         zero
        16    n an Arrow IPC stream, to the end of the file

A row of the stream is an entry of the state, in any order:

    column    Arrow type
    name      large_binary  a message id, or the 16 bytes of a producer's id
    sequence  uint64        of the producer's last batch; null for a message id
    offset    int64         of the record, or of the batch's last
    seen_ns   int64         Unix time when it was stored

The metadata of the stream's schema has one key, `penstock`, a JSON object: `offset` (everything
below is in the state), `complete` (message ids too, for the log may not have them any more),
`last_message_id` (hex), `lost` (below this offset something has been forgotten because an earlier
file was missing or damaged; 0: nothing) and `checksum` (hex, of every id and batch that was ever
stored below `offset`, as `penstock.logd.intake.dedup.DedupChecksum` adds them up; without it: 0). A
replica that lacks something gets the same bytes from its leader. Magic, version and CRC keep their
places in every version. Earlier releases wrote a checkpoint (`penstock.logd.storage.checkpoint`):
that is still read. Beside an encrypted log the file is encrypted as a whole
(`penstock.logd.encryption.cipher`).
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
from msgspec import Struct

from penstock.logd.encryption.cipher import SegmentCipher
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import crc32c
from penstock.logd.intake.dedup import Dedup, MessageIds, ProducerState, ProducerTable
from penstock.logd.intake.intake import Intake
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.storage.checkpoint import MAGIC as CHECKPOINT_MAGIC
from penstock.logd.storage.checkpoint import MEMORY_NAME, Checkpoint
from penstock.logd.storage.disk import REAL_DISK, Disk, write_atomically

FILE_NAME: Final = MEMORY_NAME
MAGIC: Final = b"PNSR"
FORMAT_VERSION: Final = 1

_HEADER: Final = struct.Struct("<4sB3xII")
assert _HEADER.size == 16
_CRC_FROM: Final = 12
_METADATA: Final = b"penstock"
_CHUNK_ROWS: Final = 16_384
"""Rows made at a time: no other thread runs in the millisecond that they take."""

_SCHEMA: Final = pa.schema(
    [
        pa.field("name", pa.large_binary(), nullable=False),
        pa.field("sequence", pa.uint64()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("seen_ns", pa.int64(), nullable=False),
    ]
)


class ProducerSnapshot(Struct, frozen=True):
    """Dedup state of everything below `offset`, at one moment.

    Attributes:
        producers: Names and states, in any order.
        ids: Names, and (offset, seen_ns) of each, in any order.
        whole: Whether message ids are included, because records are removed or rewritten;
            otherwise the log itself has them all.
        lost: Below this offset something may have been forgotten.
        checksum: Checksum of every id and batch that was ever stored below `offset`.
    """

    offset: int
    producers: tuple[list[bytes], list[ProducerState]]
    ids: tuple[list[bytes], list[tuple[int, int]]]
    last_message_id: bytes
    whole: bool
    lost: int = 0
    checksum: int = 0

    @classmethod
    def of(
        cls, intake: Intake, end_offset: int | None = None, *, whole: bool | None = None
    ) -> "ProducerSnapshot":
        """Return the current state of an intake.

        Args:
            intake: The intake.
            end_offset: State of this offset and later ones is left out (of ids: when they are
                encoded), for the log may be truncated there. None: nothing is.
            whole: Whether message ids are included; None: if the log may not have them all.
        """
        dedup, end = intake.dedup, intake.next_offset
        if end_offset is not None:
            end = min(end, max(end_offset, dedup.floor, dedup.checksum.base))
        if whole is None:
            whole = dedup.whole  # once: compaction's thread may set it meanwhile
        checksum = dedup.checksum.at(end)
        assert checksum is not None, (end, dedup.checksum.base)
        return cls(
            end,
            dedup.producers.snapshot(end),
            dedup.message_ids.snapshot() if whole else ([], []),
            dedup.last_message_id if whole and end == intake.next_offset else b"",
            whole,
            dedup.lost,
            checksum,
        )

    def save(
        self, directory: Path, *, disk: Disk = REAL_DISK, cipher: SegmentCipher | None = None
    ) -> None:
        """Write it down; everything below `offset` is durable.

        Args:
            directory: Directory of the log.
            disk: The file system.
            cipher: Cipher of the log, which hides ids from the disk.

        Raises:
            OSError: The disk failed; the old file is still there, or the new one already.
        """
        data = self.encode()
        if cipher is not None:
            data = [cipher.encrypt_file(FILE_NAME, b"".join(data))]
        write_atomically(disk, directory / FILE_NAME, data)

    @classmethod
    def load(
        cls, directory: Path, *, disk: Disk = REAL_DISK, cipher: SegmentCipher | None = None
    ) -> "ProducerSnapshot | None":
        """Load the snapshot; None when there is none.

        Raises:
            CorruptError: The file is damaged.
            RefusedError: `UNKNOWN_FORMAT`: written by a later version.
        """
        where = f"{directory}/{FILE_NAME}"
        data = disk.read(where)
        if data is None:
            return None
        if cipher is not None:
            data = cipher.decrypt_file(FILE_NAME, data, where=where)
        if data.startswith(CHECKPOINT_MAGIC):
            return _from_checkpoint(directory / FILE_NAME, disk)
        return cls.decode(data, where)

    def restore(self, dedup: Dedup) -> None:
        """Restore it."""
        rows = zip(*self.producers, strict=True)
        dedup.producers.restore(
            (name, state.sequence, state.offset, state.seen_ns)
            for name, state in sorted(rows, key=lambda one: one[1].offset)
        )
        dedup.message_ids.restore(*self.ids)
        dedup.last_message_id = self.last_message_id
        dedup.whole |= self.whole
        dedup.lost = self.lost
        dedup.floor = self.offset

    def merged(
        self, own: "ProducerSnapshot", config: StreamConfig
    ) -> tuple[MessageIds, ProducerTable, dict[bytes, ProducerState]]:
        """Merge the state of a replica of the same history with this one; later entries count.

        Returns:
            Ids and producers of both, and the producers here, as `Dedup.install` takes them.
        """
        empty = Dedup(config)
        ids = dict(zip(*self.ids, strict=True))
        for name, at in zip(*own.ids, strict=True):
            if name not in ids or ids[name] < at:
                ids[name] = at
        empty.message_ids.restore(list(ids), list(ids.values()))
        theirs = dict(zip(*self.producers, strict=True))
        producers = dict(theirs)
        for name, state in zip(*own.producers, strict=True):
            if name not in producers or producers[name].offset <= state.offset:
                producers[name] = state
        empty.producers.restore(
            (name, state.sequence, state.offset, state.seen_ns)
            for name, state in sorted(producers.items(), key=lambda one: one[1].offset)
        )
        return empty.message_ids, empty.producers, theirs

    def encode(self) -> list[bytes]:
        """The bytes of the file, in pieces."""
        about = {
            "offset": self.offset,
            "complete": self.whole,
            "last_message_id": self.last_message_id.hex(),
            "lost": self.lost,
            "checksum": f"{self.checksum:016x}",
        }
        sink = pa.BufferOutputStream()
        schema = _SCHEMA.with_metadata({_METADATA: orjson.dumps(about)})
        with pa.ipc.new_stream(sink, schema) as writer:
            for columns in (*self._producer_rows(), *self._id_rows()):
                writer.write_batch(pa.record_batch(columns, schema=schema))
        body = sink.getvalue().to_pybytes()
        bare = _HEADER.pack(MAGIC, FORMAT_VERSION, 0, 0)
        crc = crc32c(body, crc32c(bare[_CRC_FROM:]))
        return [_HEADER.pack(MAGIC, FORMAT_VERSION, crc, 0), body]

    @classmethod
    def decode(cls, data: bytes, where: str) -> "ProducerSnapshot":
        """Decode the result of `encode`.

        Raises:
            CorruptError, RefusedError: The same as in `load`.
        """
        if len(data) < _HEADER.size:
            raise CorruptError(f"memory of {len(data)} bytes is too short", where=where)
        magic, version, crc, _ = _HEADER.unpack(data[: _HEADER.size])
        if magic != MAGIC or crc != crc32c(memoryview(data)[_CRC_FROM:]):
            raise CorruptError("memory magic or CRC does not match", where=where)
        if version != FORMAT_VERSION:
            message = f"{where}: memory format version {version} is not known"
            raise RefusedError("UNKNOWN_FORMAT", message, version=version, file=where)
        try:
            table = pa.ipc.open_stream(pa.py_buffer(data)[_HEADER.size :]).read_all()
            about = orjson.loads((table.schema.metadata or {})[_METADATA])
            rows: list[list[Any]] = [[], [], [], []]  # of most streams there is none
            if table.num_rows:
                rows = [column.to_pylist() for column in table.columns]
            names, sequences, offsets, seen = rows
            first_id = len(sequences) - sequences.count(None)
            states = map(ProducerState, sequences[:first_id], offsets, seen)
            return cls(
                int(about["offset"]),
                (names[:first_id], list(states)),
                (names[first_id:], list(zip(offsets[first_id:], seen[first_id:], strict=True))),
                bytes.fromhex(about["last_message_id"]),
                bool(about["complete"]),
                int(about["lost"]),
                int(about.get("checksum", "0"), 16),
            )
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"memory cannot be read: {error}", where=where) from None

    def _producer_rows(self) -> Iterator[list[Any]]:
        names, states = self.producers
        for first in range(0, len(names), _CHUNK_ROWS):
            part = states[first : first + _CHUNK_ROWS]
            yield [
                names[first : first + _CHUNK_ROWS],
                [state.sequence for state in part],
                [state.offset for state in part],
                [state.seen_ns for state in part],
            ]

    def _id_rows(self) -> Iterator[list[Any]]:
        names, seen = self.ids
        for first in range(0, len(names), _CHUNK_ROWS):
            part, some = seen[first : first + _CHUNK_ROWS], names[first : first + _CHUNK_ROWS]
            if max(part)[0] >= self.offset:  # it may be cut off again
                rows = [row for row, (offset, _) in enumerate(part) if offset < self.offset]
                part, some = [part[row] for row in rows], [some[row] for row in rows]
            yield [
                some,
                pa.nulls(len(part), pa.uint64()),
                [offset for offset, _ in part],
                [seen_ns for _, seen_ns in part],
            ]


def _from_checkpoint(path: Path, disk: Disk) -> ProducerSnapshot:
    """Load the snapshot of an earlier release."""
    document = Checkpoint(path, disk=disk).load()
    assert document is not None, path
    try:
        producers = [
            (bytes.fromhex(name), ProducerState(int(sequence), int(offset), int(seen_ns)))
            for name, sequence, offset, seen_ns in document["producers"]
        ]
        ids = [
            (bytes.fromhex(name), (int(offset), int(seen_ns)))
            for name, offset, seen_ns in document.get("ids", ())
        ]
        return ProducerSnapshot(
            int(document["offset"]),
            ([name for name, _ in producers], [state for _, state in producers]),
            ([name for name, _ in ids], [seen for _, seen in ids]),
            bytes.fromhex(document.get("last_message_id", "")),
            bool(document.get("complete")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"memory cannot be read: {error}", where=str(path)) from None
