"""Connections of the blocking client: at most one to each node, with one request at a time."""

import os
import socket
import time
from typing import TypeVar

from penstock.base.clock import monotonic_ns
from penstock.logd.api.operations import Document
from penstock.logd.api.protocol import Response, ResponseDecoder, encode_request, raise_error
from penstock.logd.client.access import ANYBODY, Access
from penstock.logd.client.calls import Call
from penstock.logd.client.routing import CallAttempt, MetadataCache, NextAction, split_address
from penstock.logd.errors import CorruptError, RefusedError

Answer = TypeVar("Answer")


class SocketPool:
    """Makes calls, each to its end. Not for use by several threads at once.

    A forked child opens new connections. On its parent's connections each of the two processes
    would read answers to the other's requests.

    Args:
        router: Says whom to ask.
        timeout_s: Seconds without a byte of an answer that is due.
        access: Credentials of the client.
    """

    def __init__(self, router: MetadataCache, timeout_s: float, access: Access = ANYBODY) -> None:
        self._access = access
        self._router = router
        self._timeout_s = timeout_s
        self._open: dict[str, socket.socket] = {}
        self._process = os.getpid()
        self._last_id = 0

    def close(self) -> None:
        """Close every connection; the next call opens another."""
        for address in list(self._open):
            self._drop(address)

    def finish(self) -> None:
        """Close every connection."""
        self.close()

    def call(self, call: Call[Answer]) -> Answer:
        """Make a call.

        Raises:
            LogdError: As the methods of `LogClient` say.
        """
        if self._process != os.getpid():
            self.close()  # the parent has its own descriptors of them
            self._process = os.getpid()
        course, again = CallAttempt(self._router, call, monotonic_ns()), False
        while True:
            step = course.step(monotonic_ns())
            if step.pause_s:
                time.sleep(step.pause_s)
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
                if reused and not again and self._access.may_know_more(error):
                    again = True
                    self._drop(step.address)
                    continue
                course.refused(step, error, monotonic_ns())
                continue
            answer = step.call.answer(header, payload, step.address)
            if course.answered(step, answer, monotonic_ns()):
                return answer  # type: ignore[no-any-return] # the call's own

    def _exchange(self, step: NextAction) -> Response:
        connection = self._open.get(step.address)
        if connection is None:
            connection = self._connect(step)
            self._open[step.address] = connection
        connection.settimeout(self._timeout_s + step.call.wait_s)
        return self._ask(connection, step.request, step.address, step.call.upload)

    def _connect(self, step: NextAction) -> socket.socket:
        """A connection on which this client is authenticated."""
        address = split_address(step.address)
        context, greeting = self._access.context(), self._access.greeting(address[0])
        connection = socket.create_connection(address, step.connect_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection = context.wrap_socket(connection, server_hostname=address[0])
            if greeting is not None:
                raise_error(self._ask(connection, greeting, step.address)[0])
        except BaseException:
            connection.close()
            raise
        return connection

    def _ask(
        self, connection: socket.socket, request: Document, where: str, upload: bytes = b""
    ) -> Response:
        """Send a request, and wait for what it is answered."""
        self._last_id += 1
        connection.sendall(encode_request(request | {"id": self._last_id}, upload))
        decoder = ResponseDecoder(where)
        while True:
            count = connection.recv_into(decoder.room())
            if count == 0:
                raise ConnectionResetError("the server closed the connection")
            response = decoder.filled(count)
            if response is not None:
                break
        if response[0].get("id") not in (self._last_id, 0):
            raise CorruptError(f"answer to request {response[0].get('id')}", where=where)
        return response

    def _drop(self, address: str) -> None:
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()
