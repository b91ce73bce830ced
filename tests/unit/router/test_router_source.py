"""The data source's options and planning, against a log of our own making."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.router.core.offsets import EARLIEST, LATEST, Offsets, Readable, StreamPartition
from penstock.router.errors import BadOptionError, LogUnavailableError
from penstock.router.reading import LogState
from penstock.router.source import LogStreamReader, parse_options
from tests.unit.router.sink_rows import TestClock

LOGS = StreamPartition("logs", 0)
TRACES = StreamPartition("traces", 0)
NEEDED = {"logd": "127.0.0.1:1", "subscribe": "logs"}


class FakeLog:
    """Says what a test wants; None is an unreachable logd."""

    def __init__(self, readable: Readable | None) -> None:
        self.readable = readable

    def state_now(self, streams: tuple[str, ...]) -> LogState:
        if self.readable is None:
            raise LogUnavailableError("away")
        return LogState(
            {StreamPartition(name, 0): self.readable for name in streams},
            dict.fromkeys(streams, "a"),
        )

    state = state_now


def stream_reader(log: FakeLog, **options: str) -> LogStreamReader:
    reader = LogStreamReader(parse_options(NEEDED | options, streaming=True), TestClock())
    reader._log = log  # type: ignore[assignment]
    return reader


def at(offset: int) -> dict[str, dict[str, int | str]]:
    return Offsets({LOGS: offset}, {"logs": "a"}).to_json()


def test_options_have_the_defaults_of_sparks_kafka_source() -> None:
    assert parse_options(NEEDED, streaming=True).starting == LATEST
    assert parse_options(NEEDED, streaming=False).starting == EARLIEST
    assert parse_options(NEEDED, streaming=True).fail_on_data_loss
    chosen = parse_options(
        NEEDED | {"subscribe": "a, b", "startingOffsets": '{"a":{"0":5}}'}, streaming=True
    )
    assert chosen.streams == ("a", "b")
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
    ],
)
def test_a_bad_option_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(BadOptionError):
        parse_options(NEEDED | options, streaming=True)


def test_a_batch_ends_at_the_log_or_at_its_limit() -> None:
    reader = stream_reader(FakeLog(Readable(0, 100)))
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(100)
    assert reader.latestOffset(at(10), ReadMaxRows(30)) == at(40)


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
    reader._clock.sleep(59)
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(10)
    log.readable = Readable(0, 20)
    assert reader.latestOffset(at(10), ReadAllAvailable()) == at(20)
    log.readable = None
    reader._clock.sleep(30)
    assert reader.latestOffset(at(20), ReadAllAvailable()) == at(20)
    reader._clock.sleep(61)
    with pytest.raises(LogUnavailableError):
        reader.latestOffset(at(20), ReadAllAvailable())


def test_without_fail_on_data_loss_a_stream_made_again_is_read_from_its_start() -> None:
    reader = stream_reader(FakeLog(Readable(2, 9)), failOnDataLoss="false")
    start = Offsets({LOGS: 500}, {"logs": "earlier"}).to_json()
    (partition,) = reader.partitions(start, at(9))
    assert (partition.span.start, partition.span.end) == (2, 9)


def both(logs: int, traces: int) -> dict[str, dict[str, int | str]]:
    return Offsets({LOGS: logs, TRACES: traces}, {"logs": "a", "traces": "a"}).to_json()


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
