"""Requests over HTTP/1.1: one kept-alive connection, a time limit on the whole of an answer.

A connection is left when the destination says so, when it answers with a failure of its own (5xx),
and when it is `CONNECTION_AGE_S` old: behind one name there may be many backends, and one of them
that drains answers 503 for as long as somebody stays. For each new connection the name is resolved
again; of its addresses one is taken at random, and the one that was left last.

Redirects are not followed: the request's secrets are for one host.
"""

import gzip
import http.client
import random
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from penstock.base.clock import BlockingClock
from penstock.router.core.http_codes import Answer
from penstock.router.sinks.time_limit import time_limit

Compression = Literal["none", "gzip", "zstd"]

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of an answer's body: that of a bulk request names each record of it."""

CONNECTION_AGE_S: Final = 60.0
"""Seconds that a connection is kept: so long a change of the name's addresses may go unnoticed."""

_FAILURE: Final = 500
"""The first status code that speaks of the destination, not of the request (RFC 9110, 15.6)."""

_CONNECT_S_MIN: Final = 0.2
"""Seconds that each address has at least."""

_GZIP_LEVEL: Final = 5
_ZSTD_LEVEL: Final = 3
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""RFC 9110, section 5; what the library says of others repeats them."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request.

    Attributes:
        path: With its query.
        headers: Without those of the connection; `Content-Encoding` comes with the compression.
        body: Before it is compressed.
        compression: Of the body.
        secrets: Headers that nobody may see.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    compression: Compression = "none"
    method: str = "POST"
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def forbidden(self) -> str | None:
        """The name of a header that cannot be sent; its value may be a secret."""
        return forbidden_header({**self.headers, **self.secrets})


def forbidden_header(headers: Mapping[str, str]) -> str | None:
    """The first name that HTTP forbids, or that has a value which it forbids."""
    for name, value in headers.items():
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return name
    return None


@dataclass(frozen=True, slots=True)
class NotSent:
    """There was no connection; the destination saw nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Silent:
    """It was sent, and there was no answer: nobody knows whether it was taken."""

    reason: str


Reply = Answer | NotSent | Silent


class Transport:
    """The connection to one host.

    Args:
        url: Of the destination; its scheme, host and port count.
        timeout_s: For connecting, and for the whole of an answer.
        tls: For `https`; the system's authorities without it.
        rng: Chooses among the addresses of a name.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        clock: BlockingClock,
        tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._url = urlsplit(url)
        self._timeout_s = timeout_s
        self._clock = clock
        self._tls = tls
        self._rng = rng or random.Random()  # noqa: S311 - no secret
        self._connection: http.client.HTTPConnection | None = None
        self._connected_ns = 0
        self._last: tuple[Any, ...] | None = None
        self.repeated = False
        """Whether the last request went twice, on a new connection when the kept one had ended."""

    def send(self, request: HttpRequest) -> Reply:
        """Send a request and wait for its answer."""
        body, encoding = compressed(request.body, request.compression)
        headers = {**request.headers, **encoding, **request.secrets}
        age_ns = self._clock.monotonic_ns() - self._connected_ns
        if age_ns > CONNECTION_AGE_S * 1e9:
            self.close()
        kept = self._connection is not None
        reply = self._exchange(request, headers, body)
        self.repeated = (
            kept and isinstance(reply, Silent) and reply.reason.startswith("RemoteDisconnected")
        )
        if self.repeated:
            # A kept connection that the destination had closed meanwhile, as servers do.
            again = self._exchange(request, headers, body)
            # Where there is no other connection, what went over the first may have been taken.
            return reply if isinstance(again, NotSent) else again
        return reply

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, request: HttpRequest, headers: Mapping[str, str], body: bytes) -> Reply:
        try:
            connection = self._connected()
        except OSError as error:
            self.close()
            return NotSent(f"{type(error).__name__}: {error}")
        with time_limit(connection.sock, self._timeout_s) as late:
            try:
                return self._answer(connection, request, headers, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                # ValueError: the connection was ended in the middle of a read.
                self.close()
                if late.is_set():
                    return Silent(f"TimeoutError: no answer within {self._timeout_s:g} s")
                if isinstance(error, ValueError):  # it may tell of a header's value
                    return Silent(f"{type(error).__name__} while an answer was awaited")
                return Silent(f"{type(error).__name__}: {error}")

    def _answer(
        self,
        connection: http.client.HTTPConnection,
        request: HttpRequest,
        headers: Mapping[str, str],
        body: bytes,
    ) -> Answer:
        cut_short: OSError | None = None
        try:
            connection.request(request.method, request.path, body=body, headers=dict(headers))
        except (BrokenPipeError, ConnectionResetError) as error:
            cut_short = error  # a server may answer 413 and close before the body is through
        try:
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            if cut_short is not None:
                raise cut_short from None
            raise
        found = answer.read(ANSWER_BYTES_MAX)
        names = {name.lower(): value for name, value in answer.getheaders()}
        failed = answer.status >= _FAILURE
        if failed or answer.will_close or not answer.isclosed() or cut_short is not None:
            self.close()
        after_s = retry_after_s(names.get("retry-after"), self._clock.unix_ns())
        return Answer(answer.status, names, found, after_s)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host = self._url.hostname or ""
            made: http.client.HTTPConnection
            if self._url.scheme == "https":
                context = self._tls or ssl.create_default_context()
                made = http.client.HTTPSConnection(
                    host, self._url.port, timeout=self._timeout_s, context=context
                )
                opened = self._open(host, made.port)
                try:
                    made.sock = context.wrap_socket(opened, server_hostname=host)
                except BaseException:
                    opened.close()
                    raise
            else:
                made = http.client.HTTPConnection(host, self._url.port, timeout=self._timeout_s)
                made.sock = self._open(host, made.port)
            self._connection = made
            self._connected_ns = self._clock.monotonic_ns()
        return self._connection

    def _open(self, host: str, port: int) -> socket.socket:
        """A connection to one of a name's addresses, within the time limit for all of them.

        Raises:
            OSError: Of the last one: none can be reached.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        order = self._ordered([(one[0], one[4]) for one in found])
        end_ns = self._clock.monotonic_ns() + int(self._timeout_s * 1e9)
        for number, (family, address) in enumerate(order, 1):
            left_s = (end_ns - self._clock.monotonic_ns()) / 1e9
            opened = socket.socket(family, socket.SOCK_STREAM)
            try:
                opened.settimeout(max(left_s / (len(order) - number + 1), _CONNECT_S_MIN))
                opened.connect(address)
                opened.settimeout(self._timeout_s)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                opened.close()
                if number == len(order):
                    raise
            else:
                self._last = address
                return opened
        raise OSError(f"{host}: the name has no addresses")

    def _ordered(
        self, found: list[tuple[socket.AddressFamily, tuple[Any, ...]]]
    ) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
        """At random within a family, in the system's order of families; the last one used last."""
        families = list(dict.fromkeys(family for family, _ in found))
        shuffled = self._rng.sample(found, len(found))
        return sorted(shuffled, key=lambda one: (one[1] == self._last, families.index(one[0])))


def compressed(body: bytes, how: Compression) -> tuple[bytes, dict[str, str]]:
    """A body and its `Content-Encoding`; the same bytes each time."""
    match how:
        case "gzip":
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        case "zstd":
            import zstandard

            body = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
        case _:
            pass
    return body, encoding_of(how)


def encoding_of(how: Compression) -> dict[str, str]:
    """What a request's headers say of its compression."""
    return {} if how == "none" else {"Content-Encoding": how}


def retry_after_s(text: str | None, now_unix_ns: int) -> float:
    """Seconds from now, from either form of the header (RFC 9110, section 10.2.3)."""
    if text is None:
        return 0.0
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(moment.timestamp() - now_unix_ns / 1e9, 0.0)
