"""By which names an HTTP endpoint may be called: a guard against DNS rebinding.

A page of another site that has its name resolve to this machine calls the endpoint by that name,
and a browser lets it read the answer. Such a name is one of the public DNS, so it has a dot. An
address, and a name without a dot, cannot be an attacker's.
"""

import socket
import threading
from collections.abc import Iterable
from ipaddress import ip_address


class HostGuard:
    """Looks at the headers `Host` and `Origin` of requests. Any thread.

    Args:
        names: Further names by which the endpoint may be called.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_host_of(name) for name in names}
        self._lock = threading.Lock()
        self._own: str | None = None

    def allows(self, host: str, origin: str = "") -> bool:
        """Whether a request may be answered.

        Args:
            host: Its header `Host`; empty: it has none, as of a client that is no browser.
            origin: Its header `Origin`, which must be the endpoint's own; empty: it has none.
        """
        if origin and origin.partition("://")[2].lower() != host.lower():
            return False
        name = _host_of(host)
        return "." not in name or _is_address(name) or name in self._names or self._is_own(name)

    def _is_own(self, name: str) -> bool:
        """Whether it is this machine's name, or the beginning of it: `logd-0.logd` of a pod."""
        with self._lock:
            if self._own is None:
                self._own = socket.getfqdn().lower()
            return f"{self._own}.".startswith(f"{name}.")


def _host_of(called: str) -> str:
    """The host of `HOST`, `HOST:PORT` or `[IPv6]:PORT`, in lower case."""
    called = called.strip().lower()
    if called.startswith("["):
        return called.partition("]")[0].removeprefix("[")
    return called.partition(":")[0].removesuffix(".") if called.count(":") <= 1 else called


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
