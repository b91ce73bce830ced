"""A deployment's own certificates: an authority, kept beside its key, and what it signs.

Nothing is bought, looked up or sent anywhere. Keys are ECDSA P-256; what is signed is good for
servers and clients, names its hosts as alternative names, and is renewed `RENEW_DAYS` before it
ends: logd reads its files again when they change.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.base.clock import Clock
from penstock.base.errors import ConfigError
from penstock.deploy.kept import keep

AUTHORITY_DAYS: Final = 3650
LEAF_DAYS: Final = 825
"""What TLS clients take at most from authorities that are not public."""

RENEW_DAYS: Final = 30
_EARLIER: Final = timedelta(minutes=5)
"""Clocks differ: what was signed just now must be good on a machine that is a little behind."""


class Authority:
    """Signs certificates; made when it is used for the first time.

    Args:
        name: For people, its CN.
        cert: Its certificate, PEM.
        key: Its key, PEM.
        clock: For the times in certificates.

    Raises:
        ConfigError: One of the files is not what it should be, or the key is missing.
    """

    def __init__(self, name: str, cert: Path, key: Path, clock: Clock) -> None:
        self.cert = cert
        self._now = datetime.fromtimestamp(clock.unix_ns() // 10**9, UTC)
        if cert.exists() and not key.exists():
            raise ConfigError(
                f"{key}: missing, and {cert} is there",
                fix="bring it back from a copy; or remove both, and every part is given new ones",
            )
        if not cert.exists():
            self._make(name, key)
        loaded = _load_key(key)
        self._key = loaded
        self._certificate = _load(cert)

    @property
    def pem(self) -> bytes:
        """Its certificate, for those that are to trust it."""
        return self.cert.read_bytes()

    def sign(self, name: str, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Make a certificate and its key.

        Args:
            name: Its CN.
            hosts: Host names and addresses that it is for.

        Returns:
            The certificate and the key, PEM.
        """
        made = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(_name(name), self._certificate.subject, made, self._now, LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        cert = builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)
        return cert, _pem_of(made)

    def has_signed(self, cert: Path, key: Path) -> bool:
        """Whether a certificate is this authority's, and the key beside it is the certificate's."""
        if not cert.exists() or not key.exists():
            return False
        try:
            found = x509.load_pem_x509_certificate(cert.read_bytes())
            found.verify_directly_issued_by(self._certificate)
            own = load_pem_private_key(key.read_bytes(), None).public_key()
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not this authority's
            return False
        return own == found.public_key()

    def is_good(self, cert: Path, key: Path, name: str, hosts: Sequence[str]) -> bool:
        """Whether a certificate is ours, of that key, for these hosts, and not about to end."""
        if not self.has_signed(cert, key):
            return False
        found = x509.load_pem_x509_certificate(cert.read_bytes())
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return False
        ends = found.not_valid_after_utc - timedelta(days=RENEW_DAYS)
        return (
            found.subject == _name(name)
            and set(names) == set(_alternatives(hosts))
            and (self._now < ends)
        )

    def _make(self, name: str, key: Path) -> None:
        """Make its certificate; of the key that is there, which a kill left alone, or a new one."""
        found = key.exists()
        made = _load_key(key) if found else ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            _builder(_name(name), _name(name), made, self._now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        if not found:
            keep(key, _pem_of(made))
        keep(self.cert, builder.sign(made, SHA256()).public_bytes(Encoding.PEM))


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        loaded = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        loaded = None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: no key of an authority", fix="bring it back from a copy")
    return loaded


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ConfigError(f"{path}: no certificate", fix="bring it back from a copy") from None


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternatives(hosts: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
