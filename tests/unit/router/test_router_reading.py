"""Reading a span: losses are told by frames' ranges, never by gaps between rows."""

import pytest

from penstock.logd.client import PartitionInfo, StreamInfo
from penstock.logd.errors import CorruptError, RefusedError
from penstock.router.errors import (
    BadOptionError,
    DataLossError,
    LogRefusedError,
    LogUnavailableError,
)
from penstock.router.read.logd_reader import LogState
from penstock.router.read.offset_spec import Subscription, Times
from penstock.router.read.offsets import Readable, Span, StreamPartition
from tests.unit.router.scripted_log import Frame, ScriptedClient, compacted, offsets, reading


def read(frames: list[Frame], start: int, end: int, *refusals: str) -> list[int]:
    client = ScriptedClient(frames)
    client.refusals = [RefusedError(code, "no") for code in refusals]
    log = reading(client, retry_timeout_s=5.0 if refusals else 0.0)
    found: list[int] = []
    for batch in log.rows(Span("s", 0, start, end), fail_on_data_loss=True):
        assert batch.num_rows
        assert batch.column("value").to_pylist() == [
            b"%d" % offset for offset in batch.column("offset").to_pylist()
        ]
        found += batch.column("offset").to_pylist()
    return found


def test_offsets_missing_within_frames_are_no_loss() -> None:
    frames = [compacted(0, 4, [1, 3]), compacted(4, 5, []), compacted(9, 3, [0, 1, 2])]
    assert read(frames, 0, 12) == [1, 3, 9, 10, 11]
    assert read(frames, 2, 10) == [3, 9]
    assert read(frames, 4, 9) == []
    assert read(frames, 5, 11) == [9, 10]


def test_offsets_between_frames_are_a_loss() -> None:
    with pytest.raises(DataLossError, match="offsets 4 to 8 are missing"):
        read([compacted(0, 4, [1, 3]), compacted(9, 1, [0])], 0, 10)


def test_what_is_refused_for_now_is_asked_again_and_no_loss() -> None:
    frames = [compacted(0, 4, [1, 3])]
    assert read(frames, 0, 4, "UNAVAILABLE", "TOO_MANY_REQUESTS") == [1, 3]
    with pytest.raises(DataLossError, match="OUT_OF_RANGE"):
        read(frames, 0, 4, "OUT_OF_RANGE")


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED", "QUOTA_EXCEEDED"])
def test_a_reader_that_is_not_let_in_waits_and_loses_nothing(code: str) -> None:
    assert read([compacted(0, 4, [1, 3])], 0, 4, code, code) == [1, 3]


def test_records_that_an_election_has_cost_are_a_loss_that_names_them() -> None:
    client = ScriptedClient([compacted(0, 4, [0, 1, 2, 3])])
    client.refusals = [RefusedError("RECORDS_LOST", "read from 1 on is lost", offset=1)]
    span = Span("s", 0, 2, 4, epoch=3)
    with pytest.raises(DataLossError, match=r"s/0: offset 2 .*RECORDS_LOST .*'offset': 1"):
        list(reading(client).rows(span, fail_on_data_loss=True))
    assert client.asked[0]["log_epoch"] == 3


def test_a_reader_that_accepts_losses_leaves_the_records_in_their_place_to_the_next_batch() -> None:
    """That one knows them as of another generation: their offsets were other records' before."""
    client = ScriptedClient([compacted(0, 4, [0, 1, 2, 3])])
    client.refusals = [RefusedError("RECORDS_LOST", "no", offset=1)]
    log = reading(client)
    assert offsets(log.rows(Span("s", 0, 2, 4, epoch=3), fail_on_data_loss=False)) == []
    assert log.lost == 2
    assert [asked.get("log_epoch") for asked in client.asked] == [3]


def careless(client: ScriptedClient, end: int) -> list[int]:
    return offsets(reading(client).rows(Span("s", 0, 0, end), fail_on_data_loss=False))


def test_a_reader_that_accepts_losses_goes_on_where_retention_has_left_something() -> None:
    client = ScriptedClient([compacted(2, 4, [0, 1, 2, 3])])
    client.refusals = [RefusedError("OUT_OF_RANGE", "no", earliest=2, latest=6)]
    assert careless(client, 6) == [2, 3, 4, 5]
    client.refusals = [RefusedError("OUT_OF_RANGE", "no", earliest=2, latest=6)]
    assert careless(client, 1) == []


@pytest.mark.parametrize("code", ["UNKNOWN_STREAM", "UNKNOWN_PARTITION", "STREAM_RECREATED"])
def test_a_reader_that_accepts_losses_is_done_with_a_stream_that_is_gone(code: str) -> None:
    client = ScriptedClient([compacted(0, 4, [0, 1, 2, 3])])
    client.refusals = [RefusedError(code, "no")]
    assert careless(client, 4) == []


@pytest.mark.parametrize("code", ["INTERNAL", "BAD_REQUEST", "CORRUPT"])
def test_a_refusal_that_names_no_loss_is_none(code: str) -> None:
    client = ScriptedClient([compacted(0, 4, [0, 1, 2, 3])])
    client.refusals = [RefusedError(code, "no")]
    with pytest.raises(LogRefusedError, match=f"s/0: offset 0 cannot be read: no .{code}"):
        careless(client, 4)


def test_with_a_subject_what_lies_between_frames_is_no_loss_and_an_empty_answer_goes_on() -> None:
    client = ScriptedClient([compacted(4, 2, [0, 1])])
    log = reading(client)
    assert offsets(log.rows(Span("s", 0, 0, 6), fail_on_data_loss=True, subject="a.*")) == [4, 5]
    client.frames = [compacted(0, 9, [])]
    assert offsets(log.rows(Span("s", 0, 0, 9), fail_on_data_loss=True, subject="a.*")) == []
    assert [asked.get("wait_ms_max", 0) for asked in client.asked] == [0, 0]


def described(name: str, starts: list[int | None]) -> StreamInfo:
    parts = [
        PartitionInfo(
            partition=number,
            start_offset=-1 if start is None else start,
            high_watermark=99,
            end_offset=100,
            epoch=4,
            size_bytes=1,
        )
        for number, start in enumerate(starts)
    ]
    return StreamInfo(
        name=name, subject="x", incarnation=f"of {name}", partitions=tuple(parts), options={}
    )


class DescribingClient:
    """Has some streams; says at which offset a time is."""

    server = "h:1"

    def __init__(self, *streams: StreamInfo) -> None:
        self._streams = streams

    def streams(self) -> list[StreamInfo]:
        return list(self._streams)

    def stream(self, name: str) -> StreamInfo:
        for stream in self._streams:
            if stream.name == name:
                return stream
        raise RefusedError("UNKNOWN_STREAM", "no")

    def offset_for_timestamp(self, stream: str, time_ns: int, partition: int) -> int:
        return min(time_ns // 10**6, 100)


def state_of(client: DescribingClient, subscription: Subscription) -> LogState:
    return reading(client).state_now(subscription)


def test_a_server_that_is_no_logd_is_one_that_does_not_answer() -> None:
    class Other:
        server = "h:80"

        def stream(self, _: str) -> StreamInfo:
            raise CorruptError("response announces 1347703880 bytes: not a logd server?")

    log = reading(Other())
    for ask in (log.state, log.state_now):
        with pytest.raises(LogUnavailableError, match=r"h:80 answers otherwise: .*not a logd"):
            ask(("logs",))


def test_a_pattern_takes_the_streams_whose_whole_name_matches() -> None:
    client = DescribingClient(
        described("logs.a", [0]), described("logs.b", [5]), described("x", [0])
    )
    state = state_of(client, Subscription(pattern=r"logs\..*"))
    assert dict(state.readable) == {("logs.a", 0): (0, 100), ("logs.b", 0): (5, 100)}
    assert dict(state.epochs) == {("logs.a", 0): 4, ("logs.b", 0): 4}
    assert not state_of(client, Subscription(pattern="log")).readable


def test_assigned_partitions_are_read_alone_and_must_exist() -> None:
    client = DescribingClient(described("a", [0, 3, None]))
    some = frozenset({StreamPartition("a", 1)})
    assert dict(state_of(client, Subscription(partitions=some)).readable) == {("a", 1): (3, 100)}
    with pytest.raises(DataLossError, match="no partition a/7"):
        state_of(client, Subscription(partitions=frozenset({StreamPartition("a", 7)})))
    with pytest.raises(DataLossError, match="no stream 'b'"):
        state_of(client, Subscription(names=("b",)))
    with pytest.raises(LogUnavailableError, match="a/2"):
        state_of(client, Subscription(names=("a",)))


def test_streams_and_partitions_that_are_gone_are_left_out_where_that_is_allowed() -> None:
    client = DescribingClient(described("a", [0]), described("c", [0]))
    log = reading(client)
    wanted = Subscription(partitions=frozenset({StreamPartition("a", 0), StreamPartition("a", 7)}))
    for streams, there in (
        (("a", "b"), [("a", 0)]),
        (("b",), []),
        (wanted, [("a", 0)]),
    ):
        state = log.state(streams, may_be_gone=True)
        assert list(state.readable) == there


def test_a_time_is_looked_up_and_one_that_is_too_late_refused() -> None:
    log = reading(DescribingClient())
    readable = {
        StreamPartition("a", 0): Readable(0, 100),
        StreamPartition("a", 1): Readable(0, 100),
    }
    assert log.at_times(Times(every=7), readable) == {("a", 0): 7, ("a", 1): 7}
    assert log.at_times(Times(each={StreamPartition("a", 1): 9}), readable) == {("a", 1): 9}
    with pytest.raises(BadOptionError, match="a/0 has no record at or after 200 ms"):
        log.at_times(Times(every=200), readable)
    late = log.at_times(Times(every=200, strategy="latest"), readable)
    assert late == {("a", 0): 100, ("a", 1): 100}
