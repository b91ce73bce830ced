"""Certificates made on the fly: an authority and what it signs."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
_END = datetime(2099, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path

    @property
    def der(self) -> bytes:
        """The certificate as TLS carries it."""
        return x509.load_pem_x509_certificate(self.cert.read_bytes()).public_bytes(Encoding.DER)

    def replace_with(self, other: "Certificate") -> None:
        """Put another one into the files."""
        self.cert.write_bytes(other.cert.read_bytes())
        self.key.write_bytes(other.key.read_bytes())


class Authority:
    """Signs certificates; its own is `cert`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.cert = directory / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name("test authority")
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        own = (
            _builder(self._subject, self._subject, self._key, _END)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        _write(self.cert, own.sign(self._key, SHA256()))

    def sign(
        self, name: str, names: str = "", *, expired: bool = False, units: Sequence[str] = (),
        ends: datetime | None = None, file: str = "",
    ) -> Certificate:  # fmt: skip
        """Make a certificate.

        Args:
            name: Its CN.
            names: Others, as in `DNS:localhost,IP:127.0.0.1,URI:spiffe://here/me,email:me@here`.
            expired: Whether it is out of date.
            units: Its organizational units.
            ends: When it is out of date.
            file: Name of the files; by default that of `name`.
        """
        place = self._directory / (file or name)
        made = Certificate(place.with_suffix(".pem"), place.with_suffix(".key"))
        key = ec.generate_private_key(ec.SECP256R1())
        end = ends or (_BEGIN + timedelta(days=1) if expired else _END)
        builder = _builder(_name(name, units), self._subject, key, end)
        if names:
            found = x509.SubjectAlternativeName([_general(one) for one in names.split(",")])
            builder = builder.add_extension(found, critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        _write(made.cert, builder.sign(self._key, SHA256()))
        made.key.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )
        return made


def _name(name: str, units: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(text: str) -> x509.GeneralName:
    kind, _, value = text.partition(":")
    match kind:
        case "DNS":
            return x509.DNSName(value)
        case "IP":
            return x509.IPAddress(ipaddress.ip_address(value))
        case "URI":
            return x509.UniformResourceIdentifier(value)
        case "email":
            return x509.RFC822Name(value)
        case _:
            raise AssertionError(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(end)
        .add_extension(identifier, critical=False)
    )


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
