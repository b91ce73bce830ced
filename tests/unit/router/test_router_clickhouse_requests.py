"""What the ClickHouse sink says to the server, and what the server's errors mean."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import ValidationError

from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import (
    Failed,
    Fault,
    Paused,
    Rejected,
    Retryable,
    Success,
    TooLarge,
)
from penstock.router.sinks.clickhouse import ClickHouse, ClickHouseSink, classify_response
from tests.support.fault_door import Asked
from tests.support.recorded_sink import RecordedSink
from tests.support.sink_batches import batch, context, log_record


def sink(directory: Path, **keys: Any) -> ClickHouse:
    settings = {"type": "clickhouse", "url": "http://127.0.0.1:1/?database=telemetry", **keys}
    return ClickHouse(ClickHouseSink.model_validate(settings), context(directory))


def asked(made: RecordedSink, rows: Any) -> dict[str, list[str]]:
    """The parameters of the request that inserts."""
    inserts = [its for its in map(parameters, made.write(rows).requests) if "query" in its]
    (found,) = inserts
    return found


def parameters(its: Asked) -> dict[str, list[str]]:
    return parse_qs(urlsplit(its.path).query)


def creation(directory: Path, **keys: Any) -> str:
    """What a server is told that has no table yet."""
    with RecordedSink("clickhouse", directory, **keys) as made:
        outcome = made.write([log_record(0)], 200)
    (found,) = (body.decode() for body in outcome.bodies if body.startswith(b"CREATE"))
    return found


def test_the_same_rows_have_the_same_token_and_others_another(tmp_path: Path) -> None:
    rows = batch([log_record(number) for number in range(3)])
    with RecordedSink("clickhouse", tmp_path, path="/?database=telemetry") as made:
        first = asked(made, rows)
        again = asked(made, rows)
        holed = asked(made, rows.take([0, 2]))  # the same ends, and not the same rows
    assert first["database"] == ["telemetry"]
    (token,) = first["insert_deduplication_token"]
    assert token.startswith("job/sink/logs.5f2c19aa/0/0-2-")
    assert first["async_insert"] == ["0"]
    assert again == first
    assert holed["insert_deduplication_token"] != [token]


def test_a_server_without_tokens_hears_of_none(tmp_path: Path) -> None:
    with RecordedSink("clickhouse", tmp_path, tokens=False) as made:
        assert set(asked(made, batch([log_record(0)]))) == {"query"}
    assert "deduplication" not in creation(tmp_path, tokens=False)
    assert "non_replicated_deduplication_window = 1000" in creation(tmp_path)


def test_names_are_quoted_and_nothing_else_is_a_name(tmp_path: Path) -> None:
    with RecordedSink("clickhouse", tmp_path, table="order.table") as made:
        (query,) = asked(made, batch([b"x"]))["query"]
    assert query.startswith("INSERT INTO `order`.`table` (`stream`, ")
    with pytest.raises(ValidationError, match="table"):
        sink(tmp_path, table="a; DROP TABLE b")


def test_a_password_is_a_header_that_nobody_sees(tmp_path: Path) -> None:
    made = sink(tmp_path, user="penstock", password="hush")
    (shown,) = made.preview(batch([log_record(0)]))
    assert "hush" not in repr(shown)
    assert ("X-ClickHouse-Key", "***") in shown.headers


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"", Success),
        (202, b"", Paused),
        (204, b"", Paused),
        (400, b"Code: 36. DB::Exception: Unknown element 'x' for enum", Failed),
        (500, b"Code: 27, e.displayText() = DB::Exception: Cannot parse input", Rejected),
        (500, b"Code: 469. DB::Exception: Constraint `c` is violated at row 3", Rejected),
        (500, b"Code: 252. DB::Exception: Too many parts (300)", Retryable),
        (500, b"Code: 252. DB::Exception: Too many partitions for single INSERT block", TooLarge),
        (500, b"Code: 241. DB::Exception: Memory limit (total) exceeded", Retryable),
        (404, b"Code: 60. DB::Exception: Table default.t does not exist", Paused),
        (403, b"Code: 516. DB::Exception: default: Authentication failed", Paused),
        (500, b"Code: 49. DB::Exception: Logical error", Failed),
        (502, b"Bad Gateway", Failed),
        (503, b"", Retryable),
        (413, b"", TooLarge),
    ],
)
def test_clickhouses_numbers_say_more_than_https(status: int, body: bytes, expected: type) -> None:
    assert type(classify_response(HttpResponse(status, {}, body))) is expected


def test_an_error_may_be_said_in_a_header_only() -> None:
    answer = HttpResponse(200, {"x-clickhouse-exception-code": "27"}, b"")
    assert classify_response(answer) == Rejected(Fault("clickhouse_27", "HTTP 200", 200))


@pytest.mark.parametrize(
    ("status", "body", "circuit"),
    [
        (400, b"Code: 36. DB::Exception: a setting of the table is refused", "paused"),
        (400, b"Code: 27. DB::Exception: Cannot parse the value of a setting", "paused"),
        (400, b"The plain HTTP request was sent to HTTPS port", "paused"),
        (413, b"", "paused"),
        (204, b"", "paused"),
        (500, b"Code: 49. DB::Exception: Logical error", "closed"),
        (503, b"", "closed"),
    ],
)
def test_what_is_said_of_the_table_is_no_records_fault(
    tmp_path: Path, status: int, body: bytes, circuit: str
) -> None:
    with RecordedSink("clickhouse", tmp_path) as made:
        outcome = made.write([log_record(0)], (status, body), patience=0)
        assert [body.split()[0] for body in outcome.bodies] == [b"SELECT"]
        assert (outcome.circuit, outcome.dead_letters) == (circuit, [])
        assert f"HTTP {status}" in (outcome.problem or "")
        assert made.write([log_record(0)]).problem is None


def test_a_replay_has_tokens_of_its_own(tmp_path: Path) -> None:
    rows = batch([log_record(0)])
    with RecordedSink("clickhouse", tmp_path) as made:
        before = asked(made, rows)["insert_deduplication_token"]
        made.sink.start_over()
        again = asked(made, rows)["insert_deduplication_token"]
        assert again != before
        assert asked(made, rows)["insert_deduplication_token"] == again


DENIED = (403, b"Code: 497. DB::Exception: Not enough privileges")


def test_who_may_not_create_tables_needs_to_create_none(tmp_path: Path) -> None:
    with RecordedSink("clickhouse", tmp_path) as made:
        there = made.write([log_record(0)])
    assert there.problem is None
    assert [its for its in there.bodies if its.startswith(b"CREATE")] == []
    with RecordedSink("clickhouse", tmp_path) as made:
        missing = made.write([log_record(0)], 200, DENIED, patience=0)
    assert [body.split()[0] for body in missing.bodies] == [b"SELECT", b"CREATE"]
    assert (missing.circuit, missing.dead_letters) == ("paused", [])
    assert "Not enough privileges" in (missing.problem or "")
