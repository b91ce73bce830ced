"""Records found by service, text and severity."""

import json
from typing import Any

import pytest

from penstock.deploy.trace.find import (
    PartitionRange,
    Progress,
    Terms,
    by_id,
    by_terms,
    narrowed,
    scan,
)
from penstock.logd.format.batch import Record
from tests.support.fake_log import FakeLog

SECOND = 10**9
VALUES: list[dict[str, Any]] = [
    {"kind": "log", "severity_number": 9, "body": "card declined", "service": "shop"},
    {"kind": "log", "severity_number": 17, "body": "card Declined", "service": "shop"},
    {"kind": "log", "severity_number": 17, "body": 'said "declined" <b>ü</b>', "service": "till"},
    {"kind": "span", "status_code": "ERROR", "name": "ask the bank", "service": "till"},
    {"kind": "span", "status_code": "OK", "name": "declined?", "service": "shop"},
    {
        "kind": "log",
        "severity_number": 21,
        "body": {"declined": 1},
        "service": "shop",
        "trace_id": "t",
    },
    {"kind": "log", "severity_number": "17", "body": "x", "attributes": {"note": "shop declined"}},
]


def log_of(*, ascii_only: bool = True, per_frame: int = 3) -> Any:
    values = []
    for it in VALUES:
        fields = {**it, "resource": {"service.name": it["service"]}} if "service" in it else it
        values.append(json.dumps(fields, ensure_ascii=ascii_only).encode())
    values += [b"no record: shop declined 17", b'["shop", "declined"]']
    log = FakeLog()
    records = [Record("telemetry.x", it, SECOND) for it in values]
    log.add("logs", [*records, Record("telemetry.x", None, SECOND)], per_frame=per_frame)
    return log


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize(
    ("terms", "offsets"),
    [
        (Terms(service="shop"), [0, 1, 4, 5]),
        (Terms(text="declined"), [0, 2, 4]),
        (Terms(text='"declined"'), [2]),
        (Terms(text="ü"), [2]),
        (Terms(text="<b>ü"), [2]),
        (Terms(severity=17), [1, 2, 3, 5]),
        (Terms(severity=18), [5]),
        (Terms(severity=1), [0, 1, 2, 3, 5]),
        (Terms("shop", "declined", 9), [0]),
        (Terms(service="sho"), []),
    ],
)
def test_records_are_found_by_what_they_say(
    terms: Terms, offsets: list[int], *, ascii_only: bool
) -> None:
    log = log_of(ascii_only=ascii_only)
    found = scan(log, [PartitionRange("logs", 0, 0, 10)], by_terms(terms), limit=99)
    assert [it.offset for it in found.records] == offsets
    assert (found.looked_at, found.is_ended) == (10, False)


def test_an_id_and_terms_are_both_demanded() -> None:
    log, whole = log_of(), [PartitionRange("logs", 0, 0, 10)]
    both = narrowed(by_id(["t"], []), Terms(service="shop"))
    assert [it.offset for it in scan(log, whole, both, limit=9).records] == [5]
    other = narrowed(by_id(["t"], []), Terms(service="till"))
    assert scan(log, whole, other, limit=9).records == []


def test_a_search_that_is_to_end_ends_with_what_it_has() -> None:
    log = log_of(per_frame=1)
    progress = Progress()
    progress.is_to_end = lambda: progress.looked_at >= 2
    whole = [PartitionRange("logs", 0, 0, 10), PartitionRange("logs", 0, 0, 10)]
    found = scan(log, whole, by_terms(Terms(text="card")), limit=9, progress=progress)
    assert ([it.offset for it in found.records], found.is_ended, found.looked_at) == (
        [0, 1],
        True,
        2,
    )


def test_a_partition_without_a_leader_is_named_and_the_rest_is_searched() -> None:
    log = log_of()
    parts = [
        PartitionRange("logs", 1, 0, 0, "it has no leader"),
        PartitionRange("logs", 0, 0, 10),
    ]
    found = scan(log, parts, by_id(["t"], []), limit=9)
    assert [it.offset for it in found.records] == [5]
    assert found.problems == ["logs/1: it has no leader"]
