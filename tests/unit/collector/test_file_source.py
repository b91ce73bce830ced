"""Files that cannot be read for a while: nothing ends, nothing is read twice."""

import errno
import gzip
import os
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.collector.core.batch import Limits
from penstock.collector.core.delivery import Delivery, Publish, Quarantine
from penstock.collector.core.files import FileState, Found, Generations
from penstock.collector.core.ledger import Ledger
from penstock.collector.courier import Courier
from penstock.collector.publisher import Answer
from penstock.collector.source_sections import FileSource as FileSection
from penstock.collector.sources.file import FileSource
from penstock.collector.sources.tail import look
from penstock.service.clock import SystemClock


async def _saved() -> bool:
    return True


async def _publish(effect: Publish) -> Answer:
    raise AssertionError(effect)


async def _quarantine(effect: Quarantine) -> None:
    raise AssertionError(effect)


def source_of(path: Path, known: list[FileState]) -> FileSource:
    clock = SystemClock()
    delivery = Delivery(Limits(), jitter=lambda: 0.0)
    return FileSource(
        FileSection(type="file", include=(str(path),), service="app"),
        {},
        Generations(following=2, known=known),
        pipeline=cast("Any", None),
        courier=Courier(delivery, clock, publish=_publish, quarantine=_quarantine),
        ledger=Ledger(),
        clock=clock,
        save=_saved,
        first_time=False,
    )


def found(path: Path) -> Found:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return look(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "app.log"
    made.write_text("one\ntwo\n")
    return made


async def test_a_file_that_cannot_be_opened_at_start_keeps_its_position(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Generations().begin("file", found(path), str(path))
    state.position = 4
    source = source_of(path, [state])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        await source._discover()
    assert [(s.generation, s.position) for s in source.states] == [(1, 4)]
    await source._discover()
    assert [tail.lines.position for tail in source._tails.values()] == [4]
    assert [s.generation for s in source.states] == [1]


async def test_a_file_that_cannot_be_read_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(path, [])
    await source._discover()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        append(path)
        await source._discover()
        assert not await source._read_round()
    assert source._ledger["file"].notes["files_unreadable"] == 1
    for tail in source._tails.values():
        assert tail.lines.position == 0
        tail.close()


async def test_what_is_unread_of_a_file_goes_on_in_a_compressed_one_with_its_inode(
    path: Path,
) -> None:
    """The file's number is the compressed one's by now, which is no log itself."""
    state = Generations().begin("file", found(path), str(path))
    state.position = 4
    compressed = compress(path, b"three\n")
    state.device, state.inode = compressed.st_dev, compressed.st_ino
    source = source_of(path, [state])
    await source._discover()
    assert [(s.generation, s.position) for s in source.states] == [(1, 4)]
    while source._seek():
        assert source._generations.lost == [state]
    [tail] = source._tails.values()
    _, lines, at_end = tail.read(0)
    assert ([line.text for line in lines], at_end) == ([b"two", b"three"], True)
    assert [s.generation for s in source.states] == [1]
    tail.close()
    source._search.close()


def compress(path: Path, more: bytes) -> os.stat_result:
    compressed = path.with_name(f"{path.name}.1.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes() + more))
    path.unlink()
    return compressed.stat()


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("three\n")


def refuse(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
