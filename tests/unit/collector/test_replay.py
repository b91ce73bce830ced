"""Records go back from the quarantine into the spool once, whatever happens on the way."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.base.pluralize import pluralize
from penstock.collector.ledger import Ledger
from penstock.collector.spool.journal import Entry, Journal
from penstock.collector.spool.quarantine import (
    Again,
    Kept,
    Mark,
    Quarantine,
    Refusal,
    read_quarantine,
)
from penstock.collector.spool.replay import Outcome, Replayer, Wanted
from penstock.collector.spool.spool import Spool, Unit, decode_unit
from penstock.logd.format.batch import Record
from penstock.logd.storage import REAL_DISK, Disk
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async


@dataclass
class Place:
    quarantine: Quarantine
    spool: Spool
    replayer: Replayer

    def spooled(self) -> list[bytes]:
        frames = self.spool.journal.frames(self.spool.journal.log.start_offset)
        return [decode_unit(header, body).payload for header, body in frames]

    async def refuse(self, *numbers: int, reason: str = "bad", source: str = "app") -> None:
        again = Again("ndjson", {"resource": {"service.name": "shop"}}, 7)
        refusals = [
            Refusal("spool", source, number, reason, b'{"number":%d}' % number, again=again)
            for number in numbers
        ]
        assert await self.quarantine.put(refusals) == 0


@contextlib.asynccontextmanager
async def place(
    directory: Path,
    *,
    done: int = 0,
    spool_bytes: int = 1 << 20,
    quarantine_bytes: int = 1 << 20,
    disk: Disk = REAL_DISK,
    spool_disk: Disk = REAL_DISK,
    spool_type: type[Spool] = Spool,
) -> AsyncIterator[Place]:
    journals = [
        Journal(directory / "quarantine", bytes_max=quarantine_bytes, disk=disk),
        Journal(directory / "spool", bytes_max=spool_bytes, disk=spool_disk),
    ]
    for journal in journals:
        journal.open()
    commits = [asyncio.create_task(journal.run()) for journal in journals]
    spool = spool_type(journals[1], Ledger(), when_full=lambda _: "drop_newest")
    spool.recover({}, 0)
    quarantine = Quarantine(journals[0], UUID(int=1), SystemClock())
    quarantine.recover({})
    yield Place(quarantine, spool, Replayer(journals[0], spool, SystemClock(), done=done))
    for commit in commits:
        commit.cancel()
    await asyncio.gather(*commits, return_exceptions=True)
    for journal in journals:
        await journal.close()


async def test_records_go_back_once_with_how_they_are_read(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.refuse(1, 2, 3)
        assert await here.replayer.replay(Wanted()) == Outcome(replayed=3)
        assert here.spooled() == [b'{"number":1}', b'{"number":2}', b'{"number":3}']
        header, body = next(iter(here.spool.journal.frames(0)))
        unit = decode_unit(header, body)
        assert (unit.format, unit.received_ns) == ("ndjson", 7)
        assert unit.meta == {"resource": {"service.name": "shop"}}
        assert (await here.replayer.replay(Wanted())).replayed == 0
        assert len(here.spooled()) == 3


async def test_what_is_no_entry_is_kept_and_named_and_the_others_go_back(tmp_path: Path) -> None:
    """As a program that is wrong may have put it there."""
    async with place(tmp_path) as here:
        await here.refuse(1)
        record = Record(subject="s", value=b"{}", timestamp_ns=5, headers=(("again", b"5"),))
        await here.quarantine.journal.offer(Entry(record))
        await here.refuse(2)
        assert await here.replayer.replay(Wanted()) == Outcome(replayed=2, unknown=1)
        kept = [kept async for kept, _ in here.replayer.kept()]
    assert [(one.offset, one.reason.partition(":")[0]) for one in kept] == [
        (0, "bad"), (1, "unreadable"), (2, "bad"),
    ]  # fmt: skip


async def test_only_what_is_wanted_goes_back(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.refuse(1, reason="time: missing")
        await here.refuse(2, source="other")
        await here.refuse(3)
        assert (await here.replayer.replay(Wanted(reason="time"))).replayed == 1
        assert (await here.replayer.replay(Wanted(source="other"))).replayed == 1
        assert await here.replayer.replay(Wanted(offsets=frozenset({0, 2}))) == Outcome(
            replayed=1, before=1
        )


async def test_a_crash_after_the_mark_is_made_good_once(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with place(tmp_path, spool_disk=disk) as here:
        await here.refuse(1, 2)
        with disk.failing():
            assert (await here.replayer.replay(Wanted())).stopped
        assert here.spooled() == []
    for _ in range(2):
        async with place(tmp_path) as here:
            await here.replayer.finish()
            assert here.spooled() == [b'{"number":1}', b'{"number":2}']
            assert (await here.replayer.replay(Wanted())).replayed == 0


async def test_the_checkpoint_remembers_what_a_delivered_spool_has_forgotten(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as here:
        await here.refuse(1)
        await here.replayer.replay(Wanted())
        done = here.replayer.done
        await here.refuse(2)
    for path in (tmp_path / "spool").iterdir():
        path.unlink()
    async with place(tmp_path, done=done) as here:
        await here.replayer.finish()
        assert here.spooled() == []
        assert (await here.replayer.replay(Wanted())).replayed == 1


async def test_a_full_spool_stops_it_and_it_goes_on(tmp_path: Path) -> None:
    async with place(tmp_path, quarantine_bytes=8 << 20) as here:
        await here.refuse(*range(1, 2000))
        outcome = await here.replayer.replay(Wanted())
        assert outcome.stopped
        await here.spool.journal.delete_before(here.spool.journal.durable_offset)
        while (outcome := await here.replayer.replay(Wanted())).stopped:
            await here.spool.journal.delete_before(here.spool.journal.durable_offset)
        entries = list(read_quarantine(here.quarantine.journal.log))
        marked = [entry.replays for entry in entries if isinstance(entry, Mark)]
        assert len(marked) == len(set(marked)), "none is marked twice"
        last = here.spool.journal.durable_offset
        assert last == 1999, "each was spooled once"


async def test_a_full_quarantine_takes_marks_and_is_given_back(tmp_path: Path) -> None:
    async with place(tmp_path, quarantine_bytes=1 << 20, spool_bytes=8 << 20) as here:
        number = 0
        while not here.quarantine.dropped:
            number += 1
            refusal = Refusal(
                "spool", "app", number, "bad", b"{" + bytes(9_000), again=Again("ndjson", {}, 7)
            )
            await here.quarantine.put([refusal])
        used = here.quarantine.journal.used_bytes
        outcome = await here.replayer.replay(Wanted())
        assert (outcome.replayed, outcome.stopped) == (number - 1, "")
        assert here.quarantine.journal.used_bytes < used / 2


async def test_what_cannot_be_read_again_is_left_and_counted(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.quarantine.put([Refusal("spool", "app", 1, "bad", b"\x93no json")])
        await here.quarantine.put([Refusal("spool", "app", 2, "bad", b'{"old":1}')])
        assert await here.replayer.replay(Wanted()) == Outcome(replayed=1, unknown=1)
        kept = [e for e in read_quarantine(here.quarantine.journal.log) if isinstance(e, Kept)]
        assert kept[0].raw == b"\x93no json"


async def test_a_quarantine_that_was_taken_away_begins_anew(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.refuse(1, 2, 3)
        await here.replayer.replay(Wanted())
        done = here.replayer.done
    for path in (tmp_path / "quarantine").iterdir():
        path.unlink()
    async with place(tmp_path, done=done) as here:
        await here.refuse(4)
        assert (await here.replayer.replay(Wanted())).replayed == 1
        assert here.spooled()[-1] == b'{"number":4}'


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_put_and_is_not_durable_is_put_again(
    tmp_path: Path, *, cancelled: bool
) -> None:
    """A full spool ends the first replay, the second comes at once, and then the disk is full."""
    disk = FailingDisk()
    async with place(tmp_path, spool_bytes=1 << 16, spool_disk=disk) as here:
        await here.refuse(*range(1, 100))
        journal, failing = here.spool.journal, contextlib.ExitStack()
        async with journal.held():  # nothing is durable meanwhile
            first = asyncio.create_task(here.replayer.replay(Wanted()))
            await wait_until_async(lambda: not journal.has_room(2000))
            if cancelled:
                first.cancel()
            second = asyncio.create_task(here.replayer.replay(Wanted()))
            await asyncio.wait([second], timeout=0.5)
            failing.enter_context(disk.failing(errno.ENOSPC))
        await asyncio.wait([first, second])
        assert here.replayer.done == 0
        failing.close()
        while (await here.replayer.replay(Wanted())).stopped:
            await journal.delete_before(journal.durable_offset)
        assert journal.durable_offset == 99, "each was spooled once"


async def test_what_is_durable_counts_also_when_the_spool_is_full_then(tmp_path: Path) -> None:
    async with place(tmp_path, spool_bytes=1 << 16) as here:
        await here.refuse(*range(1, 200))
        outcome = await here.replayer.replay(Wanted())
        assert outcome.stopped
        assert outcome.replayed == here.spool.journal.durable_offset > 0


async def test_nothing_is_put_after_what_could_not_be_made_durable(tmp_path: Path) -> None:
    """The later sequence would say that the earlier one is there."""
    disk = FailingDisk()

    class FullAtFirst(Spool):
        """Its first unit is refused before the next one comes."""

        puts = 0

        @override
        async def put(
            self, unit: Unit, *, epoch: int | None = None, wait: bool = True
        ) -> asyncio.Future[int] | None:
            self.puts += 1
            if self.puts > 1:
                return await super().put(unit, epoch=epoch, wait=wait)
            with disk.failing(errno.ENOSPC):
                future = await super().put(unit, epoch=epoch, wait=wait)
                assert future is not None
                await asyncio.wait([future])
            return future

    async with place(tmp_path, spool_disk=disk, spool_type=FullAtFirst) as here:
        await here.refuse(1, 2)
        assert (await here.replayer.replay(Wanted())).stopped
        assert here.spooled() == []
        await here.replayer.replay(Wanted())
        assert here.spooled() == [b'{"number":1}', b'{"number":2}']


@pytest.mark.parametrize("reads_before", [0, 1, 2, 3])
async def test_what_the_disk_does_not_give_now_is_put_back_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_before: int
) -> None:
    """It fails when all is looked at, when each is put back, or when room is given back."""
    disk = FailingDisk()
    async with place(tmp_path, disk=disk) as here:
        await here.refuse(1, 2)
        log = here.quarantine.journal.log
        frames, looks = log.frames, 0

        def failing_later(*where: int, **how: Any) -> Iterator[Any]:
            nonlocal looks
            looks += 1
            if looks > reads_before:
                disk.bad[f"{0:020d}.log"] = range(100, 101)  # of the first record
            return frames(*where, **how)

        # The disk goes bad between two reads of one replay, for which there is no other moment.
        monkeypatch.setattr(log, "frames", failing_later)
        outcome = await here.replayer.replay(Wanted())
        told = ("the disk does not give 2 entries", "Input/output error", "Input/output error", "")
        assert told[reads_before] in outcome.stopped
        assert log.start_offset == 0
        disk.bad, looks = {}, -99
        again = await here.replayer.replay(Wanted())
        assert (outcome.replayed + again.replayed, again.stopped) == (2, "")
        assert here.spooled() == [b'{"number":1}', b'{"number":2}']


def large(*numbers: int) -> list[Refusal]:
    """Of some pages each, whatever compresses them."""
    again = Again("ndjson", {"resource": {"service.name": "shop"}}, 7)
    return [
        Refusal("spool", "app", number, "bad", b'{"n":%d,"x":"%b"}' % (number, noise), again=again)
        for number in numbers
        for noise in (os.urandom(6000).hex().encode(),)
    ]


def numbers_in(here: Place) -> list[int]:
    return [int(payload[5:].partition(b",")[0]) for payload in here.spooled()]


async def test_a_bad_sector_is_passed_by_and_named_and_what_is_behind_it_goes_back(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    async with place(tmp_path, disk=disk) as here:
        await here.quarantine.put(large(*range(20)))
        log = here.quarantine.journal.log
        middle = log.size_bytes // 2
        disk.bad["00000000000000000000.log"] = range(middle, middle + 10)
        await here.replayer.finish()
        outcome = await here.replayer.replay(Wanted())
        found = numbers_in(here)
        left = sorted({*range(20)} - {*found})
        assert outcome.replayed == len(found) == 20 - len(left)
        assert found == sorted(found)
        assert 1 <= len(left) <= 2
        assert (
            f"the disk does not give {pluralize(len(left), 'entry')}, from {log.directory}"
            in outcome.stopped
        )
        again = await here.replayer.replay(Wanted())
        assert (again.replayed, again.stopped) == (0, outcome.stopped)
        assert log.start_offset == 0, "what is there is not given back"
        disk.bad = {}
        assert (await here.replayer.replay(Wanted())).stopped == ""
        assert numbers_in(here) == [*found, *left]


async def test_what_a_mark_on_a_bad_sector_may_be_of_does_not_come_twice(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with place(tmp_path, disk=disk) as here:
        await here.quarantine.put(large(0, 1, 2))
        marks = here.quarantine.journal.log.size_bytes
        assert (await here.replayer.replay(Wanted())).replayed == 3
        await here.quarantine.put(large(3, 4))
        disk.bad["00000000000000000000.log"] = range(marks, marks + 10)
        outcome = await here.replayer.replay(Wanted())
        assert "whether it was put back is not known of " in outcome.stopped
        assert numbers_in(here) in ([0, 1, 2, 4], [0, 1, 2, 3, 4])
        disk.bad = {}
        assert (await here.replayer.replay(Wanted())).stopped == ""
        assert sorted(numbers_in(here)) == [0, 1, 2, 3, 4]
