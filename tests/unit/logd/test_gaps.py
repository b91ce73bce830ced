"""Which times without messages are noted, from when to when, and how they are counted."""

import threading
from collections.abc import Iterator

from typing_extensions import override

from penstock.logd.format.acks import Nack
from penstock.logd.gap_report import describe_gaps, gap_metrics, gap_reasons
from penstock.logd.intake.gaps import DROPPING, GapLedger, GapReason, GapTotals, Instant
from penstock.logd.limits import GAPS_KEPT

S = 1_000_000_000


def at(second: float) -> Instant:
    return Instant(int(second * S), int((1_700_000_000 + second) * S))


def test_an_outage_is_one_gap_of_every_stream_on_its_subject() -> None:
    gaps = GapLedger()
    assert gaps.begin(("a", "b"), GapReason.RECONNECTING, at(1), detail="closed")
    assert gaps.begin(("a", "b"), GapReason.RECONNECTING, at(2)) is None
    assert gaps.begin((), GapReason.RECONNECTING, at(2)) is None
    [gap] = gaps.end(GapReason.RECONNECTING, at(4))
    assert (gap.start, gap.end, gap.detail, gap.messages) == (at(1), at(4), "closed", None)
    assert gaps.end(GapReason.RECONNECTING, at(5)) == []
    assert gaps.totals(at(9)) == {
        ("a", GapReason.RECONNECTING): GapTotals(1, 3 * S),
        ("b", GapReason.RECONNECTING): GapTotals(1, 3 * S),
    }


def test_an_outage_stays_one_gap_though_streams_are_deleted_or_denied_meanwhile() -> None:
    gaps = GapLedger()
    gaps.begin(("a", "b", "c"), GapReason.RECONNECTING, at(1))
    assert gaps.begin(("b", "c"), GapReason.RECONNECTING, at(2)) is None
    gaps.forget("a")
    gaps.forget("c")
    assert [gap.streams for gap in gaps.lasting()] == [("b",)]
    [gap] = gaps.end(GapReason.RECONNECTING, at(4))
    assert (gap.streams, gap.start, gap.end) == (("b",), at(1), at(4))
    assert gaps.totals(at(9)) == {("b", GapReason.RECONNECTING): GapTotals(1, 3 * S)}
    gaps.begin(("b",), GapReason.RECONNECTING, at(5))
    gaps.forget("b")
    assert (gaps.lasting(), gaps.totals(at(9))) == ([], {})


def test_what_lasts_is_counted_up_to_now() -> None:
    gaps = GapLedger()
    gaps.begin(("a",), GapReason.UNSUBSCRIBED, at(1))
    gaps.begin(("b",), GapReason.UNSUBSCRIBED, at(2))
    assert [gap.streams for gap in gaps.end(GapReason.UNSUBSCRIBED, at(3), stream="b")] == [("b",)]
    assert gaps.totals(at(6))["a", GapReason.UNSUBSCRIBED] == GapTotals(1, 5 * S)
    assert [gap.streams for gap in gaps.lasting()] == [("a",)]


def test_drops_are_one_gap_until_it_is_quiet_and_end_with_the_last() -> None:
    gaps = GapLedger()
    assert gaps.drop("a", GapReason.BUSY, 2, at(1))
    assert gaps.drop("a", GapReason.BUSY, 3, at(1.9)) is None
    assert gaps.settle(at(2.8)) == []
    assert gaps.totals(at(2.8)) == {("a", GapReason.BUSY): GapTotals(1, 900_000_000, 5)}
    [gap] = gaps.settle(at(3))
    assert (gap.start, gap.end, gap.messages) == (at(1), at(1.9), 5)
    assert gaps.drop("a", GapReason.BUSY, 1, at(9))
    assert gaps.totals(at(9)) == {("a", GapReason.BUSY): GapTotals(2, 900_000_000, 6)}


def test_every_refusal_that_nobody_is_told_of_has_a_reason() -> None:
    assert set(DROPPING) == set(Nack)


def test_a_moment_is_moved_back_on_both_clocks() -> None:
    assert Instant(5_000, 95_000).back_to(3_000) == Instant(3_000, 93_000)


def test_a_deleted_stream_is_forgotten() -> None:
    gaps = GapLedger()
    gaps.begin(("a",), GapReason.DENIED, at(1))
    gaps.drop("a", GapReason.BUSY, 1, at(1))
    gaps.forget("a")
    assert (gaps.lasting(), gaps.totals(at(2))) == ([], {})


def test_what_ended_is_kept_within_a_bound() -> None:
    gaps = GapLedger()
    for second in range(1000):
        gaps.begin(("a",), GapReason.DENIED, at(second))
        gaps.end(GapReason.DENIED, at(second + 0.5))
    assert len(gaps.ended) == GAPS_KEPT
    assert gaps.totals(at(1000))["a", GapReason.DENIED].count == 1000


def test_gaps_are_shown_in_the_status_in_the_metrics_and_as_reasons() -> None:
    gaps = GapLedger()
    gaps.begin(("a",), GapReason.UNSUBSCRIBED, at(0), detail="no room")
    gaps.begin(tuple(f"s{n}" for n in range(50)), GapReason.RECONNECTING, at(1))
    gaps.end(GapReason.RECONNECTING, at(2))
    gaps.drop("a", GapReason.BUSY, 7, at(2))
    shown = describe_gaps(gaps, at(3))
    assert [(gap["reason"], gap["end"]) for gap in shown["lasting"]] == [
        ("unsubscribed", None),
        ("busy", None),
    ]
    [ended] = shown["ended"]
    assert (len(ended["streams"]), ended["stream_count"], ended["seconds"]) == (10, 50, 1.0)
    assert ended["start"] == "2023-11-14T22:13:21.000+00:00"
    assert list(gap_reasons(gaps)) == [
        "stream a: off its subject: no room",
        "stream a: drops messages (busy)",
    ]
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in gap_metrics(gaps, at(3))
        for sample in metric.samples
    }
    assert samples["penstock_logd_ingest_gap_messages_total", "a", "busy"] == 7
    assert samples["penstock_logd_ingest_gap_seconds_total", "a", "unsubscribed"] == 3
    assert samples["penstock_logd_ingest_gaps_total", "s49", "reconnecting"] == 1
    assert samples["penstock_logd_ingest_gaps_lasting",] == 2


def test_totals_are_never_less_than_before_while_a_gap_ends_on_another_thread() -> None:
    class Slow(tuple[str, ...]):
        """Looked through at the worst moment to read: the gap lasts no more, and is not counted."""

        __slots__ = ()

        @override
        def __iter__(self) -> Iterator[str]:
            if threading.current_thread() is main and not reading.ident:
                reading.start()
                reading.join(0.2)
            return super().__iter__()

    main, gaps = threading.current_thread(), GapLedger()
    gaps.begin(Slow(("a",)), GapReason.RECONNECTING, at(1))
    seen: list[int] = []
    key = ("a", GapReason.RECONNECTING)
    reading = threading.Thread(
        target=lambda: seen.append(gaps.totals(at(9)).get(key, GapTotals()).count)
    )
    gaps.end(GapReason.RECONNECTING, at(2))
    reading.join(20)
    assert seen == [1]
