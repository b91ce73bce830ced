"""File descriptors shared out by kind: who gets how many, and which file is closed for another."""

import errno

import pytest

from penstock.collector.descriptors import Descriptors


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns


class File:
    def __init__(self, *, named: bool = True) -> None:
        self.named = named
        self.closed = False
        self.budget: Descriptors | None = None

    def can_close(self) -> bool:
        return self.named

    def close_for_others(self) -> None:
        assert self.budget is not None
        self.closed = True
        self.budget.release(self)


def budget(limit: int, *, max_files: int = 10_000, reads_files: bool = True) -> Descriptors:
    made = Descriptors(limit, Clock())
    made.share_out(reserve=160, max_files=max_files, reads_files=reads_files)
    return made


def opened(shares: Descriptors, *, named: bool = True) -> File:
    file = File(named=named)
    file.budget = shares
    shares.admit(file)
    return file


@pytest.mark.parametrize(
    ("limit", "reserve", "files", "connections"),
    [(1024, 160, 432, 432), (256, 64, 96, 96), (100, 48, 26, 26), (100_000, 160, 10_000, 89_840)],
)
def test_a_limit_is_shared_out_with_a_reserve(
    limit: int, reserve: int, files: int, connections: int
) -> None:
    shares = budget(limit)
    assert (shares.reserve, shares.max_files, shares.max_connections) == (
        reserve,
        files,
        connections,
    )
    assert reserve + files + connections <= limit


def test_each_listener_has_an_equal_share_however_many_another_has() -> None:
    shares = budget(1024, reads_files=False)
    shares.listen("syslog")
    assert shares.connections("syslog") == 863
    shares.listen("grpc", each=3)
    assert (shares.connections("syslog"), shares.connections("grpc")) == (431, 143)
    shares.stop_listening("grpc")
    assert shares.connections("syslog") == 863


def test_the_file_that_was_used_longest_ago_is_closed_for_the_next() -> None:
    shares = budget(1024, max_files=2)
    first, second = opened(shares), opened(shares)
    shares.admit(first)
    third = opened(shares)
    assert (first.closed, second.closed, third.closed) == (False, True, False)
    assert (shares.files_open, shares.closed, shares.troubles) == (2, 1, [])


def test_files_that_cannot_be_opened_again_stay_open_and_one_more_is_refused_with_the_reason() -> (
    None
):
    clock = Clock()
    shares = Descriptors(1024, clock)
    shares.share_out(reserve=160, max_files=2, reads_files=True)
    kept = [opened(shares, named=False) for _ in range(2)]
    with pytest.raises(OSError, match="all 2 files") as refused:
        opened(shares)
    assert refused.value.errno == errno.EMFILE
    assert not any(file.closed for file in kept)
    (trouble,) = shares.troubles
    assert trouble.startswith("out of file descriptors for files: 2 of the process's 1024")
    clock.now_ns += 61 * 10**9
    assert shares.troubles == [], "it recovers by itself"
