"""The section `nats` of logd's configuration."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, field_serializer, field_validator
from pydantic import model_validator as check_model

from penstock.logd.nats.connect import Login, NatsAccess, TlsFiles
from penstock.logd.nats.servers import hide_credentials, parse_servers
from penstock.service.config_types import Secret


class NatsTlsSettings(BaseModel):
    """TLS (`penstock.logd.nats.connect.TlsFiles`); with this section nothing goes without it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    handshake_first: bool = False

    @check_model(mode="after")
    def _check_key(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            msg = "key_file needs cert_file"
            raise ValueError(msg)
        return self


class NatsSettings(BaseModel):
    """Connection to NATS, and logd's credentials there.

    Attributes:
        url: `nats://HOST:PORT` or `tls://HOST:PORT`, of one server or several: a list, or separated
            by commas. User and password or a token may stand in it.
        user: User, with `password`; it takes precedence over the URL, and so do the next three.
        password: A text, `{file: PATH}` or `{env: NAME}`, as `token` is.
        token: Token, as in the server's configuration.
        nkey_seed_file: File with a user's seed.
        credentials_file: File with a user's JWT and seed.
        tls: Required when given; else only where a URL or a server demands it.
        jetstream_hints: Whether requests on JetStream's API are answered with an error that names
            the way here, where no JetStream answers them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | tuple[str, ...] = "nats://127.0.0.1:4222"
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    nkey_seed_file: Path | None = None
    credentials_file: Path | None = None
    tls: NatsTlsSettings | None = None
    jetstream_hints: bool = False

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | tuple[str, ...]) -> str | tuple[str, ...]:
        parse_servers(url)
        return url

    @check_model(mode="after")
    def _check_login(self) -> Self:
        ways = ("user", "token", "nkey_seed_file", "credentials_file")
        given = [way for way in ways if getattr(self, way) is not None]
        if len(given) > 1:
            msg = f"{' and '.join(given)} exclude each other"
            raise ValueError(msg)
        if self.password is not None and self.user is None:
            msg = "password needs user"
            raise ValueError(msg)
        return self

    @field_serializer("url", when_used="json")
    def _hide_credentials(self, url: str | tuple[str, ...]) -> str | list[str]:
        if isinstance(url, str):
            return ",".join(hide_credentials(one) for one in url.split(","))
        return [hide_credentials(one) for one in url]

    def access(self) -> NatsAccess:
        """Return the access for connections."""
        return NatsAccess(
            servers=parse_servers(self.url),
            login=Login(
                user=self.user,
                password=self.password,
                token=self.token,
                nkey_seed_file=self.nkey_seed_file,
                credentials_file=self.credentials_file,
            ),
            tls=None if self.tls is None else TlsFiles(**self.tls.model_dump()),
        )
