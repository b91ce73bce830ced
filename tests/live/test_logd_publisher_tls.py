"""A publisher that is told to use TLS says nothing without it, whichever server it finds."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.logd.cli import cli
from penstock.logd.errors import UnavailableError
from penstock.logd.publisher import Publisher, PublishOptions, connected
from tests.support.certificates import Authority
from tests.support.nats_server import nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.live

INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"auth_required":true}\r\n'
OPTIONS = PublishOptions(connect_timeout_s=3, retry_s=0.1)


class Eavesdropper:
    """A server without TLS that asks for credentials.

    Attributes:
        connections: So far.
        heard: Everything that was sent to it.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(INFO)
        while data := await reader.read(1000):
            self.heard += data
        writer.close()


@asynccontextmanager
async def eavesdropping(port: int) -> AsyncIterator[Eavesdropper]:
    """One that listens until the block ends."""
    found = Eavesdropper()
    async with await asyncio.start_server(found.serve, "127.0.0.1", port, family=socket.AF_INET):
        yield found


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


@pytest.fixture
def config(tmp_path: Path, authority: Authority) -> Path:
    own = authority.sign("server", "DNS:localhost,IP:127.0.0.1")
    path = tmp_path / "nats.conf"
    path.write_text(
        f'tls {{ cert_file: "{own.cert}", key_file: "{own.key}" }}\n'
        'authorization { user: "u", password: "secret" }\n'
    )
    return path


def login(authority: Authority) -> dict[str, Any]:
    return {"user": "u", "password": "secret", "reconnect_time_wait": 0.05} | {
        "tls": ssl.create_default_context(cafile=str(authority.cert))
    }


@pytest.mark.parametrize(
    "url", ["tls://127.0.0.1:{}", "nats://127.0.0.1:{}", "tls://u:s@127.0.0.1:{}"]
)
async def test_nothing_is_sent_to_a_server_without_tls(url: str, authority: Authority) -> None:
    port = free_port()
    options = {} if "@" in url else login(authority)
    async with eavesdropping(port) as server:
        with pytest.raises(UnavailableError, match="does not ask for TLS"):
            async with connected(url.format(port), OPTIONS, **options):
                pass
    assert server.connections >= 1
    assert server.heard == b""


async def test_a_server_that_loses_tls_is_told_nothing_until_it_has_it_again(
    tmp_path: Path, authority: Authority, config: Path
) -> None:
    port = free_port()
    with nats_server(tmp_path / "a", port=port, config=config):
        options = replace(OPTIONS, connect_timeout_s=60)
        connecting = connected(f"tls://localhost:{port}", options, **login(authority))
        publisher = await connecting.__aenter__()
        await reaches_the_server(publisher)
    async with eavesdropping(port) as server:
        await wait_until_async(lambda: server.connections >= 3)
        with pytest.raises(UnavailableError, match="not connected"):
            await publisher.publish("t.a", b"x")
        assert server.heard == b""
    with nats_server(tmp_path / "b", port=port, config=config):
        await wait_until_async(lambda: publisher.connected)
        await reaches_the_server(publisher)
        await connecting.__aexit__(None, None, None)
    assert server.heard == b""


def test_the_command_trusts_the_authority_it_is_given(
    tmp_path: Path, authority: Authority, config: Path
) -> None:
    with nats_server(tmp_path / "nats", config=config) as server:
        url = f"tls://u:secret@localhost:{server.port}"
        words = ["publish", "t.a", "x", "--nats", url, "--retry-s", "0", "--connect-s"]
        done = CliRunner().invoke(cli, [*words, "60", "--nats-ca", str(authority.cert)])
        assert (done.exit_code, "nobody listens" in done.stderr) == (69, True), done.output
        strange = Authority(tmp_path / "strange").cert
        done = CliRunner().invoke(cli, [*words, "5", "--nats-ca", str(strange)])
        assert (done.exit_code, "nobody listens" in done.stderr) == (69, False), done.output
        assert "secret" not in done.output


async def reaches_the_server(publisher: Publisher) -> None:
    with pytest.raises(UnavailableError, match="nobody listens"):
        await publisher.publish("t.a", b"x")
