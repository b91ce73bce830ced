"""Waits grow from the first limit to the last, within the share that chance decides."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.backoff import Backoff, Restarts

times = st.floats(0.001, 1e12)
shares = st.floats(0, 1)
backoffs = st.builds(Backoff, initial=times, max=times, multiplier=st.floats(1, 10), jitter=shares)


def test_limits_double_up_to_the_greatest_and_stay_there() -> None:
    backoff = Backoff(1, 10)
    assert [backoff.next_wait() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert backoff.failures == 6


def test_a_success_begins_anew() -> None:
    backoff = Backoff(0.5, 8, multiplier=4)
    assert [backoff.next_wait() for _ in range(3)] == [0.5, 2, 8]
    backoff.reset()
    assert backoff.failures == 0
    assert [backoff.next_wait() for _ in range(2)] == [0.5, 2]


@pytest.mark.parametrize(
    ("jitter", "least", "middle"), [(0, 8, 8), (0.25, 6, 7), (0.5, 4, 6), (1, 0, 4)]
)
def test_jitter_is_the_share_of_the_limit_that_chance_decides(
    jitter: float, least: float, middle: float
) -> None:
    waits = [Backoff(8, 8, jitter=jitter).next_wait(draw) for draw in (0, 0.5, 1)]
    assert waits == [least, middle, 8]


def test_a_first_limit_above_the_greatest_is_the_greatest() -> None:
    backoff = Backoff(60, 5)
    assert [backoff.next_wait(), backoff.next_wait()] == [5, 5]


def test_one_that_fails_for_ever_waits_the_greatest_limit() -> None:
    backoff = Backoff(1e-9, 30.0, failures=10**9)
    assert backoff.next_wait() == 30.0


def test_the_same_draws_are_the_same_waits() -> None:
    waits = [
        [backoff.next_wait(rng.random()) for _ in range(20)]
        for backoff, rng in ((Backoff(1, 60, jitter=0.5), Random(7)) for _ in range(2))
    ]
    assert waits[0] == waits[1]


@given(backoffs, st.lists(shares, min_size=1, max_size=50))
def test_each_wait_is_within_its_share_of_a_limit_that_never_shrinks(
    backoff: Backoff, draws: list[float]
) -> None:
    limits = [
        Backoff(backoff.initial, backoff.max, backoff.multiplier, failures=number).next_wait()
        for number in range(len(draws))
    ]
    assert all(before <= after for before, after in pairwise(limits))
    assert limits[0] == min(backoff.initial, backoff.max)
    for limit, draw in zip(limits, draws, strict=True):
        wait = backoff.next_wait(draw)
        assert limit * (1 - backoff.jitter) * (1 - 1e-9) <= wait <= limit <= backoff.max


@given(backoffs, st.integers(1, 50), shares)
def test_after_a_reset_it_is_as_new(backoff: Backoff, failures: int, draw: float) -> None:
    first = backoff.next_wait(draw)
    for _ in range(failures):
        backoff.next_wait()
    backoff.reset()
    assert backoff.next_wait(draw) == first


def test_restarts_wait_longer_each_time_and_as_at_first_after_a_calm_time() -> None:
    restarts = Restarts(Backoff(1, 5), calm=100)
    assert [restarts.failed(ran=0) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert restarts.failed(ran=99.9) == 5
    assert [restarts.failed(ran=100), restarts.failed(ran=0)] == [1, 2]
    assert restarts.count == 8
