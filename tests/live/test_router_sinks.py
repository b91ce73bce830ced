"""What only one sink does: Splunk's acknowledgements, OTLP over gRPC, real receivers of metrics."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from penstock.router.sinks import make_sink
from penstock.router.sinks.table import sink_kind
from tests.support.fake_otlp import FakeOtlp, serve_grpc
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
    context,
    dead_letters,
    gauge_record,
    log_record,
    span_record,
)
from tests.support.sink_cases import CASES, FAST
from tests.support.tcp_door import Break, TcpDoor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LATER_S = NOW_NS / 1e9 + 60


@pytest.fixture
def splunk() -> Iterator[FaultDoor]:
    door = FaultDoor(FakeSplunk(use_ack=True))
    yield door
    door.close()


def acknowledged(door: FaultDoor, directory: Path, **keys: Any) -> tuple[Any, Any]:
    waiting = {"acknowledge_interval_s": 0.02, "acknowledge_timeout_s": 0.3}
    return CASES["splunk_hec"].sink(
        door, directory, acknowledge=True, batch={"records_max": 2}, **waiting | keys
    )


def sent_numbers(door: FaultDoor) -> Counter[int]:
    return CASES["splunk_hec"].stored(door.backend)


def test_events_count_once_splunk_acknowledges_them(splunk: FaultDoor, tmp_path: Path) -> None:
    sink, made = acknowledged(splunk, tmp_path)
    sink.write(batch([log_record(number) for number in range(6)]))
    assert sent_numbers(splunk) == Counter(range(6))
    asked = [it for it in splunk.asked if "/ack" in it.path]
    assert asked
    assert {it.headers["x-splunk-request-channel"] for it in splunk.asked} == {sink._channel}
    assert made.meter.stage("x", received=6, lag=0).sent == 6


def test_events_that_are_never_acknowledged_are_sent_again(
    splunk: FaultDoor, tmp_path: Path
) -> None:
    sink, made = acknowledged(splunk, tmp_path)
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
    sink, _ = acknowledged(splunk, tmp_path)
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
    sink, made = acknowledged(
        splunk, tmp_path, acknowledge_timeout_s=600, timeout_s=10 if fault else 2
    )
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
    sink, made = acknowledged(splunk, tmp_path)
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


@pytest.fixture
def receiver() -> Iterator[tuple[FakeOtlp, int]]:
    fake = FakeOtlp()
    server, port = serve_grpc(fake)
    yield fake, port
    server.stop(None).wait()


def over_grpc(port: int, directory: Path, **keys: Any) -> tuple[Any, Any]:
    made = context(directory)
    settings = {"type": "otlp", "protocol": "grpc", "url": f"http://127.0.0.1:{port}", **FAST}
    sink: Any = make_sink(sink_kind("otlp").config.model_validate({**settings, **keys}), made)
    sink.open()
    return sink, made


def aborts(
    code: grpc.StatusCode, *, retry_s: float | None = None, told: str = "as the test says"
) -> Callable[[Any], None]:
    def refuse(call: Any) -> None:
        if retry_s is not None:
            info = AnyMessage()
            info.Pack(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=int(retry_s * 1e9))))
            status = status_pb2.Status(code=code.value[0], details=[info])
            call.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        call.abort(code, told)

    return refuse


def test_three_signals_arrive_over_grpc(receiver: tuple[FakeOtlp, int], tmp_path: Path) -> None:
    fake, port = receiver
    sink, _ = over_grpc(port, tmp_path, headers={"X-Honeycomb-Team": "hush"})
    records = [log_record(0), span_record(1), gauge_record(2), log_record(3)]
    sink.write(batch(records))
    sink.close()
    assert {name: len(found) for name, found in fake.members.items()} == {
        "logs": 2, "traces": 1, "metrics": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "refusal",
    [
        aborts(grpc.StatusCode.UNAVAILABLE),
        aborts(grpc.StatusCode.ABORTED),
        aborts(grpc.StatusCode.UNAUTHENTICATED),
        aborts(grpc.StatusCode.INTERNAL),
        aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=0.01),
        aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, told="RATE_LIMITED: ingestion rate limit"),
    ],
    ids=["unavailable", "aborted", "unauthenticated", "internal", "exhausted", "rate"],
)
def test_what_grpc_says_may_pass_is_tried_again(
    receiver: tuple[FakeOtlp, int], tmp_path: Path, refusal: Callable[[Any], None]
) -> None:
    fake, port = receiver
    fake.refuses += [refusal, refusal]
    sink, made = over_grpc(port, tmp_path)
    sink.write(batch([log_record(number) for number in range(4)]))
    sink.close()
    assert len(fake.members["logs"]) == 4
    assert dead_letters(made) == []


def test_what_grpc_refuses_is_bisected(receiver: tuple[FakeOtlp, int], tmp_path: Path) -> None:
    fake, port = receiver
    fake.refuses += [aborts(grpc.StatusCode.INVALID_ARGUMENT)] * 3  # four records, two, one
    sink, made = over_grpc(port, tmp_path)
    sink.write(batch([log_record(number) for number in range(4)]))
    sink.close()
    assert [letter["code"] for letter in dead_letters(made)] == ["grpc_invalid_argument"]
    assert len(fake.members["logs"]) == 3


def test_exhausted_by_a_message_that_is_too_large_is_halved(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    fake, port = receiver
    told = "grpc: received message larger than max (5 vs. 4)"
    fake.refuses.append(aborts(grpc.StatusCode.RESOURCE_EXHAUSTED, told=told))
    sink, made = over_grpc(port, tmp_path)
    sink.write(batch([log_record(number) for number in range(4)]))
    sink.close()
    assert len(fake.members["logs"]) == 4
    assert fake.exports == 2
    assert dead_letters(made) == []


def test_what_a_partial_success_rejects_is_laid_aside_with_its_request(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    fake, port = receiver
    sink, made = over_grpc(port, tmp_path, batch={"records_max": 2})
    poison = log_record(2, body="order 2 POISON")
    sink.write(batch([log_record(0), log_record(1), poison, log_record(3)]))
    sink.close()
    assert len(fake.members["logs"]) == 3
    assert [(it["offset"], it["code"]) for it in dead_letters(made)] == [
        (2, "partial_success"), (3, "partial_success"),
    ]  # fmt: skip


@pytest.fixture
def broken_way(receiver: tuple[FakeOtlp, int]) -> Iterator[TcpDoor]:
    """To the receiver; its mark is in each request's body, which is not compressed."""
    made = TcpDoor(receiver[1], b"checkout")
    yield made
    made.close()


@pytest.mark.parametrize("how", list(Break))
@pytest.mark.parametrize("record", [log_record, span_record, gauge_record])
def test_a_grpc_connection_that_breaks_costs_no_record(
    receiver: tuple[FakeOtlp, int], broken_way: TcpDoor, tmp_path: Path, how: Break, record: Any
) -> None:
    limit_s = 2 if how is Break.HANG else 10
    sink, made = over_grpc(broken_way.port, tmp_path, compression="none", timeout_s=limit_s)
    broken_way.faults += [how]
    sink.write(batch([record(number) for number in range(4)]))
    sink.close()
    signal = {"log": "logs", "span": "traces", "metric": "metrics"}[record(0)["kind"]]
    found = len(receiver[0].members[signal])
    assert broken_way.marks >= 2
    assert found == 4 or (found == 8 and how is not Break.RESET)
    assert dead_letters(made) == []
    assert made.meter.stage("x", received=4, lag=0).sent == 4


def test_a_batch_that_comes_again_over_grpc_is_there_again(
    receiver: tuple[FakeOtlp, int], tmp_path: Path
) -> None:
    """With a time of the future in it, which OTLP has no rule for."""
    sink, made = over_grpc(receiver[1], tmp_path)
    rows = batch([log_record(0), log_record(1, time_ns=NOW_NS + 7200 * 10**9)])
    sink.write(rows)
    sink.write(rows)
    sink.close()
    logs = receiver[0].members["logs"]
    assert Counter(it["body"]["stringValue"].split()[1] for it in logs) == {"0": 2, "1": 2}
    assert logs[:2] == logs[2:]
    assert dead_letters(made) == []


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
        assert [letter["offset"] for letter in dead_letters(made)] == [3]
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
        assert [letter["offset"] for letter in dead_letters(made)] == [32]
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
