"""What only the PostgreSQL sink does: its columns, tables of others, what must be waited for."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.service import ConfigError
from tests.support.server_cases import PostgresCase
from tests.support.sink_batches import batch, dead_letters, log_record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

MOMENT_NS = 1_795_000_000_123_456_789


@pytest.fixture
def case(tmp_path: Path) -> Iterator[PostgresCase]:
    made = PostgresCase(tmp_path)
    yield made
    made.close()


def rows_of(case: PostgresCase, what: str, table: str = "") -> list[Any]:
    return case.admin.execute(
        f'SELECT {what} FROM {table or case.run} ORDER BY "offset"'
    ).fetchall()


def written_once_corrected(case: PostgresCase, correction: str, **keys: Any) -> str:
    """What the sink says while it waits; it goes on after the correction."""
    sink, context = case.sink(**keys)
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0)]),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem)
    case.admin.execute(correction)
    writing.join(60)
    assert not writing.is_alive()
    assert dead_letters(context) == []
    return str(problem)


def test_a_row_has_its_place_its_time_and_its_record(case: PostgresCase) -> None:
    sink, _ = case.sink()
    record = log_record(0, time_ns=MOMENT_NS, trace_id="ab" * 16)
    sink.write(batch([record], first=41))
    (found,) = rows_of(
        case, 'stream, incarnation, partition, "offset", time_unix_nano, kind, service,'
        " severity_number, trace_id, record, raw, time"
    )  # fmt: skip
    assert found[:4] == ("logs", "5f2c19aa00000000", 0, 41)
    assert found[4:9] == (MOMENT_NS, "log", "checkout", 9, "ab" * 16)
    assert found[9:11] == (record, None)
    assert found[11] == datetime.fromtimestamp(1_795_000_000, UTC).replace(microsecond=123456)


def test_what_jsonb_cannot_hold_is_there_as_it_came(case: PostgresCase) -> None:
    odd = [
        b"\xff\x00", b"not json", b"[1]", b"", b'{"kind":"log","body":"a\\u0000b"}',
        b'{"kind":"log","\\u0000":1}', b'{"kind":"log","body":"\\\\u0000"}',
        b'{"kind":"log","body":"\\ud800"}', b'{"kind":"log","body":1e999}',
    ]  # fmt: skip
    sink, context = case.sink()
    rows = batch(odd)
    rows = rows.set_column(rows.column_names.index("kind"), "kind", [["log"] * len(odd)])
    sink.write(rows)
    assert dead_letters(context) == []
    stored = rows_of(case, "raw, record ->> 'body'")
    assert [raw for raw, _ in stored if raw is not None] == [*odd[:6], *odd[7:]]
    assert stored[6] == (None, "\\u0000")


def test_a_table_that_is_partitioned_by_time_is_taken(case: PostgresCase) -> None:
    name = f"p_{case.run}"
    case.admin.execute(
        f"CREATE TABLE {name} (LIKE {case.run}, noted timestamptz DEFAULT now(),"
        ' PRIMARY KEY (stream, incarnation, "partition", "offset", time)) PARTITION BY RANGE (time)'
    )
    case.admin.execute(
        f"CREATE TABLE {name}_1 PARTITION OF {name}"
        " FOR VALUES FROM ('2020-01-01') TO ('2060-01-01')"
    )
    sink, context = case.sink(table=f"public.{name}", create=False)
    rows = batch([log_record(0), log_record(1, time_ns=4_000_000_000 * 10**9), log_record(2)])
    sink.write(rows)
    sink.write(rows)
    assert rows_of(case, '"offset"', name) == [(0,), (2,)]
    assert [dead_letter["offset"] for dead_letter in dead_letters(context)] == [
        1
    ]  # no partition is for it


def test_another_unique_index_refuses_rows_and_swallows_none(case: PostgresCase) -> None:
    case.admin.execute(f"CREATE UNIQUE INDEX ON {case.run} ((record ->> 'body'))")
    sink, context = case.sink()
    sink.write(batch([log_record(0), log_record(1, body="order 0 ☃"), log_record(2)]))
    assert rows_of(case, '"offset"') == [(0,), (2,)]
    assert [(it["offset"], it["code"]) for it in dead_letters(context)] == [(1, "sql_23505")]


def test_a_table_that_is_not_there_is_waited_for(case: PostgresCase) -> None:
    name = f"late_{case.run}"
    made = f"CREATE TABLE {name} (LIKE {case.run} INCLUDING ALL)"
    said = written_once_corrected(case, made, table=name, create=False)
    assert f"there is no table {name}; paused until that is corrected" in said
    assert len(rows_of(case, "1", name)) == 1


def test_a_table_may_have_the_name_of_a_word_of_sql(case: PostgresCase) -> None:
    case.admin.execute('DROP TABLE IF EXISTS "order"')
    sink, context = case.sink(table="order")
    sink.write(batch([log_record(0), log_record(1)]))
    sink.write(batch([log_record(1), log_record(2)], first=1))
    assert rows_of(case, '"offset"', 'public."order"') == [(0,), (1,), (2,)]
    assert dead_letters(context) == []
    case.admin.execute('DROP TABLE "order"')


def test_a_table_without_the_key_is_waited_for(case: PostgresCase) -> None:
    name = f"keyless_{case.run}"
    case.admin.execute(f"CREATE TABLE {name} (LIKE {case.run})")
    key = '(stream, incarnation, "partition", "offset")'
    said = written_once_corrected(case, f"ALTER TABLE {name} ADD PRIMARY KEY {key}", table=name)
    assert f"the primary key of {name} must be" in said


def test_a_right_that_is_missing_is_waited_for(case: PostgresCase) -> None:
    role, name = f"role_{case.run}", f"theirs_{case.run}"
    case.admin.execute(f"CREATE ROLE {role} LOGIN")
    granted = f"GRANT CREATE ON SCHEMA public TO {role}"
    dsn = f"postgresql://{role}@127.0.0.1:{case.door.port}/postgres"
    said = written_once_corrected(case, granted, dsn=dsn, table=name)
    assert "permission denied" in said
    assert len(rows_of(case, "1", name)) == 1


def test_a_column_of_others_that_has_no_default_is_no_records_fault(case: PostgresCase) -> None:
    case.admin.execute(f"ALTER TABLE {case.run} ADD COLUMN tenant text NOT NULL")
    corrected = f"ALTER TABLE {case.run} ALTER COLUMN tenant SET DEFAULT 'one'"
    assert "tenant" in written_once_corrected(case, corrected)
    assert rows_of(case, "tenant") == [("one",)]


def test_a_connection_string_that_is_none_is_refused_without_showing_it(case: PostgresCase) -> None:
    with pytest.raises(ConfigError, match=r"sinks\.sink\.dsn: libpq cannot read it") as caught:
        case.sink(dsn="host=a hush")
    assert "hush" not in f"{caught.value} {caught.value.fix}"


def test_a_preview_connects_to_nothing(case: PostgresCase) -> None:
    sink, _ = case.sink(dsn="postgresql://127.0.0.1:1/x")
    (shown,) = sink.preview(batch([log_record(0)]))
    assert shown.target == f"INSERT INTO {case.run} … ON CONFLICT DO NOTHING"
    assert json.loads(json.loads(shown.body)["record"])["body"] == "order 0 ☃"
