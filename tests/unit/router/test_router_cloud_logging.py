"""What Google Cloud Logging is sent, and what its answers mean."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

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
from penstock.router.sinks.google_cloud_logging import (
    CloudLogging,
    CloudLoggingSink,
    classify_answer,
)
from tests.support.recorded_sink import RecordedSink, sent
from tests.support.sink_batches import NOW_NS, batch, context, log_record, span_record

DAY_NS = 86_400 * 10**9


def sink(directory: Path, **keys: Any) -> CloudLogging:
    settings = {"type": "google_cloud_logging", "project": "shop-prod", **keys}
    return CloudLogging(CloudLoggingSink.model_validate(settings), context(directory))


def entries(made: CloudLogging, *records: Any) -> list[dict[str, Any]]:
    (shown,) = made.preview(batch(list(records)))
    body = orjson.loads(shown.body)
    assert (body["partialSuccess"], body["resource"]["type"]) == (True, "global")
    found: list[dict[str, Any]] = body["entries"]
    return found


def test_an_entry_says_what_it_is_known_by(tmp_path: Path) -> None:
    record = log_record(5, trace_id="ab" * 16, span_id="cd" * 8, severity_number=13)
    (entry,) = entries(sink(tmp_path), record)
    payload = entry.pop("jsonPayload")
    assert entry == {
        "logName": "projects/shop-prod/logs/penstock-log",
        "insertId": "logs.5f2c19aa-0-0",
        "timestamp": entry["timestamp"],
        "severity": "WARNING",
        "labels": {"service": "checkout", "host": "web-1"},
        "trace": f"projects/shop-prod/traces/{'ab' * 16}",
        "spanId": "cd" * 8,
    }
    assert entry["timestamp"].endswith(".000000005Z")
    assert payload["message"] == "order 5 ☃"
    assert payload["attributes"] == record["attributes"]


def test_numbers_that_a_double_would_round_are_text(tmp_path: Path) -> None:
    (entry,) = entries(sink(tmp_path), log_record(1, attributes={"a": [2**53, 2**53 + 1, 1.5]}))
    assert entry["jsonPayload"]["attributes"]["a"] == [2**53, str(2**53 + 1), 1.5]
    assert entry["jsonPayload"]["time_unix_nano"] == str(NOW_NS + 1)


def test_a_span_and_a_row_that_is_no_record_are_entries(tmp_path: Path) -> None:
    span, raw = entries(sink(tmp_path, log="all/{kind}"), span_record(0), b"\xff")
    assert (span["severity"], span["jsonPayload"]["message"]) == ("ERROR", "GET /orders")
    assert span["logName"] == "projects/shop-prod/logs/all%2Fspan"
    assert raw["jsonPayload"]["value_base64"] == "/w=="


@pytest.mark.parametrize(("days", "code"), [(2, "in_the_future"), (-31, "too_old")])
def test_what_google_would_not_ingest_is_a_dead_letter(
    tmp_path: Path, days: int, code: str
) -> None:
    record = log_record(0, time_ns=NOW_NS + days * DAY_NS)
    outcome = sent("google_cloud_logging", tmp_path, [record], project="shop-prod")
    assert (outcome.requests, outcome.codes) == ((), [code])


def test_a_preview_asks_for_no_token(tmp_path: Path) -> None:
    made = sink(tmp_path, credentials_file=tmp_path / "nowhere.json")
    (shown,) = made.preview(batch([log_record(0)]))
    assert shown.target == "POST https://logging.googleapis.com:443/v2/entries:write"
    assert ("Authorization", "***") in shown.headers


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("{", "no service account's key"),
        ("{}", "missing fields"),
    ],
)
def test_credentials_that_are_none_pause_the_sink_and_are_not_shown(
    tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "account.json"
    if content is not None:
        file.write_text(content)
    keys: dict[str, Any] = {"project": "shop-prod", "credentials_file": file}
    with RecordedSink("google_cloud_logging", tmp_path, **keys) as made:
        outcome = made.write([log_record(0)])
    assert (outcome.circuit, outcome.requests) == ("paused", ())
    assert said in (outcome.problem or "")


def refused(**errors: int) -> bytes:
    kind = "type.googleapis.com/google.logging.v2.WriteLogEntriesPartialErrors"
    faults = {name[1:]: {"code": code, "message": "m"} for name, code in errors.items()}
    detail = {"@type": kind, "logEntryErrors": faults}
    return json.dumps({"error": {"code": 400, "details": [detail]}}).encode()


BAD = Fault("google_3", "Cloud Logging says 'm' (code 3)")
LATER = "Cloud Logging says 'm' (code 8)"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"{}", Success()),
        (204, b"", Paused),
        (400, refused(_1=3), PartialFailure(refused=((1, BAD),))),
        (429, refused(_0=8, _1=3), PartialFailure(refused=((1, BAD),), again=(0,), reason=LATER)),
        (400, refused(_7=3), Rejected),
        (400, b'{"error":{"code":400}}', Rejected),
        (400, b"<html>", Rejected),
        (401, b"", Paused),
        (403, b"", Paused),
        (404, b"", Paused),
        (409, b"", Retryable),
        (429, b"", Retryable),
        (500, b"", Failed),
        (503, b"", Retryable),
    ],
)
def test_an_answer_means_what_google_documents(status: int, body: bytes, expected: Any) -> None:
    found = classify_answer(HttpResponse(status, {}, body), 2, CloudLogging.differing)
    assert found == expected or (isinstance(expected, type) and isinstance(found, expected))


def test_more_than_google_takes_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="at most 10000000 bytes"):
        sink(tmp_path, batch={"max_bytes": 11_000_000})


def test_a_record_that_nests_too_deep_is_a_dead_letter(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    record = log_record(0) | {"attributes": {"deep": deep}}
    assert sent("google_cloud_logging", tmp_path, [record], project="shop-prod").codes == [
        "not_encodable"
    ]
