"""A nats-server that can be killed and started again at its address."""

import signal
import subprocess
from pathlib import Path

from tests.support.nats_server import nats_server_binary
from tests.support.processes import free_port
from tests.support.waiting import wait_until


class NatsServer:
    """One server on the loopback interface, with a port of its own for as long as it lives."""

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
