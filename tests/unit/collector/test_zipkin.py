"""The source zipkin, with lists of spans as Zipkin's API describes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.limits import KIB
from tests.support.http_senders import serving

SPANS = "/api/v2/spans"
JSON = {"content-type": "application/json"}
TIME_US = 1764268800_123_456
SPAN = {
    "traceId": "463ac35c9f6413ad48485a3953bb6124", "id": "A2fb4a1d1a96d312",
    "parentId": "0020000000000001", "name": "get /order", "kind": "CLIENT",
    "timestamp": TIME_US, "duration": 207_000, "debug": True, "shared": False,
    "localEndpoint": {"serviceName": "shop", "ipv4": "10.0.0.1", "port": 80},
    "remoteEndpoint": {"serviceName": "stock", "ipv6": "::1"},
    "annotations": [{"timestamp": TIME_US + 5, "value": "retried"}],
    "tags": {"http.path": "/order", "error": "timeout", "otel.scope.name": "till"},
}  # fmt: skip


def span(**more: Any) -> str:
    return json.dumps([{"traceId": "ab" * 8, "id": "1", "timestamp": TIME_US, **more}])


async def test_spans_become_records(tmp_path: Path) -> None:
    async with serving(tmp_path, "zipkin") as sender:
        answer = await sender.post(SPANS, json.dumps([SPAN]), headers=JSON)
        assert (answer.status_code, answer.content) == (202, b"")
        (record,) = sender.records
        del record["observed_time_unix_nano"]
        assert record == {
            "schema": "span/1.0", "kind": "span",
            "trace_id": "463ac35c9f6413ad48485a3953bb6124", "span_id": "a2fb4a1d1a96d312",
            "parent_span_id": "0020000000000001", "name": "get /order", "span_kind": "CLIENT",
            "time_unix_nano": TIME_US * 1000, "end_time_unix_nano": (TIME_US + 207_000) * 1000,
            "status_code": "ERROR", "status_message": "timeout", "scope": "till",
            "resource": {"site": "a", "service.name": "shop"},
            "events": [{"name": "retried", "time_unix_nano": (TIME_US + 5) * 1000}], "links": [],
            "attributes": {
                "http.path": "/order", "network.local.address": "10.0.0.1",
                "network.local.port": 80, "network.peer.address": "::1", "peer.service": "stock",
                "zipkin.debug": True,
            },
        }  # fmt: skip


async def test_a_short_span_has_zeros_before_its_ids_and_its_end_at_its_start(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, "zipkin") as sender:
        assert (await sender.post(SPANS, span())).status_code == 202
        (record,) = sender.records
        assert record["trace_id"] == "0" * 16 + "ab" * 8
        assert record["span_id"] == "0" * 15 + "1"
        assert record["end_time_unix_nano"] == record["time_unix_nano"] == TIME_US * 1000
        assert (record["name"], record["span_kind"]) == ("unnamed", "INTERNAL")
        assert (record["status_code"], record["resource"]["service.name"]) == ("UNSET", "zipkin")


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ({"error": "true"}, ("ERROR", None)),
        ({"error": ""}, ("ERROR", None)),
        ({"error": "false"}, ("UNSET", None)),
        ({"otel.status_code": "OK"}, ("OK", None)),
        ({"otel.status_code": "ERROR", "error": "late"}, ("ERROR", "late")),
    ],
)
async def test_tags_say_the_status(tmp_path: Path, tags: dict[str, str], status: Any) -> None:
    async with serving(tmp_path, "zipkin") as sender:
        assert (await sender.post(SPANS, span(tags=tags))).status_code == 202
        (record,) = sender.records
        assert (record["status_code"], record.get("status_message")) == status
        assert record["attributes"] == {}


@pytest.mark.parametrize(
    ("head", "data", "status", "message"),
    [
        (JSON, "{", 400, "not JSON"),
        (JSON, "{}", 400, "a list is expected"),
        (JSON, "[5]", 400, "span 0"),
        (JSON, span(traceId="xyz"), 400, "the id 'xyz' is none"),
        (JSON, span(id="0" * 16), 400, "is none"),
        (JSON, span(id=5), 400, "span 0: TypeError"),
        (JSON, '[{"id": "1"}]', 400, "span 0: KeyError: 'traceId'"),
        (JSON, span(tags=[1]), 400, "span 0: AttributeError"),
        ({"content-type": "application/x-protobuf"}, b"", 415, "is not application/json"),
    ],
)
async def test_refusals_are_text_and_nothing_is_kept(
    tmp_path: Path, head: dict[str, str], data: Any, status: int, message: str
) -> None:
    async with serving(tmp_path, "zipkin") as sender:
        answer = await sender.post(SPANS, data, headers=head)
        assert answer.status_code == status
        assert message in answer.text
        assert sender.records == []


async def test_what_is_not_understood_or_has_no_place_is_counted(tmp_path: Path) -> None:
    notes = [{"timestamp": 0, "value": "a"}]
    async with serving(tmp_path, "zipkin") as sender:
        for given in {"timestamp": None}, {"duration": -1}, {"annotations": notes * 200}:
            assert (await sender.post(SPANS, span(**given))).status_code == 202
        assert sender.counted == {"timestamps_unreadable": 201, "durations_unreadable": 1}
        assert sender.records[2]["dropped_events_count"] == 72


async def test_what_a_span_has_no_place_for_is_counted(tmp_path: Path) -> None:
    both = {"ipv4": "10.0.0.1", "ipv6": "::2"}
    tags = {"otel.status_code": "FINE"}
    async with serving(tmp_path, "zipkin") as sender:
        given = span(kind="BATCH", colour="red", remoteEndpoint=both, tags=tags)
        assert (await sender.post(SPANS, given)).status_code == 202
        assert sender.counted == {
            "fields_unknown": 1, "kinds_unknown": 1, "statuses_unknown": 1, "addresses_dropped": 1,
        }  # fmt: skip


async def test_a_sender_shows_its_token_and_anybody_asks_for_its_health(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    async with serving(tmp_path, "zipkin", auth={"token_file": tmp_path / "token"}) as sender:
        assert (await sender.ask("GET", "/health")).json() == {"status": "UP"}
        assert (await sender.post(SPANS, span())).status_code == 401
        head = {"authorization": "Bearer secret"}
        assert (await sender.post(SPANS, span(), headers=head)).status_code == 202


async def test_a_full_spool_and_too_much_at_once_are_to_be_sent_again(tmp_path: Path) -> None:
    spool = {"drop_newest": True, "spool_bytes": 64 * KIB, "share_bytes": 64 * KIB}
    async with serving(tmp_path, "zipkin", spool=spool) as sender:
        while (answer := await sender.post(SPANS, span(tags={"a": "x" * 20_000}))).ok:
            pass
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        answer = await sender.post(SPANS, span(tags={"a": "x" * 70_000}))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
