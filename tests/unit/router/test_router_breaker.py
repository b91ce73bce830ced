"""The circuit breaker, with time and dice of our own."""

import random

from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from penstock.router.delivery.breaker import RETRY_AFTER_MAX_S, Breaker, BreakerLimits, Circuit

SECOND_NS = 1_000_000_000
LIMITS = BreakerLimits(
    initial_backoff_s=1.0, max_backoff_s=8.0, failure_threshold=3, max_paused_backoff_s=20.0
)


class Least(random.Random):
    """Rolls the lowest number, so that what a pause is at least can be seen."""

    @override
    def random(self) -> float:
        return 0.0


class Most(random.Random):
    """Rolls the highest."""

    @override
    def random(self) -> float:
        return 1.0


def pauses_of(breaker: Breaker, how: str, count: int) -> list[float]:
    found, now_ns = [], 0
    for _ in range(count):
        getattr(breaker, how)("no", 0.0, now_ns)
        until_ns = breaker.next_deadline_ns()
        assert until_ns is not None
        found.append((until_ns - now_ns) / SECOND_NS)
        assert not breaker.admits(until_ns - 1) or until_ns == now_ns
        assert breaker.admits(until_ns)
        now_ns = until_ns
    return found


def test_it_opens_after_failures_in_a_row_and_closes_when_one_request_passes() -> None:
    breaker = Breaker(LIMITS, Most())
    assert breaker.circuit == Circuit()
    states = []
    for now_ns in (0, 10 * SECOND_NS, 20 * SECOND_NS, 30 * SECOND_NS):
        assert breaker.admits(now_ns)
        states.append(breaker.circuit.state)
        breaker.failed("503", 0.0, now_ns)
        states.append(breaker.circuit.state)
    assert states == ["closed", "closed"] * 2 + ["closed", "open", "half_open", "open"]
    assert breaker.circuit == Circuit(
        "open", 30 * SECOND_NS, (30 + 8) * SECOND_NS, opened=1, reason="503"
    )
    assert not breaker.admits(38 * SECOND_NS - 1)
    assert breaker.admits(38 * SECOND_NS)
    assert breaker.circuit.state == "half_open"
    breaker.succeeded(39 * SECOND_NS)
    assert breaker.circuit == Circuit("closed", 39 * SECOND_NS, None, opened=1)
    assert breaker.admits(39 * SECOND_NS)


def test_pauses_double_and_an_open_circuit_rests_half_of_its_limit_at_least() -> None:
    assert pauses_of(Breaker(LIMITS, Most()), "failed", 6) == [1, 2, 4, 8, 8, 8]
    assert pauses_of(Breaker(LIMITS, Least()), "failed", 6) == [0, 0, 2, 4, 4, 4]


def test_who_is_not_let_in_is_paused_at_once_and_asks_ever_less_often() -> None:
    breaker = Breaker(LIMITS, Most())
    assert pauses_of(breaker, "refused", 7) == [1, 2, 4, 8, 16, 20, 20]
    assert (breaker.circuit.state, breaker.circuit.opened) == ("paused", 1)
    assert breaker.circuit.since_ns == 0
    breaker.failed("503", 0.0, 10**12)
    assert breaker.circuit.state == "open", "it is let in, and something else is wrong"
    breaker.succeeded(10**12)
    assert breaker.circuit == Circuit("closed", 10**12, None, opened=2)


def test_retry_after_is_honoured_within_reason() -> None:
    breaker = Breaker(LIMITS, Least())
    breaker.failed("429", 20.0, 0)
    assert breaker.next_deadline_ns() == 20 * SECOND_NS
    assert breaker.circuit.as_json(5 * SECOND_NS)["retry_in_s"] == 15
    assert Circuit("open", SECOND_NS, 9_250_000_000, opened=2).as_json(5_240_000_000) == {
        "state": "open", "for_s": 4.2, "retry_in_s": 4.0, "opened": 2,
    }  # fmt: skip
    breaker.failed("429", 1e9, 0)
    assert breaker.next_deadline_ns() == RETRY_AFTER_MAX_S * SECOND_NS


@given(
    st.integers(),
    st.lists(
        st.tuples(
            st.sampled_from(["failed", "refused", "succeeded"]),
            st.floats(0, 1000),
            st.integers(0, 100 * SECOND_NS),
        )
    ),
)
def test_whatever_happens_a_pause_has_its_bounds_and_ends(
    seed: int, events: list[tuple[str, float, int]]
) -> None:
    breaker, now_ns, streak = Breaker(LIMITS, random.Random(seed)), 0, 0
    for what, asked_s, idle_ns in events:
        now_ns = max(now_ns + idle_ns, breaker.next_deadline_ns() or 0)
        assert breaker.admits(now_ns)
        assert breaker.circuit.retry_at_ns is None
        assert breaker.circuit.state != "open", "a request that goes makes it half-open"
        if what == "succeeded":
            breaker.succeeded(now_ns)
            streak = 0
            assert breaker.admits(now_ns)
            assert (breaker.circuit.state, breaker.circuit.reason) == ("closed", None)
            continue
        streak += 1
        getattr(breaker, what)("why", asked_s, now_ns)
        circuit = breaker.circuit
        is_paused = what == "refused"
        assert circuit.state == (
            "paused" if is_paused else "open" if streak >= LIMITS.failure_threshold else "closed"
        )
        assert circuit.retry_at_ns is not None
        pause_s = (circuit.retry_at_ns - now_ns) / SECOND_NS
        least_s = min(asked_s, RETRY_AFTER_MAX_S)
        most_s = LIMITS.max_paused_backoff_s if is_paused else LIMITS.max_backoff_s
        assert least_s - 1e-6 <= pause_s <= max(least_s, most_s)
        assert breaker.admits(now_ns) is (pause_s == 0)
