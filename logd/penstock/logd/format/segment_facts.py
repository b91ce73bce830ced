"""Facts about a segment, by which retention and compaction decide."""

from msgspec import Struct


class SegmentFacts(Struct, frozen=True, kw_only=True):
    """One segment as it stands.

    Attributes:
        base_offset: Offset of its first record.
        next_offset: After its last record; equal to `base_offset` when it is empty.
        size_bytes: Bytes of its log file.
        newest_ns: Unix time of its newest record, or when it was last written if that is earlier:
            a record from the future counts as of its arrival, one read from disk at the latest as
            of the opening. Of a damaged segment: when it was last written or opened; of one that
            compaction left no record in: long ago.
        damaged: Some of its bytes are known not to be sound frames.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    newest_ns: int
    damaged: bool = False
