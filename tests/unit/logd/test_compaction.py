"""What compaction decides: keys, tombstones, which segments and frames are worth rewriting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.logd.compaction.policy import (
    FRAME_TARGET_BYTES,
    KEY_BYTES,
    MERGED_SEGMENTS_MAX,
    SEAL_BYTES_MIN,
    CleanState,
    FrameGroup,
    KeyMap,
    MergeLimits,
    SegmentRun,
    cleaning_is_due,
    is_worth_packing,
    run_to_merge,
    sealing_is_due,
)
from penstock.logd.format.frame import NO_TIMESTAMP, FrameHeader
from penstock.logd.format.segment_facts import SegmentFacts
from penstock.logd.limits import FRAME_ROWS_MAX

SECOND = 1_000_000_000
HEADER = FrameHeader(
    base_offset=0,
    leader_epoch=1,
    record_count=1,
    last_offset_delta=0,
    body_length=800,
    body_crc=0,
    first_timestamp_ns=0,
    max_timestamp_ns=0,
    schema_version=1,
)


def segments(*sizes: int) -> list[SegmentFacts]:
    """Neighbours of ten records each, a second apart."""
    return [
        SegmentFacts(
            base_offset=10 * n, next_offset=10 * n + 10, size_bytes=size, newest_ns=n * SECOND
        )
        for n, size in enumerate(sizes)
    ]


def headers(count: int, **changes: int | bool) -> list[FrameHeader]:
    return [replace(HEADER, base_offset=n, **changes) for n in range(count)]


@pytest.mark.parametrize(
    ("sample", "worth"),
    [
        (headers(0), False),
        (headers(3), False),
        (headers(4), True),
        (headers(100), True),
        (headers(100, compacted=True), False),
        (headers(100, body_length=80_000), False),
        (headers(100, body_length=20_000), False),
        ([replace(h, leader_epoch=h.base_offset // 2) for h in headers(100)], False),
        ([replace(h, leader_epoch=h.base_offset // 8) for h in headers(100)], True),
        (headers(100, schema_version=9), True),
    ],
)
def test_small_frames_that_fit_together_are_worth_packing(
    sample: list[FrameHeader], worth: bool
) -> None:
    assert is_worth_packing(sample) == worth


@given(
    st.lists(
        st.tuples(st.integers(1, 40_000), st.integers(1, 9_000), st.integers(0, 1)), max_size=80
    )
)
def test_what_was_packed_is_not_worth_packing_again(frames: list[tuple[int, int, int]]) -> None:
    offset, packed = 0, list[FrameHeader]()
    group, members = FrameGroup(), list[FrameHeader]()
    for length, rows, epoch in frames:
        header = replace(
            HEADER,
            base_offset=offset,
            last_offset_delta=rows - 1,
            record_count=rows,
            body_length=length,
            leader_epoch=epoch,
        )
        offset += rows
        if not group.admits(header):
            packed.append(replace(members[0], compacted=len(members) > 1))
            group, members = FrameGroup(), []
        group.add(header)
        members.append(header)
        assert sum(member.record_count for member in members) <= max(FRAME_ROWS_MAX, rows)
        assert sum(member.body_length for member in members) <= FRAME_TARGET_BYTES
        assert {member.leader_epoch for member in members} == {epoch}
    if members:
        packed.append(replace(members[0], compacted=len(members) > 1))
    assert not is_worth_packing(packed)


@pytest.mark.parametrize(
    ("sizes", "run"),
    [
        ((), None),
        ((5,), None),
        ((5, 5), SegmentRun(0, 20)),
        ((9, 1), None),
        ((9, 1, 1, 7), SegmentRun(0, 40)),
        ((90, 1, 1), SegmentRun(10, 30)),
        ((60, 60), None),
        ((30, 30, 30, 30), SegmentRun(0, 30)),
        ((99, 40, 40, 99), SegmentRun(10, 30)),
    ],
)
def test_small_neighbours_are_merged_below_the_limit(
    sizes: tuple[int, ...], run: SegmentRun | None
) -> None:
    assert run_to_merge(segments(*sizes), MergeLimits(bytes_max=100)) == run


def test_no_more_segments_are_merged_at_a_time_than_files_may_be_open_for() -> None:
    many = segments(*[1] * (2 * MERGED_SEGMENTS_MAX))
    run = run_to_merge(many, MergeLimits(bytes_max=1 << 30))
    assert run == SegmentRun(0, many[MERGED_SEGMENTS_MAX].base_offset)


def test_merging_respects_gaps_and_what_retention_needs() -> None:
    three = segments(5, 5, 5)
    assert run_to_merge([three[0], three[2]], MergeLimits(bytes_max=100)) is None
    assert run_to_merge(three, MergeLimits(bytes_max=100, messages_max=20)) == SegmentRun(0, 20)
    assert run_to_merge(three, MergeLimits(bytes_max=100, messages_max=19)) is None
    assert run_to_merge(three, MergeLimits(bytes_max=100, span_ns_max=SECOND)) == SegmentRun(0, 20)
    assert run_to_merge(three, MergeLimits(bytes_max=100, span_ns_max=SECOND - 1)) is None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_segments_that_compaction_left_no_record_in_have_no_age_that_keeps_them(
    number: int,
) -> None:
    found = segments(20, 20, 20)
    found[number] = replace(found[number], newest_ns=NO_TIMESTAMP)
    limits = MergeLimits(bytes_max=100, span_ns_max=2 * SECOND)
    assert run_to_merge(found, limits) == SegmentRun(0, found[-1].next_offset)


@given(st.lists(st.integers(1, 50), max_size=30))
def test_merging_ends_and_rewrites_each_byte_few_times(sizes: list[int]) -> None:
    limits = MergeLimits(bytes_max=200)
    found, written = segments(*sizes), 0
    while (run := run_to_merge(found, limits)) is not None:
        inside = [f for f in found if run.base_offset <= f.base_offset < run.end_offset]
        size = sum(facts.size_bytes for facts in inside)
        assert len(inside) > 1
        assert max(facts.size_bytes for facts in inside) * 2 <= size <= 200
        merged = replace(inside[0], next_offset=run.end_offset, size_bytes=size)
        at = found.index(inside[0])
        found[at : at + len(inside)] = [merged]
        written += size
    assert written <= 8 * sum(sizes), "log2 of the limit"


def due(state: CleanState, sizes: list[int], now_s: int = 0, **changes: float) -> bool:
    options = {"dirty_ratio": 0.5, "tombstone_retention_s": 100} | changes
    return cleaning_is_due(state, segments(*sizes), now_ns=now_s * SECOND, **options)  # type: ignore[arg-type]


def test_a_pass_is_due_by_the_dirty_share_by_time_and_for_tombstones() -> None:
    assert not due(CleanState(), [])
    assert due(CleanState(), [1])
    assert due(CleanState(clean_offset=20), [1, 1, 2])
    assert not due(CleanState(clean_offset=20), [2, 2, 2])
    assert due(CleanState(clean_offset=20), [2, 2, 2], dirty_ratio=0.3)
    assert due(CleanState(clean_offset=20), [2, 2, 2], now_s=100)
    assert not due(CleanState(clean_offset=30), [2, 2, 2], now_s=100)
    assert not due(CleanState(clean_offset=30, horizons=((30, SECOND),)), [2, 2, 2], now_s=100)
    assert due(CleanState(clean_offset=30, horizons=((30, SECOND),)), [2, 2, 2], now_s=101)


def test_the_active_segment_is_sealed_when_it_is_half_of_the_log() -> None:
    *sealed, active = segments(SEAL_BYTES_MIN, SEAL_BYTES_MIN, 2 * SEAL_BYTES_MIN)
    assert sealing_is_due(sealed, active)
    assert not sealing_is_due(sealed, replace(active, size_bytes=2 * SEAL_BYTES_MIN - 1))
    assert sealing_is_due([], replace(active, size_bytes=SEAL_BYTES_MIN))
    assert not sealing_is_due([], replace(active, size_bytes=SEAL_BYTES_MIN - 1))


def test_tombstones_may_go_a_retention_after_they_were_first_seen() -> None:
    state = CleanState().after_pass(10, tombstones=True, limit=0, now_ns=1 * SECOND)
    state = state.after_pass(20, tombstones=False, limit=0, now_ns=2 * SECOND)
    state = state.after_pass(30, tombstones=True, limit=0, now_ns=3 * SECOND)
    assert state == CleanState(30, 3 * SECOND, ((10, SECOND), (30, 3 * SECOND)))
    limits = [state.tombstone_limit(5, now_s * SECOND) for now_s in (0, 5, 6, 7, 8)]
    assert limits == [0, 0, 10, 10, 30]
    assert state.after_pass(30, tombstones=False, limit=10, now_ns=7).horizons == (
        (30, 3 * SECOND),
    )
    assert CleanState.restore(state.document()) == state


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-3, 9)), min_size=1, max_size=300))
def test_no_tombstone_goes_before_its_time_however_many_passes_there_were(
    passes: list[tuple[int, int]],
) -> None:
    state, now_s, upto = CleanState(), 1000, 0
    seen: list[tuple[int, int]] = []
    for length, later_s in passes:
        upto, now_s = upto + length, now_s + later_s
        seen.append((upto, now_s))
        state = state.after_pass(upto, tombstones=True, limit=0, now_ns=now_s * SECOND)
    assert len(state.horizons) <= 64
    assert state.horizons == tuple(sorted(state.horizons))
    for upto, seen_s in seen:
        limit = state.tombstone_limit(10, (seen_s + 10) * SECOND - 1)
        assert limit < upto, "first seen at seen_s, so kept until ten seconds later"
    assert state.tombstone_limit(10, (max(s for _, s in seen) + 10) * SECOND) == upto


def test_the_state_follows_a_log_that_was_cut() -> None:
    state = CleanState(50, 7, ((20, 1), (50, 2)))
    assert state.within(0, 100) == state
    assert state.within(30, 100) == CleanState(50, 7, ((50, 2),))
    assert state.within(60, 100) == CleanState(60, 7, ())
    assert state.within(0, 40) == CleanState(40, 7, ((20, 1), (40, 2)))


@given(
    st.lists(st.one_of(st.none(), st.sampled_from([b"", b"a", b"k" * 31, b"k" * 32, b"k" * 99]))),
    st.integers(0, 5),
)
def test_a_record_is_superseded_by_a_later_one_of_its_key(
    keys: list[bytes | None], per_frame: int
) -> None:
    noted = KeyMap(0, bytes_max=1 << 20)
    step = per_frame + 1
    for base in range(0, len(keys), step):
        part = keys[base : base + step]
        noted.note(part, range(base, base + len(part)), base + len(part))
    assert noted.end_offset == len(keys)
    for offset, key in enumerate(keys):
        expected = key is not None and key in keys[offset + 1 :]
        assert noted.is_superseded(key, offset) == expected


def test_a_key_map_says_when_it_is_full() -> None:
    noted = KeyMap(5, bytes_max=2 * KEY_BYTES)
    noted.note([b"a", b"a", None], [5, 6, 7], 8)
    assert not noted.is_full()
    noted.note([b"b"], [8], 9)
    assert noted.is_full()
    assert not noted.is_superseded(b"c", 0)
