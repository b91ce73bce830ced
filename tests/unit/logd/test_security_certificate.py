"""Whom a certificate names."""

from pathlib import Path

import pytest

from penstock.logd.security.principal import (
    CertificateName,
    Method,
    UnauthenticatedError,
    identify_certificate,
    names_of,
)
from tests.support.certificates import Authority

NAMES = "DNS:host.example,URI:spiffe://here/billing,email:billing@example.com"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize(
    ("which", "name"),
    [
        ("cn", "billing"),
        ("dns", "host.example"),
        ("uri", "spiffe://here/billing"),
        ("email", "billing@example.com"),
    ],
)
def test_a_certificate_names_its_principal(authority: Authority, which: str, name: str) -> None:
    made = authority.sign("billing", NAMES, units=("ops", "eu"))
    identity = identify_certificate(made.der, CertificateName(which))
    assert identity.principal.name == name
    assert identity.principal.method is Method.CERTIFICATE
    assert identity.principal.groups == {"ops", "eu"}
    assert identity.expires_ns == 4070908800 * 10**9


def test_a_certificate_without_that_name_or_with_two_names_nobody(authority: Authority) -> None:
    bare = authority.sign("bare")
    two = authority.sign("two", "URI:a://1,URI:a://2")
    for made in (bare, two):
        with pytest.raises(UnauthenticatedError, match="of kind `uri`"):
            identify_certificate(made.der, CertificateName.URI)
    reserved = authority.sign("group:ops")
    with pytest.raises(UnauthenticatedError, match="nobody can be named"):
        identify_certificate(reserved.der, CertificateName.CN)
    with pytest.raises(UnauthenticatedError, match="cannot be read"):
        identify_certificate(b"rubbish", CertificateName.CN)


def test_all_names_of_a_certificate(authority: Authority) -> None:
    made = authority.sign("node-1", NAMES)
    assert names_of(made.der) == {
        "node-1", "host.example", "spiffe://here/billing", "billing@example.com",
    }  # fmt: skip


def test_files_are_made_where_they_are_expected(authority: Authority, tmp_path: Path) -> None:
    made = Authority(tmp_path / "x").sign("a")
    made.replace_with(authority.sign("b"))
    assert identify_certificate(made.der, CertificateName.CN).principal.name == "b"
