"""Pieces of a partition: the same ones for readers of different spans, and named by their bytes."""

import random
from itertools import pairwise

import pytest

from penstock.router.read.chunks import Cut, FrameChunk, chunks_of
from penstock.router.read.offsets import Span
from penstock.router.read.shared.policy import (
    CHUNK_BYTES,
    CHUNK_OFFSETS,
    CHUNK_RECORDS_MIN,
    Cutter,
    Kept,
    too_many,
)
from tests.unit.router.scripted_log import Frame, ScriptedClient, compacted, frame, reading

FRAME_RECORDS_MAX = 900


def frames(dice: random.Random, *, size_max: int, density: float) -> list[tuple[int, int, int]]:
    """Base offset, records and bytes of each."""
    found, offset = [], 0
    while offset < 40 * CHUNK_OFFSETS:
        count = dice.randint(1, FRAME_RECORDS_MAX)
        found.append((offset, int(count * density), count * dice.randint(1, size_max)))
        offset += count
    return found


def cuts(given: list[tuple[int, int, int]]) -> list[int]:
    """Where pieces begin."""
    cutter = Cutter()
    begins = [cutter.begins(base, records=records, size=size) for base, records, size in given]
    assert not begins[0]
    return [base for (base, _, _), does in zip(given, begins, strict=True) if does]


def test_a_piece_begins_beyond_a_multiple_with_enough_records_or_behind_enough_bytes() -> None:
    cutter = Cutter(offsets=10, min_records=4)
    given = ((0, 4, 1), (10, 3, 1), (20, 1, 1), (30, 1, CHUNK_BYTES), (31, 1, 1), (32, 1, 1))
    begins = [cutter.begins(at, records=records, size=size) for at, records, size in given]
    assert begins == [False, True, False, True, True, False]


@pytest.mark.parametrize("size_max", [300, 20_000])
@pytest.mark.parametrize("density", [1.0, 0.4])
def test_readers_that_begin_elsewhere_come_to_the_same_pieces(
    size_max: int, density: float
) -> None:
    dice = random.Random(f"{size_max} {density}")
    for _ in range(20):
        log = frames(dice, size_max=size_max, density=density)
        start = dice.randrange(len(log) // 2)
        of_all, of_some = cuts(log), cuts(log[start:])
        meet = log[start][0] + 2 * CHUNK_OFFSETS
        assert [at for at in of_some if at > meet] == [at for at in of_all if at > meet]


def test_so_they_do_where_records_are_large_and_all_alike() -> None:
    log = [(base, 100, 390_000) for base in range(0, 20 * CHUNK_OFFSETS, 100)]
    of_all, of_some = cuts(log), cuts(log[5:])
    assert of_all != of_some
    assert set(of_some) - set(of_all) < set(range(2 * CHUNK_OFFSETS))


def test_pieces_have_neither_many_records_nor_many_bytes_nor_few_of_both() -> None:
    log = frames(random.Random(1), size_max=20_000, density=1.0)
    at = [0, *cuts(log)]
    for first, behind in pairwise(at):
        inside = [frame for frame in log if first <= frame[0] < behind]
        assert sum(size for *_, size in inside[:-1]) < CHUNK_BYTES
        assert sum(records for _, records, _ in inside) < CHUNK_OFFSETS + FRAME_RECORDS_MAX
    assert len(at) < sum(size for *_, size in log) / CHUNK_BYTES + 50


def test_where_few_offsets_have_records_pieces_are_not_small() -> None:
    log = frames(random.Random(2), size_max=1, density=0.02)
    at = [0, *cuts(log)]
    for first, behind in pairwise(at):
        records = sum(records for base, records, _ in log if first <= base < behind)
        assert CHUNK_RECORDS_MIN <= records < 2 * CHUNK_RECORDS_MIN


def test_the_oldest_go_until_the_others_fit() -> None:
    kept = [Kept(3, "c", 10), Kept(1, "a", 10), Kept(2, "b", 10)]
    assert list(too_many(kept, 30)) == []
    assert list(too_many(kept, 29)) == ["a"]
    assert list(too_many(kept, 10)) == ["a", "b"]
    assert list(too_many(kept, 0)) == ["a", "b", "c"]


def chunk(some: Frame, start: int, end: int) -> FrameChunk:
    return FrameChunk((Cut(*some, start, end, "s/0"),))


def test_a_name_tells_all_that_the_rows_follow_from() -> None:
    whole = chunk(frame(4, [b"a", b"b"]), 4, 6)
    names = [
        whole.name("x"),
        whole.name("y"),
        chunk(frame(4, [b"a", b"c"]), 4, 6).name("x"),  # what an election has put in its place
        chunk(frame(3, [b"a", b"b"]), 3, 5).name("x"),
        chunk(frame(4, [b"a", b"b"]), 5, 6).name("x"),
        chunk(frame(4, [b"a", b"b"]), 4, 5).name("x"),
        chunk(compacted(4, 2, [0]), 4, 6).name("x"),
        FrameChunk((*whole.cuts, *chunk(frame(6, [b"a"]), 6, 7).cuts)).name("x"),
    ]
    assert len(set(names)) == len(names)
    assert chunk(frame(4, [b"a", b"b"], epoch=2), 4, 6).name("x") == whole.name("x")


def test_pieces_of_a_span_hold_its_records_and_no_others() -> None:
    log = [frame(base, [b"%d" % (base + n) for n in range(500)]) for base in range(0, 50_000, 500)]
    names = []
    for start, end in ((0, 50_000), (7, 49_001), (9_999, 40_000), (5, 9)):
        client = ScriptedClient(log)
        found = list(reading(client).chunks(Span("s", 0, start, end), fail_on_data_loss=True))
        values = [value for it in found for value in it.rows().column("value").to_pylist()]
        assert values == [b"%d" % offset for offset in range(start, end)]
        names.append({it.name("") for it in found})
    assert len(names[0]) == 7
    assert len(names[0] & names[1]) == 4
    assert len(names[0] & names[2]) == 2
    assert not names[3] & names[0]


def test_a_body_that_cannot_be_measured_is_told_of_where_it_is_decoded() -> None:
    header, _ = frame(0, [b"a"])
    broken = Cut(header, memoryview(b"nothing"), 0, 1, "s/0")
    (found,) = chunks_of([broken], Cutter())
    with pytest.raises(Exception, match="s/0 offset 0"):
        found.rows()
