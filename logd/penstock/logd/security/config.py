"""The sections `tls` and `auth` of logd's configuration, and which listeners need the first."""

import ipaddress
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from penstock.logd.errors import RefusedError
from penstock.logd.limits import ACL_RULES_PER_REQUEST_MAX
from penstock.logd.security.acl import (
    EVERYBODY,
    AclRule,
    Action,
    Effect,
    check_principal,
    check_rule,
)
from penstock.logd.security.jwt import TokenRules
from penstock.logd.security.principal import ANONYMOUS, CertificateName
from penstock.logd.security.tls import CertificateFiles, ClientCertificates
from penstock.service import Quantities

Endpoint = Literal["fetch", "grpc", "admin", "peer"]
"""Name of an endpoint of logd."""


class _Settings(Quantities):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsSection(_Settings):
    """TLS of the endpoints `fetch`, `grpc` and `admin`; with this section all of them have it.

    Attributes:
        cert_file: PEM; logd's certificate and what leads from it to an authority.
        key_file: PEM; its key, if it is not in `cert_file`.
        client_ca_file: PEM; who signs the certificates of clients.
        client_certificates: Whether clients are asked for one. `/healthz` needs none in any case;
            gRPC knows only `none` and `required`, and takes `optional` for `none`.
    """

    cert_file: Path
    key_file: Path | None = None
    client_ca_file: Path | None = None
    client_certificates: ClientCertificates = ClientCertificates.NONE

    @model_validator(mode="after")
    def _check_clients(self) -> Self:
        asked = self.client_certificates is not ClientCertificates.NONE
        if asked and self.client_ca_file is None:
            msg = f"client_certificates: {self.client_certificates} needs client_ca_file"
            raise ValueError(msg)
        if self.client_ca_file is not None and not asked:
            msg = "client_ca_file needs client_certificates: optional or required"
            raise ValueError(msg)
        return self

    def files(self) -> CertificateFiles:
        return CertificateFiles(
            ca_file=self.client_ca_file, cert_file=self.cert_file, key_file=self.key_file
        )


class TokenSection(_Settings):
    """Tokens (JWT) that callers are known by; as `penstock.logd.security.jwt.TokenRules`.

    Attributes:
        jwks_file: The public keys; or
        jwks_url: where they are, `https://`.
        jwks_ca_file: PEM; whom to trust there, instead of the system's authorities.
        jwks_refresh_s: After how long the URL is asked again.
        max_jwks_age_s: Seconds for which keys are valid that the file or the URL has not confirmed.
    """

    issuer: Annotated[str, Field(min_length=1)]
    audience: Annotated[str, Field(min_length=1)]
    jwks_file: Path | None = None
    jwks_url: str | None = None
    jwks_ca_file: Path | None = None
    jwks_refresh_s: Annotated[float, Field(ge=10, le=86_400)] = 300.0
    max_jwks_age_s: Annotated[float, Field(ge=60, le=31_536_000)] = 86_400.0
    name_claim: Annotated[str, Field(min_length=1)] = "sub"
    groups_claim: Annotated[str, Field(min_length=1)] | None = None
    clock_skew_s: Annotated[int, Field(ge=0, le=300)] = 30

    @field_validator("jwks_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if parts.scheme != "https" or not parts.hostname or parts.username is not None:
                msg = "must be https://HOST[:PORT]/PATH, without credentials"
                raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.jwks_file is None) == (self.jwks_url is None):
            msg = "needs jwks_file or jwks_url, and not both"
            raise ValueError(msg)
        if self.max_jwks_age_s < 2 * self.jwks_refresh_s:
            msg = "max_jwks_age_s must be twice jwks_refresh_s or more: an answer may fail"
            raise ValueError(msg)
        return self

    def rules(self) -> TokenRules:
        """Return the rules for tokens."""
        return TokenRules(
            issuer=self.issuer,
            audience=self.audience,
            name_claim=self.name_claim,
            groups_claim=self.groups_claim,
            clock_skew_s=self.clock_skew_s,
        )


class Grant(_Settings):
    """Grant in the configuration: each of the actions on each of the resources.

    Attributes:
        principal: Principal, as in a rule.
        actions: Actions, as in a rule.
        resources: Resources, as in a rule.
    """

    principal: str
    actions: Annotated[tuple[Action, ...], Field(min_length=1)]
    resources: Annotated[tuple[str, ...], Field(min_length=1, max_length=ACL_RULES_PER_REQUEST_MAX)]

    def rules(self) -> Iterator[AclRule]:
        """Yield the rules of the grant."""
        for action, resource in product(self.actions, self.resources):
            yield AclRule(
                principal=self.principal, effect=Effect.ALLOW, action=action, resource=resource
            )

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        try:
            for rule in self.rules():
                check_rule(rule)
        except RefusedError as error:
            raise ValueError(str(error)) from None
        return self


class AuthSection(_Settings):
    """Authentication and authorization.

    Attributes:
        required: Whether anonymous clients are refused; only `/healthz` and gRPC's health
            service answer all clients.
        certificate_name: The name of a client's certificate that is its principal's.
        tokens: None: no tokens are accepted.
        keys_file: API keys, see `penstock.logd.security.api_keys`; None: none are accepted.
        acl: Whether what no rule allows is denied.
        superusers: Names, and groups as `group:NAME`, that may perform every action.
        grants: Permissions that exist without a rule at run time.
    """

    required: bool = False
    certificate_name: CertificateName = CertificateName.CN
    tokens: TokenSection | None = None
    keys_file: Path | None = None
    acl: bool = False
    superusers: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = ()

    def granted(self) -> list[AclRule]:
        """Return the section's grants as rules."""
        return [rule for grant in self.grants for rule in grant.rules()]

    @field_validator("superusers")
    @classmethod
    def _check_superusers(cls, superusers: tuple[str, ...]) -> tuple[str, ...]:
        for superuser in superusers:
            try:
                check_principal(superuser)
            except RefusedError as error:
                raise ValueError(str(error)) from None
            if superuser in (EVERYBODY, ANONYMOUS.name):
                msg = f"{superuser!r} would be everybody: name who may everything"
                raise ValueError(msg)
        return superusers

    @model_validator(mode="after")
    def _check_acl(self) -> Self:
        if self.acl and not self.superusers:
            msg = "acl needs superusers: without them nobody could make the first rule"
            raise ValueError(msg)
        return self


def is_loopback(address: str) -> bool:
    """Return whether only this machine can connect to a `HostPort`."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_encrypted(
    addresses: dict[Endpoint, str], encrypted: frozenset[Endpoint], asked: tuple[Endpoint, ...]
) -> None:
    """Refuse listeners that others can read along with, unless an operator asked for them by name.

    Args:
        addresses: Addresses of the listeners.
        encrypted: Those with TLS.
        asked: Those that may go without.

    Raises:
        ValueError: Which they are, and what to do.
    """
    for endpoint, address in addresses.items():
        if endpoint in encrypted or endpoint in asked or is_loopback(address):
            continue
        section = "cluster.tls" if endpoint == "peer" else "tls"
        problem = f"{endpoint}: {address} is open to other machines and has no TLS"
        fix = f"listen on 127.0.0.1, or ask for it by name: insecure_listeners: [{endpoint}]"
        msg = f"{problem}: give the section `{section}`, {fix}"
        raise ValueError(msg)
