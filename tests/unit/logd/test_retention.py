"""Retention decided: what may go, against a count of single records."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.metadata.retention_policy import Action, DeleteBefore, Retention, Seal, decide

SECOND = 1_000_000_000
NOW_S = 100


@dataclass
class Record:
    """One record as it is, not summed up."""

    offset: int
    size: int
    time_s: int


def facts(base: int, records: list[Record]) -> SegmentFacts:
    return SegmentFacts(
        base_offset=base,
        next_offset=base + len(records),
        size_bytes=sum(record.size for record in records),
        newest_ns=max((record.time_s for record in records), default=0) * SECOND,
    )


def log(*segments: list[tuple[int, int]]) -> list[list[Record]]:
    """Segments of (size, time) records at consecutive offsets."""
    offset, made = 7, []
    for segment in segments:
        made.append([Record(offset + n, size, time) for n, (size, time) in enumerate(segment)])
        offset += len(segment)
    return made


def ask(retention: Retention, segments: list[list[Record]], high_watermark: int) -> Action | None:
    base, made = 7, []
    for segment in segments:
        made.append(facts(base, segment))
        base += len(segment)
    return decide(retention, made, high_watermark=high_watermark, now_ns=NOW_S * SECOND)


def may_go(
    retention: Retention, segment: list[Record], later: list[Record], high_watermark: int
) -> bool:
    """Whether one segment may go, said in single records."""
    if any(record.offset > high_watermark for record in segment):
        return False
    committed = [record for record in later if record.offset <= high_watermark]
    if retention.bytes is not None and sum(r.size for r in later) >= retention.bytes:
        return True
    if retention.messages is not None and len(committed) >= retention.messages:
        return True
    age_s = retention.age_s
    return age_s is not None and all(NOW_S - record.time_s >= age_s for record in segment)


limits = st.builds(
    Retention,
    age_s=st.none() | st.integers(1, NOW_S),
    bytes=st.none() | st.integers(1, 200),
    messages=st.none() | st.integers(1, 15),
)
record = st.tuples(st.integers(1, 30), st.integers(1, NOW_S + 20))
sealed = st.lists(st.lists(record, min_size=1, max_size=4), max_size=6)


@given(limits, sealed, st.lists(record, max_size=4), st.integers(-1, 30))
def test_exactly_the_segments_that_may_go_are_deleted(
    retention: Retention,
    sealed: list[list[tuple[int, int]]],
    active: list[tuple[int, int]],
    committed: int,
) -> None:
    segments = log(*sealed, active)
    every = [record for segment in segments for record in segment]
    high_watermark = min(6 + committed, 6 + len(every))
    expected = 7
    for segment in segments[:-1]:
        later = [record for record in every if record.offset > segment[-1].offset]
        if not may_go(retention, segment, later, high_watermark):
            break
        expected = segment[-1].offset + 1
    action = ask(retention, segments, high_watermark)
    if expected > 7:
        assert action == DeleteBefore(expected)
        kept = [r for r in every if expected <= r.offset]
        if retention.age_s is None and retention.bytes is None and retention.messages is not None:
            assert sum(r.offset <= high_watermark for r in kept) >= retention.messages
        if retention.age_s is None and retention.messages is None and retention.bytes is not None:
            assert sum(r.size for r in kept) >= retention.bytes
    else:
        assert not isinstance(action, DeleteBefore)


OLD, NEW = (10, 10), (10, NOW_S)


def test_nothing_above_the_high_watermark_is_deleted() -> None:
    segments = log([OLD], [OLD, OLD], [OLD], [])
    assert ask(Retention(age_s=1), segments, 10) == DeleteBefore(11)
    assert ask(Retention(age_s=1), segments, 9) == DeleteBefore(10)
    assert ask(Retention(age_s=1), segments, 8) == DeleteBefore(8)
    assert ask(Retention(bytes=1, messages=1), segments, 6) is None


def test_a_young_segment_protects_those_behind_it() -> None:
    assert ask(Retention(age_s=50), log([OLD], [NEW], [OLD], []), 9) == DeleteBefore(8)


@pytest.mark.parametrize(
    ("retention", "active", "expected"),
    [
        (Retention(), [OLD], None),
        (Retention(age_s=50), [], None),
        (Retention(age_s=50), [OLD], Seal()),
        (Retention(age_s=50), [OLD, NEW], None),
        (Retention(bytes=20), [NEW], None),
        (Retention(bytes=20), [NEW, NEW], Seal()),
        (Retention(messages=8), [NEW], None),
        (Retention(messages=8), [NEW, NEW], Seal()),
    ],
)
def test_the_active_segment_is_sealed_and_never_deleted(
    retention: Retention, active: list[tuple[int, int]], expected: Action | None
) -> None:
    assert ask(retention, log(active), 100) == expected


def test_segments_are_small_beside_the_limits() -> None:
    retention = Retention(age_s=40, bytes=1 << 20)
    assert retention.max_segment_bytes(1 << 30) == 1 << 18
    assert retention.max_segment_bytes(1 << 17) == 1 << 17
    assert Retention(bytes=1).max_segment_bytes(1 << 30) == 1 << 16
    assert retention.segment_age_s_max() == 10
    assert Retention().segment_age_s_max() is None
    assert Retention().max_segment_bytes(5) == 5
    assert not Retention().deletes
    assert retention.by_age() == Retention(age_s=40)
