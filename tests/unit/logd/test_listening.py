"""Streams that leave their subjects and come back, on a link and a clock of the test's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.logd.intake.admission import AdmissionPolicy
from penstock.logd.intake.gaps import GapReason
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.nats.link import LinkEvent, LinkState
from penstock.logd.partition.subscriptions import SubscriptionManager
from tests.support.one_node import OneNode, one_node
from tests.support.partition_context import make_context
from tests.support.waiting import wait_until_async

S = 1_000_000_000
BUDGET = 128 * 1024


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = S

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return 1_700_000_000 * S + self.now_ns


class HandLink:
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sids: dict[str, bytes] = {}

    def subscribe(self, subject: str, queue: str = "") -> bytes:
        self.asked.append(f"subscribe {subject}")
        sid = self.sids[subject] = b"%d" % len(self.asked)
        return sid

    async def confirmed(self, sid: bytes) -> None:
        pass

    def unsubscribe(self, sid: bytes) -> None:
        self.asked.append(f"unsubscribe {sid.decode()}")

    def pause(self, sid: bytes) -> None:
        self.asked.append(f"pause {sid.decode()}")

    def resume(self, sid: bytes) -> None:
        self.asked.append(f"resume {sid.decode()}")


class World:
    def __init__(self, node: OneNode, link: HandLink, clock: HandClock) -> None:
        self.node, self.link, self.clock = node, link, clock

    @property
    def subscription_manager(self) -> SubscriptionManager:
        return self.node.subscription_manager

    def tell(self, state: LinkState, sid: bytes = b"", reason: str = "") -> None:
        self.subscription_manager.on_event(LinkEvent(state, sid, reason))

    def lasting(self) -> list[GapReason]:
        return [gap.reason for gap in self.subscription_manager.gaps.lasting()]

    async def overload(self) -> None:
        """One turn that brings more than there is room for, nobody to answer; all of it drains."""
        burst = [Message(b"t.a", b"", b"", bytes(1024))] * (BUDGET // 512)
        self.subscription_manager.on_messages({b"1": burst})
        partition = self.node.partition("logs")
        await wait_until_async(lambda: partition.budget.held == 0, what="drained")


@asynccontextmanager
async def world(directory: Path, *configs: StreamConfig) -> AsyncIterator[World]:
    clock, link = HandClock(), HandLink()
    policy = AdmissionPolicy(unsubscribe_after_ns=2 * S, resubscribe_after_ns=S)
    context = make_context(budget_bytes=BUDGET, clock=clock, admission=policy)
    async with one_node(directory, *configs, link=link, context=context) as node:
        yield World(node, link, clock)


LOGS = StreamConfig(name="logs", subject="t.>", fsync="never")


async def test_a_stream_that_goes_on_refusing_leaves_and_comes_back(tmp_path: Path) -> None:
    async with world(tmp_path, LOGS) as it:
        for _ in range(5):
            await it.overload()
            it.subscription_manager.tick()
            it.clock.now_ns += S // 2
        assert it.link.asked == ["subscribe t.>", "pause 1"]
        assert it.subscription_manager.away() == ["logs"]
        assert it.lasting() == [GapReason.BUSY, GapReason.UNSUBSCRIBED]
        it.clock.now_ns += 2 * S
        it.subscription_manager.tick()
        assert it.link.asked[2:] == ["resume 1"]
        assert it.lasting() == [GapReason.UNSUBSCRIBED]
        it.clock.now_ns += S
        it.tell(LinkState.CONFIRMED, b"1")
        assert it.lasting() == []
        dropped, unsubscribed = it.subscription_manager.gaps.ended
        counts = it.node.partition("logs").intake.counts
        assert dropped.messages == sum(counts.untold.values()) == sum(counts.refused.values()) > 0
        assert unsubscribed.duration_ns(it.subscription_manager.now()) == S * 7 // 2
        it.subscription_manager.tick()
        assert len(it.link.asked) == 3


async def test_an_outage_is_a_gap_of_the_streams_on_their_subjects(tmp_path: Path) -> None:
    other = StreamConfig(name="other", subject="o.>")
    async with world(tmp_path, LOGS, other) as it:
        own, denied = it.link.sids["t.>"], it.link.sids["o.>"]
        it.tell(LinkState.DENIED, denied, "no")
        assert it.subscription_manager.denied() == {"other": "no"}
        it.tell(LinkState.LOST, reason="closed")
        outage = it.subscription_manager.gaps.lasting()[-1]
        assert (outage.streams, outage.detail) == (("logs",), "closed")
        it.tell(LinkState.CONFIRMED, own)
        it.tell(LinkState.RESTORED)
        assert it.lasting() == [GapReason.DENIED]
        it.clock.now_ns += 31 * S
        it.subscription_manager.tick()
        it.subscription_manager.tick()
        assert it.link.asked[2:] == [f"resume {denied.decode()}"]
        it.tell(LinkState.CONFIRMED, denied)
        assert it.lasting() == []
        assert it.subscription_manager.denied() == {}


async def test_an_outage_begins_when_everything_was_known_to_have_come(tmp_path: Path) -> None:
    async with world(tmp_path, LOGS) as it:
        it.clock.now_ns += 10 * S
        known_ns = it.clock.monotonic_ns() - 3 * S
        it.subscription_manager.on_event(
            LinkEvent(LinkState.LOST, reason="cut off", since_ns=known_ns)
        )
        [outage] = it.subscription_manager.gaps.lasting()
        assert outage.duration_ns(it.subscription_manager.now()) == 3 * S
        assert it.subscription_manager.now().unix_ns - outage.start.unix_ns == 3 * S


async def test_reserved_subjects_are_passed_over_and_counted(tmp_path: Path) -> None:
    wild = StreamConfig(name="all", subject=">", ack_on_reply=False)
    async with world(tmp_path, wild) as it:
        subjects = [b"a", b"_INBOX.x.1", b"_INBOX_tom.1", b"$JS.API.INFO", b"_INBO", b"b.$x"]
        it.subscription_manager.on_messages(
            {b"1": [Message(name, b"r", b"", b"x") for name in subjects]}
        )
        partition = it.node.partition("all")
        assert (partition.intake.counts.received, partition.publish_queue.skipped) == (3, 3)
        assert it.node.engine.streams.match("_INBOX.x") == ()
        assert partition.publish_queue.pending_acks == 0


async def test_what_can_never_fit_is_too_large_and_not_busy(tmp_path: Path) -> None:
    small = StreamConfig(name="logs", subject="t.>", max_intake_bytes=64 * 1024)
    async with world(tmp_path, small) as it:
        counts = it.node.partition("logs").intake.counts
        for size in (64 * 1024, 1024):
            it.subscription_manager.on_messages({b"1": [Message(b"t.a", b"r", b"", bytes(size))]})
        assert {nack.name: n for nack, n in counts.refused.items()} == {"MESSAGE_TOO_LARGE": 1}
        assert counts.stored == 1


async def test_a_deleted_stream_leaves_its_gaps_behind(tmp_path: Path) -> None:
    async with world(tmp_path, LOGS) as it:
        it.tell(LinkState.DENIED, b"1", "no")
        await it.node.engine.streams.delete("logs")
        it.subscription_manager.on_messages({b"1": [Message(b"t.a", b"", b"", b"late")]})
        it.tell(LinkState.CONFIRMED, b"1")
        assert it.lasting() == []
        assert it.link.asked[1:] == ["unsubscribe 1"]


async def test_draining_is_no_gap(tmp_path: Path) -> None:
    async with world(tmp_path, LOGS) as it:
        it.subscription_manager.stop()
        it.tell(LinkState.LOST, reason="closed")
        it.subscription_manager.tick()
        assert it.lasting() == []


async def test_what_a_new_leader_misses_is_told_with_its_times(tmp_path: Path) -> None:
    async with world(tmp_path, LOGS) as it:
        it.clock.now_ns += 10 * S
        it.subscription_manager.missed("logs", 3 * S)
        (gap,) = it.subscription_manager.gaps.ended
        assert gap.reason is GapReason.NO_LEADER
        assert gap.duration_ns(it.subscription_manager.now()) == 3 * S
        assert it.subscription_manager.now().monotonic_ns - gap.start.monotonic_ns == 3 * S


async def test_a_stream_that_is_led_here_without_a_connection_misses_what_comes(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, LOGS) as it:
        it.subscription_manager.begins("late")
        assert it.lasting() == []
        it.tell(LinkState.LOST)
        it.clock.now_ns += S
        for stream in ("late", "late", "logs"):
            it.subscription_manager.begins(stream)
        assert it.lasting() == [GapReason.RECONNECTING] * 2
        it.clock.now_ns += S
        it.tell(LinkState.RESTORED)
        now = it.subscription_manager.now()
        ended = {gap.streams: gap.duration_ns(now) for gap in it.subscription_manager.gaps.ended}
        assert ended == {("logs",): 2 * S, ("late",): S}
