"""Requests over HTTP/1.1: one kept-alive connection, a time limit on the whole of an answer.

Redirects are not followed: the request's secrets are for one host.
"""

import gzip
import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final, Literal
from urllib.parse import urlsplit

from penstock.router.clock import Clock
from penstock.router.core.http_codes import Answer
from penstock.router.sinks.time_limit import time_limit

Compression = Literal["none", "gzip", "zstd"]

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of an answer's body: that of a bulk request names each record of it."""

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
    """

    def __init__(
        self, url: str, *, timeout_s: float, clock: Clock, tls: ssl.SSLContext | None = None
    ) -> None:
        self._url = urlsplit(url)
        self._timeout_s = timeout_s
        self._clock = clock
        self._tls = tls
        self._connection: http.client.HTTPConnection | None = None
        self.repeated = False
        """Whether the last request went twice, on a new connection when the kept one had ended."""

    def send(self, request: HttpRequest) -> Reply:
        """Send a request and wait for its answer."""
        body, encoding = compressed(request.body, request.compression)
        headers = {**request.headers, **encoding, **request.secrets}
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
        if answer.will_close or not answer.isclosed() or cut_short is not None:
            self.close()
        after_s = retry_after_s(names.get("retry-after"), self._clock.unix_ns())
        return Answer(answer.status, names, found, after_s)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port = self._url.hostname or "", self._url.port
            if self._url.scheme == "https":
                context = self._tls or ssl.create_default_context()
                made: http.client.HTTPConnection = http.client.HTTPSConnection(
                    host, port, timeout=self._timeout_s, context=context
                )
            else:
                made = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            made.connect()
            self._connection = made
        return self._connection


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
