"""What becomes of the source's options: the client's, logd's, and the tasks' that Spark runs."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import BinaryType

from penstock.base.clock import SystemClock
from penstock.logd.format.batch import Record, build_batch
from penstock.router.columns.passthrough import PASSTHROUGH, lost_of
from penstock.router.read import chunks
from penstock.router.read.logd_reader import Clients, LogdReader
from penstock.router.read.offset_spec import Times
from penstock.router.read.offsets import Readable, Span, StreamPartition
from penstock.router.read.options import parse_options
from tests.unit.router.source_log import NEEDED, FakeLog, at, source_of, stream_reader

HEADED = Record("t.a", b"1", 1, headers=(("Trace", b"x"), ("Nats-Msg-Id", b"\xff")))


class ReadLog(FakeLog):
    """Also has rows, and finds times in partitions.

    Attributes:
        asked: What was asked for rows of each span.
    """

    def __init__(self) -> None:
        super().__init__(Readable(0, 100))
        self.asked: list[tuple[Span, dict[str, Any]]] = []
        self.lost = 0

    def rows(self, span: Span, **how: Any) -> Iterator[pa.RecordBatch]:
        self.asked.append((span, how))
        rows = build_batch([HEADED, Record("t.b", b"2", 2)])
        offsets = pc.cast(rows.column(0), pa.int64())
        columns = [offsets, *rows.columns[1:]]
        yield pa.RecordBatch.from_arrays(columns, schema=chunks.LOG_SCHEMA)

    def at_times(self, times: Times, readable: Any) -> dict[StreamPartition, int]:
        found = {where: times.of(where) for where in readable}
        return {where: time_ms for where, time_ms in found.items() if time_ms is not None}


@pytest.fixture
def log() -> ReadLog:
    """Read by each task."""
    return ReadLog()


@pytest.mark.parametrize(
    ("given", "prefer", "rack"),
    [
        ({}, "leader", ""),
        ({"readFrom": "leader"}, "leader", ""),
        ({"readFrom": "replica"}, "replica", ""),
        ({"readFrom": "replica", "rack": "b"}, "replica", "b"),
    ],
)
def test_who_is_read_from_is_what_the_client_prefers(
    given: dict[str, str], prefer: str, rack: str
) -> None:
    made: list[dict[str, Any]] = []

    def connect(_: str, **how: Any) -> Any:
        made.append(how)

    options = parse_options(NEEDED | given)
    clients = Clients(blocking=connect)
    LogdReader("h:1", retry_timeout_s=0, clock=SystemClock(), rack=options.rack, clients=clients)
    assert [(it["prefer"], it["rack"]) for it in made] == [(prefer, rack)]


@pytest.mark.parametrize(("wanted", "count"), [("", 1), ("1", 1), ("4", 4)])
def test_a_batch_is_read_in_so_many_pieces(log: ReadLog, wanted: str, count: int) -> None:
    source = source_of(log, NEEDED | {"minPartitions": wanted})
    reader = stream_reader(log, minPartitions=wanted)
    of_stream = [(it.span.start, it.span.end) for it in reader.partitions(at(20), at(60))]
    of_batch = [(it.span.start, it.span.end) for it in source.reader(source.schema()).partitions()]
    step = 100 // count
    assert of_batch == [(step * n, step * (n + 1)) for n in range(count)]
    step = 40 // count
    assert of_stream == [(20 + step * n, 20 + step * (n + 1)) for n in range(count)]


ONLY = '["=", "subject", "t.b"]'


@pytest.mark.parametrize(
    ("given", "subject"),
    [({}, None), ({"subject": "t.>"}, "t.>"), ({"filter": ONLY}, "t.b"),
     ({"subject": "t.>", "filter": ONLY}, "t.>")],
)  # fmt: skip
def test_logd_is_asked_for_the_subject_alone(
    log: ReadLog, given: dict[str, str], subject: str | None
) -> None:
    source = source_of(log, NEEDED | {"failOnDataLoss": "false"} | given)
    reader = source.reader(source.schema())
    (partition,) = reader.partitions()
    list(reader.read(partition))
    assert log.asked == [(partition.span, {"subject": subject, "fail_on_data_loss": False})]


@pytest.mark.parametrize("pass_through", ["", "offset,value"])
def test_a_task_tells_last_how_much_is_lost_where_rows_are_carried(
    log: ReadLog, pass_through: str
) -> None:
    log.readable, log.lost = Readable(5, 100), 7
    source = source_of(
        log,
        NEEDED
        | {
            "failOnDataLoss": "false",
            "startingOffsets": '{"logs": {"0": 0}}',
            "passThrough": pass_through,
        },
    )
    struct = source.schema().add(PASSTHROUGH, BinaryType()) if pass_through else source.schema()
    reader = source.reader(struct)
    gone, partition = reader.partitions()
    found = list(reader.read(gone)), list(reader.read(partition))
    told = [[lost_of(pa.Table.from_batches([it])) for it in each if pass_through] for each in found]
    assert told == ([[5], [0, 7]] if pass_through else [[], []])


@pytest.mark.parametrize("included", [True, False])
def test_headers_are_there_where_they_are_asked_for(log: ReadLog, *, included: bool) -> None:
    reader = stream_reader(log, includeHeaders=str(included).lower())
    (rows,) = reader.read(reader.partitions(at(0), at(2))[0])
    assert ("headers" in rows.schema.names) is included
    if included:
        assert rows.column("headers").to_pylist() == [list(HEADED.headers), None]


def test_a_batch_ends_at_times_of_some_partitions(log: ReadLog) -> None:
    """The others at their end."""
    log.partitions = 2
    source = source_of(log, NEEDED | {"endingOffsetsByTimestamp": '{"logs": {"1": 30}}'})
    spans = [it.span for it in source.reader(source.schema()).partitions()]
    assert [(it.partition, it.start, it.end) for it in spans] == [(0, 0, 100), (1, 0, 30)]
