"""A spool whose disk does not give everything: waited for, read around, given up in the end."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.collector.delivery.core import Delivery
from penstock.collector.delivery.ordered_queue import Limits
from penstock.collector.delivery.publisher import Sender
from penstock.collector.ledger import Ledger
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.reader import UNREADABLE_S, Reader, RetryBackoff
from penstock.collector.spool.spool import Spool, Unit
from penstock.logd.storage.segment import OPEN_FILES_MAX
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from penstock.collector.delivery.pipeline import Pipeline

UNIT_BYTES = 10_000
FIRST = f"{0:020d}.log"
BAD = range(26_000, 26_001)
"""In the body of the third unit, offset 2."""
LATER_NS = (UNREADABLE_S + 1) * 10**9


class AheadClock(SystemClock):
    """Can be put forward."""

    ahead_ns = 0

    @override
    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


class Taking:
    """A pipeline that notes what it takes."""

    def __init__(self, ledger: Ledger) -> None:
        self.taken: list[int] = []
        self.stuck_at = -1
        self.is_stuck = False
        self.open = asyncio.Event()
        self._ledger = ledger

    async def take_unit(self, origin: str, offset: int, unit: Unit) -> None:
        del origin
        if offset == self.stuck_at:
            self.is_stuck = True
            await self.open.wait()
        self._ledger.decoded(unit.source, counted=unit.count, found=unit.count)
        self.taken.append(offset)


class Scene:
    """A spool with its reader.

    Attributes:
        probes: How often the disk was asked whether it takes anything new.
    """

    def __init__(self, directory: Path, disk: FailingDisk) -> None:
        self.disk, self.clock, self.ledger = disk, AheadClock(), Ledger()
        self._directory = directory
        self.probes = 0
        disk.befores.append(self._note)
        self._open()

    def _open(self) -> None:
        self.journal = Journal(self._directory, bytes_max=1 << 20, disk=self.disk)
        self.journal.open()
        self.spool = Spool(self.journal, self.ledger, when_full=lambda _: "drop_oldest")
        self.pipeline = Taking(self.ledger)
        never, delivery = cast("Any", None), Delivery(Limits(), jitter=lambda: 0.0)
        sender = Sender(delivery, self.clock, publish=never, quarantine=never)
        pipeline = cast("Pipeline", self.pipeline)
        patience = RetryBackoff(UNREADABLE_S * 10**9, first_ns=1_000_000, longest_ns=1_000_000)
        self.reader = Reader(
            self.spool, pipeline, sender, self.ledger, self.clock, patience=patience
        )

    async def restart(self) -> None:
        """Go on with what is spooled in a sealed segment, of which no file is open."""
        self.journal.log.roll()
        await self.journal.close()
        self._open()

    def _note(self, operation: str, path: Path) -> None:
        """Called before each operation of the disk."""
        self.probes += operation == "unlink" and path.name == "probe.tmp"

    async def put(self, count: int, *, size: int = UNIT_BYTES) -> None:
        for _ in range(count):
            future = await self.spool.put(Unit("app", "lines", os.urandom(size), 3, 99))
            await self.journal.commit()
            assert future is not None
            await future

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        self.reader.begin(0)
        task = asyncio.create_task(self.reader.run())
        yield
        assert not task.done(), "it would end the collector"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    @property
    def lost(self) -> int:
        return self.ledger["spool"].notes["units_lost_to_damage"]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    disk = FailingDisk()
    made = Scene(tmp_path / "spool", disk)
    yield made
    disk.bad, disk.away, disk.open_errno = {}, False, 0
    await made.journal.close()


async def test_what_cannot_be_read_is_told_and_read_when_the_disk_gives_it(scene: Scene) -> None:
    await scene.put(4)
    scene.disk.bad[FIRST] = BAD
    async with scene.reading():
        await wait_until_async(lambda: bool(scene.reader.trouble))
        assert "spool: cannot be read" in scene.reader.trouble
        await wait_until_async(lambda: scene.pipeline.taken == [0, 1])
        scene.disk.bad.clear()
        await wait_until_async(lambda: scene.pipeline.taken == [0, 1, 2, 3])
        assert (scene.reader.trouble, scene.lost) == ("", 0)


async def test_a_bad_sector_costs_its_unit_after_a_while_and_no_other(scene: Scene) -> None:
    await scene.put(4)
    scene.disk.bad[FIRST] = BAD
    async with scene.reading():
        await wait_until_async(lambda: bool(scene.reader.trouble))
        assert scene.lost == 0
        scene.clock.ahead_ns = LATER_NS
        await wait_until_async(lambda: scene.pipeline.taken == [0, 1, 3])
        assert (scene.reader.trouble, scene.lost) == ("", 1)
    assert not list(scene.journal.directory.glob("*.tmp"))


async def test_a_disk_that_is_away_costs_nothing_however_long(scene: Scene) -> None:
    await scene.put(4)
    scene.disk.away = True
    async with scene.reading():
        await wait_until_async(lambda: bool(scene.reader.trouble))
        scene.clock.ahead_ns = LATER_NS
        before = scene.probes
        await wait_until_async(lambda: scene.probes > before + 2)
        assert scene.lost == 0
        scene.disk.away = False
        await wait_until_async(lambda: scene.pipeline.taken == [0, 1, 2, 3])
        assert scene.reader.trouble == ""


@pytest.mark.parametrize("cause", ["away", "descriptors"])
async def test_the_time_of_another_trouble_is_not_that_of_a_unit(scene: Scene, cause: str) -> None:
    await scene.put(4)
    await scene.restart()
    scene.disk.away = cause == "away"
    scene.disk.open_errno = errno.EMFILE if cause == "descriptors" else 0
    async with scene.reading():
        await wait_until_async(lambda: bool(scene.reader.trouble))
        scene.clock.ahead_ns = LATER_NS
        scene.disk.bad[FIRST] = range(5_000, 5_001)
        scene.disk.away, scene.disk.open_errno = False, 0
        before = scene.probes
        await wait_until_async(lambda: scene.probes > before + 6)
        assert scene.lost == 0
        scene.clock.ahead_ns += LATER_NS
        await wait_until_async(lambda: scene.pipeline.taken == [1, 2, 3])
        assert (scene.reader.trouble, scene.lost) == ("", 1)


async def test_no_descriptor_left_is_waited_for(scene: Scene) -> None:
    await scene.put(4)
    await scene.restart()
    scene.disk.open_errno = errno.EMFILE
    async with scene.reading():
        await wait_until_async(lambda: "Too many open files" in scene.reader.trouble)
        scene.clock.ahead_ns = LATER_NS
        scene.disk.open_errno = 0
        await wait_until_async(lambda: scene.pipeline.taken == [0, 1, 2, 3])
        assert (scene.reader.trouble, scene.lost) == ("", 0)


@pytest.mark.parametrize("heals", [False, True])
async def test_a_start_passes_over_what_cannot_be_read_and_the_account_is_right(
    scene: Scene, heals: bool
) -> None:
    await scene.put(4)
    await asyncio.sleep(0)  # the last one is counted
    scene.ledger.accounts.clear()
    scene.disk.bad[FIRST] = BAD
    scene.spool.recover({}, 0)
    account = scene.ledger["app"]
    assert account.recovered == 9
    async with scene.reading():
        await wait_until_async(lambda: bool(scene.reader.trouble))
        if heals:  # and soon: a read that failed before is not followed by one ten minutes later
            scene.disk.bad.clear()
        else:
            scene.clock.ahead_ns = LATER_NS
        taken = [0, 1, 2, 3] if heals else [0, 1, 3]
        await wait_until_async(lambda: scene.pipeline.taken == taken)
    assert (account.recovered, account.spooled, account.difference) == (3 * len(taken), 0, 0)


async def test_what_a_start_passed_over_is_counted_when_it_is_dropped_unread(scene: Scene) -> None:
    await scene.put(4)
    await asyncio.sleep(0)  # the last one is counted
    scene.ledger.accounts.clear()
    scene.disk.bad[FIRST] = BAD
    scene.spool.recover({}, 0)
    scene.disk.bad.clear()
    scene.reader.begin(0)
    assert scene.spool.make_room is not None
    await scene.spool.make_room(scene.journal.bytes_max)
    account = scene.ledger["app"]
    assert (account.recovered, account.dropped.total()) == (12, 12)
    assert (account.spooled, account.difference) == (0, 0)


async def test_segments_that_are_dropped_while_a_unit_is_taken_end_nothing(scene: Scene) -> None:
    await scene.put(8, size=100_000)
    first = await scene.journal.first_segment_end()
    assert first is not None
    scene.pipeline.stuck_at = first - 1
    async with scene.reading():
        await wait_until_async(lambda: scene.pipeline.is_stuck)
        # So many segments that no file of the first ones is kept open.
        await scene.put(3 * (OPEN_FILES_MAX + 2), size=100_000)
        start, end = scene.journal.log.start_offset, scene.journal.log.end_offset
        assert start > 4, "more is dropped than the segment that is read"
        scene.pipeline.open.set()
        await wait_until_async(lambda: scene.pipeline.taken[-1:] == [end - 1])
    assert scene.pipeline.taken == [*range(first), *range(start, end)]
    assert scene.ledger["app"].difference == 0
