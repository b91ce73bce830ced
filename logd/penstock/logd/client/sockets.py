"""The blocking client's connections: at most one to each node, made when first needed."""

import socket
from collections.abc import Callable
from typing import TypeVar

from penstock.logd.client.address import split_address
from penstock.logd.client.calls import Call
from penstock.logd.client.clock import monotonic_ns
from penstock.logd.client.course import Course
from penstock.logd.client.decoder import Response, ResponseDecoder
from penstock.logd.client.routing import Router, Step
from penstock.logd.errors import CorruptError, RefusedError
from penstock.logd.fetch.wire import encode_request, raise_error

Answer = TypeVar("Answer")


class Sockets:
    """Makes calls, each to its end. Not for use by several threads at once.

    Args:
        router: Says whom to ask.
        timeout_s: Seconds without a byte of an answer that is due.
        sleep: Waits so many seconds.
    """

    def __init__(self, router: Router, timeout_s: float, sleep: Callable[[float], None]) -> None:
        self._router = router
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._open: dict[str, socket.socket] = {}
        self._last_id = 0

    def close(self) -> None:
        """Close every connection; the next call opens another."""
        for address in list(self._open):
            self._drop(address)

    def call(self, call: Call[Answer]) -> Answer:
        """Make a call.

        Raises:
            LogdError: As the methods of `LogClient` say.
        """
        course = Course(self._router, call, monotonic_ns())
        while True:
            step = course.step(monotonic_ns())
            if step.pause_s:
                self._sleep(step.pause_s)
            reused = step.address in self._open
            try:
                header, payload = self._exchange(step)
            except OSError as error:
                sent = step.address in self._open
                self._drop(step.address)
                course.failed(step, error, sent=sent, reused=reused, now_ns=monotonic_ns())
                continue
            except BaseException:  # also an interrupt: what is left of the answer must not be read
                course.abandoned()
                self._drop(step.address)
                raise
            try:
                raise_error(header)
            except RefusedError as error:
                course.refused(step, error, monotonic_ns())
                continue
            answer = step.call.read(header, payload)
            if course.answered(step, answer, monotonic_ns()):
                return answer  # type: ignore[no-any-return] # the call's own

    def _exchange(self, step: Step) -> Response:
        connection = self._open.get(step.address)
        if connection is None:
            address = split_address(step.address)
            connection = socket.create_connection(address, step.connect_s)
            self._open[step.address] = connection
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_id += 1
        connection.settimeout(self._timeout_s + step.call.wait_s)
        connection.sendall(encode_request(step.request | {"id": self._last_id}))
        decoder = ResponseDecoder(step.address)
        while True:
            count = connection.recv_into(decoder.room())
            if count == 0:
                raise ConnectionResetError("the server closed the connection")
            response = decoder.filled(count)
            if response is not None:
                break
        if response[0].get("id") not in (self._last_id, 0):
            raise CorruptError(f"answer to request {response[0].get('id')}", where=step.address)
        return response

    def _drop(self, address: str) -> None:
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()
