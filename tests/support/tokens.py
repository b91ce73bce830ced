"""Tokens made on the fly: an issuer with keys of all kinds, and forgeries."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "penstock"

_RSA: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
"""Made once: it takes a while."""


class Issuer:
    """Signs tokens with an RSA, a P-256 and an Ed25519 key of its own."""

    def __init__(self, generation: str = "1") -> None:
        self._keys: dict[str, Any] = {
            "RS256": _RSA,
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }
        self._generation = generation

    def key(self, algorithm: str) -> Any:
        """A key to sign with."""
        return self._keys[algorithm]

    def kid(self, algorithm: str = "ES256") -> str:
        """The id of a key."""
        return f"{algorithm}-{self._generation}"

    def claims(self, name: str, now_s: float, **claims: Any) -> dict[str, Any]:
        """Those of a good token for an hour; None leaves one out."""
        good = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "exp": int(now_s) + 3600} | claims
        return {claim: value for claim, value in good.items() if value is not None}

    def token(
        self,
        name: str,
        now_s: float,
        algorithm: str = "ES256",
        *,
        kid: str | None = "",
        **claims: Any,
    ) -> str:
        """A token for `name`; `kid` None leaves the id out."""
        headers = {} if kid is None else {"kid": kid or self.kid(algorithm)}
        key = self._keys[algorithm]
        return jwt.encode(self.claims(name, now_s, **claims), key, algorithm, headers=headers)

    def key_set(self, *algorithms: str) -> bytes:
        """The JWKS document, of all keys or those named."""
        makers: dict[str, Any] = {
            "RS256": RSAAlgorithm,
            "ES256": ECAlgorithm,
            "EdDSA": OKPAlgorithm,
        }
        keys = []
        for algorithm in algorithms or tuple(makers):
            public = makers[algorithm].to_jwk(self._keys[algorithm].public_key(), as_dict=True)
            keys.append(public | {"kid": self.kid(algorithm), "use": "sig"})
        return json.dumps({"keys": keys}).encode()

    def forge_none(self, name: str, now_s: float) -> str:
        """A token that says it is not signed."""
        return _encode({"alg": "none", "kid": self.kid()}, self.claims(name, now_s)) + "."

    def forge_hs256(self, name: str, now_s: float, algorithm: str = "RS256") -> str:
        """A token with the public key, as PEM, for the secret of an HMAC."""
        public = self._keys[algorithm].public_key()
        secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        signed = _encode({"alg": "HS256", "kid": self.kid(algorithm)}, self.claims(name, now_s))
        return f"{signed}.{_base64(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def _encode(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    return ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
