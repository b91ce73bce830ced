"""`penstock init`: keys, certificates, passwords and configurations of a deployment, made once.

Certificates, API keys, passwords and configuration files go to one directory for each part, so that
each part can be given its own and no other's. What is there is kept. A second run replaces only
what an earlier run wrote and nobody has changed since: certificates that are about to end, and
files that this version writes differently. `operator/written.json` holds the digests that tell.

A deployment's own certificates: an authority, kept beside its key, and what it signs.

Nothing is bought, looked up or sent anywhere. Keys are ECDSA P-256; what is signed is good for
servers and clients, names its hosts as alternative names, and is renewed `RENEW_DAYS` before it
ends: logd reads its files again when they change.
"""

import hashlib
import ipaddress
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

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
from penstock.deploy.private_file import new_hash_key, write_private_file
from penstock.deploy.site import ADMIN_READERS, KEYS, NATS_USERS, Site, documents
from penstock.logd.security.api_keys import line_of, make_key

AUTHORITY_DAYS: Final = 3650
LEAF_DAYS: Final = 825
"""Longest validity that TLS clients accept of an authority that is not public."""

RENEW_DAYS: Final = 30
_EARLIER: Final = timedelta(minutes=5)
"""Clocks differ: what was signed just now must be good on a machine that is a little behind."""


class Authority:
    """Signs certificates; made when it is used for the first time.

    Args:
        name: Name for people, its CN.
        cert: Its certificate, PEM.
        key: Its key, PEM.
        clock: Clock of the times in certificates.

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
        """Certificate of the authority, for clients that are to trust it."""
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
        """Return whether this authority issued the certificate, and the key belongs to it."""
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
        """Return whether a certificate is ours, for key and hosts, and not about to expire."""
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
            write_private_file(key, _pem_of(made))
        write_private_file(self.cert, builder.sign(made, SHA256()).public_bytes(Encoding.PEM))


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


_SECRET_BYTES: Final = 32
_READERS: Final = ("router", "console", "prometheus", "operator")
"""Clients of logd that have its authority's certificate and a key."""

PAGE_TOKENS: Final = ("read", "console")
_AUTHORITIES: Final = ("ca.key", "ca.pem", "nodes-ca.key", "nodes-ca.pem")


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of a deployment.

    Attributes:
        passwords: Passwords of users at nats-server.
        keys: API keys of logd's.
        admin: Tokens of parts' admin endpoints.
        actions: The token with which the console has the router act.
        page: Tokens of the console's page: `read` shows what it knows, `console` acts, too.
        pseudonyms: The collectors' hash key: equal ids have equal pseudonyms.
    """

    passwords: Mapping[str, str]
    keys: Mapping[str, str]
    admin: Mapping[str, str]
    actions: str
    page: Mapping[str, str]
    pseudonyms: str


@dataclass(slots=True)
class InitResult:
    """The result of a run.

    Attributes:
        written: The files that it wrote.
        kept: Those that it would have written, and left: they were edited, or are somebody else's.
        copies: Those that it moved out of the way of what it wrote.
    """

    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)


def init(root: Path, site: Site, clock: Clock, *, force: bool = False) -> InitResult:
    """Make what is missing below a directory.

    Args:
        root: Holds a directory for each part; that of `operator` holds what signs and opens all.
        site: The deployment.
        clock: Clock of the times in certificates.
        force: Replace files that were edited or that are not of an earlier run, too; a copy of
            each stays beside it.

    Raises:
        ConfigError: The directory cannot be written to, or holds something damaged.
    """
    try:
        files = _Files(root, force=force)
        known = _secrets(root / "operator" / "secrets.json", files)
        _certificates(root, site, clock, files)
        for path, content in _files(root, site, known).items():
            files.write({root / path: content})
    except OSError as error:
        raise ConfigError(
            f"{error.filename or root}: {error.strerror or error}",
            fix="name a directory that this user may write to",
        ) from None
    return files.made


class _Files:
    """Writes files below a directory, and tells its own from edited ones and from others'.

    A digest is noted before its file is written, beside that of the file as it was: a run that is
    killed in between leaves files that the next one knows.
    """

    def __init__(self, root: Path, *, force: bool) -> None:
        self.made = InitResult()
        self._root, self._force = root, force
        self._path = root / "operator" / "written.json"
        self._digests: dict[str, list[str]] = _digests(self._path)

    def write(self, contents: Mapping[Path, bytes], *, ours: bool = False) -> None:
        """Write files that belong together: all of them, or none where one is not to be touched.

        Args:
            contents: The files.
            ours: Whether the present files are known to be of an earlier run.
        """
        changed = {path: text for path, text in contents.items() if _read(path) != text}
        touched = [path for path in changed if not ours and not self._is_ours(path)]
        if touched and not self._force:
            self.made.kept += touched
            return
        for path in touched:
            self.made.copies.append(_copy(path))
        self._note(contents, and_before=True)
        for path, text in contents.items():
            if write_private_file(path, text):
                self.made.written.append(path)
        self._note(contents, and_before=False)

    def _is_ours(self, path: Path) -> bool:
        found = _read(path)
        return found is None or _digest(found) in self._digests.get(self._name(path), [])

    def _note(self, contents: Mapping[Path, bytes], *, and_before: bool) -> None:
        before = dict(self._digests)
        for path, text in contents.items():
            found = _read(path) if and_before else None
            texts = {_digest(text), *([] if found is None else [_digest(found)])}
            self._digests[self._name(path)] = sorted(texts)
        if self._digests != before:
            write_private_file(self._path, (json.dumps(self._digests, indent=2) + "\n").encode())

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _copy(path: Path) -> Path:
    """Keep a copy beside a file, under a name that is free."""
    number = 1
    while (copy := path.with_name(f"{path.name}.{number}.bak")).exists():
        number += 1
    write_private_file(copy, path.read_bytes())
    return copy


def _digests(path: Path) -> dict[str, list[str]]:
    text = _read(path)
    if text is None:
        return {}
    try:
        return {str(name): [str(one) for one in found] for name, found in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(
            f"{path}: damaged",
            fix="bring it back from a copy; or remove it, and every file counts as edited",
        ) from None


def _files(root: Path, site: Site, kept: Secrets) -> dict[str, bytes]:
    """Everything but certificates, by path below the root."""
    authority = (root / "operator" / "ca.pem").read_bytes()
    nodes = (root / "operator" / "nodes-ca.pem").read_bytes()
    keys = "".join(f"{line_of(kept.keys[name])}\n" for name in KEYS).encode()
    found = {path: text.encode() for path, text in documents(site, kept.passwords).items()}
    found["collector/ca.pem"] = authority
    found["collector/pseudonyms.key"] = f"{kept.pseudonyms}\n".encode()
    for node in site.nodes:
        place = site.place(node)
        found |= {
            f"{place}/ca.pem": authority,
            f"{place}/nodes-ca.pem": nodes,
            f"{place}/keys": keys,
        }
    for reader in _READERS:
        found |= {f"{reader}/ca.pem": authority, f"{reader}/token": kept.keys[reader].encode()}
    for part, readers in ADMIN_READERS.items():
        token = kept.admin[part].encode()
        found[f"{part}/admin.token"] = token
        found |= {f"{reader}/{part}.token": token for reader in readers}
    for part in ("router", "console"):
        found[f"{part}/actions.token"] = kept.actions.encode()
    found["console/read.token"] = kept.page["read"].encode()
    if site.one_place:  # elsewhere the console makes its own, in its volume
        found["console/console.token"] = kept.page["console"].encode()
    url = site.nats_url("operator", kept.passwords["operator"])
    found["operator/nats.url"] = url.encode()
    return found


def _certificates(root: Path, site: Site, clock: Clock, files: _Files) -> None:
    """Two authorities: whatever the nodes' one signs is a node, and it signs nothing else."""

    def sign(by: Authority, name: str, hosts: Sequence[str], cert: Path, key: Path) -> None:
        if not by.is_good(cert, key, name, hosts):
            signed, its_key = by.sign(name, hosts)
            files.write({key: its_key, cert: signed}, ours=by.has_signed(cert, key))

    operator = root / "operator"
    missing = [path for path in map(operator.joinpath, _AUTHORITIES) if not path.exists()]
    servers = Authority("penstock", operator / "ca.pem", operator / "ca.key", clock)
    nodes = Authority("penstock nodes", operator / "nodes-ca.pem", operator / "nodes-ca.key", clock)
    files.made.written += missing
    nats, names = root / "nats", site.names(site.nats)
    sign(servers, site.nats, names, nats / "cert.pem", nats / "cert.key")
    for part in ("collector", "router", *(["console"] if site.one_place else [])):
        place, names = root / part, site.names(part)
        if part == "collector" and site.collectors != part:
            names = [*names, *site.names(site.collectors)[:-2]]
        sign(servers, part, names, place / "cert.pem", place / "cert.key")
    for node, host in site.hosts.items():
        names, place = site.names(host), root / site.place(node)
        for authority, name in ((servers, "cert"), (nodes, "node")):
            cert, key = (place / site.file(node, f"{name}.{end}") for end in ("pem", "key"))
            sign(authority, node, names, cert, key)


def _secrets(path: Path, files: _Files) -> Secrets:
    """Return the secrets of the file; make and add missing ones first."""
    found = _found_secrets(path)
    wanted: dict[str, Any] = {
        "passwords": {user: secrets.token_urlsafe(_SECRET_BYTES) for user in NATS_USERS},
        "keys": {name: make_key(name) for name in KEYS},
        "admin": {part: secrets.token_urlsafe(_SECRET_BYTES) for part in ADMIN_READERS},
        "page": {name: secrets.token_urlsafe(_SECRET_BYTES) for name in PAGE_TOKENS},
    }
    made = Secrets(
        **{name: group | found.get(name, {}) for name, group in wanted.items()},
        actions=found.get("actions") or secrets.token_urlsafe(_SECRET_BYTES),
        pseudonyms=found.get("pseudonyms") or new_hash_key(),
    )
    # Values that an operator put there stay: nothing is replaced, so it is ours to add to.
    document = found | asdict(made)
    if document != found:
        files.write({path: (json.dumps(document, indent=2) + "\n").encode()}, ours=True)
    return made


def _found_secrets(path: Path) -> dict[str, Any]:
    """The secrets of a file, of which older versions wrote fewer.

    Raises:
        ConfigError: The file is damaged, or a value is not text.
    """
    text = _read(path)
    if text is None:
        return {}
    try:
        found = json.loads(text)
        groups = {
            name: dict(found.get(name, {})) for name in ("passwords", "keys", "admin", "page")
        }
        assert {"passwords", "keys"} <= found.keys()
    except (ValueError, AttributeError, TypeError, AssertionError):
        raise ConfigError(
            f"{path}: damaged",
            fix="bring it back from a copy; or remove it, and all passwords and keys are new",
        ) from None
    groups["actions"] = {"": found.get("actions", "")}
    groups["pseudonyms"] = {"": found.get("pseudonyms", "")}
    for group, values in groups.items():
        for name, value in values.items():
            if not isinstance(value, str):
                where = ".".join(filter(None, (group, name)))
                raise ConfigError(
                    f"{path}: {where} is {value!r}, and must be text",
                    fix="write it in quotation marks",
                )
    return dict(found)
