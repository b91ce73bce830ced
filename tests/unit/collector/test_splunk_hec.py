"""The source splunk_hec, with requests as Splunk's documentation and Docker's driver write them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.limits import KIB, LINE_BYTES_MAX
from tests.support.http_senders import HttpSender, serving

EVENT = "/services/collector/event"
RAW = "/services/collector/raw"
ACK = "/services/collector/ack"
CHANNEL = "fe0ecfad-13d5-401b-847d-77833bd77131"
TOKEN = {"authorization": "Splunk secret"}
DOCKER = (
    b'{"event":{"line":"one","source":"stdout","tag":"c0ffee","attrs":{"team":"shop"}},'
    b'"time":"1764268800.250000","host":"node-1"}'
    b'{"event":{"line":{"level":"error","message":"two"},"source":"stderr","tag":"c0ffee"},'
    b'"time":"1764268801.000000","host":"node-1","sourcetype":"till"}'
)
"""Two messages of one batch of Docker's driver: `splunk-format` inline, and json."""


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


async def test_events_become_records_that_are_durable_when_they_are_accepted(
    tmp_path: Path,
) -> None:
    events = [
        {"time": 1764268800.125, "host": "web-1", "source": "/var/log/a", "sourcetype": "shop",
         "index": "main", "event": {"level": "warn", "message": "slow", "took": 3},
         "fields": {"region": "eu", "tags": ["a", "b"]}},
        {"event": '{"level": "error", "message": "as text"}'},
        {"event": [1, "two"]},
    ]  # fmt: skip
    body = " \n".join(map(json.dumps, events))
    async with serving(tmp_path, "splunk_hec") as sender:
        answer = await sender.post(EVENT, body)
        assert (answer.status_code, answer.json()) == (200, {"text": "Success", "code": 0})
        first, second, third = sender.records
        assert first["time_unix_nano"] == 1764268800_125_000_000
        assert (first["severity_text"], first["body"]) == ("WARN", "slow")
        assert first["resource"] == {"site": "a", "service.name": "shop", "host.name": "web-1"}
        assert first["attributes"] == {
            "took": 3, "com.splunk.source": "/var/log/a", "com.splunk.sourcetype": "shop",
            "com.splunk.index": "main", "region": "eu", "tags": ["a", "b"],
        }  # fmt: skip
        assert (second["severity_text"], second["body"]) == ("ERROR", "as text")
        assert second["resource"]["service.name"] == "splunk_hec"
        assert third["body"] == '[1, "two"]'


async def test_a_batch_of_dockers_driver_is_its_lines(tmp_path: Path) -> None:
    async with serving(tmp_path, "splunk_hec", service="containers") as sender:
        asked = await sender.ask("OPTIONS", f"{EVENT}/1.0")
        assert asked.status_code == 200, "the driver asks before it sends"
        head = {"content-encoding": "gzip", "content-type": "application/json"}
        answer = await sender.post(f"{EVENT}/1.0", gzip.compress(DOCKER), headers=head)
        assert answer.status_code == 200
        one, two = sender.records
        assert (one["body"], one["time_unix_nano"]) == ("one", 1764268800_250_000_000)
        assert one["attributes"] == {
            "log.iostream": "stdout", "docker.tag": "c0ffee", "team": "shop",
        }  # fmt: skip
        assert (two["body"], two["severity_text"]) == ("two", "ERROR")
        assert two["attributes"]["log.iostream"] == "stderr"
        assert one["resource"]["host.name"] == "node-1"


async def test_a_metric_becomes_its_points(tmp_path: Path) -> None:
    several = {"metric_name:cpu.user": 42.5, "metric_name:cpu.idle": "3", "core": "0"}
    single = {"metric_name": "load", "_value": 1, "core": "1"}
    events = [{"event": "metric", "time": 1764268800, "fields": it} for it in (several, single)]
    async with serving(tmp_path, "splunk_hec") as sender:
        assert (await sender.post(EVENT, "".join(map(json.dumps, events)))).status_code == 200
        found = [(one["name"], one["value"], one["attributes"]) for one in sender.records]
        assert found == [
            ("cpu.user", 42.5, {"core": "0"}), ("cpu.idle", 3.0, {"core": "0"}),
            ("load", 1.0, {"core": "1"}),
        ]  # fmt: skip


async def test_lines_are_taken_with_what_the_query_says(tmp_path: Path) -> None:
    query = "?host=web-1&sourcetype=shop&time=1764268800&source=a%20b"
    async with serving(tmp_path, "splunk_hec") as sender:
        answer = await sender.post(f"{RAW}{query}", "one\r\n\ntwo")
        assert answer.json() == {"text": "Success", "code": 0}
        assert sender.bodies == ["one", "two"]
        first = sender.records[0]
        assert first["time_unix_nano"] == 1764268800_000_000_000
        assert first["resource"]["host.name"] == "web-1"
        assert first["attributes"]["com.splunk.source"] == "a b"


@pytest.mark.parametrize(
    ("path", "data", "said"),
    [
        (EVENT, "", {"code": 5, "text": "No data"}),
        (RAW, "\n\n", {"code": 5}),
        (EVENT, '{"event": "a"}{"event', {"code": 6, "invalid-event-number": 1}),
        (EVENT, '[{"event": "a"}]', {"code": 6, "invalid-event-number": 0}),
        (EVENT, b'{"event": "\xff"}', {"code": 6}),
        (EVENT, '{"event": "a"}{"time": 5}', {"code": 12, "invalid-event-number": 1}),
        (EVENT, '{"event": ""}', {"code": 13, "invalid-event-number": 0}),
        (EVENT, '{"event": "a", "fields": {"b": {}}}', {"code": 15, "invalid-event-number": 0}),
        (EVENT, '{"event": "metric", "fields": {"a": 1}}', {"code": 15}),
        (ACK, '{"acks": [0]}', {"code": 14, "text": "ACK is disabled"}),
    ],
)
async def test_refusals_are_splunks_and_nothing_is_kept(
    tmp_path: Path, path: str, data: Any, said: dict[str, Any]
) -> None:
    async with serving(tmp_path, "splunk_hec") as sender:
        answer = await sender.post(path, data)
        assert answer.status_code == 400
        assert said.items() <= answer.json().items()
        assert sender.records == []


async def test_what_is_unknown_is_counted_and_what_is_long_is_cut(tmp_path: Path) -> None:
    event = {"event": "x" * (LINE_BYTES_MAX + 1), "time": "soon", "color": "red"}
    async with serving(tmp_path, "splunk_hec") as sender:
        assert (await sender.post(EVENT, json.dumps(event))).status_code == 200
        (record,) = sender.records
        assert record["attributes"] == {"log.record.truncated": True}
        assert sender.counted == {
            "hec_keys_unknown": 1, "records_truncated": 1, "timestamps_unreadable": 1,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("head", "query", "status", "code"),
    [
        (TOKEN, "", 200, 0),
        ({"authorization": "Basic eDpzZWNyZXQ="}, "", 200, 0),
        ({}, "", 401, 2),
        ({"authorization": "Bearer secret"}, "", 401, 3),
        ({"authorization": "Splunk other"}, "", 403, 4),
        ({}, "?token=secret", 400, 16),
    ],
)
async def test_a_sender_shows_the_token(
    tmp_path: Path, token: Path, head: dict[str, str], query: str, status: int, code: int
) -> None:
    async with serving(tmp_path, "splunk_hec", auth={"token_file": token}) as sender:
        answer = await sender.post(EVENT + query, '{"event": "a"}', headers=head)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert len(sender.records) == (status == 200)
        assert (await sender.ask("GET", "/services/collector/health")).json()["code"] == 17


async def test_the_token_may_stand_in_the_query_where_that_is_configured(
    tmp_path: Path, token: Path
) -> None:
    auth = {"token_file": token, "query_string": True}
    async with serving(tmp_path, "splunk_hec", auth=auth) as sender:
        assert (await sender.post(f"{EVENT}?token=secret", '{"event": "a"}')).status_code == 200
        assert (await sender.post(f"{EVENT}?token=other", '{"event": "a"}')).status_code == 403


async def acks(sender: HttpSender, channel: str, *ids: int) -> list[bool]:
    answer = await sender.post(f"{ACK}?channel={channel}", json.dumps({"acks": ids}))
    assert answer.status_code == 200
    return [answer.json()["acks"][str(one)] for one in ids]


async def test_acknowledgements_say_what_is_durable_in_a_bounded_number_of_channels(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"acknowledgement": True, "max_channels": 1}
    async with serving(tmp_path, "splunk_hec", **options) as sender:
        for number in range(2):
            head = {"x-splunk-request-channel": CHANNEL}
            answer = await sender.post(EVENT, '{"event": "a"}', headers=head)
            assert answer.json() == {"text": "Success", "code": 0, "ackId": number}
        assert await acks(sender, CHANNEL.upper(), 0, 1, 2) == [True, True, False]
        other = CHANNEL.replace("f", "e")
        assert (await sender.post(f"{RAW}?channel={other}", "b")).json()["ackId"] == 0
        assert await acks(sender, CHANNEL, 0) == [False], "it is to be sent again"
        assert sender.counted == {"channels_forgotten": 1}
        for head, code in ({}, 10), ({"x-splunk-request-channel": "mine"}, 11):
            answer = await sender.post(EVENT, '{"event": "a"}', headers=head)
            assert (answer.status_code, answer.json()["code"]) == (400, code)
        assert (await sender.post(f"{ACK}?channel={CHANNEL}", "[1]")).json()["code"] == 6
        assert len(sender.records) == 3


async def test_a_full_spool_and_too_much_at_once_are_a_busy_server(tmp_path: Path) -> None:
    spool = {"drop_newest": True, "spool_bytes": 64 * KIB, "share_bytes": 64 * KIB}
    body = json.dumps({"event": "x" * 20_000})
    async with serving(tmp_path, "splunk_hec", spool=spool) as sender:
        taken = 0
        while (answer := await sender.post(EVENT, body)).status_code == 200:
            taken += 1
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "2"
        assert (answer.json()["text"], answer.json()["code"]) == ("Server is busy", 9)
        assert len(sender.records) == taken
        answer = await sender.post(EVENT, json.dumps({"event": "x" * 70_000}))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert answer.json()["code"] == 9


async def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, "splunk_hec") as sender:
        assert (await sender.post("/services/other", "a")).status_code == 404
        answer = await sender.ask("GET", EVENT)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")
