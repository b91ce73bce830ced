"""Listeners' credentials of a daemon: TLS, authentication, and files that change while it runs.

Files are looked at once a second, on their own thread, and all of them at once on SIGHUP.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from penstock.base.clock import Clock
from penstock.logd.errors import CorruptError, LogdError
from penstock.logd.metrics import family
from penstock.logd.security.api_keys import load_keys
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.config import AuthSection, TlsSection, TokenSection
from penstock.logd.security.jwt import FileKeys, TokenKeys, UrlKeys, jwks_fetch
from penstock.logd.security.principal import Principal, UnauthenticatedError, bearer, check_known
from penstock.logd.security.renewal import Renewed
from penstock.logd.security.tls import (
    CertificateFiles,
    ClientCertificates,
    ServerTls,
    TlsFileError,
    TlsSource,
    load_server_tls,
)
from penstock.service import Authorization, Requester

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LOOK_S: Final = 1.0
"""Seconds between two looks at the files."""

_DOOR: Final = "admin"
Made = TypeVar("Made")
_log = structlog.get_logger()


class ListenerSetupError(LogdError):
    """A file of the configuration cannot be used.

    Attributes:
        key: Key of the configuration that names it.
        fix: The fix for the operator.
    """

    def __init__(self, key: str, message: str, *, fix: str) -> None:
        self.key = key
        self.fix = fix
        super().__init__(message)


class CountedListener(Protocol):
    """Listener of an endpoint, with its counters."""

    @property
    def handshakes_failed(self) -> int:
        """Connections without TLS, or without a certificate that is taken."""

    @property
    def connections_refused(self) -> int:
        """Connections closed at once, for there were too many."""


class Looked(Protocol):
    """Files that are checked for changes periodically, on one thread."""

    @property
    def problem(self) -> str:
        """Why it is not as it should be; empty when it is."""

    def look(self, *, anyway: bool = False) -> None:
        """See whether it has changed, or take it as changed `anyway`."""


class CredentialReloader:
    """Credentials and TLS of listeners and links. Made before the event loop runs.

    Args:
        tls: Section `tls` of the configuration.
        auth: Section `auth` of the configuration.
        clock: The system's clock.

    Raises:
        ListenerSetupError: A file is missing or invalid.

    Attributes:
        authenticator: Identifies callers.
        tls: TLS of `fetch`, `grpc` and `admin`; None: they have none.
    """

    def __init__(self, tls: TlsSection | None, auth: AuthSection, clock: Clock) -> None:
        self._clock = clock
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="listeners")
        self._asker = ThreadPoolExecutor(1, thread_name_prefix="keys of tokens")
        self._looked: list[Looked] = []
        self._counted: list[Renewed[ServerTls] | Renewed[ssl.SSLContext]] = []
        self._counted_listeners: dict[str, CountedListener] = {}
        self._section = tls
        self._may: Callable[[Principal], bool] | None = None
        self.tls = None if tls is None else self._server_tls("tls", tls.files(), _clients(tls))
        keys = None
        if auth.keys_file is not None:
            path = auth.keys_file
            what = "auth.keys_file"
            keys = _sound(what, lambda: Renewed(what, (path,), lambda: load_keys(path)))
            self._looked.append(keys)
        tokens = None
        if auth.tokens is not None:
            source = self._token_keys(auth.tokens)
            self._looked.append(source)
            tokens = auth.tokens.rules(), source
        self.authenticator = Authenticator(
            clock,
            required=auth.required,
            certificate_name=auth.certificate_name,
            tokens=tokens,
            keys=keys,
        )

    # What the listeners use.

    def fetch_tls(self) -> TlsSource | None:
        held = self.tls
        return None if held is None else lambda: held.value.context

    def admin_tls(self) -> TlsSource | None:
        """Return the TLS of the admin endpoint; a probe has no certificate."""
        held = self.tls
        return None if held is None else lambda: held.value.healthy

    def admit(
        self, may: Callable[[Principal], bool] | None = None
    ) -> Callable[[Requester], Authorization] | None:
        """Says what a visitor of the admin endpoint may see; None: everybody may see all.

        Args:
            may: Decides for a principal; None: every known one.
        """
        self._may = may
        required = self.authenticator.required or self.needs_certificates
        return self._sees if required or may is not None else None

    @property
    def needs_certificates(self) -> bool:
        """True if clients must show a certificate."""
        return _clients(self._section) is ClientCertificates.REQUIRED

    def peer_sources(self, files: CertificateFiles) -> tuple[TlsSource, TlsSource]:
        """Contexts of the peer endpoint, and of the links to other nodes.

        Raises:
            ListenerSetupError: A file is not what it should be.
        """
        required = ClientCertificates.REQUIRED
        server = self._server_tls("cluster.tls", files, required)
        client = self.dialling("cluster.tls", files.paths(), files.client)
        return (lambda: server.value.context), client

    def dialling(
        self, what: str, paths: tuple[Path, ...], load: Callable[[], ssl.SSLContext]
    ) -> Renewed[ssl.SSLContext]:
        """Contexts of connections that are dialled.

        Raises:
            LogdError: What `load` raises; ListenerSetupError for a TlsFileError.
        """
        held = _sound(what, lambda: Renewed(what, paths, load))
        self._looked.append(held)
        self._counted.append(held)
        return held

    def watch(self, looked: Looked) -> None:
        """Look at something else as well, and tell its problem."""
        self._looked.append(looked)

    def count_listener(self, endpoint: str, counted: CountedListener) -> None:
        """Count connections to an endpoint that failed."""
        self._counted_listeners[endpoint] = counted

    # Files.

    async def run(self) -> None:
        """Look at the files until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if self._looked:
                await loop.run_in_executor(self._worker, self._look)
            await asyncio.sleep(_LOOK_S)

    def reload(self) -> None:
        """Read all of them now; a problem is reported again."""
        _log.info("credentials_reload_requested")
        self._worker.submit(self._look, anyway=True)

    def close(self) -> None:
        """Look no more."""
        for worker in (self._worker, self._asker):
            worker.shutdown(wait=False, cancel_futures=True)

    # Telling.

    def reasons(self) -> Iterable[str]:
        """Why something is not as the files say."""
        for looked in self._looked:
            if looked.problem:
                what = looked.what if isinstance(looked, Renewed) else ""
                yield ": ".join(filter(None, (what, looked.problem)))
        for held in self._counted:
            if (
                isinstance(held.value, ServerTls)
                and held.value.not_after_ns <= self._clock.unix_ns()
            ):
                yield f"{held.what}: the certificate is out of date"

    def metrics(self) -> Iterable["Metric"]:
        known, unknown = dict(self.authenticator.succeeded), dict(self.authenticator.failed)
        yield family("authentications", [((at,), count) for at, count in known.items()])
        yield family("authentications_failed", unknown.items())
        listeners = self._counted_listeners
        broken = [((at,), it.handshakes_failed) for at, it in listeners.items()]
        yield family("tls_handshakes_failed", broken)
        refused = [((at,), it.connections_refused) for at, it in listeners.items()]
        yield family("connections_refused", refused)
        outcomes: Counter[tuple[str, str]] = Counter()
        for held in self._counted:
            outcomes[held.what, "loaded"] += held.loaded
            outcomes[held.what, "failed"] += held.failed
        yield family("tls_reloads", outcomes.items())
        ends = [
            ((held.what,), held.value.not_after_ns / 1e9)
            for held in self._counted
            if isinstance(held.value, ServerTls)
        ]
        yield family("tls_not_after_seconds", ends)

    # Parts.

    def _look(self, *, anyway: bool = False) -> None:
        for looked in self._looked:
            try:
                looked.look(anyway=anyway)
            except Exception:  # noqa: BLE001 - the others are looked at all the same
                _log.exception("credentials_check_failed")

    def _server_tls(
        self, what: str, files: CertificateFiles, clients: ClientCertificates
    ) -> Renewed[ServerTls]:
        paths = files.paths()
        held = _sound(what, lambda: Renewed(what, paths, lambda: load_server_tls(files, clients)))
        self._looked.append(held)
        self._counted.append(held)
        return held

    def _token_keys(self, section: TokenSection) -> TokenKeys:
        if section.jwks_file is not None:
            path = section.jwks_file
            what, age_s_max = "auth.tokens.jwks_file", section.max_jwks_age_s
            return _sound(what, lambda: FileKeys(path, self._clock, age_s_max=age_s_max))
        assert section.jwks_url is not None
        files = CertificateFiles(ca_file=section.jwks_ca_file)
        trusted = self.dialling("auth.tokens.jwks_ca_file", files.paths(), files.client)
        return UrlKeys(
            jwks_fetch(section.jwks_url, trusted),
            where=section.jwks_url,
            worker=self._asker,
            clock=self._clock,
            refresh_s=section.jwks_refresh_s,
            age_s_max=section.max_jwks_age_s,
        )

    def _sees(self, visitor: Requester) -> Authorization:
        try:
            identity = self.authenticator.certificate(visitor.certificate)
            if visitor.authorization:
                identity = self.authenticator.secret_promptly(bearer(visitor.authorization))
            if self._may is None:
                check_known(identity)
            caller = self.authenticator.principal(identity)
        except UnauthenticatedError as error:
            self.authenticator.note_failure(_DOOR, error, visitor.peer)
            return Authorization.UNKNOWN
        self.authenticator.note_success(_DOOR)
        if self._may is None or self._may(caller):
            return Authorization.ALL
        return Authorization.UNKNOWN if caller.is_anonymous else Authorization.FORBIDDEN


def _sound(what: str, make: Callable[[], Made]) -> Made:
    """Return the value made of the files of a key.

    Raises:
        ListenerSetupError: A file is missing or invalid.
    """
    try:
        return make()
    except TlsFileError as error:
        key = what if what.endswith(error.key) else f"{what}.{error.key}"
        raise ListenerSetupError(key, str(error), fix=error.fix) from None
    except (CorruptError, OSError) as error:
        fix = "name a readable file of the form that docs/security.md shows"
        raise ListenerSetupError(what, str(error), fix=fix) from None


def _clients(section: TlsSection | None) -> ClientCertificates:
    return ClientCertificates.NONE if section is None else section.client_certificates
