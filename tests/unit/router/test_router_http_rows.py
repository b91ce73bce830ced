"""How the HTTP sink cuts and writes rows."""

import json

from penstock.router.sinks.http import body_of, split_rows
from tests.unit.router.sink_rows import row, table


def offsets(rows: list[dict[str, object]], **bounds: int) -> list[list[int]]:
    limits = {"records_max": 1000, "bytes_max": 10**6} | bounds
    parts = split_rows(
        table(rows), records_max=limits["records_max"], bytes_max=limits["bytes_max"]
    )
    return [part["offset"].to_pylist() for part in parts]


def test_rows_are_cut_by_count_bytes_and_partition_in_order() -> None:
    rows = [row(offset, value=b"x" * 99) for offset in (4, 3, 2, 1, 0)]
    assert offsets(rows, records_max=2) == [[0, 1], [2, 3], [4]]
    assert offsets(rows, bytes_max=300) == [[0, 1, 2], [3, 4]]
    assert offsets([row(0), row(1), row(0, partition=1)]) == [[0, 1], [0]]


def test_a_row_larger_than_a_request_goes_alone() -> None:
    assert offsets([row(0), row(1, value=b"x" * 999), row(2)], bytes_max=200) == [[0], [1], [2]]


def test_a_body_is_one_record_a_line_whatever_the_record() -> None:
    body = body_of(
        table(
            [
                row(0, value=b'{"kind":\n"log"}'),
                row(1, kind="raw", value=b"two\nlines"),
                row(2, kind="raw", value=b"\xff"),
                row(3, kind="raw", value=None),
            ]
        )
    )
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines[0] == {"kind": "log"}
    assert [line.get("value") for line in lines[1:]] == ["two\nlines", None, None]
    assert lines[2]["value_base64"] == "/w=="
    assert lines[3]["offset"] == 3
