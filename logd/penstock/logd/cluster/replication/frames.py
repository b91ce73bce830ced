"""Frames of a log on their way to another node: read as they lie there, and checked."""

from dataclasses import dataclass

from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.frame import HEADER_SIZE, FrameHeader, check_body, decode_header, encode_header
from penstock.logd.store import CommitLog, CorruptFrameError

Frame = tuple[FrameHeader, bytes]


@dataclass(frozen=True, slots=True)
class Found:
    """What a log has from an offset on.

    Attributes:
        data: Whole frames, end to end, each of them sound.
        count: How many.
        damage: First offset after them that cannot be read, and the first one that may be again;
            None: they end for another reason.
        next_offset: After the last of them; 0 where there are none.
        start: First offset kept, if the log begins above the offset asked for.
    """

    data: bytes = b""
    count: int = 0
    next_offset: int = 0
    damage: tuple[int, int] | None = None
    start: int | None = None


def read_frames(log: CommitLog, offset: int, *, bytes_max: int, upto: int) -> Found:
    """Read whole frames that hold records in [offset, upto), and check them.

    They are not taken apart (`CommitLog.read_frames`), for they are sent as they are. Those of an
    encrypted log are decrypted: each node's own keys protect what it has.

    Args:
        log: The leader's.
        offset: First record wanted; the first frame may begin before it.
        bytes_max: The first frame is read whatever its size.
        upto: Exclusive; frames that hold it or more are left out.

    Raises:
        OSError: The disk failed.
    """
    pieces: list[bytes] = []
    count = next_offset = 0
    try:
        if log.vault is not None:
            return _decrypted(log, offset, bytes_max, upto)
        for part in log.read(offset, bytes_max=bytes_max, upto=upto):
            data = part.file.read(part.position, part.length)
            try:
                count += _count(data)
            except CorruptError:  # rotted since it was checked first, or cut off meanwhile
                return _up_to_damage(log, offset, part.next_offset)
            pieces.append(data)
            next_offset = part.next_offset
    except CorruptFrameError as error:
        return Found(damage=(error.offset, error.next_offset))
    except RefusedError:
        start = log.start_offset
        return Found(start=start if offset < start else None)
    return Found(pieces[0] if len(pieces) == 1 else b"".join(pieces), count, next_offset)


def _decrypted(log: CommitLog, offset: int, bytes_max: int, upto: int) -> Found:
    frames = log.read_frames(offset, bytes_max=bytes_max, upto=upto)
    if not frames:
        return Found()
    data = b"".join([piece for header, body in frames for piece in (encode_header(header), body)])
    return Found(data, len(frames), frames[-1][0].next_offset)


def _count(data: bytes) -> int:
    """How many frames these bytes are.

    Raises:
        CorruptError: They are not whole, or damaged.
    """
    view = memoryview(data)
    position = count = 0
    while position < len(view):
        header = decode_header(view[position : position + HEADER_SIZE])
        end = position + header.frame_length
        check_body(header, view[position + HEADER_SIZE : end])
        position, count = end, count + 1
    return count


def _up_to_damage(log: CommitLog, offset: int, upto: int) -> Found:
    """Frame by frame, as far as they are sound.

    Raises:
        RefusedError: The offset is not in the log any more.
    """
    pieces: list[bytes] = []
    next_offset, damage = 0, None
    try:
        for header, body in log.frames(offset, upto=upto):
            pieces += (encode_header(header), body)
            next_offset = header.next_offset
    except CorruptFrameError as error:
        damage = error.offset, error.next_offset
    return Found(b"".join(pieces), len(pieces) // 2, next_offset, damage)
