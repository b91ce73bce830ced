"""What Python is about to ask of the system: tests look at it, refuse it, or do something first.

`sys.addaudithook` takes no hook back, so there is one, which does nothing while nobody listens.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, tuple[Any, ...]], None]
"""Given an event and its arguments, as the library reference lists them ("Audit events table");
what it raises is raised where the system would have been asked."""

_LISTENERS: list[Listener] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for listener in tuple(_LISTENERS):
        listener(event, arguments)


@contextmanager
def audited(listener: Listener) -> Iterator[None]:
    """Tell a listener of every event, of whatever thread, while the block lasts."""
    if not _LISTENERS and not _ADDED:
        sys.addaudithook(_hook)
        _ADDED.append(True)
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


_ADDED: list[bool] = []
