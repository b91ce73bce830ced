"""Whole frames of one file, for whoever sends them."""

from dataclasses import dataclass

from penstock.logd.store.disk import File


@dataclass(frozen=True, slots=True)
class FileRange:
    """Whole frames of one file, ready for sendfile.

    The range holds its file open: the descriptor stays valid while the range is referred to, also
    when the segment is deleted or the log closed meanwhile.

    Attributes:
        position: First byte.
        length: Bytes.
        base_offset: Of the first frame; at most the offset asked for.
        next_offset: After the last frame.
    """

    file: File
    position: int
    length: int
    base_offset: int
    next_offset: int
