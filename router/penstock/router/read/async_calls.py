"""Calls of logd's asyncio client, many at a time, by code that blocks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.logd.client import AsyncLogClient

_T = TypeVar("_T")


class AsyncCalls:
    """An asyncio client and the event loop that it runs in, both made when they are first needed.

    Args:
        connect: Makes the client.
    """

    def __init__(self, connect: Callable[[], AsyncLogClient]) -> None:
        self._connect = connect
        self._open: tuple[asyncio.Runner, AsyncLogClient] | None = None

    def run(self, make: Callable[[AsyncLogClient], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of the coroutine that `make` returns for the client."""
        if self._open is None:
            self._open = asyncio.Runner(), self._connect()
        runner, client = self._open
        return runner.run(make(client))

    def close(self) -> None:
        """Close the client's connections."""
        if self._open is not None:
            (runner, client), self._open = self._open, None
            runner.run(client.__aexit__(None, None, None))
            runner.close()
