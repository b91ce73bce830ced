"""Streams whose disk fails at the wrong moment."""

import asyncio
import itertools
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.logd import streams
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.core.turn import Message
from penstock.logd.errors import CorruptError
from penstock.logd.partition import Partition
from penstock.logd.streams import StreamSet
from tests.support.surroundings import make_surroundings

LOGS = StreamConfig(name="logs", subject="t.>")


class QuietLink:
    """Brings nothing."""

    def __init__(self) -> None:
        self.sids = itertools.count()
        self.asked: asyncio.Event | None = None
        self.answer = asyncio.Event()

    def subscribe(self, subject: str) -> bytes:
        return b"%d" % next(self.sids)

    async def confirmed(self, sid: bytes) -> None:
        if self.asked is not None:
            self.asked.set()
            await self.answer.wait()

    def unsubscribe(self, sid: bytes) -> None:
        pass

    pause = resume = unsubscribe


@asynccontextmanager
async def stream_set(directory: Path, link: QuietLink | None = None) -> AsyncIterator[StreamSet]:
    incarnations = itertools.count()
    opened = StreamSet(
        directory,
        link or QuietLink(),
        make_surroundings=lambda _: make_surroundings(),
        new_incarnation=lambda: str(next(incarnations)),
    )
    try:
        yield opened
    finally:
        await opened.close()


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    real = getattr(owner, name)

    def fail(*_: Any) -> None:
        monkeypatch.setattr(owner, name, real)
        raise OSError("the disk is full")

    monkeypatch.setattr(owner, name, fail)


async def test_a_stream_that_could_not_be_opened_can_be_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([])
        fail_once(monkeypatch, Partition, "open")
        with pytest.raises(OSError, match="full"):
            await found.create(LOGS)
        partition, created = await found.create(LOGS)
        assert (partition.name, created) == ("logs", False)


async def test_a_stream_that_could_not_be_opened_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([])
        fail_once(monkeypatch, Partition, "open")
        with pytest.raises(OSError, match="full"):
            await found.create(LOGS)
        await found.delete("logs")
        assert (await found.create(LOGS))[1]


async def test_a_stream_whose_deletion_was_cut_short_can_be_created_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        fail_once(monkeypatch, streams, "_rename")
        with pytest.raises(OSError, match="full"):
            await found.delete("logs")
        partition, created = await found.create(LOGS)
        assert created
        assert partition.stream.incarnation == "1"


async def test_a_stream_without_its_partition_is_not_begun_again_at_offset_0(
    tmp_path: Path,
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
    shutil.rmtree(tmp_path / "streams" / "logs-0" / "0")
    async with stream_set(tmp_path) as found:
        with pytest.raises(CorruptError, match="lost its data"):
            await found.start([LOGS])


async def test_a_stream_is_created_and_listens_though_who_asked_for_it_went_away(
    tmp_path: Path,
) -> None:
    link = QuietLink()
    async with stream_set(tmp_path, link) as found:
        await found.start([])
        link.asked = asyncio.Event()
        asking = asyncio.create_task(found.create(LOGS))
        await link.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        # What comes before the server has confirmed the subscription is the stream's already.
        found.listening.on_messages({b"0": [Message(b"t.a", b"", b"", b"early")]})
        link.answer.set()
        partition, created = await found.create(LOGS)
        found.listening.on_messages({b"0": [Message(b"t.a", b"", b"", b"late")]})
        assert (created, partition.intake.counts.stored) == (False, 2)


async def test_a_stream_is_deleted_whole_though_who_asked_for_it_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stream_set(tmp_path) as found:
        await found.start([LOGS])
        begun, go_on = threading.Event(), threading.Event()
        save = found._checkpoint.save

        def wait_and_save(document: dict[str, Any]) -> None:
            begun.set()
            go_on.wait(30)
            save(document)

        monkeypatch.setattr(found._checkpoint, "save", wait_and_save)
        asking = asyncio.create_task(found.delete("logs"))
        await asyncio.to_thread(begun.wait, 30)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        go_on.set()
        partition, created = await found.create(LOGS)
        assert (created, partition.stream.incarnation) == (True, "1")
