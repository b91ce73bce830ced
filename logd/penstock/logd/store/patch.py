"""Frames that take the place of a damaged range.

A segment with damage in that range is written anew and then replaces the old one as any rewritten
segment does (`penstock.logd.store.swap`): a crash on the way leaves the damage, or the frames that
came for it. Every sound frame is copied as it is; what came is cut down to the damage it is for.
Damage that nothing came for is copied with all its bytes.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.logd.errors import CorruptError
from penstock.logd.frame import HEADER_SIZE, FrameHeader
from penstock.logd.store.disk import File
from penstock.logd.store.rewriting import Rewriting
from penstock.logd.store.scan import Damage, damaged_body, scanner, walk
from penstock.logd.store.segment import Segment
from penstock.logd.store.trimming import trim_frame
from penstock.logd.store.vault import Vault, decrypted

Frame = tuple[FrameHeader, bytes]
Range = tuple[int, int]


class Patch:
    """What came for [first, upto).

    Args:
        first: The first damaged offset.
        upto: Exclusive.
        frames: Checked; they tile a range that holds [first, upto).

    Attributes:
        filled: Ranges of the last segment that were damaged and are not any more.
        left: Those that still are.
    """

    def __init__(self, first: int, upto: int, frames: Sequence[Frame]) -> None:
        assert all(a.next_offset == b.base_offset for (a, _), (b, _) in pairwise(frames))
        assert frames[0][0].base_offset <= first < upto <= frames[-1][0].next_offset, (first, upto)
        self.first = first
        self.upto = upto
        self.filled: list[Range] = []
        self.left: list[Range] = []
        self._frames = frames

    def concerns(self, segment: Segment) -> bool:
        """Whether a segment has a part of the range."""
        return segment.base_offset < self.upto and self.first < segment.end_offset

    def rewrite(self, segment: Segment, rewriting: Rewriting, vault: Vault | None) -> bool:
        """Copy a sealed segment, its damage in the range filled; whether there was any.

        Args:
            segment: No more is appended to it.
            rewriting: Of its whole range.
            vault: Of the log. A frame that cannot be decrypted is damage, too.

        Raises:
            RefusedError: A frame that came reaches over the damage and cannot be cut down.
            CorruptError: Likewise.
            OSError: The disk failed or is full.
        """
        self.filled, self.left = [], []
        file = segment.pin()
        reader = scanner(file, end=segment.size, name=str(segment.path))
        end = segment.end_offset
        for item in walk(reader, 0, segment.base_offset, end_offset=end, deep=True):
            if isinstance(item, Damage):
                self._mend(item, file, rewriting)
                continue
            body = reader.bytes_at(item.position + HEADER_SIZE, item.header.body_length)
            try:
                frame = decrypted(vault, item.header, body, segment.base_offset)
            except CorruptError as error:
                self._mend(damaged_body(item, error), file, rewriting)
            else:
                rewriting.add(*frame)
        if self.filled:
            rewriting.finish()
        return bool(self.filled)

    def _mend(self, damage: Damage, file: File, rewriting: Rewriting) -> None:
        """Put what came in the place of damage.

        If that is not all of it, its bytes come after the frames: before them, what looks like the
        header of a larger frame would hide them.
        """
        if damage.offset == damage.next_offset:
            return  # bytes between frames that stand for no record
        end = damage.next_offset
        first, upto = max(damage.offset, self.first), min(end, self.upto)
        if first >= upto:
            first = upto = end
        gaps = [(a, b) for a, b in ((damage.offset, first), (upto, end)) if a < b]
        self.left += gaps
        if first < upto:
            self.filled.append((first, upto))
            rewriting.skip_to(first)
            for frame in self._fitting(first, upto):
                rewriting.add(*frame)
        if gaps:
            rewriting.keep(file, damage.position, damage.end)
            rewriting.skip_to(end)

    def _fitting(self, first: int, upto: int) -> Iterator[Frame]:
        for header, body in self._frames:
            if header.next_offset <= first or upto <= header.base_offset:
                continue
            if first <= header.base_offset and header.next_offset <= upto:
                yield header, body
            else:
                yield trim_frame(header, body, first, upto)
