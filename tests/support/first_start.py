"""What `penstock init` makes for compose, on this machine's loopback interface instead.

Nothing but addresses and directories is changed of the configurations, and Spark is one thread.
"""

import re
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import yaml

from penstock.base.clock import SystemClock
from penstock.deploy.init import init
from penstock.deploy.site import DATA, FILES, RUN, site_of
from penstock.logd.client import Access, LogClient
from tests.support.nats_server import NatsServer
from tests.support.processes import Daemon, free_port

_ADDRESS: Final = re.compile(
    r"\b(0\.0\.0\.0|127\.0\.0\.1|logd-1|nats|collector|router):(\d{4,5})\b"
)
_COMPONENTS: Final = {"console": "deploy.console"}
STARTED: Final = ("logd-1", "collector", "router", "console")


class FirstStart:
    """A running deployment of one logd; close it.

    Attributes:
        files: A directory for each part.
        daemons: By part; each shows the token that its readers have.
    """

    def __init__(self, directory: Path) -> None:
        self.files = directory / "files"
        self._directory = directory
        self._ports: dict[str, int] = {}
        self._stack = ExitStack()
        self.daemons: dict[str, Daemon] = {}
        (directory / "run").mkdir(parents=True)
        init(self.files, site_of("compose", 1), SystemClock())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        conf = self._directory / "nats.conf"
        conf.write_text(self.moved((self.files / "nats" / "nats.conf").read_text()))
        nats = NatsServer(self._directory / "nats", port=self.port("4222"), config=conf)
        stack.callback(nats.close)
        for part in STARTED:
            config = self.config(part)
            home = self._directory / part
            home.mkdir()
            daemon = Daemon(_COMPONENTS.get(part, part.partition("-")[0]), config, home)
            if part != "console":
                daemon.tls = self.tls()
            stack.callback(daemon.close)
            daemon.token = self.token("operator", "token")
            if part != "logd-1":
                daemon.token = self.token(part, "admin.token")
            daemon.start(within_s=240)
            self.daemons[part] = daemon

    def config(self, part: str) -> dict[str, Any]:
        """A part's configuration."""
        name = "logd" if part == "logd-1" else part
        config: dict[str, Any] = yaml.safe_load(
            self.moved((self.files / part / f"{name}.yaml").read_text())
        )
        if part == "router":
            config["spark"] = {"master": "local[1]"}
        return config

    def moved(self, text: str) -> str:
        """A file's text with what is here for what is in containers."""
        for there, here in ((FILES, "files"), (DATA, "data"), (RUN, "run")):
            text = text.replace(str(there), str(self._directory / here))
        return _ADDRESS.sub(lambda found: f"127.0.0.1:{self.port(found[2])}", text)

    def port(self, there: str) -> int:
        """Here, of a port there."""
        return self._ports.setdefault(there, free_port())

    def token(self, part: str, name: str) -> str:
        """Of a part's files."""
        return (self.files / part / name).read_text().strip()

    def tls(self) -> ssl.SSLContext:
        """The context of a client that trusts the authority and shows no certificate."""
        return ssl.create_default_context(cafile=str(self.files / "operator" / "ca.pem"))

    def log(self, part: str) -> LogClient:
        """logd, with the key of a part."""
        access = Access(
            ca_file=self.files / part / "ca.pem", token_file=self.files / part / "token"
        )
        return LogClient(f"127.0.0.1:{self.port('9293')}", timeout_s=20, access=access)
