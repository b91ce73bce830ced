"""Getting into a real nats-server: every login, TLS, and what is said when it does not work."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.logd.nats.protocol import NatsRefusedError, NatsSetupError
from tests.support.certificates import Authority
from tests.support.links import LinkUnderTest, running_link
from tests.support.nats_accounts import Keys, Operator
from tests.support.nats_server import nats_server
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


async def connects(settings: dict[str, Any]) -> None:
    async with running_link(settings, "t.>") as link:
        assert link.connected
        assert link.denials() == {}


async def refusal(settings: dict[str, Any]) -> Exception:
    link = LinkUnderTest(settings)
    try:
        await link.connect()
    except (NatsRefusedError, NatsSetupError, OSError) as error:
        return error
    finally:
        link.close()
    raise AssertionError("it connected")


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


async def test_an_nkey_logs_in_and_another_does_not(tmp_path: Path) -> None:
    keys, stranger = Keys.make(), Keys.make()
    seed = write(tmp_path / "seed", b"# the seed\n" + keys.seed + b"\n")
    other = write(tmp_path / "other", stranger.seed)
    config = write(tmp_path / "nats.conf", f"authorization {{users: [{{nkey: {keys.public}}}]}}\n")
    with nats_server(tmp_path / "nats", config=config) as server:
        await connects({"url": server.url, "nkey_seed_file": seed})
        error = await refusal({"url": server.url, "nkey_seed_file": other})
        assert isinstance(error, NatsRefusedError)
        assert "Authorization" in str(error)


async def test_jwt_credentials_log_in_until_they_expire(tmp_path: Path) -> None:
    operator = Operator()
    config = write(tmp_path / "nats.conf", operator.config)
    good = write(tmp_path / "user.creds", operator.credentials())
    forged = write(tmp_path / "forged.creds", Operator().credentials())
    with nats_server(tmp_path / "nats", config=config) as server:
        await connects({"url": server.url, "credentials_file": good})
        error = await refusal({"url": server.url, "credentials_file": forged})
        assert isinstance(error, NatsRefusedError)
        old = write(tmp_path / "old.creds", operator.credentials(expires_s=1_600_000_001))
        error = await refusal({"url": server.url, "credentials_file": old})
        assert isinstance(error, NatsSetupError)
        assert error.key == "nats.credentials_file"
        assert "expired" in str(error)


class TlsWorld:
    """Certificates of one authority, and configurations of servers that use them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.sign("server", "DNS:localhost,IP:127.0.0.1")
        self.elsewhere = self.authority.sign("elsewhere", "DNS:nats.example.com")
        self.expired = self.authority.sign("expired", "DNS:localhost", expired=True)
        self.client = self.authority.sign("client", "DNS:logd-1")
        self.ca = {"ca_file": self.authority.cert}

    def config(self, certificate: str = "server", options: str = "") -> Path:
        own = getattr(self, certificate)
        return write(
            self.directory / f"{certificate}.conf",
            f'tls {{ cert_file: "{own.cert}", key_file: "{own.key}",'
            f' ca_file: "{self.authority.cert}"\n{options}\n}}\n',
        )


@pytest.fixture
def tls(tmp_path: Path) -> TlsWorld:
    return TlsWorld(tmp_path / "tls")


async def test_tls_is_used_when_asked_for_or_demanded_and_holds_the_name(
    tmp_path: Path, tls: TlsWorld
) -> None:
    with nats_server(tmp_path / "nats", config=tls.config()) as server:
        for url in (f"tls://localhost:{server.port}", f"nats://127.0.0.1:{server.port}"):
            await connects({"url": url, "tls": tls.ca})
        error = await refusal({"url": f"nats://localhost:{server.port}"})
        assert isinstance(error, NatsSetupError)
        assert error.key == "nats.tls.ca_file"
    with nats_server(tmp_path / "elsewhere", config=tls.config("elsewhere")) as server:
        url = f"tls://localhost:{server.port}"
        error = await refusal({"url": url, "tls": tls.ca})
        assert isinstance(error, NatsSetupError)
        assert error.key == "nats.url"
        assert "'localhost'" in str(error)
        await connects({"url": url, "tls": tls.ca | {"server_name": "nats.example.com"}})
    with nats_server(tmp_path / "expired", config=tls.config("expired")) as server:
        error = await refusal({"url": f"tls://localhost:{server.port}", "tls": tls.ca})
        assert isinstance(error, OSError)
        assert "out of date" in str(error)


async def test_a_client_certificate_is_shown_where_it_is_demanded(
    tmp_path: Path, tls: TlsWorld
) -> None:
    own = {"cert_file": tls.client.cert, "key_file": tls.client.key}
    with nats_server(tmp_path / "nats", config=tls.config(options="verify: true")) as server:
        url = f"tls://localhost:{server.port}"
        await connects({"url": url, "tls": tls.ca | own})
        error = await refusal({"url": url, "tls": tls.ca})
        assert isinstance(error, NatsRefusedError)
        assert "cert_file" in str(error)
        old = {"cert_file": tls.expired.cert, "key_file": tls.expired.key}
        error = await refusal({"url": url, "tls": tls.ca | old})
        assert isinstance(error, NatsRefusedError)
        mixed = own | {"key_file": tls.server.key}
        error = await refusal({"url": url, "tls": tls.ca | mixed})
        assert isinstance(error, NatsSetupError)
        assert "belong together" in str(error)


async def test_a_server_that_awaits_the_handshake_first(tmp_path: Path, tls: TlsWorld) -> None:
    config = tls.config(options="handshake_first: true")
    with nats_server(tmp_path / "nats", config=config) as server:
        url = f"tls://localhost:{server.port}"
        await connects({"url": url, "tls": tls.ca | {"handshake_first": True}})
        error = await refusal({"url": url, "tls": tls.ca})
        assert "handshake_first" in str(error)


async def test_a_server_that_hangs_up_may_have_awaited_the_handshake() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await refusal({"url": f"nats://127.0.0.1:{port}"})
        assert "handshake_first" in str(error)


async def test_tls_that_is_asked_for_is_never_given_up(nats_url: str) -> None:
    error = await refusal({"url": nats_url.replace("nats:", "tls:")})
    assert isinstance(error, NatsRefusedError)
    assert "does not offer TLS" in str(error)


def run_logd(directory: Path, nats: dict[str, Any]) -> tuple[int, str]:
    """Run a logd that is expected to end by itself; its exit code and output."""
    config = {
        "data_dir": str(directory / "data"),
        "nats": nats,
        "fetch": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "connect_timeout_s": 5,
    }
    path = write(directory / "logd.yaml", yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "penstock.logd", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    return done.returncode, done.stderr


def test_mistakes_end_the_start_with_the_key_and_the_right_code(
    tmp_path: Path, tls: TlsWorld
) -> None:
    with nats_server(tmp_path / "expired", config=tls.config("expired")) as server:
        url = f"tls://localhost:{server.port}"
        ca = {"ca_file": str(tls.authority.cert)}
        for nats, expected, words in (
            ({"url": url, "tls": ca}, 69, ("nats.url", "out of date")),
            ({"url": url, "tls": {"ca_file": "/nowhere"}}, 78, ("nats.tls.ca_file: /nowhere",)),
            ({"url": url}, 78, ("nats.tls.ca_file", "not trusted")),
        ):
            code, output = run_logd(tmp_path, nats)
            assert code == expected, output
            assert [word for word in (*words, "fix:") if word not in output] == []
