"""Walking a log file frame by frame, and finding sound frames again after damage.

Frames lie end to end from byte 0, each a multiple of 8 bytes long, so every frame begins at a
multiple of 8.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from penstock.logd.errors import CorruptError, CorruptFrameError, RefusedError
from penstock.logd.format.frame import (
    HEADER_SIZE,
    MAGIC,
    FrameHeader,
    check_body,
    decode_header,
    version_not_known,
)
from penstock.logd.storage.disk import Content

ALIGNMENT: Final = 8
SECTOR_BYTES: Final = 512
"""The least that a disk writes as a whole."""
_WALK_BYTES: Final = 4096
_SCAN_BYTES: Final = 1024 * 1024


class Found(Struct, frozen=True):
    """A frame and where it lies.

    Attributes:
        position: First byte in the file.
        end: Byte after its last.
    """

    position: int
    header: FrameHeader

    @property
    def end(self) -> int:
        """Byte after the frame's last."""
        return self.position + self.header.frame_length


class Damage(Struct, frozen=True):
    """Bytes that should hold frames and do not.

    Attributes:
        position: First byte in the file.
        end: Byte after the last; equal to `position` where nothing lies in place of the records.
        offset: First offset that cannot be read.
        next_offset: First offset after it that can, or the end that was claimed.
        reason: Fault of the first byte's frame.
    """

    position: int
    end: int
    offset: int
    next_offset: int
    reason: str

    def error(self, file: str) -> CorruptFrameError:
        """The damage as a reader's error."""
        return CorruptFrameError(
            self.reason,
            file=file,
            position=self.position,
            offset=self.offset,
            next_offset=self.next_offset,
        )


class FrameReader:
    """Reads frames of a file through one buffer.

    Args:
        file: The log file.
        end: Bytes of it that count; what lies after is never looked at.
        ahead: Bytes to read at a time.
    """

    __slots__ = ("_ahead", "_buffer", "_file", "_start", "end", "name")

    def __init__(self, file: Content, *, end: int, name: str, ahead: int = _WALK_BYTES) -> None:
        self._file = file
        self._ahead = ahead
        self._buffer = b""
        self._start = 0
        self.end = end
        self.name = name

    def bytes_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end."""
        length = max(0, min(length, self.end - position))
        first = position - self._start
        if first < 0 or first + length > len(self._buffer):
            wanted = min(max(length, self._ahead), self.end - position)
            self._buffer = self._file.read(position, wanted)
            self._start, first = position, 0
        return self._buffer[first : first + length]

    def header_at(self, position: int) -> Found:
        """The frame that begins at a position, by its header alone.

        Raises:
            CorruptError: There is none, or its body would pass the end.
            RefusedError: `UNKNOWN_FORMAT`: a sound header of a later version.
        """
        data = self.bytes_at(position, HEADER_SIZE)
        try:
            header = decode_header(data, stored=True)
        except CorruptError:
            _refuse_later_version(data, f"{self.name} at {position}")
            raise
        found = Found(position, header)
        if found.end > self.end:
            raise TornFrameError("the frame passes the end of the file")
        return found

    def body_of(self, found: Found) -> bytes:
        """The body of a frame, checked.

        Raises:
            CorruptError: Its CRC does not match.
        """
        body = self.bytes_at(found.position + HEADER_SIZE, found.header.body_length)
        check_body(found.header, body)
        return body

    def frame_at(self, position: int) -> Found:
        """The frame that begins at a position, its body checked too.

        Raises:
            CorruptError: There is none, or it is damaged.
            RefusedError: `UNKNOWN_FORMAT`.
        """
        found = self.header_at(position)
        self.body_of(found)
        return found


class TornFrameError(CorruptError):
    """A sound header whose body the file ends before."""


def scanner(file: Content, *, end: int, name: str) -> FrameReader:
    """A reader that reads far ahead, for whole frames one after another."""
    return FrameReader(file, end=end, name=name, ahead=_SCAN_BYTES)


def walk(
    reader: FrameReader, position: int, offset: int, *, end_offset: int, deep: bool = False
) -> Iterator[Found | Damage]:
    """Frames and damage from a position to the reader's end, in order and without holes.

    Args:
        reader: The file.
        position: Position at which a frame should begin.
        offset: Its base offset.
        end_offset: After the last record that should be there; where damage at the end ends.
        deep: Check bodies as well as headers.
    """
    while position < reader.end:
        try:
            found = reader.header_at(position)
            if found.header.base_offset < offset:
                raise CorruptError(f"offset {found.header.base_offset} comes again")  # noqa: TRY301
        except CorruptError as error:
            sound = next_sound_frame(reader, position, offset_min=offset)
            torn = isinstance(error, TornFrameError)
            if sound is None or torn:
                yield Damage(position, reader.end, offset, max(offset, end_offset), str(error))
                return
            yield Damage(position, sound.position, offset, sound.header.base_offset, str(error))
            found = sound
        else:
            if found.header.base_offset > offset:
                missing = "records are missing before this frame"
                yield Damage(position, position, offset, found.header.base_offset, missing)
        yield _deeply(reader, found) if deep else found
        position, offset = found.end, found.header.next_offset
    if offset < end_offset:
        yield Damage(position, position, offset, end_offset, "the file ends early")


def damaged_body(found: Found, error: CorruptError) -> Damage:
    """The damage of a frame whose header is sound and whose body is not."""
    header = found.header
    return Damage(found.position, found.end, header.base_offset, header.next_offset, str(error))


def _deeply(reader: FrameReader, found: Found) -> Found | Damage:
    try:
        reader.body_of(found)
    except CorruptError as error:
        return damaged_body(found, error)
    return found


def next_sound_frame(reader: FrameReader, position: int, *, offset_min: int) -> Found | None:
    """The first sound frame after a damaged position whose offsets are not used yet.

    Both CRCs must hold, so that bytes that merely look like a header are skipped.
    """
    position += ALIGNMENT
    while position + HEADER_SIZE <= reader.end:
        chunk = reader.bytes_at(position, _SCAN_BYTES)
        hit = chunk.find(MAGIC)
        if hit < 0:
            position += max(ALIGNMENT, (len(chunk) - len(MAGIC)) // ALIGNMENT * ALIGNMENT)
            continue
        position += hit
        if position % ALIGNMENT == 0:
            found = _sound_frame(reader, position)
            if found is not None and found.header.base_offset >= offset_min:
                return found
        position += ALIGNMENT - position % ALIGNMENT
    return None


def has_lost_sector(reader: FrameReader, damage: Damage) -> bool:
    """Return whether the damage looks like a write that did not reach the disk whole.

    A disk writes sectors whole, in any order, and an appended sector that never was written reads
    as zeros: so some sector's share of the damaged bytes is all zeros. Rot changes bits instead.
    """
    position = damage.position
    while position < damage.end:
        sector_end = (position // SECTOR_BYTES + 1) * SECTOR_BYTES
        if sector_end > damage.end:
            return False
        if not any(reader.bytes_at(position, sector_end - position)):
            return True
        position = sector_end
    return False


def _sound_frame(reader: FrameReader, position: int) -> Found | None:
    try:
        return reader.frame_at(position)
    except CorruptError:
        return None


def _refuse_later_version(data: bytes, where: str) -> None:
    """Refuse a header that only a later version can have written: its CRC holds."""
    unknown = version_not_known(data)
    if unknown:
        message = f"{where}: {unknown} is not known"
        raise RefusedError("UNKNOWN_FORMAT", message, version=data[4], file=where)
