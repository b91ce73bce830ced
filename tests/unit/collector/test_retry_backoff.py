"""How long something that fails is waited for, one thing after another."""

from penstock.collector.spool.reader import RetryBackoff


def backoff() -> RetryBackoff:
    return RetryBackoff(limit_ns=1000, first_ns=100, longest_ns=800)


def test_waits_double_up_to_the_longest_and_begin_again_with_another_thing() -> None:
    it = backoff()
    assert [it.failed(1, 0, by_itself=True) for _ in range(5)] == [100, 200, 400, 800, 800]
    assert [it.failed(2, 0, by_itself=True) for _ in range(2)] == [100, 200]


def test_what_failed_by_itself_for_as_long_as_the_limit_is_given_up() -> None:
    it = backoff()
    it.failed(1, 50, by_itself=True)
    it.failed(1, 500, by_itself=True)
    assert not it.is_over(1, 1049)
    assert it.is_over(1, 1050)
    assert not it.is_over(2, 1050), "another thing has not failed"


def test_the_limit_begins_again_with_another_thing_and_where_something_else_is_the_cause() -> None:
    it = backoff()
    it.failed(1, 0, by_itself=True)
    it.failed(2, 900, by_itself=True)
    assert not it.is_over(2, 1000)
    it.failed(2, 1000, by_itself=False)
    assert not it.is_over(2, 5000)
    it.failed(2, 5000, by_itself=True)
    assert not it.is_over(2, 5999)
    assert it.is_over(2, 6000)
