"""How a leader's node serves a follower's, as one that speaks the protocol by hand sees it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typing_extensions import override

from penstock.logd.cluster.replication import Frame
from penstock.logd.cluster.replication.sender import ReplicaFetchSettings
from penstock.logd.cluster.replication.wire import (
    RESPONSE_HEAD,
    Response,
    check_response_head,
    decode_response,
    encode_request,
)
from penstock.logd.format.frame import parse_frames
from penstock.logd.limits import REPLICATION_PARTS_MAX
from penstock.logd.net.channel import Channel
from penstock.logd.net.peer_identity import Identity
from penstock.logd.net.peer_tls import dial_peer
from penstock.logd.replication import events as ev
from penstock.logd.replication.events import Answer, Fetch, Frames, OutOfRange, Refused
from penstock.logd.replication.session import PartitionId, Request
from penstock.logd.storage import CommitLog, FileRange, LogConfig
from penstock.logd.wire.logd_peer_pb2 import Purpose
from tests.support.frames import make_frames
from tests.support.replicating_nodes import A, B, Node, meet, running
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live

KEY = PartitionId("i", 0)


class Log(CommitLog):
    """Fails to be read so many times; cannot be read before the gate is open."""

    failing = 0
    gate: threading.Event | None = None

    @override
    def read(self, offset: int, *, bytes_max: int, upto: int) -> list[FileRange]:
        if self.gate is not None:
            self.gate.wait()
        if self.failing:
            self.failing -= 1
            raise OSError(5, "Input/output error")
        return super().read(offset, bytes_max=bytes_max, upto=upto)


@dataclass
class Leading:
    """Answers each fetch with what its log has, as the core says it."""

    node: Node
    key: PartitionId
    log: CommitLog
    catching_up: bool = False
    events: list[ev.Event] = field(default_factory=list)
    wish: Fetch | None = None

    def handle(self, event: ev.Event) -> None:
        self.events.append(event)
        if isinstance(event, ev.FetchCame):
            self.wish = event.fetch
            answer = self.answer_for("b")
            assert answer is not None
            self.node.replication.send_answer("b", self.key, answer)

    def answer_for(self, node: str) -> Answer | None:
        if self.wish is None or node != "b":
            return None
        return Frames(
            boot=self.wish.boot, number=self.wish.number, incarnation="i", leader_epoch=1,
            offset=self.wish.offset, upto=self.log.end_offset, high_watermark=-1, log_start=0,
            catching_up=self.catching_up,
        )  # fmt: skip

    def take(self, answer: Answer, frames: list[Frame], *, alone: bool) -> None:
        del alone
        raise AssertionError(answer)

    def dedup_snapshot(self, leader_epoch: int) -> None:
        raise AssertionError(leader_epoch)

    def take_range(self, node: str, first: int, upto: int, frames: list[Frame]) -> None:
        raise AssertionError(node)


@dataclass
class Follower:
    """The other end, by hand."""

    channel: Channel
    requests: int = 0

    async def ask(self, *fetches: tuple[PartitionId, Fetch], taken: int = 0) -> None:
        self.requests += 1
        request = Request(1, self.requests, taken, fetches, ())
        await self.channel.send(encode_request(request), stall_s=20)

    async def hear(self) -> tuple[Response, bytes]:
        async with asyncio.timeout(60):
            lengths = check_response_head(await self.channel.receive(RESPONSE_HEAD.size))
            body, frames = [await self.channel.receive(length) for length in lengths]
        return decode_response(body, len(frames)), frames


def fetch(number: int, offset: int) -> Fetch:
    return Fetch(
        node=B, boot="x", number=number, incarnation="i", leader_epoch=1, offset=offset,
        last_epoch=0, synced=offset,
    )  # fmt: skip


@asynccontextmanager
async def serving(
    directory: Path, settings: ReplicaFetchSettings | None = None
) -> AsyncIterator[tuple[Leading, Follower]]:
    """A leader with six frames, two in a segment."""
    log = Log.open(directory / "log", LogConfig(max_segment_bytes=300))
    for frame in make_frames(0, [b"%d" % n * 40 for n in range(6)]):
        log.append([frame])
    log.sync()
    async with running(directory, A, settings=settings or ReplicaFetchSettings()) as (node,):
        meet(node, addresses={"b": "127.0.0.1:1"})
        leading = Leading(node, KEY, log)
        node.find[KEY] = leading
        async with following(node) as follower:
            yield leading, follower


@asynccontextmanager
async def following(node: Node) -> AsyncIterator[Follower]:
    me = Identity("test", "b")
    channel = await dial_peer(me, "a", node.address, Purpose.REPLICATION, None)
    yield Follower(channel)
    channel.close()


@pytest.mark.parametrize("catching_up", [False, True])
async def test_frames_come_with_the_answer_and_once_only(tmp_path: Path, catching_up: bool) -> None:
    async with serving(tmp_path) as (leading, follower):
        leading.catching_up = catching_up
        await follower.ask((KEY, fetch(1, 1)))
        response, frames = await follower.hear()
        if catching_up:
            assert not frames, "they are being read"
            response, frames = await follower.hear()
        assert parse_frames(frames) == list(leading.log.frames(1))
        leading.node.replication.touch(KEY)
        await follower.ask((KEY, fetch(2, 6)), taken=response.number)
        response, frames = await follower.hear()
        assert [part.answer.number for part in response.parts] == [2]
        assert frames == b""


@pytest.mark.parametrize("catching_up", [False, True])
async def test_a_wish_for_what_was_deleted_meanwhile_is_out_of_range(
    tmp_path: Path, catching_up: bool
) -> None:
    async with serving(tmp_path) as (leading, follower):
        leading.catching_up = catching_up
        leading.log.delete_before(4)
        await follower.ask((KEY, fetch(1, 1)))
        answer: Answer | None = None
        while not isinstance(answer, OutOfRange):
            response, frames = await follower.hear()
            answer = response.parts[0].answer
            assert frames == b""
        assert (answer.log_start, answer.number) == (4, 1)


@pytest.mark.parametrize("catching_up", [False, True])
async def test_frames_that_cannot_be_read_are_tried_again(
    tmp_path: Path, catching_up: bool
) -> None:
    async with serving(tmp_path, ReplicaFetchSettings(held_s=0.05)) as (leading, follower):
        leading.catching_up = catching_up
        assert isinstance(leading.log, Log)
        leading.log.failing = 2
        await follower.ask((KEY, fetch(1, 0)))
        frames = b""
        while not frames:
            _, frames = await follower.hear()
        assert parse_frames(frames) == list(leading.log.frames())
        assert leading.node.replication.fed["b"].damaged == 2


async def test_what_was_read_for_a_wish_is_not_sent_for_the_next_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (leading, follower):
        leading.catching_up = True
        assert isinstance(leading.log, Log)
        leading.log.gate = threading.Event()
        try:
            for number, offset in ((1, 1), (2, 4)):
                await follower.ask((KEY, fetch(number, offset)))
                assert (await follower.hear())[1] == b""
        finally:
            leading.log.gate.set()
        _, frames = await follower.hear()
        if not frames:
            _, frames = await follower.hear()
        assert parse_frames(frames) == list(leading.log.frames(4))


async def test_more_partitions_than_a_response_holds_come_in_several(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, follower):
        count = REPLICATION_PARTS_MAX + 10
        await follower.ask(*((PartitionId("gone", n), fetch(1, 0)) for n in range(count)))
        first, _ = await follower.hear()
        second, _ = await follower.hear()
        assert (len(first.parts), len(second.parts)) == (REPLICATION_PARTS_MAX, 10)
        assert all(isinstance(part.answer, Refused) for part in first.parts + second.parts)


async def test_a_node_that_dials_anew_is_served_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as (leading, old):
        await old.ask((KEY, fetch(1, 0)))
        await old.hear()
        async with following(leading.node) as new:
            with pytest.raises(EOFError):
                await old.hear()
            await new.ask((KEY, fetch(2, 0)))
            assert (await new.hear())[1]
        await wait_until_async(lambda: not leading.node.replication.feeding)
        assert leading.node.replication.fed["b"].broken == 0


async def test_a_follower_that_has_not_taken_enough_gets_no_more(tmp_path: Path) -> None:
    """What it says it took lets the next ones out."""
    async with serving(tmp_path) as (leading, follower):
        for number in range(1, 6):
            await follower.ask((KEY, fetch(number, 6)))
            await wait_until_async(lambda n=number: len(leading.events) == n)  # type: ignore[misc]
        numbers = [(await follower.hear())[0].number for _ in range(4)]
        assert leading.node.replication.fed["b"].responses == 4
        await follower.ask(taken=4)
        numbers.append((await follower.hear())[0].number)
        assert numbers == [1, 2, 3, 4, 5]
