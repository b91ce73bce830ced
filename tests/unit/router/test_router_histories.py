"""Random histories of a log that loses records and gives their offsets again, and of a job's kills.

Whatever happens to the log and the job, a sink has each record once that the log still holds, and
keeps each record that it ever got.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from typing_extensions import override

from penstock.router.read.logd_reader import LogState
from penstock.router.read.offset_spec import Subscription
from penstock.router.read.offsets import Offsets, Readable, Span, StreamPartition, offsets_from_json
from penstock.router.read.source import LogStreamReader
from penstock.router.read.tasks import LostPartition
from penstock.router.sinks import Sink, SinkContext
from penstock.router.sinks.parquet.sink import ParquetLake, ParquetSink
from tests.unit.router.sink_rows import TestClock, context, row, table
from tests.unit.router.source_log import stream_reader

STREAMS = ("logs", "traces")
PLACES = [StreamPartition(stream, number) for stream in STREAMS for number in (0, 1)]
SEED = os.environ.get("SEED")
SEEDS = [int(SEED)] if SEED else range(12)


class KilledError(Exception):
    """The job is killed here."""


class TruncatedLog:
    """Partitions of numbered records; a truncation begins a leader epoch, as an election does."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.made = 0
        self.ids = dict.fromkeys(STREAMS, "id0")
        self.records: dict[StreamPartition, list[int]] = {at: [] for at in PLACES}
        self.epochs: dict[StreamPartition, list[tuple[int, int]]] = {at: [(1, 0)] for at in PLACES}

    def append(self, at: StreamPartition, count: int) -> None:
        self.records[at] += range(self.made, self.made + count)
        self.made += count

    def truncate(self, at: StreamPartition, offset: int) -> None:
        del self.records[at][offset:]
        epoch = self.epochs[at][-1][0] + 1
        self.epochs[at] = [it for it in self.epochs[at] if it[1] < offset] + [(epoch, offset)]

    def make_again(self, stream: str) -> None:
        self.made += 1
        self.ids[stream] = f"id{self.made}"
        for at in PLACES:
            if at.stream == stream:
                self.records[at], self.epochs[at] = [], [(1, 0)]

    def state(
        self, streams: Subscription | tuple[str, ...], *, may_be_gone: bool = False
    ) -> LogState:
        names = streams.streams(STREAMS) if isinstance(streams, Subscription) else streams
        parts = [at for at in PLACES if at.stream in names]
        return LogState(
            {at: Readable(0, len(self.records[at])) for at in parts},
            {name: self.ids[name] for name in names},
            {at: self.epochs[at][-1][0] for at in parts},
            {at: len(self.records[at]) for at in parts},
        )

    state_now = state

    def kept_until(self, span: Span, *, patiently: bool) -> int:
        """As logd tells a reader that brings an epoch."""
        later = [
            first for epoch, first in self.epochs[span.where] if epoch > (span.planned_epoch or 0)
        ]
        return min([span.end, *later])


class Keyed(Sink):
    """What tables have: the first row of a key stays."""

    columns = ("*",)

    def __init__(self, within: SinkContext) -> None:
        self._context = within
        self.rows: dict[tuple[Any, ...], int] = {}

    @override
    def write(self, rows: Any) -> None:
        for it in rows.select(["stream", "partition", "offset", "value"]).to_pylist():
            *place, value = it.values()
            self.rows.setdefault((self._context.stream_id(*place), *place), int(value))

    def has(self) -> Counter[int]:
        return Counter(self.rows.values())


class Files(ParquetLake):
    """The real sink."""

    def __init__(self, within: SinkContext) -> None:
        self.path = within.state_dir.parent / "lake"
        super().__init__(ParquetSink(type="parquet", path=str(self.path)), within)
        self.open()

    def has(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for path in self.path.rglob("*.parquet"):
            values = pq.ParquetFile(path).read(["value"])["value"].to_pylist()
            found.update(int(value) for value in values)
        return found


class Job:
    """What Spark and a query do with the source and a sink; `dice` kill it in between."""

    def __init__(
        self, log: TruncatedLog, make: Callable[[SinkContext], Any], directory: Path, seed: int
    ) -> None:
        self.dice = random.Random(seed)
        self.is_mortal = True
        self._log = log
        self._context = replace(context(directory), persist=self._perhaps_killed)
        self._make = make
        self.sink = make(self._context)
        self._planned: list[dict[str, Any]] = []
        self._committed = 0
        self._reader = self._started()
        self._start = self._reader.initialOffset()

    def _started(self) -> LogStreamReader:
        options = {"subscribe": ",".join(STREAMS), "startingOffsets": "earliest"}
        return stream_reader(self._log, failOnDataLoss="false", **options)  # type: ignore[arg-type]

    def _perhaps_killed(self) -> None:
        if self.is_mortal and self.dice.random() < 0.15:
            raise KilledError

    def step(self) -> bool:
        """Do a batch, or a part of it; returns whether there was one."""
        try:
            return self._batch()
        except KilledError:
            self._reader = self._started()
            self.sink = self._make(self._context) if isinstance(self.sink, Files) else self.sink
            return True

    def _batch(self) -> bool:
        start = self._planned[self._committed - 1] if self._committed else self._start
        if len(self._planned) == self._committed:
            limit = self.dice.choice([ReadAllAvailable(), ReadMaxRows(7)])
            end = self._reader.latestOffset(start, limit)
            if end == start:
                return False
            self._planned.append(end)
            self._perhaps_killed()
        end = self._planned[-1]
        rows, lost = [], 0
        for task in self._reader.partitions(start, end):
            if isinstance(task, LostPartition):
                lost += task.lost
            elif task.span.stream_id != self._log.ids[task.span.stream]:
                lost += task.span.length
            else:
                rows += list(self._read(task.span))
        before, planned = offsets_from_json(start), offsets_from_json(end)
        self._context.begin_batch(before, planned)
        if lost:
            self._context.shorten()
        self.sink.write(table(rows) if rows else table([row(0)]).slice(0, 0))
        self._perhaps_killed()
        self._committed += 1
        return True

    def _read(self, span: Span) -> Iterator[dict[str, Any]]:
        for offset in range(span.start, span.end):
            number = self._log.records[span.where][offset]
            place: Mapping[str, Any] = {"stream": span.stream, "partition": span.partition}
            service = f"s{number % 2}"
            yield row(offset, **place, value=str(number).encode(), service=service)


@pytest.mark.parametrize("make", [Keyed, Files])
def test_a_sink_has_what_the_log_has_and_keeps_what_it_got(
    tmp_path: Path, make: Callable[[SinkContext], Any]
) -> None:
    for seed in SEEDS:
        directory = tmp_path / str(seed)
        directory.mkdir()
        dice, log = random.Random(seed), TruncatedLog()
        job = Job(log, make, directory, seed)
        got: Counter[int] = Counter()
        for _ in range(25):
            at = dice.choice(PLACES)
            match dice.choices(["append", "truncate", "make again", "batch"], [8, 3, 0.5, 9])[0]:
                case "append":
                    log.append(at, dice.randint(1, 12))
                case "truncate":
                    log.truncate(at, dice.randint(0, len(log.records[at])))
                case "make again":
                    log.make_again(at.stream)
                case _:
                    job.step()
                    now = job.sink.has()
                    assert not got - now, f"SEED={seed}: {got - now} had been delivered"
                    got = now
        job.is_mortal = False
        while job.step():
            pass
        now = job.sink.has()
        assert not got - now, f"SEED={seed}: {got - now} had been delivered"
        assert set(now.values()) <= {1}, f"SEED={seed}: {now - Counter(set(now))} are there twice"
        wanted = Counter(number for numbers in log.records.values() for number in numbers)
        assert not wanted - now, f"SEED={seed}: {wanted - now} are missing"


def test_positions_say_the_generations_of_what_comes_next() -> None:
    where = StreamPartition("logs", 0)
    at = Offsets({where: 70}, {"logs": "a"}, {where: 4}, {where: ((40, 2), (60, 3))})
    assert offsets_from_json(at.to_json()) == at
