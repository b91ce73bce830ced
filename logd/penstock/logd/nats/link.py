"""One lasting connection to a NATS cluster: its subscriptions, reconnects, publishes and flushes.

logd keeps two: one brings messages in, the other takes acks out, so that neither delays the other.
The socket is never left unread, because nats-server disconnects a client that does not read.

A server that is about to shut down says so (`ldm`). Then another one is dialled first, the
subscriptions leave the old one, and when it has confirmed that, they begin on the new one: what is
published in the round trip between is missed, but nothing comes twice
(`docs/decisions/0010-nats-connection.md`).

Up to when everything has come that was published: asked of the server again and again.

nats-server answers in the order in which it delivers. When a PONG comes, all has come that was
delivered to this connection before its PING; what came after may be lost with the connection.

The subscriptions of one link to NATS, through pauses, refusals and changes of the connection.

Each keeps its id for its life, and is confirmed by its own PONG: what the server refuses is
known by its place. A refused one is reported, may be tried again, and keeps no other one waiting.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.logd.errors import LogdError
from penstock.logd.nats.connect import NatsAccess, dial
from penstock.logd.nats.interest_probe import PROOF_S, InterestProbe
from penstock.logd.nats.protocol import (
    Answer,
    ErrorKind,
    NatsRefusedError,
    NatsSetupError,
    OnMessages,
    ServerError,
    Wire,
)
from penstock.logd.nats.servers import NatsServer, ServerPool

_SILENT_NS: Final = 5_000_000_000
"""Nanoseconds after which a server that sends nothing, though it was asked, is taken for gone."""


class Probe:
    """Looks after one connection.

    Args:
        wire: It has the subscriptions.
        clock: The clock.

    Attributes:
        complete_ns: Monotonic time up to which everything published has come.
    """

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self.complete_ns = clock.monotonic_ns()
        self._wire = wire
        self._clock = clock
        self._answer: Answer | None = None
        self._reads = wire.reads
        self._last_read_ns = self.complete_ns

    def look(self) -> bool:
        """Ask, if the last question is answered; False when the server seems to be gone."""
        now_ns = self._clock.monotonic_ns()
        if self._answer is None or self._wire.reads != self._reads:
            self._reads, self._last_read_ns = self._wire.reads, now_ns
        if self._answer is not None:
            return now_ns - self._last_read_ns < _SILENT_NS
        self._answer = self._wire.ask()
        self._answer.add_done_callback(lambda answer: self._take(answer, now_ns))
        return True

    def _take(self, answer: Answer, asked_ns: int) -> None:
        self._answer = None
        if not answer.cancelled() and answer.exception() is None:
            self.complete_ns = asked_ns


_log = structlog.get_logger()


class LinkState(Enum):
    """Event of a link or of one of its subscriptions."""

    LOST = "lost"
    RESTORED = "restored"
    DENIED = "denied"
    CONFIRMED = "confirmed"


class LinkEvent(Struct, frozen=True):
    """Something that decides what can arrive.

    Attributes:
        sid: Subscription id of `DENIED` and `CONFIRMED`.
        reason: Reason of `LOST` and `DENIED`.
        since_ns: With `LOST`: monotonic time from which on published messages may be missing; None:
            from now on.
    """

    state: LinkState
    sid: bytes = b""
    reason: str = ""
    since_ns: int | None = None


class _Subscription(Struct):
    subject: str
    queue: str = ""
    paused: bool = False
    denial: str = ""
    known: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class Subscriptions:
    """Wanted subscriptions, and those that the server has.

    Args:
        notify: Called with the result of each.
    """

    def __init__(self, notify: Callable[[LinkEvent], None]) -> None:
        self._notify = notify
        self._wire: Wire | None = None
        self._found: dict[bytes, _Subscription] = {}
        self._last_sid = 0

    @property
    def some(self) -> bool:
        """True if there is a subscription."""
        return bool(self._found)

    def denials(self) -> dict[bytes, str]:
        """Why which of them are refused."""
        return {sid: found.denial for sid, found in self._found.items() if found.denial}

    def attach(self, wire: Wire) -> list[Answer]:
        """Ask for every one on a new connection; they are answered in order."""
        self._wire = wire
        return [self._begin(wire, sid) for sid, found in self._found.items() if not found.paused]

    def detach(self) -> bytes:
        """Forget the connection; returns the lines that end every one on it."""
        self._wire = None
        return b"".join(b"UNSUB %b\r\n" % sid for sid in self._found)

    def add(self, subject: str, queue: str = "") -> bytes:
        """Begin a new one, shared with the others of a queue group; returns its id."""
        self._last_sid += 1
        sid = str(self._last_sid).encode()
        self._found[sid] = _Subscription(subject, queue)
        if self._wire is not None:
            self._begin(self._wire, sid)
        return sid

    async def known(self, sid: bytes) -> None:
        """Wait until a server has a new one or refuses it, whichever the connection is by then."""
        found = self._found.get(sid)
        if found is not None:
            await found.known.wait()

    def check(self, sid: bytes) -> None:
        """See what came of a new one, and forget it if it was refused.

        Raises:
            NatsRefusedError: The server does not permit it.
        """
        found = self._found.get(sid)  # None: it was ended meanwhile
        if found is not None and found.denial:
            del self._found[sid]
            raise NatsRefusedError(found.denial)

    def remove(self, sid: bytes) -> None:
        """End one for good."""
        self.pause(sid)
        found = self._found.pop(sid, None)
        if found is not None:
            found.known.set()

    def pause(self, sid: bytes) -> None:
        """Leave the subject for a while."""
        found = self._found.get(sid)
        if found is not None and not found.paused:
            found.paused = True
            if self._wire is not None:
                self._wire.write(b"UNSUB %b\r\n" % sid)

    def resume(self, sid: bytes) -> None:
        """Take a paused or refused one up again."""
        found = self._found.get(sid)
        if found is not None and (found.paused or found.denial):
            found.paused = False
            if self._wire is not None:
                self._begin(self._wire, sid)

    def deny(self, sid: bytes, reason: str) -> None:
        """The server refuses one, or took it away."""
        found = self._found.get(sid)
        if found is None:
            return
        if not found.denial:
            _log.error("nats_subscription_refused", subject=found.subject, reason=reason)
        found.denial = reason
        found.known.set()
        self._notify(LinkEvent(LinkState.DENIED, sid, reason))

    def _begin(self, wire: Wire, sid: bytes) -> Answer:
        found = self._found[sid]
        answer = wire.ask(
            b"SUB %b %b\r\n" % (f"{found.subject} {found.queue}".rstrip().encode(), sid)
        )
        answer.add_done_callback(lambda done: self._settle(wire, sid, done))
        return answer

    def _settle(self, wire: Wire, sid: bytes, answer: Answer) -> None:
        """A SUB was answered, or its connection is gone."""
        found = self._found.get(sid)
        gone = answer.cancelled() or answer.exception() is not None or wire is not self._wire
        if found is None or gone or found.paused:
            return
        denials = [
            error
            for error in answer.result()
            # Another one may be taken away while this one is asked for.
            if error.kind is ErrorKind.SUBSCRIPTION and error.sid in (None, sid)
        ]
        if denials:
            self.deny(sid, denials[0].text)
        else:
            found.denial = ""
            found.known.set()
            self._notify(LinkEvent(LinkState.CONFIRMED, sid))


_MOVE_RETRY_S: Final = 0.5
_MAX_PAYLOAD: Final = 1024 * 1024
_WRITE_BUFFER_MAX: Final = 16 * 1024 * 1024
"""Bytes that may wait in the socket's buffer before publishing is refused."""

Sleep = Callable[[float], Awaitable[None]]


class LinkTiming(Struct, frozen=True, kw_only=True):
    """Times of a link.

    Attributes:
        ask_s: Seconds between two questions whether the server is there: as much may a gap seem
            longer than it was, and as much later a server that is gone be left.
        confirm_s: Maximum seconds of a server's answer.
        proof_s: Maximum seconds of a proof that other servers route to the link.
        short_s: Seconds below which a connection was too short: the next is not made at once.
        sleep: Waits between attempts to connect.
    """

    ask_s: float = 0.5
    confirm_s: float = 5.0
    proof_s: float = PROOF_S
    short_s: float = 1.0
    sleep: Sleep = asyncio.sleep


ANSWERS_ONLY: Final = LinkTiming(ask_s=2.0)
"""Times of a link to which no stream's messages come, so that no gap is measured by it."""


class NatsLink:
    """Keeps a connection and its subscriptions alive until it is closed.

    Args:
        access: Access to the servers.
        name: Shown in the server's monitoring.
        on_messages: Called with what one read brought, by subscription id.
        rng: Source of the order of servers and the jitter of reconnecting.
        clock: Clock for the expiry of credentials and the duration of connections.
        on_event: Called when what can arrive changes.
        timing: Times of the link.

    Attributes:
        problem: Why it is not connected; empty while it is.
        reconnects: Number of reconnects, moves included.
        moves: Number of times it left a server before that shut down.
        publishes_denied: Messages that the server did not let us publish.
        info: The last INFO.
    """

    def __init__(  # noqa: PLR0913 - whither, what becomes of what comes, and how patiently
        self,
        access: NatsAccess,
        *,
        name: str,
        on_messages: OnMessages,
        rng: random.Random,
        clock: Clock,
        on_event: Callable[[LinkEvent], None] = lambda _: None,
        timing: LinkTiming | None = None,
    ) -> None:
        self.name = name
        self.problem = "not connected yet"
        self.reconnects = 0
        self.moves = 0
        self.publishes_denied = 0
        self.info: dict[str, Any] = {}
        self._access = access
        self._timing = timing or LinkTiming()
        self._loopback = InterestProbe(
            lambda: self._wire,
            self._others,
            access=access,
            name=name,
            rng=rng,
            clock=clock,
            proof_s=self._timing.proof_s,
        )
        self._on_messages = lambda messages: on_messages(self._loopback.take(messages))
        self._on_event = on_event
        self._rng = rng
        self._clock = clock
        self._pool = ServerPool(access.servers, rng.shuffle)
        self._server = access.servers[0]
        self._wire: Wire | None = None
        self._subscriptions = Subscriptions(on_event)
        self._attached_ns = 0
        self._probe: Probe | None = None
        self._moving = asyncio.Event()
        self._restoring: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def unproven(self) -> int:
        """Number of proofs that failed in time, by which a server routes to this connection."""
        return self._loopback.unproven

    @property
    def connected(self) -> bool:
        """True if a server is connected."""
        return self._wire is not None

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message the server takes."""
        limit = self.info.get("max_payload")
        return limit if isinstance(limit, int) and limit > 0 else _MAX_PAYLOAD

    @property
    def servers(self) -> tuple[NatsServer, ...]:
        """Every server that would be tried."""
        return self._pool.servers

    def shown(self) -> str:
        """The server in use, or those to begin with, without secrets."""
        return self._server.shown() if self.connected else self._access.shown()

    def denials(self) -> dict[bytes, str]:
        """Why which subscriptions are refused."""
        return self._subscriptions.denials()

    async def connect(self) -> None:
        """Try each server once, until one has us and has answered to every subscription.

        Raises:
            NatsSetupError: The configuration cannot work; of several servers, with none of them.
            NatsRefusedError: Every server refuses us.
            OSError: No server can be reached, or the only one broke off.
        """
        failures: list[OSError | LogdError] = []
        for _ in self._pool.servers:
            server = self._pool.take()
            try:
                wire = await self._dial(server)
            except (OSError, LogdError) as error:
                failures.append(error)
                continue
            self._pool.connected()
            await self._confirm(self._attach(server, wire))
            await self._prove()
            return
        unreachable = [error for error in failures if isinstance(error, OSError)]
        if unreachable and len(failures) > 1:
            raise ConnectionError("; ".join(_explain(error) for error in failures))
        raise failures[0]

    async def run(self) -> None:
        """Watch the connection and reconnect as often as needed, until `close`."""
        while not self._closing:
            wire = self._wire
            if wire is None:
                await self._reconnect()
            elif self._moving.is_set() and not wire.closed.done():
                await self._move(wire)
            else:
                await self._watch(wire)
            if wire is not None and wire is self._wire and wire.closed.done():
                self._note_loss(wire)
                await self._rest()

    def subscribe(self, subject: str, queue: str = "") -> bytes:
        """Subscribe now and after each reconnect; returns the subscription's id.

        Messages may come before `confirmed` returns.

        Args:
            subject: The subject.
            queue: Queue group; each message goes to one of its members.
        """
        return self._subscriptions.add(subject, queue)

    async def confirmed(self, sid: bytes) -> None:
        """Wait until the servers have a new subscription; returns at once while there is none.

        While one server is left for another, that is the other one. That the others of the cluster
        route to it is waited for, too, but not for long (`penstock.logd.nats.interest_probe`).

        Raises:
            NatsRefusedError: The server does not permit it; it is forgotten.
        """
        if self._wire is None:
            return
        try:
            async with asyncio.timeout(self._timing.confirm_s):
                await self._subscriptions.known(sid)
        except TimeoutError:  # a reconnect will subscribe
            _log.warning("nats_subscription_delayed", sid=sid.decode(), link=self.name)
        self._subscriptions.check(sid)
        await self._prove()

    def unsubscribe(self, sid: bytes) -> None:
        """End a subscription; messages under way may still come."""
        self._subscriptions.remove(sid)

    def pause(self, sid: bytes) -> None:
        """Leave a subject for a while; messages under way may still come."""
        self._subscriptions.pause(sid)

    def resume(self, sid: bytes) -> None:
        """Take a paused or refused subscription up again; an event says what came of it."""
        self._subscriptions.resume(sid)

    def write(self, data: bytes) -> bool:
        """Send protocol bytes; False when they cannot be sent now and are not kept."""
        wire = self._wire
        if wire is None or wire.unsent_bytes() > _WRITE_BUFFER_MAX:
            return False
        wire.write(data)
        return True

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has processed what was written, or until the timeout."""
        if self._wire is not None:
            with contextlib.suppress(OSError, NatsRefusedError):
                async with asyncio.timeout(timeout_s):
                    await self._wire.ask()

    def close(self) -> None:
        """Disconnect for good."""
        self._closing = True
        self._loopback.close()
        if self._restoring is not None:
            self._restoring.cancel()
        if self._wire is not None:
            self._wire.abort()

    async def _prove(self) -> None:
        """Wait until the other servers route to every subscription there is, or the time is over.

        Who only publishes has none.
        """
        if self._subscriptions.some:
            await self._loopback.prove()

    def _others(self) -> list[NatsServer]:
        return [server for server in self._pool.servers if server.place != self._server.place]

    async def _dial(self, server: NatsServer) -> Wire:
        return await dial(
            self._access, server, name=self.name, on_messages=self._on_messages, clock=self._clock
        )

    def _attach(self, server: NatsServer, wire: Wire) -> list[Answer]:
        """Make a connection ours, and ask for every subscription on it, in one turn."""
        self._wire, self._server = wire, server
        self._attached_ns = self._clock.monotonic_ns()
        self.problem = ""
        self._moving.clear()
        wire.on_info = self._take_info
        wire.on_error = self._take_error
        self._take_info(wire.last_info)
        return self._subscriptions.attach(wire)

    async def _confirm(self, answers: list[Answer]) -> None:
        try:
            for answer in answers:
                await answer
        except BaseException:
            self._subscriptions.detach()
            if self._wire is not None:
                self._wire.abort()
                self._wire = None
            raise

    def _take_info(self, info: dict[str, Any]) -> None:
        self.info = info
        urls = info.get("connect_urls")
        self._pool.learn(urls if isinstance(urls, list) else (), self._server)
        if info.get("ldm") is True and not self._moving.is_set():
            _log.warning("nats_lame_duck_mode", link=self.name, server=self._server.shown())
            self._moving.set()

    def _take_error(self, error: ServerError) -> None:
        match error.kind:
            case ErrorKind.PUBLISH:
                self.publishes_denied += 1
                if self.publishes_denied == 1:  # each further one is counted only
                    _log.error("nats_publish_refused", link=self.name, error=error.text)
            case ErrorKind.SUBSCRIPTION:
                if error.sid is not None:  # permissions changed on the server
                    self._subscriptions.deny(error.sid, error.text)
            case ErrorKind.LOGIN | ErrorKind.FATAL:
                _log.error("nats_error", link=self.name, error=error.text)

    async def _watch(self, wire: Wire) -> None:
        """Look after a connection; return when it is gone or is to be left."""
        probe = self._probe = Probe(wire, self._clock)
        moving = asyncio.ensure_future(self._moving.wait())
        try:
            while not wire.closed.done() and not moving.done():
                if not probe.look():
                    self._give_up(wire)
                await asyncio.wait(
                    (wire.closed, moving),
                    timeout=self._timing.ask_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            moving.cancel()

    async def _ping(self, wire: Wire) -> None:
        try:
            async with asyncio.timeout(self._timing.confirm_s):
                await wire.ask()
        except (OSError, NatsRefusedError):
            self._give_up(wire)

    def _give_up(self, wire: Wire) -> None:
        wire.problem = wire.problem or "no answer to a ping"
        wire.abort()

    async def _reconnect(self) -> None:
        while not self._closing:
            server = self._pool.take()
            try:
                wire = await self._dial(server)
            except (OSError, LogdError) as error:
                self.problem = _explain(error)
                _log.warning("nats_connect_failed", link=self.name, reason=self.problem)
                await self._timing.sleep(self._pool.failed(self._rng.random()))
                continue
            self._arrive(server, wire)
            return

    async def _rest(self) -> None:
        """A connection that is lost as soon as it stands is a failure as one that never does."""
        if self._clock.monotonic_ns() - self._attached_ns >= self._timing.short_s * 1e9:
            self._pool.connected()
        elif not self._closing:
            await self._timing.sleep(self._pool.failed(self._rng.random()))

    async def _move(self, old: Wire) -> None:
        """Go to another server while this one still serves; return when that is done or failed."""
        here = self.info.get("server_id")
        for _ in self._pool.servers:
            server = self._pool.take()
            if server.place == self._server.place or old.closed.done():
                continue
            try:
                wire = await self._dial(server)
            except (OSError, LogdError) as error:
                _log.info("nats_connect_failed", link=self.name, reason=_explain(error))
                continue
            if wire.last_info.get("server_id") == here or wire.last_info.get("ldm") is True:
                wire.abort()
                continue
            await self._leave(old)
            old.abort()  # before the new one: what came from both would come twice
            self.moves += 1
            self._arrive(server, wire)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOVE_RETRY_S * self._rng.uniform(0.5, 1.0)):
                await asyncio.shield(old.closed)
        if not old.closed.done():  # its host may be gone without a word
            await self._ping(old)

    async def _leave(self, old: Wire) -> None:
        """End every subscription there, and take what is under way; then nothing more comes."""
        leave = self._subscriptions.detach()
        self._on_event(LinkEvent(LinkState.LOST, reason="the server shuts down"))
        with contextlib.suppress(OSError, NatsRefusedError):
            async with asyncio.timeout(self._timing.confirm_s):
                await old.ask(leave)

    def _arrive(self, server: NatsServer, wire: Wire) -> None:
        self.reconnects += 1
        answers = self._attach(server, wire)
        _log.info("nats_reconnected", link=self.name, server=server.shown())
        last = answers[-1] if answers else wire.ask()
        last.add_done_callback(lambda done: self._note_restored(wire, done))

    def _note_restored(self, wire: Wire, answer: Answer) -> None:
        """The last subscription was answered, so every one was."""
        if wire is self._wire and not answer.cancelled() and answer.exception() is None:
            self._restoring = asyncio.create_task(self._restore(wire))

    async def _restore(self, wire: Wire) -> None:
        await self._prove()
        if wire is self._wire and not wire.closed.done():
            self._on_event(LinkEvent(LinkState.RESTORED))

    def _note_loss(self, wire: Wire) -> None:
        self._wire = None
        self._subscriptions.detach()
        if not self._closing:
            self.problem = wire.problem or "connection lost"
            _log.warning("nats_disconnected", link=self.name, reason=self.problem)
            since_ns = None if self._probe is None else self._probe.complete_ns
            self._on_event(LinkEvent(LinkState.LOST, reason=self.problem, since_ns=since_ns))


def _explain(error: OSError | LogdError) -> str:
    key = f"{error.key}: " if isinstance(error, NatsSetupError) else ""
    return key + (str(error) or type(error).__name__)
