"""Group commit, repeats and failures of the spool, on real files."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.collector.decode.units import decode_records
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.ledger import Ledger
from penstock.collector.limits import UNIT_RECORDS_MAX
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.spool import Spool, Unit, decode_unit
from penstock.logd.storage import REAL_DISK, Disk
from tests.support.failing_disk import FailingDisk

if TYPE_CHECKING:
    from penstock.collector.config import WhenFull


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
async def spool(tmp_path: Path, disk: FailingDisk, ledger: Ledger) -> AsyncIterator[Spool]:
    made = open_spool(tmp_path, disk=disk, ledger=ledger)
    yield made
    await made.journal.close()


def open_spool(
    directory: Path,
    *,
    drop_newest: bool = True,
    disk: Disk = REAL_DISK,
    ledger: Ledger | None = None,
) -> Spool:
    journal = Journal(directory, bytes_max=1 << 20, disk=disk)
    journal.open()
    full: WhenFull = "drop_newest" if drop_newest else "block"
    return Spool(journal, ledger or Ledger(), when_full=lambda _: full)


def unit(sequence: int = 0, *, size: int = 10) -> Unit:
    return Unit(
        "app", "unix", bytes(size), 3, 99, {"k": "v"}, "sender" if sequence else "", sequence
    )


async def test_units_offered_together_share_one_commit_and_come_back_whole(
    spool: Spool, ledger: Ledger
) -> None:
    futures = [await spool.put(unit(sequence)) for sequence in (1, 2, 3)]
    await spool.journal.commit()
    assert [await future for future in futures if future] == [0, 1, 2]
    assert spool.journal.commits == 1
    read = [decode_unit(header, body) for header, body in spool.journal.frames(0)]
    assert [(u.source, u.format, u.count, u.received_ns, u.meta) for u in read] == [
        ("app", "unix", 3, 99, {"k": "v"})
    ] * 3
    await asyncio.sleep(0)
    assert ledger["app"].received == 9


async def test_more_records_than_a_unit_may_have_are_named_when_it_is_decoded(spool: Spool) -> None:
    count = UNIT_RECORDS_MAX + 1
    spool.journal.resize(8 << 20)
    lines = Unit("app", "ndjson", b"1\n" * count, count, 99)
    await spool.put(lines)
    await spool.journal.commit()
    ((header, body),) = spool.journal.frames(0)
    found = decode_unit(header, body)
    assert (found.source, found.count) == ("app", count)
    (part,) = decode_records(found, {}).undecodable
    assert (part.count, part.reason) == (count, f"more than {UNIT_RECORDS_MAX} records in a unit")


async def test_a_repeat_waits_for_the_unit_it_repeats(spool: Spool) -> None:
    first = await spool.put(unit(1))
    assert await spool.put(unit(1)) is first
    await spool.journal.commit()
    await asyncio.sleep(0)
    assert await spool.put(unit(1)) is None


async def test_what_was_taken_is_known_again_from_frame_headers(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    await spool.put(unit(5))
    await spool.journal.close()
    ledger = Ledger()
    again = open_spool(tmp_path, ledger=ledger)
    again.recover({}, 0)
    assert await again.put(unit(5)) is None
    assert await again.put(unit(6)) is not None
    assert ledger["app"].recovered == 3
    await again.journal.close()


async def test_a_full_spool_says_so_or_waits(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    await spool.put(unit(size=900_000))
    with pytest.raises(SpoolFullError):
        await spool.put(unit(size=200_000))
    spool.when_full = lambda _: "block"
    waiting = asyncio.ensure_future(spool.put(unit(size=200_000)))
    await spool.journal.commit()
    assert not waiting.done()
    await spool.journal.delete_before(spool.journal.durable_offset)
    assert await waiting is not None
    await spool.journal.close()


async def test_a_failed_sync_promises_nothing_and_the_epoch_ends(
    spool: Spool, disk: FailingDisk
) -> None:
    epoch = spool.epoch
    kept = await spool.put(unit(1), epoch=epoch)
    await spool.journal.commit()
    lost = await spool.put(unit(2), epoch=epoch)
    with disk.fails("sync"):
        await spool.journal.commit()
    assert kept is not None
    assert await kept == 0
    assert lost is not None
    with pytest.raises(SpoolFailedError):
        await lost
    await asyncio.sleep(0)  # callbacks of the failed unit have their turn
    with pytest.raises(SpoolFailedError):
        await spool.put(unit(3), epoch=epoch)
    again = await spool.put(unit(2), epoch=spool.epoch)
    await spool.journal.commit()
    assert again is not None
    assert await again == 1
    assert [header.producer_sequence for header in spool.journal.log.headers(0)] == [1, 2]


async def test_a_damaged_unit_does_not_keep_the_collector_from_starting(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for sequence in (1, 2, 3):
        await spool.put(unit(sequence, size=500))
        await spool.journal.commit()
    await spool.journal.close()
    damage(tmp_path)
    ledger = Ledger()
    again = open_spool(tmp_path, ledger=ledger)
    again.recover({}, 0)
    assert ledger["app"].recovered == 6
    assert await again.put(unit(3)) is None
    await again.journal.close()


def damage(directory: Path) -> None:
    (segment,) = directory.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)


async def test_a_commit_returns_only_when_what_another_writes_is_durable_too(
    spool: Spool, disk: FailingDisk
) -> None:
    journal = spool.journal
    with disk.holds("sync") as sync:
        await spool.put(unit())
        first = asyncio.create_task(journal.commit())
        await asyncio.to_thread(sync.reached.wait, 20)
        second = asyncio.create_task(journal.commit())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done(), "a drain would leave it spooled"
    await asyncio.gather(first, second)
    assert journal.durable_offset == 1
