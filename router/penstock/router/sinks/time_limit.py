"""A limit on the whole of an exchange over a socket.

A socket's own limit is for each read; one byte each few seconds would pass it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(opened: socket.socket, seconds: float) -> Iterator[threading.Event]:
    """End the connection if the block takes longer; the event says whether that was so."""
    late = threading.Event()

    def end() -> None:
        late.set()
        try:
            opened.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed already

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
