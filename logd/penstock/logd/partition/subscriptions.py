"""Subscriptions of streams: routes messages, leaves subjects under overload, notes gaps.

A stream keeps its subscription's id for its life, so that what was under way when it left its
subject still finds it and is counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Struct

from penstock.base.clock import Clock
from penstock.logd.format.acks import Nack
from penstock.logd.format.subjects import RESERVED_PREFIXES, begins_with_wildcard
from penstock.logd.intake.admission import Admission, AdmissionPolicy, ByteBudget, Load, Move
from penstock.logd.intake.gaps import DROPPING, Gap, GapLedger, GapReason, Instant
from penstock.logd.intake.intake import Intake
from penstock.logd.intake.turn import Message
from penstock.logd.metadata.streams import Stream
from penstock.logd.nats.link import LinkEvent, LinkState
from penstock.logd.nats.protocol import NatsRefusedError

_TICK_S: Final = 0.2
_DENIED_RETRY_NS: Final = 30_000_000_000
_STREAMS_SHOWN: Final = 10
_log = structlog.get_logger()


class Link(Protocol):
    """Source of messages: a NATS connection, or a test's fake."""

    def subscribe(self, subject: str, queue: str = "") -> bytes:
        """Begin to receive, in a queue group if one is named; returns the subscription's id."""
        ...

    async def confirmed(self, sid: bytes) -> None:
        """Wait until the server has a new subscription, or refuses it."""
        ...

    def unsubscribe(self, sid: bytes) -> None:
        """Receive no more."""
        ...

    def pause(self, sid: bytes) -> None:
        """Receive no more for a while."""
        ...

    def resume(self, sid: bytes) -> None:
        """Receive again."""
        ...


class MessageHandler(Protocol):
    """Handler of a stream's messages: its partition, as a rule."""

    stream: Stream
    intake: Intake
    budget: ByteBudget
    skipped: int

    @property
    def label(self) -> str:
        """Name of the stream, or of one of its partitions."""
        ...

    @property
    def subject(self) -> str: ...

    def take(self, messages: list[Message], *, alone: bool = False) -> None:
        """Take what arrived in one turn; `alone`: nothing came for others."""
        ...


class _Listener(Struct):
    partition: MessageHandler
    sid: bytes
    admission: Admission
    wild: bool
    refused: int = 0
    untold: Counter[Nack] = msgspec.field(default_factory=Counter)
    denial: str = ""
    denied_ns: int = 0


class SubscriptionManager:
    """The subscriptions of a daemon's streams. Used on the event loop.

    Args:
        link: Brings the messages.
        total: The budget of all streams.
        clock: Clock of overload and gaps.
        policy: Policy by which a stream leaves its subject.

    Attributes:
        gaps: Ledger of ingest gaps.
        on_gap: Told of each gap that it has `began`, or `ended`.
        stopped: Whether every stream has left for good.
    """

    def __init__(
        self, link: Link, total: ByteBudget, clock: Clock, policy: AdmissionPolicy
    ) -> None:
        self.gaps = GapLedger()
        self.on_gap: Callable[[str, Gap], None] = lambda _what, _gap: None
        self.stopped = False
        self._lost = False
        self._link = link
        self._total = total
        self._clock = clock
        self._policy = policy
        self._listeners: dict[str, _Listener] = {}
        self._by_sid: dict[bytes, _Listener] = {}
        self._restless: dict[str, _Listener] = {}
        self._stirred = asyncio.Event()

    async def add(self, partition: MessageHandler, queue: str = "", *, keep: bool = False) -> None:
        """Put a stream on its subject; not any more once `stop` was called.

        Args:
            partition: Handler of the messages.
            queue: The queue group it shares them with.
            keep: Whether one that the server does not permit is tried again and again.

        Raises:
            NatsRefusedError: The server does not permit it.
        """
        if self.stopped:
            return
        subject = partition.subject
        sid = self._link.subscribe(subject, queue)
        wild = begins_with_wildcard(subject)
        listener = _Listener(partition, sid, Admission(self._policy), wild)
        self._listeners[partition.label] = self._by_sid[sid] = listener
        try:  # what comes before the confirmation is the stream's already
            await self._link.confirmed(sid)
        except NatsRefusedError:
            if not keep:
                self.remove(partition.label)
            raise

    def begins(self, stream: str) -> None:
        """A stream is led here from now on; without a connection it misses what comes."""
        if not self._lost:
            return
        known = any(stream in gap.streams for gap in self.gaps.lasting() if gap.messages is None)
        if not known:
            reason, now = GapReason.RECONNECTING, self.now()
            self._began(self.gaps.begin((stream,), reason, now, late=True))

    def missed(self, stream: str, ago_ns: int) -> None:
        """No node was on a stream's subject until now; other nodes may have been.

        Args:
            stream: Or one of its partitions.
            ago_ns: Nanoseconds since the gap began.
        """
        now = self.now()
        start = now.back_to(now.monotonic_ns - ago_ns)
        self._began(self.gaps.begin((stream,), GapReason.NO_LEADER, start))
        self._ended(self.gaps.end(GapReason.NO_LEADER, now, stream=stream), now)

    def remove(self, stream: str) -> None:
        """Take a stream off its subject for good."""
        listener = self._listeners.pop(stream, None)
        if listener is not None:
            self._link.unsubscribe(listener.sid)
            self._by_sid.pop(listener.sid, None)
            self._restless.pop(stream, None)
            self.gaps.forget(stream)

    def hand_over(self, partition: MessageHandler) -> None:
        """A stream's log has been opened again: what comes goes to its new partition."""
        listener = self._listeners.get(partition.label)
        if listener is not None:
            listener.partition = partition

    def stop(self) -> None:
        """Take every stream off its subject; what is under way is still taken."""
        self.stopped = True
        for listener in self._listeners.values():
            self._link.unsubscribe(listener.sid)

    def denied(self) -> dict[str, str]:
        """Why the NATS server does not permit which streams' subjects."""
        found = list(self._listeners.items())
        return {name: listener.denial for name, listener in found if listener.denial}

    def is_denied(self, stream: str) -> bool:
        """Return whether the NATS server does not permit a stream's subject."""
        listener = self._listeners.get(stream)
        return listener is not None and bool(listener.denial)

    def away(self) -> list[str]:
        """Streams that overload keeps off their subjects."""
        return [name for name, found in list(self._listeners.items()) if found.admission.away]

    def on_messages(self, messages: dict[bytes, list[Message]]) -> None:
        """Route what one read of the data connection brought."""
        alone = len(messages) == 1
        for sid, arrived in messages.items():
            listener = self._by_sid.get(sid)
            if listener is None:  # the stream was deleted a moment ago
                continue
            partition = listener.partition
            taken = _without_reserved(partition, arrived) if listener.wild else arrived
            partition.take(taken, alone=alone)
            refused = partition.intake.counts.refused_total
            if refused != listener.refused:
                listener.refused = refused
                self._stir(listener)
                self._note_dropped(listener)

    def on_event(self, event: LinkEvent) -> None:
        """Something happened to the data connection or a subscription."""
        now = self.now()
        match event.state:
            case LinkState.LOST if not self.stopped:
                self._lost = True
                present = tuple(name for name, found in self._listeners.items() if _on(found))
                start = now if event.since_ns is None else now.back_to(event.since_ns)
                self._began(
                    self.gaps.begin(present, GapReason.RECONNECTING, start, detail=event.reason)
                )
            case LinkState.RESTORED:
                self._lost = False
                self._ended(self.gaps.end(GapReason.RECONNECTING, now), now)
            case LinkState.DENIED | LinkState.CONFIRMED if event.sid in self._by_sid:
                self._take_answer(self._by_sid[event.sid], event.reason, now)
            case _:
                pass

    async def run(self) -> None:
        """Look after streams that refuse or are away, for ever."""
        while True:
            self.tick()
            if self._restless or self.gaps.is_dropping:
                await asyncio.sleep(_TICK_S)
            else:
                self._stirred.clear()
                await self._stirred.wait()

    def tick(self) -> None:
        """Do what is due."""
        now = self.now()
        self._ended(self.gaps.settle(now), now)
        if self.stopped:
            return
        for name, listener in list(self._restless.items()):
            self._look_after(listener, now)
            if listener.admission.settled and not listener.denial:
                del self._restless[name]

    def _stir(self, listener: _Listener) -> None:
        """Have it looked after from now on, for as long as it is restless."""
        self._restless[listener.partition.label] = listener
        self._stirred.set()

    def _look_after(self, listener: _Listener, now: Instant) -> None:
        partition = listener.partition
        budget = partition.budget
        load = Load(
            partition.intake.counts.refused[Nack.BUSY],
            budget.held,
            budget.bytes_max,
            self._total.held,
            self._total.bytes_max,
        )
        match listener.admission.observe(load, now.monotonic_ns):
            case Move.LEAVE:
                self._link.pause(listener.sid)
                detail = "refused messages for lack of room for too long"
                stream = (partition.label,)
                self._began(
                    self.gaps.begin(stream, GapReason.UNSUBSCRIBED, now, detail=detail)
                )  # fmt: skip
            case Move.RETURN:
                self._link.resume(listener.sid)
            case None:
                pass
        if listener.denial and now.monotonic_ns - listener.denied_ns >= _DENIED_RETRY_NS:
            listener.denied_ns = now.monotonic_ns
            self._link.resume(listener.sid)

    def _take_answer(self, listener: _Listener, denial: str, now: Instant) -> None:
        """The server permits a subscription, or (with a reason) does not."""
        name = listener.partition.label
        listener.denial = denial
        self._ended(self.gaps.end(GapReason.UNSUBSCRIBED, now, stream=name), now)
        if denial:
            listener.denied_ns = now.monotonic_ns
            self._stir(listener)
            self._began(self.gaps.begin((name,), GapReason.DENIED, now, detail=denial))
        else:
            self._ended(self.gaps.end(GapReason.DENIED, now, stream=name), now)

    def _note_dropped(self, listener: _Listener) -> None:
        untold = listener.partition.intake.counts.untold
        for nack, total in untold.items():
            count = total - listener.untold[nack]
            if count:
                listener.untold[nack] = total
                reason = DROPPING[nack]
                self._began(self.gaps.drop(listener.partition.label, reason, count, self.now()))

    def now(self) -> Instant:
        """The moment gaps are measured with."""
        return Instant(self._clock.monotonic_ns(), self._clock.unix_ns())

    def _began(self, gap: Gap | None) -> None:
        if gap is not None:
            _log.warning("ingest_gap_began", **_shown(gap), detail=gap.detail)
            self.on_gap("began", gap)

    def _ended(self, gaps: Iterable[Gap], now: Instant) -> None:
        for gap in gaps:
            seconds = round(gap.duration_ns(now) / 1e9, 3)
            _log.warning("ingest_gap_ended", **_shown(gap), seconds=seconds, messages=gap.messages)
            self.on_gap("ended", gap)


def _on(listener: _Listener) -> bool:
    """Return whether it is subscribed while the connection lasts."""
    return not listener.admission.away and not listener.denial


def _without_reserved(partition: MessageHandler, messages: list[Message]) -> list[Message]:
    """Leave out messages on reserved subjects, which NATS cannot filter."""
    taken = [message for message in messages if not message[0].startswith(RESERVED_PREFIXES)]
    partition.skipped += len(messages) - len(taken)
    return taken


def _shown(gap: Gap) -> dict[str, object]:
    streams = list(gap.streams[:_STREAMS_SHOWN])
    return {"streams": streams, "stream_count": len(gap.streams), "reason": gap.reason.value}
