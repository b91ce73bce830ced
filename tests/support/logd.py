"""A real logd process for tests, and the messages they send it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from penstock.logd.client import ANYBODY, Access, LogClient
from tests.support.processes import Daemon, free_port


class Logd:
    """One logd on its own data directory; it keeps its addresses over restarts.

    Args:
        directory: For data, configuration and log.
        nats_url: Of the NATS server.
        streams: As in the configuration file.
        program: What to run instead of logd itself.
        access: How its own clients are let in.
        options: Further keys of the configuration.
    """

    def __init__(
        self,
        directory: Path,
        nats_url: str,
        streams: list[dict[str, Any]],
        *,
        program: Sequence[str] | None = None,
        access: Access = ANYBODY,
        **options: Any,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data_dir = directory / "data"
        self.fetch = f"127.0.0.1:{free_port()}"
        self.config: dict[str, Any] = {
            "node": "logd-1",
            "data_dir": str(self.data_dir),
            "nats": {"url": nats_url},
            "fetch": self.fetch,
            "admin": f"127.0.0.1:{free_port()}",
            "streams": streams,
        } | options
        self.daemon = Daemon("logd", self.config, directory, program=program)
        self.access = access
        self.daemon.tls, greeting = access.prepare("127.0.0.1")
        self.daemon.token = greeting["token"] if greeting else ""

    def __enter__(self) -> Self:
        self.daemon.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.close()

    def client(self, *, timeout_s: float = 20.0) -> LogClient:
        """A client of this logd."""
        return LogClient(self.fetch, timeout_s=timeout_s, access=self.access)

    def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill -9) and start again on the same data and addresses."""
        if kill:
            self.daemon.kill()
        else:
            assert self.daemon.stop() == 0, self.daemon.log()[-3000:]
        self.daemon.start()

    def values(self, stream: str) -> list[bytes | None]:
        """Every value that can be read of a stream, in order."""
        with self.client() as log:
            start, end = log.offsets(stream)
            return [record.value for _, record in log.records(stream, start, end)]

    def stage(self, stream: str) -> dict[str, Any]:
        """The stage of a stream in `/status`."""
        stages = self.daemon.status()["stages"]
        found: dict[str, Any] = next(s for s in stages if s["name"] == f"stream/{stream}")
        return found
