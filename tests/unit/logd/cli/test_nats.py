"""How `publish` reaches NATS: with what its options and the environment name."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.logd.cli import cli
from penstock.logd.cli.server import Clients
from penstock.logd.errors import UnavailableError
from tests.support.certificates import Authority


class Logins(list[dict[str, Any]]):
    """What each publisher was to show."""

    def clients(self) -> Clients:
        def publisher(*_: object, **login: Any) -> None:
            self.append(login)
            raise UnavailableError("there is none in this test")

        return Clients(publisher=publisher)


@pytest.fixture
def logins() -> Logins:
    return Logins()


def publish(logins: Logins, *options: str, **environment: str) -> int:
    words = ["publish", "t.a", "x", *options]
    return CliRunner().invoke(cli, words, env=environment, obj=logins.clients()).exit_code


def test_certificates_and_credentials_are_shown_as_they_are_named(
    tmp_path: Path, logins: Logins
) -> None:
    authority = Authority(tmp_path)
    own = authority.sign("shop")
    named = ["--nats-cert", str(own.cert), "--nats-key", str(own.key), "--nats-creds", "shop.creds"]
    assert publish(logins, "--nats-ca", str(authority.cert), *named) == 69
    assert publish(logins, PENSTOCK_LOGD_NATS_CA=str(authority.cert)) == 69
    assert publish(logins, "--nats-tls") == 69
    assert publish(logins) == 69
    for login in logins[:3]:
        assert isinstance(login["tls"], ssl.SSLContext)
        assert login["tls"].verify_mode is ssl.CERT_REQUIRED
        assert login["tls"].check_hostname
    assert len(logins[1]["tls"].get_ca_certs()) == 1
    assert [login.get("user_credentials") for login in logins] == ["shop.creds", None, None, None]
    assert logins[3] == {}


def test_a_file_that_is_none_is_told(tmp_path: Path, logins: Logins) -> None:
    done = CliRunner().invoke(
        cli, ["publish", "t.a", "x", "--nats-ca", str(tmp_path / "none.pem")], obj=logins.clients()
    )
    assert (done.exit_code, "BAD_TLS_FILE" in done.stderr) == (1, True)
    assert logins == []
