"""Rates of counters, whatever the counters and the clock do."""

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.deploy.console.rates import SECOND_NS, Rates

STEPS = st.lists(
    st.tuples(st.integers(-5 * SECOND_NS, 60 * SECOND_NS), st.integers(0, 10**15)), max_size=60
)


def test_a_steady_counter_has_its_rate() -> None:
    rates = Rates(5 * SECOND_NS)
    assert rates.per_second("a", 0) is None
    for second in range(20):
        rates.take("a", 1000 + 250 * second, second * SECOND_NS)
        assert rates.per_second("a", second * SECOND_NS) == (250.0 if second else None)


def test_a_rate_forgets_what_is_older_than_the_window() -> None:
    rates = Rates(5 * SECOND_NS)
    for second in range(10):
        rates.take("a", 1000 * min(second, 3), second * SECOND_NS)
    assert rates.per_second("a", 9 * SECOND_NS) == 0.0


def test_a_counter_that_began_again_grew_by_what_it_shows() -> None:
    rates = Rates(10 * SECOND_NS)
    for second, total in enumerate((100, 200, 50, 150)):
        rates.take("a", total, second * SECOND_NS)
    assert rates.per_second("a", 3 * SECOND_NS) == (100 + 50 + 100) / 3


def test_a_counter_that_is_not_seen_any_more_has_no_rate() -> None:
    rates = Rates(5 * SECOND_NS)
    rates.take("a", 0, 0)
    rates.take("a", 10, SECOND_NS)
    assert rates.per_second("a", 6 * SECOND_NS) == 10.0
    assert rates.per_second("a", 7 * SECOND_NS) is None


def test_counters_are_bounded_and_the_one_unseen_for_longest_goes() -> None:
    rates = Rates(SECOND_NS, keys_max=2)
    for time, key in enumerate("abac"):
        rates.take(key, 1, time)
    assert len(rates) == 2
    rates.take("b", 5, 10)
    assert rates.per_second("b", 10) is None  # it was forgotten


@given(STEPS)
def test_whatever_clock_and_counter_do_a_rate_is_a_number_and_not_negative(
    steps: list[tuple[int, int]],
) -> None:
    rates, now_ns = Rates(5 * SECOND_NS), 0
    for step_ns, total in steps:
        now_ns += step_ns
        rates.take("a", total, now_ns)
        found = rates.per_second("a", now_ns)
        assert found is None or (found >= 0 and math.isfinite(found))


@given(
    st.lists(
        st.tuples(st.integers(1, 3 * SECOND_NS), st.integers(0, 10**9), st.booleans()),
        min_size=1, max_size=40,
    )
)  # fmt: skip
def test_a_rate_is_what_a_naive_sum_over_the_window_says(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Resets included: after one, the counter has grown by all that it shows."""
    window_ns = 5 * SECOND_NS
    rates, now_ns, total = Rates(window_ns), 0, 0
    rates.take("a", 0, 0)
    grown = [(0, 0)]
    for step_ns, growth, restarts in steps:
        now_ns += step_ns
        total = growth if restarts and growth < total else total + growth
        rates.take("a", total, now_ns)
        grown.append((now_ns, grown[-1][1] + growth))
    older = [sample for sample in grown[:-1] if sample[0] <= now_ns - window_ns]
    first = older[-1] if older else grown[0]
    expected = (grown[-1][1] - first[1]) * SECOND_NS / (now_ns - first[0])
    found = rates.per_second("a", now_ns)
    assert found is not None
    assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
