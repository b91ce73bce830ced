"""Records found in the log, and the answers of jobs and collectors put together."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from click.testing import CliRunner

from penstock.base.clock import SystemClock
from penstock.deploy.cli import cli
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.answer import unknown_ids
from penstock.deploy.trace.explain import RecordTrace, Trace, explain, named
from penstock.deploy.trace.find import (
    FoundRecord,
    PartitionRange,
    at_position,
    by_id,
    scan,
)
from penstock.deploy.trace.parts import Parts, PartsClient
from penstock.deploy.trace.question import TraceQuestion
from penstock.deploy.trace.report import report
from penstock.deploy.trace.stopped_jobs import find_stopped_jobs
from penstock.logd.format.batch import Record
from penstock.router.checkpoint.local import JobLock, StartingOffsets
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.service import ExitCode
from tests.support.console import FakePart, a_status
from tests.support.fake_log import FakeLog

SECOND = 10**9
TRACE = "0af7651916cd43dd8448eb211c80319c"


def line(number: int, **fields: Any) -> bytes:
    return json.dumps({"kind": "log", "body": f"order {number}", **fields}).encode()


def log_of(*values: bytes, start: int = 0) -> Any:
    log = FakeLog(starts={"logs": start})
    log.add("logs", [Record("telemetry.logs.x", it, SECOND) for it in values], per_frame=3)
    return log


def part_of(log: Any) -> PartitionRange:
    return PartitionRange("logs", 0, *log.offsets("logs"))


def test_records_of_a_trace_are_found_and_no_record_that_only_mentions_it() -> None:
    log = log_of(
        line(0),
        line(1, trace_id=TRACE),
        line(2, body=f"seen {TRACE}"),
        line(3, trace_id=TRACE[::-1]),
        b"\xff" + TRACE.encode(),
        line(5, trace_id=TRACE),
        line(6, record_id="r6"),
    )
    found = scan(log, [part_of(log)], by_id([TRACE], ["r6"]), limit=10)
    assert [it.offset for it in found.records] == [1, 5, 6]
    assert (found.looked_at, found.is_cut, found.problems) == (7, False, [])


def test_a_search_ends_at_its_limit_and_says_so() -> None:
    log = log_of(*(line(number, trace_id=TRACE) for number in range(9)))
    found = scan(log, [part_of(log)], by_id([TRACE], []), limit=4)
    assert [it.offset for it in found.records] == [0, 1, 2, 3]
    assert found.is_cut
    whole = scan(log, [PartitionRange("logs", 0, 2, 8)], by_id([TRACE], []), limit=99)
    assert [it.offset for it in whole.records] == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("offset", "missing"),
    [(5, ""), (4, "begins at offset 5"), (8, "the next offset is 8")],
)
def test_a_position_is_read_or_it_is_said_why_not(offset: int, missing: str) -> None:
    log = log_of(line(0), line(1), line(2), start=5)
    found = at_position(log, "logs", 0, offset)
    assert found.position == f"logs/0/{offset}"
    assert missing in found.missing
    assert (found.value is None) == bool(missing)


PRODUCER = "ab" * 16


@pytest.fixture
def job() -> Iterator[FakePart]:
    sinks = {"lake": {"records_per_s": 50.0}, "search": {"problem": "HTTP 503", "records_per_s": 0}}
    part = FakePart(lambda: a_status("router", "main", info={"sinks": sinks}))
    yield part
    part.close()


@pytest.fixture
def collector() -> Iterator[FakePart]:
    queues = {"spool app telemetry.logs.x": {"producer": PRODUCER, "done": 7}}
    part = FakePart(lambda: a_status("collector", "edge-1", info={"queues": queues}))
    yield part
    part.close()


def record(offset: int = 7) -> FoundRecord:
    value = line(offset, trace_id=TRACE, observed_time_unix_nano=3 * SECOND)
    return FoundRecord("logs", 0, offset, "telemetry.logs.x", SECOND, value, PRODUCER, 41)


def verdict(sink: str, fate: str, **more: Any) -> dict[str, Any]:
    return {"sink": sink, "type": "http", "fate": fate} | more


def asked(parts: dict[str, str], *records: FoundRecord) -> Trace:
    config = ConsoleConfig(parts=parts)
    client = PartsClient(config)

    async def ask() -> Trace:
        return await explain(client, await client.statuses(), records)

    return asyncio.run(ask())


def answer_with(job: FakePart, *sinks: dict[str, Any]) -> None:
    it = {"stream": "logs", "partition": 0, "offset": 7, "sinks": list(sinks)}
    job.answers["explain"] = (200, {"job": "main", "records": [it]})


def test_a_record_that_every_sink_has_is_complete(job: FakePart, collector: FakePart) -> None:
    answer_with(
        job,
        verdict("lake", "delivered", batch=12, time_ns=5 * SECOND, found="kind=log/x.parquet"),
        verdict("errors", "not_routed", reason="no route leads it to the sink", conditions=[
            {"route": "e", "where": "severity_number >= 17", "result": False,
             "values": {"severity_number": "9"}}]),
        verdict("big", "sampled", reason="sample of route big left it out", step="routes.1"),
    )  # fmt: skip
    trace = asked({"router": job.url, "edge": collector.url}, record())
    assert trace.exit_code is ExitCode.OK
    ((path, _, question),) = job.posted
    assert (path, question) == ("/trace", {"do": "explain", "records": [named(record())]})
    text = "\n".join(report(trace))
    assert "came in: collector edge-1, source app, received 1970-01-01T00:00:03.000Z" in text
    assert "main/lake    delivered     batch 12 at 1970-01-01T00:00:05.000Z; kind=log" in text
    assert "route e: severity_number >= 17 is false (severity_number=9)" in text
    assert trace.as_json()["records"][0]["origin"]["source"] == "app"


def test_a_record_that_waits_is_missed_and_the_time_is_estimated(job: FakePart) -> None:
    waiting = {"reason": "the sink has not got so far", "next": 3, "behind": 99}
    answer_with(job, verdict("lake", "waiting", **waiting), verdict("search", "waiting", **waiting))
    trace = asked({"router": job.url}, record())
    assert trace.exit_code is ExitCode.FAILURE
    lake, search = trace.records[0].sinks
    assert (lake["wait_s"], search["problem"]) == (2.0, "HTTP 503")
    assert "wait_s" not in search
    text = "\n".join(report(trace))
    assert "about 2 s at its present pace" in text
    assert "its problem: HTTP 503" in text
    assert "no collector that was asked (none) knows the producer" in text


@pytest.mark.parametrize("fate", ["dead_letter", "lost", "unknown"])
def test_a_record_that_a_sink_lacks_is_missed(job: FakePart, fate: str) -> None:
    about = {"code": "http_400", "attempt": 1, "time": "t", "replay": "penstock router dlq replay"}
    answer_with(job, verdict("lake", fate, reason="why", dead_letter=about, lost=[7, 9]))
    trace = asked({"router": job.url}, record())
    assert trace.exit_code is ExitCode.FAILURE
    assert "why" in "\n".join(report(trace))


def test_a_part_that_does_not_answer_is_named_and_the_rest_is_told(
    job: FakePart, collector: FakePart
) -> None:
    job.answers["explain"] = (503, {"error": "the job starts; ask again"})
    trace = asked({"router": job.url, "edge": collector.url}, record())
    assert trace.exit_code is ExitCode.UNAVAILABLE
    assert trace.silent == {"router": "the job starts; ask again"}
    assert "collector edge-1" in "\n".join(report(trace))
    nobody = asked({"edge": "http://127.0.0.1:1", "logd-1": "http://127.0.0.1:1"}, record())
    assert nobody.silent == {"edge": "nothing listens there"}


QUARANTINED = {"fate": "quarantined", "collector": "edge-1", "time_ns": SECOND, "source": "app",
               "service": None, "trace_id": TRACE, "record_id": "r2", "reason": "no body",
               "replayed": False}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "code", "complete"),
    [
        ({}, ExitCode.OK, True),
        ({"unknown_ids": ["r9"]}, ExitCode.FAILURE, False),
        ({"edges": [QUARANTINED]}, ExitCode.FAILURE, False),
        ({"edges": [QUARANTINED | {"replayed": True}]}, ExitCode.OK, True),
        ({"is_cut": True}, ExitCode.OK, False),
    ],
)
def test_what_is_missing_beside_a_record_that_every_sink_has_is_missed(
    more: dict[str, Any], code: ExitCode, complete: bool
) -> None:
    trace = Trace([RecordTrace(record(), None, [verdict("lake", "delivered")])], **more)
    assert (trace.exit_code, trace.as_json()["complete"]) == (code, complete)


def test_ids_of_which_no_part_knows_are_named() -> None:
    found = FoundRecord("logs", 0, 7, value=line(7, trace_id=TRACE, record_id="r1"))
    trace = Trace([RecordTrace(found, None, ())], edges=[QUARANTINED])
    question = TraceQuestion(trace_ids=(TRACE, "t9"), record_ids=("r1", "r2", "r9", "r9"))
    trace.unknown_ids = unknown_ids(question, trace)
    assert trace.unknown_ids == ["t9", "r9"]
    last = [*report(trace)][-1]
    assert last == (
        "r9: no record that was found has it, and no collector knows it;"
        " an id has 32 hexadecimal digits"
    )
    trace.unknown_ids = [TRACE, "018f2c19-aa00-7000-8000-000000000042"]
    assert all(line.endswith("no collector knows it") for line in [*report(trace)][-2:])


def test_where_nothing_is_found_or_no_job_reads_it_the_code_is_1(job: FakePart) -> None:
    assert asked({"router": job.url}).exit_code is ExitCode.FAILURE
    job.answers["explain"] = (200, {"job": "main", "records": []})
    trace = asked({"router": job.url}, record())
    assert trace.exit_code is ExitCode.FAILURE
    assert "no job that was asked reads this stream" in "\n".join(report(trace))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to look for"),
        (["--trace-id", TRACE, "--position", "logs/0/1"], "say what to look for"),
        (["--position", "logs/1"], "it looks like logs/0/4711"),
    ],
)
def test_a_question_that_is_not_clear_is_wrong_usage(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["trace", *arguments])
    assert done.exit_code == cast("int", ExitCode.USAGE)
    assert said in done.output


def job_file(directory: Path, **keys: Any) -> Path:
    document = {
        "job": "main",
        "logd": "127.0.0.1:1",
        "streams": ["logs"],
        "admin": "127.0.0.1:1",
        "checkpoint_dir": str(directory / "checkpoint"),
        "routes": [{"name": "all", "sinks": ["lake"]}],
        "sinks": {"lake": {"type": "parquet", "path": str(directory / "lake")}},
    }
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(document | keys))
    return path


def found_in(path: Path, parts: Parts, urls: dict[str, str] | None = None) -> Parts:
    config = ConsoleConfig(parts=urls or {"router": "http://127.0.0.1:1"})
    found, jobs = find_stopped_jobs([path], parts, config)
    for job in jobs:
        job.close()
    return found


NOBODY = "nothing listens there"


def test_a_job_that_does_not_answer_is_asked_by_its_files(tmp_path: Path) -> None:
    path = job_file(tmp_path)
    found = found_in(path, Parts(silent={"router": NOBODY, "edge": NOBODY}))
    assert (found.jobs, found.silent) == ({"main": {}}, {"edge": NOBODY})
    assert found.stopped["main"].startswith("it does not run and never has")
    assert not (tmp_path / "checkpoint").exists()
    StartingOffsets(tmp_path / "checkpoint").extend(Offsets({StreamPartition("logs", 0): 0}))
    lock = JobLock(tmp_path / "checkpoint", wait_s=0, clock=SystemClock())
    held = found_in(path, Parts(silent={"router": NOBODY}))
    lock.release()
    assert f"process {os.getpid()} has locked its checkpoint" in held.stopped["main"]
    assert found_in(path, Parts()).stopped["main"].startswith("it does not run; ")


def test_a_job_that_answers_is_not_asked_by_its_files(tmp_path: Path) -> None:
    parts = Parts(jobs={"router": {"name": "main"}})
    assert found_in(job_file(tmp_path), parts) == parts


def test_a_job_whose_files_tell_nothing_could_not_be_asked(tmp_path: Path) -> None:
    elsewhere = {"checkpoint_store": {"type": "s3", "url": "s3://bucket/jobs"}}
    silent = Parts(silent={"router": NOBODY})
    found = found_in(job_file(tmp_path, **elsewhere), silent)
    assert (found.jobs, found.stopped) == ({}, {})
    assert "another machine may have gone on" in found.silent["router"]
    wrong = found_in(job_file(tmp_path, admin="nowhere"), silent).silent
    assert set(wrong) == {"router", str(tmp_path / "job.yaml")}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "starting_offsets.json").write_text("{")
    assert "cannot be read" in found_in(job_file(tmp_path), silent).silent["router"]
