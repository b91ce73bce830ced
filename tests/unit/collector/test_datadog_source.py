"""The source datadog, with requests as Datadog's reference describes them."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from typing_extensions import override

from penstock.collector.decode.senders.datadog import PAYLOAD
from penstock.collector.limits import KIB
from penstock.collector.sources.senders.datadog import DatadogSettings, DatadogSource
from tests.support.http_senders import HttpSender, serving
from tests.support.receiving import listening
from tests.support.spool_writer import SpoolingIntake

LOGS = "/api/v2/logs"
SERIES = "/api/v2/series"
JSON = {"content-type": "application/json"}
PROTOBUF = {"content-type": "application/x-protobuf"}
TIME_S = 1764268800


def series(**more: Any) -> str:
    point = {"timestamp": TIME_S, "value": 2.5}
    return json.dumps({"series": [{"metric": "shop.orders", "points": [point], **more}]})


async def test_logs_become_records(tmp_path: Path) -> None:
    logs = [
        {"message": "slow", "ddsource": "nginx", "ddtags": "env:prod,team:a,team:b,beta",
         "hostname": "web-1", "service": "shop", "status": "warning", "timestamp": 1764268800125,
         "http": {"status_code": 500}},
        {"message": '{"level": "error", "message": "two"}', "took": 3},
    ]  # fmt: skip
    async with serving(tmp_path, "datadog") as sender:
        answer = await sender.post(LOGS, json.dumps(logs), headers=JSON)
        assert (answer.status_code, answer.json()) == (202, {})
        one, two = sender.records
        assert (one["body"], one["severity_text"]) == ("slow", "WARN")
        assert one["time_unix_nano"] == 1764268800_125_000_000
        assert one["resource"] == {"site": "a", "service.name": "shop", "host.name": "web-1"}
        assert one["attributes"] == {
            "http.status_code": 500, "env": "prod", "team": ["a", "b"], "beta": "",
            "datadog.source": "nginx",
        }  # fmt: skip
        assert (two["body"], two["severity_text"]) == ("two", "ERROR")
        assert (two["attributes"], two["resource"]["service.name"]) == ({"took": 3}, "datadog")


async def test_the_empty_log_with_which_the_agent_begins_is_no_record(tmp_path: Path) -> None:
    async with serving(tmp_path, "datadog") as sender:
        assert (await sender.post(LOGS, "{}", headers=JSON)).status_code == 202
        assert sender.records == []


async def test_lines_of_text_are_logs_with_what_the_query_says(tmp_path: Path) -> None:
    head = {"content-type": "text/plain"}
    async with serving(tmp_path, "datadog") as sender:
        answer = await sender.post(
            "/v1/input?service=shop&ddtags=a:b", "one\r\ntwo\n", headers=head
        )
        assert (answer.status_code, answer.json()) == (200, {})
        assert sender.bodies == ["one", "two"]
        assert sender.records[0]["resource"]["service.name"] == "shop"
        assert sender.records[0]["attributes"] == {"a": "b"}


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("identity", bytes), ("deflate", zlib.compress), ("zstd1", zstandard.compress)],
)
async def test_series_become_points(tmp_path: Path, coding: str, pack: Any) -> None:
    given = series(
        type=3, unit="order", tags=["service:till", "lane:7"],
        resources=[{"type": "host", "name": "web-1"}, {"type": "pod", "name": "a"}],
    )  # fmt: skip
    async with serving(tmp_path, "datadog") as sender:
        head = {**JSON, "content-encoding": coding}
        answer = await sender.post(SERIES, pack(given.encode()), headers=head)
        assert (answer.status_code, answer.json()) == (202, {"errors": []})
        (point,) = sender.records
        assert (point["name"], point["metric_type"]) == ("shop.orders", "gauge")
        assert (point["value"], point["unit"]) == (2.5, "order")
        assert point["time_unix_nano"] == TIME_S * 10**9
        assert point["resource"]["service.name"] == "till"
        assert point["resource"]["host.name"] == "web-1"
        assert point["attributes"] == {"service": "till", "lane": "7", "datadog.pod": "a"}


@pytest.mark.parametrize(
    ("kind", "interval", "expected"),
    [
        (1, 10, ("sum", 2.5, "delta", (TIME_S - 10) * 10**9)),
        (2, 10, ("sum", 25.0, "delta", (TIME_S - 10) * 10**9)),
        (2, 0, ("gauge", 2.5, None, None)),
        (0, 10, ("gauge", 2.5, None, None)),
    ],
)
async def test_counts_and_rates_become_sums_over_their_interval(
    tmp_path: Path, kind: int, interval: int, expected: Any
) -> None:
    async with serving(tmp_path, "datadog") as sender:
        given = series(type=kind, interval=interval)
        assert (await sender.post(SERIES, given, headers=JSON)).status_code == 202
        (point,) = sender.records
        names = ("metric_type", "value", "temporality", "start_time_unix_nano")
        assert tuple(map(point.get, names)) == expected


async def test_the_agents_protobuf_makes_the_same_points(tmp_path: Path) -> None:
    payload = PAYLOAD()
    one = payload.series.add(metric="shop.orders", type=1, interval=10, tags=["lane:7"])
    one.points.add(value=2.5, timestamp=TIME_S)
    one.resources.add(type="host", name="web-1")
    async with serving(tmp_path, "datadog") as sender:
        answer = await sender.post(SERIES, payload.SerializeToString(), headers=PROTOBUF)
        assert answer.status_code == 202
        (point,) = sender.records
        assert (point["value"], point["temporality"]) == (2.5, "delta")
        assert (point["attributes"], point["resource"]["host.name"]) == ({"lane": "7"}, "web-1")


async def test_what_a_point_has_no_place_for_is_counted(tmp_path: Path) -> None:
    payload = PAYLOAD()
    one = payload.series.add(metric="a", type=3, metadata=b"\x08\x01")
    one.points.add(value=1, timestamp=TIME_S)
    async with serving(tmp_path, "datadog") as sender:
        given = series(metadata={"origin": {"product": 1}}, colour="red", shape="round")
        assert (await sender.post(SERIES, given, headers=JSON)).status_code == 202
        answer = await sender.post(SERIES, payload.SerializeToString(), headers=PROTOBUF)
        assert answer.status_code == 202
        assert sender.counted == {"series_metadata_dropped": 2, "fields_unknown": 2}


@pytest.mark.parametrize(
    ("path", "head", "data", "status", "error"),
    [
        (SERIES, JSON, "{", 400, "not JSON"),
        (SERIES, JSON, "{}", 400, "Payload is not in the expected format"),
        (SERIES, JSON, '{"series": [{"metric": "a"}]}', 400, "series 0 is not"),
        (SERIES, JSON, series(tags=[5]), 400, "series 0 is not"),
        (SERIES, JSON, series(type=2, interval=10**400), 400, "series 0 is not"),
        (SERIES, PROTOBUF, b"\xff", 400, "not a protobuf MetricPayload"),
        (SERIES, {"content-type": "text/plain"}, "a", 415, "content-type 'text/plain'"),
        ("/v1/input", JSON, "[5]", 400, "log 0 is no object"),
        ("/api/v1/check_run", JSON, "{}", 404, "there is /api/v2/logs"),
    ],
)
async def test_refusals_are_datadogs_and_nothing_is_kept(
    tmp_path: Path, path: str, head: dict[str, str], data: Any, status: int, error: str
) -> None:
    async with serving(tmp_path, "datadog") as sender:
        answer = await sender.post(path, data, headers=head)
        assert answer.status_code == status
        assert error in answer.json()["errors"][0]
        assert sender.records == []


async def test_a_request_that_a_fault_keeps_from_being_read_is_refused_and_counted(
    tmp_path: Path,
) -> None:
    """Else its sender repeats it for ever."""

    class Faulty(DatadogSource):
        @override
        async def keep(self, lines: Any, charge: Any, notes: Any) -> Any:
            def fails() -> Iterator[Any]:
                yield from lines
                raise ZeroDivisionError

            return await super().keep(fails(), charge, notes)

    section = DatadogSettings.model_validate({"type": "datadog", "listen": "127.0.0.1:0"})

    def make(spool_writer: SpoolingIntake) -> DatadogSource:
        return Faulty(section, {}, spool_writer=spool_writer)

    async with listening(tmp_path, make) as (source, spool_writer):
        sender = HttpSender(source.endpoint, spool_writer)
        answer = await sender.post(SERIES, series(), headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["errors"] == ["unreadable: ZeroDivisionError"]
        assert sender.records == []
        assert sender.counted["requests_malformed"] == 1


async def test_a_refusal_of_logs_is_an_object(tmp_path: Path) -> None:
    async with serving(tmp_path, "datadog") as sender:
        answer = await sender.post(LOGS, "[5]", headers=JSON)
        assert answer.json()["errors"] == [
            {"status": "400", "title": "Bad Request", "detail": "log 0 is no object"}
        ]


async def test_what_is_not_understood_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, "datadog") as sender:
        log = {"message": "a", "timestamp": "soon", "status": "loud"}
        assert (await sender.post(LOGS, json.dumps(log), headers=JSON)).status_code == 202
        point = {"timestamp": -5, "value": 1}
        given = json.dumps({"series": [{"metric": "a", "type": 9, "points": [point]}]})
        assert (await sender.post(SERIES, given, headers=JSON)).status_code == 202
        assert sender.counted == {
            "timestamps_unreadable": 2, "levels_unknown": 1, "types_unknown": 1,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "head", "status"),
    [
        ("/v1/input", {"dd-api-key": "secret"}, 200),
        ("/v1/input?api_key=secret", {}, 200),
        ("/v1/input/secret", {}, 200),
        ("/v1/input", {}, 403),
        ("/v1/input/other", {}, 403),
    ],
)
async def test_a_sender_shows_the_key(
    tmp_path: Path, path: str, head: dict[str, str], status: int
) -> None:
    (tmp_path / "key").write_text("secret\n")
    async with serving(tmp_path, "datadog", auth={"api_key_file": tmp_path / "key"}) as sender:
        answer = await sender.post(path, '{"message": "a"}', headers=JSON | head)
        assert answer.status_code == status
        answer = await sender.ask("GET", "/api/v1/validate", headers={"dd-api-key": "secret"})
        assert answer.json() == {"valid": True}
        answer = await sender.ask("GET", "/api/v1/validate")
        assert (answer.status_code, answer.json()) == (403, {"errors": ["Forbidden"]})


async def test_a_full_spool_and_too_much_at_once_are_to_be_sent_again(tmp_path: Path) -> None:
    spool = {"drop_newest": True, "spool_bytes": 64 * KIB, "share_bytes": 64 * KIB}
    async with serving(tmp_path, "datadog", spool=spool) as sender:
        data = json.dumps({"message": "x" * 20_000})
        while (answer := await sender.post(LOGS, data, headers=JSON)).status_code == 202:
            pass
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        data = json.dumps({"message": "x" * 70_000})
        answer = await sender.post(LOGS, data, headers=JSON)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
