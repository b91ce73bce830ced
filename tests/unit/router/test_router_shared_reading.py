"""Sinks that share what they read get the rows that each would read alone."""

import json
import multiprocessing
import pickle
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.columns import filters
from penstock.router.columns.passthrough import PASSTHROUGH, unpack
from penstock.router.columns.projection import Projection, arrow_schema
from penstock.router.columns.schema import view
from penstock.router.columns.spec_versions import SpecVersions, known_versions
from penstock.router.read.chunks import FrameChunk
from penstock.router.read.offsets import Span
from penstock.router.read.options import SourceOptions, parse_options
from penstock.router.read.shared.cache import SharedChunks
from penstock.router.read.shared.policy import CHUNK_OFFSETS, Cutter
from penstock.router.read.shared.reader import WAIT_S, SharedReading
from penstock.router.read.tasks import shaped_rows
from tests.support.permissions import without_privileges
from tests.support.router import log_line, span_line
from tests.unit.router.scripted_log import Frame, ScriptedClient, frame, reading, thinned
from tests.unit.router.sink_rows import TestClock
from tests.unit.router.source_log import NEEDED

MIB = 1024 * 1024
VERSIONS = known_versions(())
EVERY = tuple(column.name for column in view("records").columns)
ODD = (
    b"not json",
    b"\xff\xfe\x00",
    b"",
    b"{}",
    b'{"schema":"log/9.0","kind":"log"}',
    b'{"schema":"log/1.0","kind":"log","severity_number":"many"}',
    b'{"kind":"log","attributes":{"a":{"b":[1,2]}},"body":"x"}',
)
WHERE = (
    None,
    ["=", "kind", "log"],
    ["and", [">=", "severity_number", 17], ["not", ["null", "body"]]],
    ["in", "service", ["checkout", "shop"]],
    ["=", "kind", "nothing"],
)
SMALL_OFFSETS = 64
"""Of a piece, so that small logs have many."""


def line(dice: random.Random, number: int) -> bytes:
    roll = dice.random()
    if roll < 0.1:
        return dice.choice(ODD)
    service = dice.choice(("checkout", "shop", "till"))
    if roll < 0.4:
        return span_line(number, service=service)
    return log_line(number, service=service, severity=dice.choice((9, 17)))


def random_log(dice: random.Random) -> list[Frame]:
    """Frames of a few records; of some compaction has left a part, or nothing."""
    found: list[Frame] = []
    base = 0
    while base < 400:
        count = dice.randint(1, 40)
        found.append(frame(base, [line(dice, base + number) for number in range(count)]))
        if dice.random() < 0.2:
            kept = sorted(dice.sample(range(count), dice.randint(0, count)))
            found[-1] = thinned(found[-1], kept)
        base += count
    return found


class Sink:
    """How one reads."""

    def __init__(self, dice: random.Random) -> None:
        known = {column.name: column for column in view("records").columns}
        passed_through = EVERY if dice.random() < 0.6 else tuple(dice.sample(EVERY, 5))
        judged = dice.choice(((), ("severity_number",), ("kind", "service")))
        self.schema = arrow_schema(known[name] for name in passed_through)
        options = NEEDED | {"view": "records", "passThrough": ",".join(passed_through)}
        if (where := dice.choice(WHERE)) is not None:
            options["filter"] = json.dumps(where)
        self.given = options
        self.columns = tuple(known[name] for name in judged)
        self.passed_through = tuple(known[name] for name in passed_through)

    def given_schema(self) -> pa.Schema:
        return arrow_schema(self.columns).append(pa.field(PASSTHROUGH, pa.binary()))

    def rows(self, log: list[Frame], span: Span, share_in: Path | None) -> pa.Table:
        more = {} if share_in is None else {"shareIn": str(share_in)}
        options = parse_options(self.given | more, streaming=True)
        shape = Projection(options.view, self.columns, options.only, VERSIONS, self.passed_through)
        batches = list(read(log, span, options, shape))
        judged = [name.name for name in self.columns]
        looked_at = pa.Table.from_batches(batches, self.given_schema())
        verdict = pa.repeat(pa.scalar(1, pa.int32()), looked_at.num_rows)
        table = looked_at.select([PASSTHROUGH]).append_column("verdict", verdict)
        found = unpack(table, "verdict", self.schema)
        for name in judged:
            found = found.append_column(f"judged {name}", looked_at.column(name))
        return found


def read(
    log: list[Frame], span: Span, options: SourceOptions, shape: Projection
) -> Iterator[pa.RecordBatch]:
    its = reading(ScriptedClient(log))
    its.cutter = lambda: Cutter(offsets=SMALL_OFFSETS, min_records=16)
    made = shaped_rows(span, its, options, shape)
    return (rows for rows in made if rows.num_rows)


@pytest.mark.parametrize("seed", range(12))
def test_sinks_at_different_places_get_the_rows_that_each_gets_alone(
    seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    log = random_log(dice)
    end = log[-1][0].next_offset
    sinks = [Sink(dice) for _ in range(2)]
    sinks.append(sinks[0])
    for _ in range(12):
        if dice.random() < 0.2:  # compaction, or an election that has put others in their place
            at = dice.randrange(len(log))
            count = log[at][0].last_offset_delta + 1
            base = log[at][0].base_offset
            log[at] = frame(base, [line(dice, 10_000 + number) for number in range(count)])
        first, last = sorted(dice.sample(range(end + 1), 2))
        for sink in dice.sample(sinks, 3):
            span = Span("s", dice.randrange(2), first, dice.choice((last, end)))
            alone = sink.rows(log, span, None)
            assert sink.rows(log, span, tmp_path).equals(alone)
    assert list(tmp_path.iterdir())


def test_what_a_shape_is_known_by_tells_all_that_rows_follow_from() -> None:
    records, logs = view("records"), view("logs")
    columns = records.columns[:3]
    one, one_and_a_half = filters.Test("=", "offset", (1,)), filters.Test("=", "offset", (1.5,))
    shapes = [
        Projection(records, columns),
        Projection(logs, columns),
        Projection(records, columns[::-1]),
        Projection(records, columns[:2]),
        Projection(records, columns[:2], None, SpecVersions(), columns[2:]),
        Projection(records, columns, one),
        Projection(records, columns, one_and_a_half),
        Projection(records, columns, filters.Joined("not", (one,))),
        Projection(records, columns, None, SpecVersions({"log": (1,)})),
        Projection(records, columns, None, SpecVersions({}, frozenset({("log", 1)}))),
        Projection(records, columns, None, SpecVersions({}, frozenset(), ("module",))),
    ]
    assert len({shape.known_by for shape in shapes}) == len(shapes)
    of_another_process = pickle.loads(pickle.dumps(shapes))
    assert [it.known_by for it in of_another_process] == [it.known_by for it in shapes]


class Counted:
    """Makes rows and counts how often."""

    def __init__(self) -> None:
        self.made: list[list[bytes]] = []

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self.made.append(rows.column("value").to_pylist())
        return rows.select(["offset", "value"])


def some_pieces(count: int) -> list[FrameChunk]:
    size = CHUNK_OFFSETS
    log = [frame(at * size, [b"%d" % at] * size) for at in range(count)]
    client = ScriptedClient(log)
    found = list(reading(client).chunks(Span("s", 0, 0, count * size), fail_on_data_loss=True))
    assert len(found) == count
    return found


class Pauses(TestClock):
    """Does something in each pause, and counts them in seconds."""

    def __init__(self, does: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._does = does
        self.slept_s = 0.0

    @override
    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self._does()


def shared_reading_of(
    directory: Path, make: Counted, *, clock: TestClock | None = None, purpose: str = "x"
) -> SharedReading:
    opened = partial(SharedChunks, directory, 64 * MIB)
    return SharedReading(opened, purpose, make, clock or TestClock())


def values(made: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [rows.column("value")[0].as_py() for rows in made]


def test_what_one_made_no_other_makes_but_for_another_purpose(tmp_path: Path) -> None:
    chunks, wanted = some_pieces(6), [b"0", b"1", b"2", b"3", b"4", b"5"]
    for purpose, times in (("x", 6), ("x", 0), ("y", 6)):
        make = Counted()
        made = shared_reading_of(tmp_path, make, purpose=purpose).batches(chunks)
        assert values(made) == wanted
        assert len(make.made) == times


def test_what_another_makes_is_waited_for_a_while_and_the_rest_is_made_meanwhile(
    tmp_path: Path,
) -> None:
    chunks, make, made = some_pieces(3), Counted(), list[int]()
    clock = Pauses(lambda: made.append(len(make.made)))
    other = SharedChunks(tmp_path, 64 * MIB)
    with other.making(chunks[0].name("x")) as is_others:  # and never ends
        assert is_others
        found = shared_reading_of(tmp_path, make, clock=clock).batches(chunks)
        assert values(found) == [b"0", b"1", b"2"]
    assert set(made) == {2}
    assert WAIT_S <= clock.slept_s < 1.1 * WAIT_S


def test_what_another_has_made_meanwhile_is_taken(tmp_path: Path) -> None:
    chunks, make, other = some_pieces(2), Counted(), SharedChunks(tmp_path, 64 * MIB)
    theirs, name = pa.record_batch({"value": [b"theirs"]}), chunks[1].name("x")
    clock = Pauses(lambda: other.keep(name, theirs))
    with other.making(name):
        found = shared_reading_of(tmp_path, make, clock=clock).batches(chunks)
        assert values(found) == [b"0", b"theirs"]


class Late(SharedChunks):
    """Looks for the first time right before another has made it."""

    looked = 0

    @override
    def find(self, name: str) -> pa.RecordBatch | None:
        self.looked += 1
        return super().find(name) if self.looked > 1 else None


def test_what_another_finished_before_the_lock_was_taken_is_taken(tmp_path: Path) -> None:
    chunks, make, late = some_pieces(1), Counted(), Late(tmp_path, 64 * MIB)
    for _ in shared_reading_of(tmp_path, make).batches(chunks):
        pass
    assert values(SharedReading(lambda: late, "x", make, TestClock()).batches(chunks)) == [b"0"]
    assert (late.looked, len(make.made)) == (2, 1)


def run_and_die(directory: Path, name: str) -> Callable[[Connection], None]:
    def run(connection: Connection) -> None:
        with SharedChunks(directory, 64 * MIB).making(name):
            connection.send("making")
            signal.pause()

    return run


def test_a_task_that_is_killed_is_not_waited_for(tmp_path: Path) -> None:
    chunks, make = some_pieces(1), Counted()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=run_and_die(tmp_path, chunks[0].name("x")), args=(there,))
    process.start()
    assert here.recv() == "making"

    def end() -> None:
        process.kill()
        process.join()

    clock = Pauses(end)
    assert values(shared_reading_of(tmp_path, make, clock=clock).batches(chunks)) == [b"0"]
    assert 0 < clock.slept_s < WAIT_S / 10
    assert values(shared_reading_of(tmp_path, make).batches(chunks)) == [b"0"]
    assert len(make.made) == 1


def test_processes_that_begin_at_the_same_time_make_each_piece_once(
    tmp_path: Path,
) -> None:
    chunks = some_pieces(9)
    context = multiprocessing.get_context("fork")
    begin = context.Barrier(3)
    answers: Any = context.SimpleQueue()

    def run() -> None:
        make = Counted()
        kept = SharedChunks(tmp_path, 64 * MIB)
        its = SharedReading(lambda: kept, "x", make, SystemClock(), wait_s=600.0)
        begin.wait()
        found = values(its.batches(chunks))
        answers.put((found, len(make.made)))

    processes = [context.Process(target=run) for _ in range(3)]
    for process in processes:
        process.start()
    given = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    assert [found for found, _ in given] == [[b"%d" % at for at in range(9)]] * 3
    assert sum(made for _, made in given) == 9


@pytest.mark.parametrize("damage", ["absent", "file", "forbidden"])
def test_where_nothing_can_be_shared_it_is_read_and_told_once(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "shared"
    if damage == "file":
        place.write_text("no directory")
    if damage == "forbidden":
        place.mkdir(mode=0o500)
    its = shared_reading_of(place, Counted())
    made = without_privileges(lambda: list(its.batches(some_pieces(5))))
    assert values(iter(made)) == [b"0", b"1", b"2", b"3", b"4"]
    assert capsys.readouterr().err.count("without what other sinks have read") == 1


def test_a_piece_of_which_compaction_has_left_nothing_is_no_rows(tmp_path: Path) -> None:
    log = [thinned(frame(0, [log_line(number) for number in range(5)]), [])]
    sink = Sink(random.Random(0))
    options = parse_options(sink.given | {"shareIn": str(tmp_path)}, streaming=True)
    shape = Projection(options.view, sink.columns, options.only, VERSIONS, sink.passed_through)
    for _ in range(2):
        assert list(read(log, Span("s", 0, 0, 5), options, shape)) == []
