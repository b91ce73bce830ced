"""The endpoint on which the other nodes of a cluster dial this one."""

import asyncio
from collections import deque
from typing import Final, Protocol

import structlog
from msgspec import Struct

from penstock.base.sockets import connections_within
from penstock.logd.errors import CorruptError, LogdError, RefusedError
from penstock.logd.limits import (
    PEER_HELLO_SIZE_MAX,
    PEER_OPEN_FILES_PART,
    PEER_REQUESTS_MAX,
    PEER_UNAUTHENTICATED_MAX,
)
from penstock.logd.net.channel import Channel
from penstock.logd.net.listener import Listener
from penstock.logd.net.peer_identity import Identity, check_hello, encode_refusal, welcome
from penstock.logd.net.peer_tls import PeerTls, check_named
from penstock.logd.net.peer_wire import (
    AHEAD_MAX,
    UNACKED_S,
    Kind,
    decode,
    encode_frame,
    next_frame,
    receive_frame,
)
from penstock.logd.wire.logd_peer_pb2 import Answer, Hello, Purpose, Refused, Request

_HELLO_S: Final = 5.0
"""Seconds a dialling node has to say its name."""

_STALL_S: Final = 10.0
"""Seconds a node may take nothing before its connection is closed."""

_log = structlog.get_logger()


class Service(Protocol):
    """Handlers of other nodes' messages."""

    def on_raft(self, node: str, message: bytes) -> None:
        """Take one of Raft's messages."""
        ...

    def answer_at_once(self, node: str, api: str, body: bytes) -> bytes | None:
        """Do what a node asks that nothing has to be waited for; None: ask `answer`.

        Raises:
            LogdError: Not now, or not at all.
        """
        ...

    async def answer(self, node: str, api: str, body: bytes) -> bytes:
        """Do what a node asks.

        Raises:
            LogdError: Not now, or not at all.
        """
        ...

    async def replicate(self, node: str, channel: Channel) -> None:
        """Serve a connection for fetches until it ends."""
        ...


class PeerServerCounts(Struct):
    """Counters of the endpoint.

    Attributes:
        refused: Connections that were refused.
        broken: Connections that ended because they spoke another protocol.
    """

    refused: int = 0
    broken: int = 0


class PeerServer:
    """Answers other nodes.

    Args:
        me: This node.
        service: Does what others ask.
        tls: TLS; only nodes with a certificate of the cluster's authority are accepted.
        max_unauthenticated: Connections that have not said yet which node's they are.

    Attributes:
        listener: Accepts the connections, from `listen` on.
        counts: Counters for telemetry.
    """

    def __init__(
        self,
        me: Identity,
        service: Service,
        tls: PeerTls | None = None,
        *,
        max_unauthenticated: int = PEER_UNAUTHENTICATED_MAX,
    ) -> None:
        self.counts = PeerServerCounts()
        self._me = me
        self._service = service
        self._tls = tls
        self.listener = Listener(
            self._serve,
            name="peer endpoint",
            key="peer",
            tls=None if tls is None else tls.server,
            unacked_s=UNACKED_S,
            max_unauthenticated=connections_within(max_unauthenticated, part=PEER_OPEN_FILES_PART),
        )

    async def _serve(self, channel: Channel) -> None:
        try:
            hello = await self._shake_hands(channel)
            if hello is None:
                return
            self.listener.mark_authenticated()
            if hello.purpose == Purpose.REPLICATION:
                await self._service.replicate(hello.node, channel)
            else:
                await _Conversation(channel, hello.node, self._service).hold()
        except CorruptError as error:
            self.counts.broken += 1
            _log.warning("protocol_error", endpoint="peer", error=str(error))

    async def _shake_hands(self, channel: Channel) -> Hello | None:
        async with asyncio.timeout(_HELLO_S):
            kind, body = await receive_frame(channel, size_max=PEER_HELLO_SIZE_MAX)
        try:
            hello = check_hello(self._me, kind, body)
            check_named(self._tls, channel, hello.node)
        except RefusedError as error:
            self.counts.refused += 1
            _log.warning("peer_refused", code=error.code, reason=str(error))
            refused = encode_frame(Kind.REFUSED, encode_refusal(error).SerializeToString())
            await channel.send(refused, stall_s=_STALL_S)
            return None
        await channel.send(encode_frame(Kind.WELCOME, welcome(hello)), stall_s=_STALL_S)
        return hello


class _Conversation:
    """One connection with messages and requests; requests are answered as they become ready."""

    def __init__(self, channel: Channel, node: str, service: Service) -> None:
        self._channel = channel
        self._node = node
        self._service = service
        self._group: asyncio.TaskGroup | None = None
        self._asked = 0
        self._unsent: deque[bytes] = deque()

    async def hold(self) -> None:
        """Take what comes until the connection ends.

        Raises:
            CorruptError: The peer does not speak the protocol.
        """
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._channel.consume(self._take, ahead_max=AHEAD_MAX)
        except* (OSError, EOFError):
            pass
        except* CorruptError as errors:
            raise errors.exceptions[0] from None

    def _take(self, data: bytearray) -> int:
        position = 0
        while (frame := next_frame(data, position)) is not None:
            kind, body, end = frame
            match kind:
                case Kind.RAFT:
                    self._service.on_raft(self._node, body)
                case Kind.REQUEST if self._asked >= PEER_REQUESTS_MAX:
                    break
                case Kind.REQUEST:
                    self._ask(decode(Request, body))
                case _:
                    message = f"peer {self._node} sends {kind.name}, which is not its turn"
                    raise CorruptError(message)
            position = end
        return position

    def _ask(self, request: Request) -> None:
        try:
            body = self._service.answer_at_once(self._node, request.api, request.body)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the node
            self._put(self._problem(request, error))
            return
        if body is not None:
            self._put(Answer(id=request.id, body=body))
            return
        assert self._group is not None
        self._asked += 1
        self._group.create_task(self._answer(request)).add_done_callback(self._answered)

    def _answered(self, _: "asyncio.Task[None]") -> None:
        self._asked -= 1
        self._channel.again()

    async def _answer(self, request: Request) -> None:
        try:
            body = await self._service.answer(self._node, request.api, request.body)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the node
            self._put(self._problem(request, error))
        else:
            self._put(Answer(id=request.id, body=body))

    def _problem(self, request: Request, error: Exception) -> Answer:
        match error:
            case RefusedError():
                return Answer(id=request.id, refused=encode_refusal(error))
            case LogdError() | OSError():
                refused = Refused(code="UNAVAILABLE", message=str(error))
            case _:
                _log.error(
                    "request_failed",
                    endpoint="peer",
                    peer=self._node,
                    api=request.api,
                    exc_info=error,
                )
                refused = Refused(code="INTERNAL", message=f"{type(error).__name__}: {error}")
        return Answer(id=request.id, refused=refused)

    def _put(self, answer: Answer) -> None:
        """Send it now, as far as it goes; the rest in its turn."""
        data = encode_frame(Kind.ANSWER, answer.SerializeToString())
        if not self._unsent:
            data = data[self._channel.offer(data) :]
        if not data:
            return
        self._unsent.append(data)
        if len(self._unsent) == 1:
            assert self._group is not None
            self._group.create_task(self._send())

    async def _send(self) -> None:
        while self._unsent:  # what is being sent stays there: nothing may come between
            await self._channel.send(self._unsent[0], stall_s=_STALL_S)
            self._unsent.popleft()
