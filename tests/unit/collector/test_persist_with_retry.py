"""What is held for senders that cannot send again, when a stop does not wait for the spool."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.base.clock import SystemClock
from penstock.collector.delivery.core import Delivery, Held
from penstock.collector.delivery.engine import CreatedRecords
from penstock.collector.delivery.ordered_queue import Limits
from penstock.collector.sources.exec import ExecSettings, ExecSource
from penstock.collector.sources.stdin import StdinSource
from penstock.collector.spool.writer import Payload
from tests.support.spool_writer import SpoolingIntake, spooling
from tests.support.waiting import wait_until_async

if TYPE_CHECKING:
    from penstock.collector.delivery.pipeline import Pipeline
    from penstock.collector.delivery.publisher import Sender

LARGE = Payload("ndjson", b"x" * 200_000, 3)


async def fill(spool_writer: SpoolingIntake) -> None:
    """Leave room for a little."""
    await spool_writer.persist(Payload("ndjson", os.urandom(800_000), 1))
    spool_writer.journal.resize(spool_writer.journal.used_bytes + 2000)


async def cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def until_waiting(spool_writer: SpoolingIntake) -> None:
    await spool_writer.wait_for_waiting()


@pytest.mark.parametrize("is_read_again", [False, True])
async def test_what_waits_for_room_is_counted_but_where_it_is_read_again(
    tmp_path: Path, is_read_again: bool
) -> None:
    async with spooling(tmp_path, "net", drop_newest=False) as spool_writer:
        await fill(spool_writer)
        left: list[Payload] = []
        leave = left.append if is_read_again else None
        keeping = asyncio.ensure_future(spool_writer.persist_with_retry(LARGE, leave=leave))
        await until_waiting(spool_writer)
        await cancelled(keeping)
        assert spool_writer.account.dropped["stopped"] == (0 if is_read_again else 3)
        assert left == ([LARGE] if is_read_again else [])
        assert spool_writer.account.difference == 0


async def test_what_a_failing_disk_holds_up_is_counted(tmp_path: Path) -> None:
    async with spooling(tmp_path, "net", drop_newest=False) as spool_writer:
        with spool_writer.disk.failing():
            keeping = asyncio.ensure_future(spool_writer.persist_with_retry(LARGE))
            await wait_until_async(lambda: spool_writer.journal.failures == 1)
            await asyncio.sleep(0)
            await cancelled(keeping)
        assert spool_writer.account.dropped["stopped"] == 3


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_on_its_way_is_counted_as_what_becomes_of_it(
    tmp_path: Path, fails: bool
) -> None:
    async with spooling(tmp_path, "net", drop_newest=False) as spool_writer:
        with spool_writer.disk.failing() if fails else contextlib.nullcontext():
            async with spool_writer.journal.held():
                keeping = asyncio.ensure_future(spool_writer.persist_with_retry(LARGE))
                await wait_until_async(lambda: spool_writer.spool.undurable)
                await cancelled(keeping)
                assert spool_writer.account.received == 0
            await wait_until_async(lambda: spool_writer.account.received == 3)
        assert spool_writer.account.dropped["stopped"] == (3 if fails else 0)


@pytest.mark.parametrize("program", [False, True])
async def test_lines_of_a_pipe_and_the_one_that_has_begun_are_counted(
    tmp_path: Path, program: bool
) -> None:
    text, pid = "a" * 3_000 + "\nb\nbegun", tmp_path / "pid"
    async with spooling(tmp_path, "in", drop_newest=False) as spool_writer:
        await fill(spool_writer)
        source: ExecSource | StdinSource
        inside, outside = os.pipe()
        if program:
            note = f"open({str(pid)!r}, 'w').write(str(os.getpid()))"
            code = f"import os; print({text!r}, end=''); {note}"
            command = [sys.executable, "-c", code]
            section = ExecSettings.model_validate(
                {"type": "exec", "command": command, "service": "job", "max_line_bytes": 4096}
            )
            source = ExecSource(section, spool_writer=spool_writer)
        else:
            os.write(outside, text.encode())
            source = StdinSource("job", 4096, spool_writer=spool_writer, descriptor=inside)
        await source.start()
        running = asyncio.ensure_future(source.run())
        await until_waiting(spool_writer)
        if program:  # it has ended, and been waited for
            number = await wait_until_async(lambda: pid.read_text() if pid.exists() else "")
            await wait_until_async(lambda: not Path("/proc", number).exists())
            await asyncio.sleep(0)
        await cancelled(running)
        os.close(inside)
        os.close(outside)
        assert spool_writer.account.dropped["stopped"] == 3
        assert spool_writer.account.difference == 0


class Points:
    """A graph that has made records."""

    def __init__(self, **made: list[bytes]) -> None:
        self._made = made

    def aggregators(self) -> list[str]:
        return [*self._made]

    def held_since_ns(self) -> dict[str, int]:
        return {}

    def flush(
        self, _now_ns: int, _unix_ns: int, *, everything: bool = False
    ) -> dict[str, list[bytes]]:
        del everything
        made, self._made = self._made, {}
        return made


def created_of(
    spool_writer: SpoolingIntake, *graphs: Points, delivery: Delivery | None = None
) -> CreatedRecords:
    pipeline = SimpleNamespace(
        retired=[*graphs[:-1]], graph=graphs[-1], record_drops=lambda _graph: None
    )
    sender = SimpleNamespace(delivery=delivery or Delivery(Limits(), jitter=lambda: 0))
    return CreatedRecords(
        cast("Pipeline", pipeline),
        cast("Sender", sender),
        spool=spool_writer.spool,
        ledger=spool_writer.ledger,
        budget=spool_writer.budget,
        clock=SystemClock(),
    )


@pytest.mark.parametrize("has_room", [False, True])
async def test_what_transforms_made_outlasts_a_drain_that_is_cut_short_or_is_counted(
    tmp_path: Path, has_room: bool
) -> None:
    async with spooling(tmp_path, "in", drop_newest=False) as spool_writer:
        await fill(spool_writer)
        large = b'"' + b"x" * 3_000 + b'"'
        graphs = Points(a=[large, large], b=[b"{}"]), Points(c=[large])
        created = created_of(spool_writer, *graphs)
        finishing = asyncio.ensure_future(created.finish())
        await until_waiting(spool_writer)
        await cancelled(finishing)
        if has_room:
            spool_writer.journal.resize(1 << 30)
        await created.leave()
        await spool_writer.journal.commit()
        await asyncio.sleep(0)
        created.give_up()
        spooled = {name: spool_writer.ledger[name].spooled for name in "abc"}
        dropped = {name: spool_writer.ledger[name].dropped["stopped"] for name in "abc"}
        assert spooled == ({"a": 2, "b": 1, "c": 1} if has_room else {"a": 0, "b": 1, "c": 0})
        assert dropped == ({"a": 0, "b": 0, "c": 0} if has_room else {"a": 2, "b": 0, "c": 1})


async def test_what_is_made_again_after_the_start_is_not_counted_as_lost(tmp_path: Path) -> None:
    delivery = Delivery(Limits(), jitter=lambda: 0)
    for origin, transform in (("file/1", "a"), ("file/1", "b"), ("spool", "b")):
        delivery.handle(Held(origin, transform, 0), 1)
    assert delivery.let_go("spool")
    async with spooling(tmp_path, "in", drop_newest=False) as spool_writer:
        await fill(spool_writer)
        large = b'"' + b"x" * 3_000 + b'"'
        graph = Points(a=[large], b=[large, large], c=[large])
        created = created_of(spool_writer, graph, delivery=delivery)
        await created.leave()
        created.give_up()
        lost = {name: spool_writer.ledger[name].dropped["stopped"] for name in "abc"}
        assert lost == {"a": 0, "b": 2, "c": 1}, "a is held whole, b in part, c not at all"
        assert spool_writer.ledger["a"].received == 0
        assert delivery.held_at("file/1") == 0


async def test_what_a_stop_leaves_goes_into_units_that_a_spool_has_room_for(
    tmp_path: Path,
) -> None:
    async with spooling(tmp_path, "in", drop_newest=False) as spool_writer:
        spool_writer.journal.resize(1 << 23)
        lines = [b"%d" % number * 10_000 for number in range(100)]
        created = created_of(spool_writer, Points(a=lines))
        await created.finish()
        units = spool_writer.units()
        assert b"\n".join(unit.payload for unit in units).split(b"\n") == lines
        assert sum(unit.count for unit in units) == len(lines)
        assert max(len(unit.payload) for unit in units) < 300_000


async def test_the_end_takes_up_what_was_being_kept_and_keeps_nothing_twice(
    tmp_path: Path,
) -> None:
    async with spooling(tmp_path, "in", drop_newest=False) as spool_writer:
        created = created_of(spool_writer, Points(a=[b"1"], b=[b"2"]))
        async with spool_writer.journal.held():
            running = asyncio.ensure_future(created.run())
            await wait_until_async(lambda: spool_writer.spool.undurable)
            finishing = asyncio.ensure_future(created.finish())
            await asyncio.sleep(0)
            await cancelled(finishing)
            await cancelled(running)
            await created.leave()
        await spool_writer.journal.commit()
        created.give_up()
        assert [unit.payload for unit in spool_writer.units()] == [b"1", b"2"]
