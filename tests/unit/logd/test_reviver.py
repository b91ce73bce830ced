"""A log that failed for want of space is opened again; one whose sync failed is not."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.logd import opened as opened_module
from penstock.logd import reviver
from penstock.logd.core.turn import Message
from penstock.logd.cursors import CURSORS_STREAM
from penstock.logd.limits import REOPEN_FREE_BYTES_MIN
from penstock.logd.partition import Partition
from penstock.logd.reviver import Reviver
from penstock.logd.store.disk import RealFile
from penstock.logd.streams import StreamSet
from penstock.logd.telemetry import stage
from tests.support.waiting import wait_until_async
from tests.unit.logd.test_streams import LOGS, stream_set

SECOND = 1_000_000_000


class ManualClock(SystemClock):
    """Stands still until it is moved."""

    now_ns = 0

    @override
    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture
async def streams(tmp_path: Path) -> AsyncIterator[StreamSet]:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        yield found


def publish(streams: StreamSet) -> Partition:
    partition = streams.partition("logs")
    streams.listening.on_messages({b"0": [Message(b"t.a", b"", b"", b"x" * 100)] * 3})
    return partition


async def publish_and_fail(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch, operation: str, number: int
) -> Partition:
    def fail(*_: object) -> None:
        raise OSError(number, "failed")

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, operation, fail)
        partition = publish(streams)
        await wait_until_async(lambda: partition.failure)
    return partition


def reconciles(partition: Partition) -> bool:
    found = stage(partition)
    duplicates = found.detail["duplicates"]
    return found.received == found.sent + duplicates + found.errors + found.lag


async def test_a_stream_out_of_space_goes_on_with_its_counts(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    looking = Reviver(streams, clock)
    before = publish(streams)
    await wait_until_async(lambda: before.high_watermark == 2)
    waiting = asyncio.create_task(before.wait_until(3))
    failed = await publish_and_fail(streams, monkeypatch, "write", errno.ENOSPC)
    assert failed is before
    failed.retainer.records_deleted = failed.upkeep.counts.passes = 7
    failed.intake.dedup.producers.evicted = 7
    with monkeypatch.context() as patch:
        patch.setattr(reviver, "free_bytes", lambda _: REOPEN_FREE_BYTES_MIN - 1)
        await looking.look()
    assert streams.partition("logs") is failed
    await looking.look()
    again = streams.partition("logs")
    await waiting
    assert (again.failure, again.epoch, looking.revived) == ("", failed.epoch + 1, 1)
    publish(streams)
    await wait_until_async(lambda: again.high_watermark == 5)
    found = stage(again)
    assert (found.received, found.sent, found.detail["lost"]) == (9, 6, 3)
    kept = ("records_deleted", "compaction_passes", "dedup_evicted")
    assert [found.detail[name] for name in kept] == [7, 7, 7]
    assert reconciles(again)
    assert failed.finished


async def test_pauses_between_attempts_double(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    looking = Reviver(streams, clock)
    for number, wait_s in enumerate((0, 1, 2, 4, 8, 16, 32, 60, 60)):
        failed = await publish_and_fail(streams, monkeypatch, "write", errno.EDQUOT)
        if wait_s:
            clock.now_ns += wait_s * SECOND - 1
            await looking.look()
            assert streams.partition("logs") is failed
            clock.now_ns += 1
        await looking.look()
        assert looking.revived == number + 1
    assert reconciles(streams.partition("logs"))


async def test_what_cannot_be_opened_yet_stays_as_it_is(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Reviver(streams, ManualClock())
    failed = await publish_and_fail(streams, monkeypatch, "write", errno.ENOSPC)
    with monkeypatch.context() as patch:

        async def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        patch.setattr(Partition, "open", full)
        await looking.look()
    assert streams.partition("logs") is failed
    assert looking.revived == 0
    await streams.reopen(failed)
    await streams.reopen(failed)  # not the stream's any more
    assert streams.partition("logs").failure == ""


async def test_a_directory_that_goes_away_meanwhile_stops_nobody(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = await publish_and_fail(streams, monkeypatch, "write", errno.ENOSPC)

    def gone(directory: Path) -> int:
        raise FileNotFoundError(errno.ENOENT, "deleted a moment ago", str(directory))

    with monkeypatch.context() as patch:
        patch.setattr(reviver, "free_bytes", gone)
        await Reviver(streams, ManualClock()).look()
    assert streams.partition("logs") is failed


async def test_streams_of_logd_itself_stay_failed(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, _ = await streams.create(CURSORS_STREAM)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "failed")

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, "write", fail)
        partition.store([Message(b"__cursors", b"", b"", b"x")])
        await wait_until_async(lambda: partition.failure)
    await Reviver(streams, ManualClock()).look()
    assert streams.partition(CURSORS_STREAM.name) is partition, "what is read from it is kept"


async def test_closing_waits_for_a_log_that_is_being_opened_again(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = await publish_and_fail(streams, monkeypatch, "write", errno.ENOSPC)
    recovering, go_on = threading.Event(), threading.Event()
    recover = opened_module.recover

    def slowly(*given: Any) -> Any:
        recovering.set()
        assert go_on.wait(60)
        return recover(*given)

    monkeypatch.setattr("penstock.logd.partition.recover", slowly)
    reopening = asyncio.create_task(streams.reopen(failed))
    await wait_until_async(recovering.is_set)
    reopening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reopening
    closing = asyncio.create_task(streams.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go_on.set()
    await closing
    again = streams.partition("logs")
    assert again is not failed
    assert again.finished


@pytest.mark.parametrize(
    ("operation", "number"),
    [("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC)],
)
async def test_other_failures_stay_until_a_restart(
    streams: StreamSet, monkeypatch: pytest.MonkeyPatch, operation: str, number: int
) -> None:
    failed = await publish_and_fail(streams, monkeypatch, operation, number)
    await Reviver(streams, ManualClock()).look()
    assert streams.partition("logs") is failed
