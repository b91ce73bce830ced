"""SQL over streams: what is read, what comes out, what is refused."""

import sys
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from penstock.logd.cli import cli
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.batch import Record
from tests.support.fake_log import FakeLog

SECOND = 10**9
HOUR_9 = 1_767_258_000 * SECOND
"""2026-01-01T09:00:00Z."""


@pytest.fixture
def log() -> FakeLog:
    made = FakeLog()
    records = [
        Record(
            f"t.{n % 2}",
            b'{"n":%d}' % n,
            HOUR_9 + n * SECOND,
            b"k%d" % n,
            (("level", b"error" if n % 10 == 0 else b"info"), ("twice", b"a"), ("twice", b"b")),
        )
        for n in range(100)
    ]
    made.add("logs", records, per_frame=10)
    made.add("two", records[:4], per_frame=2)
    made.add("two", records[4:6], per_frame=2, partition=1)
    made.add("my-stream", [Record("x", b"\xff\x1b[2J", 1)], per_frame=1)
    return made


@pytest.fixture
def large(log: FakeLog) -> FakeLog:
    log.add("large", [Record("t.a", b"", HOUR_9)] * 60_000, per_frame=1000)
    return log


def run(log: FakeLog, text: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["query", text, *words], obj=log.clients())


def rows(log: FakeLog, text: str, *words: str) -> list[dict[str, Any]]:
    done = run(log, text, *words, "--json")
    assert done.exit_code == 0, done.output
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def frames_read(log: FakeLog, stream: str = "logs") -> list[int]:
    return [base for name, base in log.read if name == stream]


def test_a_stream_is_a_table(log: FakeLog) -> None:
    (row,) = rows(log, "SELECT * FROM logs WHERE log_offset = 10")
    assert row == {
        "partition": 0,
        "log_offset": 10,
        "timestamp": "2026-01-01T09:00:10Z",
        "timestamp_ns": HOUR_9 + 10 * SECOND,
        "subject": "t.0",
        "key": "k10",
        "headers": {"level": "error", "twice": "b"},
        "value": '{"n":10}',
        "text": '{"n":10}',
    }
    found = rows(log, "SELECT subject, count(*) AS n FROM logs GROUP BY subject ORDER BY subject")
    assert found == [{"subject": "t.0", "n": 50}, {"subject": "t.1", "n": 50}]


def test_headers_of_one_name_and_of_bytes_are_text(log: FakeLog) -> None:
    headers = [((("a", b"1"), ("b", b"2"))), (), (("a", b"\xff"),), (("a", b"1"), ("a", b"2"))]
    for number, pairs in enumerate(headers):
        log.add(f"h{number}", [Record("x", b"", 1, None, tuple(pairs))], per_frame=1)
    found = [rows(log, f"SELECT headers AS h FROM h{n}")[0]["h"] for n in range(len(headers))]
    assert found[0] == {"a": "1", "b": "2"}
    assert not found[1]
    assert found[2:] == [{"a": "\xff"}, {"a": "2"}]


def test_json_and_headers_are_within_reach(log: FakeLog) -> None:
    text = "SELECT (text->>'$.n')::int AS n FROM logs WHERE headers['level'] = 'error' ORDER BY n"
    assert [row["n"] for row in rows(log, text)] == list(range(0, 100, 10))


def test_a_where_filters_what_is_read_and_the_whole_stream_is(log: FakeLog) -> None:
    text = "SELECT count(*) AS n FROM logs WHERE log_offset >= 95 AND subject = 't.0'"
    assert rows(log, text) == [{"n": 2}]
    assert frames_read(log) == list(range(0, 100, 10))


def test_a_query_without_a_range_says_that_it_reads_all(log: FakeLog) -> None:
    said = "reading all of logs, two; --from and --to read a part\n"
    assert said in run(log, "SELECT count(*) FROM logs, two").stderr
    for words in (["--from", "earliest"], ["--to", "latest"], ["--from", "5", "--to", "6"]):
        assert run(log, "SELECT count(*) FROM logs", *words).stderr == ""
    assert run(log, "SELECT 1").stderr == ""


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) AS n FROM logs a JOIN logs b USING (log_offset) WHERE a.log_offset >= 95",
        """WITH x AS (SELECT * FROM logs)
           SELECT count(*) AS n FROM x a JOIN x b USING (log_offset) WHERE a.log_offset >= 95""",
        """SELECT (SELECT count(*) FROM logs WHERE log_offset >= 95)
                + (SELECT count(*) * 0 FROM logs) AS n""",
    ],
)
def test_a_stream_that_is_named_twice_is_read_whole_each_time(log: FakeLog, text: str) -> None:
    assert rows(log, text) == [{"n": 5}]
    assert min(frames_read(log)) == 0


def test_options_bound_what_is_read(log: FakeLog) -> None:
    words = ["--from", "2026-01-01T09:00:30Z", "--to", "45"]
    (row,) = rows(log, "SELECT min(log_offset) AS a, max(log_offset) AS b FROM logs", *words)
    assert (row, frames_read(log)) == ({"a": 30, "b": 44}, [30, 40])


def test_only_what_is_asked_for_is_fetched(large: FakeLog) -> None:
    assert len(rows(large, "SELECT log_offset FROM large LIMIT 3")) == 3
    assert 0 < len(frames_read(large, "large")) < 60


def test_every_partition_is_read_unless_some_are_named(log: FakeLog) -> None:
    text = "SELECT partition, count(*) AS n FROM two GROUP BY ALL ORDER BY ALL"
    assert rows(log, text) == [{"partition": 0, "n": 4}, {"partition": 1, "n": 2}]
    assert rows(log, text, "--partition", "1") == [{"partition": 1, "n": 2}]
    done = run(log, text, "--partition", "2")
    assert (done.exit_code, "UNKNOWN_PARTITION" in done.stderr) == (1, True)


def test_people_get_a_table_that_moves_nothing(log: FakeLog) -> None:
    done = run(log, 'SELECT log_offset, value, text, NULL AS none FROM "my-stream"')
    assert done.stdout.splitlines() == [
        "log_offset  value        text  none",
        "         0  \\xff\\x1b[2J  NULL  NULL",
    ]
    (row,) = rows(log, 'SELECT value FROM "my-stream"')
    assert row == {"value_base64": "/xtbMko="}
    assert run(log, "SELECT log_offset FROM logs WHERE false").stdout == "log_offset\n"


def test_many_rows_are_laid_out_part_by_part(large: FakeLog) -> None:
    few = run(large, "SELECT log_offset FROM large WHERE log_offset % 997 = 0").stdout.splitlines()
    assert few == ["log_offset", *(str(number).rjust(10) for number in range(0, 60_000, 997))]
    many = run(large, "SELECT log_offset FROM large WHERE log_offset < 1500").stdout.splitlines()
    assert many.count("log_offset") == 2
    numbers = [line.strip() for line in many if line != "log_offset"]
    assert numbers == [str(number) for number in range(1500)]


def test_values_that_json_lacks_are_text(log: FakeLog) -> None:
    (row,) = rows(
        log,
        "SELECT 1.50::decimal(9,2) AS d, INTERVAL 1 HOUR AS i, DATE '2026-01-02' AS t,"
        " 100000000000000000000::hugeint AS h, ['a'::blob] AS l, {'x': 1} AS s, uuid() AS u,"
        " TIMESTAMP_NS '2026-01-01 00:00:00.000000001' AS n FROM range(1)",
    )
    assert (row["d"], row["t"], row["l"], row["s"]) == ("1.50", "2026-01-02", ["a"], {"x": 1})
    assert (len(row["u"]), row["n"]) == (36, "2026-01-01T00:00:00.000000001")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("DROP TABLE logs", "give one SELECT"),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", "give one SELECT"),
        ("SELECT * FROM read_csv('/etc/passwd')", "Permission Error"),
        ("SELECT nothing FROM logs", "nothing"),
        ("SELECT * FROM logs, LOGS", "differ only by case"),
    ],
)
def test_what_is_no_select_over_streams_is_wrong_usage(log: FakeLog, text: str, said: str) -> None:
    done = run(log, text)
    assert (done.exit_code, done.stdout) == (64, ""), done.output
    assert said in done.stderr


def test_all_columns_are_named_to_who_asks_for_another(log: FakeLog) -> None:
    done = run(log, 'SELECT "offset" FROM logs')
    assert (done.exit_code, done.stdout) == (64, "")
    assert "A stream's columns: partition, log_offset, timestamp, " in done.stderr
    assert "columns" not in run(log, "SELECT 1 +").stderr


def test_a_stream_that_is_not_there_is_refused(log: FakeLog) -> None:
    for name in ("nothing", "progress", "Logs", '"a b"'):
        done = run(log, f"SELECT * FROM {name}")
        assert done.exit_code == 1, done.output
        assert "UNKNOWN_STREAM" in done.stderr
        assert "fix: list the streams" in done.stderr


def test_what_breaks_reading_is_said_as_everywhere(log: FakeLog) -> None:
    log.broken = RefusedError("STREAM_RECREATED", "stream 'logs' was deleted and made again")
    done = run(log, "SELECT count(*) FROM logs", "--from", "0")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: stream 'logs' was deleted and made again (STREAM_RECR")
    log.broken = CorruptError("offsets 3 to 5 are missing")
    assert isinstance(run(log, "SELECT count(*) FROM logs").exception, SystemExit)


def test_memory_is_bounded(log: FakeLog) -> None:
    text = "SELECT list(a.text || b.text || c.text) FROM logs a, logs b, logs c"
    done = run(log, text, "--memory", "20MB")
    assert (done.exit_code, done.stdout) == (71, ""), done.output
    assert "fix: give it more with --memory" in done.stderr
    assert run(log, "SELECT 1", "--memory", "lots").exit_code == 64


def test_without_duckdb_the_extra_is_named(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)  # as where it is not installed
    done = run(log, "SELECT 1")
    assert done.exit_code == 69
    assert "[query]'" in done.stderr
