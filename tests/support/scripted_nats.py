"""A NATS server for tests: it records what is published, and answers as logd does."""

import json
import socket
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Self

_INFO: Final = (
    b"INFO "
    + json.dumps(
        {
            "server_id": "a",
            "version": "2.10.0",
            "max_payload": 1 << 20,
            "proto": 1,
            "headers": True,
        }
    ).encode()
)


class Published(NamedTuple):
    """One message that came."""

    subject: str
    payload: bytes
    headers: dict[str, str]


class ScriptedNats:
    """Listens until the `with` ends; one client at a time.

    Args:
        denied: Subjects that nobody may publish to; the server says so beside its answers.

    Attributes:
        published: What came, in order; what was denied is not there.
    """

    def __init__(self, *, denied: Iterable[str] = ()) -> None:
        self.published: list[Published] = []
        self._denied = {*denied}
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        """For clients."""
        return f"nats://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb", buffering=0) as stream:
                try:
                    self._attend(stream)  # type: ignore[arg-type]
                except OSError:
                    continue

    def _attend(self, stream: BinaryIO) -> None:
        subscriptions: dict[str, str] = {}
        stream.write(_INFO + b"\r\n")
        while line := stream.readline():
            verb, *words = line.decode().split()
            match verb.upper():
                case "PING":
                    stream.write(b"PONG\r\n")
                case "SUB":
                    subscriptions[words[0].removesuffix("*")] = words[-1]
                case "PUB" | "HPUB":
                    self._take(stream, verb.upper(), words, subscriptions)
                case _:
                    continue  # CONNECT, UNSUB: nothing follows

    def _take(
        self, stream: BinaryIO, verb: str, words: list[str], subscriptions: dict[str, str]
    ) -> None:
        body = _exactly(stream, int(words[-1]) + 2)[:-2]
        above = int(words[-2]) if verb == "HPUB" else 0
        headers = dict(
            line.split(": ", 1) for line in body[:above].decode().split("\r\n")[1:] if line
        )
        subject, reply = words[0], words[1] if len(words) > (3 if above else 2) else ""
        if subject in self._denied:
            stream.write(f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode())
            return
        self.published.append(Published(subject, body[above:], headers))
        for inbox, number in subscriptions.items():
            if reply.startswith(inbox):
                number_of_it = len(self.published)
                ack = {"stream": "s", "seq": number_of_it, "offset": number_of_it - 1, "epoch": 1}
                said = json.dumps(ack)
                stream.write(f"MSG {reply} {number} {len(said)}\r\n{said}\r\n".encode())


def _exactly(stream: BinaryIO, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := stream.read(size - len(found))):
        found += more
    return found
