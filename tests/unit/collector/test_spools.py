"""Two spools: what is urgent has room of its own, what is oldest gives way where it may."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.base.clock import SystemClock
from penstock.collector.checkpoint.state import INDEX_BITS, URGENT_ORIGIN
from penstock.collector.config import WhenFull
from penstock.collector.delivery.core import Delivery, Flush, Publish, Stored, Take
from penstock.collector.delivery.ordered_queue import Batch, Limits, QueueKey
from penstock.collector.delivery.publisher import Answer, Sender
from penstock.collector.errors import SpoolFailedError, SpoolFullError
from penstock.collector.ledger import Ledger
from penstock.collector.spool.journal import Journal
from penstock.collector.spool.reader import Reader
from penstock.collector.spool.spool import Spool, Spools, Unit, decode_unit, take_apart
from penstock.collector.spool.urgency import Kind, split_by_urgency
from penstock.collector.telemetry import settle_accounts
from penstock.logd.storage import REAL_DISK, Disk
from tests.support.failing_disk import FailingDisk
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from penstock.collector.delivery.pipeline import Pipeline

BYTES = 1 << 20
POLICIES: dict[Kind, WhenFull] = {
    "logs": "drop_newest",
    "audit": "block",
    "events": "drop_oldest",
    "traces": "drop_oldest",
}


def record(kind: str, number: int = 0, **more: Any) -> bytes:
    return json.dumps({"kind": kind, "number": number, **more}, separators=(",", ":")).encode()


def batch(sequence: int, lines: list[bytes], *, filler: int = 0) -> Unit:
    head = {"batch": 1, "sender": "s", "seq": sequence, "count": len(lines), "resource": {"r": 1}}
    payload = json.dumps(head).encode() + b"\n" + b"\n".join(lines) + b" " * filler
    return Unit("app", "unix", payload, len(lines), 5, sender="app\ns", sequence=sequence)


def policy(kind: Kind) -> WhenFull:
    return POLICIES.get(kind, "block")


@contextlib.asynccontextmanager
async def spools(directory: Path, disk: Disk = REAL_DISK) -> AsyncIterator[tuple[Spools, Ledger]]:
    ledger = Ledger()
    journals = [
        Journal(directory / name, bytes_max=BYTES, disk=disk) for name in ("spool", "spool-urgent")
    ]
    for journal in journals:
        journal.open()
    bulk, urgent = journals
    commits = [asyncio.create_task(journal.run()) for journal in journals]
    yield (
        Spools(
            Spool(bulk, ledger, when_full=policy),
            Spool(urgent, ledger, when_full=policy, origin=URGENT_ORIGIN),
        ),
        ledger,
    )
    for commit in commits:
        commit.cancel()
    await asyncio.gather(*commits, return_exceptions=True)
    for journal in journals:
        await journal.close()


async def flood(both: Spools, kind: str, *, first: int = 1, count: int = 40) -> int:
    """Put large batches one after another; returns the sequence of the last."""
    for sequence in range(first, first + count):
        future = await both.put(batch(sequence, [record(kind)], filler=100_000))
        assert future is not None
        await future
    return first + count - 1


def units(spool: Spool) -> list[Unit]:
    return [decode_unit(header, body) for header, body in spool.journal.frames(0)]


def test_a_record_is_urgent_for_its_kind_not_for_its_text() -> None:
    lines = [
        record("log", body='"audit" and "event"'),
        record("audit"),
        record("span", attributes={"kind": "audit"}),
        b'not json "audit"',
        record("event"),
    ]
    found = split_by_urgency(b"\n".join(lines))
    assert found.urgent == [lines[1], lines[4]]
    assert found.rest == [lines[0], lines[2], lines[3]]
    assert (found.kind, found.urgent_kind) == ("logs", "audit")


def test_a_unit_of_one_urgency_stays_as_it_came() -> None:
    logs, audit = batch(1, [record("metric")]), batch(1, [record("audit")])
    assert [(part.kind, part.payload) for part in take_apart(logs)] == [("metrics", logs.payload)]
    assert [(part.kind, part.payload) for part in take_apart(audit)] == [("audit", audit.payload)]
    foreign = Unit("app", "syslog", b'"audit"', 1, 5)
    assert take_apart(foreign) == [foreign]
    broken = Unit("app", "unix", b'no header "audit"', 1, 5)
    assert take_apart(broken) == [broken]


def test_refused_lines_that_are_counted_keep_a_unit_whole() -> None:
    payload = record("audit") + b"\n" + record("log")
    unit = Unit("otlp", "ndjson", payload, 2, 5, meta={"refused": [[1, "why"]]})
    assert [(part.kind, part.payload) for part in take_apart(unit)] == [("audit", payload)]


async def test_a_mixed_batch_is_acknowledged_when_both_parts_are_durable(tmp_path: Path) -> None:
    async with spools(tmp_path) as (both, ledger):
        mixed = batch(1, [record("log", 1), record("audit", 2), record("log", 3)])
        future = await both.put(mixed)
        assert future is not None
        await future
        await asyncio.sleep(0)
        assert [unit.count for unit in units(both.urgent)] == [1]
        assert [unit.count for unit in units(both.bulk)] == [2]
        assert ledger["app"].received == 3
        assert await both.put(mixed) is None, "both parts are repeats"


async def test_a_flood_of_logs_leaves_room_for_audit(tmp_path: Path) -> None:
    async with spools(tmp_path) as (both, _):
        with pytest.raises(SpoolFullError):
            await flood(both, "log")
        future = await both.put(batch(41, [record("audit")]))
        assert future is not None
        await asyncio.wait_for(future, 5)
        mixed = batch(42, [record("audit"), record("log", filler="x" * 200_000)])
        with pytest.raises(SpoolFullError):
            await both.put(mixed)
        assert len(units(both.urgent)) == 1, "nothing is taken of what is refused"


@pytest.mark.parametrize("lines", [["log"], ["audit", "log"]])
async def test_what_never_fits_is_refused_for_good_and_waits_for_nothing(
    tmp_path: Path, lines: list[str]
) -> None:
    async with spools(tmp_path) as (both, ledger):
        POLICIES["logs"] = "block"
        try:
            large = batch(1, [record(kind, filler="x" * BYTES) for kind in lines])
            with pytest.raises(SpoolFullError) as caught:
                await asyncio.wait_for(both.put(large), 5)
        finally:
            POLICIES["logs"] = "drop_newest"
        assert caught.value.for_ever
        assert not units(both.urgent)
        assert ledger["app"].received == 0


async def test_nothing_is_dropped_to_make_room_for_what_never_fits(tmp_path: Path) -> None:
    async with spools(tmp_path) as (both, ledger):
        reader_of(both.bulk, ledger, Nowhere())
        await flood(both, "span", count=3)
        with pytest.raises(SpoolFullError):
            await both.put(batch(4, [record("span", filler="x" * BYTES)]))
        assert not ledger["app"].dropped


async def test_a_mixed_batch_that_waits_goes_on_when_both_have_room_at_once(
    tmp_path: Path,
) -> None:
    """Room found in one spool may be gone when the other has some."""
    async with spools(tmp_path) as (both, _):
        POLICIES["logs"] = "block"
        try:
            sizes = (both.urgent.journal.bytes_max, both.bulk.journal.bytes_max)
            both.urgent.journal.resize(10_000)
            both.bulk.journal.resize(sizes[1])
            mixed = batch(1, [record("audit", filler="x" * 5000), record("log")])
            await_room = batch(1, [record("audit", filler="x" * 5000)])
            first = await both.put(dataclasses.replace(await_room, sender="other"))
            assert first is not None
            await first
            waiting = asyncio.ensure_future(both.put(mixed))
            await asyncio.sleep(0)
            large = batch(1, [record("log", filler="x" * 2000)])
            both.bulk.journal.resize(large.size)
            other = await both.put(dataclasses.replace(large, sender="third"))
            assert other is not None
            await other
            both.urgent.journal.resize(sizes[0])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done(), "there is no room for its second part"
            both.bulk.journal.resize(sizes[1])
            future = await asyncio.wait_for(waiting, 5)
            assert future is not None
            await asyncio.wait_for(future, 5)
            assert [unit.count for unit in units(both.urgent)] == [1, 1]
        finally:
            POLICIES["logs"] = "drop_newest"


async def test_a_mixed_batch_is_answered_when_both_parts_are_settled(
    tmp_path: Path,
) -> None:
    """Its sender is told no, and what it held is given back, when nothing of it is on its way."""
    disk = FailingDisk()
    urgent = tmp_path / "spool-urgent"
    async with spools(tmp_path, disk) as (both, _):
        async with both.bulk.journal.held():
            with disk.failing(under=urgent):
                future = await both.put(batch(1, [record("log"), record("audit")]))
                assert future is not None
                await wait_until_async(lambda: both.urgent.journal.failures == 1)
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not future.done()
        with pytest.raises(SpoolFailedError):
            await asyncio.wait_for(future, 5)


class Nowhere:
    """A pipeline that takes units and remembers them."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.open = asyncio.Event()

    async def take_unit(self, origin: str, offset: int, unit: Unit) -> None:
        del origin, unit
        await self.open.wait()
        self.taken.append(offset)


class ToLanes:
    """A pipeline that hands one record of each unit to delivery, which waits for logd."""

    def __init__(self, sender: Sender, ledger: Ledger) -> None:
        self.sender = sender
        self._ledger = ledger
        self.filters: set[Kind] = set()
        self.taking: dict[str, int] = {}
        self.stuck_at = -1

    async def take_unit(self, origin: str, offset: int, unit: Unit) -> None:
        self._ledger.decoded(unit.source, counted=unit.count, found=1)
        self.taking[origin] = 1
        if offset == self.stuck_at:
            await asyncio.Event().wait()
        self._ledger.sorted(unit.source, taken=1, copies=0, refused=0)
        if unit.kind in self.filters:
            self._ledger[unit.source].filtered += 1
            return
        records = Batch(offset, [(offset << INDEX_BITS) + 1], [0], [b"{}"], 2)
        self.sender.handle(Take(QueueKey(origin, unit.source, unit.kind), records))


def courier_of() -> Sender:
    never, delivery = cast("Any", None), Delivery(Limits(), jitter=lambda: 0.0)
    return Sender(delivery, SystemClock(), publish=never, quarantine=never)


def reader_of(
    spool: Spool, ledger: Ledger, pipeline: Nowhere | ToLanes, sender: Sender | None = None
) -> Reader:
    sender = sender or courier_of()
    reader = Reader(spool, cast("Pipeline", pipeline), sender, ledger, SystemClock())
    reader.begin(0)
    return reader


async def test_the_oldest_units_give_way_and_are_counted(tmp_path: Path) -> None:
    async with spools(tmp_path) as (both, ledger):
        pipeline = Nowhere()
        reader = reader_of(both.bulk, ledger, pipeline)
        reading = asyncio.create_task(reader.run())
        assert await flood(both, "span") == 40
        await asyncio.sleep(0)
        account = ledger["app"]
        dropped = account.dropped["spool_full_oldest"]
        assert account.received == 40
        assert dropped > 10
        assert account.spooled == 40 - dropped, "held is what was not dropped"
        pipeline.open.set()
        await asyncio.wait_for(reader.wait_until_read(), 10)
        reading.cancel()
        assert len(pipeline.taken) == 40 - dropped
        assert pipeline.taken[0] == 0, "what was being taken when it was dropped is not dropped"
        assert pipeline.taken[-1] == 39
        assert pipeline.taken == sorted(set(pipeline.taken))


async def test_what_may_not_be_dropped_keeps_its_segment(tmp_path: Path) -> None:
    async with spools(tmp_path) as (both, ledger):
        reader_of(both.bulk, ledger, Nowhere())
        first = await both.put(batch(1, [record("log")]))
        assert first is not None
        with pytest.raises(SpoolFullError):
            await flood(both, "span", first=2)
        assert not ledger["app"].dropped


@contextlib.asynccontextmanager
async def reading(spool: Spool, ledger: Ledger) -> AsyncIterator[tuple[Reader, ToLanes]]:
    """A reader whose records wait for logd."""
    pipeline = ToLanes(courier_of(), ledger)
    reader = reader_of(spool, ledger, pipeline, pipeline.sender)
    task = asyncio.create_task(reader.run())
    yield reader, pipeline
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def put(both: Spools, sequence: int, kind: str) -> None:
    future = await both.put(batch(sequence, [record(kind)], filler=100_000))
    assert future is not None
    await future


def difference_of(ledger: Ledger, pipeline: ToLanes) -> int:
    settle_accounts(ledger, pipeline.sender.delivery)
    return ledger["app"].difference


@pytest.mark.parametrize(
    ("kept", "may_go"), [("log", "span"), ("metric", "span"), ("audit", "event")]
)
async def test_what_may_not_be_dropped_is_kept_also_when_it_was_read(
    tmp_path: Path, kept: str, may_go: str
) -> None:
    """It is in memory, and would be gone with the process."""
    async with spools(tmp_path) as (both, ledger):
        spool = both.urgent if kept == "audit" else both.bulk
        async with reading(spool, ledger) as (reader, pipeline):
            await put(both, 1, kept)
            await reader.wait_until_read()
            with pytest.raises(SpoolFullError):
                await flood(both, may_go, first=2)
            assert spool.journal.log.start_offset == 0
            assert not ledger["app"].dropped
            pipeline.sender.handle(Stored(await sent(pipeline, 0)))
            await flood(both, may_go, first=42)
            assert spool.journal.log.start_offset > 0
            assert difference_of(ledger, pipeline) == 0


async def sent(pipeline: ToLanes, offset: int) -> int:
    """The request that carries the records of a unit."""
    requests: dict[int, int] = {}

    async def publish(effect: Publish) -> Answer:
        requests[effect.batch.start] = effect.request
        await asyncio.Event().wait()  # logd is away
        raise AssertionError

    pipeline.sender.publish = publish
    pipeline.sender.handle(Flush())
    sending = asyncio.create_task(pipeline.sender.run())
    await wait_until_async(lambda: offset in requests)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    return requests[offset]


async def test_what_was_read_and_filtered_holds_nothing_up(tmp_path: Path) -> None:
    async with (
        spools(tmp_path) as (both, ledger),
        reading(both.bulk, ledger) as (reader, pipeline),
    ):
        pipeline.filters.add("logs")
        await put(both, 1, "span")
        await put(both, 2, "log")
        await reader.wait_until_read()
        await flood(both, "span", first=3, count=15)
        assert both.bulk.journal.log.start_offset > 2
        assert difference_of(ledger, pipeline) == 0


@pytest.mark.parametrize("stuck_at", [-1, 1, 39])
async def test_at_the_end_what_is_in_memory_alone_is_counted_as_dropped(
    tmp_path: Path, stuck_at: int
) -> None:
    """Its segments were given up while logd was away; the rest is on disk, and goes on."""
    async with spools(tmp_path) as (both, ledger):
        async with reading(both.bulk, ledger) as (reader, pipeline):
            pipeline.stuck_at = stuck_at
            for sequence in range(1, 41):
                await put(both, sequence, "span")
                if reader.position != stuck_at:
                    await reader.wait_until_read()
        assert (start := both.bulk.journal.log.start_offset) > 10
        account = ledger["app"]
        account.received, account.pending = 43, account.pending + 3  # 3 are of the other spool
        before = account.dropped["spool_full_oldest"]
        assert (given_up := reader.give_up()) > 0
        assert difference_of(ledger, pipeline) == 0
        assert account.dropped["spool_full_oldest"] == before + given_up == start
        assert account.held == 43 - start
        assert pipeline.sender.delivery.cursor(both.bulk.origin) >= start
        assert reader.give_up() == 0
