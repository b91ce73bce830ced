"""When a stream without room leaves its subject, and when it comes back."""

import itertools
import random

import pytest

from penstock.logd.format.acks import Nack
from penstock.logd.intake.admission import (
    NEVER_LEAVE,
    Admission,
    AdmissionPolicy,
    ByteBudget,
    DiskSpace,
    Load,
    Move,
)

S = 1_000_000_000
POLICY = AdmissionPolicy(unsubscribe_after_ns=10 * S, resubscribe_after_ns=2 * S)


def load(refusals: int, *, held: int = 100, total: int = 100) -> Load:
    return Load(refusals, held, 100, total, 200)


def refuse_until_away(admission: Admission, *, start_s: int = 0) -> int:
    for second in range(start_s, start_s + 100):
        if admission.observe(load(second + 1), second * S) is Move.LEAVE:
            return second
    raise AssertionError("it never left")


def test_it_leaves_when_refusals_have_gone_on_for_long_enough() -> None:
    admission = Admission(POLICY)
    assert admission.settled
    assert refuse_until_away(admission) == 10
    assert admission.away


def test_refusals_that_stop_in_between_begin_anew() -> None:
    admission = Admission(POLICY)
    for second in range(9):
        assert admission.observe(load(second + 1), second * S) is None
    assert admission.observe(load(9), 11 * S) is None
    assert admission.settled
    assert refuse_until_away(admission, start_s=12) == 22


def test_one_refusal_and_then_silence_is_no_reason_to_leave() -> None:
    admission = Admission(POLICY)
    for second in range(100):
        assert admission.observe(load(1), second * S) is None


@pytest.mark.parametrize(
    ("held", "total", "back"), [(50, 150, True), (51, 100, False), (10, 151, False)]
)
def test_it_comes_back_when_it_and_the_daemon_have_drained(
    held: int, total: int, back: bool
) -> None:
    admission = Admission(POLICY)
    left = refuse_until_away(admission)
    drained = load(99, held=held, total=total)
    assert admission.observe(drained, (left + 1) * S) is None
    assert (admission.observe(drained, (left + 2) * S) is Move.RETURN) is back
    assert admission.away is not back


def test_what_was_refused_before_it_came_back_counts_no_more() -> None:
    admission = Admission(POLICY)
    left = refuse_until_away(admission)
    drained = load(99, held=0, total=0)
    assert admission.observe(drained, (left + 2) * S) is Move.RETURN
    assert admission.observe(drained, (left + 3) * S) is None
    assert admission.settled
    assert refuse_until_away(admission, start_s=100) == 110


def test_it_can_be_told_never_to_leave() -> None:
    admission = Admission(NEVER_LEAVE)
    with pytest.raises(AssertionError, match="never left"):
        refuse_until_away(admission)


@pytest.mark.parametrize("seed", range(50))
def test_under_any_load_it_alternates_and_never_flaps(seed: int) -> None:
    """Twenty minutes of random load: times between moves are never below the policy's."""
    rng = random.Random(seed)
    admission = Admission(POLICY)
    moves: list[tuple[Move, int]] = []
    refusals, held, now_ns = 0, 0, 0
    while now_ns < 1200 * S:
        now_ns += rng.randrange(1, S // 2)
        pressure = rng.random() < (0.2 + 0.6 * (now_ns // (100 * S) % 2))
        held = 100 if pressure else rng.randrange(100)
        refusals += pressure and not admission.away
        move = admission.observe(load(refusals, held=held, total=held), now_ns)
        if move is not None:
            moves.append((move, now_ns))
    assert {move for move, _ in moves[::2]} <= {Move.LEAVE}
    assert {move for move, _ in moves[1::2]} <= {Move.RETURN}
    for (move, earlier_ns), (_, later_ns) in itertools.pairwise(moves):
        least_s = 2 if move is Move.LEAVE else 10
        assert later_ns - earlier_ns >= least_s * S
    assert moves


def test_what_a_stream_holds_it_holds_of_the_whole_and_half_is_for_others() -> None:
    total = ByteBudget(100)
    first, second, greedy = total.share(None), total.share(None), total.share(1000)
    assert (first.bytes_max, greedy.bytes_max) == (50, 100)
    first.take(50)
    assert (first.room, second.room, greedy.room, total.room) == (0, 50, 50, 50)
    greedy.take(40)
    assert (second.room, total.held) == (10, 90)
    first.release(50)
    greedy.release(40)
    assert total.held == 0


def said(space: DiskSpace) -> str:
    return "" if space.refusal is None else space.refusal.description


def test_publishers_are_refused_below_the_least_free_space_until_there_is_an_eighth_more() -> None:
    space = DiskSpace(8000)
    assert not space.observe(8000)
    assert not said(space)
    assert space.observe(7999)
    assert "7,999 bytes free, less than min_free_bytes, 8,000" in said(space)
    assert not space.observe(8999)
    assert said(space)
    assert space.observe(9000)
    assert not said(space)


def test_what_is_refused_for_want_of_space_may_be_sent_again() -> None:
    space = DiskSpace(1)
    space.observe(0)
    assert space.refusal is not None
    assert space.refusal.nack is Nack.STORAGE_FAILED
    assert space.refusal.nack.retryable


def test_without_a_least_free_space_a_full_disk_refuses_by_itself() -> None:
    space = DiskSpace(0)
    assert not space.observe(0)
    assert not said(space)
