"""What every sink does that appends to a table of a lake when Spark's tasks write its files."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.router.sinks import SinkContext
from penstock.router.sinks.table_format import lake_rows, with_microseconds
from tests.support.fault_door import RESET, Answered, Asked
from tests.support.lake_cases import CASES, DeltaCase, LakeCase
from tests.support.sink_batches import batch, dead_letters, log_record
from tests.support.sink_tasks import deliver_in_tasks, write_in_tasks

pytestmark = pytest.mark.live

COUNT = 12
EACH_ONCE = Counter(range(COUNT))
FAILED = Answered(503, b"<Error><Code>SlowDown</Code><Message>later</Message></Error>")


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeCase]:
    made = CASES[request.param](tmp_path)
    yield made
    made.close()


def rows(first: int = 0, end: int = COUNT, **columns: Any) -> pa.Table:
    return batch([log_record(number) for number in range(first, end)], first=first, **columns)


def opened(case: LakeCase, **keys: Any) -> tuple[Any, SinkContext]:
    """A sink whose table has the first record; the driver has made it."""
    sink, context = case.sink(**keys)
    assert deliver_in_tasks(sink, [rows(0, 1)]) == 1
    return sink, context


def counted(context: SinkContext, what: str) -> int:
    return int(context.meter.stage("x", received=0, lag=0).detail.get(what, 0))


def test_files_of_all_tasks_are_one_commit(case: LakeCase) -> None:
    sink, context = opened(case)
    commits = case.commits()
    assert deliver_in_tasks(sink, [rows(1, 5), rows(5, 9), rows(9, COUNT)]) == 1
    assert case.stored() == EACH_ONCE
    assert case.commits() == commits + 1
    assert counted(context, "files") == 3
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT
    sink.write(rows())  # the marks are those of the driver's commits
    assert case.stored() == EACH_ONCE
    assert case.commits() == commits + 1


def test_a_batch_without_rows_between_two_others_is_no_commit(case: LakeCase) -> None:
    sink, _ = opened(case)
    deliver_in_tasks(sink, [rows(1, 5)])
    commits = case.commits()
    assert deliver_in_tasks(sink, [rows(5, 5)]) == 1
    assert case.commits() == commits
    deliver_in_tasks(sink, [rows(5, COUNT)])
    assert case.stored() == EACH_ONCE


def test_rows_are_as_the_driver_would_write_them(case: LakeCase) -> None:
    sink, _ = opened(case)
    sink.write(rows(1, 2))
    deliver_in_tasks(sink, [rows(2, 3)])
    by_driver, in_task = case.rows().sort_by("offset").slice(1).to_pylist()
    differ = {"offset", "value", "body", "time", "timestamp_ns", "time_unix_nano", "attributes"}
    assert {name for name in in_task if in_task[name] != by_driver[name]} <= differ
    assert in_task["incarnation"] == "5f2c19aa00000000"
    assert in_task["date"] == in_task["time"].date()


@pytest.mark.parametrize("cuts", [[1, 12], [1, 6, 12]])
def test_a_batch_that_was_committed_is_not_committed_again(case: LakeCase, cuts: list[int]) -> None:
    """Run a batch again, as after a kill before Spark noted its end; it may be cut differently."""
    sink, _ = opened(case)
    deliver_in_tasks(sink, [rows(1, 5), rows(5, COUNT)])
    commits = case.commits()
    sink, context = case.sink()
    parts = [rows(first, end) for first, end in pairwise(cuts)]
    assert deliver_in_tasks(sink, parts) == 2
    assert case.stored() == EACH_ONCE
    assert case.commits() == commits
    assert counted(context, "already_there") == COUNT - 1
    assert deliver_in_tasks(sink, [rows(COUNT, COUNT + 3)]) == 1, "the next one is new"
    assert case.stored() == Counter(range(COUNT + 3))


def test_of_rows_behind_the_mark_the_missing_ones_are_added(case: LakeCase) -> None:
    sink, _ = opened(case)
    deliver_in_tasks(sink, [rows(8, COUNT)])
    assert deliver_in_tasks(sink, [rows(1, COUNT)]) == 2
    assert case.stored() == EACH_ONCE


def test_partitions_are_judged_each_for_itself(case: LakeCase) -> None:
    sink, context = opened(case)
    assert deliver_in_tasks(sink, [rows(1, 4), rows(0, 4, partition=1)]) == 1
    assert case.stored() == Counter({0: 2, 1: 2, 2: 2, 3: 2})
    assert deliver_in_tasks(sink, [rows(4, 6), rows(2, 6, partition=1)]) == 2
    assert case.stored() == Counter(dict.fromkeys(range(6), 2))
    context.stream_ids["logs"] = "made again"
    assert deliver_in_tasks(sink, [rows(0, 6)]) == 1
    assert case.stored() == Counter(dict.fromkeys(range(6), 3))


def test_what_was_written_for_a_batch_that_is_given_up_is_never_seen(case: LakeCase) -> None:
    sink, _ = opened(case)
    before = case.commits()
    write_in_tasks(sink, [rows(1, 5), rows(5, COUNT)])
    assert case.commits() == before
    assert case.stored() == Counter([0])
    assert deliver_in_tasks(case.sink()[0], [rows(1, 5), rows(5, COUNT)]) == 1
    assert case.stored() == EACH_ONCE


def test_a_task_that_ran_twice_is_there_once(case: LakeCase) -> None:
    """The driver gets what one of its runs has returned."""
    sink, _ = opened(case)
    _, kept, last = write_in_tasks(sink, [rows(1, 5), rows(1, 5), rows(5, COUNT)])
    assert sink.publish([kept, last])
    sink.commit([kept, last])
    assert case.stored() == EACH_ONCE


@pytest.mark.parametrize("answered", [FAILED, RESET])
def test_a_commit_that_fails_is_the_drivers_to_repeat(case: LakeCase, answered: Answered) -> None:
    sink, context = opened(case, timeout_s=2)
    parts = [rows(1, 5), rows(5, COUNT)]
    written = write_in_tasks(sink, parts)
    case.door.rule = lambda asked: answered if case.is_commit(asked) else None
    assert not sink.publish(written)
    assert case.stored() == Counter([0])
    case.door.rule = lambda asked: None
    left = write_in_tasks(sink, parts)
    assert [it.left.num_rows for it in left] == [4, COUNT - 5]
    sink.commit(left)
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []
    assert context.meter.problem is None
    assert deliver_in_tasks(sink, [rows(COUNT, COUNT + 1)]) == 1


def test_a_commit_whose_answer_is_lost_is_found(case: LakeCase) -> None:
    sink, context = opened(case)
    lost: list[Asked] = []

    def rule(asked: Asked) -> Answered | None:
        if lost or not case.is_commit(asked):
            return None
        lost.append(asked)
        case.door.backend.handle(asked)
        return RESET

    case.door.rule = rule
    deliver_in_tasks(sink, [rows(1, 5), rows(5, COUNT)])
    assert lost
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def test_rows_of_a_task_that_cannot_write_are_delivered_by_the_driver(case: LakeCase) -> None:
    sink, context = opened(case)
    sink.begin()
    case.door.rule = lambda asked: None if asked.method in ("GET", "HEAD") else FAILED
    (failed,) = write_in_tasks(sink, [rows(1, 5)])
    case.door.rule = lambda asked: None
    (written,) = write_in_tasks(sink, [rows(5, COUNT)])
    assert (failed.records, failed.left.num_rows) == (0, 4)
    assert sink.publish([failed, written])
    sink.commit([failed, written])
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def test_a_batch_with_a_new_column_is_the_drivers_and_the_next_one_is_not(case: LakeCase) -> None:
    sink, context = opened(case)
    tenants = pa.array(["t"] * (COUNT - 1))
    assert deliver_in_tasks(sink, [rows(1).append_column("tenant", tenants)]) == 1
    assert counted(context, "files") == 0
    later = rows(COUNT, COUNT + 2).append_column("tenant", pa.array(["t", "u"]))
    deliver_in_tasks(sink, [later])
    assert counted(context, "files") == 1
    found = case.rows().sort_by("offset")
    assert found["tenant"].to_pylist() == [None, *["t"] * COUNT, "u"]


def test_a_new_column_is_left_out_in_tasks_where_the_table_is_to_stay(case: LakeCase) -> None:
    opened(case)
    columns = case.rows().column_names
    sink, context = case.sink(new_columns="leave_out")
    deliver_in_tasks(sink, [rows(1).append_column("tenant", pa.array(["t"] * (COUNT - 1)))])
    assert counted(context, "files") == 1
    assert case.rows().column_names == columns
    assert case.stored() == EACH_ONCE


@pytest.mark.parametrize("partition_by", [[], ["service"], ["date", "kind", "service"]])
def test_a_table_is_partitioned_by_any_value(case: LakeCase, partition_by: list[str]) -> None:
    sink, context = opened(case, partition_by=partition_by)
    services = pa.array([None, "a", "b/ü %", "a=b", "a", "", None, "ok", "x.y", "a", "\n"])
    given = rows(1)
    at = given.column_names.index("service")
    given = given.set_column(at, "service", services.take(pa.array(range(COUNT - 1))))
    deliver_in_tasks(sink, [given])
    assert counted(context, "files") >= 1
    assert case.stored() == EACH_ONCE
    found = case.rows().sort_by("offset")
    # A value of a partition that is empty is null, says Delta's protocol.
    is_null = isinstance(case, DeltaCase) and "service" in partition_by
    wanted = [None if it == "" and is_null else it for it in services.to_pylist()]
    assert found["service"].to_pylist()[1:] == wanted
    assert found.filter(pc.equal(found["service"], "b/ü %")).num_rows == 1


def test_a_table_of_others_that_asks_more_of_a_writer_is_written_by_the_driver(
    tmp_path: Path,
) -> None:
    case = DeltaCase(tmp_path)
    try:
        sink, context = opened(case)
        case.table().alter.add_constraint({"few": '"offset" < 100000'})
        sink, context = case.sink()
        deliver_in_tasks(sink, [rows(1)])
        assert counted(context, "files") == 0
        assert case.stored() == EACH_ONCE
    finally:
        case.close()


def test_statistics_of_files_are_true_and_let_readers_pass_them_over(tmp_path: Path) -> None:
    """Our statistics equal the library's; texts and times are where they could differ."""
    case = DeltaCase(tmp_path)
    try:
        sink, _ = opened(case, partition_by=[])
        services = pa.array(["z" * 40, "é" * 33, "a", "\U0010ffff" * 34, *["m"] * 7])
        given = rows(1)
        at = given.column_names.index("service")
        given = given.set_column(at, "service", services)
        deliver_in_tasks(sink, [given])
        ours = pa.table(case.table().get_add_actions(flatten=True)).to_pylist()[0]
        where = tmp_path / "theirs"
        owner = "job.sink"
        _, context = case.sink()
        theirs_rows = with_microseconds(lake_rows(given, context, owner))
        write_deltalake(where, theirs_rows)
        theirs = pa.table(DeltaTable(where).get_add_actions(flatten=True)).to_pylist()[0]
        assert ours["num_records"] == theirs["num_records"] == COUNT - 1
        for name in ("offset", "partition", "timestamp_ns", "stream", "sink"):
            for end in ("min", "max"):
                assert ours[f"{end}.{name}"] == theirs[f"{end}.{name}"], name
            assert ours[f"null_count.{name}"] == 0
        times = [it.replace(tzinfo=UTC) for it in map(_as_time, given["time"].to_pylist())]
        assert _as_time(ours["min.time"]).replace(tzinfo=UTC) <= min(times)
        assert _as_time(ours["max.time"]).replace(tzinfo=UTC) >= max(times)
        assert ours["min.service"] <= "a"
        assert ours["max.service"] >= max(services.to_pylist())
        lake = case.table().to_pyarrow_dataset()  # noqa: F841 - DuckDB reads it
        for service in services.to_pylist():
            found = duckdb.execute("select count(*) from lake where service = ?", [service])
            # All of it: what is left of a result keeps others from the connection of the module.
            assert found.fetchall() == [(services.to_pylist().count(service),)]
    finally:
        case.close()


def _as_time(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
