"""What only the JDBC sink does: databases of many makers, their drivers, the staging table."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.jdbc.sink import Jdbc
from penstock.router.sinks.registry import sink_kind
from penstock.service import ConfigError
from tests.support.jdbc_case import (
    Database,
    JdbcCase,
    derby,
    end_jdbc_spark,
    h2,
    hsqldb,
    jdbc_spark,
    mariadb,
)
from tests.support.sink_batches import batch, context, dead_letters, log_record
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", autouse=True)
def _spark_ends() -> Iterator[None]:
    yield
    end_jdbc_spark()


MOMENT_NS = 1_795_000_000_123_456_789
FAST = {
    "retry": {"initial_backoff_s": 0.005, "max_backoff_s": 0.05, "confirmed_after_s": 0.02},
    "timeout_s": 10,
}


@pytest.fixture(params=[derby, h2, hsqldb, mariadb], ids=lambda made: made.__name__)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    made: Database = request.param(tmp_path)
    return made


@contextmanager
def opened(directory: Path, **keys: Any) -> Iterator[tuple[Jdbc, SinkContext]]:
    jdbc_spark()
    made = context(directory)
    settings = {"type": "jdbc", **FAST, **keys}
    sink = make_sink(sink_kind("jdbc").config.model_validate(settings), made)
    assert isinstance(sink, Jdbc)
    sink.open()
    yield sink, made
    sink.close()


def of(database: Database, **keys: Any) -> Any:
    return opened(database.directory, url=database.url, jars=database.jars, **keys)


def places(database: Database) -> list[int]:
    found = database.query('SELECT "offset" FROM "penstock" ORDER BY "offset"')
    return [int(offset or "") for (offset,) in found]


def problem_of(sink: Jdbc, made: SinkContext, correct: Callable[[], object]) -> str:
    """What the sink says while it waits; it goes on after the correction."""
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0)]),))
    writing.start()
    problem = wait_until(lambda: made.meter.problem, within_s=60)
    correct()
    writing.join(60)
    assert not writing.is_alive()
    assert dead_letters(made) == []
    return str(problem)


def test_rows_are_there_once_with_their_place_their_time_and_their_record(
    database: Database,
) -> None:
    records: list[Any] = [log_record(number) for number in range(10)]
    big = log_record(1, time_ns=MOMENT_NS, trace_id="ab" * 16, padding="☃𝄞" * 20_000)
    del big["severity_number"]
    records[1] = big
    records[5] = b"\xff\x00 no record"
    records[8]["resource"] = {"service.name": "x" * 2000}
    with of(database) as (sink, _):
        sink.write(batch(records[:3]))
        sink.write(batch(records[5:7], first=5))
    with of(database, batch={"max_records": 4}) as (sink, made):
        sink.write(batch(records))
        detail = made.meter.stage("x", received=10, lag=0).detail
        assert detail["already_there"] == 5
        assert [(it["offset"], it["code"]) for it in dead_letters(made)] == [(8, "sql_22001")]
    rows = database.query(
        'SELECT "stream", "incarnation", "partition", "offset", "time_unix_nano", "kind",'
        ' "service", "severity_number", "trace_id", "record", "time",'
        ' CASE WHEN "raw" IS NULL THEN 0 ELSE 1 END FROM "penstock" ORDER BY "offset"'
    )
    assert [int(row[3] or "") for row in rows] == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    about = ["logs", "5f2c19aa00000000", "0", "1", str(MOMENT_NS + 1), "log", "checkout", None]
    assert rows[1][:9] == [*about, "ab" * 16]
    assert json.loads(rows[1][9] or "") == big
    assert (rows[1][10] or "").startswith("2026-11-18 11:06:40.123456")
    assert [row[11] for row in rows] == ["0"] * 5 + ["1"] + ["0"] * 3
    assert rows[5][9] is None


def test_a_property_of_a_file_is_read_again_without_a_restart(tmp_path: Path) -> None:
    database, file = h2(tmp_path), tmp_path / "password"
    file.write_text("right\n")
    properties = {"user": "sa", "password": {"file": str(file)}}
    with of(database, properties=properties) as (sink, made):
        sink.write(batch([log_record(0)]))
        assert dead_letters(made) == []
    file.write_text("hush\n")
    with of(database, properties=properties) as (sink, made):
        assert "hush" not in problem_of(sink, made, partial(file.write_text, "right\n"))


def test_two_that_write_the_same_rows_at_once_make_each_once(tmp_path: Path) -> None:
    """As a driver that was thought dead, and the one in its place."""
    case = JdbcCase(tmp_path)
    records = [log_record(number) for number in range(50)]
    try:
        pair = [case.sink(batch={"max_records": number}) for number in (7, 9)]
        for first in range(0, 400, 50):
            rows = batch(records, first=first)
            writing = [threading.Thread(target=sink.write, args=(rows,)) for sink, _ in pair]
            for thread in writing:
                thread.start()
            for thread in writing:
                thread.join(60 * PATIENCE)
                assert not thread.is_alive()
        assert [dead_letters(made) for _, made in pair] == [[], []]
        ((count, distinct),) = case.admin.execute(
            f'SELECT count(*), count(DISTINCT "offset") FROM {case.run}'
        ).fetchall()
        assert (count, distinct) == (400, 400)
    finally:
        case.close()


def staging_tables(database: Database) -> list[str]:
    found = database.query(
        "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES"
        " WHERE TABLE_NAME LIKE 'penstock_stage%' ORDER BY 1"
    )
    return [name or "" for (name,) in found]


def test_a_staging_table_that_a_crash_left_is_removed_and_its_rows_are_not_used(
    tmp_path: Path,
) -> None:
    database = mariadb(tmp_path)
    with of(database) as (crashed, _), of(database) as (sink, made):
        crashed.write(batch([log_record(0)]))
        (left,) = staging_tables(database)
        database.query(f'UPDATE "{left}" SET "offset" = 7')
        sink.write(batch([log_record(1)], first=1))
        assert left not in staging_tables(database)
        assert dead_letters(made) == []
    assert places(database) == [0, 1]
    assert staging_tables(database) == []


def problem_of_batch(sink: Jdbc, made: SinkContext, records: list[Any]) -> str:
    """What the sink says of records that it cannot bring; then it is stopped."""

    def write() -> None:
        with pytest.raises(Exception, match="gave up"):
            sink.write(batch(records))

    writing = threading.Thread(target=write)
    writing.start()
    problem = wait_until(lambda: made.meter.problem, within_s=60)
    made.stop.set()
    writing.join(60)
    assert not writing.is_alive()
    return str(problem)


def test_a_table_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    database = mariadb(tmp_path)
    with of(database) as (sink, _):
        sink.write(batch([log_record(0)]))
    with of(database, table="other", create=False) as (sink, made):
        said = problem_of(sink, made, lambda: made_like(database, "other"))
    assert "there is no table other; paused until that is corrected" in said


def _run(database: Database, sql: str) -> None:
    assert database.query(sql) == []


def made_like(database: Database, name: str) -> None:
    database.query(f'CREATE TABLE "{name}" LIKE "penstock"')


def test_a_table_without_the_key_is_waited_for(tmp_path: Path) -> None:
    database = mariadb(tmp_path)
    with of(database) as (sink, _):
        sink.write(batch([log_record(0)]))
    made_like(database, "keyless")
    database.query('ALTER TABLE "keyless" DROP PRIMARY KEY')
    key = 'ALTER TABLE "keyless" ADD PRIMARY KEY ("stream", "incarnation", "partition", "offset")'
    with of(database, table="keyless") as (sink, made):
        said = problem_of(sink, made, lambda: _run(database, key))
    assert "the primary key of keyless must be stream, incarnation, partition, offset" in said


def test_names_in_other_cases_are_other_streams(tmp_path: Path) -> None:
    """The usual collation of MariaDB holds them for one."""
    database = mariadb(tmp_path)
    with of(database) as (sink, made):
        for stream in ("logs", "LOGS"):
            rows = batch([log_record(0)])
            rows = rows.set_column(0, "stream", [[stream]])
            made.stream_ids[stream] = "5f2c19aa00000000"
            sink.write(rows)
    assert places(database) == [0, 0]


def test_types_are_those_that_one_says(tmp_path: Path) -> None:
    database = h2(tmp_path)
    types = {"record": "JSON", "service": "VARCHAR(3)"}
    with of(database, column_types=types) as (sink, made):
        sink.write(batch([log_record(0)]))
        assert [dead_letter["code"] for dead_letter in dead_letters(made)] == ["sql_22001"]
    found = database.query(
        "SELECT DATA_TYPE FROM INFORMATION_SCHEMA.COLUMNS WHERE COLUMN_NAME = 'record'"
    )
    assert found == [["JSON"]]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"url": "jdbc:nobody:hush"}, "no jar has a driver for this url; paused"),
        ({"driver": "com.example.Driver"}, "no jar has the class com.example.Driver; paused"),
        ({"column_types": {"raw": "POTATO"}}, "making the table penstock: "),
        ({"url": "jdbc:derby:;databaseName=x;pass;password=hush"}, "'***' is not properly formed"),
    ],
)
def test_what_settings_make_wrong_is_told_without_secrets(
    tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    database = derby(tmp_path)
    given = {"url": database.url, "jars": database.jars, **keys}
    with opened(tmp_path, **given) as (sink, made):
        problem = problem_of_batch(sink, made, [log_record(0)])
    assert said in problem
    assert "hush" not in problem


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"jars": ["nowhere/driver.jar"]}, r"sinks\.sink\.jars: nowhere/driver\.jar"),
        ({"url": "postgresql://hush@db/x"}, r"sinks\.sink\.url: it does not begin with jdbc:"),
        ({"url": {"file": "nowhere"}}, r"sinks\.sink\.url: .*nowhere"),
        ({"column_types": {"colour": "TEXT"}}, r"sinks\.sink\.column_types: colour"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    jar = tmp_path / "driver.jar"
    jar.touch()
    given = {"url": "jdbc:derby:x", "jars": [str(jar)], **keys}
    with pytest.raises(ConfigError, match=said) as refused, opened(tmp_path, **given):
        raise AssertionError("it was opened")
    assert "hush" not in f"{refused.value} {refused.value.fix}"


def test_a_preview_connects_to_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, url="jdbc:x", jars=[__file__]) as (sink, _):
        (shown,) = sink.preview(batch([log_record(0)]))
    assert (shown.target, shown.records) == ("INSERT INTO penstock", 1)
    assert json.loads(json.loads(shown.body)["record"])["body"] == "order 0 ☃"
