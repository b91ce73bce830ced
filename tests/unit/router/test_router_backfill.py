"""Which batches a replay makes, and the journal it knows them from."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.checkpoint.journal import BatchJournal
from penstock.router.read.offsets import Offsets, Readable, StreamPartition, admit
from penstock.router.replay.backfill_plan import (
    Chunk,
    Cuts,
    EndOf,
    Position,
    are_all_since,
    chunks,
    known_cuts,
    known_ends,
    of_batches_not_known,
    of_this_stream_id,
)

ONE = StreamPartition("logs", 0)
TWO = StreamPartition("logs", 1)


def spans(parts: list[Chunk], where: StreamPartition = ONE) -> list[tuple[int, int]]:
    return [(part.start[where], part.end[where]) for part in parts]


def end_of(max_rows: int) -> EndOf:
    return lambda first, last: admit(first, last, max_rows)


def cut(first: int, last: int, *ends: int, max_rows: int = 100) -> list[tuple[int, int]]:
    known = known_ends([{ONE: end} for end in ends], {}, [ONE])
    return spans(list(chunks({ONE: first}, {ONE: last}, known, end_of(max_rows))))


def test_without_known_batches_the_range_is_cut() -> None:
    assert cut(5, 25, max_rows=10) == [(5, 15), (15, 25)]
    assert cut(5, 5) == []


def test_known_batches_come_whole() -> None:
    assert cut(12, 18, 10, 15, 20, 30) == [(10, 15), (15, 20)]
    assert cut(15, 20, 10, 15, 20, 30) == [(15, 20)]


def test_what_lies_before_and_behind_known_batches_is_cut() -> None:
    assert cut(0, 45, 10, 20, max_rows=10) == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 45)]


def test_only_the_last_run_from_the_beginning_counts() -> None:
    assert cut(0, 20, 7, 14, 21, 10, 20) == [(0, 10), (10, 20)]


def test_partitions_are_cut_together() -> None:
    ends = [{ONE: 10, TWO: 5}, {ONE: 10, TWO: 9}, {ONE: 20, TWO: 9}]
    known = known_ends(ends, {}, [ONE, TWO])
    parts = list(chunks({ONE: 12, TWO: 0}, {ONE: 15, TWO: 0}, known, end_of(100)))
    assert parts == [Chunk({ONE: 10, TWO: 9}, {ONE: 20, TWO: 9})]


@given(
    st.lists(st.integers(0, 60)),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 20),
)
def test_chunks_follow_one_another_and_cover_the_range(
    ends: list[int], first: int, length: int, max_rows: int
) -> None:
    parts = cut(first, first + length, *ends, max_rows=max_rows)
    covered = {offset for begin, end in parts for offset in range(begin, end)}
    assert set(range(first, first + length)) <= covered
    assert len(covered) == sum(end - begin for begin, end in parts), "a record would come twice"
    assert parts == sorted(parts)


def test_a_stream_made_again_has_no_known_batches() -> None:
    old = Offsets({ONE: 10}, {"logs": "a"})
    new = Offsets({ONE: 5}, {"logs": "b"})
    assert of_this_stream_id([old, new], {"logs": "b"}) == [{}, {ONE: 5}]


def ends_of(journal: BatchJournal) -> list[Offsets]:
    return [end for end, _ in journal.batches()]


def test_the_journal_keeps_where_tasks_cut_a_batch(tmp_path: Path) -> None:
    journal = BatchJournal(tmp_path)
    ends = [Offsets({ONE: end}, {"logs": "a"}) for end in (10, 20)]
    journal.note(ends[0], {ONE: (3, 6)})
    journal.note(ends[1])
    again = BatchJournal(tmp_path)
    assert again.batches() == [(ends[0], {ONE: (3, 6)}), (ends[1], {})]
    assert again.has(ends[1])
    assert not again.has(ends[0])


def test_a_replay_cuts_batches_where_their_tasks_did() -> None:
    batches: list[tuple[Position, Cuts]] = [
        ({ONE: 10}, {ONE: (5,)}),
        ({ONE: 4}, {}),  # the job began again
        ({ONE: 20}, {ONE: (8, 12)}),
        ({ONE: 20}, {ONE: (9,)}),  # it came again, and was planned again
        ({ONE: 30}, {ONE: (25,)}),
    ]
    cuts = known_cuts(batches)
    assert cuts == {ONE: [9, 25]}
    assert Chunk({ONE: 4}, {ONE: 20}).within(cuts) == {ONE: (9,)}
    assert Chunk({ONE: 9}, {ONE: 30}).within(cuts) == {ONE: (25,)}
    assert Chunk({ONE: 30}, {ONE: 40}).within(cuts) == {}


def test_the_journal_keeps_each_end_once_and_forgives_a_torn_line(tmp_path: Path) -> None:
    journal = BatchJournal(tmp_path)
    ends = [Offsets({ONE: end}, {"logs": "a"}) for end in (10, 10, 20)]
    for end in ends:
        journal.note(end)
    again = BatchJournal(tmp_path)
    again.note(ends[-1])
    assert ends_of(again) == ends[1:]
    with (tmp_path / "batches.ndjson").open("a") as file:
        file.write('{"logs": {"0"')
    assert ends_of(BatchJournal(tmp_path)) == ends[1:]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_torn_line_takes_no_other_with_it(tmp_path: Path, restarted: bool) -> None:
    """Be it torn by a crash, or by a disk that was full for a moment under the same process."""
    journal = BatchJournal(tmp_path)
    ends = [Offsets({ONE: end}, {"logs": "a"}) for end in (10, 20, 30)]
    journal.note(ends[0])
    path = tmp_path / "batches.ndjson"
    if restarted:
        with path.open("a") as file:
            file.write('{"logs": {"0"')
        journal = BatchJournal(tmp_path)
    else:
        lines = path.read_bytes()
        path.unlink()
        path.symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space"):
            journal.note(ends[1])
        path.unlink()
        path.write_bytes(lines + b'{"logs": {"0"')
    journal.note(ends[1])
    journal.note(ends[2])
    assert ends_of(journal) == ends_of(BatchJournal(tmp_path)) == ends


def test_the_journal_is_bounded(tmp_path: Path) -> None:
    journal = BatchJournal(tmp_path, max_batches=10)
    for end in range(25):
        journal.note(Offsets({ONE: end}))
    kept = [end.next[ONE] for end in ends_of(journal)]
    assert kept == list(range(kept[0], 25))
    assert 5 <= len(kept) <= 10


def test_the_journal_keeps_its_batches_of_whatever_size(tmp_path: Path) -> None:
    journal = BatchJournal(tmp_path)
    journal.note(Offsets({ONE: 1}))
    os.truncate(tmp_path / "batches.ndjson", large := 200 * 1024 * 1024)
    journal.note(Offsets({ONE: 2}))
    size = (tmp_path / "batches.ndjson").stat().st_size
    assert large < size < large + 1000, "the older half is cut off"


def test_the_first_batch_comes_whole_where_its_beginning_is_known(tmp_path: Path) -> None:
    journal = BatchJournal(tmp_path)
    for end in (100, 200):
        journal.begin(Offsets({ONE: end - 100}))
        journal.note(Offsets({ONE: end}))
    again = BatchJournal(tmp_path)
    again.begin(Offsets({ONE: 200}))
    ends = [end.next[ONE] for end in ends_of(again)]
    assert ends == [0, 100, 200]
    assert cut(50, 150, *ends) == [(0, 100), (100, 200)]
    assert cut(50, 60, *ends) == [(0, 100)]


def test_a_stream_that_joined_later_was_begun_where_the_job_began_it() -> None:
    ends: list[Position] = [{ONE: 0}, {ONE: 10}, {ONE: 20, TWO: 530}]
    known = known_ends(ends, {ONE: 0, TWO: 500}, [ONE, TWO])
    parts = list(chunks({ONE: 20, TWO: 510}, {ONE: 20, TWO: 520}, known, end_of(100)))
    assert parts == [Chunk({ONE: 10, TWO: 500}, {ONE: 20, TWO: 530})]


def test_what_came_in_batches_that_are_not_known_is_told() -> None:
    known: list[Position] = [{ONE: 100, TWO: 40}, {ONE: 200, TWO: 40}]

    def unknown(first: int, last: int, *, begun: int) -> dict[StreamPartition, Readable]:
        begin, end = {ONE: first, TWO: 40}, {ONE: last, TWO: 60}
        return of_batches_not_known(begin, end, known, {ONE: begun, TWO: 40})

    assert unknown(50, 150, begun=0) == {ONE: Readable(50, 100)}
    assert unknown(0, 30, begun=10) == {ONE: Readable(10, 30)}
    assert unknown(0, 10, begun=10) == {}, "of before the job no batch was ever made"
    assert unknown(100, 200, begun=0) == unknown(0, 200, begun=100) == {}
    assert of_batches_not_known({ONE: 0}, {ONE: 9}, [], {}) == {}


@pytest.mark.parametrize(
    ("begun", "ends", "whole"),
    [
        ({ONE: 5}, (5, 9, 12), True),
        ({ONE: 6}, (5, 9, 12), True),
        ({ONE: 4}, (5, 9, 12), False),
        ({}, (0, 9), True),
        ({}, (1, 9), False),
        ({ONE: 5}, (), True),
    ],
)
def test_chunks_are_all_of_a_job_when_they_begin_where_it_did(
    begun: dict[StreamPartition, int], ends: tuple[int, ...], whole: bool
) -> None:
    parts = [Chunk({ONE: first}, {ONE: last}) for first, last in pairwise(ends)]
    assert are_all_since(begun, parts) is whole


def test_chunks_with_others_between_them_are_not_all() -> None:
    parts = [Chunk({ONE: 5}, {ONE: 9}), Chunk({ONE: 10}, {ONE: 12})]
    assert not are_all_since({ONE: 5}, parts)


@pytest.mark.parametrize("opened_again", [False, True])
def test_a_batch_that_has_nothing_for_the_sink_is_taken_back(
    tmp_path: Path, opened_again: bool
) -> None:
    ends = [Offsets({ONE: end}) for end in (0, 10, 20, 30)]
    journal = BatchJournal(tmp_path)
    journal.begin(ends[0])
    journal.note(ends[1])
    journal.note(ends[2], {ONE: (15,)})
    if opened_again:
        journal = BatchJournal(tmp_path)
    journal.take_back(ends[3])
    assert ends_of(journal) == ends[:3], "that is not the last one"
    journal.take_back(ends[2])
    assert ends_of(journal) == ends[:2]
    assert journal.has(ends[1])
    journal.note(ends[3])
    assert ends_of(journal) == ends_of(BatchJournal(tmp_path)) == [*ends[:2], ends[3]]


def test_a_line_that_was_torn_is_not_taken_back(tmp_path: Path) -> None:
    ends = [Offsets({ONE: end}) for end in (0, 10, 20)]
    journal = BatchJournal(tmp_path)
    for end in ends:
        journal.note(end)
    path = tmp_path / "batches.ndjson"
    path.write_bytes(path.read_bytes()[:-1])
    again = BatchJournal(tmp_path)
    again.take_back(ends[2])
    assert ends_of(again) == ends
