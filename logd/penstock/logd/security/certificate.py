"""Whom a certificate names (X.509, RFC 5280).

TLS has verified it by then: its authority, its dates, and that the other side has its key.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.logd.security.identity import Identity, UnauthenticatedError, check_name
from penstock.logd.security.principal import Method, Principal

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CertificateName(StrEnum):
    """Which of its names is the principal's."""

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
    units = _attributes(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME)
    principal = Principal(check_name(names[0]), Method.CERTIFICATE, frozenset(units))
    return Identity(principal, expires_ns=not_after_ns(certificate))


def names_of(der: bytes) -> frozenset[str]:
    """Every name that a certificate has: its CN, and DNS names, URIs and e-mail addresses."""
    certificate = _load(der)
    return frozenset(name for names in _NAMES.values() for name in names(certificate))


def not_after_ns(certificate: x509.Certificate) -> int:
    """The last moment of a certificate, as Unix time."""
    return (certificate.not_valid_after_utc - _EPOCH) // timedelta(microseconds=1) * 1000


def _load(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError as error:
        message = f"the certificate cannot be read: {error}"
        raise UnauthenticatedError("certificate", message) from None


def _attributes(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(found.value) for found in certificate.subject.get_attributes_for_oid(oid)]


def _alternatives(certificate: x509.Certificate, kind: type[x509.GeneralName]) -> Iterator[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return
    for name in extension.value:
        if isinstance(name, kind):
            yield str(name.value)


_NAMES: Final[dict[CertificateName, Callable[[x509.Certificate], list[str]]]] = {
    CertificateName.CN: lambda found: _attributes(found, NameOID.COMMON_NAME),
    CertificateName.URI: lambda found: list(_alternatives(found, x509.UniformResourceIdentifier)),
    CertificateName.EMAIL: lambda found: list(_alternatives(found, x509.RFC822Name)),
    CertificateName.DNS: lambda found: list(_alternatives(found, x509.DNSName)),
}
