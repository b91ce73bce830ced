"""The publisher and the reader of the plan `failover`, each a process of its own.

    python -m tests.harness.outside publish URL SUBJECT RATE FILE
    python -m tests.harness.outside read ADDRESSES STREAM FILE

The publisher sends numbered messages at a rate, many at a time in flight, each with its id, and
again until it is acked. Where the cluster takes fewer, it sends fewer: a sender that keeps the
rate and sends again what waits in a queue soon sends nothing but repeats. What is acked goes to a
file as it comes: number, offset, when (monotonic nanoseconds), and how long ago it was sent first;
four 64-bit integers each. A line on its standard input is the rate of new messages from then on; it
ends when that does.

The reader follows the stream as an application does, and writes to a file when records came
(monotonic nanoseconds) and the offset after the last; two 64-bit integers each. A gap or a
repetition ends it.
"""

import os
import re
import select
import sys
from array import array
from pathlib import Path
from time import perf_counter_ns
from typing import BinaryIO, Final

from penstock.logd.client import FollowOptions, LogClient
from tests.bench.nats_wire import Connection

ACK_FIELDS: Final = 4
READ_FIELDS: Final = 2

DIGITS: Final = 12
"""Of a message's number, which its value begins with."""

SIZE_BYTES: Final = 64
_TICK_NS: Final = 5_000_000
_RETRY_NS: Final = 500_000_000
"""After this without an ack a message is sent again, or after twice the time that acks take now,
if that is longer (as RFC 6298 has it for TCP)."""

_SMOOTH: Final = 0.05
"""Weight of the acks that come together, in the time that acks take."""

_LOOK_NS: Final = 500_000_000
"""How often the rate is measured at which acks come."""

_LESS: Final = 0.8
"""How much of the rate is left, at least, from one look to the next."""

_UNANSWERED_NS: Final = 500_000_000
"""As many messages may wait for their acks as are acked in this, and in the time that none is."""

_AWAY_NS: Final = 2_000_000_000
"""So long at most."""

_INBOX: Final = b"_INBOX.failover"
_ACK: Final = re.compile(rb'MSG _INBOX\.failover\.(\d+) 1 \d+\r\n\{[^\r]*?"offset": ?(\d+)')


class Publisher:
    """Publishes at a rate, or at the one that is acked if that is less."""

    def __init__(self, url: str, subject: str, rate: float, acks: BinaryIO) -> None:
        self._connection = Connection(url)
        self._connection.subscribe(_INBOX + b".*")
        self._subject = subject.encode()
        self._rate = self._rate_max = rate
        self._acks = acks
        self._waiting: dict[int, tuple[int, int]] = {}
        self._next = 0
        self._takes_ns = 0.0
        self._acked_rate = rate
        self._acked = 0
        self._looked_ns = self._heard_ns = perf_counter_ns()

    def run(self) -> None:
        """Publish until the standard input ends, then wait for what is not acked yet."""
        due_ns, stopping = perf_counter_ns(), False
        watched = [self._connection.socket, sys.stdin]
        while not stopping or self._waiting:
            wait_s = max(0, due_ns - perf_counter_ns()) / 1e9
            readable = select.select(watched[: 1 if stopping else 2], [], [], wait_s)[0]
            if sys.stdin in readable:
                stopping = not self._told()
            if self._connection.socket in readable:
                self._take(self._connection.lines())
            now_ns = perf_counter_ns()
            if now_ns >= due_ns:
                ticks = min(1 + (now_ns - due_ns) // _TICK_NS, 100)
                due_ns = max(due_ns + ticks * _TICK_NS, now_ns)
                seconds = ticks * _TICK_NS / 1e9
                new = 0.0 if stopping else self._rate
                self._send(int(self._rate_max * seconds), int(new * seconds), now_ns)

    def _told(self) -> bool:
        """Take a new rate; False at the end."""
        said = os.read(sys.stdin.fileno(), 4096)
        if said:
            self._rate = float(said.split()[-1])
            self._acked_rate = max(self._rate, self._acked_rate)
        return bool(said)

    def _send(self, count: int, new: int, now_ns: int) -> None:
        """So many messages: first again those that have waited, then at most so many new ones."""
        again: list[int] = []
        for number, (_, sent_ns) in self._waiting.items():
            if now_ns - sent_ns < max(_RETRY_NS, 2 * self._takes_ns) or len(again) == count:
                break
            again.append(number)
        for number in again:  # to the end: the waiting ones are in the order of their last sending
            first_ns, _ = self._waiting.pop(number)
            self._waiting[number] = first_ns, now_ns
        unanswered_ns = _UNANSWERED_NS + min(now_ns - self._heard_ns, _AWAY_NS)
        unanswered_max = int(self._acked_rate * unanswered_ns / 1e9)
        room = min(count - len(again), new, unanswered_max - len(self._waiting))
        first = range(self._next, self._next + max(0, room))
        self._next = first.stop
        self._waiting.update(dict.fromkeys(first, (now_ns, now_ns)))
        if again or first:
            self._connection.send(b"".join(map(self._message, (*again, *first))))

    def _message(self, number: int) -> bytes:
        headers = b"NATS/1.0\r\nNats-Msg-Id: f%d\r\n\r\n" % number
        value = b"%0*d" % (DIGITS, number)
        value = value.ljust(SIZE_BYTES, b".")
        sizes = (len(headers), len(headers) + len(value))
        head = b"HPUB %b %b.%d %d %d\r\n" % (self._subject, _INBOX, number, *sizes)
        return b"%b%b%b\r\n" % (head, headers, value)

    def _take(self, data: bytes) -> None:
        found, now_ns = array("q"), perf_counter_ns()
        for number_text, offset in _ACK.findall(data):
            number = int(number_text)
            sent = self._waiting.pop(number, None)
            if sent is not None:
                found.extend((number, int(offset), now_ns, now_ns - sent[0]))
        self._acks.write(found.tobytes())
        if found:
            self._look(len(found) // ACK_FIELDS, min(found[ACK_FIELDS - 1 :: ACK_FIELDS]), now_ns)

    def _look(self, count: int, took_ns: int, now_ns: int) -> None:
        """Take in that acks have come, the quickest after so long. While none do, nothing changes.

        The others may have been lost on the way first, which says nothing of how long acks take.
        """
        self._takes_ns += _SMOOTH * (min(took_ns, _AWAY_NS) - self._takes_ns)
        self._acked += count
        self._heard_ns = now_ns
        passed_ns = now_ns - self._looked_ns
        if passed_ns >= _LOOK_NS:
            rate = self._acked * 1e9 / passed_ns
            self._acked_rate = min(self._rate, max(rate * 1.1, _LESS * self._acked_rate))
            self._looked_ns, self._acked = now_ns, 0


def _publish(url: str, subject: str, rate: str, path: str) -> None:
    with Path(path).open("wb", buffering=0) as acks:
        Publisher(url, subject, float(rate), acks).run()


def _read(servers: str, stream: str, path: str) -> None:
    reached = 0
    with LogClient(servers, timeout_s=5.0) as log, Path(path).open("wb", buffering=0) as seen:
        for header, rows in log.follow_batches(stream, 0, FollowOptions(wait_s=0.5)):
            assert header.next_offset == reached + rows.num_rows, (header, reached)
            reached = header.next_offset
            seen.write(array("q", (perf_counter_ns(), reached)).tobytes())


if __name__ == "__main__":
    _verb, *_arguments = sys.argv[1:]
    if _verb == "publish":
        _publish(*_arguments)
    else:
        _read(*_arguments)
