"""Base of all sources that listen for HTTP requests: connections, authentication, bodies.

A request is answered after its records are durable in the spool, or with the reason why none of
them is kept:

400  the body is not what its headers say      401  not an allowed sender
413  larger than allowed                       415  a content encoding that is not known
429  too much is being received                503  no room in the spool

After the last two it is to be sent again, `Retry-After` so many seconds. A source says how its
protocol writes an error; `Refusal` is raised by whatever finds that a request cannot be taken.
"""

import asyncio
import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import orjson
from pydantic import Field, model_validator

from penstock.base.http.server import (
    MalformedRequestError,
    Request,
    RequestLimits,
    Response,
    Unread,
    serve_http,
)
from penstock.collector.decompression import (
    ExpandsTooFarError,
    gunzip,
    undeflate,
    unlz4,
    unsnappy,
    unzstd,
)
from penstock.collector.errors import (
    RemoteProtocolError,
    SpoolFailedError,
    SpoolFullError,
    UndecodableError,
)
from penstock.collector.limits import (
    HTTP_HEAD_BYTES_MAX,
    HTTP_LINGER_S,
    HTTP_RETRY_AFTER_S,
    REQUEST_TIMEOUT_S,
)
from penstock.collector.sources.settings import Section
from penstock.collector.spool.memory_budget import Charge
from penstock.collector.spool.writer import Payload, SpoolWriter
from penstock.service import FilePath
from penstock.service.config_types import Form

INFLATE: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "identity": lambda body, _: body,
    "none": lambda body, _: body,
    "gzip": gunzip,
    "x-gzip": gunzip,
    "deflate": undeflate,
    "zlib": undeflate,
    "zstd": unzstd,
    "zstd1": unzstd,
    "snappy": unsnappy,
    "x-snappy-framed": unsnappy,
    "lz4": unlz4,
}
"""Content encodings; each takes the body and the bound of what it becomes."""
CODINGS: Final = "gzip, deflate, zlib, zstd, snappy, lz4"
"""Content codings of `INFLATE` that a sender is offered."""

RequestPath = Annotated[
    str, Form(r"^/[^?#\s]*$", "a path that begins with /, without ?, # and spaces")
]
"""Path of the requests that a source takes."""


class SenderAuth(Section):
    """The one secret that senders show; the file is read again when it changes."""

    scheme: Literal["bearer", "basic", "header"] = "bearer"
    token_file: FilePath = Field(description="the token; of `basic` the password")
    username: str | None = Field(default=None, min_length=1, description="of `basic`")
    header: Annotated[str, Form(r"^[A-Za-z0-9-]+$", "made of A-Z a-z 0-9 -")] | None = Field(
        default=None, description="the name of the header of `header`"
    )

    @model_validator(mode="after")
    def _has_what_the_scheme_needs(self) -> "SenderAuth":
        if (self.username is not None) != (self.scheme == "basic"):
            msg = "`username` belongs to `scheme: basic`"
            raise ValueError(msg)
        if (self.header is not None) != (self.scheme == "header"):
            msg = "`header` belongs to `scheme: header`"
            raise ValueError(msg)
        return self

    def check(self, request: Request) -> None:
        """Require that a request has the secret.

        Raises:
            Refusal: It does not.
            OSError: The file cannot be read now.
        """
        expected = self.token_file.read_text().strip()
        if expected and self.scheme == "basic":
            expected = f"{self.username}:{expected}"
        if not is_secret(self._shown(request), expected):
            asks = {} if self.scheme == "header" else {"www_authenticate": self.scheme.capitalize()}
            raise Refusal(401, "the token is missing or another one", **asks)

    def _shown(self, request: Request) -> str:
        if self.header is not None:
            return request.headers.get(self.header.lower(), "")
        scheme, value = shown_by(request)
        if scheme != self.scheme:
            return ""
        return value if self.scheme == "bearer" else basic_pair(value)


def content_type(request: Request) -> str:
    """The content type of a request's body, in lower case, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def coding_of(request: Request) -> str:
    """The content encoding of a request's body."""
    return request.headers.get("content-encoding", "identity").strip().lower() or "identity"


def shown_by(request: Request) -> tuple[str, str]:
    """The scheme, in lower case, and the value of the header ``Authorization``."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    return scheme.lower(), value.strip()


def basic_pair(value: str) -> str:
    """``name:password`` of the scheme Basic (RFC 7617); empty where it is none."""
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def is_secret(shown: str, expected: str) -> bool:
    """Compare a sender's secret in constant time; an empty secret never matches."""
    return bool(expected) and hmac.compare_digest(shown.encode(), expected.encode())


class Refusal(Exception):  # noqa: N818 - an answer, no error of ours
    """A request of which nothing is kept.

    Attributes:
        status: Status code of HTTP.
        message: Description of the error, and the fix.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


Handle = Callable[[Request, bytes, Charge], Awaitable[Response]]
"""Answers a request, given its body as it was before compression; raises `Refusal`."""
Route = Callable[[Request], Handle]
"""Chooses what answers a request, by its head alone; raises `Refusal`."""
Refuse = Callable[[Request, Refusal], Response]
"""Writes a refusal in the form of the protocol."""


class Routes:
    """Chooses what answers a request by its path and method; a slash may end the path."""

    def __init__(self, table: Mapping[str, Mapping[str, Handle]]) -> None:
        self._table = table

    def __call__(self, request: Request) -> Handle:
        """Choose.

        Raises:
            Refusal: Nothing answers it.
        """
        methods = self._table.get(request.path.rstrip("/") or "/")
        if methods is None:
            raise Refusal(404, f"there is {', '.join(self._table)}")
        handle = methods.get("GET" if request.method == "HEAD" else request.method)
        if handle is None:
            raise Refusal(405, f"use {' or '.join(methods)}", allow=", ".join(methods))
        return handle


def check_post(request: Request, path: str, what: str) -> None:
    """Refuse a request that is no POST to the one path where something is taken.

    Args:
        request: Its path and method are looked at.
        path: The only one.
        what: Names what is taken, in the plural, for the refusal.

    Raises:
        Refusal: 404 for another path, 405 for another method.
    """
    if request.path != path:
        raise Refusal(404, f"{what} are taken at {path}")
    if request.method != "POST":
        raise Refusal(405, "use POST", allow="POST")


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A value as an answer in JSON."""
    kind = {"content-type": "application/json; charset=utf-8"}
    return Response(status, orjson.dumps(value), {**kind, **(headers or {})})


class Authenticator(Protocol):
    """Authentication of senders by a shared secret.

    Attributes:
        token_file: The file with the secret.
    """

    @property
    def token_file(self) -> Path: ...

    def check(self, request: Request) -> None:
        """Require that a request has the secret.

        Raises:
            Refusal: It does not.
            OSError: The file cannot be read now.
        """
        ...


class HttpReceiver:
    """Serves the connections of one source.

    Args:
        route: Finds what answers a request.
        refuse: Writes what is refused.
        body_bytes_max: Bound of a request's body, before and after decompression.
        auth: Authentication of senders; None: there is none.
        open_requests: Method and path of requests that need to show nothing.
    """

    def __init__(
        self,
        route: Route,
        refuse: Refuse,
        spool_writer: SpoolWriter,
        *,
        body_bytes_max: int,
        auth: Authenticator | None = None,
        open_requests: Container[tuple[str, str]] = (),
    ) -> None:
        self._route = route
        self._open_requests = open_requests
        self._refuse = refuse
        self._spool_writer = spool_writer
        self._body_bytes_max = body_bytes_max
        self._auth = auth
        self._limits = RequestLimits(
            body_bytes_max,
            HTTP_HEAD_BYTES_MAX,
            request_s=REQUEST_TIMEOUT_S,
            first_byte_s=REQUEST_TIMEOUT_S,
            linger_s=HTTP_LINGER_S,
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        try:
            account = partial(Charge, self._spool_writer.share)
            await serve_http(reader, writer, self.answer, self._limits, account)
        except MalformedRequestError as error:
            self._spool_writer.note("protocol_errors")
            self._spool_writer.log.warning("protocol_error", error=str(error))

    async def persist(self, payload: Payload, charge: Charge) -> None:
        """Return once a payload is durable.

        Raises:
            Refusal: It is not, and nothing of it is kept.
        """
        try:
            await self._spool_writer.persist(payload, wait=False, charge=charge)
        except SpoolFullError as error:
            self._spool_writer.note("refused_spool_full", payload.count)
            if error.for_ever:
                raise Refusal(413, "larger than the spool: send less at once") from None
            raise self.come_again(503, "the spool is full") from None
        except SpoolFailedError:
            self._spool_writer.note("refused_spool_failed", payload.count)
            raise self.come_again(503, "the spool cannot write") from None

    def malformed(self, message: str, status: int = 400) -> Refusal:
        """Count a request that no sender should send again, and return its refusal."""
        self._spool_writer.note("requests_malformed" if status != 413 else "requests_too_large")
        return Refusal(status, message)

    async def answer(self, request: Request, charge: Charge) -> Response:
        """Answer one request; `charge` is what its body holds."""
        try:
            self._check_sender(request)
            handle = self._route(request)
            return await handle(request, self._body(request, charge), charge)
        except Refusal as refusal:
            return self._write(request, refusal)
        except RemoteProtocolError as error:  # of the query, or of what is no record
            return self._write(request, self.malformed(str(error)))

    def _write(self, request: Request, refusal: Refusal) -> Response:
        response = self._refuse(request, refusal)
        return Response(response.status, response.body, {**response.headers, **refusal.headers})

    def _check_sender(self, request: Request) -> None:
        if self._auth is None or (request.method, request.path) in self._open_requests:
            return
        try:
            self._auth.check(request)
        except Refusal:
            self._spool_writer.note("requests_unauthenticated")
            raise
        except OSError as error:
            self._spool_writer.log.warning(
                "token_file_unreadable", path=str(self._auth.token_file), error=error.strerror
            )
            raise self.come_again(503, "who may send cannot be found out now") from None

    def _body(self, request: Request, charge: Charge) -> bytes:
        if request.body is Unread.TOO_LARGE:
            raise self.malformed(f"the body is above {self._body_bytes_max} bytes", 413)
        if isinstance(request.body, Unread):
            raise self.come_again(429, request.body.value)
        return self.inflate(coding_of(request), request.body, charge)

    def inflate(self, coding: str, packed: bytes, charge: Charge) -> bytes:
        """Bytes as they were before a content encoding; `charge` holds what they become.

        Raises:
            Refusal: They are not so encoded, or become too much.
        """
        inflate = INFLATE.get(coding)
        if inflate is None:
            text = f"content-encoding {coding!r} is none of {CODINGS}, identity"
            raise Refusal(415, text, accept_encoding=CODINGS)
        try:
            body = inflate(packed, self._body_bytes_max)
        except ExpandsTooFarError as error:
            raise self.malformed(str(error), 413) from None
        except UndecodableError as error:
            raise self.malformed(str(error)) from None
        if not charge.take(max(0, len(body) - len(packed))):
            raise self.come_again(429, Unread.NO_ROOM.value)
        return body

    def come_again(self, status: int, message: str) -> Refusal:
        """Count a request that is to be sent again, and return its refusal."""
        self._spool_writer.note("requests_deferred")
        return Refusal(status, message, retry_after=str(HTTP_RETRY_AFTER_S))
