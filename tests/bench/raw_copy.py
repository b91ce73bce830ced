"""The limit of reading back: `cat file | socket`, without any protocol.

A process of its own that sends the same files to each client, each connection in a thread that
holds no lock while the kernel copies. It is ended by its worker's owner.
"""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bench.worker import work

_CHUNK: Final = 1024 * 1024


def _sendfile(connection: socket.socket, path: Path) -> None:
    with path.open("rb") as file:
        position = 0
        while sent := os.sendfile(connection.fileno(), file.fileno(), position, _CHUNK):
            position += sent


def _read_send(connection: socket.socket, path: Path) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            connection.sendall(buffer[:count])


WAYS: Final[dict[str, Callable[[socket.socket, Path], None]]] = {
    "sendfile": _sendfile,
    "read and send": _read_send,
}


def _prepare(job: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    files = [Path(name) for name in job["files"]]
    way = WAYS[job["way"]]
    server = socket.create_server(("127.0.0.1", job["port"]), backlog=64)

    def serve(connection: socket.socket) -> None:
        with connection:
            for path in files:
                way(connection, path)

    def run() -> dict[str, Any]:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    return run


if __name__ == "__main__":
    work(_prepare)
