"""The public keys that tokens are signed with: a JWKS document (RFC 7517).

Which algorithm a key is for is decided here, by its kind, and never by the token that names it: RSA
of 2048 bits or more is for RS256, P-256 for ES256, Ed25519 for EdDSA. Other keys, symmetric ones
above all, are passed over.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from penstock.logd.errors import CorruptError
from penstock.logd.limits import KEY_SET_KEYS_MAX, KEY_SET_SIZE_MAX

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
"""Of signatures that are taken."""

_RSA_BITS_MIN: Final = 2048
"""NIST SP 800-131A: fewer are not to be used."""

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key of a set.

    Attributes:
        kid: Its id; empty when it has none.
        algorithm: What it verifies.
        key: As cryptography has it.
        digest: Of the key itself: another one under the same id has another.
    """

    kid: str
    algorithm: str
    key: PublicKey
    digest: str


@dataclass(frozen=True)
class KeySet:
    """Keys that can be used, by id."""

    keys: Mapping[str, VerifyingKey]

    @cached_property
    def digests(self) -> frozenset[str]:
        """Of all of them."""
        return frozenset(key.digest for key in self.keys.values())

    def find(self, kid: str | None) -> VerifyingKey | None:
        """The key of an id; without one, the only key there is."""
        if kid is None:
            return next(iter(self.keys.values())) if len(self.keys) == 1 else None
        return self.keys.get(kid)


def parse_key_set(data: bytes, *, where: str) -> KeySet:
    """Read a JWKS document.

    Raises:
        CorruptError: It is none, is too large, or has no key that can be used, or two of one id.
    """
    if len(data) > KEY_SET_SIZE_MAX:
        raise CorruptError(f"has more than {KEY_SET_SIZE_MAX} bytes", where=where)
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise CorruptError("is not JSON", where=where) from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > KEY_SET_KEYS_MAX:
        message = f"is not a JWKS document with up to {KEY_SET_KEYS_MAX} keys"
        raise CorruptError(message, where=where)
    keys: dict[str, VerifyingKey] = {}
    for key in _usable(listed):
        if key.kid in keys:
            raise CorruptError(f"has two keys with the id {key.kid!r}", where=where)
        keys[key.kid] = key
    if not keys:
        kinds = "RSA of 2048 bits, P-256 or Ed25519"
        raise CorruptError(f"has no key that can verify tokens: {kinds}", where=where)
    return KeySet(keys)


def _usable(listed: list[Any]) -> Iterator[VerifyingKey]:
    for item in listed:
        if not isinstance(item, dict) or item.get("use", "sig") != "sig":
            continue
        kid = item.get("kid", "")
        if not isinstance(kid, str):
            continue
        try:
            key = jwt.PyJWK(item).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        algorithm = _algorithm_of(key)
        if algorithm and item.get("alg", algorithm) == algorithm:
            yield VerifyingKey(kid, algorithm, key, _digest_of(key))


def _digest_of(key: PublicKey) -> str:
    form = PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(Encoding.DER, form)).hexdigest()


def _algorithm_of(key: object) -> str:
    """Empty when it is for none that is taken; so a private key that stands there by mistake."""
    match key:
        case RSAPublicKey() if key.key_size >= _RSA_BITS_MIN:
            return "RS256"
        case EllipticCurvePublicKey() if key.curve.name == "secp256r1":
            return "ES256"
        case Ed25519PublicKey():
            return "EdDSA"
        case _:
            return ""
