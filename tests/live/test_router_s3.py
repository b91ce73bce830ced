"""What only the S3 sink does: classes, keys, what was there before, signatures."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest
from typing_extensions import override

from penstock.router.errors import UnavailableError
from tests.support.fault_door import Answered, FaultDoor
from tests.support.moto_server import MotoRun
from tests.support.sink_batches import batch, context, dead_letters, log_record, span_record
from tests.support.sink_cases import CASES

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
    sink, _ = CASE.sink(door, tmp_path)
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
    sink.write_nothing()
    assert offsets(door) == [0, 1]
    context.starts["logs.5f2c19aa-0"] = 0
    sink.write_nothing()
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
