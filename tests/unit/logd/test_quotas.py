"""Buckets, by a clock that the test turns."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.security.quotas import BURST_NS, Buckets, Flow, Quota, quota_of

S = 1_000_000_000


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 3 * S), st.integers(1, 3000)), max_size=40),
)
def test_in_the_long_run_no_more_than_the_rate_is_used(
    rate: int, wants: list[tuple[int, int]]
) -> None:
    """A client that waits as told has all but its last request within rate and burst."""
    buckets, now, begun = Buckets(), 0, [0]
    for pause, amount in wants:
        now += pause
        now += buckets.take("alice", Flow.BYTES_IN, amount, rate, now)
        assert sum(begun) <= rate * (now + BURST_NS) / S + len(begun)
        begun.append(amount)


def test_principals_and_flows_have_buckets_of_their_own() -> None:
    buckets = Buckets()
    assert buckets.take("alice", Flow.REQUESTS, 50, 10, 0) == 0
    assert buckets.wait_ns("alice", Flow.REQUESTS, 0) == 4 * S
    assert buckets.wait_ns("alice", Flow.REQUESTS, 3 * S) == S
    assert buckets.wait_ns("alice", Flow.REQUESTS, 60 * S) == 0
    assert buckets.wait_ns("alice", Flow.BYTES_IN, 0) == 0
    assert buckets.wait_ns("bob", Flow.REQUESTS, 0) == 0
    assert buckets.take("alice", Flow.REQUESTS, 1, 10, 0) == 4 * S


def test_who_has_no_quota_of_its_own_has_that_of_all_others() -> None:
    everybody, alice = Quota(principal="*", streams=1), Quota(principal="alice", streams=2)
    quotas = {"*": everybody, "alice": alice}
    assert quota_of(quotas, "alice") is alice
    assert quota_of(quotas, "bob") is everybody
    assert quota_of({"alice": alice}, "bob") is None
