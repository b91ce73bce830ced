"""How a client is let in: options, environment, files; secrets are not shown."""

import pickle
from pathlib import Path

import pytest

from penstock.logd.client import Access
from penstock.logd.errors import RefusedError


def test_the_environment_says_how() -> None:
    assert Access.from_environment({}) == Access()
    found = Access.from_environment(
        {
            "PENSTOCK_LOGD_TLS": "true",
            "PENSTOCK_LOGD_TLS_CA": "ca",
            "PENSTOCK_LOGD_CERT": "cert",
            "PENSTOCK_LOGD_KEY": "key",
            "PENSTOCK_LOGD_TOKEN_FILE": "token",
        }
    )
    assert found == Access(
        tls=True, ca_file="ca", cert_file="cert", key_file="key", token_file="token"
    )
    assert Access.from_environment({"PENSTOCK_LOGD_TLS_CA": "ca"}).encrypted


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="exclude"):
        Access(token="t", token_file="f")
    with pytest.raises(ValueError, match="needs cert_file"):
        Access(key_file="k")


def test_a_token_is_not_shown_and_travels_to_workers() -> None:
    access = Access(token="s3cret", ca_file="ca")
    assert "s3cret" not in repr(access)
    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_token_goes_to_this_machine_without_tls(host: str) -> None:
    assert Access(token="t").greeting(host) == {"api": "authenticate", "token": "t"}


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "logd.example", "localhost.example"])
def test_a_token_goes_elsewhere_with_tls_only(host: str) -> None:
    with pytest.raises(RefusedError) as refused:
        Access(token="t").greeting(host)
    assert refused.value.code == "PLAIN_TOKEN"
    assert Access(token="t", tls=True).greeting(host) is not None
    assert Access().greeting(host) is None


def test_a_token_file_has_one_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content in (b"", b"\n", b"a b", b"a\nb\n", b"\xff", b"x" * 16_385):
        path.write_bytes(content)
        with pytest.raises(RefusedError, match=str(path)) as refused:
            Access(token_file=path).greeting("localhost")
        assert refused.value.code == "BAD_TOKEN_FILE"
    path.write_text(" token\n")
    greeting = Access(token_file=path).greeting("localhost")
    assert greeting == {"api": "authenticate", "token": "token"}
    with pytest.raises(RefusedError, match="cannot be read"):
        Access(token_file=tmp_path / "missing").greeting("localhost")


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    for access in (Access(ca_file=path), Access(cert_file=path), Access(ca_file=tmp_path / "x")):
        with pytest.raises(RefusedError, match=str(tmp_path)) as refused:
            access.context()
        assert refused.value.code == "BAD_TLS_FILE"
    assert Access().context() is None
