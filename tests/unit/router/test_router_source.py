"""The data source's options and planning, against a log of our own making."""

import gc
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from penstock.router.errors import BadOptionError, LogUnavailableError
from penstock.router.read.offset_spec import Times
from penstock.router.read.offsets import EARLIEST, LATEST, Offsets, Readable, StreamPartition
from penstock.router.read.options import OPTIONS, parse_options
from penstock.router.read.source import LogDataSource
from penstock.router.read.tasks import LostPartition
from penstock.router.spark.task_runs import spare_what_stays
from tests.unit.router.source_log import LOGS, NEEDED, FakeLog, at, both, stream_reader

MIB = 1024 * 1024


def test_a_worker_spares_what_it_has_loaded_from_its_collections_of_garbage_once() -> None:
    collector = Mock()
    for _ in range(2):
        spare_what_stays(collector)
    collector.freeze.assert_called_once_with()


def test_what_is_read_outside_a_worker_spares_nothing() -> None:
    log: Any = FakeLog(Readable(0, 5))
    log.rows, log.lost = lambda *_, **__: iter(()), 0
    reader = stream_reader(log)
    (partition,) = reader.partitions(at(0), at(5))
    before = gc.get_freeze_count()
    assert list(reader.read(partition)) == []
    assert gc.get_freeze_count() <= before  # what others froze may be freed meanwhile


def test_options_have_the_defaults_of_sparks_kafka_source() -> None:
    assert parse_options(NEEDED, streaming=True).starting == LATEST
    assert parse_options(NEEDED, streaming=False).starting == EARLIEST
    assert parse_options(NEEDED, streaming=True).fail_on_data_loss
    chosen = parse_options(
        NEEDED | {"subscribe": "a, b", "startingOffsets": '{"a":{"0":5}}'}, streaming=True
    )
    assert chosen.subscription.names == ("a", "b")
    assert chosen.starting == Offsets({StreamPartition("a", 0): 5})


@pytest.mark.parametrize(
    "options",
    [
        {"logd": ""},
        {"subscribe": " , "},
        {"startingOffsets": "yesterday"},
        {"maxOffsetsPerTrigger": "0"},
        {"minPartitions": "many"},
        {"failOnDataLoss": "maybe"},
        {"retryTimeoutSeconds": "-1"},
        {"retryTimeoutSeconds": "nan"},
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": "", "assign": '{"a": []}'},
        {"subscribe": "", "assign": '{"a": 3}'},
        {"subscribe": "", "subscribePattern": "("},
        {"subscribe": "", "subscribePattern": r"(a)\1"},
        {"startingTimestamp": "2026-11-22"},
        {"startingOffsetsByTimestamp": '{"a": {"0": -1}}'},
        {"startingOffsetsByTimestampStrategy": "earliest"},
        {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
        {"maxTriggerDelay": "soon"},
        {"endingOffsets": "latest"},
        {"readFrom": "anywhere"},
        {"rack": "a"},
        {"subject": "a.>.b"},
        {"subject": "a b"},
        {"subject": "a..b"},
        {"subject": "a*"},
        {"view": "tales"},
        {"columns": "offset,body"},
        {"filter": '["=", "body", "x"]'},
        {"filter": "body = 1"},
        {"specs": "no.such.module", "view": "logs"},
    ],
)
def test_a_bad_option_is_refused(options: dict[str, str]) -> None:
    def plans() -> None:
        source = LogDataSource(NEEDED | options)
        source.streamReader(source.schema())

    with pytest.raises(BadOptionError):
        plans()


def test_processes_that_plan_and_read_look_nothing_up_in_the_specs(tmp_path: Path) -> None:
    source = LogDataSource(NEEDED | {"view": "records"})
    pickled = tmp_path / "source"
    pickled.write_bytes(pickle.dumps((source, source.schema())))
    script = (
        "import pickle, sys; from pathlib import Path;"
        " source, schema = pickle.loads(Path(sys.argv[1]).read_bytes());"
        " source.streamReader(schema);"
        " print(*(name for name in sys.modules if name.startswith('penstock.specs')))"
    )
    command = [sys.executable, "-c", script, str(pickled)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "\n"


def test_an_unknown_option_is_refused_and_the_nearest_known_one_named() -> None:
    with pytest.raises(BadOptionError, match=r"'startingoffset'; is startingOffsets meant\?"):
        parse_options(NEEDED | {"startingOffset": "earliest"}, streaming=True)
    with pytest.raises(BadOptionError, match="maxOffsetsPerTrigger is not for a batch"):
        parse_options(NEEDED | {"maxOffsetsPerTrigger": "5"}, streaming=False)
    with pytest.raises(BadOptionError, match="cannot be earliest"):
        parse_options(NEEDED | {"endingOffsets": '{"logs": {"0": -2}}'}, streaming=False)


def test_a_time_goes_before_times_by_partition_and_these_before_offsets() -> None:
    options = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"logs": {"0": 5}}',
        "startingTimestamp": "7",
    }
    assert parse_options(NEEDED | options).starting == Times(every=7)
    del options["startingTimestamp"]
    assert parse_options(NEEDED | options).starting == Times(each={LOGS: 5})


def test_the_table_of_options_of_the_data_source_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "router" / "data-source.md").read_text()
    table = [f"| `{name}` | {default} | {text} |" for name, (default, text) in OPTIONS.items()]
    assert "\n".join(table) in page


def test_a_batch_ends_at_the_log_or_at_its_limit() -> None:
    reader = stream_reader(FakeLog(Readable(0, 100)))
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(100)
    assert reader.latestOffset(at(10), ReadMaxRows(30)) == at(40)


def test_a_batch_ends_at_its_bytes_and_a_record_that_is_larger_passes() -> None:
    log = FakeLog(Readable(0, 1000))
    reader = stream_reader(log, maxBytesPerTrigger=str(MIB), subscribe="logs,traces")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(MIB)
    log.sizes = {"logs": MIB // 10, "traces": MIB // 10}
    assert reader.latestOffset(both(995, 990), limit) == both(998, 996)
    assert reader.latestOffset(both(0, 990), ReadMaxRows(20)) == both(9, 991)
    log.sizes = {"logs": 3 * MIB, "traces": 1}
    assert reader.latestOffset(both(1, 1000), limit) == both(2, 1000)
    assert reader.latestOffset(both(0, 0), ReadAllAvailable()) == both(1000, 1000)  # Trigger.Once


def test_a_batch_is_read_in_tasks_of_bounded_bytes_also_one_of_an_earlier_process() -> None:
    log = FakeLog(Readable(0, 1000))
    log.sizes = {"logs": MIB, "traces": 1}
    reader = stream_reader(log, maxBytesPerTrigger=str(64 * MIB), subscribe="logs,traces")
    spans = [it.span for it in reader.partitions(both(0, 0), both(32, 1000))]
    assert [(it.stream, it.start, it.end) for it in spans] == [
        ("logs", 0, 8), ("logs", 8, 16), ("logs", 16, 24), ("logs", 24, 32), ("traces", 0, 1000),
    ]  # fmt: skip
    unbounded = stream_reader(log, subscribe="logs,traces")
    assert len(unbounded.partitions(both(0, 0), both(32, 1000))) == 2
    log.sizes = {}
    assert len(reader.partitions(both(0, 0), both(4, 4))) == 2


def test_a_batch_that_comes_again_is_divided_as_it_was_written_down(tmp_path: Path) -> None:
    """Whatever logd says of sizes now: names of files follow from tasks."""
    log = FakeLog(Readable(0, 1000))
    log.sizes = {"logs": MIB}
    options = {"maxBytesPerTrigger": str(64 * MIB), "planIn": str(tmp_path / "plan.json")}
    first = [it.span for it in stream_reader(log, **options).partitions(at(0), at(32))]
    assert [(it.start, it.end) for it in first] == [(0, 8), (8, 16), (16, 24), (24, 32)]

    log.sizes = {"logs": 4 * MIB}
    again = stream_reader(log, **options)
    assert [it.span for it in again.partitions(at(0), at(32))] == first
    assert len(again.partitions(at(0), at(33))) == 16, "another batch"
    assert len(stream_reader(log, **options).partitions(at(0), at(33))) == 16
    log.sizes = {"logs": MIB}
    measuring = stream_reader(log, **options, measureSizes="true")
    assert len(measuring.partitions(at(0), at(33))) == 5, "it was larger than it was planned"


@pytest.mark.parametrize("measures", ["false", "true"])
def test_one_task_reads_a_whole_partition_where_that_is_asked_for(
    tmp_path: Path, measures: str
) -> None:
    """Also of a batch that comes again larger than planned, or was divided before."""
    log = FakeLog(Readable(0, 1000))
    log.sizes = {"logs": MIB, "traces": MIB}
    options = {
        "subscribe": "logs,traces",
        "maxBytesPerTrigger": str(16 * MIB),
        "minPartitions": "8",
        "planIn": str(tmp_path / "plan.json"),
    }
    assert len(stream_reader(log, **options).partitions(both(0, 0), both(32, 16))) == 6
    whole = stream_reader(log, **options, measureSizes=measures, wholePartitions="true")
    tasks = whole.partitions(both(0, 0), both(32, 16))
    assert [(it.span.start, it.span.end) for it in tasks] == [(0, 32), (0, 16)]
    assert [it.max_bytes for it in tasks] == [72 * MIB, 40 * MIB]


def test_of_a_batch_that_comes_again_tasks_read_what_is_still_there(tmp_path: Path) -> None:
    log = FakeLog(Readable(0, 1000))
    log.sizes = {"logs": MIB}
    options = {"maxBytesPerTrigger": str(64 * MIB), "planIn": str(tmp_path / "plan.json")}
    stream_reader(log, **options).partitions(at(0), at(32))
    log.readable = Readable(10, 1000)
    again = stream_reader(log, **options, failOnDataLoss="false")
    lost, *tasks = again.partitions(at(0), at(32))
    assert isinstance(lost, LostPartition)
    assert lost.lost == 10
    assert [(it.span.start, it.span.end) for it in tasks] == [(10, 16), (16, 24), (24, 32)]


def test_what_is_known_of_sizes_is_of_the_batch_that_is_planned() -> None:
    log = FakeLog(Readable(0, 1000))
    reader = stream_reader(log, maxBytesPerTrigger=str(64 * MIB))
    log.sizes = {"logs": 1}
    assert reader.latestOffset(at(0), ReadMaxRows(1000)) == at(1000)
    log.sizes = {"logs": MIB}
    assert len(reader.partitions(at(0), at(1000))) == 1
    assert reader.latestOffset(at(1), ReadMaxRows(1000)) == at(65)
    assert len(reader.partitions(at(1), at(65))) == 8


def test_few_records_are_looked_at_as_well_for_each_may_be_large() -> None:
    log = FakeLog(Readable(0, 3))
    log.sizes = {"logs": 30 * MIB}
    reader = stream_reader(log, maxBytesPerTrigger=str(32 * MIB))
    assert reader.latestOffset(at(0), ReadMaxRows(1000)) == at(1)
    assert [task.span.length for task in reader.partitions(at(0), at(1))] == [1]


def test_available_now_stops_at_what_there_was_at_its_start() -> None:
    log = FakeLog(Readable(0, 50))
    reader = stream_reader(log)
    reader.prepareForTriggerAvailableNow()
    log.readable = Readable(0, 100)
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(50)
    assert reader.latestOffset(at(60), ReadAllAvailable()) == at(60)


def test_an_unreachable_logd_means_nothing_new_for_a_bounded_time() -> None:
    log = FakeLog(None)
    reader = stream_reader(log, retryTimeoutSeconds="60")
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(10)
    log.clock.sleep(59)
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(10)
    log.readable = Readable(0, 20)
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(20)
    log.readable = None
    log.clock.sleep(30)
    assert reader.latestOffset(at(20), ReadAllAvailable()) == at(20)
    log.clock.sleep(61)
    with pytest.raises(LogUnavailableError):
        reader.latestOffset(at(20), ReadAllAvailable())


def test_a_stream_that_a_job_leaves_out_keeps_its_place() -> None:
    without_traces = stream_reader(FakeLog(Readable(0, 100)))
    end = without_traces.latestOffset(both(10, 20), ReadAllAvailable())
    assert end == both(100, 20)
    (partition,) = without_traces.partitions(both(10, 20), end)
    assert (partition.span.stream, partition.span.start) == ("logs", 10)
    with_traces = stream_reader(FakeLog(Readable(0, 100)), subscribe="logs,traces")
    assert with_traces.latestOffset(end, ReadMaxRows(30)) == both(100, 50)


def test_a_batch_planned_with_a_stream_left_out_since_is_read_whole() -> None:
    without_traces = stream_reader(FakeLog(Readable(0, 100)))
    partitions = without_traces.partitions(both(10, 20), both(15, 30))
    assert [(p.span.stream, p.span.start, p.span.end) for p in partitions] == [
        ("logs", 10, 15),
        ("traces", 20, 30),
    ]


def test_a_batch_waits_for_enough_records_but_not_too_long() -> None:
    log = FakeLog(Readable(0, 10))
    reader = stream_reader(log, minOffsetsPerTrigger="50", maxTriggerDelay="5m")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    assert reader.latestOffset(at(5), limit) == at(10)  # the first one waits for nothing
    log.readable = Readable(0, 40)
    assert reader.latestOffset(at(10), limit) == at(10)
    log.clock.sleep(299)
    assert reader.latestOffset(at(10), limit) == at(10)
    log.clock.sleep(1)
    assert reader.latestOffset(at(10), limit) == at(40)
    log.readable = Readable(0, 90)
    assert reader.latestOffset(at(40), limit) == at(90)
    log.readable = Readable(0, 91)
    assert reader.latestOffset(at(90), ReadAllAvailable()) == at(91)  # Trigger.Once


def test_a_change_of_leaders_alone_makes_no_batch() -> None:
    log = FakeLog(Readable(0, 10))
    reader = stream_reader(log)
    log.epoch = 2
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(10)
    (span,) = [p.span for p in reader.partitions(at(5), at(10))]
    assert span.epoch == 1


def test_new_streams_of_a_pattern_and_new_partitions_are_read_from_their_start() -> None:
    log = FakeLog(Readable(0, 10))
    reader = stream_reader(log, subscribe="", subscribePattern="l.*|t.*")
    log.known, log.partitions = ["logs", "other", "traces"], 2
    end = reader.latestOffset(at(4), ReadAllAvailable())
    spans = [p.span for p in reader.partitions(at(4), end)]
    assert [(s.stream, s.partition, s.start, s.end) for s in spans] == [
        ("logs", 0, 4, 10),
        ("logs", 1, 0, 10),
        ("traces", 0, 0, 10),
        ("traces", 1, 0, 10),
    ]
