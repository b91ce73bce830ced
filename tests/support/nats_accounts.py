"""Keys and JWTs of a NATS operator, its account and its users, as `nsc` would make them."""

import base64
import json
import os
from dataclasses import dataclass
from typing import Any, Self

import nkeys


@dataclass(frozen=True)
class Keys:
    """An NKEY pair."""

    seed: bytes
    public: str

    @classmethod
    def make(cls, prefix: int = nkeys.PREFIX_BYTE_USER) -> Self:
        """A new pair, a user's by default."""
        seed = nkeys.encode_seed(os.urandom(32), prefix)
        return cls(seed, nkeys.from_seed(seed).public_key.decode())

    def jwt(self, subject: str, kind: str, claims: dict[str, Any], *, expires_s: int = 0) -> str:
        """Sign claims about `subject` (ADR-14: header `ed25519-nkey`, version 2)."""
        body: dict[str, Any] = {
            "jti": subject,
            "iat": 1_600_000_000,
            "iss": self.public,
            "name": kind,
            "sub": subject,
            "nats": {"type": kind, "version": 2} | claims,
        }
        if expires_s:
            body["exp"] = expires_s
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (head, body))
        return f"{signed}.{_base64(nkeys.from_seed(self.seed).sign(signed.encode()))}"


class Operator:
    """An operator with one account; `config` is what a server needs of them."""

    def __init__(self) -> None:
        keys = Keys.make(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = Keys.make(nkeys.PREFIX_BYTE_ACCOUNT)
        unlimited = dict.fromkeys(
            ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1
        )
        limits = {"limits": unlimited | {"wildcards": True}}
        account = keys.jwt(self._account.public, "account", limits)
        self.config = (
            f'operator: "{keys.jwt(keys.public, "operator", {})}"\nresolver: MEMORY\n'
            f'resolver_preload: {{ {self._account.public}: "{account}" }}\n'
        )

    def credentials(self, *, expires_s: int = 0, keys: Keys | None = None) -> str:
        """A user's `.creds` file; with `keys`, one whose seed is not that of its JWT."""
        user = Keys.make()
        unlimited = {"subs": -1, "data": -1, "payload": -1}
        jwt = self._account.jwt(user.public, "user", unlimited, expires_s=expires_s)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "***** IMPORTANT *****\nKeep this secret.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{(keys or user).seed.decode()}\n"
            "------END USER NKEY SEED------\n"
        )


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
