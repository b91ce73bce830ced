"""Filters as data: their JSON form, what of them logd can do, and what they let through."""

import math
from typing import Any

import pyarrow as pa
import pytest

from penstock.router.columns import filters
from penstock.router.columns.filters import (
    Filter,
    Joined,
    Timestamp,
    both,
    columns_of,
    filter_from_json,
    filter_to_json,
    passing,
    subject_of,
)
from penstock.router.errors import BadOptionError

DEPTH_MAX = 64
ROWS = {
    "kind": pa.array(["log", "span", None, "log"]),
    "severity": pa.array([17, 9, 17, None], pa.int32()),
    "time": pa.array([5, 6, 7, 8], pa.timestamp("us")),
    "share": pa.array([0.5, math.nan, None, math.inf]),
}


def rows_passing(document: list[Any]) -> list[int]:
    found = passing(filter_from_json(document), ROWS.__getitem__).to_pylist()
    return [number for number, passes in enumerate(found) if passes]


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (["=", "kind", "log"], [0, 3]),
        (["not", ["=", "kind", "log"]], [1]),
        (["<=>", "kind", "log"], [0, 3]),
        (["not", ["<=>", "kind", "log"]], [1, 2]),
        (["and", ["=", "kind", "log"], [">=", "severity", 17]], [0]),
        (["or", ["=", "kind", "span"], [">", "severity", 9]], [0, 1, 2]),
        (["in", "severity", [9, 10]], [1]),
        (["not", ["in", "severity", [9, 10]]], [0, 2]),
        (["null", "kind"], [2]),
        (["<", "time", {"timestamp_us": 6}], [0]),
        (["<=", "time", {"timestamp_us": 6}], [0, 1]),
        (["starts", "kind", "lo"], [0, 3]),
        (["ends", "kind", "an"], [1]),
        (["contains", "kind", "pa"], [1]),
        ([">", "share", 0.7], [1, 3]),
        ([">=", "share", 0.5], [0, 1, 3]),
        (["<", "share", 0.7], [0]),
        (["<=", "share", math.inf], [0, 3]),
        (["not", [">", "share", 0.7]], [0]),
        (["=", "share", 0.5], [0]),
        (["in", "share", [0.5, math.nan]], [0, 1]),
        (["=", "share", math.nan], [1]),
        (["<=>", "share", math.nan], [1]),
        (["not", ["<=>", "share", math.nan]], [0, 2, 3]),
        (["<", "share", math.nan], [0, 3]),
        (["<=", "share", math.nan], [0, 1, 3]),
        ([">", "share", math.nan], []),
        ([">=", "share", math.nan], [1]),
    ],
)
def test_rows_pass_as_in_sql_and_a_filter_survives_its_json_form(
    document: list[Any], rows: list[int]
) -> None:
    assert rows_passing(document) == rows
    assert filter_to_json(filter_from_json(document)) == document


def test_a_time_is_a_dictionary_of_one_key() -> None:
    found = filter_from_json(["=", "time", {"timestamp_us": 6}])
    assert found == filters.Test("=", "time", (Timestamp(6),))
    with pytest.raises(BadOptionError, match="not a value of a filter"):
        filter_from_json(["=", "time", {"timestamp_us": 6, "zone": "UTC"}])


def nested(depth: int) -> list[Any]:
    document: list[Any] = ["null", "kind"]
    for _ in range(depth):
        document = ["not", document]
    return document


def test_a_filter_may_be_nested_so_deep_and_no_deeper() -> None:
    assert filter_to_json(filter_from_json(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(BadOptionError, match=f"more than {DEPTH_MAX} deep"):
        filter_from_json(nested(DEPTH_MAX + 1))


KIND, SUBJECT = (
    filters.Test("=", "kind", ("log",)),
    filters.Test("=", "subject", ("telemetry.logs",)),
)


@pytest.mark.parametrize(
    ("condition", "subject"),
    [
        (None, None),
        (KIND, None),
        (SUBJECT, "telemetry.logs"),
        (Joined("and", (KIND, SUBJECT)), "telemetry.logs"),
        (Joined("and", (KIND, Joined("and", (SUBJECT, KIND)))), "telemetry.logs"),
        (Joined("or", (KIND, SUBJECT)), None),
        (Joined("not", (SUBJECT,)), None),
        (filters.Test("=", "subject", ("telemetry.*",)), None),
        (filters.Test("=", "subject", (7,)), None),
        (filters.Test("starts", "subject", ("telemetry",)), None),
    ],
)
def test_a_subject_that_every_row_must_have_is_known(
    condition: Filter | None, subject: str | None
) -> None:
    assert subject_of(condition) == subject


def test_two_filters_let_through_what_both_do() -> None:
    assert both(None, None) is None
    assert both(KIND, None) == both(None, KIND) == KIND
    assert both(KIND, SUBJECT) == Joined("and", (KIND, SUBJECT))
    assert columns_of(both(KIND, SUBJECT)) == {"kind", "subject"}
