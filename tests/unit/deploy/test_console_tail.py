"""What the console's server says of records, specs and tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.base.clock import SystemClock
from penstock.deploy.console.records import (
    BACK,
    VALUE_CHARACTERS_MAX,
    RecordQuery,
    newest_records,
    severity_of,
)
from penstock.deploy.console.specs.catalog import (
    FIELDS_MAX,
    PRODUCERS_MAX,
    SPECS_MAX,
    SpecCatalog,
    violations,
)
from penstock.logd.format.batch import Record
from tests.support.console import FakeConsoleLog, a_stream, running_console
from tests.support.waiting import wait_until
from tests.unit.deploy.test_console import ask

SECOND_NS = 10**9


def a_log(n: int, severity: int = 9, **more: Any) -> Record:
    document = {"severity_number": severity, "body": f"record {n}"} | more
    return Record("telemetry.logs.a", json.dumps(document).encode(), n * SECOND_NS)


def offsets(found: dict[str, Any]) -> list[int]:
    return [record["offset"] for record in found["records"]]


async def test_a_tail_begins_with_the_last_hundred_records_of_all_partitions() -> None:
    log = FakeConsoleLog(records={"s": [a_log(n) for n in range(500)]})
    assert offsets(await newest_records(log, RecordQuery("s", {0: None}))) == [*range(400, 500)]
    found = await newest_records(log, RecordQuery("s", {0: None, 1: None}))
    assert len(found["records"]) == BACK
    assert found["skipped"] == 0


async def test_a_tail_with_a_filter_begins_with_the_last_hundred_that_match() -> None:
    log = FakeConsoleLog(records={"s": [a_log(n, 17 if n % 10 else 9) for n in range(1500)]})
    found = await newest_records(log, RecordQuery("s", {0: None}, severity=10))
    assert len(found["records"]) == BACK
    found = await newest_records(log, RecordQuery("s", {0: None}, text="RECORD 44"))
    assert offsets(found) == [44, *range(440, 450)]


async def test_looking_back_by_time_passes_over_nothing() -> None:
    log = FakeConsoleLog(records={"s": [a_log(n) for n in range(20_000)]})
    wish = RecordQuery("s", {0: None}, back=True, since_ms=5_000_500)
    seen: list[int] = []
    for _ in range(3):
        found = await newest_records(log, wish)
        seen += offsets(found)
        assert not found["is_end"]
        wish = RecordQuery("s", {0: found["at"]["0"]}, back=True, since_ms=5_000_500)
    assert seen == [*range(5_001, 5_001 + 3 * BACK)]
    end = RecordQuery("s", {0: 19_950}, back=True)
    found = await newest_records(log, end)
    assert (len(found["records"]), found["is_end"]) == (50, True)


async def test_looking_back_with_a_filter_goes_on_where_it_ended() -> None:
    log = FakeConsoleLog(records={"s": [a_log(n, 17 if n % 7 == 0 else 9) for n in range(3_000)]})
    wish, seen, is_end = RecordQuery("s", {0: 0}, back=True, severity=17), list[int](), False
    while not is_end:
        found = await newest_records(log, wish)
        seen += offsets(found)
        is_end = found["is_end"]
        wish = RecordQuery("s", {0: found["at"]["0"]}, back=True, severity=17)
    assert seen == [*range(0, 3_000, 7)]


async def test_a_record_alone_comes_with_all_of_its_value() -> None:
    log = FakeConsoleLog(records={"s": [a_log(0), a_log(1, pad="x" * 50_000), a_log(2)]})
    (cut,) = (await newest_records(log, RecordQuery("s", {0: 1}, text="record 1")))["records"]
    assert len(cut["value"]) == VALUE_CHARACTERS_MAX
    (whole,) = (await newest_records(log, RecordQuery("s", {0: 1}, whole=True)))["records"]
    assert (whole["offset"], whole["cut"]) == (1, 0)
    assert len(json.loads(whole["value"])["pad"]) == 50_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b'{"severity_number": 13}', 13), (b'{"status_code": "ERROR"}', 17), (b"{}", 0), (None, 0),
     (b"[17]", 0), (b"not json", 0), (b'{"severity_number": "17"}', 0), (b"[" * 100_000, 0)],
)  # fmt: skip
def test_a_severity_is_read_of_what_has_one(value: bytes | None, expected: int) -> None:
    assert severity_of(value) == expected


@pytest.mark.parametrize("query", ["severity=x", "since_ms=-1", "since_ms=1e9", "severity=1.5"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, query: str) -> None:
    with running_console(tmp_path, {}, FakeConsoleLog(records={"s": []})) as console:
        answer, _ = ask(console, f"/api/records?stream=s&{query}")
        assert answer.status == 400


def test_the_console_says_what_a_token_allows_and_counts_wrong_ones(tmp_path: Path) -> None:
    more: dict[str, Any] = {"read_token_file": tmp_path / "read", "read_without_token": False}
    with running_console(tmp_path, {}, **more) as console:
        told = {}
        for name in ("token", "read", "wrong", ""):
            path = tmp_path / name
            shown = path.read_text().strip() if path.is_file() else name
            headers: dict[str, Any] = {"Authorization": f"Bearer {shown}"} if shown else {}
            told[name] = json.loads(ask(console, "/api/token", **headers)[1])
        refused = [
            sample.value
            for metric in console.metrics()
            for sample in metric.samples
            if sample.name == "penstock_console_tokens_refused_total"
        ]
    assert [(told[name]["may"], told[name]["is_known"]) for name in told] == [
        ("act", True), ("look", True), ("nothing", False), ("nothing", False),
    ]  # fmt: skip
    assert (told[""]["acts"], told[""]["looks"]) == (True, True)
    assert refused == [1]
    with running_console(tmp_path, {}) as console:
        open_to_all = json.loads(ask(console, "/api/token", Authorization="Bearer wrong")[1])
    assert (open_to_all["may"], open_to_all["is_known"]) == ("look", False)


def a_record(schema: str, service: str, **more: Any) -> bytes:
    document = {"schema": schema, "kind": "log", "resource": {"service.name": service}} | more
    return json.dumps(document).encode()


def test_specs_are_seen_with_versions_producers_fields_and_a_rate() -> None:
    catalog = SpecCatalog()
    values = [
        a_record("shop/1.0", "cart", body="x", attributes={"id": 1, "eu": True}),
        a_record("shop/1.1", "cart", body=None),
        a_record("shop/1.0", "till", body="y", attributes={"id": "seven"}),
        b"no json",
    ]
    catalog.note("logs", values, 400, 1000)
    catalog.note("logs", values, 400, 1050)
    plain, old, new = catalog.describe(1055)
    assert (plain["spec"], plain["version"], plain["records_per_minute"]) == ("no spec", "", 200)
    assert (old["spec"], old["version"], new["version"]) == ("shop", "1.0", "1.1")
    assert old["records_per_minute"] == 400
    assert old["producers"] == {"cart": 2, "till": 2}
    fields = {field["name"]: field for field in old["fields"]}
    assert fields["attributes.id"]["types"] == ["integer", "text"]
    assert fields["attributes.eu"] == {"name": "attributes.eu", "types": ["boolean"], "share": 0.5}
    assert catalog.describe(1060)[1]["records_per_minute"] == 200, "the first look is older"
    assert catalog.describe(2000)[1]["records_per_minute"] == 0


def test_whatever_records_say_the_catalog_stays_small() -> None:
    catalog = SpecCatalog()
    for n in range(3 * SPECS_MAX):
        attributes = {f"field{n}-{m}": m for m in range(5)}
        name = f"spec{n}/1.0" if n % 2 else "one/1.0"
        value = a_record(name + "x" * 1000 * (n % 3), f"service{n}", attributes=attributes)
        catalog.note(f"stream{n}", [value], 1, n)
    found = catalog.describe(10**6)
    assert len(found) <= SPECS_MAX + 1
    for spec in found:
        assert len(spec["fields"]) <= FIELDS_MAX + 1
        assert len(spec["producers"]) <= PRODUCERS_MAX + 1
    assert len(json.dumps(found)) < 1024 * 1024


def test_violations_come_by_reason_the_most_frequent_first() -> None:
    accounts = {"otlp": {"refused": {"too long": 2, "no name": 9, "none": 0}}, "odd": 7}
    found = violations([("c1", accounts), ("c2", {"unix": {"refused": None}})])
    assert [(one["reason"], one["records"], one["source"]) for one in found] == [
        ("no name", 9, "otlp"), ("too long", 2, "otlp"),
    ]  # fmt: skip


def test_the_server_samples_streams_by_itself(tmp_path: Path) -> None:
    record = Record("a", a_record("shop/1.0", "cart"), SystemClock().unix_ns())
    log = FakeConsoleLog([a_stream("logs", 1)], {"logs": [record]})
    with running_console(tmp_path, {}, log) as console:
        found = wait_until(lambda: json.loads(ask(console, "/api/specs")[1])["specs"])
    assert found[0]["spec"] == "shop"
    assert found[0]["streams"] == {"logs": 1}
