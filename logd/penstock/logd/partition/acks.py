"""Acks and refusals on their way to publishers, over their own NATS connection.

What one turn of the event loop brings goes out in one write, at its end. When NATS does not take
acks fast enough they are dropped and counted: the publisher asks again and learns of the duplicate.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

from penstock.base.clock import Clock, SystemClock
from penstock.logd.format.acks import PubAck, encode_ack
from penstock.logd.format.envelope import TYPE_BATCH_ACK, encode_envelope
from penstock.logd.format.publish_envelope import refused_ack, stored_ack
from penstock.logd.intake.turn import Ack, AckRun, PendingAck, Refuse
from penstock.logd.nats.link import NatsLink

T = TypeVar("T")

_INBOX: Final = b"_INBOX"
"""Prefix of the subjects of nearly all replies; no stream stores them."""


class AckSender:
    """Formats and sends answers.

    Args:
        link: The connection for acks.
        dispatcher: Knows when the turn of the event loop ends.
        clock: Clock of the ack of a publish envelope; by default the system's.

    Attributes:
        sent: Answers handed to the connection.
        dropped: Answers that could not be sent.
        withheld: Answers that were asked for where a stream would have stored them.
        stored: Whether a subject is such a one; None: it is not looked at. A client that may
            publish anywhere could else have an ack stored where it may not.
    """

    def __init__(
        self, link: NatsLink, dispatcher: "LoopDispatcher", clock: Clock | None = None
    ) -> None:
        self._link = link
        self._dispatcher = dispatcher
        self._clock = clock or SystemClock()
        self._out: list[bytes] = []
        self.sent = 0
        self.dropped = 0
        self.withheld = 0
        self.stored: Callable[[bytes], bool] | None = None

    def send_acks(self, stream: str, epoch: int, acks: list[Ack]) -> None:
        """Tell publishers that their records are stored."""
        for ack in acks:
            if isinstance(ack, AckRun):
                self._put_lines(stored_lines(stream, epoch, self._answerable(ack)))
                continue
            if ack.form:
                self._put(ack.reply, self._published(stream, epoch, ack))
                continue
            body = encode_ack(
                PubAck(
                    stream=stream,
                    offset=ack.offset,
                    epoch=epoch,
                    count=ack.records,
                    duplicate=ack.duplicate,
                )
            )
            self._put(ack.reply, encode_envelope(TYPE_BATCH_ACK, body) if ack.enveloped else body)

    def send_refusal(self, refusal: Refuse) -> None:
        """Tell a publisher that its message is not stored."""
        ack = refusal.ack
        if refusal.form:
            assert ack.nack is not None
            body = refused_ack(
                refusal.form, stream=ack.stream, nack=ack.nack, description=ack.description
            )
        else:
            body = encode_ack(ack)
        if refusal.enveloped:
            body = encode_envelope(TYPE_BATCH_ACK, body)
        self._put(refusal.reply, body)

    def flush(self) -> None:
        """Write out what was put since the last time."""
        out, self._out = self._out, []
        if not out:
            return
        if self._link.write(b"".join(out)):
            self.sent += len(out)
        else:
            self.dropped += len(out)

    def _published(self, stream: str, epoch: int, ack: PendingAck) -> bytes:
        return stored_ack(
            ack.form,
            stream=stream,
            offset=ack.offset,
            epoch=epoch,
            duplicate=ack.duplicate,
            now_ns=self._clock.unix_ns(),
        )

    def _answerable(self, run: AckRun) -> AckRun:
        withheld = [self._is_stored(reply) for reply in run.replies]
        if not any(withheld):
            return run
        found = zip(run.replies, withheld, strict=True)
        return run._replace(replies=[b"" if stored else reply for reply, stored in found])

    def _is_stored(self, reply: bytes) -> bool:
        if self.stored is None or reply.startswith(_INBOX) or not reply:
            return False
        found = self.stored(reply)
        self.withheld += found
        return found

    def _put(self, reply: bytes, body: bytes) -> None:
        if self._is_stored(reply):
            return
        if len(body) > self._link.max_payload:  # the server would hang up
            self.dropped += 1
            return
        self._put_lines([b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body)])

    def _put_lines(self, lines: list[bytes]) -> None:
        if not self._out and lines:
            self._dispatcher.at_end(self.flush)
        self._out += lines


def stored_lines(stream: str, epoch: int, run: AckRun) -> list[bytes]:
    """Return the NATS message of each ack of a run: `encode_ack`'s JSON to the reply subject.

    Acks are made hundreds of thousands of times a second, so what they share is formatted once: all
    but reply and offset, their number of digits included.
    """
    lines: list[bytes] = []
    first, replies = run.base_offset, run.replies
    end = first + len(replies)
    while first < end:
        digits, seq_digits = len(str(first)), len(str(first + 1))
        # Up to where an offset or a seq (the offset plus one) has more digits.
        stop = min(end, first + 1 if seq_digits > digits else 10**digits - 1)
        line = _stored_line(stream, epoch, digits + seq_digits)
        some = replies[first - run.base_offset : stop - run.base_offset]
        lines += [
            line % (reply, offset + 1, offset) for offset, reply in enumerate(some, first) if reply
        ]
        first = stop
    return lines


@lru_cache(maxsize=1024)
def _stored_line(stream: str, epoch: int, digits: int) -> bytes:
    """The pattern of an ack's NATS message for a reply, a seq and an offset of so many digits."""
    body = b'{"stream":"%b","seq":%%d,"offset":%%d,"epoch":%d}' % (stream.encode(), epoch)
    return b"PUB %%b %d\r\n%b\r\n" % (len(body) - 4 + digits, body)


class LoopDispatcher:
    """Takes calls from any thread, and gathers what one turn of the event loop amounts to.

    A turn of the event loop costs as much as storing a few messages. So calls of other threads are
    made together, and what they amount to (acks, requests and responses to other nodes) leaves in
    the same turn, written once: see `at_end`.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._awaited = False
        self._ends: deque[Callable[[], None]] = deque()
        self._gathering = False

    def post(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Have a call made on the event loop soon; from any thread, in the order of all calls.

        Raises:
            RuntimeError: The event loop is closed.
        """
        self._calls.append(call)
        if not self._awaited:  # else `_take` is still to come, and finds the call
            self._awaited = True
            loop.call_soon_threadsafe(self._take)

    def at_end(self, call: Callable[[], None]) -> None:
        """Have a call made on the event loop when `run`, or the posted calls, are done.

        Of what neither of them does, in the next turn of the event loop.
        """
        if not self._ends and not self._gathering:
            asyncio.get_running_loop().call_soon(self._end)
        self._ends.append(call)

    def run(self, work: Callable[[], T]) -> T:
        """Do some work on the event loop; what is posted by its end is called in this turn.

        Calls of other threads are made in the order of all, before or among those of `work`. Work
        within work is part of it.

        Returns:
            The result of the work.
        """
        if self._gathering:
            return work()
        self._awaited = self._gathering = True
        try:
            return work()
        finally:
            self._take()

    def _take(self) -> None:
        self._awaited, self._gathering = False, True
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            self._gathering = False
            self._end()
            if self._calls and not self._awaited:  # one has failed; the event loop reports it
                self._awaited = True
                asyncio.get_running_loop().call_soon(self._take)

    def _end(self) -> None:
        self._gathering = True
        try:
            while self._ends:
                self._ends.popleft()()
        finally:
            self._gathering = False
            if self._ends:
                asyncio.get_running_loop().call_soon(self._end)
