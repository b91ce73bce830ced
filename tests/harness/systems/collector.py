"""A collector under real clients of every protocol; all that arrived is judged in the end."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from penstock.collector import failpoints
from penstock.collector.spool.quarantine import Kept, read_quarantine
from penstock.logd.storage import CommitLog, LogConfig
from tests.harness.checkers.claims import judge, read_text, text_of
from tests.harness.faults.process import stop_daemon, tear_tail
from tests.harness.plan import Run, System
from tests.harness.senders import Sending, make_senders
from tests.support.collector import Collector
from tests.support.logd import Logd
from tests.support.nats_server import RestartableNatsServer
from tests.support.processes import Daemon, free_port
from tests.support.waiting import wait_until

START_S: Final = 180.0
_PATIENCE_S: Final = 300.0
_TORN_SHARE: Final = 0.3


class CollectorUnderLoad(System):
    """It runs when a fault begins, and `recover` starts it again.

    Args:
        run: Says where, and what to run as the collector; `--ports` is the first to listen on.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.deaths = 0
        self._program = run.program or (sys.executable, "-m", "penstock.collector")
        self.nats = RestartableNatsServer(run.directory / "nats")
        self._logd = Logd(
            run.directory / "logd", self.nats.url, [{"name": "all", "subject": "telemetry.>"}]
        )
        ports = _ports(run.options.ports)
        self._ports = {name: next(ports) for name in ("grpc", "http", "forward", "syslog")}
        self._log_file = run.directory / "logs" / "app.log"
        self._log_file.parent.mkdir(parents=True)
        self._sockets = Path(tempfile.mkdtemp(prefix="penstock-crash-"))  # its path must be short
        self._collector = Collector(
            run.directory / "collector", self.nats.url, self._sources(),
            spool={"max_bytes": 8 * 1024 * 1024}, drain_timeout_s=5,
            admin=f"127.0.0.1:{next(ports)}",
        )  # fmt: skip
        self._senders = make_senders(self._ports, self._sockets / "s", self._log_file)

    @property
    def daemon(self) -> Daemon:
        return self._collector.daemon

    @override
    def begin(self, stack: ExitStack) -> None:
        stack.callback(shutil.rmtree, self._sockets, ignore_errors=True)
        stack.callback(self.nats.close)
        stack.callback(self._logd.daemon.close)
        stack.callback(self.daemon.close)
        self.nats.start()
        self._logd.daemon.start()
        self.start()
        self._sending = stack.enter_context(Sending(self._senders))

    def launch(self, failpoint: str = "") -> None:
        """Start it, to end at a failpoint: `name:passage`; wait for nothing."""
        setting = (f"{failpoints.VARIABLE}={failpoint}",) if failpoint else ()
        self.daemon.program = ("env", *setting, *self._program)
        self.daemon.launch()

    def start(self) -> None:
        with self.run.report.timed("collector ready"):
            self.launch()
            self.daemon.wait_until_ready(within_s=START_S)

    def ask_for_reload(self) -> None:
        """Another batch size and another syslog source; the rest goes on undisturbed."""
        config, rng = self._collector.config, self.run.rng
        config["batch"] = {"max_age_ms": 20 + rng.randrange(1, 20)}
        syslog = next(source for source in config["sources"] if source["type"] == "syslog")
        syslog["max_message_bytes"] = 16_384 + rng.randrange(1, 1000)
        self.daemon.write_config()
        os.kill(self.daemon.pid, signal.SIGHUP)
        self.run.report.counts["reloads"] += 1

    @override
    def recover(self) -> str:
        self.deaths += 1
        spool = self.run.rng.choice(("spool", "spool-urgent"))
        torn = self.run.rng.random() < _TORN_SHARE and tear_tail(
            self._collector.data_dir / spool, self.run.rng
        )
        self.run.report.counts["torn tails"] += torn
        self.start()
        ready_s = self.run.report.times_s["collector ready"][-1]
        return f"{'its tail torn, ' if torn else ''}ready after {ready_s:.1f} s"

    @override
    def conclude(self) -> None:
        self._sending.stop()
        for sender in self._senders:
            sender.finish()
        idle = self._collector.is_idle
        wait_until(idle, within_s=_PATIENCE_S, what="nothing held, every account even")
        self._expect_fresh_event()
        info = self.daemon.status()["info"]
        stop_daemon(self.daemon, self.run)
        state = json.loads((self._collector.data_dir / "checkpoint").read_bytes().split(b" ", 2)[2])
        for cursor, name in (("cursor", "spool"), ("urgent_cursor", "spool_urgent")):
            if state[cursor] != info[name]["units_end"]:
                self.run.report.broken.append(f"{name} is not empty: {state[cursor]}, {info[name]}")
        self._judge()

    def _expect_fresh_event(self) -> None:
        """It still collects: a line that is written now arrives."""
        file = next(one for one in self._senders if one.name == "file")
        number, text = file.following()
        before = len(self._texts())
        with self._log_file.open("ab") as log:
            log.write(text.encode() + b"\n")
        file.claims.acked.add(number)
        wait_until(lambda: text_of("file", number) in self._texts(before), what="a fresh event")
        wait_until(self._collector.is_idle, within_s=_PATIENCE_S)

    def _texts(self, after: int = 0) -> list[str]:
        with self._logd.client() as log:
            start, end = log.offsets("all")
            values = [record.value for _, record in log.records("all", start + after, end)]
        records = [json.loads(value or b"{}") for value in values]
        return [record.get("body") or record["attributes"]["text"] for record in records]

    def _judge(self) -> None:
        log = CommitLog.open(self._collector.data_dir / "quarantine", LogConfig())
        aside = [kept.raw.decode() for kept in read_quarantine(log) if isinstance(kept, Kept)]
        log.close()
        delivered = self._texts()
        claims = {sender.name: sender.claims for sender in self._senders}
        report = self.run.report
        report.broken += judge(
            claims, map(read_text, delivered), map(read_text, aside), crashes=self.deaths
        )
        report.counts["runs judged"] += self.run.number
        report.counts["promised"] += sum(len(claim.acked) for claim in claims.values())
        report.counts["delivered"] += len(delivered)
        report.counts["delivered again"] += len(delivered) - len(set(delivered))
        report.counts["in quarantine"] += len(aside)

    def _sources(self) -> list[dict[str, Any]]:
        address = {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}
        return [
            {"type": "unix", "path": str(self._sockets / "s")},
            {"type": "forward", "listen": address["forward"]},
            {"type": "otlp", "grpc": address["grpc"], "http": address["http"]},
            {"type": "syslog", "udp": None, "tcp": address["syslog"]},
            {
                "type": "file", "include": [f"{self._log_file}*"], "service": "file",
                "poll_ms": 20, "rotate_wait_s": 0.2,
            },
        ]  # fmt: skip


def _ports(first: int | None) -> Iterator[int]:
    if first is not None:
        yield from range(first, 65_536)
    while True:
        yield free_port()
