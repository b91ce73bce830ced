"""What each sink puts into its requests, against samples from the vendors' documentation."""

import json
import struct
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import (
    Failed,
    Fault,
    PartialFailure,
    Paused,
    Rejected,
    Retryable,
    Success,
)
from penstock.router.sinks.elasticsearch.sink import classify_items
from penstock.router.sinks.prometheus import STALE
from penstock.router.sinks.splunk_hec import classify_answer
from penstock.router.transforms.mappings import PRESETS
from tests.support import protobuf_bytes
from tests.support.recorded_sink import RecordedSink, sent
from tests.support.sink_batches import (
    NOW_NS,
    batch,
    gauge_record,
    log_record,
    span_record,
)

NOW_S = NOW_NS // 10**9


def bodies(name: str, directory: Path, records: list[Any], **keys: Any) -> list[bytes]:
    return sent(name, directory, records, **keys).bodies


def test_splunk_gets_events_one_after_the_other(tmp_path: Path) -> None:
    records = [log_record(1_500), b"\xff"]
    (body,) = bodies("splunk_hec", tmp_path, records, token="t", index="main")
    first, end = json.JSONDecoder().raw_decode(body.decode())
    second, _ = json.JSONDecoder().raw_decode(body.decode(), end)
    assert first == {
        "time": NOW_S + 0.000001,
        "host": "web-1",
        "source": "checkout",
        "sourcetype": "penstock:log",
        "index": "main",
        "event": log_record(1_500),
        "fields": {"penstock_id": "logs.5f2c19aa/0/0", "penstock_kind": "log"},
    }
    assert f'"time":{NOW_S}.000001'.encode() in body
    assert second["event"]["value_base64"] == "/w=="


@pytest.mark.parametrize("name", ["ecs", "splunk_cim", "loki"])
def test_what_a_transform_has_mapped_is_sent_as_it_is(tmp_path: Path, name: str) -> None:
    record = log_record(1_500)
    mapped = batch([record])
    value = orjson.dumps(PRESETS[name](record))
    mapped = mapped.set_column(
        mapped.column_names.index("value"), "value", pa.array([value], pa.binary())
    )
    kind = {"ecs": "elasticsearch", "splunk_cim": "splunk_hec", "loki": "loki"}[name]
    token = {"token": "t"} if kind == "splunk_hec" else {}
    (body,) = sent(kind, tmp_path, mapped, **token).bodies
    if name == "ecs":
        apart = {f"penstock.attributes.{key}": it for key, it in record["attributes"].items()}
        flat = {key: it for key, it in PRESETS[name](record).items() if key not in apart}
        grouped = {"penstock.attributes": record["attributes"]}
        assert json.loads(body.splitlines()[1]) == flat | grouped
    elif name == "splunk_cim":
        said = json.loads(body)
        assert said["event"] == PRESETS[name](record)
        assert (said["source"], said["host"], said["sourcetype"]) == (
            "checkout", "web-1", "penstock:log",
        )  # fmt: skip
        assert abs(said["time"] - NOW_S) < 0.001
    else:
        (stream,) = json.loads(body)["streams"]
        assert stream["stream"] == PRESETS[name](record)["labels"]
        assert stream["values"][0][:2] == [str(NOW_NS + 1_500), "order 1500 ☃"]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_values_that_json_has_no_numbers_for_reach_each_sink_in_its_way(
    tmp_path: Path, word: str
) -> None:
    record = gauge_record(0, value=word, exemplars=[{"time_unix_nano": 1, "value": word}])
    (written,) = bodies("prometheus", tmp_path, [record])
    assert struct.pack("<d", float(word)) in pa.decompress(
        written, codec="snappy", decompressed_size=1000, asbytes=True
    )
    (sent,) = bodies("otlp", tmp_path, [record])
    request = ExportMetricsServiceRequest.FromString(sent)
    (point,) = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert struct.pack("<d", point.as_double) == struct.pack("<d", float(word))
    (event,) = bodies("splunk_hec", tmp_path, [record], token="t")
    assert json.loads(event)["event"] == record
    for documents, prefix in (("ecs", "penstock."), ("record", "")):
        (body,) = bodies("elasticsearch", tmp_path, [record], documents=documents)
        document = json.loads(body.splitlines()[1])
        assert (f"{prefix}value" in document, document[f"{prefix}value_not_finite"]) == (
            False,
            word,
        )
        assert document[f"{prefix}exemplars"] == [{"time_unix_nano": 1, "value_not_finite": word}]


def test_a_sink_whose_names_merge_metrics_says_so(tmp_path: Path) -> None:
    records = [gauge_record(0, name=name) for name in ("a.b", "a_b", "a.b", "A.b", "a/b")]
    with capture_logs() as logs:
        outcome = sent("prometheus", tmp_path, records)
    assert len(outcome.requests) == 1
    assert outcome.counted["names_merged"] == 2
    assert [(it["names"], it["metric"]) for it in logs] == [
        (["a.b", "a_b"], "a_b_bytes"), (["a.b", "a/b"], "a_b_bytes"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["splunk_hec", "elasticsearch", "loki", "otlp", "prometheus"])
@pytest.mark.parametrize(
    "record",
    [
        {"kind": "log"},
        {"kind": "metric", "metric_type": [], "time_unix_nano": {}, "name": 3},
        {"kind": "span", "time_unix_nano": -1, "status_code": "ODD", "resource": 3},
        {"kind": "log", "time_unix_nano": 10**18, "attributes": [], "context": "x", "body": {}},
        {"kind": "log", "time_unix_nano": 2**63, "severity_number": "9", "resource": None},
        {"kind": "log", "labels": [], "timestamp": "1", "line": "x", "metadata": 3},
    ],
)
def test_a_record_that_breaks_its_spec_blocks_no_sink(
    tmp_path: Path, name: str, record: dict[str, Any]
) -> None:
    """It is sent as what it is, or is a dead letter."""
    token = {"token": "t"} if name == "splunk_hec" else {}
    outcome = sent(name, tmp_path, [record], **token)
    assert len(outcome.requests) + len(outcome.dead_letters) == 1
    assert all(outcome.bodies)
    assert outcome.problem is None


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (200, {"text": "Success", "code": 0}, Success()),
        (200, {"text": "Success", "code": 24}, Success()),
        (503, {"text": "Server is busy", "code": 9}, Retryable),
        (429, {"code": 26}, Retryable),
        (401, {"code": 3}, Paused),
        (403, {"code": 4}, Paused),
        (400, {"text": "Data channel is missing", "code": 10}, Paused),
        (500, {"text": "Internal server error", "code": 8}, Failed),
        (400, {"text": "Invalid data format", "code": 6}, Rejected),
        (404, {}, Paused),
    ],
)
def test_splunks_codes_say_more_than_https(status: int, said: Any, expected: Any) -> None:
    found = classify_answer(HttpResponse(status, {}, orjson.dumps(said)), said, 3)
    assert found == expected if isinstance(expected, Success) else type(found) is expected


def test_what_is_before_the_event_that_splunk_names_is_indexed() -> None:
    said = {"text": "Event field is required", "code": 12, "invalid-event-number": 1}
    text = "Splunk says 'Event field is required' (code 12)"
    fault = Fault("splunk_12", text, 400, about_record=True)
    assert classify_answer(HttpResponse(400, {}, b""), said, 4) == PartialFailure(
        refused=((1, fault),), again=(2, 3)
    )


def test_an_incorrect_index_may_be_that_of_the_event_before() -> None:
    """So nobody is refused by the number alone."""
    said = {"text": "Incorrect index", "code": 7, "invalid-event-number": 3}
    assert classify_answer(HttpResponse(400, {}, b""), said, 5) == PartialFailure(again=(2, 3, 4))
    assert (
        type(classify_answer(HttpResponse(400, {}, b""), said | {"invalid-event-number": 1}, 5))
        is Rejected
    )


def test_elasticsearch_gets_an_action_and_a_document_for_each_record(tmp_path: Path) -> None:
    records = [log_record(7), b"plain"]
    (body,) = bodies("elasticsearch", tmp_path, records, index="{kind}-{service}")
    action, document, second, plain = (json.loads(line) for line in body.splitlines())
    assert action == {"create": {"_index": "log-checkout", "_id": "logs.5f2c19aa-0-0"}}
    assert document["@timestamp"].endswith(".000000007Z")
    assert (document["message"], document["service.name"]) == ("order 7 ☃", "checkout")
    assert second == {"create": {"_index": "raw-unknown", "_id": "logs.5f2c19aa-0-1"}}
    assert plain["message"] == "plain"
    assert body.endswith(b"\n")


def test_each_document_has_an_outcome_of_its_own() -> None:
    def item(status: int, kind: str = "") -> dict[str, Any]:
        return {"create": {"status": status, "error": {"type": kind, "reason": "r"}}}

    said = {"errors": True, "items": [item(s, "k") for s in (201, 409, 429, 400, 500)]}
    found = classify_items(HttpResponse(200, {}, orjson.dumps(said)), 5)
    assert found == PartialFailure(
        refused=((3, Fault("http_400", "400 k: r", 400)),),
        failed=((4, Fault("http_500", "500 k: r", 500)),),
        again=(2,),
        reason="429 k: r; 500 k: r",
    )


@pytest.mark.parametrize("body", [b"", b"[]", b'{"errors":true,"items":[]}', b'{"items":[]}'])
def test_an_answer_that_does_not_name_every_document_proves_nothing(body: bytes) -> None:
    assert type(classify_items(HttpResponse(200, {}, body), 2)) is Failed


def test_loki_gets_lines_by_stream_with_what_identifies_them(tmp_path: Path) -> None:
    records = [log_record(0), log_record(1), span_record(2)]
    (body,) = bodies("loki", tmp_path, records, labels={"app": "resource.service.name"})
    (stream,) = json.loads(body)["streams"]
    assert stream["stream"] == {"app": "checkout"}
    (time_text, line, metadata), _, (_, span_line, span_metadata) = stream["values"]
    assert (time_text, line) == (str(NOW_NS), "order 0 ☃")
    assert metadata["penstock_id"] == "logs.5f2c19aa/0/0"
    assert metadata["http_route"] == "/orders"
    assert metadata["tags"] == '["a","b"]'
    assert json.loads(span_line) == span_record(2)
    assert span_metadata["trace_id"] == f"{3:032x}"


def test_lokis_metadata_stays_within_its_limits(tmp_path: Path) -> None:
    many = log_record(0, attributes={f"a{number}": "x" * 1000 for number in range(500)})
    (body,) = bodies("loki", tmp_path, [many])
    metadata = json.loads(body)["streams"][0]["values"][0][2]
    assert len(metadata) <= 128
    assert sum(len(k) + len(v) for k, v in metadata.items()) < 64 * 1024
    short = log_record(0, attributes={f"a{number}": "x" for number in range(500)})
    (body,) = bodies("loki", tmp_path, [short])
    assert len(json.loads(body)["streams"][0]["values"][0][2]) == 101, "with its penstock_id"


def test_of_lokis_metadata_only_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    large = "☃" * 16 * 1024  # 48 KiB
    attributes = {"before": "b", "large": large, "after": "a"}
    (body,) = bodies("loki", tmp_path, [log_record(0, attributes=attributes)])
    metadata = json.loads(body)["streams"][0]["values"][0][2]
    assert (metadata["before"], metadata["after"], "large" in metadata) == ("b", "a", False)


def write_request(directory: Path, records: list[Any]) -> list[tuple[dict[str, str], float, int]]:
    """Labels, value and milliseconds of each series."""
    (packed,) = bodies("prometheus", directory, records)
    size, shift = 0, 0
    for byte in packed:  # Snappy's preamble is the length as a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    request = protobuf_bytes.decode(pa.decompress(packed, size, codec="snappy", asbytes=True))
    found = []
    for series in map(protobuf_bytes.decode, request[1]):
        pairs = [protobuf_bytes.decode(label) for label in series[1]]
        labels = [(pair[1][0].decode(), pair[2][0].decode()) for pair in pairs]
        assert labels == sorted(labels)
        sample = protobuf_bytes.decode(protobuf_bytes.one(series, 2))
        found.append((dict(labels), struct.unpack("<d", sample[1][0])[0], sample[2][0]))
    return found


def test_a_gauge_is_a_sample_named_as_opentelemetry_says(tmp_path: Path) -> None:
    assert write_request(tmp_path, [gauge_record(3)]) == [
        (
            {
                "__name__": "queue_depth_bytes", "instance": "i-1", "job": "checkout",
                "number": "n3",
            },
            3.5,
            NOW_NS // 10**6,
        )
    ]  # fmt: skip


def test_a_monotonic_sum_ends_in_total_and_a_histogram_has_buckets(tmp_path: Path) -> None:
    total = gauge_record(
        0, metric_type="sum", is_monotonic=True, temporality="cumulative", unit="s"
    )
    buckets = gauge_record(
        0, metric_type="histogram", name="http.server.duration", unit="s", count=6, sum=1.5,
        temporality="cumulative", bucket_counts=[1, 2, 3], explicit_bounds=[0.5, 10], attributes={},
    )  # fmt: skip
    found = write_request(tmp_path, [total, buckets])
    assert found[0][0]["__name__"] == "queue_depth_seconds_total"
    assert [
        (labels["__name__"].removeprefix("http_server_duration_seconds"), labels.get("le"), value)
        for labels, value, _ in found[1:]
    ] == [
        ("_bucket", "0.5", 1), ("_bucket", "10", 3), ("_bucket", "+Inf", 6), ("_sum", None, 1.5),
        ("_count", None, 6),
    ]  # fmt: skip


def test_a_point_without_a_value_ends_its_series(tmp_path: Path) -> None:
    ended = {k: v for k, v in gauge_record(0).items() if k != "value"} | {"flags": 1}
    ((_, value, _),) = write_request(tmp_path, [ended])
    assert struct.pack("<d", value) == struct.pack("<d", STALE)
    assert struct.pack("<d", value).hex() == "020000000000f07f"


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (log_record(0), "not_a_metric"),
        (b"text", "not_a_metric"),
        (gauge_record(0, metric_type="sum", temporality="delta"), "not_encodable"),
        (gauge_record(0, metric_type="exponential_histogram"), "not_encodable"),
        (gauge_record(0, time_ns=NOW_NS + 3600 * 10**9), "in_the_future"),
        (gauge_record(0, value=None), "not_encodable"),
        (gauge_record(0, name=["of", "letters"]), "not_encodable"),
    ],
)
def test_what_remote_write_has_no_form_for_is_a_dead_letter(
    tmp_path: Path, record: Any, code: str
) -> None:
    assert sent("prometheus", tmp_path, [record]).codes == [code]


def test_otlp_shares_resources_and_scopes_and_writes_ids_as_bytes(tmp_path: Path) -> None:
    records = [log_record(0), span_record(1), log_record(2), gauge_record(3), b"\xff"]
    logs, traces, metrics = bodies("otlp", tmp_path, records)
    request = ExportLogsServiceRequest.FromString(logs)
    first, raw = request.resource_logs
    assert [record.body.string_value for record in first.scope_logs[0].log_records] == [
        "order 0 ☃", "order 2 ☃",
    ]  # fmt: skip
    assert first.scope_logs[0].schema_url == "penstock:log/1.0"
    assert raw.scope_logs[0].log_records[0].body.bytes_value == b"\xff"
    (span,) = ExportTraceServiceRequest.FromString(traces).resource_spans[0].scope_spans[0].spans
    assert (span.trace_id.hex(), span.kind, span.status.code) == (f"{2:032x}", 2, 2)
    (metric,) = (
        ExportMetricsServiceRequest.FromString(metrics).resource_metrics[0].scope_metrics[0].metrics
    )
    assert metric.gauge.data_points[0].as_double == 3.5


def test_a_partial_success_names_nobody(tmp_path: Path) -> None:
    response = ExportLogsServiceResponse()
    response.partial_success.rejected_log_records = 1
    response.partial_success.error_message = "too old"
    with RecordedSink("otlp", tmp_path) as made:
        outcome = made.write([log_record(0), log_record(1)], (200, response.SerializeToString()))
    assert len(outcome.requests) == 1
    assert [dead_letter["offset"] for dead_letter in outcome.dead_letters] == [0, 1]
    assert "all but 1 of the 2 records" in outcome.dead_letters[0]["reason"]
