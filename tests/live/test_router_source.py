"""The data source with a real Spark and a real logd."""

import io
import json
import os
import random
import re
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock import router
from penstock.base.clock import SystemClock
from penstock.logd.publisher import BlockingPublisher
from penstock.logd.storage import CommitLog, LogConfig
from penstock.router.columns.filters import columns_of, passing
from penstock.router.columns.passthrough import PASSTHROUGH, lost_of, unpack
from penstock.router.columns.pushdown import need_of
from penstock.router.columns.schema import view
from penstock.router.spark.readers import Steps, read_passthrough
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.router import FIRST_TIME_NS, STREAMS, log_line, publish, span_line
from tests.support.sink_batches import gauge_record
from tests.support.spark import running_spark
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LOGS = [log_line(number, severity=17 if number % 5 == 0 else 9) for number in range(3500)]
ODD = [b"not json", b"\xff\xfe\x00", b'{"kind": "log", "severity_number": "high"}', b""]
SPANS = [span_line(number) for number in range(1200)]
NOISE = [random.Random(number).randbytes(100) for number in range(3000)]
ROTTEN = {"name": "rotten", "subject": "telemetry.rotten.>"}
HEADED = {"name": "headed", "subject": "telemetry.headed.>"}
HEADERS = {"Traceparent": "00-1-2-01", "Empty": "", "Nats-Msg-Id": "☃"}
CLOCK = {"name": "clock", "subject": "telemetry.clock.>"}
LATER = {"name": "later", "subject": "telemetry.later.>"}
SHORT = {"name": "short", "subject": "telemetry.short.>", "max_segment_bytes": 65536}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session.spark


@pytest.fixture(scope="module")
def logd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logd]:
    directory = tmp_path_factory.mktemp("log")
    with (
        running_nats_server(directory / "nats") as url,
        Logd(directory / "logd", url, [*STREAMS, SHORT, HEADED, ROTTEN, CLOCK, LATER]) as running,
    ):
        publish(url, "telemetry.logs.checkout", LOGS + ODD)
        publish(url, "telemetry.traces.checkout", SPANS)
        publish(url, "telemetry.short.x", NOISE)
        publish(url, "telemetry.rotten.x", NOISE, records=100)
        with BlockingPublisher(url) as publisher:
            message_id = HEADERS["Nats-Msg-Id"]
            headers = {name: HEADERS[name] for name in ("Traceparent", "Empty")}
            publisher.publish("telemetry.headed.a", b"a", headers=headers, message_id=message_id)
        publish(url, "telemetry.headed.b", [b"b"])
        yield running


def options(logd: Logd, **more: str) -> dict[str, str]:
    return {"logd": logd.fetch, "subscribe": "logs,traces"} | more


def read(spark: SparkSession, logd: Logd, **more: str) -> DataFrame:
    return spark.read.format("logd").options(**options(logd, **more)).load()


def in_order_of(frame: DataFrame, column: str) -> pa.Table:
    table: pa.Table = frame.toArrow()
    return table.sort_by([(column, "ascending")])


def in_order(frame: DataFrame) -> pa.Table:
    table: pa.Table = frame.toArrow()
    return table.sort_by([("stream", "ascending"), ("offset", "ascending")])


def test_a_batch_has_every_record_as_it_lies_in_the_log(spark: SparkSession, logd: Logd) -> None:
    rows = in_order(read(spark, logd))
    assert rows["value"].to_pylist() == LOGS + ODD + SPANS
    assert rows["offset"].to_pylist() == [*range(3504), *range(1200)]
    assert rows["timestamp_ns"].to_pylist()[:3504] == [FIRST_TIME_NS + n for n in range(3504)]
    assert rows["timestamp"].cast(pa.int64())[3].as_py() == FIRST_TIME_NS // 1000
    assert set(rows["subject"].to_pylist()) == {
        "telemetry.logs.checkout",
        "telemetry.traces.checkout",
    }


def test_a_batch_has_exactly_the_offsets_asked_for(spark: SparkSession, logd: Logd) -> None:
    rows = in_order(
        read(
            spark,
            logd,
            startingOffsets='{"logs": {"0": 997}, "traces": {"0": -1}}',
            endingOffsets='{"logs": {"0": 2003}}',
            minPartitions="7",
            includeHeaders="true",
        )
    )
    assert rows["value"].to_pylist() == LOGS[997:2003]
    assert rows["offset"].to_pylist() == list(range(997, 2003))
    assert "headers" in rows.column_names


def test_headers_are_a_map_with_the_bytes_of_each(spark: SparkSession, logd: Logd) -> None:
    wanted = {"subscribe": "headed", "includeHeaders": "true"}
    frame = read(spark, logd, **wanted)
    values = {name: text.encode() for name, text in HEADERS.items()}
    assert [row["headers"] for row in frame.orderBy("offset").collect()] == [values, None]
    found = frame.where("cast(headers['Traceparent'] as string) = '00-1-2-01'").toArrow()
    assert found["value"].to_pylist() == [b"a"]
    only = read(spark, logd, **wanted, subject="telemetry.*.b")
    assert [row["value"] for row in only.collect()] == [b"b"]


def test_typed_columns_keep_malformed_rows_with_their_bytes(
    spark: SparkSession, logd: Logd
) -> None:
    frame = router.all_kinds(spark, options(logd), streaming=False)
    errors = frame.where("kind = 'log' and severity_number >= 17 and service = 'checkout'")
    assert errors.count() == 700
    spans = frame.where("status_code = 'OK' and name like 'GET %' and attributes is null")
    assert spans.count() == 1200
    assert frame.where(
        "attributes['number'] = '7' and attributes['tags'] = '[\"a\",\"b\"]'"
    ).count()
    odd = in_order(frame.where("malformed").select("stream", "offset", "kind", "value"))
    assert odd["value"].to_pylist() == ODD
    assert odd["kind"].to_pylist() == ["raw", "raw", "log", "raw"]


def test_a_stream_reads_each_record_once_in_bounded_batches(
    spark: SparkSession, logd: Logd, tmp_path: Path
) -> None:
    """With `Trigger.Once`, which Spark has never let a limit cut, in one; and later in none."""
    frame = (
        spark.readStream.format("logd")
        .options(
            logd=logd.fetch,
            subscribe="logs,traces",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="2000",
        )
        .load()
    )

    def run(checkpoint: Path, **trigger: Any) -> list[pa.Table]:
        got: list[pa.Table] = []
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: got.append(rows.toArrow()))
            .option("checkpointLocation", str(checkpoint))
            .trigger(**trigger)
            .start()
        )
        assert query.awaitTermination(180)
        return got

    got = run(tmp_path / "checkpoint", availableNow=True)
    assert [0 < table.num_rows <= 2000 for table in got] == [True] * 3
    rows = pa.concat_tables(got).sort_by([("stream", "ascending"), ("offset", "ascending")])
    assert rows["value"].to_pylist() == LOGS + ODD + SPANS
    (once,) = run(tmp_path / "once", once=True)
    assert sorted(once["value"].to_pylist()) == sorted(rows["value"].to_pylist())
    assert run(tmp_path / "once", once=True) == []


def plan_of(rows: DataFrame, part: str) -> list[str]:
    """The lines of one of the plans that `explain` prints."""
    with redirect_stdout(io.StringIO()) as printed:
        rows.explain(extended=True)
    text = printed.getvalue().partition(part)[2].partition("\n\n")[0].partition("\n==")[0]
    return [line for line in text.splitlines() if line.strip()]


def test_a_batch_writes_its_checkpoint_without_checksums_beside(
    spark: SparkSession, logd: Logd, tmp_path: Path
) -> None:
    """Hadoop starts a program for each file."""
    checkpoint = tmp_path / "checkpoint"
    query = (
        spark.readStream.format("logd")
        .options(**options(logd, startingOffsets="earliest", maxOffsetsPerTrigger="1000"))
        .load()
        .writeStream.foreachBatch(lambda *_: None)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    written = checkpoint / "offsets" / "1"
    assert oct(written.stat().st_mode & 0o777) == oct(0o666 & ~0o022)
    assert list(checkpoint.rglob(".*")) == []


def test_a_view_reads_no_more_than_a_query_needs(spark: SparkSession, logd: Logd) -> None:
    where = (
        "severity_number >= 17 and service = 'checkout' and subject like 'telemetry.logs.%'"
        " and (body like '%order%' or body is null) and length(body) > 3"
    )
    rows = router.logs(
        spark, options(logd), columns=["offset", "body"], where=where, streaming=False
    )
    *_, relation = plan_of(rows, "== Analyzed Logical Plan ==")
    needed = {"offset", "subject", "service", "severity_number", "body"}
    columns = relation.partition("[")[2].partition("]")[0]
    assert {it.strip().partition("#")[0] for it in columns.split(",")} == needed, relation
    assert in_order_of(rows, "offset")["offset"].to_pylist() == list(range(0, 3500, 5))
    by_source = spark.read.format("logd").options(
        **options(logd, view="logs", columns="offset", filter='["=", "severity_number", 17]')
    )
    assert by_source.load().count() == 700


NUMBERS = ("1", "double('NaN')")


def a_condition(dice: random.Random, depth: int = 0) -> str:
    """One of a small grammar of Spark SQL; some look at the clock, some may be NULL."""
    if depth < 3 and dice.random() < 0.6:
        parts = [a_condition(dice, depth + 1) for _ in range(2)]
        shape = dice.choice(
            ["({0} and {1})", "({0} or {1})", "(not {0})", "coalesce({0}, {1})",
             "if({0}, {1}, false)", "(case when {0} then {1} end)", "(({0}) <=> ({1}))"]
        )  # fmt: skip
        return shape.format(*parts)
    moment = dice.choice(
        ["current_timestamp()", "now()", "localtimestamp()", "cast('now' as timestamp)",
         "to_timestamp('now')", "to_timestamp(unix_timestamp())"]
    )  # fmt: skip
    moment += f" + make_dt_interval(0, 0, 0, {dice.choice([-3, -1, 0, 1, 3])})"
    return dice.choice(
        [
            f"time {dice.choice(['<', '<=', '>', '>='])} {moment}",
            f"time between {moment} and now() + interval 1 hour",
            "to_date(time) = current_date()",
            "to_date(time) > date('yesterday')",
            f"{moment} > timestamp '2026-01-01 00:00:00'",
            "current_date() < date '2026-01-01'",
            f"severity_number {dice.choice(['=', '<', '>=', '<>', '<=>'])} {dice.choice([9, 17])}",
            f"kind {dice.choice(['=', '<>', '<=>'])} '{dice.choice(['log', 'span'])}'",
            "service in ('checkout', 'x')",
            f"body {dice.choice(['like', 'not like'])} '%{dice.randint(0, 9)}%'",
            f"name is {dice.choice(['', 'not '])}null",
            f"cast(offset as string) > '{dice.randint(0, 60)}'",
            f"offset < {dice.randint(0, 60)}",
            "subject = 'telemetry.clock.a'",
            f"time >= '2026-0{dice.randint(1, 9)}-01'",
            f"service = {dice.choice(['current_user()', 'nullif(service, service)'])}",
        ]
    )


def test_the_source_leaves_out_no_row_that_a_condition_wants_now_or_later(
    spark: SparkSession, logd: Logd
) -> None:
    """The filters are made first. The rows are judged afterwards, when more of them are past."""
    seed = int(os.environ.get("SEED", "20261126"))
    dice = random.Random(seed)
    plain = ["time < now()", "kind = 'log' and time <= current_timestamp()"]
    plain += [f"metric_value {how} {number}" for how in (">", "<=", "=") for number in NUMBERS]
    conditions = [*plain, *(a_condition(dice) for _ in range(30))]
    whole = view("records")
    rows = spark.readStream.format("logd").schema(whole.struct())
    reader = rows.options(logd=logd.fetch, view="records", subscribe="-")
    needs = [need_of(reader.load().where(text), whole) for text in conditions]
    begin_ns = SystemClock().unix_ns()  # what was `now()` before that leaves most records out
    coming = [log_line(number, severity=9 + number % 2 * 8) for number in range(60)]
    ahead = [begin_ns + number * 5 * 10**7 for number in range(-5, 55)]
    lines = [
        json.dumps(json.loads(line) | {"time_unix_nano": at}).encode()
        for line, at in zip(coming, ahead, strict=True)
    ]
    values = (0.5, 1.5, "NaN", "Infinity", "-Infinity", None)
    points = [json.dumps(gauge_record(0, value=it)).encode() for it in values]
    lines += [*points, *SPANS[:10], *ODD]
    publish(logd.config["nats"]["url"], "telemetry.clock.a", lines)
    given = options(logd, subscribe="clock")
    looked_at = sorted(set().union(*(columns_of(need.only) for need in needs)))
    wait_until(
        lambda: SystemClock().unix_ns() > ahead[40], what="40 of the records are in the past"
    )
    judged = router.all_kinds(spark, given, streaming=False).select(
        *looked_at, *(F.expr(text).alias(f"c{n}") for n, text in enumerate(conditions))
    )
    table: pa.Table = judged.toArrow().combine_chunks()
    assert table.num_rows == 74 + len(points)
    for number, (text, need) in enumerate(zip(conditions, needs, strict=True)):
        wanted = pc.fill_null(table[f"c{number}"].combine_chunks(), fill_value=False)
        if need.only is not None:
            passes = passing(need.only, lambda name: table[name].combine_chunks())
            missing = pc.and_(wanted, pc.invert(passes))
            assert not pc.any(missing).as_py(), f"SEED={seed}: {text} became {need.only}"
    assert sum(need.only is not None for need in needs) > 5, "something is left to the source"


def test_a_condition_on_the_clock_takes_what_comes_later(
    spark: SparkSession, logd: Logd, tmp_path: Path
) -> None:
    """The push-down once computed `now()` when the query started, and left out what came later."""
    got: list[str] = []
    where = "kind = 'log' and time < now() + interval 1 second and time > date('yesterday')"
    given = options(logd, subscribe="later", startingOffsets="earliest")
    query = (
        router.logs(spark, given, columns=["body"], where=where)
        .writeStream.foreachBatch(lambda rows, _: got.extend(rows.toArrow()["body"].to_pylist()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        started_ns = SystemClock().unix_ns()
        for number in range(2):
            later_ns = started_ns + number * 3 * 10**9
            wait_until(lambda: SystemClock().unix_ns() > later_ns, what="more is past")  # noqa: B023
            line = json.loads(log_line(number)) | {"time_unix_nano": SystemClock().unix_ns()}
            publish(logd.config["nats"]["url"], "telemetry.later.a", [json.dumps(line).encode()])
            wait_until(lambda: len(got) > number, within_s=30, what=f"record {number} arrives")  # noqa: B023
    finally:
        query.stop()
    assert got == [json.loads(log_line(number))["body"] for number in range(2)]


def test_a_batch_takes_conditions_over_from_spark(spark: SparkSession, logd: Logd) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    try:
        rows = read(spark, logd, pushFilters="true", view="records").where(
            "kind = 'span' and offset < 10 and time is not null and name like 'GET %'"
        )
        assert rows.count() == 10
        plan = plan_of(rows, "== Physical Plan ==")
        assert [
            line for line in plan if line.lstrip(" +-*:()0123456789").startswith("Filter")
        ] == []
    finally:
        spark.conf.unset(name)


def test_a_schema_may_be_cut_to_some_columns(spark: SparkSession, logd: Logd) -> None:
    rows = spark.read.format("logd").schema("offset long, value binary")
    table = rows.options(**options(logd, subscribe="traces")).load().toArrow()
    assert table.column_names == ["offset", "value"]
    assert sorted(table["value"].to_pylist()) == sorted(SPANS)
    with pytest.raises(PySparkException, match="'offset' of view raw is of type bigint, not int"):
        spark.read.format("logd").schema("offset int").options(**options(logd)).load().count()


def test_times_are_looked_up_in_the_log(spark: SparkSession, logd: Logd) -> None:
    """Timestamps are a nanosecond apart: all records are at the same millisecond."""
    time_ms = str(FIRST_TIME_NS // 10**6)
    assert read(spark, logd, startingTimestamp=time_ms).count() == 4704
    assert read(spark, logd, endingTimestamp=time_ms).count() == 0
    early = {"endingOffsetsByTimestamp": json.dumps({"logs": {"0": int(time_ms)}})}
    assert read(spark, logd, **early).count() == 1200, "traces to their end, and no logs"
    late = {"startingOffsetsByTimestamp": json.dumps({"logs": {"0": FIRST_TIME_NS // 10**6 + 1}})}
    with pytest.raises(PySparkException, match="logs/0 has no record at or after"):
        read(spark, logd, **late).count()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert read(spark, logd, **late).count() == 1200


def test_streams_that_are_made_while_a_query_runs_are_read(
    spark: SparkSession, logd: Logd, tmp_path: Path
) -> None:
    got: list[pa.Table] = []
    chosen = options(logd, subscribePattern="more[0-9]*", startingOffsets="latest")
    del chosen["subscribe"]
    query = (
        router.raw(spark, chosen, columns=["stream", "value"])
        .writeStream.foreachBatch(lambda rows, _: got.append(rows.toArrow()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress, within_s=60, what="the query runs")
        with logd.client() as log:
            log.create_stream("more1", "telemetry.more1.>")
        publish(logd.config["nats"]["url"], "telemetry.more1.x", SPANS[:7])
        wait_until(lambda: sum(t.num_rows for t in got) >= 7, within_s=60, what="its records")
    finally:
        query.stop()
    rows = pa.concat_tables(got)
    assert rows["stream"].to_pylist() == ["more1"] * 7
    assert rows["value"].to_pylist() == SPANS[:7]


def test_records_that_are_gone_are_an_error_and_not_a_gap(spark: SparkSession, logd: Logd) -> None:
    first = lose_the_beginning(logd)
    whole = {"subscribe": "short", "startingOffsets": '{"short": {"0": 0}}'}
    with pytest.raises(PySparkException, match=r"(?s)DataLossError.*but the log has 1000 to 2999"):
        read(spark, logd, **whole).count()
    left = in_order(read(spark, logd, failOnDataLoss="false", **whole))
    assert left["value"].to_pylist() == NOISE[first:]


def test_a_frame_that_rots_under_a_running_logd_is_an_error_or_passed_over(
    spark: SparkSession, logd: Logd
) -> None:
    """Of a stream that is not encrypted, read whole: logd has not looked at it since it began."""
    whole = {"subscribe": "rotten", "startingOffsets": "earliest"}
    assert in_order(read(spark, logd, **whole))["value"].to_pylist() == NOISE
    (file,) = (logd.data_dir / "streams").glob("rotten*/0/*.log")
    with file.open("r+b") as segment:
        at = segment.read().index(NOISE[1500])
        segment.seek(at)
        segment.write(bytes([NOISE[1500][0] ^ 1]))
    with pytest.raises(PySparkException, match=r"(?s)rotten/0: offsets 1500 to 1599 are damaged"):
        read(spark, logd, **whole).count()
    left = in_order(read(spark, logd, failOnDataLoss="false", **whole))
    assert left["value"].to_pylist() == NOISE[:1500] + NOISE[1600:]
    with logd.client() as log:
        assert "rotten" in str(log.gaps().damaged)
    given = options(logd, failOnDataLoss="false", **whole)
    for condition in ("body is null", "kind = 'log'"):  # true of all rows, or of none
        passed_through = read_passthrough(
            spark, given, lambda rows: rows, classify_answer(condition), ["offset"], streaming=False
        ).toArrow()
        assert lost_of(passed_through) == 100
        rows = unpack(passed_through, "wanted", pa.schema([("offset", pa.int64())]))
        assert rows.num_rows == (2900 if "null" in condition else 0)


def test_the_python_of_the_documents_runs_as_it_is_written(spark: SparkSession, logd: Logd) -> None:
    """But for the address, which is this test's."""
    text = Path("docs/router/data-source.md").read_text().replace("127.0.0.1:9293", logd.fetch)
    blocks = re.findall(r"^    from penstock.*\n(?:(?:    .*)?\n)+", text, re.MULTILINE)
    assert len(blocks) == 2
    names: dict[str, Any] = {"spark": spark}
    for block in blocks:
        exec(textwrap.dedent(block), names)
    assert names["errors"].columns == ["time", "service", "body", "attributes"]
    assert names["errors"].isStreaming
    assert names["frame"].count() == len(LOGS + ODD)


def classify_answer(condition: str) -> Steps:
    """Says 1 of rows for which it holds."""

    def judged(rows: DataFrame) -> DataFrame:
        kept = [name for name in rows.columns if name == PASSTHROUGH]
        return rows.select(*kept, F.expr(f"if({condition}, 1, null)").alias("wanted"))

    return judged


def lose_the_beginning(logd: Logd) -> int:
    """Delete the first segments of `short`, as retention does; returns the first offset left."""
    assert logd.daemon.stop() == 0
    (directory,) = (logd.data_dir / "streams").glob("short*/0")
    log = CommitLog.open(directory, LogConfig())
    first = log.delete_before(1500)
    log.close()
    assert first == 1000
    logd.daemon.start()
    return first
