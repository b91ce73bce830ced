"""Compaction: which sealed segments are rewritten, why, and which records go with that.

Three reasons to rewrite, in this order:

*Keys.* Of a stream with `compact`, of each key only the last record is kept (the key alone counts,
not the subject). Sealed segments below a bound are *clean* up to an offset and *dirty* above it. A
pass reads the dirty part and notes the last offset of each key in it, as many as memory allows;
then every record below whose key was noted at a later offset goes. Records without a key stay. As
in Kafka's log cleaner, a pass is due when the dirty part is a large enough share of the bytes.

A record with a key and no value is a *tombstone*: it removes the earlier records of its key and
says so to readers. It goes in the first pass after `tombstone_retention_s` since the pass that
first saw it: by then that pass had removed every earlier record of its key (Kafka's delete
horizon). When that was is kept beside the log (`CleanState`) as (offset, time) pairs, one a pass.

*Small segments.* A run of neighbours is merged if it makes no segment above the limits, and if none
of them is more than half of the run: so each time that a byte is rewritten its segment has at least
doubled, and it is rewritten as often as the logarithm of that.

*Small frames.* A segment is rewritten if its frames are small on average and a quarter of them
would do. What was put together once says so (`FrameHeader.compacted`) and is no reason to do it
again.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.logd.format.frame import HEADER_SIZE, NO_TIMESTAMP, FrameHeader
from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.limits import FRAME_ROWS_MAX

FRAME_TARGET_BYTES: Final = 256 * 1024
"""Bytes of small frames that are put together; a reader of one record reads and decodes as many."""

FRAME_LARGE_BYTES: Final = 64 * 1024
"""Bytes of a body from which on a frame is left as it is: its overhead is below 2 %."""

FRAME_SMALL_BYTES: Final = 16 * 1024
"""Mean bytes of frames below which a segment is rewritten; a record's own overhead is 0.9 KB."""

PACK_BYTES_MIN: Final = 16 * 1024
"""Bytes of a segment below which its frames are left as they are until it is merged."""

SEAL_BYTES_MIN: Final = 1024 * 1024
"""Bytes from which on the active segment of a compacted stream may be sealed to be cleaned."""

FRAMES_PER_FRAME_MIN: Final = 4
"""Frames that one is to replace on average, or a segment is not rewritten for them."""

MERGED_SEGMENTS_MAX: Final = 32
"""Segments that are merged at a time: the files of all of them are open while one replaces them."""

SPAN_MAX: Final = 2**31 - 1
"""Offsets of one frame: an offset delta is an int32."""

KEY_BYTES: Final = 224
"""Memory bytes of a noted key: an entry of a dictionary, at most 32 bytes of key, and an offset."""

_KEY_LENGTH_MAX: Final = 31
_HORIZONS_MAX: Final = 64
_NS_PER_S: Final = 1_000_000_000


class SegmentRun(Struct, frozen=True):
    """Neighbouring sealed segments, by the offsets they hold; `end_offset` is exclusive."""

    base_offset: int
    end_offset: int


class MergeLimits(Struct, frozen=True, kw_only=True):
    """Bounds of a merged segment, so that retention can still apply its limits.

    Attributes:
        bytes_max: Maximum bytes of the segments together.
        span_ns_max: Maximum time between their newest records; None: unlimited.
        messages_max: Maximum offsets; None: unlimited.
    """

    bytes_max: int
    span_ns_max: int | None = None
    messages_max: int | None = None


class FrameGroup:
    """Neighbouring frames that may become one."""

    def __init__(self) -> None:
        self._first: FrameHeader | None = None
        self._rows = 0
        self._bytes = 0

    def admits(self, header: FrameHeader) -> bool:
        """Return whether the next frame may join: same epoch and schema, within the bounds."""
        first = self._first
        if first is None:
            return True
        return (
            first.leader_epoch == header.leader_epoch
            and first.schema_version == header.schema_version
            and self._rows + header.record_count <= FRAME_ROWS_MAX
            and self._bytes + header.body_length <= FRAME_TARGET_BYTES
            and header.next_offset - first.base_offset <= SPAN_MAX
        )

    def add(self, header: FrameHeader) -> None:
        """Take a frame in."""
        self._first = self._first or header
        self._rows += header.record_count
        self._bytes += header.body_length


def is_large(header: FrameHeader) -> bool:
    """Return whether a frame is large enough to be left alone."""
    return header.body_length >= FRAME_LARGE_BYTES


def is_worth_packing(sample: Iterable[FrameHeader]) -> bool:
    """Return whether frames like these should be merged.

    Args:
        sample: Neighbouring frames of a segment.
    """
    frames = size = left = 0
    group: FrameGroup | None = None
    for header in sample:
        frames += 1
        size += header.body_length + HEADER_SIZE
        if header.compacted or is_large(header):
            left, group = left + 1, None
        elif group is None or not group.admits(header):
            left, group = left + 1, FrameGroup()
            group.add(header)
        else:
            group.add(header)
    return size <= frames * FRAME_SMALL_BYTES and 0 < left * FRAMES_PER_FRAME_MIN <= frames


def run_to_merge(segments: Sequence[SegmentFacts], limits: MergeLimits) -> SegmentRun | None:
    """The first run of neighbours that is worth merging, as long as the limits allow.

    Args:
        segments: Sealed and rewritable, in order; neighbours in the list need not be in the log.
        limits: Limits of the merged segment.
    """
    for first in range(len(segments)):
        run = _mergeable_from(segments, first, limits)
        if run is not None:
            return run
    return None


def _mergeable_from(
    segments: Sequence[SegmentFacts], first: int, limits: MergeLimits
) -> SegmentRun | None:
    head = segments[first]
    total = largest = head.size_bytes
    times = [] if head.newest_ns == NO_TIMESTAMP else [head.newest_ns]
    found: SegmentRun | None = None
    before = head
    for segment in segments[first + 1 : first + MERGED_SEGMENTS_MAX]:
        total += segment.size_bytes
        largest = max(largest, segment.size_bytes)
        if segment.newest_ns != NO_TIMESTAMP:  # else it has no record left, of no age
            times.append(segment.newest_ns)
        messages = segment.next_offset - head.base_offset
        if (
            segment.base_offset != before.next_offset
            or total > limits.bytes_max
            or (times and _exceeds(limits.span_ns_max, max(times) - min(times)))
            or _exceeds(limits.messages_max, messages)
        ):
            break
        if 2 * largest <= total:
            found = SegmentRun(head.base_offset, segment.next_offset)
        before = segment
    return found


def _exceeds(limit: int | None, amount: int) -> bool:
    return limit is not None and amount > limit


class CleanState(Struct, frozen=True):
    """The clean part of a log, and the age of its tombstones.

    Attributes:
        clean_offset: Below it, no record has a later one of its key below it.
        passed_ns: Unix time of the last pass.
        horizons: (offset, Unix time), both rising: tombstones between the previous offset and
            this one entered the clean part at that time.
    """

    clean_offset: int = 0
    passed_ns: int = 0
    horizons: tuple[tuple[int, int], ...] = ()

    def tombstone_limit(self, retention_s: int, now_ns: int) -> int:
        """Tombstones below this offset may go."""
        old_ns = now_ns - retention_s * _NS_PER_S
        return max((upto for upto, seen_ns in self.horizons if seen_ns <= old_ns), default=0)

    def after_pass(self, upto: int, *, tombstones: bool, limit: int, now_ns: int) -> "CleanState":
        """The state after a pass up to an offset.

        Args:
            upto: New end of the clean part.
            tombstones: Whether the part that was dirty had any.
            limit: Tombstones below it went.
            now_ns: Unix time.
        """
        left = [(offset, seen_ns) for offset, seen_ns in self.horizons if offset > limit]
        if tombstones:
            left.append((upto, max(now_ns, left[-1][1] if left else now_ns)))
        while len(left) > _HORIZONS_MAX:  # the later time of two: kept longer, never shorter
            gaps = [after[1] - before[1] for before, after in pairwise(left)]
            del left[gaps.index(min(gaps))]
        return CleanState(upto, now_ns, tuple(left))

    def within(self, start_offset: int, end_offset: int) -> "CleanState":
        """The state of a log that begins and ends there: it may have been cut since."""
        clean = min(max(self.clean_offset, start_offset), end_offset)
        left = tuple(
            (min(upto, end_offset), seen_ns)
            for upto, seen_ns in self.horizons
            if upto > start_offset
        )
        return replace(self, clean_offset=clean, horizons=left)

    def document(self) -> dict[str, Any]:
        """The state as JSON."""
        return {
            "clean_offset": self.clean_offset,
            "passed_ns": self.passed_ns,
            "horizons": [list(pair) for pair in self.horizons],
        }

    @classmethod
    def restore(cls, document: dict[str, Any]) -> "CleanState":
        """The state that `document` wrote down.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        pairs = tuple((int(upto), int(seen_ns)) for upto, seen_ns in document["horizons"])
        return cls(int(document["clean_offset"]), int(document["passed_ns"]), pairs)


def cleaning_is_due(
    state: CleanState,
    segments: Sequence[SegmentFacts],
    *,
    dirty_ratio: float,
    tombstone_retention_s: int,
    now_ns: int,
) -> bool:
    """Return whether a pass over the keys is worth its cost.

    Args:
        state: The log's clean part.
        segments: Sealed segments below the bound.
        dirty_ratio: Share of dirty bytes from which on it is.
        tombstone_retention_s: The stream's; dirty segments wait no longer than that for a pass.
        now_ns: Unix time.
    """
    total = sum(segment.size_bytes for segment in segments)
    dirty = sum(s.size_bytes for s in segments if s.next_offset > state.clean_offset)
    if dirty and dirty >= dirty_ratio * total:
        return True
    waited_ns = now_ns - state.passed_ns
    if dirty and waited_ns >= tombstone_retention_s * _NS_PER_S:
        return True
    return total > 0 and state.tombstone_limit(tombstone_retention_s, now_ns) > 0


def sealing_is_due(sealed: Sequence[SegmentFacts], active: SegmentFacts) -> bool:
    """Return whether the active segment of a compacted stream is large enough to be cleaned.

    It is sealed when it has grown to be half of the log: a log of few keys is then never much
    larger than twice what is left of it, however large its segments may grow.
    """
    return active.size_bytes >= max(SEAL_BYTES_MIN, sum(facts.size_bytes for facts in sealed))


class KeyMap:
    """The last offset of each key of a stretch of the log, as far as memory allows.

    Args:
        bytes_max: Maximum memory bytes.

    Attributes:
        end_offset: All keys below it are noted.
        tombstones: Whether any record was one.
    """

    def __init__(self, start_offset: int, *, bytes_max: int) -> None:
        self.end_offset = start_offset
        self.tombstones = False
        self._keys_max = max(1, bytes_max // KEY_BYTES)
        self._offsets: dict[bytes, int] = {}

    def is_full(self) -> bool:
        """Return whether no further frame may be noted."""
        return len(self._offsets) >= self._keys_max

    def note(self, keys: Sequence[bytes | None], offsets: Sequence[int], next_offset: int) -> None:
        """Note the keys of the next frame, which ends before `next_offset`."""
        for key, offset in zip(keys, offsets, strict=True):
            if key is not None:
                self._offsets[_short(key)] = offset
        self.end_offset = next_offset

    def is_superseded(self, key: bytes | None, offset: int) -> bool:
        """Return whether a later record of the key was noted."""
        return key is not None and self._offsets.get(_short(key), -1) > offset


def _short(key: bytes) -> bytes:
    """A key of at most 32 bytes: itself, or a digest, which has exactly 32."""
    return key if len(key) <= _KEY_LENGTH_MAX else blake2b(key, digest_size=32).digest()
