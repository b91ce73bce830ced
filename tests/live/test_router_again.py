"""Routing in Spark, previews, replays and dead letters, on one Spark session and one real log."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pytest
import yaml

from penstock.base.clock import SystemClock
from penstock.router.checkpoint.journal import BatchJournal
from penstock.router.columns.filters import filter_to_json, subject_of
from penstock.router.columns.passthrough import PASSTHROUGH
from penstock.router.columns.pushdown import need_of
from penstock.router.columns.schema import view
from penstock.router.deadletters.replayable import find_dead_letters
from penstock.router.deadletters.writer import Reason, send_to_dlq
from penstock.router.job.config import JobConfig
from penstock.router.job.preview import last_records, preview, text
from penstock.router.job.route_task import ROUTE_COLUMN
from penstock.router.job.routes import Routed, rows_for, steps_to
from penstock.router.read.logd_reader import LogdReader
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.replay.backfill import backfill
from penstock.router.replay.bounded_run import BoundedRun, collect
from penstock.router.replay.dead_letters import replay_dead_letters
from penstock.router.spark.session import Session
from penstock.router.streaming.batches import logd_options
from penstock.service import ConfigError, load_config
from tests.support.http_sink import HttpDestination
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.processes import arguments_of
from tests.support.router import log_line, publish, read_lake
from tests.support.sink_batches import batch, log_record
from tests.support.spark import gateway_of, running_spark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

AT = StreamPartition("logs", 0)
COUNT = 400
LINES = [log_line(number, severity=17 if number % 4 == 0 else 9) for number in range(COUNT)]
STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]
ODD = b"no record"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module")
def logd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logd]:
    directory = tmp_path_factory.mktemp("log")
    with (
        running_nats_server(directory / "nats") as nats_url,
        Logd(directory / "logd", nats_url, STREAMS) as running,
    ):
        publish(nats_url, "telemetry.logs.x", [*LINES, ODD])
        yield running


@pytest.fixture
def destination() -> Iterator[HttpDestination]:
    its = HttpDestination()
    its.open()
    yield its
    its.close()


def job(directory: Path, logd: Logd, **keys: Any) -> JobConfig:
    path = directory / "job.yaml"
    document = {
        "job": "test",
        "logd": logd.fetch,
        "streams": ["logs"],
        "checkpoint_dir": str(directory / "checkpoint"),
        "routes": [{"name": "all", "sinks": ["lake"]}],
        "sinks": {"lake": {"type": "parquet", "path": str(directory / "lake")}},
    }
    path.write_text(yaml.safe_dump(document | keys))
    return load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER", environ={})


def bounded(config: JobConfig, spark: Session) -> BoundedRun:
    clock = SystemClock()
    with LogdReader(config.logd, retry_timeout_s=10, clock=clock) as log:
        state = log.state(("logs",))
    return BoundedRun(config, spark, state, None, clock)


ROUTES = [
    {
        "name": "errors",
        "where": "severity_number >= 17",
        "transforms": [{"drop": ["body"]}],
        "sinks": ["one"],
    },
    {"name": "early", "where": "attributes['number'] < 100", "sinks": ["one", "two"]},
]
TWO = {name: {"type": "console"} for name in ("one", "two")}


@pytest.mark.parametrize("malformed", ["dead_letters", "route"])
@pytest.mark.parametrize("routing", ["fan_out", "first_match"])
def test_each_sink_gets_what_its_routes_take(
    tmp_path: Path, logd: Logd, spark: Session, routing: str, malformed: str
) -> None:
    """And what is no record, of which no condition is known to be false, to be laid aside."""
    keys = {"routing": routing, "on_malformed": malformed, "unmatched": {"sinks": ["two"]}}
    config = job(tmp_path, logd, routes=ROUTES, sinks=TWO, **keys)
    run = bounded(config, spark)
    chunk = last_records(run, COUNT + 1)
    want: dict[str, list[tuple[int, int]]] = {"one": [], "two": []}
    for number in range(COUNT + 1):
        is_error, is_early = number % 4 == 0 and number < COUNT, number < 100
        if number == COUNT and malformed == "dead_letters":
            want["one"].append((number, 0))
            want["two"].append((number, 0))
            continue
        taken = [index for index, takes in enumerate((is_error, is_early)) if takes]
        taken = taken[:1] if routing == "first_match" else taken
        leading = taken or [2]
        if {0, 1} & set(leading):
            want["one"].append((number, leading[0]))
        if {1, 2} & set(leading):
            want["two"].append((number, 0))
    one = run.read(chunk, steps_to("one", config, ["offset", ROUTE_COLUMN]))
    assert sorted(map(tuple, (row.values() for row in one.to_pylist()))) == want["one"]
    two = run.read(chunk, lambda frame: rows_for("two", config, frame))
    assert sorted(two["offset"].to_pylist()) == [number for number, _ in want["two"]]
    assert ROUTE_COLUMN not in two.column_names, "nothing is done to what goes there"
    for sink, more in (("one", [ROUTE_COLUMN]), ("two", [])):
        names = [column.name for column in view("records").columns if column.name != "kind"]
        same = run.read(chunk, steps_to(sink, config, [*names, *more]))
        table, _ = passed_through(run, spark, sink, [*names, *more])
        assert in_order(table) == in_order(same), sink


def passed_through(
    run: BoundedRun, spark: Session, sink: str, columns: list[str]
) -> tuple[pa.Table, pa.Table]:
    """The rows for a sink as a job reads them, and what Spark had of these; in three pieces."""
    chunk = last_records(run, COUNT + 1)
    options = logd_options(run.config, Offsets(chunk.start), Offsets(chunk.end))
    routed = Routed(run.config, sink, columns)
    frame = routed.frame(spark.spark, options | {"minPartitions": "3"}, streaming=False)
    seen = collect(frame)
    return routed.unpacking.collected(seen), seen


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: int(row["offset"]))


@pytest.mark.parametrize("condition", [None, "severity_number >= 17", "hash(body) % 2 = 0"])
def test_spark_gets_one_row_for_many_where_no_condition_is_left_to_it(
    tmp_path: Path, logd: Logd, spark: Session, condition: str | None
) -> None:
    route = {"name": "all", "sinks": ["lake"]} | ({"where": condition} if condition else {})
    run = bounded(job(tmp_path, logd, routes=[route], on_malformed="route"), spark)
    table, seen = passed_through(run, spark, "lake", ["offset", "value"])
    assert seen.column_names == [PASSTHROUGH, ROUTE_COLUMN]
    lines = [line for line in (*LINES, ODD) if condition is None or line != ODD]
    if condition is None:
        assert [row["value"] for row in in_order(table)] == lines
        assert seen.num_rows == 3
    elif condition.startswith("severity"):
        assert [row["value"] for row in in_order(table)] == lines[::4]
        assert seen.num_rows == len(lines[::4]), "the source knows it, too"
    else:
        assert 0 < table.num_rows < COUNT
        assert seen.num_rows == COUNT + 1


def test_a_preview_counts_and_shows_requests_and_sends_nothing(
    tmp_path: Path, logd: Logd, spark: Session, destination: HttpDestination
) -> None:
    steps = [
        {"mask": {"fields": ["body"]}},
        {"drop": ["attributes.nobody.has.it"]},
        {"sample": {"rate": 1e-9}},
    ]
    bad = {"name": "bad", "where": "severity_number >= 17", "sinks": ["hook"]}
    routes = [{"name": "all", "sinks": ["lake"]}, bad | {"transforms": steps[:2]}]
    sinks = {
        "lake": {"type": "parquet", "path": str(tmp_path / "lake")},
        "hook": {"type": "http", "url": destination.url, "headers": {"Authorization": "secret"}},
    }
    config = job(tmp_path, logd, routes=routes, sinks=sinks)
    run = bounded(config, spark)
    shown = preview(run, last_records(run, 101), ("hook",))
    assert [(it.name, it.records) for it in shown.routes] == [
        ("all", 100),
        ("bad", 25),
        ("(else)", 0),
        ("(malformed)", 1),
    ]
    (hook,) = shown.sinks
    assert (hook.routed, hook.malformed, hook.written) == (25, 1, 25)
    assert sum(request.records for request in hook.requests) == 25
    said = text(config, shown, whole=True)
    assert [(it.route, it.step, it.records) for it in hook.steps] == [
        ("bad", "mask", 25),
        ("bad", "drop", 0),
    ]
    assert "  mask of route bad changed 25 records\n  drop of route bad changed 0 records\n" in said
    only = {"hook": sinks["hook"]}
    sampled = job(tmp_path, logd, routes=[bad | {"transforms": steps}], sinks=only)
    run = bounded(sampled, spark)
    all_left_out = preview(run, last_records(run, 101), ("hook",))
    (hook,) = all_left_out.sinks
    assert [it.records for it in hook.steps] == [25, 0, 25]
    assert (hook.routed, hook.written) == (25, 0)
    assert "  sample of route bad left out 25 records" in text(sampled, all_left_out, whole=True)
    assert "order " not in said, "what is masked is shown to nobody"
    assert "secret" not in said
    assert json.loads(json.dumps(shown.as_json()))["records"] == 101
    assert destination.requests == []
    assert not (tmp_path / "lake").exists()
    assert not (tmp_path / "checkpoint").exists()


def test_the_source_makes_only_what_routes_and_sink_need(
    tmp_path: Path, logd: Logd, spark: Session
) -> None:
    where = "subject = 'telemetry.logs.x' and kind in ('log', 'span') and severity_number >= 17"
    routes = [{"name": "errors", "where": where, "sinks": ["one"]}]
    whole = view("records")
    reader = spark.spark.readStream.format("logd").schema(whole.struct())
    template = reader.options(logd=logd.fetch, view="records", subscribe="-").load()
    needs = {}
    for malformed in ("dead_letters", "route"):
        config = job(
            tmp_path, logd, routes=routes, on_malformed=malformed, sinks={"one": TWO["one"]}
        )
        needs[malformed] = need_of(steps_to("one", config, ["offset", "body"])(template), whole)
    routed, aside = needs["route"], needs["dead_letters"]
    assert set(routed.columns) == {"offset", "subject", "kind", "severity_number", "body"}
    assert set(aside.columns) == {*routed.columns, "malformed"}
    assert subject_of(routed.only) == subject_of(aside.only) == "telemetry.logs.x"
    said = json.dumps(filter_to_json(aside.only)) if aside.only else ""
    for each in ('["in", "kind", ["log", "span"]]', '[">=", "severity_number", 17]'):
        assert f'["or", {each}, ["=", "malformed", true]]' in said


def files(lake: Path) -> set[str]:
    return {path.name for path in lake.rglob("*.parquet")}


def test_a_replay_makes_the_batches_that_the_sink_knows(
    tmp_path: Path, logd: Logd, spark: Session
) -> None:
    config = job(tmp_path, logd, trigger={"max_records": 90})
    run = bounded(config, spark)
    said: list[str] = []
    home = tmp_path / "checkpoint" / "lake"
    home.mkdir(parents=True)
    first = backfill(run, "lake", {AT: 0}, {AT: COUNT}, said.append)
    assert first == COUNT
    assert said[0] == "batch 1 of 5: 90 records, logs/0 0 to 89"
    before = files(tmp_path / "lake")
    journal = BatchJournal(home)
    for end in (90, 180, 270, 360, COUNT):
        journal.note(Offsets({AT: end}, run.state.stream_ids))
    said.clear()
    assert backfill(run, "lake", {AT: 100}, {AT: 200}, said.append) == 180
    assert said == [
        "batch 1 of 2: 90 records, logs/0 90 to 179",
        "batch 2 of 2: 90 records, logs/0 180 to 269",
    ]
    assert files(tmp_path / "lake") == before
    assert read_lake(tmp_path / "lake")["value"].to_pylist() == LINES
    with pytest.raises(ConfigError, match="nothing between"):
        backfill(run, "lake", {AT: 50}, {AT: 50}, said.append)


def test_letters_go_to_the_sink_and_what_is_refused_again_is_a_dead_letter_again(
    tmp_path: Path, logd: Logd, spark: Session, destination: HttpDestination
) -> None:
    routes = [{"name": "all", "transforms": [{"mask": {"fields": ["body"]}}], "sinks": ["hook"]}]
    sinks = {"hook": {"type": "http", "url": destination.url}}
    config = job(tmp_path, logd, routes=routes, sinks=sinks)
    run = bounded(config, spark)
    context = run.context("hook", tmp_path / "state")
    wanted = ["stream", "partition", "offset", "subject", "value"]
    rows = run.read(last_records(run, 4), lambda frame: frame.select(*wanted))
    send_to_dlq(rows, Reason("http_400", "not now", status=400), context)
    dead_letters = find_dead_letters(config.dead_letters)
    said: list[str] = []
    assert replay_dead_letters(run, dead_letters, None, said.append) == 3
    assert said == [f"{dead_letters[0].name}: 3 of 4 to hook, 1 refused again"]
    sent = [record["attributes"]["number"] for record in destination.records]
    assert sent == [COUNT - 3, COUNT - 2, COUNT - 1]
    assert {record["body"] for record in destination.records} == {"***"}
    (again,) = find_dead_letters(config.dead_letters)
    (dead_letter,) = again.dead_letters()
    assert (dead_letter["value"], dead_letter["code"]) == (ODD.decode(), "malformed")
    assert [it.state for it in find_dead_letters(config.dead_letters, done=True)] == [
        "done",
        "waiting",
    ]
    assert isinstance(rows, pa.Table)


def test_many_small_files_of_dead_letters_are_delivered_together(
    tmp_path: Path, logd: Logd, spark: Session, destination: HttpDestination
) -> None:
    """A Spark job, a request and six syncs of directories for each took 71 s for 550 files."""
    routes = [{"name": "all", "sinks": ["hook"]}]
    config = job(
        tmp_path, logd, routes=routes, sinks={"hook": {"type": "http", "url": destination.url}}
    )
    run = bounded(config, spark)
    context = run.context("hook", tmp_path / "state")
    rows = batch([log_record(number) for number in range(60)])
    for number in range(60):
        send_to_dlq(rows.slice(number, 1), Reason("http_400", "not now", status=400), context)
    dead_letters = find_dead_letters(config.dead_letters)
    assert len(dead_letters) == 60
    said: list[str] = []
    assert replay_dead_letters(run, dead_letters, None, said.append) == 60
    assert len(said) == 1
    assert len(destination.requests) == 1
    assert [it["attributes"]["number"] for it in destination.records] == [*range(60)]
    assert find_dead_letters(config.dead_letters) == []


OF_STARTS: Final = ("lookup_data_sources", "create_data_source", "plan_data_source_read")


def processes_of_starts(session: Session) -> list[psutil.Process]:
    """Those of Python in which Spark looked the source up, and planned to read it."""
    tree = psutil.Process(gateway_of(session.spark).proc.pid).children(recursive=True)
    names = {f"pyspark.sql.worker.{name}" for name in OF_STARTS}
    return [it for it in tree if names.intersection(arguments_of(it))]


def test_processes_that_queries_were_started_with_end_when_nothing_uses_them(
    spark: Session, logd: Logd
) -> None:
    """Spark ends what they have forked after a minute, and starts them again."""
    options = {"logd": logd.fetch, "subscribe": "logs"}
    rows = spark.spark.read.format("logd").options(**options).load()
    count = rows.count()
    first = processes_of_starts(spark)
    assert first
    times_ns = itertools.count(10**12, 10**12)
    spark.end_unused_processes(next(times_ns))
    assert set(processes_of_starts(spark)) == set(first), "what is forked may be in use"

    def have_ended() -> bool:
        spark.end_unused_processes(next(times_ns))
        return not processes_of_starts(spark)

    wait_until(have_ended, within_s=100, what="they end")
    assert spark.spark.read.format("logd").options(**options).load().count() == count
