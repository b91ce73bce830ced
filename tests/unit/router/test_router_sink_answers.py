"""Answers that say something else than their code does, and headers that cannot be sent."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import orjson
import pytest
from pydantic import ValidationError

from penstock.base.clock import SystemClock
from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import (
    DeliveryResult,
    Failed,
    Fault,
    PartialFailure,
    Paused,
    Rejected,
    Retryable,
    TooLarge,
)
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.sinks import Sink, make_sink
from penstock.router.sinks.elasticsearch.sink import classify_items
from penstock.router.sinks.otlp.client import Channel, classify_error
from penstock.router.sinks.registry import sink_kind
from penstock.router.sinks.splunk_hec import classify_answer
from penstock.service.config_types import Secret
from tests.support.fake_splunk import TOKEN, FakeSplunk
from tests.support.fault_door import GONE, Answered
from tests.support.recorded_sink import RecordedSink, closes, resets, sent
from tests.support.sink_batches import batch, context, gauge_record, log_record
from tests.unit.router.test_router_config import load

LATE = (400, b"out of order sample\n")
MIMIR = (
    400,
    (
        b"send data to ingesters: failed pushing to ingester mimir-ingester-0: user=x: the sample"
        b" has been rejected because another sample with a more recent timestamp has already been"
        b" ingested and out-of-order samples are not allowed (err-mimir-sample-out-of-order)"
    ),
)


def sink(name: str, directory: Path, **keys: Any) -> Sink:
    settings = {"type": name, "url": "http://127.0.0.1:1", **keys}
    return make_sink(sink_kind(name).config.model_validate(settings), context(directory))


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[RecordedSink]:
    """A sink whose records come for the first time."""
    with RecordedSink("prometheus", tmp_path) as made:
        made.sink.start_over()
        yield made


def points(count: int) -> list[Any]:
    return [gauge_record(number) for number in range(count)]


def test_a_late_sample_of_a_request_that_nobody_answered_is_there(
    prometheus: RecordedSink,
) -> None:
    outcome = prometheus.write(points(1), resets, LATE)
    assert (len(outcome.requests), outcome.problem, outcome.dead_letters) == (2, None, [])
    assert outcome.counted["already_there"] == 1


def test_a_late_sample_that_came_for_the_first_time_is_refused(prometheus: RecordedSink) -> None:
    assert prometheus.write(points(1), LATE).codes == ["http_400"]


def test_a_late_sample_after_a_batch_without_rows_is_refused(
    prometheus: RecordedSink, tmp_path: Path
) -> None:
    """A batch that has ended puts no later one in doubt, whatever it had for the sink."""
    settings = {"type": "prometheus", "url": prometheus.door.url}
    routes = [{"name": "all", "sinks": ["sink"]}]
    job = load(tmp_path, sinks={"sink": settings}, routes=routes)
    batch_writer = BatchWriter(job, prometheus.sink, prometheus.context)
    assert batch_writer.part(0, None) is not None
    batch_writer.commit([])
    assert prometheus.write(points(1), LATE).codes == ["http_400"]


def test_a_late_sample_over_a_kept_connection_that_had_ended_is_there(
    prometheus: RecordedSink,
) -> None:
    prometheus.write(points(1))
    outcome = prometheus.write(points(1), closes, LATE, patience=0)
    assert (len(outcome.requests), outcome.problem, outcome.dead_letters) == (2, None, [])


def test_a_late_sample_of_a_server_that_says_it_failed_is_looked_for(
    prometheus: RecordedSink,
) -> None:
    outcome = prometheus.write(points(2), *[(500, b"too old sample")] * 3, patience=0)
    assert [(it["offset"], it["code"]) for it in outcome.dead_letters] == [
        (0, "http_500"), (1, "http_500"),
    ]  # fmt: skip
    assert outcome.dead_letters[0]["reason"] == "HTTP 500 too old sample"


def test_mimir_refuses_a_bad_sample_that_came_for_the_first_time(prometheus: RecordedSink) -> None:
    assert prometheus.write(points(1), MIMIR).codes == ["http_400"]


def test_mimir_keeps_the_others_of_a_request_with_a_bad_sample(prometheus: RecordedSink) -> None:
    """So in its pieces, what is late may be there; it says so far behind the answer's beginning."""
    outcome = prometheus.write(points(2), MIMIR, MIMIR, MIMIR)
    assert (len(outcome.requests), outcome.problem, outcome.dead_letters) == (3, None, [])
    assert outcome.counted["already_there"] == 2


def test_what_went_over_a_kept_connection_may_have_been_taken(tmp_path: Path) -> None:
    """Though there is no other to ask over: the server ended when it had the request."""
    with RecordedSink("http", tmp_path) as made:
        made.write([log_record(0)])

        def ends(*_: object) -> Answered:
            made.door.close()
            return GONE

        outcome = made.write([log_record(1)], ends, patience=0)
    assert "without an answer" in str(outcome.problem)


@pytest.mark.parametrize("how", ["open", "go_on", "start_over"])
def test_a_late_letter_that_is_delivered_again_is_a_letter_again(tmp_path: Path, how: str) -> None:
    """What is delivered on purpose repeats nothing; the first batch since a start may."""
    with RecordedSink("prometheus", tmp_path) as made:
        if how != "open":
            getattr(made.sink, how)()
        assert len(made.write(points(1), LATE).dead_letters) == (how == "start_over")


@pytest.mark.parametrize("name", ["loki", "splunk_hec", "elasticsearch", "datadog"])
@pytest.mark.parametrize("odd", ["hush\nhush", "hush\r\n x: hush", "hush\0", "hush\u017e"])
def test_a_header_that_cannot_be_sent_pauses_and_is_not_shown(
    tmp_path: Path, name: str, odd: str
) -> None:
    key = "token" if name in ("loki", "splunk_hec") else "api_key"
    (tmp_path / "secret").write_text(odd, encoding="utf-8")
    outcome = sent(name, tmp_path, [log_record(0)], **{key: {"file": tmp_path / "secret"}})
    assert (outcome.circuit, outcome.requests) == ("paused", ())
    assert "hush" not in str(outcome.problem)


def test_a_secret_has_no_line_breaks_around_it(tmp_path: Path) -> None:
    assert Secret.model_validate("hush\n").read() == "hush"
    (asked,) = sent("http", tmp_path, [log_record(0)], headers={"x-key": "hush\n"}).requests
    assert asked.headers["x-key"] == "hush"


def grpc_channel(**keys: Any) -> Channel:
    settings = {"type": "otlp", "url": "http://127.0.0.1:1", "protocol": "grpc", **keys}
    return Channel(sink_kind("otlp").config.model_validate(settings), SystemClock())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-key", "hush\nhush"), ("x-key", "hush\thush"), ("x-key", "hush\x7f"),
        ("x-key", "hush\xe9"), ("x-key-bin", "hush"), ("x!key", "hush"), ("", "hush"),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_sent_pauses_and_is_not_shown(name: str, value: str) -> None:
    channel = grpc_channel(headers={name: value})
    signal: Any = SimpleNamespace(method="/x")
    verdict = channel.export(signal, b"", 1)
    channel.close()
    assert verdict == Paused(f"header {name}: its name, or a character of its value, gRPC forbids")


def test_metadata_that_grpc_takes_is_sent() -> None:
    channel = grpc_channel(headers={"X-Key_1.bin": "Bearer ~ !", "empty": ""})
    signal: Any = SimpleNamespace(method="/x")
    verdict = channel.export(signal, b"", 1)
    channel.close()
    assert isinstance(verdict, Retryable), "nobody is there"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("grpc: received message larger than max (5 vs. 4)", TooLarge),
        ("gRPC message exceeds maximum size 4194304: 5000000", TooLarge),
        ("TRACE_TOO_LARGE: max size of trace (5000000) exceeded", TooLarge),
        ("RATE_LIMITED: ingestion rate limit (local: 15000000 bytes) exceeded", Retryable),
        ("RATE_LIMITED: batch size (9 bytes) exceeds ingestion limit (burst: 5 bytes)", TooLarge),
        ("ingestion rate limit exceeded, burst size 5", Retryable),
        ("LIVE_TRACES_EXCEEDED: max live traces exceeded", Retryable),
        ("", Retryable),
    ],
)
def test_what_is_exhausted_is_told_by_the_text(told: str, expected: type[DeliveryResult]) -> None:
    error = SimpleNamespace(
        code=lambda: grpc.StatusCode.RESOURCE_EXHAUSTED,
        details=lambda: told,
        trailing_metadata=lambda: (),
    )
    assert type(classify_error(error)) is expected


@pytest.mark.parametrize(
    ("told", "is_lost"),
    [
        ("Stream removed (Socket closed)", True),
        ("Socket closed", True),
        ("recvmsg:Connection reset by peer", True),
        ("failed to connect to all addresses; last error: recvmsg:Connection reset by peer", False),
        ("memory usage is high, try again: Socket closed", False),
        ("GOAWAY received", False),
    ],
)
def test_a_grpc_connection_that_is_lost_in_a_call_may_be_the_work_of_a_record(
    told: str, is_lost: bool
) -> None:
    """Not so an answer that there is no room, nor that nobody listens."""
    error = SimpleNamespace(
        code=lambda: grpc.StatusCode.UNAVAILABLE,
        details=lambda: told,
        trailing_metadata=lambda: (),
    )
    fault = Fault("grpc_unavailable", f"gRPC UNAVAILABLE: {told}")
    assert classify_error(error) == (
        Failed(fault, answered=False) if is_lost else Retryable(fault.reason)
    )


def test_grpc_has_no_zstd() -> None:
    with pytest.raises(ValidationError, match="gRPC has gzip and none"):
        grpc_channel(compression="zstd")


def test_splunk_may_name_the_first_event_of_a_body_that_is_too_large() -> None:
    said = {"text": "Invalid data format", "code": 6, "invalid-event-number": 0}
    fault = Fault("splunk_6", "Splunk says 'Invalid data format' (code 6)", 400)
    assert classify_answer(HttpResponse(400, {}, b""), said, 4) == Rejected(fault)
    fault = replace(fault, about_record=True)
    assert classify_answer(HttpResponse(400, {}, b""), said, 1) == PartialFailure(
        refused=((0, fault),)
    )
    third = said | {"invalid-event-number": 2}
    assert classify_answer(HttpResponse(400, {}, b""), third, 4) == PartialFailure(
        refused=((2, fault),), again=(3,)
    )


@pytest.mark.parametrize("acknowledge", [False, True])
@pytest.mark.parametrize("code", [6, 7])
def test_splunk_acknowledges_nothing_of_an_answer_that_refuses(
    tmp_path: Path, acknowledge: bool, code: int
) -> None:
    said = orjson.dumps({"text": "no", "code": code, "invalid-event-number": 2})
    records = [log_record(number) for number in range(4)]
    keys: dict[str, Any] = {"token": TOKEN, "acknowledge": acknowledge}
    with RecordedSink("splunk_hec", tmp_path, **keys) as made:
        made.door.backend = FakeSplunk(use_ack=acknowledge)
        outcome = made.write(records, (400, said), patience=100)
    again = [line.split()[1] for line in re.findall(r"order \d+", outcome.bodies[1].decode())]
    assert outcome.problem is None
    if code == 6:
        assert [dead_letter["offset"] for dead_letter in outcome.dead_letters] == [2]
        assert again == (["0", "1", "3"] if acknowledge else ["3"])
    else:
        assert outcome.dead_letters == []
        assert again == (["0", "1"] if acknowledge else ["1", "2", "3"])


def test_a_pipeline_that_is_not_there_is_waited_for() -> None:
    error = {
        "type": "illegal_argument_exception", "reason": "pipeline with id [p] does not exist",
    }  # fmt: skip
    item = {"create": {"status": 400, "error": error}}
    body = orjson.dumps({"errors": True, "items": [item, item]})
    found = classify_items(HttpResponse(200, {}, body), 2)
    assert isinstance(found, PartialFailure)
    assert (found.refused, found.failed, found.again) == ((), (), (0, 1))
    assert "pipeline with id [p]" in found.reason


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_a_bulk_answer_that_names_no_documents_delivers_none(tmp_path: Path, status: int) -> None:
    """It is a proxy's, or a login page."""
    made: Any = sink("elasticsearch", tmp_path)
    requests, _ = made.to_requests(batch([log_record(0)]))
    answer = HttpResponse(status, {}, b"<html>welcome</html>" if status != 204 else b"")
    found = made.classify_answer(answer, requests[0])
    assert isinstance(found, Failed)
    assert found.fault.code == f"http_{status}"
    assert "names 0 of 1 documents" in found.fault.reason


@pytest.mark.parametrize("index", ["Logs", "a b", "_logs", "-logs", "a,b", "a/b", "..", "a*", ""])
def test_an_index_that_there_cannot_be_is_refused_at_the_start(tmp_path: Path, index: str) -> None:
    with pytest.raises(ValidationError, match="no name of an index"):
        sink("elasticsearch", tmp_path, index=index)
    for good in ("logs-{kind}-{service}", "{service}", ".hidden", "<logs-{now/d}>"):
        sink("elasticsearch", tmp_path, index=good)


def test_all_that_a_mapping_made_goes_to_loki_which_judges_it(tmp_path: Path) -> None:
    """The line is the body alone, so what were cut off would be nowhere."""
    named = {f"a{n}": "x" * 1000 for n in range(500)}
    mapped = {
        "kind": "log", "labels": {"app": "shop", "none": "", "": "x"},
        "timestamp": "1", "line": "x", "metadata": named | {"b": "", "": "c"},
    }  # fmt: skip
    (body,) = sent("loki", tmp_path, [mapped]).bodies
    (stream,) = orjson.loads(body)["streams"]
    assert stream["stream"] == {"app": "shop"}
    assert stream["values"][0][2] == named | {"penstock_id": "logs.5f2c19aa/0/0"}
