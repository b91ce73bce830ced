"""Publishes of gRPC clients on their way to a partition's leader, over NATS, and the acks back.

Any node takes a publish: it goes to the subject of its partition as a publish envelope with an ack
inbox of this daemon, so whoever leads stores and acks it. A publish is sent again, under the same
`Nats-Msg-Id`, as long as its deadline allows: when nobody is subscribed, when the leader is busy,
and when no ack comes. Within the stream's window of ids it is stored once.
"""

import asyncio
import random
import secrets
from collections import Counter
from typing import Final, Literal

import grpc

from penstock.base.backoff import Backoff
from penstock.base.clock import Clock
from penstock.logd.acks import Nack
from penstock.logd.core.publish_options import EXPECTED_STREAM, MESSAGE_ID
from penstock.logd.core.turn import Message
from penstock.logd.errors import CorruptError
from penstock.logd.liftbridge.errors import CallError
from penstock.logd.liftbridge.gate import Gate
from penstock.logd.nats.dial import NatsAccess
from penstock.logd.nats.headers import format_headers
from penstock.logd.nats.link import NatsLink
from penstock.logd.publish_envelope import decode_ack_envelope, encode_ack, encode_publish
from penstock.logd.wire import logd_liftbridge_pb2 as wire

RELAY_ID: Final = b"penstock.grpc."
"""What the `Nats-Msg-Id` begins with that a relayed publish is given; subscribers do not see it."""

_RESEND_S: Final = 2.0
"""Seconds without an ack after which a publish is sent again: far above what an ack takes, and
about what a cluster takes to find the next leader."""

_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_OVERHEAD: Final = 1024
"""Bytes that a publish takes besides its message while it waits."""

_RETRYABLE: Final = frozenset(nack.err_code for nack in Nack if nack.retryable)
_NO_RESPONDERS: Final = b"NATS/1.0 503"

_Heard = wire.Ack | Literal["silence", "unsent", "nobody"]


class Relay:
    """Sends publishes and waits for their acks. Used on the event loop.

    Args:
        access: To NATS.
        node: This one's name.
        bytes_max: Of publishes that wait for their ack.
        clock: For the link.
        resend_s: Seconds without an ack after which a publish is sent again.
        pause_s: Seconds before the first repeat of what was refused for now.

    Attributes:
        link: Its connection; whoever makes the relay runs it.
        gate: How many bytes wait.
        counts: Publishes by what became of them, and `resent`.
    """

    def __init__(
        self,
        access: NatsAccess,
        *,
        node: str,
        bytes_max: int,
        clock: Clock,
        resend_s: float = _RESEND_S,
        pause_s: float = _PAUSE_S,
    ) -> None:
        rng = random.Random()  # noqa: S311 - jitter, not a secret
        self.link = NatsLink(
            access, name=f"{node}/grpc", on_messages=self.on_messages, rng=rng, clock=clock
        )
        self.gate = Gate(bytes_max)
        self.counts: Counter[str] = Counter()
        self._resend_s, self._pause_s = resend_s, pause_s
        self._token = secrets.token_hex(8)
        self._inbox = f"_INBOX.{self._token}"
        self._published = 0
        self._waiting: dict[str, tuple[asyncio.Future[_Heard], str]] = {}
        self.link.subscribe(f"{self._inbox}.*")

    @property
    def waiting(self) -> int:
        """Publishes without an answer yet."""
        return len(self._waiting)

    async def publish(
        self, subject: str, message: wire.Message, *, stream: str, repeat: bool, timeout_s: float
    ) -> wire.Ack:
        """Publish a message and wait for its ack.

        Args:
            subject: To publish to.
            message: What is published; its ack inbox is filled in.
            stream: Which stream answers; empty: any that stores the subject.
            repeat: Whether it may be sent again without knowing whether it was stored.
            timeout_s: How long all that may take.

        Raises:
            CallError: It is refused, or no ack came in time.
        """
        self._published += 1
        number = str(self._published)
        message.ackInbox = f"{self._inbox}.{number}"
        line = self._line(subject, message, number, stream)
        size = await self._room(len(line), timeout_s)
        problem, backoff = "", Backoff(self._pause_s, _PAUSE_S_MAX)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    wait_s = self._resend_s if repeat else None
                    heard = await self._once(number, stream, line, wait_s)
                    match heard:
                        case "silence":
                            problem = "no ack came"
                            self.counts["resent"] += 1
                            continue
                        case "unsent":
                            problem = "NATS takes nothing now"
                        case "nobody":
                            problem = f"nobody stores {subject!r} now"
                        case _ if heard.errorNumber in _RETRYABLE:
                            problem = heard.errorMessage
                        case _:
                            self.counts["refused" if heard.ackError else "stored"] += 1
                            return heard
                    await asyncio.sleep(backoff.next_wait())
        except TimeoutError:
            self.counts["unanswered"] += 1
            text = f"not known to be stored within {timeout_s:.3g} s: {problem or 'no ack came'}"
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        finally:
            self._waiting.pop(number, None)
            self.gate.give(size)

    async def _once(self, number: str, stream: str, line: bytes, wait_s: float | None) -> _Heard:
        """Publish once; what is heard of it from the stream, or, where none is named, from any."""
        answer: asyncio.Future[_Heard] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer, stream
        if not self.link.write(line):
            return "unsent"
        await asyncio.wait((answer,), timeout=wait_s)
        return answer.result() if answer.done() else "silence"

    def forward(self, inbox: str, ack: wire.Ack) -> None:
        """Tell whom else a publisher wants to know; lost like any NATS message."""
        body = encode_ack(ack)
        if len(body) > self.link.max_payload:  # the server would hang up on everybody's publishes
            self.counts["not_forwarded"] += 1
            return
        self.link.write(b"PUB %b %d\r\n%b\r\n" % (inbox.encode(), len(body), body))

    def _line(self, subject: str, message: wire.Message, number: str, stream: str) -> bytes:
        """What NATS is told.

        Raises:
            CallError: NATS does not take so much at a time.
        """
        payload = encode_publish(message)
        pairs = [(EXPECTED_STREAM, stream.encode())] if stream else []
        if MESSAGE_ID not in message.headers:
            pairs.append((MESSAGE_ID, RELAY_ID + f"{self._token}.{number}".encode()))
        headers = format_headers(tuple(pairs))
        total = len(headers) + len(payload)
        if total > self.link.max_payload:
            text = f"message of {total} bytes with its envelope; NATS takes {self.link.max_payload}"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, text)
        head = f"HPUB {subject} {message.ackInbox} {len(headers)} {total}\r\n".encode()
        return b"".join((head, headers, payload, b"\r\n"))

    async def _room(self, length: int, timeout_s: float) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.gate.take(length + _OVERHEAD)
        except TimeoutError:
            text = "too many publishes wait for their acks; try again later"
            raise CallError(grpc.StatusCode.UNAVAILABLE, text) from None

    def on_messages(self, messages: dict[bytes, list[Message]]) -> None:
        """Take what the link brings: acks, and who is not there."""
        for came in messages.values():
            for message in came:
                waiting = self._waiting.get(message.subject.decode().rpartition(".")[2])
                if waiting is None or waiting[0].done():
                    continue  # of one that has its answer
                answers, stream = waiting
                if message.headers.startswith(_NO_RESPONDERS):
                    answers.set_result("nobody")
                    continue
                try:
                    ack = decode_ack_envelope(message.payload)
                except CorruptError:  # somebody else's answer to the same message
                    self.counts["foreign"] += 1
                    continue
                if stream and not ack.errorNumber and ack.stream != stream:
                    self.counts["foreign"] += 1
                    continue
                answers.set_result(ack)
