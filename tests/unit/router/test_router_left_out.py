"""A replay leaves out what `dedupe` left out at the first time, though it begins in the middle."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from penstock.router.checkpoint.journal import BatchJournal, KeptLines
from penstock.router.checkpoint.local import StartingOffsets
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.route_task import ROUTE_COLUMN
from penstock.router.read.offsets import Offsets, StreamPartition
from penstock.router.replay import backfill
from penstock.router.transforms import Again, Chain
from penstock.router.transforms.dedupe import Decided, LeftOut, StreamId
from penstock.service import ConfigError
from tests.unit.router.sink_rows import context
from tests.unit.router.test_router_feed import Notebook, job
from tests.unit.router.test_router_replaying import Run
from tests.unit.router.test_router_transforms import DEDUPE, SECOND, record_row, steps, table


def stream_id_of(stream: str, _partition: int, _offset: int) -> str:
    return {"logs": "5f2c", "more": "77aa"}[stream]


PLACE = StreamPartition("logs", 0)


def rows_of(first: int, *ids: str | None, at_s: int = 100, **fields: Any) -> pa.Table:
    found = [
        record_row(offset, record_id=name) | {"timestamp_ns": at_s * SECOND, **fields}
        for offset, name in enumerate(ids, first)
    ]
    return table(*found)


def chain(home: Path, again: Again | None = None, stream_id: StreamId = stream_id_of) -> Chain:
    directory = home / "replay" if again else home
    return Chain(
        steps(DEDUPE), directory / "dedupe.all", key_path="", stream_id=stream_id, again=again
    )


def offsets(made: Chain, given: pa.Table, batch: int = 0) -> list[int]:
    return [int(it) for it in made.apply(given, batch).rows["offset"].to_pylist()]


@pytest.mark.parametrize("must_be_noted", [False, True])
def test_a_replay_from_the_middle_leaves_out_the_same(tmp_path: Path, must_be_noted: bool) -> None:
    its = chain(tmp_path)
    offsets(its, rows_of(0, "a", "b", "c"), 0)
    second = rows_of(3, "c", "d", "d", "e", None)
    assert offsets(its, second, 1) == [3 + 1, 3 + 3, 3 + 4]
    assert offsets(its, second, 1) == [4, 6, 7], "as it comes again after a crash"
    again = Again(tmp_path, must_be_noted=must_be_noted)
    assert offsets(chain(tmp_path, again), second) == [4, 6, 7]


def test_what_is_not_noted_is_judged_again_or_refused(tmp_path: Path) -> None:
    offsets(chain(tmp_path), rows_of(5, "a", "a"))
    known = Again(tmp_path, must_be_noted=False)
    assert offsets(chain(tmp_path, known), rows_of(3, "x", "x", "a", "b", "c")) == [3, 5, 7]
    strict = Again(tmp_path, must_be_noted=True)
    with pytest.raises(ConfigError, match=r"logs/0: whether dedupe left out offset 3 .*not noted"):
        offsets(chain(tmp_path, strict), rows_of(3, "x", "x", "a"))
    made_again = chain(tmp_path, strict, lambda *_: "another")
    with pytest.raises(ConfigError, match=r"offset 5 .*not noted"):
        offsets(made_again, rows_of(5, "a"))


def test_notes_tell_partitions_apart_and_the_last_of_two_holds(tmp_path: Path) -> None:
    directory = tmp_path / "dedupe.all"
    directory.mkdir()
    notes = LeftOut(directory, stream_id_of)
    both = pa.concat_tables(
        [rows_of(10, "a", "b"), rows_of(0, "c", stream="more"), rows_of(4, "d")]
    )
    both = both.set_column(
        both.schema.get_field_index("partition"), "partition", pa.array([0, 0, 0, 1], pa.int32())
    )
    notes.note(both, [True, False, False, False])
    notes.note(rows_of(12, "e", "f"), [False, True])
    with (directory / "left_out.ndjson").open("a") as file:
        file.write('[["logs", "5f')
    notes = LeftOut(directory, stream_id_of)
    notes.note(rows_of(14, "g"), [True])
    assert notes.stayed(both) == [True, False, False, False]
    assert notes.stayed(rows_of(9, *"abcdefg")) == [None, True, False, False, True, True, None]
    notes = LeftOut(directory, stream_id_of)
    notes.note(rows_of(11, "b", "e", "f"), [True, True, True])
    assert notes.stayed(rows_of(10, *"abcde")) == [None, True, True, True, None]


def test_a_row_is_looked_up_without_a_copy_of_what_was_left_out() -> None:
    """Of 50,000 rows, of which every second one was left out, copies took seconds."""

    class Runs(list[int]):
        copies = 0

        @override
        def __getitem__(self, at: Any) -> Any:
            self.copies += isinstance(at, slice)
            return super().__getitem__(at)

    runs, judged = Runs([1, 1, 3, 4, 8, 8]), Decided()
    judged.add(0, 9, runs)
    stayed = [offset for offset in range(10) if judged.stayed(offset)]
    assert (stayed, judged.stayed(10)) == ([0, 2, 5, 6, 7, 9], None)
    assert runs.copies <= 2, "one for all rows"


def test_the_lines_that_are_kept_are_bounded_by_their_size_as_well(tmp_path: Path) -> None:
    lines = KeptLines(tmp_path / "lines", max_lines=1000, max_bytes=100)
    for number in range(40):
        lines.add(f"{number:09d}")
    kept = lines.load()
    assert kept == [f"{number:09d}" for number in range(40 - len(kept), 40)]
    assert 5 <= len(kept) <= 11


def test_the_notes_are_bounded_so(tmp_path: Path) -> None:
    notes = LeftOut(tmp_path, stream_id_of, max_bytes=200)
    for offset in range(30):
        notes.note(rows_of(offset, "a"), [False])
    kept = (tmp_path / "left_out.ndjson").read_text().splitlines()
    assert 2 <= len(kept) <= 7
    assert json.loads(kept[-1])[0][3:] == [29, 29, [29, 29]]


def test_a_feed_notes_what_it_leaves_out_and_one_that_delivers_again_knows_it(
    tmp_path: Path,
) -> None:
    its = context(tmp_path)
    routes = [{"name": "all", "transforms": [DEDUPE], "sinks": ["lake"]}]
    config = job(tmp_path, routes=routes)

    def given(table: pa.Table) -> pa.Table:
        return table.append_column(ROUTE_COLUMN, pa.array([0] * table.num_rows, pa.int32()))

    first = Notebook(its)
    batch_writer = BatchWriter(config, first, its)
    batch_writer.give(given(rows_of(0, "a", "b")), 0)
    batch_writer.give(given(rows_of(2, "b", "c")), 1)
    (tmp_path / "replay").mkdir()
    other = context(tmp_path / "replay")
    then = Notebook(other)
    again = Again(its.state_dir, must_be_noted=True)
    BatchWriter(config, then, other, again=again).give(given(rows_of(2, "b", "c")), 0)
    assert then.batches[0].equals(first.batches[1])
    assert then.batches[0].num_rows == 1


PARQUET, CONSOLE = {"type": "parquet", "path": "/lake"}, {"type": "console"}


@pytest.mark.parametrize(
    ("sink", "ends", "first", "must"),
    [
        (PARQUET, (0, 6, 10), 6, True),
        (PARQUET, (0, 6, 10), 0, False),
        (PARQUET, (), 6, False),
        (CONSOLE, (0, 6, 10), 6, False),
    ],
)
def test_notes_must_be_there_where_records_would_be_twice(
    tmp_path: Path, sink: dict[str, Any], ends: tuple[int, ...], first: int, must: bool
) -> None:
    """But not of a replay from the job's beginning on, which knows all that came before."""

    class Giving(Run):
        @override
        def deliver(self, batch_writer: Any, sink: str, rows: Any, batch: int) -> int:
            table = rows_of(rows.start[PLACE], "a")
            batch_writer.give(table.append_column(ROUTE_COLUMN, pa.array([0], pa.int32())), batch)
            return 1

    home = tmp_path / "checkpoint" / "lake"
    home.mkdir(parents=True)
    StartingOffsets(home.parent).extend(Offsets({PLACE: 0}, {"logs": "5f2c"}))
    for end in ends:
        BatchJournal(home).note(Offsets({PLACE: end}, {"logs": "5f2c"}))
    routes = [{"name": "all", "transforms": [DEDUPE], "sinks": ["lake"]}]
    run: Any = Giving(tmp_path, sinks={"lake": sink}, routes=routes, on_malformed="route")
    with pytest.raises(ConfigError) if must else nullcontext():
        backfill.backfill(run, "lake", {PLACE: first}, {PLACE: 10}, print)
