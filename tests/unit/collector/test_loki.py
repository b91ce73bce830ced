"""The source loki, with pushes in JSON and in protobuf as Loki's documentation describes them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.collector.decode.senders.loki import PUSH, read_labels
from penstock.collector.errors import RemoteProtocolError
from penstock.collector.limits import KIB, MIB
from tests.support.http_senders import serving

PUSHES = "/loki/api/v1/push"
JSON = {"content-type": "application/json"}
PROTOBUF = {"content-type": "application/x-protobuf"}
TIME_NS = 1764268800_123_456_789
TRACE = "0af7651916cd43dd8448eb211c80319c"


def pushed(*values: list[Any], **labels: str) -> str:
    return json.dumps({"streams": [{"stream": labels or {"app": "shop"}, "values": values}]})


def snappy(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return packed


def protobuf(line: bytes = b"one", labels: str = '{app="shop", env="prod"}') -> bytes:
    request = PUSH()
    stream = request.streams.add(labels=labels)
    entry = stream.entries.add(line=line)
    entry.timestamp.seconds, entry.timestamp.nanos = divmod(TIME_NS, 10**9)
    entry.structured_metadata.add(name="trace_id", value=TRACE)
    body: bytes = request.SerializeToString()
    return body


async def test_lines_with_labels_and_metadata_become_records(tmp_path: Path) -> None:
    data = pushed(
        [str(TIME_NS), "one", {"trace_id": TRACE, "pod": "a-1"}],
        [str(TIME_NS), '{"level": "error", "message": "two", "time": "2025-11-27T18:40:00Z"}'],
        app="shop", env="prod", level="warning",
    )  # fmt: skip
    head = {**JSON, "x-scope-orgid": "team-a"}
    async with serving(tmp_path, "loki") as sender:
        answer = await sender.post(PUSHES, data, headers=head)
        assert (answer.status_code, answer.content) == (204, b"")
        one, two = sender.records
        assert one["attributes"] == {
            "app": "shop", "env": "prod", "level": "warning", "pod": "a-1", "loki.tenant": "team-a",
        }  # fmt: skip
        assert (one["body"], one["severity_text"], one["trace_id"]) == ("one", "WARN", TRACE)
        assert one["time_unix_nano"] == TIME_NS
        assert one["resource"]["service.name"] == "shop"
        assert (two["body"], two["severity_text"]) == ("two", "ERROR")
        assert two["time_unix_nano"] == 1764268800 * 10**9, "the line's own time is better"


async def test_a_structured_line_has_what_it_lacks_from_its_entry(tmp_path: Path) -> None:
    data = pushed([str(TIME_NS), '{"level": "error", "message": "a"}', {"trace_id": TRACE}])
    async with serving(tmp_path, "loki") as sender:
        assert (await sender.post(PUSHES, data, headers=JSON)).status_code == 204
        (record,) = sender.records
        assert (record["time_unix_nano"], record["trace_id"]) == (TIME_NS, TRACE)
        assert (record["body"], record["severity_text"]) == ("a", "ERROR")


@pytest.mark.parametrize("head", [{}, {"content-encoding": "snappy"}])
async def test_a_push_in_protobuf_makes_the_same_records(
    tmp_path: Path, head: dict[str, str]
) -> None:
    async with serving(tmp_path, "loki") as sender:
        data = snappy(protobuf())
        assert (await sender.post(PUSHES, data, headers=PROTOBUF | head)).status_code == 204
        (record,) = sender.records
        assert (record["body"], record["time_unix_nano"]) == ("one", TIME_NS)
        assert (record["trace_id"], record["attributes"]) == (TRACE, {"app": "shop", "env": "prod"})


async def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path, "loki") as sender:
        data = snappy(protobuf(b"a\xffb"))
        assert (await sender.post(PUSHES, data, headers=PROTOBUF)).status_code == 204
        assert sender.bodies == ["a\ufffdb"]
        assert sender.records[0]["attributes"]["log.record.bytes_replaced"] is True


@pytest.mark.parametrize(
    ("head", "data", "status", "message"),
    [
        (JSON, "{", 400, "not JSON"),
        (JSON, "[]", 400, "couldn't parse push request"),
        (JSON, pushed(["soon", "a"]), 400, "a time, line or metadata of stream 0"),
        (JSON, pushed(["1", 5]), 400, "a time, line or metadata of stream 0"),
        (JSON, pushed(["1"]), 400, "a value of stream 0"),
        (JSON, '{"streams": [{"stream": {}, "values": [["1", "a"]]}]}', 400, "at least one label"),
        (PROTOBUF, b"no snappy", 400, "not snappy"),
        (PROTOBUF, snappy(b"no push"), 400, "not a protobuf PushRequest"),
        (PROTOBUF, snappy(protobuf(labels="app")), 400, "error parsing labels"),
        (PROTOBUF, snappy(b"x" * (5 * MIB)), 413, "after decompression"),
        ({"content-type": "text/plain"}, "a", 415, "content-type 'text/plain'"),
    ],
)
async def test_refusals_are_text_and_nothing_is_kept(
    tmp_path: Path, head: dict[str, str], data: Any, status: int, message: str
) -> None:
    async with serving(tmp_path, "loki") as sender:
        answer = await sender.post(PUSHES, data, headers=head)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert message in answer.text
        assert sender.records == []


async def test_what_is_not_understood_is_counted(tmp_path: Path) -> None:
    data = pushed([str(2**63), "a"], app="shop", level="loud")
    async with serving(tmp_path, "loki") as sender:
        assert (await sender.post(PUSHES, data, headers=JSON)).status_code == 204
        assert sender.counted == {"levels_unknown": 1, "timestamps_unreadable": 1}


async def test_what_a_record_has_not_of_a_stream_is_counted(tmp_path: Path) -> None:
    stream = {"stream": {"app": "shop"}, "values": [[str(TIME_NS), "a"]], "entries": []}
    request = PUSH()
    request.streams.add(labels='{app="shop"}', hash=7).entries.add(line=b"one")
    head = {"content-type": "application/x-protobuf"}
    async with serving(tmp_path, "loki") as sender:
        data = json.dumps({"streams": [stream], "tenant": "x"})
        assert (await sender.post(PUSHES, data, headers=JSON)).status_code == 204
        assert sender.counted == {"fields_unknown": 2}
        body = snappy(request.SerializeToString())
        assert (await sender.post(PUSHES, body, headers=head)).status_code == 204
        assert sender.counted["stream_hashes_dropped"] == 1


async def test_the_labels_that_name_the_service_can_be_chosen(tmp_path: Path) -> None:
    options: dict[str, Any] = {"service_labels": ["team"], "service": "others"}
    async with serving(tmp_path, "loki", **options) as sender:
        for labels in {"app": "a", "team": "b"}, {"app": "a"}:
            await sender.post(PUSHES, pushed([str(TIME_NS), "a"], **labels), headers=JSON)
        assert [one["resource"]["service.name"] for one in sender.records] == ["b", "others"]


async def test_a_sender_shows_its_token_and_anybody_asks_whether_it_is_ready(
    tmp_path: Path,
) -> None:
    (tmp_path / "password").write_text("secret")
    auth = {"scheme": "basic", "username": "shop", "token_file": tmp_path / "password"}
    async with serving(tmp_path, "loki", auth=auth) as sender:
        assert (await sender.ask("GET", "/ready")).text == "ready\n"
        data = pushed([str(TIME_NS), "a"])
        assert (await sender.post(PUSHES, data, headers=JSON)).status_code == 401
        answer = await sender.post(PUSHES, data, headers=JSON, auth=("shop", "secret"))
        assert answer.status_code == 204


async def test_a_full_spool_and_too_much_at_once_are_to_be_sent_again(tmp_path: Path) -> None:
    spool = {"drop_newest": True, "spool_bytes": 64 * KIB, "share_bytes": 64 * KIB}
    data = pushed([str(TIME_NS), "x" * 20_000])
    async with serving(tmp_path, "loki", spool=spool) as sender:
        while (answer := await sender.post(PUSHES, data, headers=JSON)).status_code == 204:
            pass
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        answer = await sender.post(PUSHES, pushed([str(TIME_NS), "x" * 70_000]), headers=JSON)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{}", {}),
        ('{a="b"}', {"a": "b"}),
        (' { a = "b,c" , d.e="}" , } ', {"a": "b,c", "d.e": "}"}),
        (r'{a="\"\\\n\x41\u00e9\U0001F600\101"}', {"a": '"\\\nAé😀A'}),
    ],
)
def test_labels_are_read_as_prometheus_writes_them(text: str, labels: dict[str, str]) -> None:
    assert read_labels(text) == labels


@pytest.mark.parametrize("text", ["", "{", "a", "{a}", "{a=b}", '{a="b}', '{a="b" c="d"}'])
def test_what_is_no_set_of_labels_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="error parsing labels"):
        read_labels(text)
