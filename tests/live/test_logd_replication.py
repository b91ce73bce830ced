"""Replication between nodes over real sockets: what flows, what is lost, what comes again."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.logd.cluster.replication import ReplicaFetchSettings
from penstock.logd.cluster.replication.wire import REQUEST_HEAD
from penstock.logd.limits import PEER_FRAME_SIZE_MAX, REPLICATION_REQUEST_SIZE_MAX
from penstock.logd.net.peer_identity import Identity
from penstock.logd.net.peer_tls import dial_peer
from penstock.logd.replication import events as ev
from penstock.logd.replication.events import Diverged, Frames, NodeId
from penstock.logd.security.tls import CertificateFiles
from penstock.logd.storage import CommitLog
from penstock.logd.wire.logd_peer_pb2 import Purpose
from penstock.logd.wire.logd_replication_pb2 import Request
from tests.support.certificates import Authority
from tests.support.relay import Relay, relaying
from tests.support.replicating_nodes import A, B, C, Held, Node, meet, running, view
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live


def contents(log: CommitLog) -> list[object]:
    return list(log.frames())


async def committed(held: Sequence[Held], offset: int) -> None:
    await wait_until_async(lambda: all(each.high_watermark == offset for each in held))


@asynccontextmanager
async def following(
    directory: Path, *names: NodeId, tls: CertificateFiles | None = None
) -> AsyncIterator[tuple[list[Node], list[Held]]]:
    """The first one leads, the others follow."""
    async with running(directory, *names, tls=tls) as nodes:
        held = [node.hold() for node in nodes]
        for each in held:
            each.lead_or_follow(view(replicas=names))
        yield nodes, held


@asynccontextmanager
async def relayed(
    directory: Path, *names: NodeId
) -> AsyncIterator[tuple[list[Node], list[Held], Relay]]:
    """As `following`; the second node reaches the first through a relay."""
    async with running(directory, *names) as nodes, relaying(nodes[0].address) as relay:
        meet(nodes[1], addresses={nodes[0].name: relay.address})
        held = [node.hold() for node in nodes]
        for each in held:
            each.lead_or_follow(view(replicas=names))
        yield nodes, held, relay


async def test_what_the_leader_writes_comes_to_every_follower_and_is_committed(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, A, B, C) as (nodes, held):
        for number in range(50):
            held[0].publish(b"%d" % number)
        await committed(held, 49)
        written = contents(held[0].log)
        assert [contents(each.log) for each in held[1:]] == [written, written]
        assert nodes[0].replication.fed["b"].frames == 50
        fetched = nodes[1].replication.fetched["a"]
        assert (fetched.frames, fetched.sessions, fetched.broken) == (50, 1, 0)
        assert nodes[1].replication.problems() == {}


async def test_the_same_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    made = authority.sign("node", "IP:127.0.0.1")
    tls = CertificateFiles(ca_file=authority.cert, cert_file=made.cert, key_file=made.key)
    async with following(tmp_path, A, B, tls=tls) as (_, held):
        held[0].publish(b"small")
        held[0].publish(*[bytes(300_000)] * 8)
        await committed(held, 8)
        assert contents(held[1].log) == contents(held[0].log)


async def test_many_partitions_share_one_connection(tmp_path: Path) -> None:
    async with running(tmp_path, A, B) as nodes:
        pairs = [[node.hold(number) for node in nodes] for number in range(30)]
        for pair in pairs:
            for each in pair:
                each.lead_or_follow(view())
        for number in range(5):
            for pair in pairs:
                pair[0].publish(b"%d" % number)
        for pair in pairs:
            await committed(pair, 4)
        assert nodes[1].replication.fetched["a"].sessions == 1


async def test_a_broken_connection_is_told_and_another_one_goes_on(tmp_path: Path) -> None:
    async with relayed(tmp_path, A, B) as (nodes, held, relay):
        for number in range(4):
            held[0].publish(b"%d" % number)
            await committed(held, number)
            relay.cut()
            await wait_until_async(
                lambda n=number: held[1].events.count(ev.AnswerLost()) > n  # type: ignore[misc]
            )
        held[0].publish(b"last")
        await committed(held, 4)
        assert contents(held[1].log) == contents(held[0].log)
        assert nodes[1].replication.fetched["a"].broken == 4
        assert nodes[0].replication.fed["b"].sessions == 5


async def test_a_follower_that_takes_nothing_holds_up_no_other(tmp_path: Path) -> None:
    async with relayed(tmp_path, A, B, C) as (_, held, relay):
        held[0].publish(b"first")
        await committed(held, 0)
        relay.flowing.clear()
        for _ in range(40):  # more than the sockets between hold
            held[0].publish(*[bytes(1024 * 1024)] * 2)
            end = held[0].replica.log.submitted
            await wait_until_async(lambda end=end: held[2].log.end_offset == end)  # type: ignore[misc]
        assert held[1].log.end_offset < 10
        relay.flowing.set()
        await committed(held, 80)
        assert contents(held[1].log) == contents(held[0].log)


async def test_frames_damaged_on_the_way_are_fetched_again(tmp_path: Path) -> None:
    async with relayed(tmp_path, A, B) as (nodes, held, relay):
        held[0].publish(b"first")
        await committed(held, 0)
        relay.damage_from = 8_000
        held[0].publish(bytes(10_000))
        await committed(held, 1)
        assert contents(held[1].log) == contents(held[0].log)
        assert nodes[1].replication.fetched["a"].broken == 1


async def test_frames_damaged_on_the_leaders_disk_are_told_and_those_before_are_sent(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, A, B) as nodes:
        leading = nodes[0].hold()
        alone = replace(view(), isr=frozenset({A}), min_isr=1)
        leading.lead_or_follow(alone)
        leading.publish(*[b"%d" % number * 100 for number in range(6)])
        await committed([leading], 5)
        part = leading.log.read(3, bytes_max=1, upto=6)[0]
        path = next((tmp_path / "a0").glob("*.log"))
        with path.open("r+b") as file:
            file.seek(part.position + 100)
            file.write(b"!")
        follower = nodes[1].hold()
        follower.lead_or_follow(alone)
        await wait_until_async(lambda: ev.RangeCorrupt(3, 4) in leading.events)
        await wait_until_async(lambda: follower.log.end_offset == 3)
        assert contents(follower.log) == list(leading.log.frames(upto=3))
        assert nodes[0].replication.fed["b"].damaged >= 1


async def test_one_that_catches_up_is_fed_at_its_pace(tmp_path: Path) -> None:
    """The bucket begins full of a tenth of a second's worth; the rest has to wait for timers."""
    settings = ReplicaFetchSettings(max_catch_up_bytes_per_s=200_000)
    async with running(tmp_path, A, B, settings=settings) as nodes:
        leading, follower = (node.hold() for node in nodes)
        alone = replace(view(), isr=frozenset({A}), min_isr=1)
        leading.lead_or_follow(alone)
        leading.publish(*[bytes(5_000)] * 20)
        await committed([leading], 19)
        follower.lead_or_follow(alone)
        await wait_until_async(lambda: follower.log.end_offset == 20)
        assert contents(follower.log) == contents(leading.log)
        assert nodes[0].replication.fed["b"].responses > 10


async def test_several_partitions_catch_up_in_turn(tmp_path: Path) -> None:
    settings = ReplicaFetchSettings(response_bytes_max=20_000)
    async with running(tmp_path, A, B, settings=settings) as nodes:
        pairs = [[node.hold(number) for node in nodes] for number in range(5)]
        alone = replace(view(), isr=frozenset({A}), min_isr=1)
        for leading, _ in pairs:
            leading.lead_or_follow(alone)
            leading.publish(*[b"%d" % n * 2_500 for n in range(10, 40)])
            await committed([leading], 29)
        for _, follower in pairs:
            follower.lead_or_follow(alone)
        for leading, follower in pairs:
            await wait_until_async(lambda f=follower: f.log.end_offset == 30)  # type: ignore[misc]
            assert contents(follower.log) == contents(leading.log)
        answers = [e.answer for e in pairs[0][1].events if isinstance(e, ev.AnswerCame)]
        assert any(isinstance(answer, Frames) and answer.catching_up for answer in answers)


async def test_no_more_is_received_than_the_disk_takes(
    tmp_path: Path,
) -> None:
    settings = ReplicaFetchSettings(response_bytes_max=1, taken_bytes_max=25_000, room_s=60)
    async with running(tmp_path, A, B, settings=settings) as nodes:
        pairs = [[node.hold(number) for node in nodes] for number in range(8)]
        free = threading.Event()
        for leading, follower in pairs:
            leading.lead_or_follow(view())
            follower.lead_or_follow(view())
            follower.block_writes(free)
            leading.publish(bytes(10_000))
        try:
            counts = nodes[1].replication.fetched["a"]
            await wait_until_async(lambda: counts.waits)
            assert counts.frames == 3
        finally:
            free.set()
        for pair in pairs:
            await committed(pair, 0)


async def test_logs_that_have_diverged_are_brought_together(tmp_path: Path) -> None:
    async with running(tmp_path, A, B) as nodes:
        held = [node.hold() for node in nodes]
        held[1].lead_or_follow(replace(view(B), isr=frozenset({B}), min_isr=2))
        held[1].publish(b"never committed")
        await wait_until_async(lambda: held[1].replica.log.synced == 1)
        for each in held:
            each.lead_or_follow(view(A, epoch=2))
        held[0].publish(b"another")
        await committed(held, 0)
        assert contents(held[1].log) == contents(held[0].log)
        answers = [e.answer for e in held[1].events if isinstance(e, ev.AnswerCame)]
        assert any(isinstance(answer, Diverged) for answer in answers)


async def test_there_is_a_connection_only_while_something_is_fetched(tmp_path: Path) -> None:
    async with following(tmp_path, A, B) as (nodes, held):
        held[0].publish(b"first")
        await committed(held, 0)
        replication = nodes[1].replication
        replication.forget("a", held[1].key)
        await wait_until_async(lambda: not nodes[0].replication.feeding)
        held[0].publish(b"second")
        held[1].handle(ev.AnswerLost())
        await committed(held, 1)
        assert replication.fetched["a"].sessions == 2
        assert replication.fetched["a"].broken == 0


async def test_a_node_that_is_not_named_any_more_is_neither_fed_nor_fetched_from(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, A, B) as (nodes, held):
        held[0].publish(b"first")
        await committed(held, 0)
        meet(nodes[0])
        await wait_until_async(lambda: "closed" in str(nodes[1].replication.problems()))
        meet(nodes[1])
        held[0].publish(b"second")
        await wait_until_async(lambda: not nodes[0].replication.feeding)
        assert held[1].log.end_offset == 1
        meet(*nodes)
        await committed(held, 1)


# Ranges.


async def test_a_range_is_had_in_as_many_parts_as_it_takes(tmp_path: Path) -> None:
    async with following(tmp_path, A, B) as (nodes, held):
        half = bytes(PEER_FRAME_SIZE_MAX // 2)
        held[0].publish(b"0", b"1", b"2", half, half, bytes(3 * PEER_FRAME_SIZE_MAX))
        await committed(held, 5)
        await wait_until_async(lambda: all(link.up for link in nodes[1].mesh.links()))
        frames = contents(held[0].log)
        for first, upto, had in ((1, 3, 3), (3, 5, 4), (4, 9, 5), (5, 6, 6), (1, 6, 4)):
            nodes[1].replication.ask_range("a", held[1].key, first, upto)
            await wait_until_async(lambda: held[1].ranges)
            assert held[1].ranges.pop() == ("a", first, had, frames[first:had])
        nodes[1].replication.ask_range("a", held[1].key, 6, 9)
        await wait_until_async(lambda: held[1].ranges)
        assert held[1].ranges.pop() == ("a", 6, 9, [])
        nodes[1].replication.ask_range("nobody", held[1].key, 1, 2)
        await wait_until_async(lambda: held[1].ranges)
        assert held[1].ranges.pop() == ("nobody", 1, 2, [])
        assert [link.counts.connected for link in nodes[1].mesh.links()] == [1]


# Peers that are not what they should be.


SESSION = Request(session=7, number=1).SerializeToString()
RUBBISH = [
    REQUEST_HEAD.pack(REPLICATION_REQUEST_SIZE_MAX + 1),
    REQUEST_HEAD.pack(3) + b"\xff\xff\xff",
    (REQUEST_HEAD.pack(len(SESSION)) + SESSION) * 2,
    REQUEST_HEAD.pack(2) + b"\x18\x05",
]


@pytest.mark.parametrize("said", RUBBISH, ids=["too long", "no request", "again", "taken what?"])
async def test_a_node_that_says_what_cannot_be_is_cut_off(tmp_path: Path, said: bytes) -> None:
    async with following(tmp_path, A, B) as (nodes, held):
        meet(nodes[0], nodes[1], addresses={"c": "127.0.0.1:1"})
        me = Identity("test", "c")
        channel = await dial_peer(me, "a", nodes[0].address, Purpose.REPLICATION, None)
        await channel.send(said, stall_s=20)
        async with asyncio.timeout(60):
            with contextlib.suppress(EOFError, ConnectionResetError):
                await channel.receive(1000)
        channel.close()
        assert nodes[0].replication.fed["c"].broken == 1
        held[0].publish(b"goes on")
        await committed(held, 0)


async def test_a_partition_that_is_not_here_is_refused_and_asked_for_again(tmp_path: Path) -> None:
    async with running(tmp_path, A, B) as nodes:
        follower = nodes[1].hold()
        follower.lead_or_follow(view())
        await wait_until_async(
            lambda: sum(isinstance(event, ev.AnswerCame) for event in follower.events) > 1
        )
        leading = nodes[0].hold()
        leading.lead_or_follow(view())
        leading.publish(b"here")
        await committed([leading, follower], 0)
