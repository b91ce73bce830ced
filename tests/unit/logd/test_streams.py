"""Streams whose disk fails at the wrong moment."""

import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.logd import streams
from penstock.logd.core.metadata import StreamConfig
from penstock.logd.errors import CorruptError
from penstock.logd.partition import Partition
from penstock.logd.streams import StreamSet
from tests.support.surroundings import make_surroundings

LOGS = StreamConfig(name="logs", subject="t.>")


class QuietLink:
    """Brings nothing."""

    def __init__(self) -> None:
        self.sids = itertools.count()

    async def subscribe(self, subject: str) -> bytes:
        return b"%d" % next(self.sids)

    def unsubscribe(self, sid: bytes) -> None:
        pass

    pause = resume = unsubscribe


@asynccontextmanager
async def stream_set(directory: Path) -> AsyncIterator[StreamSet]:
    incarnations = itertools.count()
    opened = StreamSet(
        directory,
        QuietLink(),
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
