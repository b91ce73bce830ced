"""What Datadog is sent, and what its answers mean."""

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from pydantic import ValidationError

from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import (
    Fault,
    PartialFailure,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.sinks.datadog.encode import series_of
from penstock.router.sinks.datadog.sink import Datadog, DatadogSink, classify_answer
from tests.support.recorded_sink import Outcome, sent
from tests.support.sink_batches import (
    NOW_NS,
    batch,
    context,
    gauge_record,
    log_record,
    span_record,
)

AGENT = "http://127.0.0.1:8126"
KEY = {"api_key": "hush"}


def sink(directory: Path, **keys: Any) -> Datadog:
    settings = {"type": "datadog", "api_key": "hush", **keys}
    return Datadog(DatadogSink.model_validate(settings), context(directory))


def traced(directory: Path, *records: dict[str, Any]) -> Outcome:
    """What an Agent of Datadog's gets."""
    return sent("datadog", directory, records, urls={"agent_url": ""}, **KEY)


def test_each_signal_goes_where_datadog_takes_it(tmp_path: Path) -> None:
    made = sink(tmp_path, site="datadoghq.eu", agent_url=AGENT)
    shown = made.preview(batch([log_record(0), gauge_record(1), span_record(2)]))
    assert [it.target for it in shown] == [
        "POST https://http-intake.logs.datadoghq.eu/api/v2/logs",
        "POST https://api.datadoghq.eu/api/v2/series",
        "POST http://127.0.0.1:8126/v0.4/traces",
    ]
    assert "hush" not in repr(shown)
    assert [("DD-API-KEY", "***") in it.headers for it in shown] == [True, True, False]


def test_one_url_of_a_proxy_is_for_logs_and_metrics(tmp_path: Path) -> None:
    outcome = sent("datadog", tmp_path, [gauge_record(1), log_record(2)], path="/dd/", **KEY)
    assert [asked.path for asked in outcome.requests] == ["/dd/api/v2/series", "/dd/api/v2/logs"]


def test_a_log_has_what_datadog_reserves_and_everything_else(tmp_path: Path) -> None:
    record = log_record(0, trace_id="ab" * 16, severity_number=18, sample_weight=4)
    record |= {"context": {"user.id": "u7"}, "event_name": "order"}
    record["resource"] |= {"deployment.environment.name": "prod", "service.version": "1.2"}
    (body,) = sent("datadog", tmp_path, batch([record], first=41), **KEY).bodies
    (log,) = orjson.loads(body)
    assert log == {
        "message": "order 0 ☃",
        "ddsource": "penstock",
        "ddtags": "env:prod,service:checkout,version:1.2",
        "hostname": "web-1",
        "service": "checkout",
        "status": "error",
        "timestamp": NOW_NS // 1_000_000,
        "penstock_id": "logs.5f2c19aa/0/41",
        "penstock_kind": "log",
        "trace_id": "ab" * 16,
        "schema": "log/1.0",
        "severity_text": "INFO",
        "attributes": record["attributes"],
        "resource": record["resource"],
        "context": {"user.id": "u7"},
        "event_name": "order",
        "sample_weight": 4,
    }


def test_a_row_that_is_no_record_is_a_log(tmp_path: Path) -> None:
    (body,) = sent("datadog", tmp_path, [b"\xff"], **KEY).bodies
    (log,) = orjson.loads(body)
    assert log["message"] == "/w=="


def test_a_span_keeps_both_halves_of_its_trace(tmp_path: Path) -> None:
    record = span_record(0, trace_id="0f" * 16, parent_span_id="00" * 7 + "07")
    (asked,) = traced(tmp_path, record).requests
    ((span,),) = msgspec.msgpack.decode(asked.body)
    assert span["trace_id"] == int("0f" * 8, 16)
    assert span["meta"]["_dd.p.tid"] == "0f" * 8
    assert (span["span_id"], span["parent_id"], span["duration"], span["error"]) == (1, 7, 5, 1)
    assert span["resource"] == "GET /orders"
    assert span["type"] == "web"
    assert asked.headers["x-datadog-trace-count"] == "1"
    assert span["metrics"] == {"_sampling_priority_v1": 1, "_sample_rate": 1}


def test_a_span_keeps_what_datadog_has_no_field_for(tmp_path: Path) -> None:
    link = {"trace_id": "0f" * 16, "span_id": "0a" * 8, "attributes": {"why": "batch"}}
    event = {"name": "retry", "time_unix_nano": NOW_NS, "attributes": {"attempt": 2}}
    record = span_record(0, links=[link], events=[event], trace_state="a=b", sample_weight=8)
    record |= {"context": {"request.id": "r1"}, "scope": "shop.web"}
    (body,) = traced(tmp_path, record).bodies
    ((span,),) = msgspec.msgpack.decode(body)
    meta = span["meta"]
    assert orjson.loads(meta["_dd.span_links"]) == [link]
    assert orjson.loads(meta["events"]) == [event]
    assert (meta["request.id"], meta["otel.scope.name"]) == ("r1", "shop.web")
    assert meta["w3c.tracestate"] == "a=b"
    assert span["metrics"]["_sample_rate"] == 1 / 8


def test_spans_without_an_agent_are_told_apart(tmp_path: Path) -> None:
    outcome = sent("datadog", tmp_path, [span_record(0)], **KEY)
    assert (outcome.requests, outcome.codes) == ((), ["no_agent"])


def test_spans_of_a_trace_travel_as_one(tmp_path: Path) -> None:
    spans = [span_record(number, trace_id=f"{1 + number % 2:032x}") for number in range(4)]
    (body,) = traced(tmp_path, *spans).bodies
    found = msgspec.msgpack.decode(body)
    assert [[span["span_id"] for span in trace] for trace in found] == [[1, 3], [2, 4]]


POINT = {
    "name": "jobs", "time_unix_nano": 100 * 10**9, "start_time_unix_nano": 40 * 10**9,
    "resource": {"host.name": "web-1"}, "attributes": {"queue": "a"},
}  # fmt: skip


def test_a_sum_of_delta_temporality_is_a_count() -> None:
    record = POINT | {"metric_type": "sum", "temporality": "delta", "value": 7}
    assert series_of(record) == [
        {
            "metric": "jobs",
            "type": 1,
            "points": [{"timestamp": 100, "value": 7.0}],
            "tags": ["queue:a"],
            "interval": 60,
            "resources": [{"name": "web-1", "type": "host"}],
        }
    ]
    (cumulative,) = series_of(record | {"temporality": "cumulative"})
    assert cumulative["type"] == 3
    assert "interval" not in cumulative


def test_a_histogram_is_counts_by_bounds() -> None:
    buckets = {"explicit_bounds": [1.0, 5.0], "bucket_counts": [2, 3, 1], "count": 6, "sum": 9.5}
    made = series_of(POINT | buckets | {"metric_type": "histogram", "temporality": "delta"})
    found = [(it["metric"], it["points"][0]["value"], it["tags"][1:]) for it in made]
    assert found == [
        ("jobs.count", 6.0, []),
        ("jobs.sum", 9.5, []),
        ("jobs.bucket", 2.0, ["lower_bound:-inf", "upper_bound:1.0"]),
        ("jobs.bucket", 3.0, ["lower_bound:1.0", "upper_bound:5.0"]),
        ("jobs.bucket", 1.0, ["lower_bound:5.0", "upper_bound:inf"]),
    ]


def test_what_datadog_has_no_number_or_name_for_is_counted(tmp_path: Path) -> None:
    records = [gauge_record(0, value=word) for word in ("NaN", "Infinity")]
    names = ("jobs/s", "jobs_s", "2nd", "x" * 210)
    records += [gauge_record(0, name=name) for name in names]
    outcome = sent("datadog", tmp_path, records, **KEY)
    (body,) = outcome.bodies
    found = orjson.loads(body)["series"]
    assert [it["metric"] for it in found] == ["jobs_s", "jobs_s", "m_2nd", "x" * 200]
    assert outcome.counted == {"left_out_not_finite": 2, "names_merged": 1, "requests": 1}
    assert not outcome.dead_letters


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (gauge_record(0, time_ns=NOW_NS + 7200 * 10**9), "in_the_future"),
        (gauge_record(0, time_ns=NOW_NS - 36_000 * 10**9), "too_old"),
        (gauge_record(0, metric_type="exponential_histogram"), "not_encodable"),
        (gauge_record(0, flags=1), "not_encodable"),
        (log_record(0, padding="x" * 1_000_000), "log_too_large"),
        (log_record(0, time_unix_nano=NOW_NS - 19 * 3600 * 10**9), "too_old"),
        (log_record(0, time_unix_nano=NOW_NS + 3 * 3600 * 10**9), "in_the_future"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_what_datadog_would_drop_is_a_dead_letter(
    tmp_path: Path, record: dict[str, Any], code: str
) -> None:
    if code == "log_too_large":
        record["attributes"]["padding"] = record.pop("padding")
    outcome = sent("datadog", tmp_path, [record], **KEY)
    assert (outcome.requests, outcome.codes) == ((), [code])


@pytest.mark.parametrize(
    ("status", "headers", "body", "lane", "expected"),
    [
        (202, {}, b"{}", "logs", Success()),
        (202, {}, b'{"errors":[]}', "metrics", Success()),
        (200, {}, b'{"rate_by_service":{}}', "traces", Success()),
        (200, {}, b"", "logs", Paused),
        (204, {}, b"", "metrics", Paused),
        (202, {}, b'{"errors":["one point is bad"]}', "metrics", PartialFailure),
        (400, {}, b"", "logs", Rejected),
        (401, {}, b"", "logs", Paused),
        (403, {}, b"", "metrics", Paused),
        (408, {}, b"", "logs", Retryable),
        (413, {}, b"", "metrics", TooLarge),
        (429, {"x-ratelimit-reset": "7"}, b"", "metrics", Retryable("HTTP 429", 7.0)),
        (503, {}, b"", "logs", Retryable),
    ],
)
def test_an_answer_means_what_datadog_documents(
    status: int, headers: dict[str, str], body: bytes, lane: str, expected: Any
) -> None:
    found = classify_answer(HttpResponse(status, headers, body), lane, 2)
    assert found == expected or (isinstance(expected, type) and isinstance(found, expected))
    if isinstance(found, PartialFailure):
        assert [place for place, _ in found.refused] == [0, 1]
        assert isinstance(found.refused[0][1], Fault)


def test_more_than_datadog_takes_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="at most 1000 records"):
        sink(tmp_path, batch={"max_records": 1001})
    with pytest.raises(ValidationError, match="site"):
        sink(tmp_path, site="evil.example/x")
