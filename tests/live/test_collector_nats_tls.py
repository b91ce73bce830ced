"""The collector's way to a NATS server that demands a certificate of its clients."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.base.clock import SystemClock
from penstock.collector.config import NatsSection
from penstock.collector.delivery.publisher import Publisher
from penstock.service import ConfigError, UnavailableError
from tests.support.certificates import Authority
from tests.support.nats_server import nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


class World:
    """A server's certificate, a client's, and what the server demands."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.servers = Authority(directory / "servers")
        self._own = self.servers.sign("server", "DNS:localhost,IP:127.0.0.1")
        self.clients = Authority(directory / "clients")
        self.client = self.clients.sign("client", "DNS:host-1")

    def config(self, clients: Authority) -> Path:
        """A server's, which takes those whom this authority has signed."""
        path = self._directory / "nats.conf"
        path.write_text(
            f'tls {{ cert_file: "{self._own.cert}", key_file: "{self._own.key}",'
            f' ca_file: "{clients.cert}", verify: true }}\n'
        )
        return path

    def section(self, port: int, **more: Any) -> NatsSection:
        given = {"url": f"nats://localhost:{port}", "ca_file": self.servers.cert, **more}
        return NatsSection.model_validate(given)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_the_certificate_is_shown_and_renewed_when_the_connection_is(
    tmp_path: Path, world: World
) -> None:
    port = free_port()
    files = {"cert_file": world.client.cert, "key_file": world.client.key}
    publisher = Publisher(world.section(port, **files), uuid4(), lambda: None, SystemClock())
    try:
        with nats_server(tmp_path / "a", port=port, config=world.config(world.clients)):
            await publisher.connect("test", 60)
            later = Authority(tmp_path / "later")
            world.client.replace_with(later.sign("client", "DNS:host-1"))
        await wait_until_async(lambda: not publisher.is_connected)
        with nats_server(tmp_path / "b", port=port, config=world.config(later)):
            await wait_until_async(lambda: publisher.is_connected)
            world.client.cert.write_text("no certificate")
        await wait_until_async(lambda: not publisher.is_connected)
        with nats_server(tmp_path / "c", port=port, config=world.config(later)):
            await wait_until_async(lambda: publisher.is_connected)
    finally:
        await publisher.close()


async def test_without_it_nothing_is_let_in(tmp_path: Path, world: World) -> None:
    port = free_port()
    with nats_server(tmp_path / "a", port=port, config=world.config(world.clients)):
        publisher = Publisher(world.section(port), uuid4(), lambda: None, SystemClock())
        with pytest.raises(UnavailableError):
            await publisher.connect("test", 3)
        await publisher.close()


async def test_files_that_are_no_certificate_are_named(tmp_path: Path, world: World) -> None:
    section = world.section(1, cert_file=tmp_path / "none.pem")
    assert section.encrypted
    with pytest.raises(ConfigError, match=r"nats\.cert_file: .*none\.pem"):
        await Publisher(section, uuid4(), lambda: None, SystemClock()).connect("test", 1)
