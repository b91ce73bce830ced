"""What the data source calls a loss, and where it goes on behind one."""

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.router.errors import BadOptionError, DataLossError
from penstock.router.read.offsets import Offsets, Readable, StreamPartition
from tests.unit.router.source_log import (
    LOGS,
    NEEDED,
    TRACES,
    FakeLog,
    at,
    both,
    source_of,
    stream_reader,
)


def test_without_fail_on_data_loss_a_stream_made_again_is_read_from_its_start() -> None:
    reader = stream_reader(FakeLog(Readable(2, 9)), failOnDataLoss="false")
    start = Offsets({LOGS: 500}, {"logs": "earlier"}).to_json()
    gone, partition = reader.partitions(start, at(9))
    assert (partition.span.start, partition.span.end) == (2, 9)
    assert gone.lost == 2


def begun(**offsets: int) -> str:
    """Where a job began streams that were made again since."""
    places = {StreamPartition(stream, 0): offset for stream, offset in offsets.items()}
    return json.dumps(Offsets(places, dict.fromkeys(offsets, "earlier")).to_json())


def test_a_stream_made_again_before_its_first_batch_is_a_loss() -> None:
    log = FakeLog(Readable(0, 9))
    strict = stream_reader(log, startingOffsets=begun(logs=5))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(
        DataLossError, match="offset 5 is of its earlier life; failOnDataLoss=false"
    ):
        strict.partitions(start, end)
    reader = stream_reader(log, startingOffsets=begun(logs=5), failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (partition,) = reader.partitions(start, end)
    assert (partition.span.start, partition.span.end) == (0, 9)


def test_a_stream_made_again_before_it_is_read_beside_others_is_a_loss() -> None:
    log = FakeLog(Readable(0, 9))
    known = Offsets({TRACES: 9}, {"traces": "a"}, {TRACES: 1}).to_json()
    streams = {"subscribe": "logs,traces", "startingOffsets": begun(logs=5, traces=0)}
    strict = stream_reader(log, **streams)
    end = strict.latestOffset(known, ReadAllAvailable())
    with pytest.raises(DataLossError, match="offset 5 is of its earlier life"):
        strict.partitions(known, end)
    reader = stream_reader(log, **streams, failOnDataLoss="false")
    end = reader.latestOffset(known, ReadAllAvailable())
    (partition,) = reader.partitions(known, end)
    assert partition.span.where == LOGS
    assert (partition.span.start, partition.span.end) == (0, 9)


def test_a_range_of_a_stream_that_was_made_again_is_not_that_of_the_new_one() -> None:
    """Who reads it finds that out; only from one of them to the other there is no way."""
    log = FakeLog(Readable(0, 9))
    options = NEEDED | {"startingOffsets": begun(logs=5), "endingOffsets": begun(logs=7)}
    source = source_of(log, options)
    (partition,) = source.reader(source.schema()).partitions()
    assert (partition.span.stream_id, partition.span.start) == ("earlier", 5)
    source = source_of(log, options | {"endingOffsets": "latest"})
    with pytest.raises(DataLossError, match="made again"):
        source.reader(source.schema()).partitions()


def test_a_new_partition_that_has_lost_its_beginning_is_a_loss() -> None:
    log = FakeLog(Readable(3, 10))
    log.partitions = 2
    reader = stream_reader(log)
    end = reader.latestOffset(at(4), ReadAllAvailable())
    said = "logs/1: offsets 0 to 9 are wanted but the log has 3 to 9; failOnDataLoss=false"
    with pytest.raises(DataLossError, match=said):
        reader.partitions(at(4), end)


def test_a_partition_that_is_assigned_later_is_begun_where_it_is_said_and_kept_meanwhile() -> None:
    log = FakeLog(Readable(3, 10))
    log.partitions = 2
    narrow = stream_reader(log, subscribe="", assign='{"logs": [0]}')
    end = narrow.latestOffset(at(4), ReadAllAvailable())
    assert end == at(10)
    begun = '{"logs": {"0": 3, "1": 7}}'
    wide = stream_reader(log, subscribe="", assign='{"logs": [0, 1]}', startingOffsets=begun)
    both_ends = wide.latestOffset(end, ReadAllAvailable())
    (span,) = (it.span for it in wide.partitions(end, both_ends))
    assert (span.partition, span.start, span.end) == (1, 7, 10)
    other = stream_reader(log, subscribe="", assign='{"logs": [1]}')
    log.readable = Readable(3, 12)
    kept = other.latestOffset(both_ends, ReadAllAvailable())
    assert {name: kept["logs"][name] for name in "01"} == {"0": 10, "1": 12}


def test_a_stream_of_a_pattern_that_is_deleted_is_a_loss() -> None:
    log = FakeLog(Readable(0, 10))
    log.known = ["traces"]
    reader = stream_reader(log, subscribe="", subscribePattern="logs|traces")
    with pytest.raises(DataLossError, match=r"'logs' was deleted; .* \{0: 7\}"):
        reader.latestOffset(at(7), ReadAllAvailable())
    careless = stream_reader(
        log, subscribe="", subscribePattern="logs|traces", failOnDataLoss="false"
    )
    assert careless.latestOffset(at(7), ReadAllAvailable())["traces"]["0"] == 10


def test_a_named_stream_that_is_deleted_stops_no_other_where_losses_are_accepted() -> None:
    log = FakeLog(Readable(0, 100))
    log.gone = {"traces"}
    strict = stream_reader(log, subscribe="logs,traces")
    with pytest.raises(DataLossError):
        strict.latestOffset(both(10, 20), ReadAllAvailable())
    reader = stream_reader(log, subscribe="logs,traces", failOnDataLoss="false")
    end = reader.latestOffset(both(10, 20), ReadAllAvailable())
    assert end == both(100, 20)
    assert [p.span.stream for p in reader.partitions(both(10, 20), end)] == ["logs"]
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(both(10, 20), ReadAllAvailable()) == both(100, 20)


@pytest.mark.parametrize("names", [{"subscribe": "logs,traces"}, {"subscribePattern": "l.*|t.*"}])
def test_a_planned_batch_of_a_stream_that_is_deleted_passes_where_losses_are_accepted(
    names: dict[str, str],
) -> None:
    log = FakeLog(Readable(0, 100))
    log.known, log.gone = ["logs"], {"traces"}
    reader = stream_reader(log, **({"subscribe": ""} | names), failOnDataLoss="false")
    gone, *read = reader.partitions(both(10, 20), both(15, 30))
    assert gone.lost == 10
    spans = [p.span for p in read]
    assert [(span.stream, span.start, span.end) for span in spans] == [("logs", 10, 15)]
    strict = stream_reader(log, **({"subscribe": ""} | names))
    with pytest.raises(DataLossError):
        strict.partitions(both(10, 20), both(15, 30))


@pytest.mark.parametrize("incarnation", ["earlier", "a"])
def test_available_now_reads_what_there_is_of_a_log_that_is_another_or_shorter(
    incarnation: str,
) -> None:
    start = Offsets({LOGS: 1000}, {"logs": incarnation}, {LOGS: 1}).to_json()
    reader = stream_reader(FakeLog(Readable(0, 50)), failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    generations = {LOGS: ((50, 1),)} if incarnation == "a" else {}
    end = Offsets({LOGS: 50}, {"logs": "a"}, {LOGS: 1}, generations).to_json()
    assert reader.latestOffset(start, ReadAllAvailable()) == end
    strict = stream_reader(FakeLog(Readable(0, 50)))
    strict.prepareForTriggerAvailableNow()
    end = strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError):
        strict.partitions(start, end)


def test_a_stream_made_again_is_read_in_batches_as_large_as_others() -> None:
    start = Offsets({LOGS: 1000}, {"logs": "earlier"}).to_json()
    reader = stream_reader(FakeLog(Readable(0, 5000)), failOnDataLoss="false")
    assert reader.latestOffset(start, ReadMaxRows(30)) == at(30)


@pytest.mark.parametrize("available_now", [True, False])
def test_a_new_leader_that_does_not_know_yet_what_it_may_show_has_lost_nothing(
    *, available_now: bool
) -> None:
    log = FakeLog(Readable(0, 50))
    log.written = 60
    reader = stream_reader(log)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(at(58), ReadAllAvailable()) == at(58)
    log.written = 57
    assert (
        reader.latestOffset(at(58), ReadAllAvailable())
        == Offsets({LOGS: 57}, {"logs": "a"}, {LOGS: 1}, {LOGS: ((57, 1),)}).to_json()
    )


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        (
            {"startingOffsets": '{"logs": {"0": 50}}', "endingOffsets": '{"logs": {"0": 10}}'},
            BadOptionError,
            "startingOffsets lie behind endingOffsets: logs/0 would be read from 50 to 10",
        ),
        (
            {"startingOffsets": "latest", "endingOffsets": '{"logs": {"0": 10}}'},
            BadOptionError,
            "from 100 to 10",
        ),
        ({"startingOffsets": '{"logs": {"0": 150}}'}, DataLossError, "ends at 100, before 150"),
        ({"endingOffsets": '{"logs": {"0": 3}}'}, DataLossError, "ends at 3, before 5"),
    ],
)
def test_a_range_that_ends_before_it_begins_is_a_mistake_and_a_log_that_does_is_a_loss(
    options: dict[str, str], error: type[Exception], why: str
) -> None:
    source = source_of(FakeLog(Readable(5, 100)), NEEDED | options)
    with pytest.raises(error, match=why):
        source.reader(source.schema()).partitions()
