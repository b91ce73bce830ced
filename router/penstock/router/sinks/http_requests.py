"""Request-based sinks over HTTP: the connection, the headers, an answer's usual meaning."""

from collections.abc import Mapping
from typing import ClassVar, assert_never

from typing_extensions import override

from penstock.router.core.http_codes import Answer, Meaning, verdict_of
from penstock.router.core.verdict import Busy, Failed, Fault, Paused, Verdict
from penstock.router.sinks.request_settings import HIDDEN, HttpSettings, hidden_query
from penstock.router.sinks.requests import Request, RequestSink
from penstock.router.sinks.sink import Preview, SinkContext
from penstock.router.sinks.transport import (
    HttpRequest,
    NotSent,
    Silent,
    Transport,
    encoding_of,
)
from penstock.router.wrong_key import WrongKeyError
from penstock.service.secret import Secret


class HttpRequestSink(RequestSink):
    """A sink whose requests are HTTP's; a subclass says what is in them and what answers mean."""

    differing: ClassVar[Mapping[int, Meaning]] = {}
    """Status codes to which the protocol gives another meaning."""

    def __init__(self, config: HttpSettings, context: SinkContext) -> None:
        super().__init__(config, context)
        self._settings = config
        self.url = str(config.url).rstrip("/")
        self.address = f"{config.url.scheme}://{config.url.host}:{config.url.port}"
        self._transport: Transport | None = None

    def request_of(self, request: Request, attempt: int) -> HttpRequest:
        """What goes over the wire.

        Raises:
            OSError: A secret's file cannot be read.
        """
        raise NotImplementedError

    def judge(self, answer: Answer, request: Request) -> Verdict:  # noqa: ARG002 - for subclasses
        """What an answer means."""
        return verdict_of(answer, self.differing)

    @override
    def open(self) -> None:
        """Read the certificates; the destination itself may come later.

        Raises:
            ConfigError: They cannot be read.
        """
        config = self._settings
        try:
            tls = config.tls.context() if config.url.scheme == "https" else None
        except OSError as error:
            raise WrongKeyError(
                f"sinks.{self.context.sink}.tls: {error}", fix="name PEM files that can be read"
            ) from None
        self._transport = Transport(
            str(config.url), timeout_s=config.timeout_s, clock=self.context.clock, tls=tls
        )

    @override
    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @override
    def exchange(self, request: Request, attempt: int) -> Verdict:
        try:
            made = self.request_of(request, attempt)
        except OSError as error:
            return Paused(f"a secret cannot be read: {error}")
        return self.send(made, request)

    def send(self, made: HttpRequest, request: Request) -> Verdict:
        """Send what `request_of` made; returns what became of it."""
        assert self._transport is not None, "open() first"
        if (name := made.forbidden()) is not None:
            return Paused(f"header {name} has a character that HTTP forbids")
        reply = self._transport.send(made)
        match reply:
            case Answer():
                verdict = self.judge(reply, request)
            case NotSent(reason):
                verdict = Busy(reason)
            case Silent(reason):
                verdict = Failed(Fault("no_answer", reason), answered=False)
            case _:
                assert_never(reply)
        return verdict

    def fetch(self, made: HttpRequest) -> Answer | None:
        """Send something that is no records; None without an answer."""
        assert self._transport is not None, "open() first"
        reply = self._transport.send(made)
        return reply if isinstance(reply, Answer) else None

    @override
    def show(self, request: Request) -> Preview:
        made = self.request_of(request, 1)
        secrets = dict.fromkeys(made.secrets, HIDDEN)
        headers = {**made.headers, **encoding_of(made.compression), **secrets}
        return Preview(
            f"{made.method} {self.address}{self.shown_path(made.path)}",
            len(request.items),
            made.body.decode(errors="replace"),
            tuple(sorted(headers.items())),
        )

    def path(self, below: str = "") -> str:
        """The path of the configured URL, with something below it."""
        parts = str(self._settings.url).split("/", 3)
        own = "/" + (parts[3] if len(parts) > 3 else "")
        before, question, query = own.partition("?")
        return f"{before.rstrip('/')}{below}{question}{query}" if below else own

    def shown_path(self, path: str) -> str:
        """A path for people: what the configured URL's query says may be a key."""
        query = str(self._settings.url).partition("?")[2]
        return path.replace(f"?{query}", f"?{hidden_query(query)}", 1) if query else path

    def query(self, path: str, query: str) -> str:
        """A path with (more of) a query."""
        return f"{path}{'&' if '?' in path else '?'}{query}"

    def own_headers(self) -> dict[str, str]:
        """Those of the job file; their values are secrets.

        Raises:
            OSError: A secret cannot be read.
        """
        return revealed(self._settings.headers)


def revealed(headers: Mapping[str, Secret]) -> dict[str, str]:
    """Headers with their values, which HTTP has no blanks or line breaks around.

    Raises:
        OSError: A secret cannot be read.
    """
    return {name: value.read() for name, value in headers.items()}
