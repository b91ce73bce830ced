"""Ranges over several segments."""

from collections.abc import Iterable

from penstock.logd.store.disk import File
from penstock.logd.store.errors import CorruptFrameError
from penstock.logd.store.file_range import FileRange
from penstock.logd.store.segment import Segment


def gather_ranges(
    pinned: Iterable[tuple[Segment, File]], offset: int, *, bytes_max: int, upto: int
) -> list[FileRange]:
    """Ranges of several segments: frames from `offset` on, at least one, about `bytes_max`.

    Raises:
        CorruptFrameError: The first frame is damaged.
    """
    ranges: list[FileRange] = []
    for segment, file in pinned:
        try:
            part = segment.extent(file, offset, bytes_max=bytes_max, upto=upto)
        except CorruptFrameError:
            if ranges:
                break
            raise
        if part is None or (ranges and part.length > bytes_max):
            break
        ranges.append(part)
        bytes_max -= part.length
        offset = part.next_offset
        if bytes_max <= 0 or offset < segment.end_offset:
            break
    return ranges
