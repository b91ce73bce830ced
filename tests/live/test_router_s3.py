"""What only the S3 sink does: classes, keys, what was there before, signatures."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typing_extensions import override

from penstock.base.errors import UnavailableError as StoreUnavailableError
from penstock.router.errors import UnavailableError
from penstock.router.lake.layout import FORMER_PARTITIONED_BY
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.sinks.http.task_sink import CONNECTIONS, WrittenRequests
from penstock.router.sinks.sink import Gone
from tests.support.fault_door import Answered, FaultDoor
from tests.support.moto_server import BUCKET, MotoRun
from tests.support.sink_batches import batch, context, dead_letters, log_record, span_record
from tests.support.sink_cases import CASES
from tests.support.task_batches import written_by_task

pytestmark = pytest.mark.live

CASE = CASES["s3"]


@pytest.fixture
def door() -> Iterator[FaultDoor]:
    made = FaultDoor(MotoRun())
    yield made
    made.close()


def offsets(door: FaultDoor) -> list[int]:
    found: list[int] = sorted(backend(door).lake()["offset"].to_pylist())
    return found


def backend(door: FaultDoor) -> MotoRun:
    assert isinstance(door.backend, MotoRun)
    return door.backend


def test_a_key_says_what_it_holds_and_any_reader_of_hive_partitions_reads_it(
    door: FaultDoor, tmp_path: Path
) -> None:
    sink, _ = CASE.sink(door, tmp_path, partition_by=FORMER_PARTITIONED_BY)
    rows = batch([log_record(0), span_record(1), log_record(2)], first=5)
    places = ["checkout", "a/b=c %", None]
    rows = rows.set_column(rows.column_names.index("service"), "service", [places])
    sink.write(rows)
    date = pc.strftime(rows["time"], "%Y-%m-%d")[0].as_py()
    keys = sorted(backend(door).objects())
    assert [key.rpartition("/")[0] for key in keys] == [
        f"telemetry/kind=log/service=__HIVE_DEFAULT_PARTITION__/date={date}",
        f"telemetry/kind=log/service=checkout/date={date}",
        f"telemetry/kind=span/service=a%2Fb%3Dc %25/date={date}",
    ]
    assert "/job.sink.logs.5f2c19aa-0-00000000000000000007-00000000000000000007." in keys[0]
    for key in keys:
        path = tmp_path / key
        path.parent.mkdir(parents=True)
        path.write_bytes(backend(door).get(key))
    found = duckdb.sql(
        f"""select kind, service, "offset" from read_parquet('{tmp_path}/telemetry/*/*/*/*.parquet',
        hive_partitioning = true) order by "offset\""""
    ).fetchall()
    assert found == [("log", "checkout", 5), ("span", "a/b=c %", 6), ("log", None, 7)]


def test_the_object_of_each_delivered_row_is_named(door: FaultDoor, tmp_path: Path) -> None:
    sink, made = CASE.sink(door, tmp_path, partition_by=FORMER_PARTITIONED_BY)
    first = batch([log_record(0), span_record(1), log_record(2)])
    services = ["checkout", "a/b=c %", None]
    first = first.set_column(first.column_names.index("service"), "service", [services])
    sink.write(first)
    made.starts["logs.5f2c19aa-0"] = 3
    second = batch([log_record(3), log_record(4)], first=3)
    sink.write(second)
    rows = pa.concat_tables([first, second.take([1])])
    held = {key: backend(door).offsets_of(key) for key in backend(door).objects()}
    by_offset = {at: f"s3://{BUCKET}/{key}" for key, offsets in held.items() for at in offsets}
    assert [by_offset[at] for at in (0, 1, 2, 4)] == [*sink.locate(rows)]


def test_a_row_whose_object_is_deleted_is_said_to_be_gone(door: FaultDoor, tmp_path: Path) -> None:
    sink, _ = CASE.sink(door, tmp_path, partition_by=FORMER_PARTITIONED_BY)
    rows = batch([log_record(0), span_record(1)])
    sink.write(rows)
    (key,) = [key for key in backend(door).objects() if "kind=span" in key]
    backend(door).delete(key)
    kept, gone = sink.locate(rows)
    assert isinstance(kept, str)
    assert gone == Gone(f"s3://{BUCKET}/{key.rpartition('/')[0]}")


def test_a_store_that_does_not_answer_is_no_proof_that_a_row_is_gone(
    door: FaultDoor, tmp_path: Path
) -> None:
    sink, _ = CASE.sink(door, tmp_path)
    rows = batch([log_record(0)])
    sink.write(rows)
    door.rule = lambda asked: Answered(503) if asked.method == "GET" else None
    with pytest.raises(StoreUnavailableError, match="503: Service Unavailable"):
        sink.locate(rows)


def test_an_archive_class_is_put_once_and_never_replaced(door: FaultDoor, tmp_path: Path) -> None:
    sink, context = CASE.sink(door, tmp_path, storage_class="GLACIER")
    rows = batch([log_record(number) for number in range(3)])
    sink.write(rows)
    sink.write(rows)
    assert [*backend(door).objects().values()] == ["GLACIER"]
    detail = context.meter.stage("x", received=3, lag=0).detail
    assert (detail["files"], detail["already_there"]) == (1, 3)
    with pytest.raises(OSError, match="403"):  # it is archived: nobody reads it just so
        offsets(door)


def test_a_batch_that_comes_again_with_other_rows_leaves_none_twice(
    door: FaultDoor, tmp_path: Path
) -> None:
    """A route's condition was changed between a crash and the next start."""
    rows = batch([log_record(number) for number in range(10)])
    CASE.sink(door, tmp_path)[0].write(rows)
    kept = pc.is_in(rows["offset"], rows["offset"].take([0, 3, 4, 9]))
    CASE.sink(door, tmp_path)[0].write(rows.filter(kept))
    assert offsets(door) == [0, 3, 4, 9]
    CASE.sink(door, tmp_path)[0].write(batch([log_record(number) for number in (10, 11)], first=10))
    assert offsets(door) == [0, 3, 4, 9, 10, 11]


def test_a_batch_that_comes_again_without_any_row_leaves_none(
    door: FaultDoor, tmp_path: Path
) -> None:
    CASE.sink(door, tmp_path)[0].write(batch([log_record(0), log_record(1)]))
    sink, context = CASE.sink(door, tmp_path)
    context.starts["logs.5f2c19aa-0"] = 2
    sink.write(batch([]))
    assert offsets(door) == [0, 1]
    context.starts["logs.5f2c19aa-0"] = 0
    sink.write(batch([]))
    assert backend(door).objects() == {}


def test_what_cannot_be_deleted_brings_the_batch_again(door: FaultDoor, tmp_path: Path) -> None:
    rows = batch([log_record(number) for number in range(4)])
    CASE.sink(door, tmp_path)[0].write(rows)
    door.rule = lambda asked: Answered(503) if asked.method == "DELETE" else None
    sink, _ = CASE.sink(door, tmp_path)
    with pytest.raises(UnavailableError, match="HTTP 503"):
        sink.write(rows.slice(0, 2))
    door.rule = lambda asked: None
    sink.write(rows.slice(0, 2))
    assert offsets(door) == [0, 1]


def test_without_conditions_an_object_is_put_again(door: FaultDoor, tmp_path: Path) -> None:
    sink, _ = CASE.sink(door, tmp_path, conditional=False)
    rows = batch([log_record(0), log_record(1)])
    sink.write(rows)
    sink.write(rows)
    assert offsets(door) == [0, 1]
    assert all("if-none-match" not in asked.headers for asked in door.asked)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "InvalidStorageClass"), (400, "RequestTimeout"), (400, "BadDigest"), (409, "Conflict")],
)
def test_no_record_is_given_up_for_a_refusal_that_is_not_its_fault(
    door: FaultDoor, tmp_path: Path, status: int, code: str
) -> None:
    refusal = Answered(status, f"<Error><Code>{code}</Code></Error>".encode())
    door.faults += [lambda asked, backend: refusal] * 2
    sink, context = CASE.sink(door, tmp_path)
    sink.write(batch([log_record(0), log_record(1)]))
    assert offsets(door) == [0, 1]
    assert dead_letters(context) == []


def test_headers_of_the_job_are_signed_and_secrets_stay_hidden(
    door: FaultDoor, tmp_path: Path
) -> None:
    kms = {"x-amz-server-side-encryption": "aws:kms"}
    sink, _ = CASE.sink(door, tmp_path, headers=kms, session_token="a token")
    rows = batch([log_record(0)])
    (shown,) = sink.preview(rows)
    assert "Authorization" not in dict(shown.headers)
    assert json.loads(shown.body)["offset"] == 0
    assert door.asked == []
    sink.write(rows)
    headers = door.asked[0].headers
    signed = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "if-none-match", "x-amz-security-token", *kms} <= {*signed}
    assert "hush" not in repr(door.asked[0])


def test_without_credentials_it_waits_and_says_so(
    door: FaultDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    class FoundAfterAWhile(threading.Event):
        @override
        def wait(self, timeout: float | None = None) -> bool:
            assert "no credentials" in (its.meter.problem or "")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
            return False

    its = replace(context(tmp_path), stop=FoundAfterAWhile())
    nobody = {"access_key_id": None, "secret_access_key": None}
    sink, _ = CASE.sink(door, tmp_path, made=its, **nobody)
    sink.write(batch([log_record(0)]))
    assert offsets(door) == [0]
    assert "Credential=AKIATEST/" in door.asked[0].headers["authorization"]


class Attempt:
    """One attempt at a batch, in a process of its own; from offset `first` to 9."""

    def __init__(
        self,
        door: FaultDoor,
        directory: Path,
        *,
        rules: str = "a",
        first: int = 0,
        cuts: tuple[int, ...] = (),
        **keys: object,
    ) -> None:
        made = replace(context(directory), rules=rules)
        self.sink, self.context = CASE.sink(door, directory, made=made, **keys)
        door.closing.append(CONNECTIONS.close)
        at, ids = StreamPartition("logs", 0), self.context.stream_ids
        before, planned = Offsets({at: first}, ids), Offsets({at: 10}, ids)
        self.context.begin_batch(before, planned, {at: cuts} if cuts else {})
        self.sink.begin()

    def run(self, *offsets: int) -> WrittenRequests:
        """A task, by the offsets of the records that routes lead here."""
        rows = batch([log_record(number) for number in range(10)])
        return written_by_task(self.sink, rows.take(list(offsets)))


def asked(door: FaultDoor, method: str) -> int:
    return sum(it.method == method for it in door.asked)


def test_what_killed_tasks_have_put_is_there_once_and_not_asked_for(
    door: FaultDoor, tmp_path: Path
) -> None:
    """The same rules lead to the same objects, of which the driver puts those that lack."""
    Attempt(door, tmp_path).run(0, 1, 2)
    assert offsets(door) == [0, 1, 2]
    door.asked.clear()
    again = Attempt(door, tmp_path)
    again.sink.commit([again.run(0, 1, 2), again.run(3, 4)])
    assert offsets(door) == [0, 1, 2, 3, 4]
    assert (asked(door, "PUT"), asked(door, "GET"), asked(door, "DELETE")) == (2, 0, 0)
    assert again.context.meter.stage("x", received=5, lag=0).sent == 5


def test_rows_past_their_age_are_counted_where_their_batch_comes_again(
    door: FaultDoor, tmp_path: Path
) -> None:
    rows = batch([log_record(number) for number in range(3)])
    times = pc.subtract(rows["time"], pa.scalar(timedelta(days=3), pa.duration("us")))
    old = rows.set_column(rows.column_names.index("time"), "time", times)
    Attempt(door, tmp_path, retention={"max_age_days": 1}).run(0)
    again = Attempt(door, tmp_path, retention={"max_age_days": 1})
    again.sink.commit([written_by_task(again.sink, pa.concat_tables([rows[:1], old[1:]]))])
    stage = again.context.meter.stage("x", received=3, lag=0)
    assert (stage.sent, stage.detail["left_out_expired"]) == (1, 2)


@pytest.mark.parametrize("ended", [False, True])
def test_objects_that_other_rules_make_no_more_are_deleted(
    door: FaultDoor, tmp_path: Path, ended: bool
) -> None:
    """Whether the tasks of the earlier attempt were killed or had ended.

    Objects of another sink, and of the batch before, stay.
    """
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    other, _ = CASE.sink(door, elsewhere, made=context(elsewhere, sink="cold"))
    other.write(batch([log_record(7)], first=3))
    before = Attempt(door, tmp_path)
    before.sink.commit([before.run(0)])
    first = Attempt(door, tmp_path, first=4)
    written = first.run(4, 5, 6)
    if ended:
        first.sink.commit([written])
    door.asked.clear()
    again = Attempt(door, tmp_path, rules="b", first=4)
    again.sink.commit([again.run(4, 6)])
    assert offsets(door) == [0, 3, 4, 6]
    assert asked(door, "GET") == (0 if ended else 1)
    door.asked.clear()
    third = Attempt(door, tmp_path, rules="c", first=4)
    third.sink.commit([])
    assert offsets(door) == [0, 3]
    assert asked(door, "GET") == 0, "all objects are noted"


def test_a_batch_whose_tasks_are_cut_anew_makes_the_objects_of_the_first_ones(
    door: FaultDoor, tmp_path: Path
) -> None:
    """One of the first was larger than planned; the attempt after that was killed, too."""
    Attempt(door, tmp_path, cuts=(3, 6)).run(0, 1, 2)
    assert offsets(door) == [0, 1, 2]
    Attempt(door, tmp_path, cuts=(3, 6))
    again = Attempt(door, tmp_path, cuts=(3, 6))
    door.asked.clear()
    again.sink.write(batch([log_record(number) for number in range(10)]))
    assert offsets(door) == [*range(10)]
    assert (asked(door, "PUT"), asked(door, "GET"), asked(door, "DELETE")) == (3, 0, 0)


def test_what_was_put_of_records_that_are_lost_since_stays_and_the_rest_comes_beside(
    door: FaultDoor, tmp_path: Path
) -> None:
    Attempt(door, tmp_path).run(*range(6))
    again = Attempt(door, tmp_path)
    results = [again.run(*range(4, 10))]
    again.context.shorten()
    again.sink.commit(results)
    assert offsets(door) == [*range(10)]


def test_a_store_that_lists_nothing_keeps_the_batch(door: FaultDoor, tmp_path: Path) -> None:
    Attempt(door, tmp_path).run(0, 1)
    door.rule = lambda it: Answered(403) if it.method == "GET" else None
    again = Attempt(door, tmp_path, rules="b")
    with pytest.raises(UnavailableError, match=r"HTTP 403.*s3:ListBucket"):
        again.sink.commit([again.run(0)])
    door.rule = lambda it: None
    again = Attempt(door, tmp_path, rules="b")
    again.sink.commit([again.run(0)])
    assert offsets(door) == [0]


def test_the_batch_that_an_earlier_version_had_in_work_is_replaced(
    door: FaultDoor, tmp_path: Path
) -> None:
    """It noted keys alone, and cut no batch by its tasks."""
    sink, before = CASE.sink(door, tmp_path)
    sink.write(batch([log_record(number) for number in range(5)]))
    note = before.state_dir / "objects.json"
    note.write_text(json.dumps(json.loads(note.read_text())["keys"]))
    again = Attempt(door, tmp_path)
    again.sink.commit([again.run(0, 1, 2), again.run(3, 4)])
    assert offsets(door) == [0, 1, 2, 3, 4]
    following, at = Attempt(door, tmp_path), StreamPartition("logs", 0)
    ids = following.context.stream_ids
    following.context.begin_batch(Offsets({at: 10}, ids), Offsets({at: 12}, ids))
    following.sink.begin()
    rows = batch([log_record(number) for number in (10, 11)], first=10)
    following.sink.commit([written_by_task(following.sink, rows)])
    assert offsets(door) == [0, 1, 2, 3, 4, 10, 11]
