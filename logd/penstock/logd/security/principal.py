"""Principal of a request, and how it was authenticated.

The fetch protocol hands the caller on with a request's `SendingTurn`, gRPC in a context variable;
a client with neither is `ANONYMOUS`. No I/O: permissions are decided on this.

Whom a certificate names (X.509, RFC 5280).

TLS has verified it by then: its authority, its dates, and that the other side has its key.
"""

from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.lazy_module import LazyModule
from penstock.logd.errors import RefusedError
from penstock.logd.limits import PRINCIPAL_NAME_LENGTH_MAX

if TYPE_CHECKING:
    from cryptography import x509
else:
    x509 = LazyModule("cryptography.x509")


class Method(StrEnum):
    """Method of authentication."""

    ANONYMOUS = "anonymous"
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - a word for it
    KEY = "key"
    NODE = "node"
    """Another node of the cluster, or logd itself."""


class Principal(Struct, frozen=True):
    """Somebody.

    Attributes:
        name: Name in a certificate, a token or an API key's line. One name is one principal,
            whichever way it is authenticated.
        method: Method of its authentication.
        groups: Groups, by a token's claim or a certificate's organizational units.
    """

    name: str
    method: Method
    groups: frozenset[str] = frozenset()

    @property
    def is_anonymous(self) -> bool:
        return self.method is Method.ANONYMOUS

    @property
    def is_node(self) -> bool:
        """True if this is a part of logd."""
        return self.method is Method.NODE


ANONYMOUS: Final = Principal("anonymous", Method.ANONYMOUS)
"""The anonymous principal."""

_CALLER: ContextVar[Principal] = ContextVar("caller", default=ANONYMOUS)


def current_caller() -> Principal:
    """Return the principal of the current gRPC call."""
    return _CALLER.get()


def set_caller(caller: Principal) -> Token[Principal]:
    """Have what runs from here on in this context run for somebody; gives what `end_call` takes."""
    return _CALLER.set(caller)


def end_call(before: Token[Principal]) -> None:
    """Restore the caller from before `set_caller`."""
    _CALLER.reset(before)


_RESERVED: Final = ("group:", ANONYMOUS.name)


class UnauthenticatedError(RefusedError):
    """It is not known who asks, and that is needed (`UNAUTHENTICATED`).

    Attributes:
        reason: Why, as a word: for counters, and for programs.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__("UNAUTHENTICATED", message, reason=reason)


class Identity(Struct, frozen=True):
    """An authenticated identity.

    Attributes:
        principal: The principal.
        expires_ns: Unix time at which the identity expires; None: never.
        proof: Evidence of the identity: `key:` and the digest of an API key's line, or `jwk:` and
            that of the key that signed a token. When that is removed the identity ends.
    """

    principal: Principal
    expires_ns: int | None = None
    proof: str = ""


NOBODY: Final = Identity(ANONYMOUS)
"""The identity of a client that has shown nothing."""


def check_known(identity: Identity) -> Identity:
    """The identity, if it is that of a principal.

    Raises:
        UnauthenticatedError: It is that of no principal.
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


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CertificateName(StrEnum):
    """Name of a certificate that is the principal's."""

    CN = "cn"
    URI = "uri"
    EMAIL = "email"
    DNS = "dns"


def identify_certificate(der: bytes, which: CertificateName) -> Identity:
    """Whom a verified certificate names, until it is out of date.

    Groups are its organizational units.

    Raises:
        UnauthenticatedError: It has no such name, or several.
    """
    certificate = _load(der)
    names = list(dict.fromkeys(_NAMES[which](certificate)))
    if len(names) != 1:
        message = f"the certificate has {len(names)} names of kind `{which}`; it needs one"
        raise UnauthenticatedError("certificate", message)
    units = _attributes(certificate, x509.oid.NameOID.ORGANIZATIONAL_UNIT_NAME)
    principal = Principal(check_name(names[0]), Method.CERTIFICATE, frozenset(units))
    return Identity(principal, expires_ns=not_after_ns(certificate))


def names_of(der: bytes) -> frozenset[str]:
    """Every name that a certificate has: its CN, and DNS names, URIs and e-mail addresses."""
    certificate = _load(der)
    return frozenset(name for names in _NAMES.values() for name in names(certificate))


def not_after_ns(certificate: "x509.Certificate") -> int:
    """The last moment of a certificate, as Unix time."""
    return (certificate.not_valid_after_utc - _EPOCH) // timedelta(microseconds=1) * 1000


def _load(der: bytes) -> "x509.Certificate":
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as error:
        message = f"the certificate cannot be read: {error}"
        raise UnauthenticatedError("certificate", message) from None


def _attributes(certificate: "x509.Certificate", oid: "x509.ObjectIdentifier") -> list[str]:
    return [str(found.value) for found in certificate.subject.get_attributes_for_oid(oid)]


def _alternatives(certificate: "x509.Certificate", kind: "type[x509.GeneralName]") -> Iterator[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return
    for name in extension.value:
        if isinstance(name, kind):
            yield str(name.value)


_NAMES: Final[dict[CertificateName, Callable[["x509.Certificate"], list[str]]]] = {
    CertificateName.CN: lambda found: _attributes(found, x509.oid.NameOID.COMMON_NAME),
    CertificateName.URI: lambda found: list(_alternatives(found, x509.UniformResourceIdentifier)),
    CertificateName.EMAIL: lambda found: list(_alternatives(found, x509.RFC822Name)),
    CertificateName.DNS: lambda found: list(_alternatives(found, x509.DNSName)),
}
