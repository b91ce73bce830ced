"""Threads, locks and waiting of the operating system, also where gevent has replaced them.

The emitter's thread must go on while greenlets do not yield, and greenlets must never wait for it.
So it is a thread in every process, and what it shares with greenlets is locked for microseconds
only, within which no greenlet can lose its turn.
"""

import _socket
import _thread
import select
import socket
import sys
from collections.abc import Callable
from typing import Any


def _original(module: str, name: str, fallback: Any) -> Any:
    """Return what gevent replaced under `name`, or `fallback` where it replaced nothing."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_object_patched(module, name):
        return fallback
    return monkey.get_original(module, name)


def allocate_lock() -> Any:
    """A lock, as `_thread.allocate_lock` makes it."""
    return _original("_thread", "allocate_lock", _thread.allocate_lock)()


def reentrant_lock() -> Any:
    """A lock that its owner may take again."""
    return _original("_thread", "RLock", _thread.RLock)()


def start_thread(run: Callable[[], None]) -> None:
    """Start a thread that does not keep the process alive.

    Not `threading.Thread`: a signal handler may start one while the program is within `threading`.

    Raises:
        RuntimeError: There can be no more threads, or the interpreter is ending.
    """
    _original("_thread", "start_new_thread", _thread.start_new_thread)(run, ())


def thread_id() -> int:
    """Return the id of the operating system's thread, whichever greenlet runs on it."""
    found: int = _original("_thread", "get_ident", _thread.get_ident)()
    return found


def poll() -> Any:
    return _original("select", "poll", select.poll)()


def stream_socket(family: int) -> _socket.socket:
    """A stream socket without a time limit, in whose way nothing stands."""
    return _socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """Families and addresses that a name stands for.

    Raises:
        OSError: It stands for none.
    """
    found = _socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]
