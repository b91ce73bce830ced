"""An identity: a principal, until when that holds, and what it rests on."""

from dataclasses import dataclass
from typing import Final

from penstock.logd.errors import RefusedError
from penstock.logd.limits import PRINCIPAL_NAME_LENGTH_MAX
from penstock.logd.security.principal import ANONYMOUS, Principal

_RESERVED: Final = ("group:", ANONYMOUS.name)


class UnauthenticatedError(RefusedError):
    """It is not known who asks, and that is needed (`UNAUTHENTICATED`).

    Attributes:
        reason: Why, as a word: for counters, and for programs.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__("UNAUTHENTICATED", message, reason=reason)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is.

    Attributes:
        principal: Who.
        expires_ns: Unix time from which on that must not be believed any more; None: never.
        proof: What it rests on, besides: `key:` and the digest of an API key's line, or `jwk:` and
            that of the key that signed a token. When that is taken away the identity ends.
    """

    principal: Principal
    expires_ns: int | None = None
    proof: str = ""


NOBODY: Final = Identity(ANONYMOUS)
"""The identity of whoever has shown nothing."""


def check_known(identity: Identity) -> Identity:
    """The identity, if it is somebody's.

    Raises:
        UnauthenticatedError: It is nobody's.
    """
    if identity.principal.is_anonymous:
        message = "say who you are: by a client certificate, a token or an API key"
        raise UnauthenticatedError("nobody", message)
    return identity


def bearer(header: str) -> str:
    """The token or API key of an `Authorization` header (RFC 6750).

    Raises:
        UnauthenticatedError: It has none.
    """
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise UnauthenticatedError("malformed", "`authorization` is to be `Bearer TOKEN`")
    return text.strip()


def check_name(name: object) -> str:
    """A principal's name as it was found.

    Raises:
        UnauthenticatedError: It is none: not text, empty, too long, with control characters, or a
            word that stands for something else in rules.
    """
    if not isinstance(name, str) or not 0 < len(name) <= PRINCIPAL_NAME_LENGTH_MAX:
        message = f"a principal's name is text of 1 to {PRINCIPAL_NAME_LENGTH_MAX} characters"
        raise UnauthenticatedError("name", message)
    if not name.isprintable() or name.startswith(_RESERVED[0]) or name == _RESERVED[1]:
        raise UnauthenticatedError("name", f"nobody can be named {name!r} here")
    return name
