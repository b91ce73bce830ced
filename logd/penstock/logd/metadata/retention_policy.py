"""Retention: which records of a stream may go, and when a stream takes no more.

With `discard: old` the oldest records make room. A log loses whole sealed segments from its front:
a segment goes once every record in it is committed and, by one of the limits, not to be kept:

    age_s       its newest record is that old
    bytes       the segments after it hold that many bytes
    messages    the segments after it hold that many committed records

So what a limit asks to keep is never deleted on account of that limit, and what is kept beyond it
is less than a segment. For that to be little, segments are sealed when they reach a quarter of a
limit. A record is at least as young as its segment's newest one: a segment that is written to
lives on until its last record is too old.

With `discard: new`, `bytes` and `messages` delete nothing; publishers are refused while the log
holds that much. `age_s` deletes as above, and so makes room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from annotated_types import Ge, Le
from msgspec import Struct

from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.metadata.option import Option

Discard = Literal["old", "new"]

SEGMENTS_PER_LIMIT: Final = 4
"""Segments are sealed when they reach this part of a limit."""

SEGMENT_BYTES_MIN: Final = 64 * 1024
"""Segments are not made smaller than this to follow a limit in bytes."""

_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits of what a stream keeps; None: unlimited."""

    age_s: Annotated[
        int | None,
        Ge(1),
        Le(100 * 365 * 86_400),
        Option(
            "Seconds since a record's timestamp after which it may go.",
            liftbridge="retentionMaxAge",
        ),
    ] = None
    bytes: Annotated[
        int | None,
        Ge(1024 * 1024),
        Le(1 << 50),
        Option("Bytes of segment files to keep.", liftbridge="retentionMaxBytes", clamped=True),
    ] = None
    messages: Annotated[
        int | None,
        Ge(1),
        Le(1 << 50),
        Option("Records to keep.", liftbridge="retentionMaxMessages"),
    ] = None

    @property
    def deletes(self) -> bool:
        """True if anything is ever deleted."""
        return any(limit is not None for limit in (self.age_s, self.bytes, self.messages))

    def by_age(self) -> "Retention":
        """Return the one limit that deletes with `discard: new`."""
        return Retention(age_s=self.age_s)

    def max_segment_bytes(self, configured: int) -> int:
        """Bytes at which a segment is sealed."""
        if self.bytes is None:
            return configured
        return min(configured, max(SEGMENT_BYTES_MIN, self.bytes // SEGMENTS_PER_LIMIT))

    def segment_age_s_max(self) -> float | None:
        """Age at which a segment is sealed; None: never."""
        return None if self.age_s is None else self.age_s / SEGMENTS_PER_LIMIT


NO_LIMITS: Final = Retention()
"""Everything is kept for ever."""


class DeleteBefore(Struct, frozen=True):
    """Delete the sealed segments that end at or below `offset`."""

    offset: int


class Seal(Struct, frozen=True):
    """Seal the active segment, so that it can be deleted as a whole in its time."""


Action = DeleteBefore | Seal


def decide(
    retention: Retention,
    segments: Sequence[SegmentFacts],
    *,
    high_watermark: int,
    now_ns: int,
) -> Action | None:
    """Return the next action; deletion first, for it makes room.

    Args:
        retention: The limits that delete.
        segments: Segments in order and without gaps, the active one last.
        high_watermark: Nothing above it is deleted, nor counted as kept.
        now_ns: Unix time.
    """
    *sealed, active = segments
    committed = min(active.next_offset, high_watermark + 1)
    bytes_after = sum(segment.size_bytes for segment in segments)
    offset = start = segments[0].base_offset
    for segment in sealed:
        bytes_after -= segment.size_bytes
        messages_after = committed - segment.next_offset
        if messages_after < 0 or not (
            _reached(retention.bytes, bytes_after)
            or _reached(retention.messages, messages_after)
            or _is_too_old(retention, segment, now_ns)
        ):
            break
        offset = segment.next_offset
    if offset > start:
        return DeleteBefore(offset)
    return Seal() if _is_to_be_sealed(retention, active, now_ns) else None


def _is_to_be_sealed(retention: Retention, active: SegmentFacts, now_ns: int) -> bool:
    messages = active.next_offset - active.base_offset
    if messages == 0:
        return False
    return (
        _reached(retention.bytes, active.size_bytes)
        or _reached(retention.messages, messages * SEGMENTS_PER_LIMIT)
        or _is_too_old(retention, active, now_ns)
    )


def _reached(limit: int | None, amount: int) -> bool:
    return limit is not None and amount >= limit


def _is_too_old(retention: Retention, segment: SegmentFacts, now_ns: int) -> bool:
    limit = retention.age_s
    return limit is not None and segment.newest_ns <= now_ns - limit * _NS_PER_S
