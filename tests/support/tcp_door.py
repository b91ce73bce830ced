"""A TCP door in front of a real server that carries bytes, or breaks a connection as told.

Faults strike where the client says something of note: a `mark` in what it sends, such as COMMIT.
"""

import socket
import struct
import threading
from collections import deque
from enum import Enum, auto


class Break(Enum):
    """What becomes of a connection at the mark."""

    RESET = auto()
    """The server does not get it, and the client gets a reset."""

    TAKEN = auto()
    """The server gets it and answers, and the client gets a reset in the answer's place."""

    HANG = auto()
    """The server does not get it, and the client gets nothing."""


class TcpDoor:
    """Listens on a port of its own.

    Args:
        port: Of the server.
        mark: What the client says where faults strike.
        own_port: Of the door; any that is free where it is 0.

    Attributes:
        faults: What becomes of the next marks, None lets one through; then everything is.
        marks: How many were seen.
    """

    def __init__(self, port: int, mark: bytes, own_port: int = 0) -> None:
        self.faults: deque[Break | None] = deque()
        self.marks = 0
        self._target = ("127.0.0.1", port)
        self._mark = mark
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", own_port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and break what is open."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _reset(each)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            answered = threading.Event()
            for carry in (self._there, self._back):
                threading.Thread(target=carry, args=(near, far, answered), daemon=True).start()

    def _there(self, near: socket.socket, far: socket.socket, taken: threading.Event) -> None:
        while data := _received(near):
            fault = None
            if self._mark in data:
                self.marks += 1
                fault = self.faults.popleft() if self.faults else None
            if fault is Break.HANG:
                self._closed.wait(60)
            if fault in (Break.HANG, Break.RESET):
                break
            if fault is Break.TAKEN:
                taken.set()
            try:
                far.sendall(data)
            except OSError:
                break
            if fault is Break.TAKEN:
                return  # the answer's carrier ends both
        _reset(near)
        _reset(far)

    def _back(self, near: socket.socket, far: socket.socket, taken: threading.Event) -> None:
        while data := _received(far):
            if taken.is_set():
                break
            try:
                near.sendall(data)
            except OSError:
                break
        _reset(near)
        _reset(far)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def _reset(end: socket.socket) -> None:
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # gone already
    finally:
        end.close()
