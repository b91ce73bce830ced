"""What a daemon's doors are made of, and what is said when it cannot be."""

from pathlib import Path
from typing import Any

import pytest

from penstock.base.clock import SystemClock
from penstock.logd.security.config import AuthSection, TlsSection
from penstock.logd.security.reloader import CredentialReloader, ListenerSetupError
from penstock.logd.security.tls import CertificateFiles
from tests.support.certificates import Authority
from tests.support.identities import HOST

TOKENS = {"issuer": "i", "audience": "a"}
CLOCK = SystemClock()


@pytest.mark.parametrize(
    ("tls", "auth", "key"),
    [
        ({"cert_file": "missing.pem"}, {}, "tls.cert_file"),
        (None, {"keys_file": "missing"}, "auth.keys_file"),
        (None, {"tokens": TOKENS | {"jwks_file": "missing"}}, "auth.tokens.jwks_file"),
        (
            None,
            {"tokens": TOKENS | {"jwks_url": "https://h/", "jwks_ca_file": "missing"}},
            "auth.tokens.jwks_ca_file",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_key(
    tls: dict[str, Any] | None, auth: dict[str, Any], key: str
) -> None:
    section = None if tls is None else TlsSection(**tls)
    with pytest.raises(ListenerSetupError) as refused:
        CredentialReloader(section, AuthSection(**auth), CLOCK)
    assert refused.value.key == key
    assert refused.value.fix


def test_a_file_of_the_cluster_is_named_with_its_key(tmp_path: Path) -> None:
    reloader = CredentialReloader(None, AuthSection(), CLOCK)
    made = Authority(tmp_path / "a").sign("node", HOST)
    files = CertificateFiles(ca_file=tmp_path / "no", cert_file=made.cert, key_file=made.key)
    with pytest.raises(ListenerSetupError, match="no: cannot be read") as refused:
        reloader.peer_sources(files)
    assert refused.value.key == "cluster.tls.ca_file"
    reloader.close()


def test_a_certificate_that_is_out_of_date_is_told(tmp_path: Path) -> None:
    made = Authority(tmp_path / "a").sign("old", HOST, expired=True)
    section = TlsSection(cert_file=made.cert, key_file=made.key)
    reloader = CredentialReloader(section, AuthSection(), CLOCK)
    assert list(reloader.reasons()) == ["tls: the certificate is out of date"]
    reloader.close()


def test_without_sections_doors_are_open_and_plain() -> None:
    reloader = CredentialReloader(None, AuthSection(), CLOCK)
    assert (reloader.fetch_tls(), reloader.admin_tls(), reloader.admit()) == (None, None, None)
    reloader.close()
