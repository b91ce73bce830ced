"""The BigQuery sink against a fake of the Storage Write API: each fault, and each way to die."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2

from penstock.router.errors import StoppedError
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.bigquery.sink import BigQuerySink
from tests.support.fake_bigquery import SCHEMA, FakeBigQuery, refusal
from tests.support.sink_batches import NOW_NS, batch, context, dead_letters, log_record, truncate
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 12
EACH_ONCE = Counter(range(COUNT))
FAST = {
    "retry": {
        "initial_backoff_s": 0.005,
        "max_backoff_s": 0.02,
        "confirmed_after_s": 0.02,
        "max_paused_backoff_s": 0.02,
    },
    "timeout_s": 10,
}


@pytest.fixture
def table() -> Iterator[FakeBigQuery]:
    made = FakeBigQuery()
    yield made
    made.close()


def sink_of(table: Any, directory: Path, /, **keys: Any) -> tuple[Any, SinkContext]:
    made = context(directory)
    settings = {"type": "bigquery", **FAST, **table.keys(), **keys}
    sink = make_sink(BigQuerySink.model_validate(settings), made)
    sink.open()
    return sink, made


def rows(count: int = COUNT, **columns: Any) -> Any:
    return batch([log_record(number) for number in range(count)], **columns)


def detail(context: SinkContext) -> Any:
    return context.meter.stage("x", received=COUNT, lag=0).detail


def aborts(code: grpc.StatusCode) -> Callable[[Any, Any], Any]:
    return lambda context, take: context.abort(code, "as the test says")


def takes_and_aborts(context: Any, take: Callable[[], Any]) -> Any:
    """The worst one: it is there, and nobody says so."""
    take()
    context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


def says(code: int, *, retry_s: float | None = None) -> Callable[[Any, Any], Any]:
    made = refusal(code, "as the test says")
    if retry_s is not None:
        info = AnyMessage()
        info.Pack(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=int(retry_s * 1e9))))
        made.error.details.append(info)
    return lambda context, take: made


def until_stopped(sink: Any, wanted: Any) -> None:
    with pytest.raises(StoppedError):
        sink.write(wanted)


def test_a_row_has_its_place_its_time_and_its_record(table: FakeBigQuery, tmp_path: Path) -> None:
    sink, context = sink_of(table, tmp_path, batch={"max_records": 5})
    sink.write(batch([log_record(3, trace_id="ab" * 16), b"\xff"], first=41))
    first, second = table.rows()
    assert (first["stream"], first["incarnation"]) == ("logs", "5f2c19aa00000000")
    assert (first["partition"], first["offset"]) == (0, 41)
    assert (first["time"], first["time_unix_nano"]) == (NOW_NS // 1000, NOW_NS + 3)
    assert (first["service"], first["severity_number"]) == ("checkout", 9)
    assert (second["raw"], "record" in second, second["kind"]) == (b"\xff", False, "raw")
    sink.write(rows())
    assert table.appends == 1 + 3
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT + 2
    assert len(table.streams) == 1
    sink.close()


def test_a_batch_that_comes_again_is_not_appended_again(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    """In the same life or in the next one, however it is cut."""
    sink, _ = sink_of(table, tmp_path)
    sink.write(rows())
    sink.write(rows())
    sink.close()
    again, context = sink_of(table, tmp_path, batch={"max_records": 5})
    again.write(rows())
    assert table.stored() == EACH_ONCE
    assert detail(context)["already_there"] == COUNT
    again.write(rows(COUNT + 3).slice(COUNT))
    assert table.stored() == EACH_ONCE + Counter(range(COUNT, COUNT + 3))
    again.close()


def test_records_whose_offsets_the_log_gives_again_are_there_beside_the_ones_before(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    sink, context = sink_of(table, tmp_path)
    sink.write(rows())
    truncate(context, read=COUNT, to=COUNT // 2)
    others = batch([log_record(COUNT + n) for n in range(COUNT)], first=COUNT // 2)
    for _ in range(2):
        sink.write(others)
        assert table.stored() == Counter(range(2 * COUNT))
    sink.close()


def test_a_stopped_replay_goes_on_behind_what_it_appended(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    """The batch in work was cut into requests, and not all were answered."""
    sink, _ = sink_of(table, tmp_path)
    sink.write(rows())
    replaying, _ = sink_of(table, tmp_path)
    replaying.start_over()
    replaying.write(rows(3))
    again, context = sink_of(table, tmp_path)
    again.go_on()
    again.write(rows(5))
    assert table.stored() == EACH_ONCE + Counter(range(5))
    assert detail(context)["already_there"] == 3
    for it in (sink, replaying, again):
        it.close()


def test_a_replay_is_delivered_and_leaves_the_batch_in_work_alone(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    sink, _ = sink_of(table, tmp_path)
    sink.write(rows())
    replaying, _ = sink_of(table, tmp_path)
    replaying.start_over()
    replaying.write(rows(3))
    again, _ = sink_of(table, tmp_path)
    again.write(rows())
    assert table.stored() == EACH_ONCE + Counter(range(3))
    for it in (sink, replaying, again):
        it.close()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(aborts(grpc.StatusCode.UNAVAILABLE), id="unavailable"),
        pytest.param(aborts(grpc.StatusCode.INTERNAL), id="internal"),
        pytest.param(aborts(grpc.StatusCode.UNKNOWN), id="unknown"),
        pytest.param(aborts(grpc.StatusCode.UNAUTHENTICATED), id="unauthenticated"),
        pytest.param(aborts(grpc.StatusCode.PERMISSION_DENIED), id="denied"),
        pytest.param(takes_and_aborts, id="reset after the rows"),
        pytest.param(says(code_pb2.INTERNAL), id="says internal"),
        pytest.param(says(code_pb2.ABORTED), id="says aborted"),
        pytest.param(says(code_pb2.RESOURCE_EXHAUSTED, retry_s=0.01), id="says exhausted"),
        pytest.param(says(code_pb2.ALREADY_EXISTS), id="says there"),
        pytest.param(says(code_pb2.OUT_OF_RANGE), id="says a gap"),
        pytest.param(says(code_pb2.PERMISSION_DENIED), id="says denied"),
        pytest.param(says(code_pb2.NOT_FOUND), id="says not found"),
    ],
)
def test_what_passes_is_tried_again_until_everything_is_there_once(
    table: FakeBigQuery, tmp_path: Path, fault: Any
) -> None:
    sink, context = sink_of(table, tmp_path, batch={"max_records": 2})
    table.faults += [fault, fault]
    sink.write(rows())
    assert table.stored() == EACH_ONCE
    assert dead_letters(context) == []
    assert context.meter.problem is None
    sink.close()


def test_a_backend_that_drains_is_left(table: FakeBigQuery, tmp_path: Path) -> None:
    met: list[str] = []

    def drains(_: Any, context: Any) -> None:
        """The backend of the first connection, after its first append."""
        met.append(context.peer())
        if len(met) > 1 and context.peer() == met[0]:
            context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    table.rule = drains
    sink, context = sink_of(table, tmp_path, batch={"max_records": 2})
    sink.write(rows())
    sink.close()
    assert table.stored() == EACH_ONCE
    assert met.count(met[0]) == 2, "it went on with the connection"
    assert dead_letters(context) == []


@pytest.mark.parametrize("takes", [True, False])
def test_an_append_without_an_answer_is_asked_for(
    table: FakeBigQuery, tmp_path: Path, takes: bool
) -> None:
    sink, context = sink_of(table, tmp_path, timeout_s=1, batch={"max_records": 4})

    def hangs(context: Any, take: Callable[[], Any]) -> Any:
        if takes:
            take()
        table.hung.wait(60)

    table.faults += [hangs]
    sink.write(rows())
    assert table.stored() == EACH_ONCE
    assert dead_letters(context) == []
    sink.close()


def test_an_append_that_comes_late_comes_to_nothing(table: FakeBigQuery, tmp_path: Path) -> None:
    """It was on its way when the sink gave it up: its stream takes no more by then."""
    sink, _ = sink_of(table, tmp_path, timeout_s=1, batch={"max_records": 4})
    late: list[Any] = []

    def kept_back(context: Any, take: Callable[[], Any]) -> Any:
        late.append(take)
        context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    table.faults += [kept_back]
    sink.write(rows())
    answer = late[0]()
    assert answer.error.message == "the stream is finalized"
    assert table.stored() == EACH_ONCE
    sink.close()


def test_rows_that_are_wrong_are_named_and_the_others_arrive(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    sink, context = sink_of(table, tmp_path)
    poison = {4: log_record(4, body="order 4 POISON"), 7: log_record(7, body="order 7 POISON")}
    sink.write(batch([poison.get(number, log_record(number)) for number in range(COUNT)]))
    assert table.stored() == EACH_ONCE - Counter([4, 7])
    assert [(it["offset"], it["code"]) for it in dead_letters(context)] == [
        (4, "bigquery_row"), (7, "bigquery_row"),
    ]  # fmt: skip
    assert len(table.streams) == 1
    again, context = sink_of(table, tmp_path)
    again.write(rows().take([0, 1, 2, 3]))
    assert table.stored() == EACH_ONCE - Counter([4, 7])
    sink.close()
    again.close()


def test_a_row_that_nobody_names_is_looked_for_in_halves(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    sink, context = sink_of(table, tmp_path)

    def rule(asked: Any, context: Any) -> Any:
        poisoned = any(b"order 7 " in row for row in asked.proto_rows.rows.serialized_rows)
        return refusal(code_pb2.INVALID_ARGUMENT, "malformed") if poisoned else None

    table.rule = rule
    sink.write(rows())
    assert table.stored() == EACH_ONCE - Counter([7])
    (dead_letter,) = dead_letters(context)
    assert (dead_letter["offset"], dead_letter["code"]) == (7, "bigquery_invalid_argument")
    sink.close()


def test_a_row_that_breaks_the_service_each_time_is_found(
    table: FakeBigQuery, tmp_path: Path
) -> None:
    sink, context = sink_of(table, tmp_path)

    def rule(asked: Any, context: Any) -> Any:
        poisoned = any(b"order 7 " in row for row in asked.proto_rows.rows.serialized_rows)
        return refusal(code_pb2.INTERNAL, "oops") if poisoned else None

    table.rule = rule
    sink.write(rows())
    assert table.stored() == EACH_ONCE - Counter([7])
    assert [dead_letter["offset"] for dead_letter in dead_letters(context)] == [7]
    sink.close()


def test_what_is_too_large_is_split(table: FakeBigQuery, tmp_path: Path) -> None:
    sink, context = sink_of(table, tmp_path)

    def rule(asked: Any, context: Any) -> Any:
        if len(asked.proto_rows.rows.serialized_rows) > 4:
            said = "Received message larger than max (20971521 vs. 20971520)"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, said)

    table.rule = rule
    sink.write(rows())
    assert table.stored() == EACH_ONCE
    assert dead_letters(context) == []
    sink.close()


@pytest.mark.parametrize(
    ("kind", "said"),
    [(None, "the table has no raw"), ("kind", "mismatched with BigQuery field at Record.raw")],
    ids=["not there", "of another type"],
)
def test_a_table_that_lacks_a_column_is_waited_for(
    table: FakeBigQuery, tmp_path: Path, kind: str | None, said: str
) -> None:
    sink, context = sink_of(table, tmp_path)
    del table.schema["raw"]
    if kind is not None:
        table.schema["raw"] = SCHEMA[kind]
    writing = threading.Thread(target=sink.write, args=(rows(),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    table.schema["raw"] = SCHEMA["raw"]
    writing.join(60)
    assert not writing.is_alive()
    assert said in problem
    assert "paused until that is corrected" in problem
    assert table.stored() == EACH_ONCE
    assert dead_letters(context) == []
    sink.close()


def test_a_table_that_is_not_there_is_no_records_fault(table: FakeBigQuery, tmp_path: Path) -> None:
    sink, context = sink_of(table, tmp_path, table="penstock-tests.telemetry.recrods")
    writing = threading.Thread(target=until_stopped, args=(sink, rows()))
    writing.start()
    problem = wait_until(lambda: context.meter.problem) or ""
    context.stop.set()
    writing.join(60)
    assert "recrods not found" in problem
    assert "paused until that is corrected" in problem
    assert dead_letters(context) == []
    sink.close()


def test_a_time_in_the_future_harms_no_record(table: FakeBigQuery, tmp_path: Path) -> None:
    sink, context = sink_of(table, tmp_path)
    ahead = [log_record(it, time_ns=NOW_NS + 7200 * 10**9) for it in range(COUNT)]
    ahead[3]["time_unix_nano"] = 2**63 - 1
    sink.write(batch(ahead))
    assert table.stored() == EACH_ONCE
    assert dead_letters(context) == []
    sink.close()


_WRITE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.live.test_router_bigquery import rows, sink_of
keys = {"table": sys.argv[2], "url": sys.argv[3], "credentials_file": sys.argv[4]}
sink, _ = sink_of(SimpleNamespace(keys=lambda: keys), Path(sys.argv[1]), batch={"max_records": 4})
sink.write(rows())
"""


@pytest.mark.parametrize("takes", [True, False], ids=["taken", "not taken"])
def test_kill_9_within_an_append_repeats_and_loses_nothing(
    table: FakeBigQuery, tmp_path: Path, takes: bool
) -> None:
    reached = threading.Event()

    def rule(asked: Any, context: Any) -> Any:
        if table.appends < 2:
            return None
        if takes:
            table.append(asked)
        reached.set()
        table.hung.wait(60)
        return refusal(code_pb2.CANCELLED, "nobody hears this")

    table.rule = rule
    keys = table.keys()
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITE, str(tmp_path), *(str(it) for it in keys.values())],
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        assert reached.wait(60)
    finally:
        process.kill()
        process.wait(30)
    table.rule = lambda asked, context: None
    assert table.stored() == Counter(range(8 if takes else 4))
    sink, context = sink_of(table, tmp_path, batch={"max_records": 5})
    sink.write(rows())
    assert table.stored() == EACH_ONCE
    assert detail(context)["already_there"] == (8 if takes else 4)
    sink.close()
