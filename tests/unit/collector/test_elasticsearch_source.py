"""The source elasticsearch, with requests as Beats, Fluent Bit and Logstash send them."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.collector.limits import KIB, SpoolWriterLimits
from tests.support.http_senders import serving

NDJSON = {"content-type": "application/x-ndjson"}
BEAT = {
    "@timestamp": "2025-11-27T18:40:00.125Z",
    "message": "slow",
    "log": {"level": "warn", "offset": 7},
    "service": {"name": "shop", "type": "http"},
    "host": {"name": "web-1"},
}
"""A document as Filebeat makes it, with fields of ECS."""


def bulk(*lines: Any) -> str:
    return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)


async def test_documents_become_records_each_with_its_outcome(tmp_path: Path) -> None:
    data = bulk(
        {"create": {"_index": "filebeat-9"}}, BEAT,
        {"index": {"_id": "mine"}}, {"level": "error", "message": "two"},
        {"delete": {"_index": "a", "_id": "1"}},
        {"update": {"_index": "a", "_id": "2"}}, {"doc": {}},
        {"create": {}}, "no object",
    )  # fmt: skip
    async with serving(tmp_path, "elasticsearch") as sender:
        answer = await sender.post("/logs-app/_bulk?pipeline=x", data, headers=NDJSON)
        assert answer.status_code == 200
        assert answer.headers["x-elastic-product"] == "Elasticsearch"
        said = answer.json()
        assert said["errors"] is True
        outcomes = [(name, it["status"]) for one in said["items"] for name, it in one.items()]
        assert outcomes == [
            ("create", 201), ("index", 201), ("delete", 400), ("update", 400), ("create", 400),
        ]  # fmt: skip
        assert said["items"][1]["index"] == {
            "_index": "logs-app", "_id": "mine", "_version": 1, "result": "created", "status": 201,
        }  # fmt: skip
        assert said["items"][4]["create"]["error"]["type"] == "document_parsing_exception"
        one, two = sender.records
        assert (one["body"], one["severity_text"]) == ("slow", "WARN")
        assert one["time_unix_nano"] == 1764268800_125_000_000
        assert one["resource"]["service.name"] == "shop"
        assert one["resource"]["host.name"] == "web-1"
        assert one["attributes"] == {
            "log.offset": 7, "service.type": "http", "elasticsearch.index": "filebeat-9",
        }  # fmt: skip
        assert (two["body"], two["resource"]["service.name"]) == ("two", "logs-app")
        assert sender.counted == {
            "items_refused": 3, "document_ids_dropped": 1, "queries_ignored": 1,
        }  # fmt: skip


async def test_what_a_record_has_not_of_an_action_is_counted(tmp_path: Path) -> None:
    data = bulk(
        {"index": {"_index": "a", "_type": "_doc", "routing": "r", "pipeline": "p"}}, {"m": "1"},
        {"create": {"_id": "x", "require_alias": True}}, {"m": "2"},
    )  # fmt: skip
    async with serving(tmp_path, "elasticsearch") as sender:
        assert (await sender.post("/a/_bulk", data, headers=NDJSON)).status_code == 200
        assert sender.counted == {"document_ids_dropped": 1, "action_options_dropped": 3}
        found = await sender.ask("PUT", "/a/_doc/7?refresh=true", '{"m": "3"}')
        assert found.status_code == 201
        counted = sender.counted
        assert (counted["document_ids_dropped"], counted["queries_ignored"]) == (2, 1)


async def test_a_document_that_the_validator_refuses_is_a_failed_item(tmp_path: Path) -> None:
    wide = {f"k{n}": "x" * 30_000 for n in range(10)}
    async with serving(tmp_path, "elasticsearch") as sender:
        data = bulk({"index": {}}, {"message": "one"}, {"index": {}}, wide)
        said = (await sender.post("/_bulk", data, headers=NDJSON)).json()
        assert [it["index"]["status"] for it in said["items"]] == [201, 400]
        assert "in quarantine: " in said["items"][1]["index"]["error"]["reason"]
        answer = await sender.post("/a/_doc", json.dumps(wide))
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            400, "illegal_argument_exception",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "request body is required"),
        ('{"index": {}}\n{}', "must be terminated by a newline"),
        (bulk({"look": {}}, {}), "Malformed action/metadata line [1]"),
        (bulk({"index": {}}, {}, "[]"), "Malformed action/metadata line [3]"),
        (bulk({"index": {}, "create": {}}, {}), "Malformed action/metadata line [1]"),
        (bulk(*[{"delete": {}}] * 11), "more than 10 actions"),
    ],
)
async def test_what_is_no_bulk_request_is_refused_whole(
    tmp_path: Path, data: str, reason: str
) -> None:
    limits = SpoolWriterLimits(max_request_records=10)
    async with serving(tmp_path, "elasticsearch", spool={"limits": limits}) as sender:
        answer = await sender.post("/_bulk", data, headers=NDJSON)
        assert answer.status_code == 400
        said = answer.json()
        assert (said["status"], said["error"]["type"]) == (400, "illegal_argument_exception")
        assert reason in said["error"]["reason"]
        assert sender.records == []


async def test_single_documents_are_taken(tmp_path: Path) -> None:
    async with serving(tmp_path, "elasticsearch", service="docs") as sender:
        answer = await sender.post("/a/_doc", '{"message": "one"}')
        assert (answer.status_code, answer.json()["result"]) == (201, "created")
        answer = await sender.ask("PUT", "/a/_create/7", '{"message": "two"}')
        assert (answer.status_code, answer.json()["_id"]) == (201, "7")
        assert (await sender.post("/a/_doc", "[]")).status_code == 400
        assert sender.bodies == ["one", "two"]
        assert {one["resource"]["service.name"] for one in sender.records} == {"docs"}


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", {"tagline": "You Know, for Search"}),
        ("GET", "/_license", {"license": {"status": "active"}}),
        ("GET", "/_xpack?filter_path=license", {"features": {"ilm": {"available": True}}}),
        ("GET", "/_cluster/health", {"status": "green"}),
        ("GET", "/_ilm/policy/filebeat", {"filebeat": {"version": 1}}),
        ("GET", "/_index_template/filebeat", {"index_templates": [{"name": "filebeat"}]}),
        ("GET", "/_data_stream/filebeat", {"data_streams": [{"name": "filebeat"}]}),
        ("GET", "/_ingest/pipeline/a", {"a": {}}),
        ("HEAD", "/_alias/filebeat", None),
        ("HEAD", "/filebeat-9", None),
        ("PUT", "/_index_template/filebeat", {"acknowledged": True}),
        ("PUT", "/_template/ecs-logstash", {"acknowledged": True}),
        ("PUT", "/filebeat-9", {"acknowledged": True}),
    ],
)
async def test_what_senders_ask_before_they_begin_is_answered(
    tmp_path: Path, method: str, path: str, expected: Any
) -> None:
    async with serving(tmp_path, "elasticsearch") as sender:
        answer = await sender.ask(method, path, "{}" if method == "PUT" else b"")
        assert answer.status_code == 200
        assert answer.headers["x-elastic-product"] == "Elasticsearch"
        assert expected is None or holds(answer.json(), expected)
        assert sender.counted == ({"setups_ignored": 1} if method == "PUT" else {})


def holds(found: Any, expected: Any) -> bool:
    """Whether an object has what is expected of it, at least."""
    if isinstance(expected, dict):
        return all(key in found and holds(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    return bool(found == expected)


async def test_what_it_cannot_do_is_said_as_elasticsearch_says_it(tmp_path: Path) -> None:
    async with serving(tmp_path, "elasticsearch") as sender:
        answer = await sender.post("/logs/_search", "{}")
        assert answer.status_code == 400
        reason = "no handler found for uri [/logs/_search] and method [POST]"
        assert answer.json()["error"]["reason"] == reason


async def test_a_sender_shows_its_api_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ApiKey a2V5")
    auth = {"scheme": "header", "header": "authorization", "token_file": tmp_path / "key"}
    async with serving(tmp_path, "elasticsearch", auth=auth) as sender:
        data = bulk({"index": {}}, {"message": "a"})
        head = {**NDJSON, "authorization": "ApiKey a2V5"}
        assert (await sender.post("/_bulk", data, headers=head)).status_code == 200
        answer = await sender.post("/_bulk", data, headers=NDJSON)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "security_exception")


async def test_a_full_spool_and_too_much_at_once_are_to_be_sent_again(tmp_path: Path) -> None:
    spool = {"drop_newest": True, "spool_bytes": 64 * KIB, "share_bytes": 64 * KIB}
    async with serving(tmp_path, "elasticsearch", spool=spool) as sender:
        data = bulk({"index": {}}, {"message": "x" * 20_000})
        while (answer := await sender.post("/_bulk", data, headers=NDJSON)).status_code == 200:
            pass
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        data = bulk({"index": {}}, {"message": "x" * 70_000})
        answer = await sender.post("/_bulk", data, headers=NDJSON)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert answer.json()["error"]["type"] == "es_rejected_execution_exception"
