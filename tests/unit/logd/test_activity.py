"""What is taken down is written once, or counted."""

import asyncio
import errno
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.logd.activity import ActivityJournal, ActivityLog, Event
from penstock.logd.errors import UnavailableError
from penstock.logd.limits import ACTIVITY_EVENT_BYTES_MAX, ACTIVITY_WAITING_MAX
from penstock.logd.security.principal import Method, Principal
from tests.support.failing_disk import FailingDisk

ALICE = Principal("alice", Method.TOKEN)


class HandClock:
    ns = 1_700_000_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.ns

    def unix_ns(self) -> int:
        return self.ns


class Sink:
    def __init__(self, failures: int = 0) -> None:
        self.stored: list[Event] = []
        self.failures = failures

    async def store(self, events: Sequence[Event]) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("nobody leads it now")
        self.stored.extend(events)


async def written(log: ActivityLog) -> None:
    running = asyncio.create_task(log.run())
    await log.drain(20)
    running.cancel()


async def test_an_event_says_what_when_where_and_who() -> None:
    sink, clock = Sink(failures=1), HandClock()
    log = ActivityLog("me", "boot", clock, sink)
    log.record("stream.delete", ALICE, request={"stream": "s"}, result="ok")
    log.record("node.start", None, event_id="c.7", started="b")
    await written(log)
    first, second = (json.loads(event.value) for event in sink.stored)
    assert first["by"] == {"name": "alice", "method": "token"}
    assert (first["node"], first["kind"]) == ("me", "stream.delete")
    assert first["facts"] == {"request": {"stream": "s"}, "result": "ok"}
    assert (second["id"], second["by"]) == ("c.7", {"name": "me", "method": "node"})
    assert log.counts == {"recorded": 2, "written": 2}
    assert log.problem == ""


async def test_what_finds_no_place_is_counted_and_told_by_the_next() -> None:
    sink = Sink()
    log = ActivityLog("me", "boot", HandClock(), sink)
    for _ in range(ACTIVITY_WAITING_MAX + 3):
        log.record("stream.create", ALICE)
    await written(log)
    log.record("stream.create", ALICE)
    await written(log)
    assert json.loads(sink.stored[-1].value)["facts"] == {"lost_before": 3}
    counts = log.counts
    assert counts["recorded"] == counts["written"] + counts["lost"] == ACTIVITY_WAITING_MAX + 4
    assert len({event.id for event in sink.stored}) == len(sink.stored)


async def test_what_anybody_can_cause_is_taken_down_at_a_bounded_rate() -> None:
    sink, clock = Sink(), HandClock()
    log = ActivityLog("me", "boot", clock, sink)
    for _ in range(1000):
        log.record("auth.failed", None, door="fetch")
    log.record("stream.create", ALICE)
    clock.ns += 5_000_000_000
    log.record("auth.failed", None, door="fetch")
    await written(log)
    failed = [event for event in sink.stored if event.kind == "auth.failed"]
    assert len(failed) < 15
    suppressed = json.loads(failed[-1].value)["facts"]["suppressed_before"]
    assert suppressed == log.counts["suppressed"] == 1001 - len(failed)


async def test_an_event_that_is_too_long_loses_what_it_was_about() -> None:
    sink = Sink()
    log = ActivityLog("me", "boot", HandClock(), sink)
    log.record("stream.create", ALICE, request={"subject": "a" * ACTIVITY_EVENT_BYTES_MAX}, count=1)
    await written(log)
    facts = json.loads(sink.stored[0].value)["facts"]
    assert facts["count"] == 1
    assert facts["left_out_bytes"] > ACTIVITY_EVENT_BYTES_MAX


async def test_without_a_stream_nothing_waits() -> None:
    log = ActivityLog("me", "boot", HandClock(), None)
    log.record("stream.create", ALICE)
    await log.drain(0)
    assert (log.waiting, log.counts) == (0, {"recorded": 1, "written": 1})


KILLED = """
import sys
from pathlib import Path
from penstock.logd.activity import ActivityLog
from penstock.logd.activity import ActivityJournal
from penstock.base.clock import SystemClock

class Away:
    async def store(self, events): ...

log = ActivityLog("me", "one", SystemClock(), Away(), ActivityJournal(Path(sys.argv[1])))
for number in range(200):
    log.record("stream.create", None, number=number)
print("answered", flush=True)
sys.stdin.read()
"""


def record_and_be_killed(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while b"answered" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)


async def test_a_kill_loses_nothing_that_stood_in_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    record_and_be_killed(path)
    sink = Sink(failures=2)
    log = ActivityLog("me", "two", HandClock(), sink, ActivityJournal(path))
    assert log.counts == {"recorded": 200, "recovered": 200}
    log.record("stream.create", ALICE, number=200)
    await written(log)
    numbers = [json.loads(event.value)["facts"]["number"] for event in sink.stored]
    assert numbers == list(range(201))
    assert len({event.id for event in sink.stored}) == 201
    assert (log.counts["written"], path.stat().st_size) == (201, 0)


async def test_whoever_waits_is_told_when_what_was_recorded_outlasts_the_machine(
    tmp_path: Path,
) -> None:
    disk, operations = FailingDisk(), list[str]()
    journal = ActivityJournal(tmp_path / "journal", disk=disk)
    log = ActivityLog("me", "boot", HandClock(), Sink(), journal)
    with disk.before(lambda operation, _: operations.append(operation)):
        with disk.holds("sync") as held:
            await log.kept()
            assert not held.reached.is_set(), "there is nothing to wait for"
            log.record("stream.create", None)
            first = asyncio.create_task(log.kept())
            await asyncio.to_thread(held.reached.wait, 20)
            log.record("stream.delete", None)
            others = [asyncio.create_task(log.kept()) for _ in range(50)]
            done, _ = await asyncio.wait([first, *others], timeout=0.05)
            assert not done
        await asyncio.gather(first, *others)
    assert operations.count("sync") == 2, (
        "what came while it synced takes another, one for all of them"
    )
    assert log.counts["unprotected"] == 0


async def test_a_journal_that_cannot_be_synced_holds_up_nobody_and_is_told(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    journal = ActivityJournal(tmp_path / "journal", disk=disk)
    log = ActivityLog("me", "boot", HandClock(), Sink(), journal)
    with disk.fails("sync"):
        log.record("stream.create", None)
        await asyncio.wait_for(log.kept(), 20)
    assert (log.counts["unprotected"], "Input/output" in log.unprotected) == (1, True)


async def test_what_is_stored_leaves_the_journal_and_what_waits_does_not(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = ActivityJournal(path)
    events = [Event(f"{number}", "stream.create", b"x" * 4096) for number in range(600)]
    for event in events:
        assert journal.append(event)
    before = path.stat().st_size
    journal.settle(events[100:], 500)
    assert path.stat().st_size == before  # too little to be worth while
    journal.settle(events[500:], 100)
    assert path.stat().st_size < before / 4
    assert journal.append(events[0])
    assert ActivityJournal(path).found == (*events[500:], events[0])
    journal.settle((), 0)
    assert ActivityJournal(path).found == ()


def test_what_comes_behind_a_directory_that_was_not_synced_is_in_the_file_that_is_there(
    tmp_path: Path,
) -> None:
    path, disk = tmp_path / "journal", FailingDisk()
    journal = ActivityJournal(path, disk=disk)
    events = [Event(f"{number}", "stream.create", b"x" * 4096) for number in range(600)]
    for event in events:
        assert journal.append(event)
    with disk.fails("sync_directory"):
        journal.settle(events[500:], 100)
    assert "Input/output" in journal.problem
    assert journal.append(events[0])
    assert journal.sync()
    assert ActivityJournal(path).found == (*events[500:], events[0])


def test_a_smaller_journal_that_finds_no_space_is_not_left_beside_the_one_there_is(
    tmp_path: Path,
) -> None:
    path, disk = tmp_path / "journal", FailingDisk()
    journal = ActivityJournal(path, disk=disk)
    events = [Event(f"{number}", "stream.create", b"x" * 4096) for number in range(600)]
    for event in events:
        assert journal.append(event)
    with disk.fails("sync", errno.ENOSPC):
        journal.settle(events[500:], 100)
    assert list(tmp_path.iterdir()) == [path]
    assert ActivityJournal(path).found == tuple(events)


def test_a_line_that_was_cut_or_changed_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = ActivityJournal(path)
    events = [Event(f"{number}", "stream.create", b"{}") for number in range(4)]
    for event in events:
        journal.append(event)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"stream", b"strean") + lines[2] + lines[3][:-9])
    found = ActivityJournal(path)
    assert (found.found, found.skipped) == ((events[0], events[2]), 2)
    found.append(events[3])  # behind what was whole
    assert ActivityJournal(path).found == (events[0], events[2], events[3])


def test_a_disk_that_is_full_stops_nothing_and_is_told(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    journal = ActivityJournal(tmp_path / "journal", disk=disk)
    log = ActivityLog("me", "boot", HandClock(), Sink(), journal)
    with disk.fails("write", errno.ENOSPC):
        log.record("stream.create", ALICE)
    assert (log.waiting, log.counts["unprotected"]) == (1, 1)
    assert "No space left" in log.unprotected
    log.record("stream.create", ALICE)
    assert (log.waiting, log.unprotected) == (2, "")
