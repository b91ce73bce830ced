"""Requests of sinks over the one HTTP client: compressed, and what became of them.

`timeout_s` is for connecting, and again for the whole of an answer: a request of which nothing was
sent is told from one that nobody answered.
"""

import gzip
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, Literal

from penstock.base.clock import BlockingClock
from penstock.base.http.client import AnswerTooLargeError, HttpClient, forbidden_header
from penstock.base.http.client import Request as ClientRequest
from penstock.router.delivery.classify import HttpResponse
from penstock.router.delivery.result import DeliveryResult, Failed, Fault, Paused, Retryable

Compression = Literal["none", "gzip", "zstd"]

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of an answer's body; that of a bulk request names each of its records."""

_GZIP_LEVEL: Final = 5
_ZSTD_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request.

    Attributes:
        path: Path with its query.
        headers: Without those of the connection; `Content-Encoding` comes with the compression.
        body: Before it is compressed.
        secrets: Headers that nobody may see.
    """

    path: str
    headers: Mapping[str, str]
    body: bytes
    compression: Compression = "none"
    method: str = "POST"
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class Transport:
    """The connection to one host.

    Args:
        url: URL of the destination; its scheme, host and port count.
        timeout_s: Maximum seconds of a connect, and of a whole answer.
        tls: TLS of `https`; the system's authorities without it.
    """

    def __init__(
        self, url: str, *, timeout_s: float, clock: BlockingClock, tls: ssl.SSLContext | None = None
    ) -> None:
        self._client = HttpClient(
            url, timeout_s=timeout_s, body_bytes_max=ANSWER_BYTES_MAX, tls=tls, clock=clock
        )
        self._clock = clock

    @property
    def repeated(self) -> bool:
        """True if the last request was sent twice, because the kept connection had ended."""
        return self._client.repeated

    def send(self, request: HttpRequest) -> HttpResponse | DeliveryResult:
        """Send a request and wait for its answer; without one, the result for its records."""
        if (name := forbidden_header({**request.headers, **request.secrets})) is not None:
            return Paused(f"header {name} has a character that HTTP forbids")
        body, encoding = compressed(request.body, request.compression)
        headers = {**request.headers, **encoding, **request.secrets}
        try:
            self._client.connect()
        except OSError as error:
            return Retryable(f"{type(error).__name__}: {error}")
        try:
            answer = self._client.send(
                ClientRequest(request.path, headers, method=request.method, body=body)
            )
        except AnswerTooLargeError as error:
            answer = error.response
        except OSError as error:
            return Failed(Fault("no_answer", f"{type(error).__name__}: {error}"), answered=False)
        after_s = retry_after_s(answer.headers.get("retry-after"), self._clock.unix_ns())
        return HttpResponse(answer.status, answer.headers, answer.body, after_s)

    def close(self) -> None:
        self._client.close()


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
    """Return the headers that declare a body's compression."""
    return {} if how == "none" else {"Content-Encoding": how}


def retry_after_s(text: str | None, now_unix_ns: int) -> float:
    """Seconds from now, from either form of the header (RFC 9110, section 10.2.3).

    A date may have the form of C's `asctime`, which names no zone and is in UTC (section 5.6.7).
    """
    if text is None:
        return 0.0
    if text.strip().isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(moment.timestamp() - now_unix_ns / 1e9, 0.0)
