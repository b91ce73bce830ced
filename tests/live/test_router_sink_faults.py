"""What every request-based sink does when its destination misbehaves: one suite for all of them.

Each record is delivered or among the dead letters, whatever happens; how often it is there after
something came twice is what the sink's guarantee says.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.errors import StoppedError
from penstock.router.sinks import Replay
from tests.support.fault_door import (
    RESET,
    Answered,
    Asked,
    FaultDoor,
    resets_after_taking,
    says,
)
from tests.support.sink_batches import NOW_NS, batch, context, dead_letters, truncate
from tests.support.sink_cases import CASES, EVERY_WAY, Case
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

COUNT = 12
EACH_ONCE = Counter(range(COUNT))
PAUSING = ("rejected", "paused")
"""States of a sink that asks seldom: all its records seem to be refused."""
TWO_HOURS_NS = 7200 * 10**9

REFUSING = [name for name, case in EVERY_WAY.items() if case.poison is not None]
"""Destinations that refuse a record by themselves."""

LOOKING = [name for name, case in EVERY_WAY.items() if case.type != "s3"]
"""Those that look into what they store: a store of objects is asked until all of it is there."""


@pytest.fixture(params=list(EVERY_WAY))
def case(request: pytest.FixtureRequest) -> Case:
    return EVERY_WAY[request.param]


@pytest.fixture
def door(case: Case) -> Iterator[FaultDoor]:
    made = FaultDoor(case.backend())
    yield made
    made.close()


def records(case: Case, *, poison: int | None = None) -> list[Any]:
    return [
        case.poison(number) if number == poison and case.poison else case.record(number)
        for number in range(COUNT)
    ]


def at_least_as_promised(case: Case, stored: Counter[int]) -> None:
    """Everything is there, and what is recognised is there once."""
    if case.effectively_once:
        assert stored == EACH_ONCE
    else:
        assert set(stored) == set(EACH_ONCE)


def test_every_record_arrives_once(case: Case, door: FaultDoor, tmp_path: Any) -> None:
    sink, context = case.sink(door, tmp_path, batch={"max_records": 5})
    sink.write(batch(records(case)))
    assert case.stored(door.backend) == EACH_ONCE
    assert len(case.brought(door)) == 3
    stage = context.meter.stage("x", received=COUNT, lag=0)
    assert (stage.sent, stage.errors) == (COUNT, 0)


def test_a_batch_without_rows_between_two_others_changes_nothing(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    sink, context = case.sink(door, tmp_path)
    first, second = records(case)[:5], records(case)[5:]
    for rows in (batch(first), batch([]), batch(second, first=5)):
        sink.write(rows)
    assert case.stored(door.backend) == EACH_ONCE
    assert len(case.brought(door)) == 2
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT
    assert dead_letters(context) == []


def test_a_batch_that_comes_again_is_there_as_often_as_promised(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    sink, context = case.sink(door, tmp_path)
    sink.write(batch(records(case)))
    sink.write(batch(records(case)))
    once = type(sink).guarantee.level is not Replay.AT_LEAST_ONCE
    assert once == case.effectively_once
    assert set(case.stored(door.backend).values()) == ({1} if once else {2})
    first, second = case.brought(door)
    assert first.body == second.body
    assert dead_letters(context) == []


def test_records_whose_offsets_the_log_gives_again_are_stored_beside_the_ones_before(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    """A sink that knows records by their offsets alone once dropped them, and said it sent them."""
    sink, context = case.sink(door, tmp_path)
    sink.write(batch(records(case)))
    truncate(context, read=COUNT, to=COUNT // 2)
    sink.write(batch([case.record(COUNT + n) for n in range(COUNT)], first=COUNT // 2))
    assert case.stored(door.backend) == Counter(range(2 * COUNT))
    sink.write(batch([case.record(COUNT + n) for n in range(COUNT)], first=COUNT // 2))
    stored = case.stored(door.backend)
    assert set(stored) == set(range(2 * COUNT))
    assert not case.effectively_once or set(stored.values()) == {1}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(says(429, Retry_After="0"), id="429"),
        pytest.param(says(503, b"Service Unavailable"), id="503"),
        pytest.param(says(500, b"oops"), id="500"),
        pytest.param(says(502), id="502"),
        pytest.param(says(401, b"who are you"), id="401"),
        pytest.param(says(403), id="403"),
        pytest.param(says(307, Location="http://127.0.0.1:1/"), id="redirect"),
        pytest.param(resets_after_taking, id="reset after the body"),
        pytest.param(lambda asked, backend: None, id="reset"),
    ],
)
def test_what_passes_is_tried_again_until_everything_is_there(
    case: Case, door: FaultDoor, tmp_path: Any, fault: Any
) -> None:
    sink, context = case.sink(door, tmp_path, batch={"max_records": 2})
    door.faults += [fault, fault]
    sink.write(batch(records(case)))
    at_least_as_promised(case, case.stored(door.backend))
    assert dead_letters(context) == []
    assert context.meter.problem is None
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT


class Skipping(SystemClock):
    """The machine's time, and on top of it whatever somebody would have waited."""

    def __init__(self) -> None:
        self.skipped_ns = 0

    @override
    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.skipped_ns

    @override
    def unix_ns(self) -> int:
        return super().unix_ns() + self.skipped_ns


class Stop(threading.Event):
    """Who waits for it lets a clock pass over that time."""

    def __init__(self, clock: Skipping) -> None:
        super().__init__()
        self._clock = clock

    @override
    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.skipped_ns += int(timeout * 1e9)
        return self.is_set()


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_destination_that_asks_for_a_pause_gets_it(
    case: Case, door: FaultDoor, tmp_path: Any, status: int, form: str
) -> None:
    """A date has whole seconds, so that it may be up to one less."""
    clock = Skipping()
    made = replace(context(tmp_path, clock=clock), stop=Stop(clock))
    sink, its = case.sink(door, tmp_path, made=made)
    asked_ns: list[int] = []

    def full_at_first(asked: Asked) -> Answered | None:
        asked_ns.append(clock.monotonic_ns())
        if len(asked_ns) > 1:
            return None
        until = datetime.fromtimestamp(clock.unix_ns() // 10**9 + 38, UTC)
        said = "37" if form == "seconds" else format_datetime(until, usegmt=True)
        return Answered(status, b"full", {"Retry-After": said})

    door.rule = full_at_first
    sink.write(batch(records(case)))
    assert asked_ns[1] - asked_ns[0] >= 37 * 10**9
    assert clock.skipped_ns < 39 * 10**9
    assert case.stored(door.backend) == EACH_ONCE
    assert dead_letters(its) == []


def test_a_destination_that_hangs_is_asked_again(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    sink, context = case.sink(door, tmp_path, timeout_s=1)
    door.faults.append(door.hangs)
    sink.write(batch(records(case)))
    assert case.stored(door.backend) == EACH_ONCE
    assert dead_letters(context) == []


def test_a_header_of_a_file_is_read_again_for_each_request(
    case: Case, door: FaultDoor, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of vendors stand in headers; a new one needs no restart."""
    key = tmp_path / "key"
    key.write_text("one\n")
    monkeypatch.setenv("OF_THE_TEAM", "blue")
    headers = {"X-Vendor-Key": {"file": str(key)}, "X-Team": {"env": "OF_THE_TEAM"}}
    sink, its = case.sink(door, tmp_path, headers=headers)
    sink.write(batch(records(case)[:2]))
    seen = len(door.asked)
    key.write_text("two\n")
    sink.write(batch(records(case)[2:4]))
    assert {asked.headers["x-team"] for asked in door.asked} == {"blue"}
    assert {asked.headers["x-vendor-key"] for asked in door.asked[:seen]} == {"one"}
    assert {asked.headers["x-vendor-key"] for asked in door.asked[seen:]} == {"two"}
    assert dead_letters(its) == []


def test_a_backend_that_drains_is_left(case: Case, door: FaultDoor, tmp_path: Any) -> None:
    """Behind a balancer a connection stays with its backend, which may answer 503 for ever."""
    clock = Skipping()
    made = replace(context(tmp_path, clock=clock), stop=Stop(clock))
    sink, its = case.sink(door, tmp_path, made=made, batch={"max_records": 4})
    met: list[int] = []

    def drains(asked: Asked) -> Answered | None:
        """The backend of the first connection, after its first request."""
        met.append(asked.connection)
        drained = len(met) > 1 and asked.connection == met[0]
        return Answered(503, b"draining") if drained else None

    door.rule = drains
    sink.write(batch(records(case)))
    assert case.stored(door.backend) == EACH_ONCE
    assert met.count(met[0]) <= 2, "it went on with the connection"
    assert dead_letters(its) == []


def test_what_is_too_large_is_split(case: Case, door: FaultDoor, tmp_path: Any) -> None:
    sink, context = case.sink(door, tmp_path, compression="none")

    def too_large(asked: Asked) -> Answered | None:
        limit = len(door.asked[0].body) // 2
        return Answered(413) if len(asked.body) > limit else None

    door.rule = too_large
    sink.write(batch(records(case)))
    assert case.stored(door.backend) == EACH_ONCE
    assert len(door.asked) > 3
    assert dead_letters(context) == []


def test_a_record_that_is_too_large_alone_is_a_dead_letter(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    sink, context = case.sink(door, tmp_path)
    door.rule = lambda asked: Answered(413, b"too large")
    sink.write(batch(records(case)[:3]))
    assert [
        (dead_letter["offset"], dead_letter["code"]) for dead_letter in dead_letters(context)
    ] == [(offset, "http_413") for offset in range(3)]


@pytest.mark.parametrize("case", REFUSING, indirect=True)
def test_a_record_that_is_refused_is_found_and_the_others_arrive(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    sink, context = case.sink(door, tmp_path)
    sink.write(batch(records(case, poison=7)))
    stored = case.stored(door.backend)
    assert set(stored) == set(range(COUNT)) - {7}
    assert not case.effectively_once or set(stored.values()) == {1}
    (dead_letter,) = dead_letters(context)
    assert (dead_letter["offset"], dead_letter["sink"], dead_letter["job"]) == (7, "sink", "job")
    assert dead_letter["attempt"] >= 1
    assert dead_letter["reason"]
    assert context.meter.stage("x", received=COUNT, lag=0).sent == COUNT - 1


@pytest.mark.parametrize("case", LOOKING, indirect=True)
def test_a_setting_that_makes_every_record_refused_pauses_the_sink_and_loses_none(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    """As a header that is missing, or an index that there is not: HTTP 400 for each request."""
    sink, context = case.sink(door, tmp_path)
    asked_before: list[Asked] = []

    def refuses(asked: Asked) -> Answered:
        if context.meter.circuit.state not in PAUSING:
            asked_before.append(asked)
        return Answered(400, b'{"reason": "no such index"}')

    door.rule = refuses
    rows = batch([case.record(number) for number in range(300)])
    writing = threading.Thread(target=sink.write, args=(rows,))
    writing.start()
    wait_until(lambda: context.meter.circuit.state in PAUSING)
    said = wait_until(lambda: context.meter.problem)
    keeps_order = case.type == "prometheus"  # then the next 100 are tried, else four elsewhere
    assert len(asked_before) < (120 if keeps_order else 60)
    assert dead_letters(context) == []
    assert said
    assert "no such index" in said
    door.rule = lambda asked: None
    writing.join(60)
    assert not writing.is_alive()
    assert set(case.stored(door.backend)) == set(range(300))
    assert dead_letters(context) == []
    assert context.meter.problem is None


ODD_TIMES = (-1, -(10**18), (1 << 63) + 5, 1 << 70, "now", 1.5, None)


def test_a_time_that_there_cannot_be_is_that_at_which_the_log_got_the_record(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    """Each sink once had an answer of its own: 1960, now, or a dead letter."""
    sink, context = case.sink(door, tmp_path)
    odd = [case.record(number) | {"time_unix_nano": at} for number, at in enumerate(ODD_TIMES)]
    del odd[-1]["time_unix_nano"]
    sink.write(batch([*odd, case.record(len(odd))]))
    assert dead_letters(context) == []
    assert set(case.stored(door.backend)) == set(range(len(odd) + 1))
    counted = {
        name.removeprefix("time_replaced_"): count
        for name, count in context.meter.counted().items()
        if name.startswith("time_replaced_")
    }
    reasons = {"missing": 1, "not_an_integer": 2, "before_1970": 2, "after_2262": 2}
    not_here = ("http", "s3")  # sends records as they are; has a column that `Feed` looks at
    assert counted == ({} if case.type in not_here else reasons)


def test_dead_letters_of_a_batch_are_one_file(tmp_path: Any) -> None:
    case = CASES["http"]
    door = FaultDoor(case.backend())
    sink, context = case.sink(door, tmp_path, batch={"max_records": 10})
    sink.write(
        batch([(case.poison if n % 7 == 5 else case.record)(n) for n in range(100)])  # type: ignore[misc]
    )
    assert len(dead_letters(context)) == 14
    assert len([*(context.dead_letters / "sink").glob("*.ndjson")]) == 1
    door.close()


@pytest.mark.parametrize("case", LOOKING, indirect=True)
@pytest.mark.parametrize("how", ["500", "silence"])
def test_a_record_that_breaks_the_destination_each_time_does_not_block_the_others(
    case: Case, door: FaultDoor, tmp_path: Any, how: str
) -> None:
    """Its bytes are looked for in the request, so nothing is compressed here."""
    sink, context = case.sink(door, tmp_path, compression="none")
    broken = batch(records(case))
    mark = _mark(case, sink, broken, 7)
    door.rule = lambda asked: _breaks(case.plain(asked.body), mark, how)
    sink.write(broken)
    stored = case.stored(door.backend)
    assert set(stored) == set(range(COUNT)) - {7}
    assert [dead_letter["offset"] for dead_letter in dead_letters(context)] == [7]


def _mark(case: Case, sink: Any, rows: Any, number: int) -> Any:
    """What tells a record in a request: as the sink encodes it, else as it is."""
    if case.type == "s3":
        return rows.column("value")[number].as_py()
    (row,) = rows.slice(number, 1).select(sink.columns).to_pylist()
    return sink.encode(row).content


def _breaks(body: bytes, mark: Any, how: str) -> Answered | None:
    own: bytes = mark
    if isinstance(mark, tuple):
        own = getattr(mark, "member", None) or mark[1]
    if own not in body:
        return None
    return Answered(500, b"internal error") if how == "500" else RESET


def test_an_address_that_nobody_listens_on_is_waited_for(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    sink, context = case.sink(door, tmp_path)
    door.close()
    context.stop.set()
    with pytest.raises(StoppedError):
        sink.write(batch(records(case)))
    assert "Connection" in (context.meter.problem or "")
    assert dead_letters(context) == []


def test_a_time_in_the_future_harms_no_other_record(
    case: Case, door: FaultDoor, tmp_path: Any
) -> None:
    sink, context = case.sink(door, tmp_path)
    rows = records(case)
    rows[3] = rows[3] | {"time_unix_nano": NOW_NS + TWO_HOURS_NS}
    sink.write(batch(rows))
    missing = [] if case.takes_future else [3]
    assert set(case.stored(door.backend)) == set(range(COUNT)) - set(missing)
    assert [dead_letter["offset"] for dead_letter in dead_letters(context)] == missing
