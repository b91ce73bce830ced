"""Proof that what is published at other servers of a NATS cluster reaches a connection.

A PONG says that the connection's own server has a subscription. The others learn of it a moment
later, by their routes; what is published there in between goes nowhere. So a probe is published at
each of them, over its own connection, again and again until it arrives. Its subject is new and
was subscribed to last: an account's interest goes to a server over one route, in order, so a server
that routes the probe routes everything that was subscribed to before.

    data connection    SUB telemetry.logs.> 1     SUB _PENSTOCK.PROBE.5f... P7     PING
    at another server                             PUB _PENSTOCK.PROBE.5f... 0

With two servers on one host, a publisher that began at one server when the subscriber had its PONG
from the other lost its first messages in 22 and 38 of 300 rounds, for up to 3.1 ms. Between hosts
the loss lasts a packet's time at least, and as long as the route is stuck. One proof serves all
subscriptions that were made before it began. What is not proven within a second is counted
(`penstock_logd_nats_unproven_total`) and taken as proven: a gap that never ends would tell nothing.
Behind gateways and leaf nodes interest spreads on other ways, and nothing is proven there.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.errors import LogdError
from penstock.logd.intake.turn import Message
from penstock.logd.nats.connect import NatsAccess, dial
from penstock.logd.nats.protocol import ErrorKind, ServerError, Wire
from penstock.logd.nats.servers import NatsServer

PROOF_S: Final = 1.0
"""Seconds a proof may take; then what is not proven is reported, and things go on as without it."""

_AGAIN_S: Final = 0.005
"""Seconds until a probe is published again, at first; they double."""

_LINGER_S: Final = 10.0
"""Seconds the connections to other servers are kept for the next proof."""

_SID: Final = b"P"
"""Ids of the probes' subscriptions begin so; the others are numbers."""

_log = structlog.get_logger()


class InterestProbe:
    """Proof of a connection's interest at other servers. Used on the event loop.

    Args:
        wire: Returns the connection; None: there is none now.
        servers: Returns the other servers, as far as known.
        access: Access to the servers.
        name: Name in their monitoring.
        rng: Source of unique subjects.
        clock: Clock for the expiry of credentials.
        proof_s: Maximum seconds of a proof.

    Attributes:
        unproven: Proofs that failed in time, each server counted.
    """

    def __init__(  # noqa: PLR0913 - through what, whither, and for how long
        self,
        wire: Callable[[], Wire | None],
        servers: Callable[[], list[NatsServer]],
        *,
        access: NatsAccess,
        name: str,
        rng: random.Random,
        clock: Clock,
        proof_s: float = PROOF_S,
    ) -> None:
        self.unproven = 0
        self._wire = wire
        self._servers = servers
        self._access = access
        self._name = name
        self._rng = rng
        self._clock = clock
        self._proof_s = proof_s
        self._number = 0
        self._arrived: dict[bytes, asyncio.Event] = {}
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._remotes: dict[NatsServer, Wire] = {}
        self._closing: asyncio.TimerHandle | None = None

    async def prove(self) -> None:
        """Wait until every other server routes to what the connection has subscribed to by now.

        Returns when that is proven, cannot be, or the time is over.
        """
        if self._wire() is None or not self._servers():
            return
        if self._next is None:  # one proof is enough for all who ask before it begins
            self._next = asyncio.create_task(self._run(self._current))
        await asyncio.wait([self._next])

    def take(self, messages: dict[bytes, list[Message]]) -> dict[bytes, list[Message]]:
        """Take the probes out of what one read brought."""
        if self._arrived:
            for sid in [sid for sid in messages if sid.startswith(_SID)]:
                for message in messages.pop(sid):
                    if arrived := self._arrived.get(message.payload):
                        arrived.set()
        return messages

    def close(self) -> None:
        """Give the connections to other servers back."""
        for task in (self._current, self._next):
            if task is not None:
                task.cancel()
        self._leave()

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._current, self._next = self._next, None
        if self._closing is not None:
            self._closing.cancel()
        try:
            if (wire := self._wire()) is not None:
                await self._prove(wire, self._servers())
        finally:
            self._closing = asyncio.get_running_loop().call_later(_LINGER_S, self._leave)

    async def _prove(self, wire: Wire, servers: list[NatsServer]) -> None:
        self._number += 1
        subject = b"_PENSTOCK.PROBE.%016x" % self._rng.getrandbits(64)
        sid = _SID + b"%d" % self._number
        with suppress(OSError, LogdError):  # the connection is gone: another one will be proven
            errors = await wire.ask(b"SUB %b %b\r\n" % (subject, sid))
            if any(error.kind is ErrorKind.SUBSCRIPTION for error in errors):
                self._report(["logd's user may not subscribe to _PENSTOCK.>"])
                return
            met = {str(wire.last_info.get("server_id"))}
            probes = [self._probe(wire, server, subject, met) for server in servers]
            problems = await asyncio.gather(*probes)
            if not wire.closed.done():
                wire.write(b"UNSUB %b\r\n" % sid)
                self._report([problem for problem in problems if problem])

    async def _probe(self, wire: Wire, server: NatsServer, subject: bytes, met: set[str]) -> str:
        """Publish at a server until it arrives; why it did not, empty: it did or need not."""
        try:
            async with asyncio.timeout(self._proof_s):
                remote = await self._remote(server)
                info, here = remote.last_info, wire.last_info
                if info.get("server_id") in met or info.get("cluster") != here.get("cluster"):
                    return ""
                met.add(str(info.get("server_id")))
                await self._publish(remote, subject, wire)
        except TimeoutError:
            return f"{server.shown()}: nothing published there has arrived"
        except (OSError, LogdError) as error:
            return f"{server.shown()}: {error}"
        return ""

    async def _publish(self, remote: Wire, subject: bytes, wire: Wire) -> None:
        payload = subject[-16:] + b"%d" % id(remote)
        arrived = self._arrived[payload] = asyncio.Event()
        backoff = Backoff(_AGAIN_S, PROOF_S)
        try:
            while not wire.closed.done():
                if remote.closed.done():
                    raise ConnectionError(remote.problem)
                remote.write(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next_wait()):
                        await arrived.wait()
                        return
        finally:
            del self._arrived[payload]

    async def _remote(self, server: NatsServer) -> Wire:
        """A connection to a server, to publish on."""
        found = self._remotes.get(server)
        if found is None or found.closed.done():
            name = f"{self._name}/probe"
            found = await dial(
                self._access, server, name=name, on_messages=lambda _: None, clock=self._clock
            )
            found.on_error = partial(_give_up, found)
            self._remotes[server] = found
        return found

    def _leave(self) -> None:
        for remote in self._remotes.values():
            remote.abort()
        self._remotes.clear()

    def _report(self, problems: list[str]) -> None:
        self.unproven += len(problems)
        if problems:
            _log.warning("nats_interest_unproven", link=self._name, servers=problems)


def _give_up(remote: Wire, error: ServerError) -> None:
    """Note a server's refusal, so that the request is not repeated."""
    remote.problem = remote.problem or f"nats-server says: {error.text}"
    remote.abort()
