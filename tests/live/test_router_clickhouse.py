"""What only the ClickHouse sink does: its rows, tables of others, who may write."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.router.errors import StoppedError
from tests.support.clickhouse_server import ClickHouseRun
from tests.support.fault_door import FaultDoor
from tests.support.sink_batches import batch, dead_letters, log_record
from tests.support.sink_cases import CASES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

MOMENT_NS = 1_795_000_000_123_456_789


@pytest.fixture
def door() -> Iterator[FaultDoor]:
    made = FaultDoor(ClickHouseRun())
    yield made
    made.close()


def sink_of(door: FaultDoor, directory: Path, **keys: Any) -> tuple[Any, Any]:
    return CASES["clickhouse"].sink(door, directory, **keys)


def written_once_corrected(sink: Any, context: Any, correct: Callable[[], Any]) -> str:
    """What the sink says while it waits; it goes on after the correction."""
    writing = threading.Thread(target=sink.write, args=(batch([log_record(0)]),))
    writing.start()
    problem = wait_until(lambda: context.meter.problem)
    correct()
    writing.join(60)
    assert not writing.is_alive()
    assert dead_letters(context) == []
    return str(problem)


def run_of(door: FaultDoor) -> ClickHouseRun:
    assert isinstance(door.backend, ClickHouseRun)
    return door.backend


def test_a_row_has_its_place_its_time_and_its_record(door: FaultDoor, tmp_path: Path) -> None:
    sink, _ = sink_of(door, tmp_path)
    rows = batch([log_record(0, time_ns=MOMENT_NS, trace_id="ab" * 16), b"\xff"], first=41)
    sink.write(rows)
    first, second = run_of(door).rows("*, toUnixTimestamp(time) AS seconds")
    assert (first["stream"], first["incarnation"]) == ("logs", "5f2c19aa00000000")
    assert (first["partition"], first["offset"]) == (0, "41")
    assert (first["time_unix_nano"], first["seconds"]) == (str(MOMENT_NS), MOMENT_NS // 10**9)
    assert (first["kind"], first["service"]) == ("log", "checkout")
    assert (first["severity_number"], first["trace_id"]) == (9, "ab" * 16)
    assert first["record"].encode() == rows.column("value")[0].as_py()
    assert (second["record"], second["raw_base64"], second["kind"]) == ("", "/w==", "raw")


def test_what_was_cut_otherwise_is_there_once_for_final(door: FaultDoor, tmp_path: Path) -> None:
    rows = batch([log_record(number) for number in range(12)])
    sink_of(door, tmp_path)[0].write(rows)
    sink_of(door, tmp_path, batch={"max_records": 5})[0].write(rows)
    assert run_of(door).stored() == Counter(range(12))


def test_a_row_that_a_column_of_others_cannot_hold_is_a_dead_letter(
    door: FaultDoor, tmp_path: Path
) -> None:
    sink, context = sink_of(door, tmp_path)
    run = run_of(door)
    run.server.ask(f"ALTER TABLE {run.table} MODIFY COLUMN trace_id FixedString(4)")
    sink.write(batch([log_record(0, trace_id="12345"), log_record(1, trace_id="1234")]))
    assert run.stored() == Counter([1])
    assert [it["code"] for it in dead_letters(context)] == ["clickhouse_131"]


def test_a_wrong_password_is_waited_for_and_never_shown(door: FaultDoor, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong-one")
    sink, context = sink_of(door, tmp_path, user="guarded", password={"file": str(secret)})
    problem = written_once_corrected(sink, context, lambda: secret.write_text("right"))
    assert "193" in problem
    assert "paused" in problem
    assert "wrong-one" not in problem
    assert run_of(door).stored() == Counter([0])


def test_a_right_that_is_missing_is_waited_for(door: FaultDoor, tmp_path: Path) -> None:
    sink, context = sink_of(door, tmp_path, user="reader")
    writing = threading.Thread(target=_until_stopped, args=(sink,))
    writing.start()
    problem = wait_until(lambda: context.meter.problem)
    context.stop.set()
    writing.join(60)
    assert "readonly" in str(problem)
    assert dead_letters(context) == []
    entitled, _ = sink_of(door, tmp_path)
    entitled.write(batch([log_record(0)]))
    assert run_of(door).stored() == Counter([0])


def _until_stopped(sink: Any) -> None:
    with pytest.raises(StoppedError):
        sink.write(batch([log_record(0)]))


def test_a_table_that_is_not_there_is_waited_for(door: FaultDoor, tmp_path: Path) -> None:
    sink, context = sink_of(door, tmp_path, create=False)
    run, made = run_of(door), sink.creation()
    run.server.ask(f"DROP TABLE {run.table}")
    problem = written_once_corrected(sink, context, lambda: run.server.ask(made))
    assert "paused" in problem
    assert run.stored() == Counter([0])


def test_a_table_of_another_engine_is_waited_for(door: FaultDoor, tmp_path: Path) -> None:
    case = replace(CASES["clickhouse"], ready=None)  # it has not seen its table yet
    sink, context = case.sink(door, tmp_path)
    run, made = run_of(door), sink.creation()
    run.server.ask(made.replace("ReplacingMergeTree", "MergeTree"))

    def correct() -> None:
        run.server.ask(f"DROP TABLE {run.table}")
        run.server.ask(made)

    assert "must be a ReplacingMergeTree" in written_once_corrected(sink, context, correct)
    assert run.stored() == Counter([0])
