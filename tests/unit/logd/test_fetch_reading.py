"""What a fetch reads, on a real partition: how long it waits, how far a filter looks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.logd.api.operations import Fetch
from penstock.logd.api.reading import FetchReading, filter_ranges
from penstock.logd.api.server import Response, ResponseSlot
from penstock.logd.encryption.cipher import SegmentCipher
from penstock.logd.errors import CorruptFrameError, RefusedError, UnavailableError
from penstock.logd.format.batch import decode_body
from penstock.logd.format.rows import split_frames
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import Stream, StreamConfig
from penstock.logd.partition.partition import Partition
from penstock.logd.storage import CommitLog, LogConfig
from tests.support.encryption import master_keys
from tests.support.failing_disk import FailingDisk
from tests.support.frames import make_frames
from tests.support.lone_replica import open_partition
from tests.support.partition_context import make_context
from tests.support.waiting import wait_until_async


class Watched(Partition):
    """Counts how often somebody has begun to wait for records."""

    waits = 0

    @override
    async def wait_until(self, offset: int) -> None:
        self.waits += 1
        await super().wait_until(offset)


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture(params=["none", "aes-256-gcm"])
async def partition(
    tmp_path: Path, disk: FailingDisk, request: pytest.FixtureRequest
) -> AsyncIterator[Partition]:
    config = StreamConfig(name="logs", subject="t.>", encryption=request.param)
    stream = Stream(config=config, incarnation="i")
    context = make_context(masters=master_keys(tmp_path), disk=disk)
    opened = await open_partition(stream, tmp_path / "0", context, Watched)
    yield opened
    opened.close()
    await asyncio.to_thread(opened.finish)


async def publish(partition: Partition, *subjects: str, size: int = 10) -> None:
    """Each in a frame of its own."""
    for subject in subjects:
        partition.take([Message(subject.encode(), b"", b"", bytes(size))])
        await partition.wait_drained()


async def fetch(
    partition: Partition,
    offset: int,
    turn: ResponseSlot | None = None,
    reading: FetchReading | None = None,
    **options: Any,
) -> Response:
    request = Fetch(stream="logs", offset=offset, **options)
    turn = turn or ResponseSlot(asyncio.Lock())
    async with asyncio.timeout(20):
        return await (reading or FetchReading()).fetch(partition, request, turn)


async def waiting_for_records(partition: Partition, times: int = 1) -> None:
    """Until a fetch has begun to wait so many times."""
    assert isinstance(partition, Watched)
    watched = partition
    await wait_until_async(lambda: watched.waits >= times)


def offsets(response: Response) -> list[int]:
    return [
        header.base_offset + delta
        for header, body in split_frames(memoryview(response.payload))
        for delta in decode_body(body).column("offset_delta").to_pylist()
    ]


async def test_more_than_fits_is_not_waited_for(partition: Partition) -> None:
    await publish(partition, "t.a", "t.a", "t.a", size=1000)
    frame = (await fetch(partition, 0, bytes_max=1)).payload_length
    response = await fetch(
        partition, 0, bytes_max=frame * 2 + 200, bytes_min=1 << 40, wait_ms_max=60_000
    )
    assert response.header["next_offset"] == 2


async def test_what_is_copied_stays_within_the_bound_of_a_payload_in_memory(
    partition: Partition,
) -> None:
    await publish(partition, *["t.a"] * 6, size=1000)
    frame = (await fetch(partition, 0, bytes_max=1)).payload_length
    reading = FetchReading(filter_bytes_max=2 * frame + 200)
    response = await fetch(partition, 0, reading=reading, bytes_max=1 << 30)
    assert response.header["next_offset"] == (6 if partition.log.cipher is None else 2)


async def test_who_has_read_what_is_lost_is_told_from_where_on(partition: Partition) -> None:
    await publish(partition, "t.a", "t.a")
    epoch = (await fetch(partition, 0)).header["log_epoch"]
    assert epoch == partition.epoch
    assert (await fetch(partition, 2, log_epoch=epoch)).header["next_offset"] == 2
    partition.role.epochs.begin(epoch + 1, 2)  # another leader goes on: nothing is lost
    assert (await fetch(partition, 2, log_epoch=epoch)).header["log_epoch"] == epoch + 1
    await publish(partition, "t.a")
    with pytest.raises(RefusedError) as refused:  # the reader had a third one of the leader before
        await fetch(partition, 3, log_epoch=epoch)
    assert (refused.value.code, refused.value.detail["offset"]) == ("RECORDS_LOST", 2)
    assert (await fetch(partition, 3, log_epoch=epoch + 1)).header["next_offset"] == 3


@pytest.mark.parametrize(("offset", "subject"), [(2, None), (2, "t.a"), (0, "t.c")])
async def test_who_waits_while_records_are_lost_is_told_when_there_are_others(
    partition: Partition, offset: int, subject: str | None
) -> None:
    """The wait begins at offset 2; for the last one a filter has read up to there."""
    await publish(partition, "t.a", "t.a")
    epoch = partition.epoch
    waiting = asyncio.create_task(
        fetch(partition, offset, subject=subject, log_epoch=epoch, wait_ms_max=60_000)
    )
    await waiting_for_records(partition)
    partition.role.epochs.begin(epoch + 1, 1)  # the second one was lost
    await publish(partition, subject or "t.a")
    with pytest.raises(RefusedError) as refused:
        await waiting
    assert (refused.value.code, refused.value.detail["offset"]) == ("RECORDS_LOST", 1)


@pytest.mark.parametrize("subject", [None, "t.a"])
async def test_who_waits_while_another_leader_goes_on_has_lost_nothing(
    partition: Partition, subject: str | None
) -> None:
    await publish(partition, "t.a", "t.b")
    epoch = partition.epoch
    options: dict[str, Any] = {"subject": subject, "wait_ms_max": 60_000}
    waiting = asyncio.create_task(fetch(partition, 2, log_epoch=epoch, **options))
    await waiting_for_records(partition)
    partition.role.epochs.begin(epoch + 1, 2)
    await publish(partition, "t.a")
    answer = (await waiting).header
    assert (answer["next_offset"], answer["log_epoch"]) == (3, epoch + 1)
    await publish(partition, "t.a")
    again = await fetch(partition, 3, log_epoch=epoch + 1, **options)
    assert again.header["next_offset"] == 4


@pytest.mark.parametrize("subject", [None, "t.a", "t.c"])
async def test_what_was_read_before_an_election_is_not_answered_under_its_epoch(
    partition: Partition, disk: FailingDisk, subject: str | None
) -> None:
    """The next fetch is told that it is lost."""
    await publish(partition, "t.a", "t.a")
    epoch = partition.epoch

    def elect(operation: str, _: Path) -> None:
        if operation == "read" and partition.role.epochs.latest == epoch:
            partition.role.epochs.begin(epoch + 1, 1)

    with disk.before(elect):
        answer = (await fetch(partition, 0, subject=subject)).header
    assert partition.role.epochs.latest == epoch + 1
    assert (answer["next_offset"], answer["log_epoch"]) == (2, epoch)
    with pytest.raises(RefusedError, match="from offset 1 on is lost"):
        await fetch(partition, 2, subject=subject, log_epoch=answer["log_epoch"])


@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_replica_that_is_behind_says_nothing_of_loss(
    partition: Partition, ahead: int
) -> None:
    """The reader has been at the leader, which may have begun further epochs."""
    await publish(partition, "t.a", "t.a")
    with pytest.raises(RefusedError) as refused:
        await fetch(partition, 5, log_epoch=partition.epoch + ahead)
    assert refused.value.code == "OUT_OF_RANGE"


async def test_a_wait_ends_with_enough_bytes_and_not_before(partition: Partition) -> None:
    await publish(partition, "t.a", size=1000)
    frame = (await fetch(partition, 0)).payload_length
    waiting = asyncio.create_task(fetch(partition, 0, bytes_min=2 * frame, wait_ms_max=60_000))
    await waiting_for_records(partition)
    await publish(partition, "t.a", size=10)
    await waiting_for_records(partition, 2)  # it has looked, and waits again
    assert not waiting.done()
    await publish(partition, "t.a", size=1000)
    assert (await waiting).header["next_offset"] == 3


@pytest.mark.parametrize("subject", [None, "t.a"])
async def test_a_wait_ends_when_the_reader_waits_no_longer(
    partition: Partition, subject: str | None
) -> None:
    turn = ResponseSlot(asyncio.Lock())
    waiting = asyncio.create_task(fetch(partition, 0, turn, subject=subject, wait_ms_max=60_000))
    await waiting_for_records(partition)
    turn.waiting.end()
    turn.waiting.end()
    assert (await waiting).header["next_offset"] == 0
    again = await fetch(partition, 0, turn, subject=subject, wait_ms_max=60_000)
    assert again.header["next_offset"] == 0, "nor does it begin to wait"


async def test_a_filter_that_matches_nothing_gets_on_and_stays_within_its_bound(
    partition: Partition,
) -> None:
    await publish(partition, *["t.b"] * 5, "t.a", size=1000)
    frame = (await fetch(partition, 0, bytes_max=1)).payload_length
    found, position, asked = list[int](), 0, 0
    while position < 6:
        response = await fetch(
            partition, position, bytes_max=2 * frame, subject="t.a", wait_ms_max=60_000
        )
        assert position < response.header["next_offset"] <= position + 2
        position, asked = response.header["next_offset"], asked + 1
        found += offsets(response)
    assert (found, asked) == ([5], 3)


async def test_a_filter_waits_for_what_matches_and_lets_others_send_meanwhile(
    partition: Partition,
) -> None:
    await publish(partition, "t.b")
    connection = asyncio.Lock()
    turn = ResponseSlot(connection)
    waiting = asyncio.create_task(fetch(partition, 0, turn, subject="t.a", wait_ms_max=60_000))
    await waiting_for_records(partition)
    assert not connection.locked()
    await publish(partition, "t.b", "t.a")
    response = await waiting
    assert (offsets(response), response.header["next_offset"]) == ([2], 3)
    assert connection.locked()
    turn.give_back()
    turn.give_back()
    empty = await fetch(partition, 3, subject="t.a", wait_ms_max=1)
    assert (empty.payload, empty.header["next_offset"]) == (b"", 3)


async def test_what_a_filter_keeps_is_bounded_too(partition: Partition) -> None:
    await publish(partition, *["t.a"] * 4, size=1000)
    frame = (await fetch(partition, 0, bytes_max=1)).payload_length
    response = await fetch(partition, 0, subject="t.a", bytes_max=frame + 10)
    assert response.header["next_offset"] == 1


async def test_another_incarnation_of_the_stream_is_refused(partition: Partition) -> None:
    assert (await fetch(partition, 0, incarnation="i")).ranges == []
    with pytest.raises(RefusedError) as raised:
        await fetch(partition, 0, incarnation="j")
    assert (raised.value.code, raised.value.detail) == ("STREAM_RECREATED", {"incarnation": "i"})


async def test_a_waiting_fetch_is_let_go_when_the_stream_closes(partition: Partition) -> None:
    waiting = asyncio.create_task(fetch(partition, 0, wait_ms_max=60_000))
    await waiting_for_records(partition)
    partition.close()
    assert (await waiting).header["next_offset"] == 0


def test_a_filter_whose_records_were_taken_back_does_not_begin_at_the_front(tmp_path: Path) -> None:
    log = CommitLog.open(tmp_path, LogConfig(), cipher=SegmentCipher({1: bytes(32)}, b"i/0"))
    log.append(make_frames(0, [bytes(8)] * 3))
    ranges = log.read(2, bytes_max=1, upto=3)
    log.truncate_to(2)
    with pytest.raises(UnavailableError):
        filter_ranges(ranges, "t.a", log=log, bytes_max=1)


async def test_a_filter_ends_before_a_damaged_frame_and_says_what_lies_behind_it(
    partition: Partition, tmp_path: Path
) -> None:
    """Rotted after it was checked: a reader that accepts losses goes on there."""
    await publish(partition, *["t.a"] * 4, size=1000)
    (file,) = (tmp_path / "0").glob("*.log")
    third = sum(part.length for part in partition.log.read(0, bytes_max=1 << 20, upto=2))
    data = bytearray(file.read_bytes())
    data[third + 300] ^= 1
    file.write_bytes(data)
    found = await fetch(partition, 0, subject="t.a")
    assert (offsets(found), found.header["next_offset"]) == ([0, 1], 2)
    with pytest.raises(CorruptFrameError) as told:
        await fetch(partition, 2, subject="t.a")
    assert (told.value.offset, told.value.next_offset) == (2, 3)
    found = await fetch(partition, 3, subject="t.a")
    assert (offsets(found), found.header["next_offset"]) == ([3], 4)
