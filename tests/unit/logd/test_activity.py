"""What is taken down is written once, or counted."""

import asyncio
import json
from collections.abc import Sequence

from penstock.logd.activity import ActivityLog, Event
from penstock.logd.errors import UnavailableError
from penstock.logd.limits import ACTIVITY_EVENT_BYTES_MAX, ACTIVITY_WAITING_MAX
from penstock.logd.security.principal import Method, Principal

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
