"""What every sink that speaks no HTTP does when its server misbehaves: one suite for all of them.

It is to them what `test_router_sink_faults.py` is to those that send requests over HTTP.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.router.errors import StoppedError
from penstock.router.sinks import SinkContext
from tests.support import server_cases
from tests.support.jdbc_case import JdbcCase, JdbcTasksCase, end_jdbc_spark
from tests.support.real_kafka import kafka_case
from tests.support.server_cases import ServerCase
from tests.support.sink_batches import NOW_NS, batch, dead_letters, log_record, truncate
from tests.support.tcp_door import Break
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", autouse=True)
def _spark_ends() -> Iterator[None]:
    yield
    end_jdbc_spark()


CASES: dict[str, Callable[[Path], ServerCase]] = {
    **server_cases.CASES,
    "jdbc": JdbcCase,
    "jdbc in tasks": JdbcTasksCase,
    "kafka": kafka_case,
    "kafka in tasks": partial(kafka_case, in_tasks=True),
}
COUNT = 12
EACH_ONCE = Counter(range(COUNT))
KAFKA_ERRORS = ("no answer", "no right", "few replicas", "unknown error")
SQL_STATES = ("40001", "53300", "57P01", "57014", "XX000", "42501")
TROUBLES = [
    *((kind, name) for kind in ("kafka", "kafka in tasks") for name in KAFKA_ERRORS),
    *(("nats", name) for name in ("no stream", "stream is full")),
    *(("nats in tasks", name) for name in ("no stream", "stream is full")),
    *(("jdbc", code) for code in SQL_STATES), *(("postgres", code) for code in SQL_STATES),
    *(("postgres in tasks", code) for code in SQL_STATES),
]  # fmt: skip


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerCase]:
    made = CASES[request.param](tmp_path)
    yield made
    made.close()


def records(case: ServerCase, *, poison: int | None = None) -> list[Any]:
    return [
        case.poison(number) if number == poison else log_record(number) for number in range(COUNT)
    ]


def test_every_record_arrives_once(case: ServerCase) -> None:
    sink, context = case.sink(batch={"max_records": 5})
    sink.write(batch(records(case)))
    assert case.stored() == EACH_ONCE
    stage = context.meter.stage("x", received=COUNT, lag=0)
    assert (stage.sent, stage.errors, stage.detail["requests"]) == (COUNT, 0, 3)


def test_a_batch_without_rows_between_two_others_changes_nothing(case: ServerCase) -> None:
    sink, context = case.sink()
    for rows in (batch(records(case)[:5]), batch([]), batch(records(case)[5:], first=5)):
        sink.write(rows)
    assert case.stored() == EACH_ONCE
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT
    assert dead_letters(context) == []


def test_a_batch_that_comes_again_is_there_once(case: ServerCase) -> None:
    """However it is cut: other settings make other requests of it."""
    case.sink()[0].write(batch(records(case)))
    sink, context = case.sink(batch={"max_records": 5})
    sink.write(batch(records(case)))
    assert case.stored() == EACH_ONCE
    assert context.meter.stage("x", received=COUNT, lag=0).detail["already_there"] == COUNT
    assert dead_letters(context) == []


def test_records_whose_offsets_the_log_gives_again_are_there_beside_the_ones_before(
    case: ServerCase,
) -> None:
    sink, context = case.sink()
    sink.write(batch(records(case)))
    truncate(context, read=COUNT, to=COUNT // 2)
    others = batch([log_record(COUNT + n) for n in range(COUNT)], first=COUNT // 2)
    for _ in range(2):
        sink.write(others)
        assert case.stored() == Counter(range(2 * COUNT))


@pytest.mark.parametrize("fault", [Break.RESET, Break.TAKEN])
def test_a_connection_that_breaks_costs_nothing_and_doubles_nothing(
    case: ServerCase, fault: Break
) -> None:
    sink, context = case.sink(batch={"max_records": 4})
    case.door.faults += [fault, fault]
    sink.write(batch(records(case)))
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []
    assert context.meter.problem is None
    assert context.meter.stage("x", received=COUNT, lag=0).errors == 2 * (
        not case.asks_again_itself
    )


def test_a_server_that_hangs_is_asked_again(case: ServerCase) -> None:
    sink, context = case.sink(timeout_s=2)
    case.door.faults.append(Break.HANG)
    sink.write(batch(records(case)))
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def test_a_record_that_is_refused_is_found_and_the_others_arrive(case: ServerCase) -> None:
    sink, context = case.sink()
    sink.write(batch(records(case, poison=7)))
    assert case.stored() == EACH_ONCE - Counter([7])
    (dead_letter,) = dead_letters(context)
    assert (dead_letter["offset"], dead_letter["code"]) == (7, case.code)
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT - 1


@pytest.mark.parametrize(("case", "trouble"), TROUBLES, indirect=["case"])
def test_what_passes_is_tried_again_until_everything_is_there(
    case: ServerCase, trouble: str
) -> None:
    sink, context = case.sink(timeout_s=2)
    heal = case.troubles()[trouble]()
    marks = case.door.marks
    writing = threading.Thread(target=sink.write, args=(batch(records(case)),))
    writing.start()
    wait_until(lambda: "retries" in context.meter.stage("x", received=0, lag=0).detail)
    heal()
    writing.join(60)
    assert not writing.is_alive()
    assert case.door.marks > marks
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []
    assert context.meter.problem is None


def test_a_wrong_secret_is_waited_for_and_never_shown(case: ServerCase) -> None:
    keys, correct = case.locked_out()
    sink, context = case.sink(**keys)
    writing = threading.Thread(target=sink.write, args=(batch(records(case)),))
    writing.start()
    # A connection that the server ends may look broken before the server's reason is read.
    problem = wait_until(lambda: _pause(context))
    correct()
    writing.join(60)
    assert not writing.is_alive()
    assert "wrong" not in problem
    assert case.stored() == EACH_ONCE
    assert dead_letters(context) == []


def _pause(context: SinkContext) -> str:
    """What a paused sink says; nothing of one that is not."""
    problem = context.meter.problem or ""
    return problem if "paused until that is corrected" in problem else ""


def test_an_address_that_nobody_listens_on_is_waited_for(case: ServerCase) -> None:
    sink, context = case.sink()
    case.door.close()
    context.stop.set()
    with pytest.raises(StoppedError):
        sink.write(batch(records(case)))
    assert context.meter.problem
    assert context.meter.circuit.state == "closed", "an outage, and no settings to correct"
    assert "paused" not in context.meter.problem
    assert dead_letters(context) == []


def test_a_time_in_the_future_harms_no_other_record(case: ServerCase) -> None:
    sink, context = case.sink()
    rows = records(case)
    rows[3] |= {"time_unix_nano": NOW_NS + 7200 * 10**9}
    rows[4] |= {"time_unix_nano": 2**63}  # no time that can be: the log's takes its place
    sink.write(batch(rows))
    missing = [] if case.takes_future else [3]
    assert case.stored() == EACH_ONCE - Counter(missing)
    assert [dead_letter["offset"] for dead_letter in dead_letters(context)] == missing
