"""What the failover figures are made of."""

from array import array
from pathlib import Path

from tests.harness.plan import Report
from tests.harness.plans.failover import tell_aims
from tests.harness.systems.failover import WITHOUT_ACK, WITHOUT_RECORD, Tail, longest_gap_s

S = 1_000_000_000


def test_rows_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "acks"
    data = array("q", [1, 2, 3, 4]).tobytes()
    path.write_bytes(data[:20])
    tail = Tail(path, 2)
    assert tail.rows() == [(1, 2)]
    assert tail.rows() == []
    path.write_bytes(data)
    assert tail.rows() == [(3, 4)]


def test_a_gap_that_began_before_the_kill_counts_and_one_that_ended_before_does_not() -> None:
    times = [0, 5 * S, 6 * S, 8 * S, 9 * S]
    assert longest_gap_s(times, since_ns=7 * S) == 2
    assert longest_gap_s(times, since_ns=1 * S) == 5
    assert longest_gap_s([], since_ns=0) == 0


def test_aims_are_met_by_the_99th_percentile() -> None:
    report = Report(times_s={WITHOUT_ACK: [2.0] * 100, WITHOUT_RECORD: [1.0] * 98 + [2.1] * 2})
    tell_aims(report)
    assert list(report.facts.values()) == ["met", "MISSED"]
