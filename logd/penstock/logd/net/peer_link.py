"""Link of this node to one other: its connection, messages, requests and answers.

Raft's messages may be lost: those for a peer that is away or slow are dropped and counted, for
Raft sends what matters again. Requests are never sent twice: when the connection breaks while one
is under way, its sender is told that it is unknown whether it was done.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
from msgspec import Struct

from penstock.base.backoff import Backoff
from penstock.logd.errors import CorruptError, LogdError, RefusedError, UnavailableError
from penstock.logd.limits import PEER_FRAME_SIZE_MAX, PEER_UNSENT_BYTES_MAX
from penstock.logd.net.channel import Channel
from penstock.logd.net.peer_identity import Identity, refusal
from penstock.logd.net.peer_tls import PeerTls, dial_peer
from penstock.logd.net.peer_wire import AHEAD_MAX, Kind, decode, encode_frame, next_frame
from penstock.logd.wire.logd_peer_pb2 import Answer, Purpose, Request

_STALL_S: Final = 10.0
"""Seconds a peer may take nothing before the connection is given up."""

_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
"""Seconds before the first try to connect again, and before a later one at most: short, for a node
that returns is wanted back, and a dial within a site costs nothing."""

_REQUEST_HEADROOM: Final = 1024
"""Bytes of a frame that are not the request's body."""

Then = Callable[[bytes | LogdError], None]
"""Called with the answer, or why there is none; in the turn of the event loop in which it came."""

_log = structlog.get_logger()


class UnreachableError(UnavailableError):
    """The peer was not asked: it cannot be reached, or takes what it is sent too slowly."""


class PeerLinkCounts(Struct):
    """Counters of a link.

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
        address: Address at which the peer listens, a `HostPort`.
        rng: Spreads the tries to connect.
        tls: Between nodes.

    Attributes:
        counts: Counters for telemetry.
        problem: Why there is no connection; empty while there is one.
        unsent_bytes: Bytes that wait for the peer to receive them.
    """

    def __init__(
        self,
        me: Identity,
        peer: str,
        address: str,
        *,
        rng: random.Random,
        tls: PeerTls | None = None,
    ) -> None:
        self.peer = peer
        self.address = address
        self.unsent_bytes = 0
        self.counts = PeerLinkCounts()
        self.problem = "not dialled yet"
        self._me = me
        self._rng = rng
        self._tls = tls
        self._unsent: deque[bytes] = deque()
        self._wanted = asyncio.Event()
        self._channel: Channel | None = None
        self._asked: dict[int, Then] = {}
        self._next_id = 1

    @property
    def up(self) -> bool:
        """True if there is a connection."""
        return not self.problem

    def post(self, message: bytes) -> None:
        """Send one of Raft's messages, if that can be done now; otherwise it is dropped."""
        if not self.up or self.unsent_bytes + len(message) > PEER_UNSENT_BYTES_MAX:
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
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number = self.call(api, body, partial(_settle, answer))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            message = f"node {self.peer} has not answered {api} within {timeout_s:g} s"
            raise UnavailableError(message) from None
        finally:
            self.forget(number)

    def call(self, api: str, body: bytes, then: Then) -> int:
        """Ask for something, now; the caller bounds the time.

        Args:
            api: Name of the request.
            body: Body of the request.
            then: Called once, unless `forget` is called before.

        Returns:
            What `forget` is to be called with.

        Raises:
            RefusedError, UnreachableError: As `ask`.
        """
        if len(body) > PEER_FRAME_SIZE_MAX - _REQUEST_HEADROOM:
            raise RefusedError("TOO_LARGE", f"a request of {len(body)} bytes to {self.peer}")
        if not self.up:
            raise UnreachableError(f"node {self.peer} cannot be reached: {self.problem}")
        if self.unsent_bytes + len(body) > PEER_UNSENT_BYTES_MAX:
            raise UnreachableError(f"node {self.peer} takes what it is sent too slowly")
        number = self._next_id
        self._next_id += 1
        self._asked[number] = then
        request = Request(id=number, api=api, body=body)
        self._enqueue(encode_frame(Kind.REQUEST, request.SerializeToString()))
        return number

    def forget(self, number: int) -> None:
        """An answer is not waited for any more."""
        self._asked.pop(number, None)

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S, jitter=0.5)
        while True:
            reason = "the link is closed"
            try:
                channel = await dial_peer(
                    self._me, self.peer, self.address, Purpose.MESSAGES, self._tls
                )
                backoff.reset()
                try:
                    await self._exchange(channel)
                finally:
                    channel.close()
            except (OSError, EOFError, CorruptError, RefusedError) as error:
                reason = str(error) or "it closed the connection"
            finally:
                self._lose(reason)
            await asyncio.sleep(backoff.next_wait(self._rng.random()))

    async def _exchange(self, channel: Channel) -> None:
        """Send and receive until the connection ends."""
        self.problem = ""
        self.counts.connected += 1
        _log.info("peer_connected", peer=self.peer, address=self.address)
        self._channel = channel
        reachability = asyncio.create_task(channel.consume(self._consume, ahead_max=AHEAD_MAX))
        sending = asyncio.create_task(self._send(channel))
        try:
            done, _ = await asyncio.wait(
                {reachability, sending}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._channel = None
            reachability.cancel()
            sending.cancel()
            await asyncio.gather(reachability, sending, return_exceptions=True)
        for task in done:
            task.result()

    def _consume(self, data: bytearray) -> int:
        position = 0
        while (frame := next_frame(data, position)) is not None:
            kind, body, position = frame
            if kind is not Kind.ANSWER:
                raise CorruptError(f"node {self.peer} sends {kind.name}, which is not its turn")
            answer = decode(Answer, body)
            then = self._asked.pop(answer.id, None)
            if then is not None:  # not given up meanwhile
                then(_mapped(answer) if answer.HasField("refused") else answer.body)
        return position

    async def _send(self, channel: Channel) -> None:
        while True:
            while self._unsent:
                data = self._unsent.popleft()
                await channel.send(data, stall_s=_STALL_S)
                self.unsent_bytes -= len(data)
                self.counts.sent += 1
            self._wanted.clear()
            await self._wanted.wait()

    def _enqueue(self, data: bytes) -> None:
        """Send it now, as far as it goes; the rest in its turn."""
        if not self._unsent and self._channel is not None:
            try:
                count = self._channel.offer(data)
            except OSError:  # the next sender gets this error, too
                count = 0
            if count == len(data):
                self.counts.sent += 1
                return
            data = data[count:]
        self._unsent.append(data)
        self.unsent_bytes += len(data)
        self._wanted.set()

    def _lose(self, reason: str) -> None:
        if self.up:
            _log.warning("peer_disconnected", peer=self.peer, reason=reason)
        self.problem = reason
        self.counts.dropped += len(self._unsent)
        self._unsent.clear()
        self.unsent_bytes = 0
        asked, self._asked = self._asked, {}
        for then in asked.values():
            message = f"the connection to node {self.peer} broke before it answered: {reason}"
            then(UnavailableError(message))


def _settle(waiting: "asyncio.Future[bytes]", answer: bytes | LogdError) -> None:
    if waiting.done():
        return
    if isinstance(answer, LogdError):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)


def _mapped(answer: Answer) -> RefusedError | UnavailableError:
    if answer.refused.code == "UNAVAILABLE":
        return UnavailableError(answer.refused.message)
    return refusal(answer.refused)
