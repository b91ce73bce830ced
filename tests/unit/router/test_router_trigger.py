"""How the data source waits for new records, and when it begins batches."""

import asyncio
import random
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from penstock.base.clock import monotonic_ns
from penstock.logd.client import Fetched, OffsetRange
from penstock.logd.client.calls import Call
from penstock.logd.errors import RefusedError, UnavailableError
from penstock.router.read.async_calls import AsyncCalls
from penstock.router.read.offsets import Readable, StreamPartition, offsets_from_json
from penstock.router.read.trigger import PARTITIONS_MAX, News
from tests.unit.router.source_log import LOGS, TRACES, FakeLog, at, stream_reader

S = 10**9


class Query:
    """Asks a reader for batches as Spark does, on the clock of the log.

    Attributes:
        batches: When each began, in seconds since the start, and where it ended.
    """

    def __init__(self, log: FakeLog, **options: str) -> None:
        self.log = log
        self.reader = stream_reader(log, **options)
        self.limit = self.reader.getDefaultReadLimit()
        self.begun_ns = log.clock.now_ns
        self.next = 0
        self.batches: list[tuple[float, int]] = []
        self.asked = 0

    def come(self, times_s: list[float]) -> None:
        """Records that come at these times."""
        self.log.news.comes = [self.begun_ns + round(time_s * S) for time_s in sorted(times_s)]

    def run(self, until_s: float, *, batch_s: float = 0.0) -> None:
        """Read until then; a batch takes so many seconds."""
        while self.log.clock.now_ns < self.begun_ns + until_s * S:
            self.asked += 1
            end = self.reader.latestOffset(at(self.next), self.limit)
            if end == at(self.next):
                self.log.clock.now_ns += 10**7  # Spark's pause where there is nothing new
                continue
            self.next = offsets_from_json(end).next[LOGS]
            assert end == at(self.next)
            self.batches.append(((self.log.clock.now_ns - self.begun_ns) / S, self.next))
            self.log.clock.sleep(batch_s)


def test_an_idle_log_is_waited_at_and_hardly_asked() -> None:
    log = FakeLog(Readable(0, 0))
    query = Query(log, batchInterval="2s")
    query.run(600)
    assert query.batches == []
    assert query.asked < 65, "once in ten seconds"
    assert {tuple(ends.items()) for _, ends in log.news.waited_at} == {((LOGS, 0),)}


def test_the_first_record_after_a_pause_begins_a_batch_half_an_interval_later() -> None:
    query = Query(FakeLog(Readable(0, 0)), batchInterval="2s")
    query.come([31.0, 31.2, 31.9, 32.1])
    query.run(60)
    assert query.batches == [(32.0, 3), (34.0, 4)]


def test_batches_are_an_interval_apart_while_records_come() -> None:
    query = Query(FakeLog(Readable(0, 0)), batchInterval="2s")
    query.come([30 + number / 10 for number in range(100)])
    query.run(60, batch_s=0.3)
    assert [time for time, _ in query.batches] == [31.0, 33.0, 35.0, 37.0, 39.0, 41.0]
    assert query.next == 100


def test_batches_that_take_longer_follow_each_other_at_once() -> None:
    query = Query(FakeLog(Readable(0, 0)), batchInterval="2s")
    query.come([30 + number / 10 for number in range(100)])
    query.run(60, batch_s=3)
    assert [time for time, _ in query.batches] == [31.0, 34.0, 37.0, 40.0]


def test_a_full_batch_behind_a_full_one_waits_for_no_interval() -> None:
    query = Query(FakeLog(Readable(0, 350)), batchInterval="2s", maxOffsetsPerTrigger="100")
    query.run(10, batch_s=0.3)
    ends = [(0.0, 100), (0.3, 200), (0.6, 300), (2.6, 350)]
    assert query.batches == [pytest.approx(batch) for batch in ends]


def test_a_batch_that_is_full_of_bytes_is_a_full_one() -> None:
    log = FakeLog(Readable(0, 25))
    log.sizes = {"logs": 1_000_000}
    query = Query(log, batchInterval="2s", maxBytesPerTrigger="10000000")
    query.run(10, batch_s=0.3)
    assert [time for time, _ in query.batches] == pytest.approx([0.0, 0.3, 2.3])


def test_the_first_batch_after_a_start_is_small_and_each_that_follows_up_to_twice_as_large() -> (
    None
):
    log = FakeLog(Readable(0, 100))
    log.sizes = {"logs": 1_000_000}
    limits = {"maxBytesPerTrigger": "30000000", "maxBytesOfFirstTrigger": "10000000"}
    query = Query(log, batchInterval="2s", **limits)
    query.run(10, batch_s=0.3)
    assert [end for _, end in query.batches] == [10, 30, 60, 90, 100]


def test_a_rate_above_a_batch_each_interval_makes_full_batches_and_no_growing_lag() -> None:
    query = Query(FakeLog(Readable(0, 0)), batchInterval="2s", maxOffsetsPerTrigger="100")
    query.come([30 + number / 60 for number in range(60 * 60)])  # 120 in each interval
    query.run(90, batch_s=0.3)
    sizes = [end - start for (_, start), (_, end) in pairwise(query.batches)]
    assert sizes.count(100) >= len(sizes) - 2
    assert query.next > 60 * 60 - 200
    assert query.asked < 2 * len(query.batches) + 20, "a look that begins none is no loop"


def test_without_an_interval_a_record_begins_a_batch_when_it_comes() -> None:
    query = Query(FakeLog(Readable(0, 0)), batchInterval="0s")
    query.come([30.0, 30.5, 31.0])
    query.run(60)
    assert query.batches == [(30.0, 1), (30.5, 2), (31.0, 3)]
    assert query.asked < 20


@pytest.mark.parametrize("per_s", [0.05, 0.2, 0.5, 1, 5])
def test_no_more_batches_are_made_than_by_a_look_in_each_interval(per_s: float) -> None:
    rng, times, time_s = random.Random(7), list[float](), 0.0
    while time_s < 20_000:
        time_s += rng.expovariate(per_s)
        times.append(time_s)
    query = Query(FakeLog(Readable(0, 0)), batchInterval="2s")
    query.come(times)
    query.run(20_000)
    looks = len({int(time // 2) for time in times})
    assert len(query.batches) <= looks * 1.03


def test_a_log_that_cannot_be_waited_for_is_looked_at_once_in_an_interval() -> None:
    for interval, most in (("2s", 31), ("0s", 61)):
        log = FakeLog(Readable(0, 0))
        log.news.fails = True
        query = Query(log, batchInterval=interval)
        query.run(60)
        assert query.asked <= most


def test_a_logd_that_is_away_is_not_waited_for_and_found_when_it_is_back() -> None:
    log = FakeLog(None)
    query = Query(log, batchInterval="2s")
    query.run(60)
    assert query.asked <= 31
    assert log.news.waited_at == []
    log.readable = Readable(0, 7)
    query.run(64)
    assert [end for _, end in query.batches] == [7]


def test_a_long_interval_is_slept_some_seconds_at_a_time() -> None:
    query = Query(FakeLog(Readable(0, 0)), batchInterval="60s")
    query.come([5.0, 70.0])
    query.run(120)
    assert query.batches == [(35.0, 1), (95.0, 2)]
    assert query.asked > 12, "Spark is asked for something now and then"


def test_too_few_records_for_a_batch_are_no_news() -> None:
    log = FakeLog(Readable(0, 0))
    query = Query(log, batchInterval="2s", minOffsetsPerTrigger="50", maxTriggerDelay="5m")
    query.come([1.0, 10.0, 20.0])
    query.run(310)
    assert query.batches[0][1] == 1, "the first batch waits for nothing"
    assert query.batches[1][1] == 3
    assert 300 <= query.batches[1][0] - query.batches[0][0] <= 303
    assert log.news.waited_at == []


class Waits:
    """An asyncio client whose fetches wait until a test answers, or their time is over.

    Attributes:
        answers: By partition, what is answered.
        asked: What was asked for.
        given_up: Partitions whose fetch was cancelled.
    """

    server = "h:1"

    def __init__(self, answers: dict[int, int | Exception]) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []
        self.given_up: list[int] = []

    async def ask(self, call: Call[Fetched]) -> Fetched:
        self.asked.append(call.request)
        number = call.request.get("partition", 0)
        answer = self.answers.get(number)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            try:
                async with asyncio.timeout(call.request["wait_ms_max"] / 1000):
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up.append(number)
                raise
            except TimeoutError:
                pass
            answer = int(call.request["offset"])
        return Fetched(
            frames=[],
            range=OffsetRange(0, answer),
            high_watermark=answer - 1,
            next_offset=answer,
            epoch=1,
            incarnation="",
        )

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""


def waits(
    client: Waits, ends: dict[StreamPartition, int], seconds: float, *, is_useless: bool = False
) -> bool:
    with closing(AsyncCalls(lambda: client)) as connection:  # type: ignore[arg-type,return-value]
        return News(connection).wait(ends, seconds, subject="a.>", is_useless=lambda: is_useless)


def test_one_partition_of_many_with_a_record_ends_the_wait_at_all() -> None:
    ends = {StreamPartition("s", number): 5 for number in range(PARTITIONS_MAX)}
    client = Waits({3: 6})
    assert waits(client, ends, 60)
    assert len(client.asked) == PARTITIONS_MAX
    assert sorted(client.given_up) == [it for it in range(PARTITIONS_MAX) if it != 3]
    assert {it["subject"] for it in client.asked} == {"a.>"}
    assert {it["bytes_max"] for it in client.asked} == {1}


def test_a_wait_that_brings_nothing_ends_when_its_time_is_over() -> None:
    client = Waits({})
    begun_ns = monotonic_ns()
    assert not waits(client, {LOGS: 5, TRACES: 1}, 0.2)
    assert monotonic_ns() - begun_ns >= 0.19 * S


@pytest.mark.parametrize("error", [RefusedError("OUT_OF_RANGE", "no"), UnavailableError("away")])
def test_where_logd_cannot_be_asked_there_is_no_news(error: Exception) -> None:
    assert not waits(Waits({0: error}), {LOGS: 5, TRACES: 1}, 60)


def test_a_mistake_of_our_own_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        waits(Waits({0: ZeroDivisionError()}), {LOGS: 5}, 60)


def test_a_wait_that_is_of_no_use_ends() -> None:
    client = Waits({})
    assert not waits(client, {LOGS: 5}, 60, is_useless=True)


@pytest.mark.parametrize("count", [0, PARTITIONS_MAX + 1])
def test_more_partitions_than_can_be_waited_at_are_not_asked(count: int) -> None:
    client = Waits({})
    assert not waits(client, {StreamPartition("s", it): 5 for it in range(count)}, 60)
    assert client.asked == []
