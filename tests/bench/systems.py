"""The systems that are compared: logd beside a nats-server, and a nats-server with JetStream.

Same binary, same disk, one replica, no limits, everything else as it comes, apart from when they
sync. They run side by side and take turns; who has no turn is idle.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from tests.bench.nats_wire import Connection
from tests.support.logd import Logd
from tests.support.nats_server import nats_server_binary
from tests.support.waiting import wait_until

COMMIT: Final = "logd commit"
INTERVAL: Final = "logd interval"
NEVER: Final = "logd never"
ALWAYS: Final = "JetStream always"
DEFAULT: Final = "JetStream default"

COUNTED: Final = "refused or lost"
"""What a system says it did not store, record by record."""

_START_S: Final = 600.0
"""Seconds a start may take: recovery is among what is measured."""

_SUBJECTS: Final = {COMMIT: "commit", INTERVAL: "interv", NEVER: "never_", ALWAYS: "always",
                    DEFAULT: "defalt"}  # fmt: skip
"""First tokens, all of one length, so that messages are of one length for everyone."""


class NatsServer:
    """A nats-server process on its own directory; it may be killed and started again.

    Args:
        directory: Does not exist yet.
        jetstream: Its `sync_interval`; empty: no JetStream.
        settings: Further lines of its configuration.
    """

    def __init__(self, directory: Path, *, jetstream: str = "", settings: str = "") -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._config = directory / "server.conf"
        storage = f'jetstream {{ store_dir: "{directory}/store", sync_interval: "{jetstream}" }}'
        self._config.write_text(f"{storage if jetstream else 'max_payload: 1MB'}\n{settings}\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._process is not None

    def start(self) -> None:
        """Start, and wait until it listens."""
        self._process = process = subprocess.Popen(
            [
                nats_server_binary(), "-a", "127.0.0.1", "-p", "-1", "-c", str(self._config),
                "--ports_file_dir", str(self._directory), "-l", str(self.log_path),
            ],
            start_new_session=True,  # an interrupt is for the bench, which then stops it
        )  # fmt: skip
        ports = self._directory / f"nats-server_{process.pid}.ports"
        wait_until(
            lambda: process.poll() is not None or (ports.exists() and ports.read_text().strip()),
            within_s=_START_S,
            what="nats-server ports",
        )
        assert process.poll() is None, self.log_path.read_text()
        self.url = json.loads(ports.read_text())["nats"][0]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(timeout=60)
            finally:
                self._process.kill()
            self._process = None

    @property
    def log_path(self) -> Path:
        """Its log."""
        return self._directory / "nats-server.log"


class System(Protocol):
    """One that stores messages.

    Attributes:
        name: As the tables show it.
        url: Where to publish.
        subject: What to publish on.
    """

    name: str
    url: str
    subject: str

    def stored(self) -> int:
        """Records that can be read by now."""
        ...

    def settled(self) -> bool:
        """Whether nothing it accepted is still on its way to the log."""
        ...

    def reported(self) -> dict[str, int]:
        """What it says it did not store, by reason, since it started."""
        ...

    def gaps(self) -> list[tuple[int, int]]:
        """When it may have missed messages, as it says itself: from, to, in Unix ns."""
        ...

    def pids(self) -> list[int]:
        """The processes it needs."""
        ...


@dataclass
class LogdStream:
    """One stream of a logd."""

    name: str
    url: str
    subject: str
    logd: Logd
    server: NatsServer
    stream: str

    def stored(self) -> int:
        """Records below the high watermark."""
        detail = self.logd.stage(self.stream)["detail"]
        return int(detail["high_watermark"]) + 1 - int(detail["start_offset"])

    def settled(self) -> bool:
        """Whether no accepted record is uncommitted."""
        return int(self.logd.stage(self.stream)["lag"]) == 0

    def reported(self) -> dict[str, int]:
        """Its counters of refused and lost records, and of broken connections to NATS."""
        stage = self.logd.stage(self.stream)
        found = {COUNTED: int(stage["errors"])}
        found["NATS reconnects"] = int(self.logd.daemon.status()["info"]["nats_reconnects"])
        return found

    def gaps(self) -> list[tuple[int, int]]:
        """Its ingest gaps, as `/status` has them."""
        found = self.logd.daemon.status()["info"]["ingest_gaps"]
        return [
            (unix_ns(gap["start"]), unix_ns(gap["end"]) if gap["end"] else 1 << 63)
            for gap in [*found["ended"], *found["lasting"]]
            if self.stream in gap["streams"]
        ]

    def pids(self) -> list[int]:
        """The logd and its nats-server."""
        return [self.logd.daemon.pid, self.server.pid]


@dataclass
class JetStream:
    """One stream of a nats-server."""

    name: str
    url: str
    subject: str
    server: NatsServer
    stream: str = "bench"

    def stored(self) -> int:
        """Messages, by the stream's state."""
        return int(self.ask(f"STREAM.INFO.{self.stream}")["state"]["messages"])

    def settled(self) -> bool:
        """The server does not say what waits."""
        return True

    def reported(self) -> dict[str, int]:
        """Lines of the server's log that tell of drops; there is no counter."""
        log = self.server.log_path.read_text(errors="replace")
        return {"warnings in the log": log.count("Dropping") + log.count("Slow Consumer")}

    def gaps(self) -> list[tuple[int, int]]:
        """It says nothing of the kind."""
        return []

    def pids(self) -> list[int]:
        """The nats-server."""
        return [self.server.pid]

    def ask(self, api: str, *, timeout_s: float = 60, **document: Any) -> dict[str, Any]:
        """Ask the JetStream API."""
        connection = Connection(self.url, timeout_s=timeout_s)
        try:
            return connection.request(f"$JS.API.{api}", document)
        finally:
            connection.close()

    def create(self, **options: Any) -> None:
        """Create the stream: file storage, one replica unless the options say otherwise."""
        config: dict[str, Any] = {
            "name": self.stream,
            "subjects": [self.subject],
            "storage": "file",
        }
        config |= {"num_replicas": 1} | options
        self.ask(f"STREAM.CREATE.{self.stream}", **config)


def unix_ns(date: str) -> int:
    """A date of `/status`."""
    return int(datetime.fromisoformat(date).timestamp() * 1e9)


def logd_streams(names: Sequence[str]) -> list[dict[str, Any]]:
    """The configuration of the logd streams among some systems."""
    return [
        {"name": token(name), "subject": f"{token(name)}.>", "fsync": name.split()[1]}
        for name in names
        if name.startswith("logd")
    ]


@contextmanager
def running(directory: Path, names: Sequence[str], **options: Any) -> Iterator[list[System]]:
    """The named systems, in that order, stopped and deleted with the block.

    Args:
        directory: For their data; must not exist.
        names: `COMMIT` and its like.
        options: Of the JetStream streams.
    """
    found: dict[str, System] = {}
    directory.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        ours = logd_streams(names)
        if ours:
            server = started(stack, NatsServer(directory / "nats"))
            logd = Logd(directory / "logd", server.url, ours)
            stack.enter_context(logd)
            for name in (name for name in names if name.startswith("logd")):
                at = token(name)
                found[name] = LogdStream(name, server.url, f"{at}.bench", logd, server, at)
        for name in (name for name in names if not name.startswith("logd")):
            interval = "always" if name == ALWAYS else "2m"
            server = started(stack, NatsServer(directory / token(name), jetstream=interval))
            peer = JetStream(name, server.url, f"{token(name)}.bench", server)
            peer.create(**options)
            found[name] = peer
        yield [found[name] for name in names]


def settle(systems: Sequence[System]) -> None:
    """Write out what earlier turns left to the kernel, so that no one pays for another's."""
    wait_until(lambda: all(system.settled() for system in systems), within_s=120, what="settled")
    os.sync()


def await_stored(system: System, wanted: int, *, quiet_s: float, clock: Callable[[], int]) -> int:
    """Wait until `wanted` records are stored, or their number no longer changes.

    Returns:
        When the number last changed, by `clock`; to within 20 ms.
    """
    last = (system.stored(), clock())

    def done() -> bool:
        nonlocal last
        now, at_ns = system.stored(), clock()
        if now != last[0]:
            last = (now, at_ns)
        quiet = at_ns - last[1] > quiet_s * 1e9
        return now >= wanted or (quiet and system.settled())

    wait_until(done, within_s=300, what=f"{system.name} to store {wanted}")
    return last[1]


def started(stack: ExitStack, server: NatsServer) -> NatsServer:
    """The server, started; it ends with the stack."""
    stack.callback(server.stop, signal.SIGKILL)
    server.start()
    return server


def token(name: str) -> str:
    """The first token of a system's subjects, and the name of its stream."""
    return _SUBJECTS[name]
