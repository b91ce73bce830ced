"""Rotel, a real OpenTelemetry collector, from its wheel on PyPI: unpacked, not installed.

Its wheels are for some Pythons and Linuxes only, so it is none of the packages that tests need.
"""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.debian import one_at_a_time, skip
from tests.support.processes import free_port
from tests.support.waiting import wait_until

VERSION: Final = "0.0.1a15"
_CACHE: Final = Path(__file__).resolve().parents[2] / ".work" / "servers"
_DOWNLOAD_S: Final = 120


def agent() -> Path:
    """Its program; where it cannot be had: skipped, red in CI."""
    root = _CACHE / f"rotel-{VERSION}"
    found = root / "rotel" / "rotel-agent"
    if found.exists():
        return found
    with one_at_a_time(root) as is_missing:
        if is_missing:
            _download(root)
    return found


def _download(root: Path) -> None:
    unfinished = root.with_suffix(".unfinished")
    fetched = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:",
            "--upgrade", "--target", str(unfinished), f"rotel=={VERSION}",
        ],
        capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False,
    )  # fmt: skip
    if fetched.returncode:
        skip(f"no rotel: {(fetched.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    unfinished.replace(root)


class Rotel:
    """One that hands over to an OTLP receiver what it is sent.

    Args:
        target: The receiver, for OTLP over HTTP.
        directory: For what it prints.

    Attributes:
        http: Its address for OTLP over HTTP.
        grpc: Its address for OTLP over gRPC.
    """

    def __init__(self, target: str, directory: Path) -> None:
        ports = (free_port(), free_port())
        self.http, self.grpc = (f"http://127.0.0.1:{port}" for port in ports)
        self._printed = directory / "rotel.out"
        grpc, http = (url.removeprefix("http://") for url in (self.grpc, self.http))
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                [
                    str(agent()), "start", "--otlp-grpc-endpoint", grpc,
                    "--otlp-http-endpoint", http, "--exporter", "otlp",
                    "--otlp-exporter-endpoint", target, "--otlp-exporter-protocol", "http",
                    "--batch-timeout", "100ms",
                ],
                stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
            )  # fmt: skip
        wait_until(self._listens, what="rotel ready")

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._printed.read_text()
        return all(map(_takes, (self.http, self.grpc)))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=30)


def _takes(url: str) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0
