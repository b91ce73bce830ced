"""The pace of a sink, on a clock of its own."""

from heapq import heapify, heappop, heappush

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.router.delivery.rate_limiter import (
    TASKS_WAIT_S_MAX,
    Parallelism,
    RateLimiter,
)

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


def test_what_a_delivery_needs_is_saved_up_even_beyond_a_second() -> None:
    limited = pace(records_per_s=100)
    assert limited.wait_ns(0, records=250) == 1.5 * SECOND
    assert limited.wait_ns(SECOND, records=250) == SECOND / 2
    assert limited.wait_ns(2 * SECOND, records=250) == 0
    limited.book(records=250, size=0, now_ns=2 * SECOND)
    assert limited.wait_ns(2 * SECOND) == 0
    assert limited.wait_ns(2 * SECOND, records=100) == SECOND


def send(
    limited: RateLimiter, tasks: list[list[int]], at_once: int, takes_ns: int
) -> tuple[list[tuple[int, int]], int]:
    """When which requests go, of tasks that begin at 0 as slots are free; and when all are done."""
    share = limited.lend(Parallelism(len(tasks), min(at_once, len(tasks))), 0)
    assert share is not None
    free, sent = [0] * at_once, list[tuple[int, int]]()
    heapify(free)
    for requests in tasks:
        now_ns = heappop(free)
        of_task = RateLimiter.of_task(share, now_ns)
        for records in requests:
            now_ns += of_task.wait_ns(now_ns, records=records)
            of_task.book(records=records, size=0, now_ns=now_ns)
            sent.append((now_ns, records))
            now_ns += takes_ns
        heappush(free, now_ns)
    return sorted(sent), max(free)


@given(
    st.lists(st.lists(st.integers(1, 300), max_size=5), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(0, 2 * SECOND),
)
def test_tasks_that_know_nothing_of_each_other_keep_the_limit_together(
    tasks: list[list[int]], at_once: int, takes_ns: int
) -> None:
    limited, given_out = pace(records_per_s=100), 0
    sent, now_ns = send(limited, tasks, at_once, takes_ns)
    for at_ns, records in sent:
        given_out += records
        assert given_out * SECOND <= 100 * (at_ns + SECOND)
    limited.settle(records=given_out, size=0, now_ns=now_ns)
    now_ns += limited.wait_ns(now_ns, records=100)
    assert (given_out + 100) * SECOND <= 100 * (now_ns + SECOND)


def test_tasks_reach_the_limit_and_a_batch_that_kept_it_makes_the_next_one_wait_for_nothing() -> (
    None
):
    limited = pace(records_per_s=100)
    sent, now_ns = send(limited, [[50, 50]] * 4, 2, 0)
    assert [at_ns / SECOND for at_ns, _ in sent] == [0.5, 0.5, 1.5, 1.5, 2, 2, 3, 3]
    limited.settle(records=400, size=0, now_ns=now_ns)
    assert limited.wait_ns(now_ns) == 0
    assert limited.wait_ns(now_ns, records=100) == SECOND


def test_what_tasks_leave_of_what_they_got_is_there_again_and_no_more_than_a_second() -> None:
    limited = pace(records_per_s=100, bytes_per_s=1000)
    assert limited.lend(Parallelism(1, 1), 0) is not None
    limited.settle(records=250, size=100, now_ns=SECOND)
    assert limited.wait_ns(SECOND) == SECOND / 2
    assert limited.lend(Parallelism(1, 1), 2 * SECOND) is not None
    limited.settle(records=50, size=100, now_ns=60 * SECOND)
    assert limited.wait_ns(60 * SECOND, records=101) == SECOND / 100
    assert limited.wait_ns(60 * SECOND, size=1001) == SECOND / 1000


def test_a_batch_that_failed_has_spent_what_its_tasks_got() -> None:
    limited = pace(records_per_s=100)
    assert limited.lend(Parallelism(1, 1), 0) is not None
    assert limited.wait_ns(0, records=100) == SECOND


def test_tasks_wait_for_so_long_in_all_however_many_run_one_after_the_other() -> None:
    share = pace(records_per_s=100).lend(Parallelism(7, 2), 0)
    assert share is not None
    assert share.waits_for_s == pytest.approx(TASKS_WAIT_S_MAX / 4)
    assert share.records is not None
    assert share.records.per_s == 50
    assert share.records.saved == pytest.approx(100 / 7)
    assert share.size is None
    again = share.without_saved().records
    assert again is not None
    assert (again.per_s, again.saved) == (50, 0)
    assert pace().lend(Parallelism(7, 2), 0) is None
