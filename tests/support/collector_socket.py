"""A collector's Unix socket as its protocol describes it, whose moods a test decides."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct(">I")
Answer = dict[str, Any] | None


@dataclass
class Received:
    """One batch as it came in.

    Attributes:
        repeat: A batch of this sender with this sequence was taken before.
    """

    header: dict[str, Any]
    lines: list[bytes]
    repeat: bool


def take(received: Received) -> Answer:
    """The answer of a collector that is well."""
    return {"ack": received.header["seq"]}


@dataclass
class CollectorSocket:
    """Listens on `path`; `answer` decides what to say to a batch, None is silence.

    A batch is taken (into `records`) when it is new and its answer is an ack, or when `answer`
    returned None with `takes_silently`: then it is durable and its ack got lost.
    """

    path: Path
    answer: Callable[[Received], Answer] = take
    takes_silently: bool = False
    batches: list[Received] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    connections: int = 0

    def start(self) -> None:
        """Listen, in a thread."""
        self.path.unlink(missing_ok=True)
        self._closing = False
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def stop(self) -> None:
        """Close the listener and every connection; what was taken stays."""
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            self._hang_up(connection)
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def hang_up(self) -> None:
        """Close every connection, and go on listening."""
        for connection in self._open:
            self._hang_up(connection)

    def bodies(self) -> list[str]:
        """The bodies of the log records that were taken, in order."""
        return [json.loads(record)["body"] for record in self.records]

    def _accept(self) -> None:
        threads = []
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            self.connections += 1
            self._open.append(connection)
            threads.append(threading.Thread(target=self._serve, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while body := self._frame(connection):
                    answer = self._judge(body)
                    if answer is not None:
                        data = json.dumps(answer).encode()
                        connection.sendall(_LENGTH.pack(len(data)) + data)
            except OSError:
                pass  # the test, or the emitter, ended the connection

    def _frame(self, connection: socket.socket) -> bytes:
        head = connection.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return b""
        (length,) = _LENGTH.unpack(head)
        body = connection.recv(length, socket.MSG_WAITALL)
        return body if len(body) == length else b""

    def _judge(self, body: bytes) -> Answer:
        head, _, rest = body.partition(b"\n")
        header = json.loads(head)
        lines = rest.split(b"\n") if rest else []
        assert len(lines) == header["count"], "count is the number of lines"
        last = self.last.get(header["sender"], 0)
        received = Received(header, lines, repeat=header["seq"] <= last)
        self.batches.append(received)
        answer = self.answer(received)
        taken = "ack" in answer if answer is not None else self.takes_silently
        if taken and not received.repeat:
            self.last[header["sender"]] = header["seq"]
            self.records += lines
        if answer is not None and answer.get("retry") is False:
            self.refused += len(lines)
        return answer

    def _hang_up(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
