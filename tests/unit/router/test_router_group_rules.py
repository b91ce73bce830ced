"""Which sinks read together, which batches a sink can have of others, and when one returns."""

from collections.abc import Mapping

import pytest

from penstock.router.read.offsets import Generations, Offsets, StreamPartition
from penstock.router.streaming.group_rules import (
    ALONE_MAX_S,
    ALONE_MIN_S,
    STAYED_S,
    ApartError,
    Candidate,
    Return,
    distance,
    form_groups,
    is_part_of,
    waits_too_long,
)

FIRST, SECOND = StreamPartition("logs", 0), StreamPartition("logs", 1)
LIFE = {"logs": "5f2c"}
S = 10**9


def at(
    first: int,
    second: int = 0,
    *,
    life: Mapping[str, str] | None = None,
    generations: Generations = (),
) -> Offsets:
    known = {FIRST: generations} if generations else {}
    return Offsets({FIRST: first, SECOND: second}, LIFE if life is None else life, {}, known)


def test_sinks_that_are_near_read_together_and_the_one_that_is_behind_leads() -> None:
    candidates = [
        Candidate("ahead", at(100, 7)),
        Candidate("behind", at(60, 7)),
        Candidate("far", at(1200, 7)),
        Candidate("farther", at(1300, 7)),
    ]
    assert form_groups(candidates, 200) == [["behind", "ahead"], ["far", "farther"]]
    assert form_groups(candidates, 39) == [["behind"], ["ahead"], ["far"], ["farther"]]


def test_of_those_that_are_level_one_leads_that_asks_no_destination() -> None:
    candidates = [Candidate("hook", at(5), publishes=True), Candidate("lake", at(5))]
    assert form_groups(candidates, 0) == [["lake", "hook"]]


def test_a_batch_that_was_begun_is_finished_by_those_that_have_the_same() -> None:
    candidates = [
        Candidate("a", at(5), in_work=at(9)),
        Candidate("b", at(5), in_work=at(9)),
        Candidate("c", at(5), in_work=at(8)),
        Candidate("d", at(5)),
    ]
    assert form_groups(candidates, 10) == [["a", "b", "d"], ["c"]]


def test_batches_that_are_planned_otherwise_are_not_shared() -> None:
    candidates = [Candidate("a", at(5), measures=True), Candidate("b", at(5))]
    assert form_groups(candidates, 10) == [["a"], ["b"]]


@pytest.mark.parametrize(
    "other",
    [
        at(9, 1),
        at(9, 2, life={"logs": "77"}),
        at(9, 2, generations=((4, 1),)),
        Offsets({FIRST: 9}, LIFE),
    ],
)
def test_positions_that_cannot_be_compared(other: Offsets) -> None:
    assert distance(at(5, 2), other) is None
    assert distance(at(5, 2), at(9, 2)) == 4


def test_a_batch_is_partly_a_sinks_that_is_ahead_and_not_one_that_is_behind_it() -> None:
    before, planned = at(5, 5), at(9, 9)
    assert is_part_of(at(5, 5), before, planned)
    assert is_part_of(at(7, 9), before, planned)
    assert not is_part_of(at(9, 9), before, planned)
    assert not is_part_of(at(12, 9), before, planned)
    with pytest.raises(ApartError, match="behind"):
        is_part_of(at(4, 7), before, planned)
    with pytest.raises(ApartError, match="ahead in some partitions only"):
        is_part_of(at(12, 7), before, planned)


def test_a_log_that_has_changed_parts_those_that_are_not_level() -> None:
    before, cut = at(5, 5), at(9, 9, generations=((4, 1),))
    assert is_part_of(at(5, 5), before, cut)
    with pytest.raises(ApartError, match="log changed"):
        is_part_of(at(7, 5), before, cut)
    again = at(9, 9, life={"logs": "77"})
    assert is_part_of(at(5, 5), before, again)
    with pytest.raises(ApartError, match="log changed"):
        is_part_of(at(7, 5), before, again)
    with pytest.raises(ApartError, match="made again"):
        is_part_of(at(5, 5, life={"logs": "77"}), before, at(9, 9))
    with pytest.raises(ApartError, match="truncated"):
        is_part_of(at(5, 5, generations=((4, 1),)), before, at(9, 9))
    with pytest.raises(ApartError, match="other streams"):
        is_part_of(at(5, 5), Offsets({FIRST: 5}, LIFE), Offsets({FIRST: 9}, LIFE))


def test_a_sink_is_slow_that_waits_longer_than_all_else_takes() -> None:
    assert not waits_too_long(S // 2, 0)
    assert waits_too_long(S, S // 2)
    assert not waits_too_long(S, 2 * S)


def test_a_sink_that_leaves_again_stays_alone_for_longer() -> None:
    its, now_ns = Return(), 7 * S
    assert its.is_due(now_ns)
    alone = []
    for _ in range(7):
        its.joined(now_ns)
        its.left(now_ns)
        begin_ns = now_ns
        while not its.is_due(now_ns):
            now_ns += S
        alone.append((now_ns - begin_ns) / S)
    assert alone == [ALONE_MIN_S, 60, 120, 240, 480, ALONE_MAX_S, ALONE_MAX_S]
    its.joined(now_ns)
    now_ns += int(STAYED_S * S) + 1
    its.left(now_ns)
    assert its.is_due(now_ns + int(ALONE_MIN_S * S))
