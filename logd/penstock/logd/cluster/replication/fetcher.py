"""The follower's end of a fetch session: what this node fetches from one leader's node.

There is a connection while anything is fetched from there. When it breaks, every partition is told
that its fetch may be lost, and the next connection begins another session with everything.
"""

import asyncio
import random
from collections import deque
from functools import partial
from typing import Final

import structlog

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.cluster.replication.sender import FetchCounts, Find, ReplicaFetchSettings
from penstock.logd.cluster.replication.wire import (
    RESPONSE_HEAD,
    STILL_HERE,
    Response,
    check_response_head,
    decode_response,
    encode_request,
)
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.format.frame import parse_frames
from penstock.logd.limits import REPLICATION_FRAMES_SIZE_MAX, REPLICATION_HEAD_SIZE_MAX
from penstock.logd.net.channel import Channel
from penstock.logd.net.peer_identity import Identity
from penstock.logd.net.peer_tls import PeerTls, dial_peer
from penstock.logd.partition.acks import LoopDispatcher
from penstock.logd.replication.events import AnswerLost, Fetch
from penstock.logd.replication.session import FetchSessionClient, PartitionId
from penstock.logd.wire.logd_peer_pb2 import Purpose

_STALL_S: Final = 10.0
"""Seconds a leader's node may take nothing before the connection is given up."""

_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
"""Seconds before the first try to connect again, and before a later one at most: records that wait
for an ack wait for this."""

_STILL_HERE_S: Final = 1.0
"""Seconds after which a node says that it is there, whatever else it says: a peer that was cut off
leaves that unacknowledged, and the connection ends (`penstock.logd.net.peer_wire.UNACKED_S`)."""

_AHEAD_MAX: Final = RESPONSE_HEAD.size + REPLICATION_HEAD_SIZE_MAX + REPLICATION_FRAMES_SIZE_MAX
"""Bytes of a response that may have come and not be whole: the greatest one."""

_log = structlog.get_logger()


class Fetcher:
    """Fetches from one node for as long as `run` runs. Used on the event loop.

    Args:
        me: This node.
        peer: The leader's node.
        address: Address of the leader's node; empty: not known yet.
        find: The replicas here.
        dispatcher: Knows when the turn of the event loop ends.
        clock: Dates, which sessions are numbered by.
        rng: Spreads the tries to connect.
        tls: Between nodes.
        settings: Limits of received frames.

    Attributes:
        counts: Counters for telemetry.
        problem: Why there is no connection; empty while there is one, or none is needed.
    """

    def __init__(  # noqa: PLR0913 - from whom, for whom, and how
        self,
        me: Identity,
        peer: str,
        find: Find,
        dispatcher: LoopDispatcher,
        *,
        clock: Clock,
        rng: random.Random,
        tls: PeerTls | None,
        settings: ReplicaFetchSettings,
    ) -> None:
        self.counts = FetchCounts()
        self.problem = ""
        self._me = me
        self._peer = peer
        self._find = find
        self._dispatcher = dispatcher
        self._clock = clock
        self._rng = rng
        self._tls = tls
        self._settings = settings
        self._address = ""
        self._session = clock.unix_ns()
        self._asking = FetchSessionClient(self._session)
        self._channel: Channel | None = None
        self._send_planned = False
        self._unsent: deque[memoryview] = deque()
        self._failure: OSError | None = None
        self._in_hand: dict[PartitionId, int] = {}
        self._room: asyncio.TimerHandle | None = None
        self._wanted = asyncio.Event()
        self._moved = asyncio.Event()

    def fetch(self, key: PartitionId, fetch: Fetch) -> None:
        """Say what a replica wants or reports; it leaves at the end of this turn."""
        if fetch.wants:  # what it was given before is in its log
            self._let_go(key)
        self._asking.update(key, fetch)
        self._plan_send()

    def forget(self, key: PartitionId) -> None:
        """The partition is not fetched from there any more."""
        self._let_go(key)
        self._asking.forget(key)
        self._wanted.set()

    def move(self, address: str) -> None:
        """The node is to be found there; empty: nowhere. A connection to elsewhere ends."""
        if address != self._address:
            self._address = address
            self._moved.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S, jitter=0.5)
        while True:
            await self._needed()
            self._moved.clear()
            before = self.counts.responses
            self.problem = await self._connect_and_exchange()
            if not self.problem:
                continue
            if self.counts.responses > before:  # one that refuses is not pressed
                backoff.reset()
            await asyncio.sleep(backoff.next_wait(self._rng.random()))

    async def _needed(self) -> None:
        """Wait until something is to be fetched, and it is known from where."""
        while not self._asking or not self._address:
            wake = self._moved if self._asking else self._wanted
            wake.clear()
            await wake.wait()

    async def _connect_and_exchange(self) -> str:
        """Fetch over one connection; returns why it ended, or nothing when it is not needed."""
        connected = False
        try:
            channel = await dial_peer(
                self._me, self._peer, self._address, Purpose.REPLICATION, self._tls
            )
            connected = True
            self.counts.sessions += 1
            self.problem = ""
            _log.info(
                "fetch_session_started", role="follower", peer=self._peer, address=self._address
            )
            try:
                await self._exchange(channel)
            finally:
                channel.close()
        except EOFError:
            reason = "it closed the connection"
        except (OSError, CorruptError, RefusedError) as error:
            reason = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - a replica failed; the others go on
            _log.exception("fetch_session_failed", role="follower", peer=self._peer)
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = ""
        if connected:
            self._lose(reason)
        return reason

    async def _exchange(self, channel: Channel) -> None:
        """Send and receive until the connection ends, or is not needed."""
        self._channel = channel
        tasks = [
            asyncio.create_task(channel.consume(self._consume, ahead_max=_AHEAD_MAX)),
            asyncio.create_task(self._send(channel)),
            asyncio.create_task(self._moved.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._channel, self._failure = None, None
            self._unsent.clear()
            self._make_room()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    # To the leader's node.

    def _plan_send(self) -> None:
        """There may be something to send: at the end of this turn, so that it is sent together."""
        if self._channel is None:
            self._wanted.set()
        elif not self._send_planned:
            self._send_planned = True
            self._dispatcher.at_end(self._send_due)

    def _send_due(self) -> None:
        """Send what there is to send, as far as the connection takes it at once."""
        self._send_planned = False
        if self._channel is None or self._unsent:  # what is being sent goes on from here
            return
        try:
            while not self._unsent and (request := self._asking.request()) is not None:
                self.counts.requests += 1
                data = encode_request(request)
                count = self._channel.offer(data)
                if count < len(data):
                    self._unsent.append(memoryview(data)[count:])
        except OSError as error:  # raised where the connection is served
            self._failure = error
        if self._unsent or self._failure is not None:
            self._wanted.set()

    async def _send(self, channel: Channel) -> None:
        """Send what the connection did not take at once, and that this node is still there."""
        self._send_due()
        while self._asking:
            try:
                async with asyncio.timeout(_STILL_HERE_S):
                    await self._wanted.wait()
            except TimeoutError:
                await channel.send(STILL_HERE, stall_s=_STALL_S)
            self._wanted.clear()
            if self._failure is not None:
                raise self._failure
            while self._unsent:
                await channel.send(self._unsent[0], stall_s=_STALL_S)
                self._unsent.popleft()
            self._send_due()

    # From the leader's node.

    def _consume(self, data: bytearray) -> int:
        return self._dispatcher.run(partial(self._take_responses, data))

    def _take_responses(self, data: bytearray) -> int:
        """Take the whole responses that have come; returns how many bytes they have."""
        position = 0
        while (begin := position + RESPONSE_HEAD.size) <= len(data):
            length, frames_length = check_response_head(bytes(data[position:begin]))
            end = begin + length + frames_length
            if end > len(data) or not self._has_room():
                break
            response = decode_response(bytes(data[begin : begin + length]), frames_length)
            self._take(response, memoryview(data)[begin + length : end])
            position = end
        return position

    def _take(self, response: Response, data: memoryview) -> None:
        """Hand a response's answers on, once all of it has turned out to be right."""
        self._asking.took(response.session, response.number)
        taken = []
        position = 0
        for part in response.parts:
            end = position + part.frames_length
            taken.append(parse_frames(data[position:end], where=f"node {self._peer}"))
            position = end
        self.counts.responses += 1
        self.counts.frames += sum(map(len, taken))
        self.counts.frames_bytes += len(data)
        self._plan_send()
        alone = sum(map(bool, taken)) == 1
        for part, frames in zip(response.parts, taken, strict=True):
            hosted = self._find(part.key)
            if hosted is not None:
                if frames:
                    self._in_hand[part.key] = part.frames_length
                hosted.take(part.answer, frames, alone=alone)

    def _has_room(self) -> bool:
        """Return whether the disks here have taken enough of what came; else wait for that."""
        if sum(self._in_hand.values()) <= self._settings.taken_bytes_max:
            return True
        if self._room is None:
            self.counts.waits += 1
            loop = asyncio.get_running_loop()
            self._room = loop.call_later(self._settings.room_s, self._give_up_waiting)
        return False

    def _give_up_waiting(self) -> None:
        """Some replicas have failed; the others are not to wait for them."""
        _log.warning(
            "fetched_records_write_timeout", peer=self._peer, timeout_s=self._settings.room_s
        )
        self._in_hand.clear()
        self._make_room()

    def _make_room(self) -> None:
        """Receive again, in a turn of the event loop in which nothing is being received."""
        if self._room is not None:
            self._room.cancel()
            self._room = None
            if self._channel is not None:
                asyncio.get_running_loop().call_soon(self._channel.again)

    def _let_go(self, key: PartitionId) -> None:
        self._in_hand.pop(key, None)
        if self._room is not None and self._has_room():
            self._make_room()

    def _lose(self, reason: str) -> None:
        """The connection has ended; fetches that were in flight may be lost."""
        self._in_hand.clear()
        self._session = max(self._session + 1, self._clock.unix_ns())
        keys = self._asking.restart(self._session)
        if keys and reason:
            self.counts.broken += 1
            _log.warning(
                "fetch_session_interrupted", role="follower", peer=self._peer, reason=reason
            )
        for key in keys:
            hosted = self._find(key)
            if hosted is not None:
                hosted.handle(AnswerLost())
