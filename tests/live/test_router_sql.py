"""Routes with a step `sql`: a whole job, and what Spark refuses before it starts."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.clock import SystemClock
from penstock.router.columns.projection import arrow_schema
from penstock.router.columns.pushdown import need_of
from penstock.router.columns.schema import view
from penstock.router.errors import RepeatedRowError
from penstock.router.job.config import JobConfig
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.routes import check_routes, classify_for
from penstock.router.read.logd_reader import LogState
from penstock.router.read.offsets import StreamPartition
from penstock.router.replay.bounded_run import BoundedRun
from penstock.router.spark.session import Session
from penstock.router.trace.conditions import routing_of
from tests.support.logd import Logd
from tests.support.router import STREAMS, RouterJob, log_line, publish
from tests.support.spark import running_spark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

LOGS = 3000
SELECT = """
    SELECT
      lower(service) AS service, shout(body) AS body, teams.owner AS owner, NULL AS severity_text,
      timestampadd(HOUR, 1, time) AS time
    FROM records LEFT JOIN teams ON teams.name = records.service
    WHERE teams.owner IS NOT NULL
"""
UDFS = """
from pyspark.sql.functions import udf


@udf("string")
def shout(text):
    return None if text is None else text.upper()
"""


def teams(directory: Path, *more: tuple[str, str]) -> dict[str, dict[str, object]]:
    path = directory / "teams.csv"
    with path.open("w") as file:
        rows = [("name", "owner"), ("Service-0", "anne"), ("Service-1", "bert"), *more]
        csv.writer(file).writerows(rows)
    return {"teams": {"format": "csv", "path": str(path), "options": {"header": "true"}}}


def service_of(number: int) -> str:
    return f"Service-{number % 3 if number < 2000 else 9}"


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        lines = [log_line(number, service=service_of(number)) for number in range(LOGS)]
        publish(nats_url, "telemetry.logs.x", [*lines[:100], b"no record", *lines[100:]])
        yield running


def test_a_job_with_a_table_and_a_function_writes_each_record_once(
    tmp_path: Path, logd: Logd
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "acme_udfs.py").write_text(UDFS)
    mask = {"mask": {"fields": ["attributes.owner"], "pattern": "e$"}}
    routes = [
        {"name": "owned", "where": "offset < 2000", "sinks": ["lake"],
         "transforms": [{"sql": SELECT}, mask]},
        {"name": "others", "where": "offset >= 2000", "sinks": ["lake"]},
    ]  # fmt: skip
    made = RouterJob(
        tmp_path / "router",
        logd.fetch,
        streams=["logs"],
        routes=routes,
        tables=teams(tmp_path, ("Service-9", "one"), ("Service-9", "two")),  # not that route's
        udfs={"shout": "acme_udfs:shout"},
        trigger={"interval_s": 0.1, "max_records": 700},
    )
    made.daemon.program = ("env", f"PYTHONPATH={tmp_path / 'modules'}", *made.daemon.program)
    made.daemon.start("--until-caught-up", within_s=120)
    assert made.daemon.wait(within_s=200) == 0, made.daemon.log()[-3000:]
    found = made.rows().to_pylist()
    numbers = [json.loads(row["value"])["attributes"]["number"] for row in found]
    # One offset is of what is no record, which the WHERE cannot tell.
    assert numbers == [it for it in range(LOGS) if it >= 1999 or it % 3 < 2]
    (letter,) = (made.checkpoint_dir / "dead_letters").rglob("*.ndjson")
    assert json.loads(letter.read_text())["value"] == "no record"
    first, second, *_, last = found
    assert (first["service"], first["body"], first["severity_text"]) == (
        "service-0",
        "ORDER 0 ☃",
        None,
    )
    assert (dict(first["attributes"])["owner"], dict(second["attributes"])["owner"]) == (
        "ann***",
        "bert",
    )
    record, plain = json.loads(first["value"]), json.loads(last["value"])
    assert record["resource"]["service.name"] == "service-0"
    assert record["attributes"]["tags"] == ["a", "b"], "what no column names stays as it was"
    assert record["time_unix_nano"] // 10**9 == plain["time_unix_nano"] // 10**9 + 3600 - 2
    assert "severity_text" not in record
    assert plain == json.loads(log_line(LOGS - 1, service="Service-9"))


def owned(
    directory: Path, logd: Logd, max_records: int, *more: tuple[str, str], **lake: Any
) -> RouterJob:
    """A job of one route with a SELECT that joins."""
    path = directory / "router" / "lake"
    select = "SELECT owner FROM records LEFT JOIN teams ON teams.name = records.service"
    route = {"name": "all", "sinks": ["lake"], "transforms": [{"sql": select}]}
    return RouterJob(
        directory / "router",
        logd.fetch,
        streams=["logs"],
        routes=[route],
        sinks={"lake": {"type": "parquet", "path": str(path)} | lake},
        tables=teams(directory, *more),
        trigger={"interval_s": 0.1, "max_records": max_records},
    )


def require_each_once_with_its_owner(found: pa.Table) -> None:
    assert found["offset"].to_pylist() == [it for it in range(LOGS + 1) if it != 100]
    owners = {"Service-0": "anne", "Service-1": "bert"}
    assert [dict(row).get("owner") for row in found["attributes"].to_pylist()] == [
        owners.get(service_of(number)) for number in range(LOGS)
    ]


def test_a_job_with_a_table_that_is_killed_in_the_middle_of_a_batch_writes_each_record_once(
    tmp_path: Path, logd: Logd
) -> None:
    made = owned(tmp_path, logd, 1200)

    def is_half_written() -> bool:
        return any(made.lake.glob("_writing/**/*.unfinished")) and made.delivered() > 0

    try:
        made.daemon.start(within_s=120)
        wait_until(is_half_written, within_s=60, what="a batch half written", momentary=True)
        made.daemon.kill()
        assert made.delivered() < LOGS
        made.daemon.start("--until-caught-up", within_s=120)
        assert made.daemon.wait(within_s=200) == 0, made.daemon.log()[-3000:]
    finally:
        made.daemon.close()
    require_each_once_with_its_owner(made.rows())


def test_a_job_with_a_table_that_is_killed_while_a_batch_is_published_writes_each_record_once(
    tmp_path: Path, logd: Logd
) -> None:
    """The second batch has a file more than fits: another one is where its directory is to be."""
    made = owned(tmp_path, logd, 1200, partition_by=["kind", "service"])
    kind = made.lake / "kind=log"
    (kind / "service=Service-0").mkdir(parents=True)  # else the lake has no directories of services
    in_the_way = kind / "service=Service-9"
    in_the_way.touch()

    def is_half_published() -> bool:
        restarts: int = made.daemon.status()["info"]["sinks"]["lake"]["restarts"]
        return restarts > 0 and len([*kind.rglob("*.parquet")]) == 3 + 3

    try:
        made.daemon.start(within_s=120)
        wait_until(is_half_published, within_s=120, what="a batch half published")
        made.daemon.kill()
        in_the_way.unlink()
        made.daemon.start("--until-caught-up", within_s=120)
        assert made.daemon.wait(within_s=200) == 0, made.daemon.log()[-3000:]
    finally:
        made.daemon.close()
    require_each_once_with_its_owner(made.rows())


@pytest.mark.parametrize("max_records", [1, 700])
def test_a_record_for_which_a_table_has_two_rows_is_delivered_when_it_has_one(
    tmp_path: Path, logd: Logd, max_records: int
) -> None:
    made = owned(tmp_path, logd, max_records, ("Service-0", "again"))

    def problem() -> str:
        return str(made.daemon.status()["info"]["sinks"]["lake"]["problem"])

    try:
        made.daemon.start(within_s=120)
        wait_until(lambda: "several rows of its table for one record" in problem(), within_s=60)
        assert made.daemon.stop() == 0, made.daemon.log()[-3000:]
    finally:
        made.daemon.close()
    assert made.delivered() == 0
    again = owned(tmp_path, logd, 700)
    again.daemon.start("--until-caught-up", within_s=120)
    assert again.daemon.wait(within_s=200) == 0, again.daemon.log()[-3000:]
    found = again.rows()
    assert found["offset"].to_pylist() == [it for it in range(LOGS + 1) if it != 100]
    owners = [dict(row).get("owner") for row in found["attributes"].to_pylist()[:4]]
    assert owners == ["anne", "bert", None, "anne"]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with running_spark(tmp_path_factory.mktemp("spark")) as running:
        yield running


def job(directory: Path, statement: str, *more: tuple[str, str]) -> JobConfig:
    sinks = {"out": {"type": "console"}}
    return JobConfig.model_validate(
        {
            "job": "test", "logd": "127.0.0.1:1", "streams": ["logs"], "sinks": sinks,
            "checkpoint_dir": str(directory / "checkpoint"), "tables": teams(directory, *more),
            "routes": [{"name": "one", "sinks": ["out"], "transforms": [{"sql": statement}]}],
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("nothing AS x", "nothing"),
        ("count(*) AS x", "needs other records"),
        ("row_number() OVER (ORDER BY offset) AS x", "needs other records"),
        ("explode(array(1, 2)) AS x", "needs other records"),
        ("(SELECT max(owner) FROM teams) AS x", "needs other records"),
        ("rand() AS x", "another result when a batch is repeated"),
        ("1 AS offset", "offset is the log's own"),
        ("'a' AS kind", "kind cannot be changed"),
        ("'a' AS severity_number", "severity_number is of type string, not int"),
        ("1 AS x, 2 AS x", "two columns are called x"),
        ("unheard_of(body) AS x", "unheard_of"),
    ],
)
def test_what_needs_other_records_or_is_wrong_is_refused_before_the_start(
    tmp_path: Path, session: Session, columns: str, told: str
) -> None:
    config = job(tmp_path, f"SELECT {columns} FROM records")
    with pytest.raises(WrongKeyError, match=told) as refused:
        check_routes(config, session.spark)
    assert "routes.0.transforms.0.sql: " in str(refused.value)


def test_only_the_columns_that_a_statement_names_are_made_for_spark(
    tmp_path: Path, session: Session
) -> None:
    config = job(
        tmp_path,
        "SELECT *, lower(body) AS body, teams.owner AS owner FROM records"
        " LEFT JOIN teams ON teams.name = records.service",
    )
    with pytest.raises(WrongKeyError, match="two columns are called"):
        check_routes(config, session.spark)
    config = job(
        tmp_path,
        "SELECT lower(body) AS body, teams.owner AS owner FROM records"
        " LEFT JOIN teams ON teams.name = records.service",
    )
    check_routes(config, session.spark)
    records = view("records")
    template = (
        session.spark.readStream.format("logd")
        .schema(records.struct())
        .options(logd="127.0.0.1:1", view="records", subscribe="-")
        .load()
    )
    need = need_of(classify_for("out", config)(template), records)
    assert set(need.columns) <= {"offset", "service", "body", "malformed", "kind"}
    assert {"offset", "service", "body"} <= set(need.columns)


def test_a_trace_says_what_a_statement_set_and_what_it_left_out(
    tmp_path: Path, session: Session
) -> None:
    config = job(
        tmp_path,
        "SELECT teams.owner AS owner FROM records LEFT JOIN teams ON teams.name = records.service"
        " WHERE teams.owner IS NOT NULL",
    )
    check_routes(config, session.spark)
    found = [
        {"stream": "logs", "partition": 0, "offset": at, "service": f"Service-{at}",
         "malformed": False, "kind": "log"}
        for at in (1, 2)
    ]  # fmt: skip
    rows = pa.Table.from_pylist(found, arrow_schema(view("records").columns))
    routing = routing_of(config, session.spark, rows)
    first, second = (routing[StreamPartition("logs", 0), at] for at in (1, 2))
    assert (first.routes, first.fields) == ({"out": 0}, {"out": '{"owner":"bert"}'})
    assert set(second.left_out) == {"out"}
    assert dict(second.fields) == {}


def test_a_dead_letter_for_which_a_table_has_two_rows_is_not_replayed_twice(
    tmp_path: Path, session: Session
) -> None:
    config = job(
        tmp_path,
        "SELECT teams.owner AS owner FROM records LEFT JOIN teams ON teams.name = records.service",
        ("Service-1", "carl"),
    )
    check_routes(config, session.spark)
    run = BoundedRun(config, session, LogState({}, {}), None, SystemClock())
    letters = [
        {"time": "2026-01-31T03:00:00+00:00", "stream": "logs", "partition": 0, "offset": at,
         "subject": "t", "value": log_line(at, service=f"Service-{at}").decode()}
        for at in range(3)
    ]  # fmt: skip
    rows = run.dead_letter_rows([letters[0], letters[2]])("out", ["offset"])
    assert rows.to_pylist() == [{"offset": 0}, {"offset": 2}]
    with pytest.raises(RepeatedRowError):
        run.dead_letter_rows(letters)("out", ["offset"])


def test_a_table_that_is_not_there_or_a_function_that_cannot_be_imported_is_named(
    tmp_path: Path, session: Session
) -> None:
    config = job(tmp_path, "SELECT 1 AS x FROM records")
    lost = {"teams": config.tables["teams"].model_copy(update={"path": str(tmp_path / "none")})}
    with pytest.raises(WrongKeyError, match=r"tables\.teams: .*none"):
        check_routes(config.model_copy(update={"tables": lost}), session.spark)
    with pytest.raises(WrongKeyError, match=r"udfs\.f: json:nothing"):
        check_routes(config.model_copy(update={"udfs": {"f": "json:nothing"}}), session.spark)
