"""The framed TCP server of fetch and control requests: its connections, and who is on each.

Who is on a connection: its certificate says so, or a request `authenticate`.

It is looked at again for each request.

One connection of a reader: many requests under way, each answer sent whole when it is ready.

Requests are read as they come, up to a limit that are not answered yet; one that waits for records
holds up none behind it. Answers carry their request's id and go out in the order they become ready.
A connection sends one answer at a time, and only the one that has the sending turn may hold a
payload in memory: a reader that stalls costs that one buffer. When the reader goes away, or takes
nothing for too long, everything it has asked for ends.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec
import structlog
from msgspec import Struct

from penstock.base.clock import SystemClock
from penstock.logd.api.operations import (
    OPERATIONS,
    Authenticate,
    Cancel,
    Document,
    Operation,
    Responder,
    downloads,
)
from penstock.logd.api.protocol import (
    REQUEST_HEAD,
    check_request_size,
    decode_request,
    encode_response,
    error_document,
    upload_size,
)
from penstock.logd.errors import (
    CorruptError,
    CorruptFrameError,
    LogdError,
    NotOpenError,
    NotReadyError,
    RefusedError,
)
from penstock.logd.limits import AUTHENTICATE_S, UNAUTHENTICATED_BESIDES, UPLOADS_MAX
from penstock.logd.net.channel import Channel
from penstock.logd.net.listener import Listener
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.principal import ANONYMOUS, Identity, Principal, UnauthenticatedError
from penstock.logd.security.tls import TlsSource
from penstock.logd.storage import FileRange

_FAILURES_MAX: Final = 3
"""Wrong tokens on one connection, after which it is closed."""

_DOOR: Final = "fetch"


class ConnectionAuthentication:
    """Authentication of one connection.

    Args:
        authenticator: Verifies credentials.
        channel: The connection, with the peer's certificate if it has one.
        let_in: See the attribute.

    Raises:
        UnauthenticatedError: The certificate names no principal.

    Attributes:
        identity: The current identity of the connection.
        let_in: Counts the connection as authenticated, once it is; raises RefusedError when
            there are too many.
    """

    def __init__(
        self, authenticator: Authenticator, channel: Channel, let_in: Callable[[], None]
    ) -> None:
        self.let_in = let_in
        self._authenticator = authenticator
        self._peer = channel.peer
        self._failures = 0
        try:
            self.identity = authenticator.certificate(channel.certificate)
        except UnauthenticatedError as error:
            authenticator.note_failure(_DOOR, error, self._peer)
            raise
        if not self.identity.principal.is_anonymous:
            authenticator.note_success(_DOOR)

    @property
    def must_say(self) -> bool:
        """True if the client must authenticate before any other request."""
        return self._authenticator.required and self.identity.principal.is_anonymous

    @property
    def tried_enough(self) -> bool:
        """True if the connection has used up its attempts to authenticate."""
        return self._failures >= _FAILURES_MAX

    def caller(self, identity: Identity) -> Principal:
        """Return the principal of a request, by the identity it was made with.

        Raises:
            UnauthenticatedError: The identity is unknown or has expired.
        """
        try:
            return self._authenticator.principal(identity)
        except UnauthenticatedError as error:
            self._authenticator.note_failure(_DOOR, error, self._peer)
            raise

    async def authenticate(self, token: str) -> Document:
        """Take who a token says that the connection is from now on; what to answer.

        Raises:
            UnauthenticatedError: The token or API key is that of no principal; who it was before,
                it stays.
        """
        try:
            self.identity = await self._authenticator.secret_later(token)
        except UnauthenticatedError as error:
            self._failures += 1
            self._authenticator.note_failure(_DOOR, error, self._peer)
            raise
        self._authenticator.note_success(_DOOR)
        return _describe(self.identity)


def _describe(identity: Identity) -> Document:
    principal = identity.principal
    return {
        "principal": principal.name,
        "method": principal.method.value,
        "groups": sorted(principal.groups),
        "expires_ns": identity.expires_ns,
    }


class Response(Struct, frozen=True):
    """A response's header, and its payload: byte ranges of files, or bytes."""

    header: Document
    ranges: list[FileRange] = msgspec.field(default_factory=list)
    payload: bytes = b""

    @property
    def payload_length(self) -> int:
        """Bytes after the header."""
        return len(self.payload) + sum(part.length for part in self.ranges)


class Waiting:
    """A request's wait for records; the reader may end it early."""

    def __init__(self) -> None:
        self._ended = False
        self._timeout: asyncio.Timeout | None = None

    def end(self) -> None:
        """Wait no longer, now or later."""
        self._ended = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def wait(self, event: Awaitable[object], until: float) -> bool:
        """Wait for an event until a time of the loop's; whether it came."""
        try:
            async with asyncio.timeout_at(0 if self._ended else until) as self._timeout:
                await event
        except TimeoutError:
            return False
        finally:
            self._timeout = None
        return True


class ResponseSlot:
    """A request's turn to send on its connection; taken before a payload is made in memory.

    Attributes:
        waiting: The response slot before this one.
        caller: The principal of the request.
        upload: The bytes that followed the request.
    """

    def __init__(self, connection: asyncio.Lock, caller: Principal = ANONYMOUS) -> None:
        self.waiting = Waiting()
        self.caller = caller
        self.upload = b""
        self._connection = connection
        self._held = False

    async def take(self) -> None:
        """Wait for the turn; does nothing when it is held already."""
        if not self._held:
            await self._connection.acquire()
            self._held = True

    def give_back(self) -> None:
        """Let others send; does nothing when the turn is not held."""
        if self._held:
            self._held = False
            self._connection.release()


class RequestHandler(Protocol):
    """The handler of requests."""

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        """Do what a request asks, or raise a refusal."""

    def admit(self, request: Document, caller: Principal) -> None:
        """Refuse a request before what follows it is read.

        Raises:
            RefusedError: The caller may not ask for it.
        """


class RequestCounts(Struct):
    """Counters of a server's connections.

    Attributes:
        refused: Refused requests, by code.
        outstanding: Requests in flight.
        stalled: Connections closed because the reader received or sent nothing for too long.
        uploads: Requests in flight that have an upload.
    """

    requests: int = 0
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    bytes_sent: int = 0
    outstanding: int = 0
    stalled: int = 0
    uploads: int = 0

    def count_refusal(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1


class FetchLimits(Struct, frozen=True, kw_only=True):
    """Bounds on readers of a server.

    Attributes:
        max_connections: Maximum open connections.
        outstanding_max: Maximum requests in flight on one connection.
        outstanding_total_max: Maximum requests in flight on all connections.
        stall_s: Maximum seconds in which a request arrives once begun, and in which a reader
            receives nothing.
        authenticate_s: Seconds in which a connection must authenticate, where that is required.
    """

    max_connections: int = 256
    outstanding_max: int = 64
    outstanding_total_max: int = 4096
    stall_s: float = 60.0
    authenticate_s: float = AUTHENTICATE_S


_PASSED_BYTES: Final = 65_536
"""Bytes of a refused upload that are read and discarded at a time."""


class _GoneError(Exception):
    """The reader sent what cannot be followed."""


class FetchConnection:
    """Serves one connection until it ends.

    Args:
        channel: The caller closes it.
        desk: Answers requests.
        limits: The server's limits.
        counts: The server's counters.
        authentication: Says who is there.
    """

    def __init__(
        self,
        channel: Channel,
        desk: RequestHandler,
        limits: FetchLimits,
        counts: RequestCounts,
        authentication: ConnectionAuthentication,
    ) -> None:
        self._channel = channel
        self._authentication = authentication
        self._must_say_by = asyncio.get_running_loop().time() + limits.authenticate_s
        self._desk = desk
        self._limits = limits
        self._counts = counts
        self._sending = asyncio.Lock()
        self._under_way: dict[asyncio.Task[None], tuple[int, Waiting]] = {}

    async def serve(self) -> None:
        """Answer requests until the reader goes, stalls or sends rubbish; then all of it ends."""
        try:
            if not self._authentication.must_say:
                await self._enter(0)
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._take_request(group)
        except* TimeoutError:
            self._counts.stalled += 1
        except* (OSError, EOFError, _GoneError):
            pass

    async def refuse(self, number: int, error: RefusedError) -> None:
        """Tell the reader that a request (0: the connection) is refused."""
        self._counts.count_refusal(error.code)
        document = {"id": number, "error": error_document(error)}
        async with self._sending:
            data = encode_response(document)
            await self._channel.send(data, stall_s=self._limits.stall_s)

    async def _take_request(self, group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(0)  # a reader that never pauses takes turns with everybody else
        say_by = self._must_say_by if self._authentication.must_say else math.inf
        async with asyncio.timeout_at(None if math.isinf(say_by) else say_by):
            head = await self._channel.receive(REQUEST_HEAD.size)
        (size,) = REQUEST_HEAD.unpack(head)
        self._counts.requests += 1
        try:
            check_request_size(size)
        except RefusedError as error:
            await self.refuse(0, error)
            raise _GoneError from None
        until = asyncio.get_running_loop().time() + self._limits.stall_s
        async with asyncio.timeout_at(min(until, say_by)):
            body = await self._channel.receive(size)
        number, request = 0, Document()
        try:
            request = decode_request(body)
            number = request.get("id", 0)
            operation = OPERATIONS.get(request["api"])
            if operation is not None and operation.responder is Responder.CONNECTION:
                await self._handle(operation, request)
                return
            identity = self._authentication.identity
            caller = self._authentication.caller(identity)
            self._check_room()
            upload = self._check_upload(request, caller)
        except RefusedError as error:
            await self.refuse(number, error)
            if self._authentication.tried_enough:
                raise _GoneError from None
            await self._pass_over(request, until, known=error.code != "UNAUTHENTICATED")
            return
        turn = ResponseSlot(self._sending, caller)
        if upload:
            turn.upload = await self._receive_upload(upload, until)
        task = group.create_task(self._exchange(request, number, turn, identity))
        self._under_way[task] = number, turn.waiting
        self._counts.outstanding += 1
        task.add_done_callback(self._ended)
        if upload:
            task.add_done_callback(self._upload_ended)

    async def _handle(self, operation: Operation, document: Document) -> None:
        """Do what concerns the connection itself."""
        match operation.read(document):
            case Cancel(request=number):
                self._cancel(number)
            case Authenticate(id=number, token=token):
                await self._authenticate(token, number)
            case other:
                raise AssertionError(other)

    async def _authenticate(self, token: str, number: int) -> None:
        """Before anything that comes behind it: that is for whom the answer names."""
        strange = self._authentication.must_say
        answer = await self._authentication.authenticate(token)
        if strange:
            await self._enter(number)
        async with self._sending:
            await self._send(Response(answer), number)

    async def _enter(self, number: int) -> None:
        try:
            self._authentication.let_in()
        except RefusedError as error:
            await self.refuse(number, error)
            raise _GoneError from None

    def _cancel(self, fetch: int) -> None:
        """The reader waits no longer for an answer; it gets one, so that nothing is in doubt."""
        for number, waiting in self._under_way.values():
            if number == fetch:
                waiting.end()

    def _check_room(self) -> None:
        limits = self._limits
        for present, limit, where in (
            (len(self._under_way), limits.outstanding_max, "this connection"),
            (self._counts.outstanding, limits.outstanding_total_max, "all connections"),
        ):
            if present >= limit:
                message = f"{limit} requests are under way on {where}; ask again when some are done"
                raise RefusedError("TOO_MANY_REQUESTS", message, limit=limit)

    def _check_upload(self, request: Document, caller: Principal) -> int:
        """Return how many bytes of upload follow a request; refuse one without room or right."""
        size = upload_size(request)
        if size and self._counts.uploads >= UPLOADS_MAX:
            message = f"{UPLOADS_MAX} uploads are under way; ask again when one is done"
            raise RefusedError("TOO_MANY_REQUESTS", message, limit=UPLOADS_MAX)
        if size:
            self._desk.admit(request, caller)
        return size

    async def _pass_over(self, request: Document, until: float, *, known: bool) -> None:
        """Read what follows a request that was refused, and keep nothing of it.

        Raises:
            _GoneError: Where it ends is not said, or nobody said who sends it.
        """
        if "upload" not in request:
            return
        try:
            left = upload_size(request)
        except RefusedError:
            left = 0
        if not left or not known:
            raise _GoneError
        async with asyncio.timeout_at(until):
            while left:
                left -= len(await self._channel.receive(min(left, _PASSED_BYTES)))

    async def _receive_upload(self, size: int, until: float) -> bytes:
        self._counts.uploads += 1
        try:
            async with asyncio.timeout_at(until):
                return bytes(await self._channel.receive(size))
        except BaseException:
            self._counts.uploads -= 1
            raise

    def _upload_ended(self, _: asyncio.Task[None]) -> None:
        self._counts.uploads -= 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._counts.outstanding -= 1

    async def _exchange(
        self, request: Document, number: int, turn: ResponseSlot, identity: Identity
    ) -> None:
        try:
            try:
                response = await self._desk.answer(request, turn)
                await turn.take()
                if downloads(request):  # it may have waited for a minute, or in line
                    self._authentication.caller(identity)
            except RefusedError as error:
                turn.give_back()
                await self.refuse(number, error)
                return
            await self._send(response, number)
        finally:
            turn.give_back()

    async def _send(self, response: Response, number: int) -> None:
        length, stall_s = response.payload_length, self._limits.stall_s
        head = encode_response(response.header | {"id": number}, length)
        await self._channel.send(head + response.payload, stall_s=stall_s)
        for part in response.ranges:
            await self._channel.send_range(part, stall_s=stall_s)
        self._counts.bytes_sent += length


_log = structlog.get_logger()


class Api(Protocol):
    """The interface that answers requests."""

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        """Do what a request asks."""
        ...

    def admit(self, request: Document, caller: Principal) -> None: ...


class FetchServer:
    """Answers requests of clients.

    Args:
        api: Answers the requests.
        limits: Further connections and requests are told so.
        tls: TLS of the endpoint; None: it has none.
        authenticator: Says who callers are; None: they are all anonymous.

    Attributes:
        listener: Accepts the connections, from `listen` on.
        counts: Counters for telemetry.
    """

    def __init__(
        self,
        api: Api,
        limits: FetchLimits,
        *,
        tls: TlsSource | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.counts = RequestCounts()
        self._api = api
        self._limits = limits
        self._authenticator = authenticator or Authenticator(SystemClock())
        self.listener = Listener(
            self._serve,
            name="fetch endpoint",
            key="fetch",
            tls=tls,
            max_unauthenticated=limits.max_connections + UNAUTHENTICATED_BESIDES,
        )

    async def _serve(self, channel: Channel) -> None:
        try:
            authentication = ConnectionAuthentication(self._authenticator, channel, self._let_in)
        except UnauthenticatedError as error:
            self.counts.count_refusal(error.code)
            document = encode_response({"id": 0, "error": error_document(error)})
            await channel.send(document, stall_s=self._limits.stall_s)
            return
        served = FetchConnection(channel, self, self._limits, self.counts, authentication)
        await served.serve()

    def _let_in(self) -> None:
        """It is known whose the connection is that the present task serves, or need not be.

        Raises:
            RefusedError: `TOO_MANY_CONNECTIONS`.
        """
        limit = self._limits.max_connections
        if self.listener.known >= limit:
            message = f"there are {limit} connections already"
            raise RefusedError("TOO_MANY_CONNECTIONS", message, limit=limit)
        self.listener.mark_authenticated()

    def admit(self, request: Document, caller: Principal) -> None:
        try:
            self._api.admit(request, caller)
        except NotReadyError as error:
            raise RefusedError("NOT_READY", str(error)) from None

    async def answer(self, request: Document, turn: ResponseSlot) -> Response:
        """Answer, turning everything that can go wrong into a refusal for the one who asked."""
        try:
            return await self._api.answer(request, turn)
        except RefusedError:
            raise
        except CorruptError as error:
            _log.error("corrupt_data_read", error=str(error))
            raise _corrupt(error) from None
        except NotReadyError as error:
            raise RefusedError("NOT_READY", str(error)) from None
        except NotOpenError as error:
            raise RefusedError("UNAVAILABLE", str(error), cause=error.cause) from None
        except (LogdError, OSError) as error:
            _log.error("request_failed", endpoint="fetch", api=request["api"], error=str(error))
            raise RefusedError("UNAVAILABLE", str(error)) from None
        except Exception as error:  # noqa: BLE001 - one bad request must not end the daemon
            _log.exception("request_failed", endpoint="fetch", api=request["api"])
            raise RefusedError("INTERNAL", f"{type(error).__name__}: {error}") from None


def _corrupt(error: CorruptError) -> RefusedError:
    if isinstance(error, CorruptFrameError):
        return RefusedError(
            "CORRUPT", str(error), offset=error.offset, next_offset=error.next_offset
        )
    return RefusedError("CORRUPT", str(error))
