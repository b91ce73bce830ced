"""NATS servers: what their URLs say, and which one to try next.

A configured list and what a cluster's INFO adds to it (`connect_urls`). A learned server is dropped
when the cluster does not name it any more; a configured one never is. Servers are tried in turn;
when every one has failed, the caller waits, longer each time.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.base.backoff import Backoff

DEFAULT_PORT: Final = 4222
SERVERS_MAX: Final = 256
"""Servers of one pool; what a cluster names beyond that is not learned."""

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_HOST: Final = re.compile(r"[^\s/@\[\]]+")


@dataclass(frozen=True, slots=True)
class NatsServer:
    """Address of a NATS server, and the rest of its URL.

    Attributes:
        tls: Whether the URL demands TLS.
        user: User in the URL; alone (without `password`) it is a token.
        learned: Whether a cluster named it, not the configuration.
        tls_name: Name in its certificate; empty: its host.
    """

    host: str
    port: int
    tls: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    learned: bool = False
    tls_name: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    def shown(self) -> str:
        """The address without secrets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_servers(urls: str | Iterable[str]) -> tuple[NatsServer, ...]:
    """Read URLs, separated by commas or as a list.

    Raises:
        ValueError: Which of them is wrong, without its credentials, or there is none.
    """
    listed = urls.split(",") if isinstance(urls, str) else list(urls)
    secret = any("@" in url for url in listed)
    servers = tuple(_parse_url(url.strip(), secret=secret) for url in listed)
    if not 0 < len(servers) <= SERVERS_MAX:
        msg = f"there must be 1 to {SERVERS_MAX} servers"
        raise ValueError(msg)
    return servers


def hide_credentials(url: str) -> str:
    """A URL, or what should be one, as it may be shown."""
    credentials, at, place = url.strip().rpartition("@")
    scheme, separator, _ = credentials.partition("://")
    if not separator:  # all of it may be a secret
        scheme = ""
    return f"{scheme}{separator}**********@{place}" if at else place


class ServerPool:
    """The servers to try, in order.

    Args:
        configured: At least one.
        shuffle: Puts a list into a random order, so that a fleet spreads over a cluster.
    """

    def __init__(
        self, configured: Iterable[NatsServer], shuffle: Callable[[list[NatsServer]], None]
    ) -> None:
        self._shuffle = shuffle
        self._servers = list(dict.fromkeys(configured))
        shuffle(self._servers)
        self._failures = 0
        self._backoff = Backoff(_BACKOFF_FIRST_S, _BACKOFF_MAX_S, jitter=0.5)

    @property
    def servers(self) -> tuple[NatsServer, ...]:
        """Every one, in the order in which they will be tried."""
        return tuple(self._servers)

    def take(self) -> NatsServer:
        """The next to try; it goes to the end of the line."""
        server = self._servers.pop(0)
        self._servers.append(server)
        return server

    def failed(self, draw: float) -> float:
        """The one taken last could not be used; returns seconds to wait until the next.

        Args:
            draw: The same as in `Backoff.next_wait`.
        """
        self._failures += 1
        if self._failures % len(self._servers):
            return 0.0
        return self._backoff.next_wait(draw)

    def connected(self) -> None:
        """The one taken last works."""
        self._failures = 0
        self._backoff.reset()

    def learn(self, connect_urls: Iterable[object], via: NatsServer) -> None:
        """Take what a server's INFO names; `via` is that server.

        A learned server is spoken to as `via` is: with its credentials, and TLS where it has that.
        An address is no host name to hold a certificate against: then the name of `via` is.
        """
        name = via.tls_name or ("" if _is_address(via.host) else via.host)
        named: dict[tuple[str, int], NatsServer] = {}
        for text in connect_urls:
            found = _parse_place(text)
            if found is None or len(named) >= SERVERS_MAX:
                continue
            host, port = found
            tls_name = name if _is_address(host) else ""
            named[found] = replace(via, host=host, port=port, learned=True, tls_name=tls_name)
        self._servers = [
            known
            for known in self._servers
            if not known.learned or known.place in named or known.place == via.place
        ]
        known_places = {known.place for known in self._servers}
        fresh = [server for place, server in named.items() if place not in known_places]
        fresh = fresh[: max(SERVERS_MAX - len(self._servers), 0)]
        self._shuffle(fresh)
        # The one in use is last in the line; it is tried again after the others.
        self._servers[-1:-1] = fresh


def _parse_url(url: str, *, secret: bool) -> NatsServer:
    """Read one; with `secret` it may be a part of a password that holds a comma."""
    try:
        parts = urlsplit(url)
        if _is_sound(parts):
            return NatsServer(
                host=parts.hostname or "",
                port=parts.port or DEFAULT_PORT,
                tls=parts.scheme == "tls",
                user=None if parts.username is None else unquote(parts.username),
                password=None if parts.password is None else unquote(parts.password),
            )
    except ValueError:  # of the port
        pass
    shown = "**********" if secret and "@" not in url else hide_credentials(url)
    msg = f"{shown!r} must be nats://HOST:PORT or tls://HOST:PORT"
    raise ValueError(msg)


def _is_sound(parts: SplitResult) -> bool:
    known = parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
    return known and parts.path in ("", "/") and not parts.query and not parts.fragment


def _parse_place(text: object) -> tuple[str, int] | None:
    """`HOST:PORT` of a `connect_urls` entry; None when it is something else."""
    if not isinstance(text, str):
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not _HOST.fullmatch(host) or not port.isascii() or not port.isdigit():
        return None
    return (host.lower(), int(port)) if 0 < int(port) < 65_536 else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
