"""The pace of a sink, on a clock of its own."""

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.router.delivery.rate_limiter import RateLimiter

SECOND = 1_000_000_000


def pace(records_per_s: float | None = None, bytes_per_s: float | None = None) -> RateLimiter:
    return RateLimiter(records_per_s=records_per_s, bytes_per_s=bytes_per_s, now_ns=0)


def test_without_limits_nothing_waits() -> None:
    free = pace()
    free.book(records=10**9, size=10**12, now_ns=0)
    assert free.wait_ns(0) == 0


def test_a_batch_larger_than_a_second_passes_and_the_next_one_pays() -> None:
    limited = pace(records_per_s=100)
    assert limited.wait_ns(0) == 0
    limited.book(records=500, size=0, now_ns=0)
    assert limited.wait_ns(0) == 4 * SECOND
    assert limited.wait_ns(4 * SECOND) == 0


def test_the_tighter_limit_decides() -> None:
    limited = pace(records_per_s=100, bytes_per_s=1000)
    limited.book(records=100, size=3000, now_ns=0)
    assert limited.wait_ns(0) == 2 * SECOND


def test_no_more_than_a_second_is_saved_up() -> None:
    limited = pace(records_per_s=100)
    limited.book(records=300, size=0, now_ns=3600 * SECOND)
    assert limited.wait_ns(3600 * SECOND) == 2 * SECOND


@example([(425, 0), (427, 1_609_803_234), (1, 0)])
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 3 * SECOND)), min_size=1))
def test_the_average_keeps_the_limit(deliveries: list[tuple[int, int]]) -> None:
    limited, now_ns, given_out, largest = pace(records_per_s=100), 0, 0, 0
    for records, idle_ns in deliveries:
        now_ns += idle_ns
        now_ns += limited.wait_ns(now_ns)
        assert limited.wait_ns(now_ns) == 0
        limited.book(records=records, size=0, now_ns=now_ns)
        given_out += records
        largest = max(largest, records)
        assert given_out * SECOND <= 100 * now_ns + (100 + largest) * SECOND
