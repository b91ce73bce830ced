"""JetStream's fast ingest: a batch without end, answered as often as the server wishes.

The protocol is that of NATS ADR-50 ("Fast-ingest Batch Publishing", server 2.14). Each message has
a reply subject `<inbox>.<batch>.<flow>.<gap mode>.<sequence>.<operation>.$FI`; the server answers
every `flow` messages, and sets `flow` itself, up to what was asked for. Two answers may be
outstanding, as the ADR advises.
"""

import json
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

from tests.bench.nats_wire import Connection

FLOW: Final = 1000
"""Messages for each answer, at most: what the other kinds have as window."""

_PART: Final = 50
"""Messages that are sent in one write."""

_OUTSTANDING: Final = 2

_INBOX: Final = b"_INBOX.fast"


class FastIngest:
    """One batch.

    Attributes:
        flow: Messages for each answer, as the server set it last.
    """

    def __init__(self, connection: Connection, subject: str, payloads: Sequence[bytes]) -> None:
        self._connection = connection
        self._subject = subject.encode()
        self._payloads = payloads
        self._batch = b"%d" % perf_counter_ns()
        self._parts: list[tuple[int, bytes]] = []
        self._acked = 0
        self._done = False
        self.flow = 0
        connection.subscribe(b"%b.%b.>" % (_INBOX, self._batch))

    def prepare(self, count: int) -> None:
        """Make the messages; the first starts the batch, the last commits it."""
        assert count > 2
        self._parts.append((1, self._message(1, 0)))
        for first in range(2, count, _PART):
            following = min(first + _PART, count)
            lines = [self._message(number, 1) for number in range(first, following)]
            self._parts.append((following - 1, b"".join(lines)))
        self._parts.append((count, self._message(count, 2)))

    def run(self) -> None:
        """Publish it all.

        Raises:
            ConnectionError: The server found a gap or an error.
        """
        sent = 0
        for last, part in self._parts:
            while self.flow and self._acked + self.flow * _OUTSTANDING <= sent:
                self._take_answers()
            self._connection.send(part)
            sent = last
            if not self.flow:  # the first answer sets the pace
                self._take_answers()
        while not self._done:
            self._take_answers()

    def _message(self, sequence: int, operation: int) -> bytes:
        reply = b"%b.%b.%d.fail.%d.%d.$FI" % (_INBOX, self._batch, FLOW, sequence, operation)
        payload = self._payloads[sequence % len(self._payloads)]
        return b"PUB %b %b %d\r\n%b\r\n" % (self._subject, reply, len(payload), payload)

    def _take_answers(self) -> None:
        for line in self._connection.lines().split(b"\r\n"):
            if not line.startswith(b"{"):
                continue
            answer = json.loads(line)
            if answer.get("type") == "ack":
                self._acked, self.flow = answer["seq"], answer["msgs"]
            elif "error" in answer or "type" in answer:
                raise ConnectionError(f"fast ingest: {answer}")
            else:
                self._done = True
