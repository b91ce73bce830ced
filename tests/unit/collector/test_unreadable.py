"""A journal with a bad sector where a start must read: what is said, and how to get past it."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.collector.checkpoint.recovery import Sizes, UnreadableError, open_data_directory
from penstock.collector.cli.main import cli
from penstock.collector.spool.journal import Entry, undamaged
from penstock.logd.format.batch import Record
from penstock.service import ExitCode

SIZES = Sizes(spool=1 << 20, urgent=1 << 20, quarantine=1 << 20)
UNITS = 50
SECTOR = range(90_112, 94_208)


def fill(directory: Path, name: str) -> Path:
    """Units in a journal that is left as after a kill; returns its only segment."""

    async def write() -> None:
        found = open_data_directory(directory, SIZES, where="c.yaml")
        journal = {"spool": found.spool, "quarantine": found.quarantine}[name]
        for number in range(UNITS):
            value = number.to_bytes(2) + os.urandom(3000)
            journal.offer(Entry(Record(subject="s", value=value, timestamp_ns=5)))
        await journal.commit()
        found.lock.release()

    asyncio.run(write())
    (segment,) = (directory / name).glob("*.log")
    return segment


def failing(segment: Path) -> Callable[[int, int, int], bytes]:
    """`os.pread` of a disk that does not give one sector."""
    read = os.pread

    def pread(descriptor: int, length: int, position: int) -> bytes:
        touched = position < SECTOR.stop and SECTOR.start < position + length
        if touched and os.path.samestat(os.fstat(descriptor), segment.stat()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, length, position)

    return pread


@pytest.mark.parametrize("name", ["spool", "quarantine"])
def test_a_bad_sector_is_named_with_its_file_and_the_rest_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    segment = fill(tmp_path, name)
    with monkeypatch.context() as patch:
        # No file system of a test fails for one sector of a file alone.
        patch.setattr(os, "pread", failing(segment))
        with pytest.raises(UnreadableError, match=r"cannot be read: .*Input/output") as caught:
            open_data_directory(tmp_path, SIZES, where="c.yaml")
        assert caught.value.exit_code is ExitCode.IO
        assert f"dd if={segment} of=COPY" in caught.value.fix
        assert f"spool check {segment.parent}`" in caught.value.fix
        for command in (["check"], ["repair"], ["repair", "--dry-run"], ["ls"], ["cat"]):
            done = CliRunner().invoke(cli, ["spool", *command, str(segment.parent)])
            assert done.exit_code == 74, done.output
            assert str(segment) in done.output
    with segment.open("r+b") as file:  # as dd copies it
        file.seek(SECTOR.start)
        file.write(bytes(len(SECTOR)))
    for again in ("check", "repair"):
        done = CliRunner().invoke(cli, ["spool", again, str(segment.parent)])
        assert done.exit_code == 65, done.output
    found = open_data_directory(tmp_path, SIZES, where="c.yaml")
    log = {"spool": found.spool, "quarantine": found.quarantine}[name].log
    read = [header.base_offset for header, _ in undamaged(log.frames, 0)]
    assert log.end_offset == UNITS
    assert UNITS - 4 < len(read) < UNITS
    found.lock.release()
