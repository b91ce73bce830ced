"""What goes wrong with a NATS server: whose fault it is, and what its -ERR lines mean."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.logd.errors import LogdError


class NatsRefusedError(LogdError):
    """The NATS server does not want this client: credentials or permissions."""


class NatsSetupError(LogdError):
    """What is configured cannot work with any server, or not with this one.

    Attributes:
        key: The configuration key to look at.
        fix: What to do.
    """

    def __init__(self, key: str, message: str, *, fix: str) -> None:
        self.key = key
        self.fix = fix
        super().__init__(message)


class ErrorKind(Enum):
    """What an -ERR line means to a connection."""

    LOGIN = "login"
    """Credentials are not, or no longer, accepted; the server hangs up."""

    SUBSCRIPTION = "subscription"
    """One subscription is refused or was taken away; the rest goes on."""

    PUBLISH = "publish"
    """One message was not taken; the rest goes on."""

    FATAL = "fatal"
    """The server hangs up: stale connection, too large a payload, malformed input, ..."""


@dataclass(frozen=True, slots=True)
class ServerError:
    """One -ERR line.

    Attributes:
        sid: The subscription it names, where it names one.
    """

    kind: ErrorKind
    text: str
    sid: bytes | None = None


_LOGIN: Final = ("authorization", "authentication", "account ")
_SID: Final = re.compile(r'\(sid "?(\w+)"?\)')


def understand(text: str) -> ServerError:
    """Say what an -ERR line means; unknown ones are fatal, because most are."""
    lower = text.lower()
    if lower.startswith("permissions violation for publish") or lower == "invalid publish subject":
        return ServerError(ErrorKind.PUBLISH, text)
    if (
        lower.startswith("permissions violation for subscription")
        or lower in ("invalid subject", "maximum subscriptions exceeded")
    ):  # fmt: skip
        found = _SID.search(text)
        return ServerError(ErrorKind.SUBSCRIPTION, text, found[1].encode() if found else None)
    if any(word in lower for word in _LOGIN) and "connections exceeded" not in lower:
        return ServerError(ErrorKind.LOGIN, text)
    return ServerError(ErrorKind.FATAL, text)
