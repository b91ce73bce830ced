"""A sender of Fluent forward, whose every message asks for an ack."""

import socket
import threading

import msgpack


class Chunks:
    """Sends numbered chunks, each on a connection of its own, until stopped."""

    def __init__(self, port: int, what: str = "number") -> None:
        self.kept: list[str] = []
        self._port = port
        self._what = what
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            body = f"{self._what} {number}"
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                    chunk = ["app", 5, {"message": body}, {"chunk": body}]
                    connection.sendall(msgpack.packb(chunk))
                    if connection.recv(4096) == msgpack.packb({"ack": body}):
                        self.kept.append(body)
            except OSError:
                self._stop.wait(0.02)  # the one it met is away

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
