"""Access to a process's admin endpoint; logd has its own callers.

One token in a file: clients that show it see everything, others the health alone. The file is read
again when it has changed, and so are certificate and key; while they cannot be used, it stays as it
was.
"""

import hmac
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict

from penstock.base.errors import ConfigError
from penstock.base.http.client import (
    AnswerTooLargeError,
    HttpClient,
    Request,
    Response,
    client_tls,
)
from penstock.base.sockets import split_host_port
from penstock.service.admin import Action, AdminServer, Authorization, Requester, Status
from penstock.service.config_types import FilePath

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Value = TypeVar("Value")

TOKEN_LENGTH_MIN: Final = 16
"""Characters, so that nobody guesses it; 32 random hexadecimal digits are enough."""

_TOKEN_LENGTH_MAX: Final = 4096
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of an answer that `ask_admin` reads; a server that is no part may never end its own."""

_log = structlog.get_logger()


class AdminAccess(BaseModel):
    """The section `admin_access` of a part's configuration.

    Attributes:
        token_file: Holds, in its only line, what `Authorization: Bearer …` must say.
        cert_file: PEM, with the intermediate certificates; with it only TLS is served.
        key_file: PEM; none: it is in `cert_file`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_file: FilePath
    cert_file: FilePath | None = None
    key_file: FilePath | None = None

    def server(
        self,
        status: Callable[[], Status],
        registry: "CollectorRegistry",
        actions: Mapping[str, Action] | None = None,
        hosts: Iterable[str] = (),
        queries: Mapping[str, Action] | None = None,
    ) -> AdminServer:
        """An admin endpoint that nobody else sees more of than the health.

        Raises:
            ConfigError: A file cannot be used.
        """
        token = self._watched_token()

        def admit(requester: Requester) -> Authorization:
            shown = requester.authorization.encode("latin-1", "replace")  # as headers are read
            known = hmac.compare_digest(shown, b"Bearer " + token.current())
            return Authorization.ALL if known else Authorization.UNKNOWN

        if self.cert_file is None:
            return AdminServer(
                status, registry, admit=admit, actions=actions, queries=queries, hosts=hosts
            )
        paths = (self.cert_file, self.key_file or self.cert_file)
        context = _Watched(paths, self._context)
        return AdminServer(
            status, registry, tls=context.current, admit=admit, actions=actions, queries=queries
        )

    def check_token(self) -> None:
        """Look at the token's file, as an admin endpoint does that begins.

        Raises:
            ConfigError: It cannot be used.
        """
        self._watched_token()

    def _watched_token(self) -> "_Watched[bytes]":
        return _Watched((self.token_file,), self.token)

    def token(self) -> bytes:
        """The token that is shown.

        Raises:
            OSError: The file cannot be read.
            ValueError: It holds no token.
        """
        try:
            found = self.token_file.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError:  # which would show some of it
            found = ""
        if not TOKEN_LENGTH_MIN <= len(found) <= _TOKEN_LENGTH_MAX or not found.isprintable():
            message = f"{self.token_file}: one line of at least {TOKEN_LENGTH_MIN} characters is"
            raise ValueError(f"{message} expected")
        return found.encode()

    def _context(self) -> ssl.SSLContext:
        assert self.cert_file is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.cert_file, self.key_file)
        return context


def admin_server(
    status: Callable[[], Status],
    registry: "CollectorRegistry",
    access: AdminAccess | None,
    actions: Mapping[str, Action] | None = None,
    *,
    hosts: Iterable[str] = (),
    queries: Mapping[str, Action] | None = None,
) -> AdminServer:
    """The admin endpoint of a part; without a section everybody sees everything.

    An action decides itself who may; a query is answered to everybody who may see everything.

    Raises:
        ConfigError: A file of the section cannot be used.
    """
    if access is None:
        return AdminServer(status, registry, actions=actions, queries=queries, hosts=hosts)
    return access.server(status, registry, actions, hosts, queries)


class AdminStatusError(OSError):
    """A part's endpoint answers otherwise than with success.

    Attributes:
        response: Response of the endpoint.
    """

    def __init__(self, response: Response) -> None:
        self.response = response
        super().__init__(f"HTTP Error {self.said}")

    @property
    def said(self) -> str:
        """The status code and its phrase."""
        return f"{self.response.status} {self.response.reason}".rstrip()


def ask_admin(
    address: str,
    path: str,
    access: AdminAccess | None,
    *,
    timeout_s: float,
    posted: tuple[bytes, str] | None = None,
) -> bytes:
    """The answer of a part's endpoint to a client that has the part's configuration.

    `posted` is the body of a POST, and a token that is shown with it instead of the section's.

    With TLS no other certificate is taken than the one that is configured. Proxies that the
    environment names are passed by: they do not reach a machine's own addresses, and would see the
    token.

    Raises:
        ConfigError: The token would go over a network in clear text, or a file cannot be used.
        AdminStatusError: It answers, and not with success.
        OSError: It does not answer, or not as HTTP.
    """
    if posted is not None and (access is None or access.cert_file is None):
        _require_local(address)
    tls = None
    if access is not None and access.cert_file is not None:
        tls = _only(access.cert_file)
    if posted is not None:
        token = posted[1].encode()
    elif access is not None:
        with _usable("token_file", access.token_file):
            token = access.token()
    else:
        token = b""
    # As bytes in latin-1, for the header is sent so; what it must say is in UTF-8.
    headers = {"Authorization": f"Bearer {token.decode('latin-1')}"} if token else {}
    request = (
        Request(path, headers)
        if posted is None
        else Request(path, headers, method="POST", body=posted[0])
    )
    url = f"http://{address}" if tls is None else f"https://{address}"
    with HttpClient(url, timeout_s=timeout_s, body_bytes_max=_ANSWER_BYTES_MAX, tls=tls) as client:
        try:
            answer = client.send(request)
        except AnswerTooLargeError:
            raise ConnectionError(f"it answers more than {_ANSWER_BYTES_MAX} bytes") from None
    if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        raise AdminStatusError(answer)
    return answer.body


def _only(cert_file: Path) -> ssl.SSLContext:
    """A context that takes no other certificate."""
    with _usable("cert_file", cert_file):
        context = client_tls(cert_file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False  # its addresses are not what it is known by here
    return context


@contextmanager
def _usable(key: str, path: Path) -> Iterator[None]:
    """Within it, what is wrong with a file is said as the operator's to change."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"admin_access.{key}: {path} cannot be used: {why}",
            fix="run this as a user that may read it, such as the one that runs the process asked;"
            " or correct the key",
        ) from None


def _require_local(address: str) -> None:
    """Refuse a remote address in clear, where a token could be overheard."""
    host, _ = split_host_port(address)
    try:
        ip = ip_address(host)
        is_local = ip.is_loopback or ip.is_unspecified  # which is this machine for every client
    except ValueError:
        is_local = host == "localhost"
    if not is_local:
        raise ConfigError(
            f"the token is not sent to {address} over plain http, where others can read it",
            fix="give the section `admin_access` a `cert_file` and `key_file`",
        )


class _Watched(Generic[Value]):
    """An object made of files, and made again when they have changed. Any thread may use it.

    Raises:
        ConfigError: They cannot be used at first.
    """

    def __init__(self, paths: tuple[Path, ...], make: Callable[[], Value]) -> None:
        self._paths = paths
        self._make = make
        self._lock = threading.Lock()
        try:
            self._stamp = self._stamps()
            self._value = make()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"admin_access: {error}", fix="name files that are there and can be read"
            ) from None

    def current(self) -> Value:
        """The content of the files; the last usable one while they cannot be used."""
        with self._lock:
            try:
                stamp = self._stamps()
                if stamp != self._stamp:
                    self._value = self._make()
                    self._stamp = stamp
            except (OSError, ValueError) as error:
                _log.warning(
                    "credentials_reload_failed",
                    section="admin_access",
                    reason=str(error),
                    kept="previous",
                )
            return self._value

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        found = [path.stat() for path in self._paths]
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)
