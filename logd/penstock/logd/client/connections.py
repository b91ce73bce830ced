"""The asyncio client's connections: at most one to each node, made when first needed."""

import asyncio
from typing import Any, TypeVar

from penstock.base.clock import monotonic_ns
from penstock.logd.client.access import ANYBODY, Access
from penstock.logd.client.address import split_address
from penstock.logd.client.calls import Call
from penstock.logd.client.connection import Connection
from penstock.logd.client.course import Course
from penstock.logd.client.decoder import Response
from penstock.logd.client.routing import Router, Step
from penstock.logd.errors import RefusedError
from penstock.logd.fetch.wire import Document, raise_error

Answer = TypeVar("Answer")


class Connections:
    """Makes calls, each to its end; many at a time.

    Args:
        router: Says whom to ask.
        timeout_s: Seconds without a byte for an answer that is due.
        access: How it is let in.
    """

    def __init__(self, router: Router, timeout_s: float, access: Access = ANYBODY) -> None:
        self._access = access
        self._router = router
        self._timeout_s = timeout_s
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    def close(self) -> list[Connection]:
        """Close every connection: calls under way fail, the next opens another."""
        closed = list(self._open.values())
        for address in list(self._open):
            self._drop(address)
        return closed

    async def call(self, call: Call[Answer]) -> Answer:
        """Make a call.

        Raises:
            LogdError: As the methods of `LogClient` say.
        """
        course, again = Course(self._router, call, monotonic_ns()), False
        while True:
            step = course.step(monotonic_ns())
            if step.pause_s:
                await asyncio.sleep(step.pause_s)
            sent = reused = False
            try:
                connection, reused = await self._connected(step)
                sent = True
                header, payload = await self._answered(connection, step.request, step.call)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    self._drop(step.address)
                course.failed(step, error, sent=sent, reused=reused, now_ns=monotonic_ns())
                continue
            except BaseException:
                course.abandoned()
                raise
            try:
                raise_error(header)
            except RefusedError as error:
                if reused and not again and self._access.may_know_more(error):
                    again = True
                    self._drop(step.address, connection)
                    continue
                course.refused(step, error, monotonic_ns())
                continue
            answer = step.call.answer(header, payload, step.address)
            if course.answered(step, answer, monotonic_ns()):
                return answer  # type: ignore[no-any-return] # the call's own

    async def _connected(self, step: Step) -> tuple[Connection, bool]:
        """The connection, and whether it was there before."""
        async with self._opening.setdefault(step.address, asyncio.Lock()):
            present = self._open.get(step.address)
            if present is not None and not present.closed:
                return present, True
            async with asyncio.timeout(step.connect_s):
                address = split_address(step.address)
                connection = await Connection.open(address, step.address, self._access)
            self._open[step.address] = connection
            return connection, False

    async def _answered(
        self, connection: Connection, request: Document, call: Call[Any]
    ) -> Response:
        """An answer, as long as the server is not silent for longer than it may be."""
        loop = asyncio.get_running_loop()
        due = loop.time() + call.wait_s
        answer = connection.request(request, call.upload)
        try:
            while not answer.done():
                silent_until = max(due, connection.received_at) + self._timeout_s
                if silent_until <= loop.time():
                    raise TimeoutError
                await asyncio.wait({answer}, timeout=silent_until - loop.time())
            return answer.result()
        finally:
            answer.cancel()

    def _drop(self, address: str, only: Connection | None = None) -> None:
        """Close a connection, unless it is another one than `only` by now."""
        connection = self._open.get(address)
        if connection is not None and only in (None, connection):
            del self._open[address]
            connection.close()
