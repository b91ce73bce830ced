"""What only one sink does: Splunk's acknowledgements, real receivers of metrics."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.fake_splunk import FakeSplunk
from tests.support.fault_door import (
    RESET,
    Answered,
    Asked,
    Fault,
    FaultDoor,
    resets_after_taking,
    says,
)
from tests.support.metric_servers import MetricRun, prometheus, victoria_metrics
from tests.support.sink_batches import (
    NOW_NS,
    batch,
    dead_letters,
    gauge_record,
    log_record,
)
from tests.support.sink_cases import CASES, EVERY_WAY
from tests.support.task_batches import written_by_task
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LATER_S = NOW_NS / 1e9 + 60


@pytest.fixture
def splunk() -> Iterator[FaultDoor]:
    door = FaultDoor(FakeSplunk(use_ack=True))
    yield door
    door.close()


def acknowledged(door: FaultDoor, directory: Path, **keys: Any) -> tuple[Any, Any]:
    waiting = {"acknowledge_interval_s": 0.02, "acknowledge_timeout_s": 600}
    return CASES["splunk_hec"].sink(
        door, directory, acknowledge=True, batch={"max_records": 2}, **waiting | keys
    )


def sent_numbers(door: FaultDoor) -> Counter[int]:
    return CASES["splunk_hec"].stored(door.backend)


def test_events_count_once_splunk_acknowledges_them(splunk: FaultDoor, tmp_path: Path) -> None:
    sink, made = acknowledged(splunk, tmp_path)
    sink.write(batch([log_record(number) for number in range(6)]))
    assert sent_numbers(splunk) == Counter(range(6))
    asked = [it for it in splunk.asked if "/ack" in it.path]
    assert asked
    (channel,) = {it.headers["x-splunk-request-channel"] for it in splunk.asked}
    assert str(UUID(channel)) == channel
    assert made.meter.stage("x", received=6, lag=0).sent == 6


def test_events_that_are_never_acknowledged_are_sent_again(
    splunk: FaultDoor, tmp_path: Path
) -> None:
    sink, made = acknowledged(splunk, tmp_path, acknowledge_timeout_s=0.3)
    backend: Any = splunk.backend
    backend.indexed = False

    def indexes_the_second_time(asked: Any) -> Answered | None:
        backend.indexed = sum("/event" in it.path for it in splunk.asked) > 1
        return None

    splunk.rule = indexes_the_second_time
    sink.write(batch([log_record(0)]))
    assert sent_numbers(splunk)[0] >= 2
    assert made.meter.stage("x", received=1, lag=0).sent == 1


def test_a_splunk_that_starts_again_costs_no_event(splunk: FaultDoor, tmp_path: Path) -> None:
    """Its acknowledgement ids begin at 0 again, and name other events than before."""
    sink, _ = acknowledged(splunk, tmp_path, acknowledge_timeout_s=0.3)
    backend: Any = splunk.backend
    backend.indexed = False

    def restarts_after_two(asked: Any) -> Answered | None:
        events = sum("/event" in it.path for it in splunk.asked)
        if events == 3 and not backend.indexed:
            backend.restart()
            backend.events.clear()  # what was in memory is gone
            backend.indexed = True
        return None

    splunk.rule = restarts_after_two
    sink.write(batch([log_record(number) for number in range(6)]))
    assert set(sent_numbers(splunk)) == set(range(6))


def test_a_token_that_wants_a_channel_is_a_setting_to_correct(
    splunk: FaultDoor, tmp_path: Path
) -> None:
    sink, made = CASES["splunk_hec"].sink(splunk, tmp_path)
    backend: Any = splunk.backend

    def corrected_after_three(asked: Any) -> Answered | None:
        backend.use_ack = len(splunk.asked) < 3
        return None

    splunk.rule = corrected_after_three
    sink.write(batch([log_record(0)]))
    assert sent_numbers(splunk) == Counter({0: 1})
    assert dead_letters(made) == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(says(500, b"oops"), id="500"),
        pytest.param(says(401, b'{"text":"Invalid token","code":4}'), id="401"),
        pytest.param(says(200, b"no JSON"), id="no answer of Splunk's"),
        pytest.param(lambda asked, backend: None, id="reset"),
        pytest.param(None, id="hang"),
    ],
)
def test_a_question_for_acknowledgements_that_fails_is_asked_again(
    splunk: FaultDoor, tmp_path: Path, fault: Fault | None
) -> None:
    """And no event goes again for it, before its time is over."""
    sink, made = acknowledged(splunk, tmp_path, timeout_s=10 if fault else 2)
    questions: list[Asked] = []

    def fails_twice(asked: Asked) -> Answered | None:
        if "/ack" not in asked.path or len(questions) == 2:
            return None
        questions.append(asked)
        return (fault or splunk.hangs)(asked, splunk.backend) or RESET

    splunk.rule = fails_twice
    sink.write(batch([log_record(number) for number in range(6)]))
    assert sent_numbers(splunk) == Counter(range(6))
    stage = made.meter.stage("x", received=6, lag=0)
    assert (stage.sent, stage.detail["acknowledgements_unanswered"]) == (6, 2)
    assert dead_letters(made) == []


def test_an_acknowledgement_that_is_lost_on_its_way_brings_its_events_again(
    splunk: FaultDoor, tmp_path: Path
) -> None:
    """Splunk says it once and forgets it."""
    sink, made = acknowledged(splunk, tmp_path, acknowledge_timeout_s=2)
    lost: list[Answered] = []

    def loses_the_first(asked: Asked) -> Answered | None:
        if "/ack" not in asked.path or lost:
            return None
        lost.append(splunk.backend.handle(asked))
        return RESET

    splunk.rule = loses_the_first
    sink.write(batch([log_record(0), log_record(1)]))
    assert sent_numbers(splunk) == Counter({0: 2, 1: 2})
    assert made.meter.stage("x", received=2, lag=0).sent == 2


def test_events_that_splunk_never_acknowledges_by_its_settings_are_counted(
    splunk: FaultDoor, tmp_path: Path
) -> None:
    """The token has no indexer acknowledgement: there is no id to ask for."""
    backend: Any = splunk.backend
    backend.use_ack = False
    sink, made = acknowledged(splunk, tmp_path)
    sink.write(batch([log_record(number) for number in range(6)]))
    stage = made.meter.stage("x", received=6, lag=0)
    assert (stage.sent, stage.detail["unacknowledged"]) == (6, 6)
    assert [it for it in splunk.asked if "/ack" in it.path] == []


def test_a_prometheus_that_answers_500_to_an_old_sample_keeps_the_others(tmp_path: Path) -> None:
    """With a window for samples out of order it answers with the class that may be tried again."""
    server = prometheus(out_of_order=True)
    door = FaultDoor(MetricRun(server))
    try:
        sink, made = CASES["prometheus"].sink(door, tmp_path)
        sink.write(batch([gauge_record(0)]))
        old = gauge_record(3, time_ns=NOW_NS - 36_000 * 10**9)
        sink.write(batch([gauge_record(1), gauge_record(2), old, gauge_record(4)], first=1))
        assert CASES["prometheus"].stored(door.backend) == Counter([0, 1, 2, 4])
        assert [dead_letter["offset"] for dead_letter in dead_letters(made)] == [3]
    finally:
        door.close()
        server.close()


def test_late_samples_at_the_begin_of_a_batch_cost_no_later_one_of_their_series(
    tmp_path: Path,
) -> None:
    """They are as many as make a sink suspect its settings."""
    server = prometheus()
    door = FaultDoor(MetricRun(server))

    def points(seconds: range) -> list[dict[str, Any]]:
        return [gauge_record(0, value=it, time_ns=NOW_NS + it * 10**9) for it in seconds]

    try:
        sink, made = CASES["prometheus"].sink(door, tmp_path)
        sink.write(batch(points(range(-50, -49))))
        sink.write(batch(points(range(-90, -86)) + points(range(-40, -30)), first=1))
        assert CASES["prometheus"].stored(door.backend) == Counter({0: 11})
        assert [dead_letter["offset"] for dead_letter in dead_letters(made)] == [1, 2, 3, 4]
    finally:
        door.close()
        server.close()


def test_points_refused_at_the_begin_of_a_batch_cost_no_later_one_of_another_series(
    tmp_path: Path,
) -> None:
    """What is sent before its turn is the newest of its series, and those before it are refused."""
    server = prometheus()
    door = FaultDoor(MetricRun(server))
    case = CASES["prometheus"]
    refusal = Answered(400, b"a label that this server does not take")
    door.rule = lambda asked: refusal if b"POISON" in case.plain(asked.body) else None
    spoilt = [gauge_record(number, name="queue.POISON") for number in range(1, 5)]
    points = [gauge_record(0, value=it, time_ns=NOW_NS + it * 10**9) for it in range(-20, -10)]
    try:
        sink, made = case.sink(door, tmp_path)
        sink.write(batch(spoilt + points))
        assert case.stored(door.backend) == Counter({0: len(points)})
        assert [dead_letter["offset"] for dead_letter in dead_letters(made)] == [0, 1, 2, 3]
    finally:
        door.close()
        server.close()


def test_an_outage_costs_no_sample_of_a_series(tmp_path: Path) -> None:
    """Its requests fail often enough for a record to be suspected."""
    server = prometheus()
    door = FaultDoor(MetricRun(server))
    points = [gauge_record(0, value=it, time_ns=NOW_NS + it * 10**9) for it in range(-40, -10)]
    try:
        sink, made = CASES["prometheus"].sink(door, tmp_path, batch={"max_records": 10})
        door.faults += [says(500)] * 12
        sink.write(batch(points))
        assert CASES["prometheus"].stored(door.backend) == Counter({0: len(points)})
        assert dead_letters(made) == []
        assert "already_there" not in made.meter.stage("x", received=30, lag=0).detail
    finally:
        door.close()
        server.close()


@pytest.mark.parametrize("again", ["answer lost", "killed"])
def test_samples_of_one_series_that_come_again_are_no_dead_letters(
    tmp_path: Path, again: str
) -> None:
    """Prometheus takes the newest of a series again, and refuses the others as out of order."""
    server = prometheus()
    door = FaultDoor(MetricRun(server))
    points = [
        gauge_record(number % 4, value=number, time_ns=NOW_NS + (number // 4 - 9) * 10**9)
        for number in range(32)
    ]
    try:
        sink, made = CASES["prometheus"].sink(door, tmp_path)
        if again == "answer lost":
            door.faults.append(resets_after_taking)
        sink.write(batch(points))
        if again == "killed":
            sink, made = CASES["prometheus"].sink(door, tmp_path)
            sink.write(batch(points))
        assert CASES["prometheus"].stored(door.backend) == Counter(dict.fromkeys(range(4), 8))
        assert dead_letters(made) == []
        assert made.meter.stage("x", received=32, lag=0).detail["already_there"] > 0
        sink.write(batch([points[0] | {"value": -1.0}], first=32))
        assert [dead_letter["offset"] for dead_letter in dead_letters(made)] == [32]
    finally:
        door.close()
        server.close()


@pytest.mark.parametrize("again", ["answer lost", "run again"])
def test_samples_that_a_task_has_sent_and_that_come_again_are_no_dead_letters(
    tmp_path: Path, again: str
) -> None:
    """From the second batch on tasks send; the first one may have come before."""
    server = prometheus()
    door = FaultDoor(MetricRun(server))
    case = EVERY_WAY["prometheus in tasks"]
    points = [
        gauge_record(number % 4, value=number, time_ns=NOW_NS + (number // 4 - 9) * 10**9)
        for number in range(32)
    ]
    rows = batch(points, first=1)
    try:
        sink, made = case.sink(door, tmp_path)
        sink.write(batch([gauge_record(9, time_ns=NOW_NS - 10 * 10**9)]))
        if again == "answer lost":
            door.faults.append(resets_after_taking)
            sink.write(rows)
        else:
            sink.begin()
            assert written_by_task(sink, rows).delivered == len(points), "and its worker is killed"
            second = sink.encoded(rows)
            doubtful = tuple(replace(it, is_doubtful=True) for it in second.unsettled)
            sink.commit([replace(second, unsettled=doubtful)])
        assert case.stored(door.backend) == Counter(dict.fromkeys(range(4), 8) | {9: 1})
        assert dead_letters(made) == []
        assert made.meter.stage("x", received=33, lag=0).detail["already_there"] > 0
        sink.write(batch([points[0] | {"value": -1.0}], first=40))
        assert [dead_letter["offset"] for dead_letter in dead_letters(made)] == [40]
    finally:
        door.close()
        server.close()


def test_victoria_metrics_takes_the_same_requests(tmp_path: Path) -> None:
    server = victoria_metrics()
    run = MetricRun(server)
    door = FaultDoor(run)
    try:
        sink, made = CASES["prometheus"].sink(door, tmp_path)
        door.faults.append(resets_after_taking)
        sink.write(batch([gauge_record(number) for number in range(5)]))
        server.get("/internal/force_flush")  # else it is some seconds before they can be searched
        wait_until(lambda: set(run.stored(LATER_S)) == set(range(5)), what="samples searchable")
        assert dead_letters(made) == []
    finally:
        door.close()
        server.close()
