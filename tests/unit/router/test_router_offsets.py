"""Which records a batch is made of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.errors import BadOptionError, DataLossError
from penstock.router.read.offsets import (
    EARLIEST,
    LATEST,
    FrameSize,
    Offsets,
    Readable,
    Span,
    StreamPartition,
    admit,
    check_readable,
    clip,
    count_between,
    offsets_from_json,
    reading_begins,
    resolve,
    spans_between,
    split,
    split_by_size,
    with_streams_not_read,
    within_bytes,
    within_measured_bytes,
)

LOGS = StreamPartition("logs", 0)
TRACES = StreamPartition("traces", 0)


def test_offsets_survive_their_json_form() -> None:
    offsets = Offsets({LOGS: 3, StreamPartition("logs", 1): 4, TRACES: 5}, {"logs": "5f2c"})
    document = offsets.to_json()
    assert document == {
        "logs": {"0": 3, "1": 4, "incarnation": "5f2c"},
        "traces": {"0": 5},
    }
    assert offsets_from_json(document) == offsets
    more = replace(offsets, epochs={LOGS: 7}, generations={TRACES: ((2, 1), (5, 3))})
    assert offsets_from_json(more.to_json()) == more


@pytest.mark.parametrize(
    "document", [[], {"logs": 3}, {"logs": {"x": 3}}, {"logs": {"0": "3"}}, {"logs": {"0": -3}}]
)
def test_offsets_of_another_form_are_refused(document: object) -> None:
    with pytest.raises(BadOptionError):
        offsets_from_json(document)


def test_resolve_fills_in_what_earliest_and_latest_mean() -> None:
    readable = {LOGS: Readable(10, 20), TRACES: Readable(0, 7)}
    assert resolve(EARLIEST, readable, missing=LATEST) == {LOGS: 10, TRACES: 0}
    assert resolve(LATEST, readable, missing=EARLIEST) == {LOGS: 20, TRACES: 7}
    assert resolve(Offsets({LOGS: 15}), readable, missing=LATEST) == {LOGS: 15, TRACES: 7}
    assert resolve(Offsets({LOGS: LATEST}), readable, missing=EARLIEST) == {LOGS: 20, TRACES: 0}


def test_admit_divides_a_batch_in_proportion_and_starves_nobody() -> None:
    start, end = {LOGS: 0, TRACES: 100}, {LOGS: 990, TRACES: 110}
    assert admit(start, end, 100) == {LOGS: 99, TRACES: 101}
    assert admit(start, end, 1) == {LOGS: 1, TRACES: 101}
    assert admit(start, end, 1000) == end


_AMOUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 500), min_size=1)


@given(waiting=_AMOUNTS, max_rows=st.integers(1, 300))
def test_admit_reaches_the_end_within_its_limit(waiting: dict[str, int], max_rows: int) -> None:
    end = {StreamPartition(name, 0): count for name, count in waiting.items()}
    position = dict.fromkeys(end, 0)
    batches = 0
    while position != end:
        step = admit(position, end, max_rows)
        taken = {at: step[at] - position[at] for at in end}
        assert all(count >= 0 for count in taken.values())
        assert sum(taken.values()) <= max_rows + len(end)
        assert all(taken[at] > 0 for at in end if position[at] < end[at])
        position = step
        batches += 1
    assert batches <= sum(waiting.values()) // max_rows * 2 + 3 * len(end) + 2


def test_a_batch_is_cut_by_bytes_in_proportion_and_a_large_record_passes() -> None:
    start, end = {LOGS: 0, TRACES: 100}, {LOGS: 900, TRACES: 200}
    sizes = {LOGS: 10, TRACES: 1000}
    assert within_bytes(start, end, sizes, 109_000) == end
    assert within_bytes(start, end, sizes, 10_900) == {LOGS: 90, TRACES: 110}
    assert within_bytes(start, end, sizes, 1) == {LOGS: 1, TRACES: 100}
    assert within_bytes(start, {LOGS: 900, TRACES: 100}, {LOGS: 10}, 100) == {LOGS: 10, TRACES: 100}


def test_large_records_of_several_partitions_go_one_after_the_other_in_their_order() -> None:
    """Else a batch of many partitions would have as many large records."""
    start, end = {LOGS: 0, TRACES: 100}, {LOGS: 900, TRACES: 200}
    sizes = {LOGS: 30, TRACES: 30}
    assert within_bytes(start, end, sizes, 32) == {LOGS: 1, TRACES: 100}
    assert within_bytes(start, end, sizes, 32, order=[TRACES]) == {LOGS: 0, TRACES: 101}
    assert within_bytes(start, end, sizes, 60) == {LOGS: 1, TRACES: 101}


def frames(first: int, *sizes: int) -> list[FrameSize]:
    return [FrameSize(first + at, first + at + 1, size) for at, size in enumerate(sizes)]


def test_measured_frames_fill_a_batch_in_turn_and_one_larger_than_it_goes_alone() -> None:
    start = {LOGS: 0, TRACES: 100}
    parts = {LOGS: frames(0, 2, 50, 1), TRACES: frames(100, 3, 3, 3)}
    assert within_measured_bytes(start, parts, 10) == {LOGS: 1, TRACES: 102}
    parts = {LOGS: frames(1, 50, 1), TRACES: frames(102, 3)}
    begin = {LOGS: 1, TRACES: 102}
    assert within_measured_bytes(begin, parts, 10) == {LOGS: 2, TRACES: 102}
    assert within_measured_bytes(begin, parts, 10, order=[TRACES]) == {LOGS: 1, TRACES: 103}
    assert within_measured_bytes(begin, parts, 60) == {LOGS: 3, TRACES: 103}


def test_a_span_is_divided_where_its_frames_end_and_a_large_one_is_a_task() -> None:
    span = Span("logs", 0, 10, 16, epoch=1, planned_epoch=2)
    chunks = split_by_size(span, frames(10, 4, 4, 4, 30, 1, 1), 8)
    assert [(it.start, it.end, it.epoch) for it in chunks] == [
        (10, 12, 1), (12, 13, 2), (13, 14, 2), (14, 16, 2),
    ]  # fmt: skip


@given(waiting=_AMOUNTS, size=st.integers(1, 50), max_bytes=st.integers(1, 2000))
def test_batches_reach_the_end_within_their_bytes(
    waiting: dict[str, int], size: int, max_bytes: int
) -> None:
    end = {StreamPartition(name, 0): count for name, count in waiting.items()}
    sizes = {at: size * (1 + number) for number, at in enumerate(end)}
    position = dict.fromkeys(end, 0)
    while position != end:
        step = within_bytes(position, end, sizes, max_bytes)
        taken = {at: step[at] - position[at] for at in end}
        most = max(max_bytes, *sizes.values())
        assert sum(taken[at] * sizes[at] for at in end) <= most
        assert any(taken[at] > 0 for at in end)
        assert all(taken[at] >= 0 for at in end)
        position = step


def test_spans_lie_between_two_positions() -> None:
    start = Offsets({LOGS: 3, TRACES: 5}, {"logs": "a", "traces": "b"})
    end = Offsets({LOGS: 9, TRACES: 5}, {"logs": "a", "traces": "b"})
    assert spans_between(start, end) == [Span("logs", 0, 3, 9, "a")]


def test_a_stream_made_again_is_not_read_on() -> None:
    start = Offsets({LOGS: 3}, {"logs": "a"})
    with pytest.raises(DataLossError, match="made again"):
        spans_between(start, Offsets({LOGS: 9}, {"logs": "b"}))


def test_a_stream_made_again_begins_at_its_first_record() -> None:
    start = Offsets({LOGS: 500, TRACES: 4}, {"logs": "a", "traces": "a"})
    end = Offsets({LOGS: 9, TRACES: 6}, {"logs": "b", "traces": "a"})
    assert [reading_begins(at, start, end) for at in (LOGS, TRACES)] == [0, 4]
    assert count_between(start, end) == 9 + 2


def test_a_log_that_became_shorter_is_data_loss() -> None:
    with pytest.raises(DataLossError, match="ends at 2, before 3"):
        spans_between(Offsets({LOGS: 3}), Offsets({LOGS: 2}))


@pytest.mark.parametrize("readable", [Readable(4, 9), Readable(0, 8), None])
def test_a_span_that_is_not_all_there_is_data_loss(readable: Readable | None) -> None:
    available = {} if readable is None else {LOGS: readable}
    with pytest.raises(DataLossError):
        check_readable([Span("logs", 0, 3, 9)], available)


def test_clip_keeps_what_is_there() -> None:
    spans = [Span("logs", 0, 3, 9), Span("traces", 0, 0, 5)]
    assert clip(spans, {LOGS: Readable(4, 8)}) == [Span("logs", 0, 4, 8)]


@given(lengths=st.lists(st.integers(1, 1000), min_size=1, max_size=5), chunks=st.integers(1, 50))
def test_split_loses_and_repeats_nothing(lengths: list[int], chunks: int) -> None:
    spans = [Span(f"s{index}", 0, 7, 7 + length) for index, length in enumerate(lengths)]
    parts = split(spans, chunks)
    for span in spans:
        mine = [part for part in parts if part.stream == span.stream]
        covered = [offset for part in mine for offset in range(part.start, part.end)]
        assert covered == list(range(span.start, span.end))
        assert all(part.length > 0 for part in mine)


def test_what_lies_between_two_positions_is_counted_by_offsets() -> None:
    first, second, added = (StreamPartition("logs", it) for it in range(3))
    begin = Offsets({first: 5, second: 7}, {"logs": "a"})
    end = Offsets({first: 9, second: 7, added: 2}, {"logs": "a"})
    assert count_between(begin, end) == 4 + 0 + 2
    assert count_between(Offsets({first: 5}), Offsets({first: 9}, {"logs": "a"})) == 4
    made_again = Offsets({first: 3, second: 1}, {"logs": "b"})
    assert count_between(begin, made_again) == 3 + 1, "all that its new life has"


def test_a_place_in_what_is_not_read_now_is_kept_while_the_stream_is_the_same() -> None:
    other = StreamPartition("logs", 1)
    known = Offsets({LOGS: 3, other: 6, TRACES: 7}, {"logs": "a", "traces": "b"})
    went_on = with_streams_not_read(Offsets({LOGS: 8}, {"logs": "a"}), known)
    assert went_on.next == {LOGS: 8, other: 6, TRACES: 7}
    made_again = with_streams_not_read(Offsets({LOGS: 8}, {"logs": "z"}), known)
    assert made_again.next == {LOGS: 8, TRACES: 7}


def test_frames_that_fill_the_bound_are_in_the_batch_and_in_one_task() -> None:
    frames = [FrameSize(first, first + 10, 5) for first in (0, 10, 20)]
    assert within_measured_bytes({LOGS: 0}, {LOGS: frames}, 10) == {LOGS: 20}
    span = Span("logs", 0, 0, 30, "a", 1, 2)
    assert split_by_size(span, frames, 10) == [
        Span("logs", 0, 0, 20, "a", 1, 2),
        Span("logs", 0, 20, 30, "a", 2, 2),
    ]


def test_spans_are_divided_only_as_far_as_they_have_offsets() -> None:
    spans = [Span("logs", 0, 0, 9, "a", 1, 1), Span("logs", 1, 5, 5, "a", 1, 1)]
    assert split(spans, 2) == spans
    assert [(it.start, it.end) for it in split(spans[:1], 3)] == [(0, 3), (3, 6), (6, 9)]
    assert split(spans[1:], 3) == spans[1:]


def test_a_partition_that_a_batch_did_not_know_begins_at_offset_0() -> None:
    assert within_bytes({}, {LOGS: 10}, {LOGS: 10}, 10) == {LOGS: 1}
