"""Frames of a log on their way to another node: read and checked, or taken apart and checked."""

from dataclasses import dataclass
from typing import Final

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.frame import HEADER_SIZE, FrameHeader, check_body, decode_header
from penstock.logd.store import CommitLog, CorruptFrameError, FileRange

Frame = tuple[FrameHeader, bytes]

_NOTHING: Final = b""


@dataclass(frozen=True, slots=True)
class Found:
    """What a log has from an offset on.

    Attributes:
        data: Whole frames, end to end, each of them sound.
        count: How many.
        damage: First offset after them that cannot be read, and the first one that may be again;
            None: they end for another reason.
        start: First offset kept, if the log begins above the offset asked for.
    """

    data: bytes = _NOTHING
    count: int = 0
    damage: tuple[int, int] | None = None
    start: int | None = None


def read_frames(log: CommitLog, offset: int, *, bytes_max: int, upto: int) -> Found:
    """Read whole frames that hold records in [offset, upto), and check them.

    Args:
        log: The leader's.
        offset: First record wanted; the first frame may begin before it.
        bytes_max: The first frame is read whatever its size.
        upto: Exclusive; frames that hold it or more are left out.

    Raises:
        OSError: The disk failed.
    """
    try:
        ranges = log.read(offset, bytes_max=bytes_max, upto=upto)
    except CorruptFrameError as error:
        return Found(damage=(error.offset, error.next_offset))
    except RefusedError:
        start = log.start_offset
        return Found(start=start if offset < start else None)
    pieces: list[bytes] = []
    count = 0
    damage = None
    for part in ranges:
        data, frames, damage = _sound_frames(log, part)
        pieces.append(data)
        count += frames
        if damage is not None or len(data) < part.length:
            break
    return Found(pieces[0] if len(pieces) == 1 else b"".join(pieces), count, damage)


def parse_frames(data: bytes, *, where: str = "") -> list[Frame]:
    """Take frames apart that lie end to end; header and body of each are checked.

    Raises:
        CorruptError: They are not whole, or damaged.
    """
    frames: list[Frame] = []
    view = memoryview(data)
    position = 0
    while position < len(data):
        header = decode_header(view[position : position + HEADER_SIZE], where=where)
        end = position + header.frame_length
        body = data[position + HEADER_SIZE : end]
        check_body(header, body, where=where)
        frames.append((header, body))
        position = end
    return frames


def _sound_frames(log: CommitLog, part: FileRange) -> tuple[bytes, int, tuple[int, int] | None]:
    """The range's bytes up to the first damage, their frames, and where the damage is."""
    data = part.file.read(part.position, part.length)
    view = memoryview(data)
    position, count, offset = 0, 0, part.base_offset
    damaged: FrameHeader | None = None
    try:
        while position < len(data):
            damaged = None
            header = decode_header(view[position : position + HEADER_SIZE])
            damaged = header
            end = position + header.frame_length
            check_body(header, view[position + HEADER_SIZE : end])
            position, count, offset = end, count + 1, header.next_offset
    except CorruptError:
        if len(data) < part.length:  # the file has been cut meanwhile
            return data[:position], count, None
        if damaged is not None:
            return data[:position], count, (damaged.base_offset, damaged.next_offset)
        return data[:position], count, _damage_at(log, offset, part.next_offset)
    return data, count, None


def _damage_at(log: CommitLog, offset: int, upto: int) -> tuple[int, int]:
    """How far a damaged header keeps a log from being read; until `upto` if it says nothing."""
    try:
        log.read(offset, bytes_max=1, upto=upto)
    except CorruptFrameError as error:
        return error.offset, error.next_offset
    except RefusedError:
        pass
    return offset, upto
