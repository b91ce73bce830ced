"""Callers that logd knows, and some that it does not, for tests of its doors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.base.clock import SystemClock
from penstock.logd.security.api_keys import line_of, load_keys, make_key
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.jwt import FileKeys, TokenRules
from penstock.logd.security.renewal import Renewed
from tests.support.certificates import Authority, Certificate
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

HOST = "DNS:localhost,IP:127.0.0.1"


@dataclass
class Callers:
    """Files of a directory, and what is made with them.

    Attributes:
        servers: The authority of logd's certificate.
        clients: That of clients' certificates.
        issuer: Of tokens.
        key: An API key of `batch`.
    """

    directory: Path

    def __post_init__(self) -> None:
        self.servers = Authority(self.directory / "servers")
        self.clients = Authority(self.directory / "clients")
        self.server = self.servers.sign("logd", HOST)
        self.issuer = Issuer()
        self.jwks = self.directory / "jwks.json"
        self.jwks.write_bytes(self.issuer.key_set())
        self.key = make_key("batch")
        self.keys = self.directory / "keys"
        self.keys.write_text(line_of(self.key) + "\n")
        self.keys.chmod(0o600)

    def client(self, name: str = "billing") -> Certificate:
        """A client's certificate."""
        return self.clients.sign(name)

    def token(self, name: str = "alice", **claims: Any) -> str:
        """A good token, unless claims say otherwise."""
        return self.issuer.token(name, SystemClock().unix_ns() / 1e9, **claims)

    def token_file(self, text: str, name: str = "token") -> Path:
        """A file with a token or a key."""
        path = self.directory / name
        path.write_text(text + "\n")
        return path

    def authenticator(
        self, *, required: bool = True, clock: SystemClock | None = None
    ) -> Authenticator:
        """As a daemon's; its files are looked at when a test says so."""
        self.key_file = Renewed("keys", (self.keys,), lambda: load_keys(self.keys))
        self.key_set = FileKeys(self.jwks, SystemClock(), age_s_max=86_400)
        rules = TokenRules(issuer=ISSUER, audience=AUDIENCE, groups_claim="groups")
        return Authenticator(
            clock or SystemClock(),
            required=required,
            tokens=(rules, self.key_set),
            keys=self.key_file,
        )

    def config(self, *, certificates: str = "optional", required: bool = True) -> dict[str, Any]:
        """The sections `tls` and `auth` of a configuration."""
        tls: dict[str, Any] = {
            "cert_file": str(self.server.cert),
            "key_file": str(self.server.key),
        }
        if certificates != "none":
            tls |= {
                "client_ca_file": str(self.clients.cert),
                "client_certificates": certificates,
            }
        tokens = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(self.jwks)}
        auth = {"required": required, "keys_file": str(self.keys), "tokens": tokens}
        return {"tls": tls, "auth": auth}
