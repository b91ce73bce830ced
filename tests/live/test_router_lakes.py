"""What every sink does that appends to a table of a lake, when its store or others misbehave."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.router.columns.schema import MARKS
from penstock.router.deadletters.replayable import as_rows
from penstock.router.errors import StoppedError
from penstock.router.sinks import SinkContext
from penstock.router.sinks.table_format import lake_rows
from tests.support.fault_door import RESET, Answered, Asked
from tests.support.lake_cases import CASES, LakeCase
from tests.support.sink_batches import (
    NOW_NS,
    batch,
    dead_letters,
    gauge_record,
    log_record,
    span_record,
    truncate,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 12
EACH_ONCE = Counter(range(COUNT))


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeCase]:
    made = CASES[request.param](tmp_path)
    yield made
    made.close()


def rows(count: int = COUNT, **columns: Any) -> pa.Table:
    return batch([log_record(number) for number in range(count)], **columns)


def detail(context: SinkContext) -> Any:
    return context.meter.stage("x", received=COUNT, lag=0).detail


def passing(case: LakeCase, times: int, answered: Answered, *, of: str = "commit") -> list[Asked]:
    """Spoil the next requests of a kind; returns those that were."""
    spoilt: list[Asked] = []

    def rule(asked: Asked) -> Answered | None:
        is_it = case.is_commit(asked) if of == "commit" else asked.method == of
        if not is_it or len(spoilt) >= times:
            return None
        spoilt.append(asked)
        return answered

    case.door.rule = rule
    return spoilt


def test_every_record_arrives_once_and_any_reader_sees_it(case: LakeCase) -> None:
    sink, context = case.sink(batch={"max_records": 5})
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    found = case.rows().sort_by("offset").slice(3, 1).to_pylist()[0]
    assert (found["stream"], found["incarnation"], found["partition"], found["offset"]) == (
        "logs", "5f2c19aa00000000", 0, 3,
    )  # fmt: skip
    assert (found["sink"], found["kind"], found["service"]) == ("job.sink", "log", "checkout")
    assert found["date"] == found["time"].date()
    stage = context.meter.stage("x", received=COUNT, lag=0)
    assert (stage.sent, stage.errors, stage.detail["commits"]) == (COUNT, 0, 3)


def test_a_batch_without_rows_between_two_others_is_no_commit(case: LakeCase) -> None:
    sink, context = case.sink()
    sink.write(rows().slice(0, 5))
    commits = case.commits()
    sink.write(rows().slice(0, 0))
    assert case.commits() == commits
    sink.write(rows().slice(5))
    assert case.stored() == EACH_ONCE
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT


def test_a_batch_that_comes_again_is_not_committed_again(case: LakeCase) -> None:
    """However it is cut: other settings make other requests of it."""
    case.sink()[0].write(rows())
    commits = case.commits()
    sink, context = case.sink(batch={"max_records": 5})
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    assert case.commits() == commits
    assert detail(context)["already_there"] == COUNT
    assert dead_letters(context) == []


def test_records_whose_offsets_the_log_gives_again_are_there_beside_the_ones_before(
    case: LakeCase,
) -> None:
    sink, context = case.sink()
    sink.write(rows())
    truncate(context, read=COUNT, to=COUNT // 2)
    others = batch([log_record(COUNT + n) for n in range(COUNT)], first=COUNT // 2)
    for _ in range(2):
        sink.write(others)
        assert case.stored() == Counter(range(2 * COUNT))


def test_what_is_late_or_replayed_is_added_where_it_is_missing(case: LakeCase) -> None:
    """The mark is behind offset 11, and yet offsets 3 to 7 are not there."""
    whole = rows()
    case.sink()[0].write(pa.concat_tables([whole.slice(0, 3), whole.slice(8)]))
    sink, context = case.sink()
    sink.write(whole)
    assert case.stored() == EACH_ONCE
    assert detail(context)["already_there"] == COUNT - 5
    sink.write(batch([log_record(12)], first=12))
    assert case.stored() == EACH_ONCE + Counter([12])


def test_partitions_and_lives_of_a_stream_share_a_commit_and_nothing_else(case: LakeCase) -> None:
    both = pa.concat_tables([rows(4), rows(4, partition=1)])
    sink, context = case.sink()
    sink.write(both)
    assert detail(context)["commits"] == 1
    sink.write(both)
    assert case.stored() == Counter(dict.fromkeys(range(4), 2))
    context.stream_ids["logs"] = "made again"
    sink.write(both)
    assert case.stored() == Counter(dict.fromkeys(range(4), 4))


def test_sinks_that_share_a_table_do_not_take_each_others_rows_for_theirs(case: LakeCase) -> None:
    one, other = case.sink()[0], case.sink(name="other")[0]
    for sink in (one, other, one, other):
        sink.write(rows())
    assert case.stored() == Counter(dict.fromkeys(range(COUNT), 2))


def test_two_drivers_of_one_job_write_nothing_twice(case: LakeCase) -> None:
    """One was thought dead: both have looked before either writes."""
    drivers = [case.sink()[0] for _ in range(2)]
    for driver in drivers:
        driver.write(rows(2))
    both_have_looked = threading.Barrier(2)
    for driver in drivers:
        driver.newest = _meeting(driver.newest, both_have_looked)
    writing = [threading.Thread(target=driver.write, args=(rows(),)) for driver in drivers]
    for thread in writing:
        thread.start()
    for thread in writing:
        thread.join(60)
        assert not thread.is_alive()
    assert case.stored() == EACH_ONCE


def _meeting(newest: Any, barrier: threading.Barrier) -> Any:
    first = iter([barrier])

    def met(wanted: pa.Table) -> Any:
        found = newest(wanted)
        for it in first:
            it.wait(60)
        return found

    return met


def test_a_commit_of_others_in_between_does_no_harm(case: LakeCase) -> None:
    sink, context = case.sink()
    sink.write(rows(1))
    newest = sink.newest
    foreign = case.rows().set_column(4, "sink", [["not.ours"]])

    def overtaken(wanted: pa.Table) -> Any:
        found = newest(wanted)
        sink.newest = newest
        case.append(foreign)
        return found

    sink.newest = overtaken
    sink.write(rows())
    assert case.stored() == EACH_ONCE + Counter([0])
    assert dead_letters(context) == []


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("of", ["commit", "PUT", "GET"])
def test_a_store_that_fails_for_a_while_is_waited_for(case: LakeCase, status: int, of: str) -> None:
    sink, context = case.sink()
    sink.write(rows(1))
    error = b"<Error><Code>SlowDown</Code><Message>later</Message></Error>"
    spoilt = passing(case, 2, Answered(status, error), of=of)
    sink.write(rows())
    assert len(spoilt) == 2
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []
    assert context.meter.problem is None


def test_a_connection_that_breaks_costs_nothing(case: LakeCase) -> None:
    sink, context = case.sink()
    passing(case, 2, RESET)
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def test_a_commit_that_nobody_heard_of_is_found(case: LakeCase) -> None:
    """The connection breaks when the store has it, and the sink cannot know."""
    sink, context = case.sink()
    sink.write(rows(1))
    lost: list[Asked] = []

    def rule(asked: Asked) -> Answered | None:
        if lost or not case.is_commit(asked):
            return None
        lost.append(asked)
        case.door.backend.handle(asked)
        return RESET

    case.door.rule = rule
    sink.write(rows())
    assert lost
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def test_a_store_that_hangs_is_asked_again(case: LakeCase) -> None:
    sink, context = case.sink(timeout_s=1)
    sink.write(rows(1))
    case.door.faults.append(case.door.hangs)
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_store_that_lets_nobody_in_pauses_the_sink(case: LakeCase, status: int) -> None:
    sink, context = case.sink()
    sink.write(rows(1))
    case.door.rule = lambda asked: Answered(status, b"<Error><Code>AccessDenied</Code></Error>")
    writing = threading.Thread(target=sink.write, args=(rows(),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    case.door.rule = lambda asked: None
    writing.join(60)
    assert not writing.is_alive()
    assert "paused until that is corrected" in problem
    assert "hush" not in problem
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def test_a_commit_that_is_too_large_is_split(case: LakeCase) -> None:
    sink, context = case.sink()
    sink.write(rows(1))
    commits = case.commits()
    refusal = Answered(413, b"<Error><Code>EntityTooLarge</Code></Error>")
    passing(case, 1, refusal, of="PUT")
    sink.write(rows())
    assert case.stored() == EACH_ONCE
    assert case.commits() == commits + 2
    assert dead_letters(context) == []


def test_a_job_that_stops_gives_up_its_batch_and_finds_it_again(case: LakeCase) -> None:
    sink, context = case.sink()
    sink.write(rows(1))
    case.door.rule = lambda asked: Answered(503)
    context.stop.set()
    with pytest.raises(StoppedError):
        sink.write(rows())
    case.door.rule = lambda asked: None
    case.sink()[0].write(rows())
    assert case.stored() == EACH_ONCE


def test_a_time_in_the_future_harms_no_record(case: LakeCase) -> None:
    ahead = rows()
    times = pc.add(ahead["time"], pa.scalar(7200 * 10**6, pa.duration("us")))
    ahead = ahead.set_column(ahead.column_names.index("time"), "time", times)
    sink, context = case.sink()
    sink.write(ahead)
    assert case.stored() == EACH_ONCE
    assert pc.min(case.rows()["time"]).as_py().timestamp() >= NOW_NS / 1e9 + 7200
    assert dead_letters(context) == []


def test_a_new_column_is_added_and_rows_before_it_have_none(case: LakeCase) -> None:
    case.sink()[0].write(rows(2))
    wider = rows().append_column("tenant", pa.array([f"t{it}" for it in range(COUNT)]))
    case.sink()[0].write(wider)
    found = case.rows().sort_by("offset")
    assert found["tenant"].to_pylist() == [None, None, *(f"t{it}" for it in range(2, COUNT))]
    case.sink()[0].write(batch([log_record(12)], first=12))  # a job that does not know it
    assert case.rows().sort_by("offset")["tenant"].to_pylist()[-1] is None


def test_a_new_column_is_left_out_where_the_table_is_to_stay_as_it_is(case: LakeCase) -> None:
    case.sink()[0].write(rows(2))
    columns = case.rows().column_names
    wider = rows().append_column("tenant", pa.array(["t"] * COUNT))
    case.sink(new_columns="leave_out")[0].write(wider)
    assert case.rows().column_names == columns
    assert case.stored() == EACH_ONCE


def test_a_column_of_another_type_pauses_the_sink_and_loses_nothing(case: LakeCase) -> None:
    case.sink()[0].write(rows(2))
    other = rows().set_column(8, "service", pa.array([["a", "b"]] * COUNT))
    sink, context = case.sink()
    writing = threading.Thread(target=_until_stopped, args=(sink, other))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    context.stop.set()
    writing.join(60)
    assert "paused until that is corrected" in problem
    assert dead_letters(context) == []
    case.sink()[0].write(rows())
    assert case.stored() == EACH_ONCE


def _until_stopped(sink: Any, wanted: pa.Table) -> None:
    with pytest.raises(StoppedError):
        sink.write(wanted)


def test_a_table_that_is_not_there_is_waited_for_if_it_is_not_to_be_made(case: LakeCase) -> None:
    sink, context = case.sink(create=False)
    writing = threading.Thread(target=sink.write, args=(rows(),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    case.sink(name="maker")[0].newest(lake_rows(rows(), context, "job.maker"))
    writing.join(60)
    assert not writing.is_alive()
    assert "paused until that is corrected" in problem
    assert case.stored() == EACH_ONCE


_WRITE = """
import sys
from pathlib import Path
from tests.live.test_router_lakes import rows
from tests.support.lake_cases import write_to
write_to(sys.argv[1], Path(sys.argv[2]), sys.argv[3], rows())
"""


def test_kill_9_between_the_files_and_the_commit_leaves_nothing_that_is_seen(
    case: LakeCase,
) -> None:
    """And the batch that comes again is there once."""
    case.sink()[0].write(rows(1))
    before = case.rows().num_rows
    reached = threading.Event()

    def rule(asked: Asked) -> Answered | None:
        if not case.is_commit(asked):
            return None
        reached.set()
        case.door.hung.wait(60)
        return RESET

    case.door.rule = rule
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITE, case.type, str(case.directory), case.door.url],
        cwd=Path(__file__).resolve().parents[2],
    )
    assert reached.wait(60)
    process.kill()
    process.wait(30)
    case.door.rule = lambda asked: None
    assert case.rows().num_rows == before
    case.sink()[0].write(rows())
    assert case.stored() == EACH_ONCE


def test_a_preview_asks_nobody(case: LakeCase) -> None:
    sink, _ = case.sink()
    (shown,) = sink.preview(rows(2))
    assert shown.target == f"append to {sink.address}"
    assert shown.records == 2
    assert '"incarnation": "5f2c19aa00000000"' in shown.body
    assert case.door.asked == []


def test_every_column_of_the_view_is_taken(case: LakeCase) -> None:
    dead_letters: list[Any] = [
        {
            "stream": "logs", "partition": 0, "offset": number, "subject": "telemetry.logs.x",
            "timestamp_ns": NOW_NS, "time": "2026-11-22T00:00:00+00:00", "key": "k",
            "value": json.dumps(record),
        }
        for number, record in enumerate([log_record(0), span_record(1), gauge_record(2)])
    ]  # fmt: skip
    typed = as_rows(dead_letters).drop_columns(list(MARKS))
    for _ in range(2):
        case.sink()[0].write(typed)
    found = case.rows().sort_by("offset")
    assert set(typed.column_names) < set(found.column_names)
    assert found["kind"].to_pylist() == ["log", "span", "metric"]
    assert found["severity_number"].to_pylist() == [9, None, None]
    assert found["metric_value"].to_pylist() == [None, None, 2.5]
    assert dict(found["resource"][0].as_py())["host.name"] == "web-1"
