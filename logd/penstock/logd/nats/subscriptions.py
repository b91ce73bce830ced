"""The subscriptions of one link to NATS, through pauses, refusals and changes of the connection.

Each keeps its id for its life, and is confirmed by a PONG of its own: what the server refuses is
known by its place. A refused one is reported, may be tried again, and keeps no other one waiting.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import structlog

from penstock.logd.nats.errors import ErrorKind, NatsRefusedError
from penstock.logd.nats.wire import Answer, Wire

_log = structlog.get_logger()


class LinkState(Enum):
    """What happened to a link or to one of its subscriptions."""

    LOST = "lost"
    RESTORED = "restored"
    DENIED = "denied"
    CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """Something that decides what can arrive.

    Attributes:
        sid: With `DENIED` and `CONFIRMED`.
        reason: With `LOST` and `DENIED`.
        since_ns: With `LOST`: what was published from then on may not have come, by the monotonic
            clock; None: from now on.
    """

    state: LinkState
    sid: bytes = b""
    reason: str = ""
    since_ns: int | None = None


@dataclass(slots=True)
class _Subscription:
    subject: str
    queue: str = ""
    paused: bool = False
    denial: str = ""
    known: asyncio.Event = field(default_factory=asyncio.Event)


class Subscriptions:
    """What is to be subscribed, and what of it the server has.

    Args:
        notify: Told what came of each.
    """

    def __init__(self, notify: Callable[[LinkEvent], None]) -> None:
        self._notify = notify
        self._wire: Wire | None = None
        self._found: dict[bytes, _Subscription] = {}
        self._last_sid = 0

    @property
    def some(self) -> bool:
        """Whether there is one."""
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
            _log.error("nats subscription refused", subject=found.subject, reason=reason)
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
