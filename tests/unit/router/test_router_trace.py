"""What became of records at a sink, told from the files of a job."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.logd.format.batch import Record
from penstock.router.checkpoint.deliveries import DeliveryJournal, deliveries_of
from penstock.router.checkpoint.local import StartingOffsets
from penstock.router.deadletters.replayable import find_dead_letters
from penstock.router.deadletters.writer import Reason, send_to_dlq
from penstock.router.meter import Meter
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks import SinkContext
from penstock.router.trace.conditions import Routing
from penstock.router.trace.records import ReadRecords, read_records, value_digest
from penstock.router.trace.sink_trace import SinkTrace
from penstock.router.trace.verdict import Fate, Verdict, Wanted
from penstock.router.transforms import Chain
from tests.support.fake_log import FakeLog
from tests.unit.router.sink_rows import TestClock, context
from tests.unit.router.test_router_config import load

if TYPE_CHECKING:
    from penstock.router.job.config import JobConfig

AT = StreamPartition("logs", 0)
ID = "i-1"
CLOCK = TestClock()
ALL = Routing({"lake": 0}, [True])
NONE = Routing({}, [False])


def line(number: int, **fields: Any) -> bytes:
    record = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": 1_795_000_000_000_000_000 + number,
        "severity_number": 9,
        "body": f"order {number}",
        "resource": {"service.name": "checkout"},
    }
    return json.dumps(record | fields).encode()


def log_of(values: Sequence[bytes], *, start: int = 0) -> Any:
    """A log in memory, in place of a client of one."""
    log = FakeLog(starts={"logs": start})
    records = [Record("telemetry.logs.checkout", value, CLOCK.now_ns) for value in values]
    log.add("logs", records, per_frame=4)
    return log


class Home:
    """The directories of a job with the sink `lake`."""

    def __init__(self, directory: Path, **keys: Any) -> None:
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        (directory / "lake").mkdir()
        self.checkpoint = directory / "checkpoint"
        lake = {"type": "parquet", "path": str(directory / "lake")}
        keys = {"sinks": {"lake": lake}, "checkpoint_dir": str(self.checkpoint)} | keys
        self.job: JobConfig = load(directory, **keys)
        self.sink = self.checkpoint / "lake"
        for name in ("offsets", "commits"):
            (self.sink / "spark" / name).mkdir(parents=True)
        StartingOffsets(self.checkpoint).extend(Offsets({AT: 0}, {"logs": ID}))

    def plan(self, batch: int, end: int) -> None:
        """Note a batch as Spark does before it begins."""
        offsets = json.dumps(Offsets({AT: end}, {"logs": ID}).to_json())
        (self.sink / "spark" / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offsets}")

    def deliver(self, batch: int, begin: int, end: int, routing: str | None = None) -> None:
        """Leave what a delivered batch leaves."""
        self.plan(batch, end)
        journal = DeliveryJournal(self.sink, routing or self.job.routing_digest)
        ids = {"logs": ID}
        journal.note(batch, batch * 10**9, Offsets({AT: begin}, ids), Offsets({AT: end}, ids))
        (self.sink / "spark" / "commits" / str(batch)).write_text("v1\n{}")

    def records(self, log: Any, *offsets: int) -> ReadRecords:
        return read_records(log, [Wanted(AT, offset) for offset in offsets])

    def verdict(self, log: Any, offset: int, routing: Routing = ALL) -> Verdict:
        """The verdict on one record."""
        records = self.records(log, offset)
        wanted = Wanted(AT, offset)
        trace = SinkTrace(
            self.job, "lake", records, wanted=[wanted], scratch=self.scratch, clock=CLOCK
        )
        read = {(AT, offset) for offset in records.rows.column("offset").to_pylist()}
        return trace.verdicts(dict.fromkeys(read, routing))[wanted]

    def context(self) -> SinkContext:
        made = context(self.scratch)
        return SinkContext(
            job="demo", sink="lake", stream_ids={"logs": ID}, state_dir=self.sink,
            dead_letters=self.job.dead_letters, meter=Meter(), stop=made.stop, clock=CLOCK,
        )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


TEN = [line(number) for number in range(10)]


def test_records_are_read_by_position_and_the_others_are_named(home: Home) -> None:
    log = log_of(TEN, start=2)
    found = home.records(log, 1, 2, 7, 8, 99)
    assert found.rows.column("offset").to_pylist() == [2, 7, 8]
    assert found.rows.column("body").to_pylist() == ["order 0", "order 5", "order 6"]
    assert set(found.missing) == {(AT, 1), (AT, 99)}


def test_a_delivered_record_has_its_batch_and_its_time(home: Home) -> None:
    home.deliver(0, 0, 3)
    home.deliver(1, 3, 8)
    verdict = home.verdict(log_of(TEN), 4)
    assert (verdict.fate, verdict.batch, verdict.time_ns) == (Fate.DELIVERED, 1, 10**9)
    assert verdict.route == "all"
    assert "does not have it" in verdict.notes[0], "no file of the lake has it"


def test_a_record_that_the_sink_has_not_reached_waits(home: Home) -> None:
    home.deliver(0, 0, 3)
    waiting = home.verdict(log_of(TEN), 7)
    assert (waiting.fate, waiting.next, waiting.behind) == (Fate.WAITING, 3, 4)
    home.plan(1, 8)
    assert home.verdict(log_of(TEN), 7).batch == 1
    assert home.verdict(log_of(TEN), 8).batch is None


def test_a_record_that_no_route_leads_there_is_not_missed(home: Home) -> None:
    home.deliver(0, 0, 3)
    assert home.verdict(log_of(TEN), 1, NONE).fate is Fate.NOT_ROUTED
    assert home.verdict(log_of(TEN), 9, NONE).fate is Fate.NOT_ROUTED


def test_routes_that_have_changed_since_tell_nothing(home: Home) -> None:
    home.deliver(0, 0, 3, routing="other")
    verdict = home.verdict(log_of(TEN), 1)
    assert verdict.fate is Fate.UNKNOWN
    assert "batch 0 was delivered by other routes" in verdict.reason


def test_a_batch_that_the_journal_does_not_name_is_delivered_with_a_note(home: Home) -> None:
    home.deliver(0, 0, 3)
    (home.sink / "deliveries.ndjson").unlink()
    verdict = home.verdict(log_of(TEN), 1)
    assert (verdict.fate, verdict.batch) == (Fate.DELIVERED, None)
    assert "taken as unchanged" in verdict.notes[0]


def test_what_the_log_deleted_before_the_sink_read_it_is_lost(home: Home) -> None:
    home.deliver(0, 0, 3)
    lost = home.verdict(log_of(TEN, start=6), 4)
    assert (lost.fate, lost.lost) == (Fate.LOST, (6, 16))
    passed = home.verdict(log_of(TEN, start=6), 1)
    assert passed.fate is Fate.UNKNOWN
    assert "begins at offset 6" in passed.reason


def test_a_dead_letter_is_found_by_its_position_and_as_replayed_afterwards(home: Home) -> None:
    home.deliver(0, 0, 8)
    rows = home.records(log_of(TEN), 2, 5).rows
    send_to_dlq(rows, Reason("http_400", "no such index", status=400, attempt=3), home.context())
    verdict = home.verdict(log_of(TEN), 5)
    assert (verdict.fate, verdict.reason) == (Fate.DEAD_LETTER, "no such index")
    assert verdict.dead_letter is not None
    assert (verdict.dead_letter["code"], verdict.dead_letter["attempt"]) == ("http_400", 3)
    assert verdict.dead_letter["replay"].startswith(
        "penstock router dlq replay JOB lake/logs.i-1-0-"
    )
    assert home.verdict(log_of(TEN), 3).fate is Fate.DELIVERED, "it lies between them"
    (file,) = find_dead_letters(home.job.dead_letters)
    file.begin().end()
    assert home.verdict(log_of(TEN), 5).fate is Fate.REPLAYED


def test_dead_letters_that_cannot_be_read_leave_a_doubt(home: Home) -> None:
    home.deliver(0, 0, 8)
    rows = home.records(log_of(TEN), 2).rows
    (path,) = send_to_dlq(rows, Reason("http_400", "no"), home.context())
    path.write_text("no JSON\n")
    verdict = home.verdict(log_of(TEN), 2)
    assert verdict.fate is Fate.UNKNOWN
    assert "its dead letters cannot be read" in verdict.reason


def test_a_stream_that_was_made_again_is_another_one(home: Home) -> None:
    StartingOffsets(home.checkpoint).load()
    (home.checkpoint / "starting_offsets.json").write_text(
        json.dumps(Offsets({AT: 0}, {"logs": "earlier"}).to_json())
    )
    verdict = home.verdict(log_of(TEN), 1)
    assert verdict.fate is Fate.UNKNOWN
    assert "an earlier stream named logs" in verdict.reason


def test_what_lies_before_the_job_s_beginning_is_not_read(home: Home) -> None:
    (home.checkpoint / "starting_offsets.json").write_text(
        json.dumps(Offsets({AT: 5}, {"logs": ID}).to_json())
    )
    verdict = home.verdict(log_of(TEN), 4)
    assert (verdict.fate, verdict.reason) == (
        Fate.NOT_READ,
        "the job began to read there at offset 5",
    )


def test_a_job_of_some_subjects_does_not_read_the_others(tmp_path: Path) -> None:
    home = Home(tmp_path, source={"subject": "telemetry.logs.shop"})
    assert home.verdict(log_of(TEN), 4).fate is Fate.NOT_READ


def test_a_condition_that_looks_at_the_clock_cannot_be_evaluated_again(tmp_path: Path) -> None:
    where = "time > current_timestamp() - interval 1 hour"
    home = Home(tmp_path, routes=[{"name": "all", "where": where, "sinks": ["lake"]}])
    home.deliver(0, 0, 3)
    verdict = home.verdict(log_of(TEN), 1)
    assert verdict.fate is Fate.UNKNOWN
    assert "route all depends on when" in verdict.reason


STEPS = [{"drop": ["severity_text"]}, {"sample": {"rate": 0.5}}, {"dedupe": {"within_s": 60}}]


def test_the_step_that_left_a_record_out_is_named(tmp_path: Path) -> None:
    routes = [{"name": "all", "transforms": STEPS, "sinks": ["lake"]}]
    home = Home(tmp_path, routes=routes)
    ids = [{"trace_id": f"{number:032x}", "record_id": f"r{number % 7}"} for number in range(40)]
    log = log_of([line(number, **it) for number, it in enumerate(ids)])
    rows = home.records(log, *range(40)).rows.drop_columns(["malformed_reason", "malformed_value"])
    chain = Chain(
        home.job.routes[0].transforms,
        home.sink / "dedupe.all",
        key_path="",
        stream_id=home.context().stream_id,
    )
    kept = set(chain.apply(rows, 0).rows.column("offset").to_pylist())
    home.deliver(0, 0, 40)
    fates = {offset: home.verdict(log, offset) for offset in range(40)}
    assert kept == {at for at, it in fates.items() if it.fate is Fate.DELIVERED}
    steps = {it.fate: it.step for it in fates.values() if it.step is not None}
    assert steps == {
        Fate.SAMPLED: "routes.0.transforms.1.sample",
        Fate.DEDUPLICATED: "routes.0.transforms.2.dedupe",
    }


def test_a_record_that_the_where_of_a_step_sql_stops_is_not_routed(tmp_path: Path) -> None:
    statement = "SELECT 'a' AS owner FROM records WHERE severity_number > 9"
    routes = [{"name": "all", "sinks": ["lake"], "transforms": [{"sql": statement}]}]
    home = Home(tmp_path, routes=routes)
    home.deliver(0, 0, 10)
    stopped = home.verdict(log_of(TEN), 1, replace(ALL, left_out=frozenset({"lake"})))
    assert (stopped.fate, stopped.step) == (Fate.NOT_ROUTED, "routes.0.transforms.0.sql")
    passed = home.verdict(log_of(TEN), 1, replace(ALL, fields={"lake": '{"owner":"a"}'}))
    assert (passed.fate, passed.batch) == (Fate.DELIVERED, 0)


def test_what_dedupe_has_not_noted_is_unknown_and_never_decided_again(tmp_path: Path) -> None:
    routes = [{"name": "all", "transforms": STEPS[2:], "sinks": ["lake"]}]
    home = Home(tmp_path, routes=routes)
    log = log_of([line(1, record_id="r1"), line(2, record_id="r1")])
    home.deliver(0, 0, 1)
    verdict = home.verdict(log, 0)
    assert verdict.fate is Fate.UNKNOWN
    assert "is not noted" in verdict.reason
    assert home.verdict(log, 1).fate is Fate.WAITING


def test_a_malformed_record_without_its_dead_letter_is_unknown(home: Home) -> None:
    log = log_of([b"no JSON"])
    assert home.verdict(log, 0).fate is Fate.WAITING
    home.deliver(0, 0, 1)
    verdict = home.verdict(log, 0)
    assert verdict.fate is Fate.UNKNOWN
    assert "its dead letter is gone" in verdict.reason


def test_a_batch_that_came_again_counts_as_delivered_the_last_time(home: Home) -> None:
    home.deliver(4, 0, 3)
    ids = {"logs": ID}
    again = DeliveryJournal(home.sink, "x")
    again.note(4, 99, Offsets({AT: 0}, ids), Offsets({AT: 3}, ids))
    with (home.sink / "deliveries.ndjson").open("a") as file:
        file.write('{"batch": 5, "ti')
    found = deliveries_of(home.sink, [(AT, 2), (AT, 3)], ids)
    assert {at: it.time_ns for at, it in found.items()} == {(AT, 2): 99}
    assert deliveries_of(home.sink, [(AT, 2)], {"logs": "another"}) == {}


def test_the_batch_behind_a_stream_that_was_made_again_has_all_of_the_new_one(home: Home) -> None:
    journal = DeliveryJournal(home.sink, "x")
    journal.note(5, 99, Offsets({AT: 500}, {"logs": "earlier"}), Offsets({AT: 3}, {"logs": ID}))
    found = deliveries_of(home.sink, [(AT, 0), (AT, 2), (AT, 3)], {"logs": ID})
    assert {at: it.batch for at, it in found.items()} == {(AT, 0): 5, (AT, 2): 5}


def test_the_digest_of_a_record_is_that_of_its_bytes() -> None:
    assert value_digest(b"x") != value_digest(b"y")
    assert value_digest(None) == value_digest(b"")
