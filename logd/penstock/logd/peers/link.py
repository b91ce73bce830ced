"""What this node says to one other: keeps a connection to it, sends messages, asks and hears.

Raft's messages may be lost: those for a peer that is away or slow are dropped and counted, for
Raft sends what matters again. Requests are never sent twice: when the connection breaks while one
is under way, its sender is told that nobody knows whether it was done.
"""

import asyncio
import random
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Final

import structlog

from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.logd.limits import PEER_FRAME_SIZE_MAX, PEER_UNSENT_BYTES_MAX
from penstock.logd.peers.dialing import dial_peer
from penstock.logd.peers.identity import Identity, refusal
from penstock.logd.peers.wire import Kind, decode, encode_frame, receive_frame
from penstock.logd.tcp.channel import Channel
from penstock.logd.wire.logd_peer_pb2 import Answer, Purpose, Request

_STALL_S: Final = 10.0
"""Seconds a peer may take nothing before the connection is given up."""

_PAUSE_S: Final = (0.05, 0.5)
"""Seconds before the first try to connect again, and before a later one at most: short, for a node
that returns is wanted back, and a dial within a site costs nothing."""

_REQUEST_HEADROOM: Final = 1024
"""Bytes of a frame that are not the request's body."""

_log = structlog.get_logger()


class UnreachableError(UnavailableError):
    """The peer was not asked: it cannot be reached, or takes what it is sent too slowly."""


@dataclass(slots=True)
class PeerLinkCounts:
    """What a link has done.

    Attributes:
        dropped: Raft's messages that were not sent, because the peer was away or slow.
    """

    connected: int = 0
    sent: int = 0
    dropped: int = 0


class PeerLink:
    """Says things to one peer, as long as it runs. Used on the event loop.

    Args:
        me: This node.
        peer: The other's name.
        address: Where it listens, a `HostPort`.
        rng: Spreads the tries to connect.
        tls: Of this node as a client.

    Attributes:
        counts: For telemetry.
        problem: Why there is no connection; empty while there is one.
    """

    def __init__(
        self,
        me: Identity,
        peer: str,
        address: str,
        *,
        rng: random.Random,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.peer = peer
        self.address = address
        self.counts = PeerLinkCounts()
        self.problem = "not dialled yet"
        self._me = me
        self._rng = rng
        self._tls = tls
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._wanted = asyncio.Event()
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._next_id = 1

    @property
    def up(self) -> bool:
        """Whether there is a connection."""
        return not self.problem

    def post(self, message: bytes) -> None:
        """Send one of Raft's messages, if that can be done now; otherwise it is dropped."""
        if not self.up or self._unsent_bytes + len(message) > PEER_UNSENT_BYTES_MAX:
            self.counts.dropped += 1
            return
        self._enqueue(encode_frame(Kind.RAFT, message))

    async def ask(self, api: str, body: bytes, *, timeout_s: float) -> bytes:
        """Ask for something and wait for the answer.

        Raises:
            RefusedError: The peer says no; `TOO_LARGE`: it was not asked.
            UnreachableError: It was not asked.
            UnavailableError: There is no answer; the peer may have done it.
        """
        if len(body) > PEER_FRAME_SIZE_MAX - _REQUEST_HEADROOM:
            raise RefusedError("TOO_LARGE", f"a request of {len(body)} bytes to {self.peer}")
        if not self.up:
            raise UnreachableError(f"node {self.peer} cannot be reached: {self.problem}")
        if self._unsent_bytes + len(body) > PEER_UNSENT_BYTES_MAX:
            raise UnreachableError(f"node {self.peer} takes what it is sent too slowly")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number = self._next_id
        self._next_id += 1
        self._asked[number] = answer
        request = Request(id=number, api=api, body=body)
        self._enqueue(encode_frame(Kind.REQUEST, request.SerializeToString()))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            message = f"node {self.peer} has not answered {api} within {timeout_s:g} s"
            raise UnavailableError(message) from None
        finally:
            del self._asked[number]

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        pause_s, longest_s = _PAUSE_S
        while True:
            reason = "the link is closed"
            try:
                channel = await dial_peer(
                    self._me, self.peer, self.address, Purpose.MESSAGES, self._tls
                )
                pause_s = _PAUSE_S[0]
                try:
                    await self._talk(channel)
                finally:
                    channel.close()
            except (OSError, EOFError, CorruptError, RefusedError) as error:
                reason = str(error) or "it closed the connection"
            finally:
                self._lose(reason)
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, longest_s)

    async def _talk(self, channel: Channel) -> None:
        """Send and hear until the connection ends."""
        self.problem = ""
        self.counts.connected += 1
        _log.info("peer connected", peer=self.peer, address=self.address)
        hearing = asyncio.create_task(self._hear(channel))
        sending = asyncio.create_task(self._send(channel))
        try:
            done, _ = await asyncio.wait({hearing, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hearing.cancel()
            sending.cancel()
            await asyncio.gather(hearing, sending, return_exceptions=True)
        for task in done:
            task.result()

    async def _hear(self, channel: Channel) -> None:
        while True:
            kind, body = await receive_frame(channel)
            if kind is not Kind.ANSWER:
                raise CorruptError(f"node {self.peer} sends {kind.name}, which is not its turn")
            answer = decode(Answer, body)
            waiting = self._asked.get(answer.id)
            if waiting is None or waiting.done():  # given up meanwhile
                continue
            if answer.HasField("refused"):
                waiting.set_exception(_mapped(answer))
            else:
                waiting.set_result(answer.body)

    async def _send(self, channel: Channel) -> None:
        while True:
            while self._unsent:
                data = self._unsent.popleft()
                await channel.send(data, stall_s=_STALL_S)
                self._unsent_bytes -= len(data)
                self.counts.sent += 1
            self._wanted.clear()
            await self._wanted.wait()

    def _enqueue(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._wanted.set()

    def _lose(self, reason: str) -> None:
        if self.up:
            _log.warning("peer lost", peer=self.peer, reason=reason)
        self.problem = reason
        self.counts.dropped += len(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        for waiting in self._asked.values():
            if not waiting.done():
                message = f"the connection to node {self.peer} broke before it answered: {reason}"
                waiting.set_exception(UnavailableError(message))


def _mapped(answer: Answer) -> RefusedError | UnavailableError:
    if answer.refused.code == "UNAVAILABLE":
        return UnavailableError(answer.refused.message)
    return refusal(answer.refused)
