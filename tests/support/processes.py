"""Penstock's own processes, started as a user starts them, and killed as a test needs it."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from tests.support.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    import ssl

_PORTS = (12_000, 32_000)
"""Below those that the kernel takes for connections, as a rule."""

_WORKERS = 8
"""So many that run tests side by side draw from ports of their own; more share them."""


def _shuffled_ports() -> Iterator[int]:
    """Ports for this process, none twice before each had its turn, and none of another worker's."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    ports = [port for port in range(*_PORTS) if port % _WORKERS == int(worker) % _WORKERS]
    while True:
        random.SystemRandom().shuffle(ports)
        yield from ports


_PORTS_LEFT = _shuffled_ports()
_DRAWING = threading.Lock()


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago.

    None that the kernel gives to connections: a process that is killed and started again finds its
    port as it left it. None that another test was given lately, which may not listen there yet.
    """
    while True:
        with _DRAWING:
            port = next(_PORTS_LEFT)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Whether a server could listen at a TCP port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def arguments_of(process: psutil.Process) -> list[str]:
    """A process's command line; nothing of one that has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextmanager
def running(
    *arguments: object,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A foreign program that runs in the foreground, and is killed at the end.

    Args:
        *arguments: The program's path, and its arguments.
        log: File for what it writes; None: that is thrown away.
        environment: The program's environment; None: this process' own.
    """
    with Path(log or os.devnull).open("wb") as output:
        process = subprocess.Popen(
            list(map(str, arguments)),
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            yield
        finally:
            process.kill()
            process.wait(timeout=20)


class Daemon:
    """One `python -m penstock.<component>` with its configuration, restartable at its addresses.

    The admin endpoint must be a fixed address in the configuration, because a killed process
    leaves no other way to be found again.

    Args:
        component: Of Penstock.
        config: Of its configuration file; read again at each start.
        directory: For the configuration and the log.
        program: What to run instead of the component itself; it is given the same arguments.

    Attributes:
        tls: Of its admin endpoint, if that has TLS.
        token: To be known by there.
        cwd: The directory that the process is started in.
    """

    def __init__(
        self,
        component: str,
        config: dict[str, Any],
        directory: Path,
        *,
        program: Sequence[str] | None = None,
    ) -> None:
        self.component = component
        self.program = program or (sys.executable, "-m", f"penstock.{component}")
        self.admin = str(config["admin"])
        self.tls: ssl.SSLContext | None = None
        self.token = ""
        self.cwd: Path | None = None
        self._config = config
        self._config_path = directory / f"{component}.yaml"
        self.write_config()
        self._log_path = directory / f"{component}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, within_s: float = 30.0) -> None:
        """Start the process with its configuration as it is now; wait until it is ready."""
        self.launch(*arguments)
        self.wait_until_ready(within_s=within_s)

    def wait_until_ready(self, *, within_s: float = 30.0) -> None:
        """Return when a process that was launched is ready; fails when it ended."""
        self.wait_until_ready_or_dead(within_s=within_s)
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            raise AssertionError(f"{self.component} ended:\n{self.log()[-3000:]}")

    def wait_until_ready_or_dead(self, *, within_s: float = 30.0) -> None:
        """Return when a process that was launched is ready, or has ended."""
        wait_until(self._ready_or_dead, within_s=within_s, what=f"{self.component} ready")

    def launch(self, *arguments: str) -> None:
        """Start the process, and wait for nothing."""
        assert self._process is None, "already running"
        self.write_config()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.program, "--config", str(self._config_path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.cwd,
            )

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def write_config(self) -> None:
        """Write the configuration as it is now; a process that runs may look at it again."""
        self._config_path.write_text(yaml.safe_dump(self._config, sort_keys=False))

    def kill(self) -> int:
        """SIGKILL, to the main process only: its children must notice by themselves.

        Returns:
            The exit code: -9, unless it had ended by itself.
        """
        process = self._take()
        os.kill(process.pid, signal.SIGKILL)
        return process.wait(timeout=10)

    def stop(self, *, within_s: float = 30.0) -> int:
        """SIGTERM, and wait for the drain; returns the exit code."""
        assert self._process is not None, "not running"
        self._process.send_signal(signal.SIGTERM)
        return self.wait(within_s=within_s)

    def close(self) -> None:
        """End whatever of this process's session is still there; for a test's cleanup."""
        if self._process is not None:
            process = self._take()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)

    def wait(self, *, within_s: float) -> int:
        """Wait until the process ends by itself; returns the exit code."""
        assert self._process is not None, "not running"
        code = self._process.wait(timeout=within_s * PATIENCE)
        self._process = None
        return code

    def status(self) -> dict[str, Any]:
        """The process's `/status`."""
        with self.get("/status") as answer:
            body: dict[str, Any] = json.load(answer)
            return body

    def get(self, path: str) -> Any:
        """An answer of its admin endpoint."""
        url = f"http{'s' if self.tls else ''}://{self.admin}{path}"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(request, timeout=5 * PATIENCE, context=self.tls)

    def stage(self, name: str) -> dict[str, Any]:
        """One stage of `/status`; a stage that is not there yet counts zero."""
        stages = {stage["name"]: stage for stage in self.status()["stages"]}
        empty = {"name": name, "received": 0, "sent": 0, "lag": 0, "errors": 0, "detail": {}}
        return dict(stages.get(name, empty))

    def log(self) -> str:
        """Everything that the process wrote to its log so far."""
        return self._log_path.read_text(errors="replace")

    def _take(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        assert process is not None, "not running"
        return process

    def answers(self) -> bool:
        """Whether its admin endpoint answers, ready or not."""
        try:
            self.status()
        except OSError:
            return False
        return True

    def _ready_or_dead(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            return True
        try:
            with self.get("/healthz") as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
