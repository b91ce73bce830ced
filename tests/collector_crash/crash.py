"""A real collector that is killed again and again under load; a judge reads what logd holds."""

import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.collector import failpoints
from penstock.collector.quarantine import Kept, read_quarantine
from penstock.logd.store import CommitLog, LogConfig
from tests.collector_crash.judge import judge, text_of
from tests.collector_crash.outcome import Outcome
from tests.collector_crash.producers import Running, make_producers
from tests.soak.servers import NatsServer
from tests.support.collector import Collector
from tests.support.logd import Logd
from tests.support.processes import free_port
from tests.support.waiting import wait_until

_START_S: Final = 180.0
_PATIENCE_S: Final = 300.0
_KINDS: Final = ("kill", "kill", "failpoint", "failpoint", "recovery")
"""Any five runs that follow one another from the first on are these, in some order."""
_DRAINING: Final = ("drain_begun", "drain_ended")
_RELOADING: Final = ("reload_before_exchange", "reload_after_exchange")
_PASSAGES_MAX: Final = {"recovery_before_checkpoint": 1, "recovery_after_checkpoint": 1,
                        "spool_before_delete": 4, "spool_after_delete": 4,
                        **dict.fromkeys((*_DRAINING, *_RELOADING), 1)}  # fmt: skip
_TORN_SHARE: Final = 0.3
_RELOAD_SHARE: Final = 0.3
_TELL_EVERY: Final = 10


@dataclass(frozen=True, slots=True)
class Options:
    """Of one harness.

    Attributes:
        program: What to run as the collector; a twin that is broken on purpose.
        port: A port to listen on, another at each call.
        failpoints: Those that are tried before any are drawn.
        failpoint_wait_s: From ready; a place that is not passed in this time is given up.
    """

    program: tuple[str, ...] = (sys.executable, "-m", "penstock.collector")
    port: Callable[[], int] = free_port
    failpoints: Sequence[str] = ()
    failpoint_wait_s: float = 8.0


class CrashRun:
    """One harness. Call `run` once.

    Args:
        directory: For data and logs.
        runs: How many times the collector ends without a drain, at least.
        seed: Of everything that is drawn.
        tell: Called with a line now and then.
        options: What else may be chosen.
    """

    def __init__(
        self,
        directory: Path,
        *,
        runs: int,
        seed: int,
        tell: Callable[[str], None] = lambda _: None,
        options: Options | None = None,
    ) -> None:
        self.outcome = Outcome()
        self._runs = runs
        self._rng = random.Random(seed)
        self._tell = tell
        self._options = options or Options()
        self._nats = NatsServer(directory / "nats")
        self._logd = Logd(
            directory / "logd", self._nats.url, [{"name": "all", "subject": "telemetry.>"}]
        )
        port = self._options.port
        self._ports = {name: port() for name in ("grpc", "http", "forward", "syslog")}
        self._log_file = directory / "logs" / "app.log"
        self._log_file.parent.mkdir(parents=True)
        self._sockets = Path(tempfile.mkdtemp(prefix="penstock-crash-"))  # its path must be short
        self._socket = self._sockets / "s"
        self._collector = Collector(
            directory / "collector", self._nats.url, self._sources(),
            spool={"bytes_max": 8 * 1024 * 1024}, drain_timeout_s=5, admin=f"127.0.0.1:{port()}",
        )  # fmt: skip
        self._producers = make_producers(self._ports, self._socket, self._log_file)
        self._pause = threading.Event()
        self._armed: list[str] = list(reversed(self._options.failpoints))
        self._kinds: list[str] = []

    def run(self) -> Outcome:
        """Do it all; `outcome.broken` says what was not kept."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        try:
            self._nats.start()
            self._logd.daemon.start()
            self._start()
            running = Running(self._producers)
            try:
                for number in range(1, self._runs + 1):
                    self._crash()
                    self.outcome.runs = number
                    if number % _TELL_EVERY == 0:
                        self._tell(f"  run {number} of {self._runs}: {dict(self.outcome.fired)}")
            finally:
                running.stop()
            self._conclude()
        finally:
            for daemon in (self._collector.daemon, self._logd.daemon):
                daemon.close()
            self._nats.close()
            shutil.rmtree(self._sockets, ignore_errors=True)
        return self.outcome

    def _sources(self) -> list[dict[str, Any]]:
        ports = self._ports
        return [
            {"type": "unix", "path": str(self._socket)},
            {"type": "forward", "listen": f"127.0.0.1:{ports['forward']}"},
            {
                "type": "otlp",
                "grpc": f"127.0.0.1:{ports['grpc']}",
                "http": f"127.0.0.1:{ports['http']}",
            },
            {"type": "syslog", "udp": None, "tcp": f"127.0.0.1:{ports['syslog']}"},
            {
                "type": "file", "include": [f"{self._log_file}*"], "service": "file",
                "poll_ms": 20, "rotate_wait_s": 0.2,
            },
        ]  # fmt: skip

    # One run: the collector runs when it begins and when it ends.

    def _crash(self) -> None:
        if not self._kinds:
            self._kinds = self._rng.sample(_KINDS, len(_KINDS))
        match self._kinds.pop():
            case "kill":
                if self._rng.random() < _RELOAD_SHARE:
                    self._ask_for_reload()
                self._pause.wait(self._rng.uniform(0.005, 0.5))
                self._kill()
            case "failpoint":
                self._reach_failpoint()
            case _:
                self._kill()
                self._launch()
                self._pause.wait(self._rng.uniform(0.0, max(0.2, self.outcome.ready_s)))
                self._kill()
                self.outcome.kills_in_recovery += 1
        if self._rng.random() < _TORN_SHARE:
            self._tear_tail()
        self._start()

    def _reach_failpoint(self) -> None:
        """Arm one, start anew, and wait until it ends the process; else end it like that."""
        if not self._armed:
            self._armed = self._rng.sample(failpoints.NAMES, len(failpoints.NAMES))
        name = self._armed.pop()
        self._kill()
        passage = self._rng.randint(1, _PASSAGES_MAX.get(name, 12))
        daemon = self._collector.daemon
        self._launch(f"{name}:{passage}")
        daemon.wait_until_ready_or_dead(within_s=_START_S)
        if name in _DRAINING:
            self._died(name, daemon.stop(within_s=_START_S))
            return
        if name in _RELOADING:
            self._ask_for_reload()
        deadline = time.monotonic() + self._options.failpoint_wait_s  # noqa: TID251 - a real one
        while daemon.running and time.monotonic() < deadline:  # noqa: TID251
            self._pause.wait(0.01)
        if daemon.running:
            self._kill()
        else:
            self._died(name, daemon.wait(within_s=5))

    def _ask_for_reload(self) -> None:
        """Another batch size and another syslog source; the rest goes on undisturbed."""
        config = self._collector.config
        config["batch"] = {"age_ms": 20 + self._rng.randrange(1, 20)}
        syslog = next(source for source in config["sources"] if source["type"] == "syslog")
        syslog["message_bytes_max"] = 16_384 + self._rng.randrange(1, 1000)
        self._collector.daemon.write_config()
        os.kill(self._collector.daemon.pid, signal.SIGHUP)
        self.outcome.reloads += 1

    def _died(self, name: str, code: int) -> None:
        """The collector ended by itself, which it does at the failpoint and nowhere else."""
        self.outcome.deaths += 1
        if code == -signal.SIGKILL:
            self.outcome.fired[name] += 1
        else:
            self.outcome.broken.append(f"the collector ended with {code} on the way to {name}")

    def _kill(self) -> None:
        code = self._collector.daemon.kill()
        self.outcome.kills += 1
        self.outcome.deaths += 1
        if code != -signal.SIGKILL:
            self.outcome.broken.append(f"the collector ended by itself with {code}")

    def _armed_program(self, failpoint: str) -> tuple[str, ...]:
        setting = (f"{failpoints.VARIABLE}={failpoint}",) if failpoint else ()
        return ("env", *setting, *self._options.program)

    def _launch(self, failpoint: str = "") -> None:
        self._collector.daemon.program = self._armed_program(failpoint)
        self._collector.daemon.launch()

    def _start(self) -> None:
        began = time.monotonic()  # noqa: TID251
        self._collector.daemon.program = self._options.program
        self._collector.daemon.start(within_s=_START_S)
        self.outcome.ready_s = max(self.outcome.ready_s, time.monotonic() - began)  # noqa: TID251

    def _tear_tail(self) -> None:
        """Half a frame at the end of the spool, as a process leaves it that dies in a write."""
        spool = self._rng.choice(("spool", "spool-urgent"))
        segments = sorted((self._collector.data_dir / spool).glob("*.log"))
        if not segments or not segments[-1].stat().st_size:
            return
        data = segments[-1].read_bytes()
        with segments[-1].open("ab") as file:
            file.write(data[: self._rng.randint(1, min(len(data), 300))])
        self.outcome.torn += 1

    # The end: nothing more is sent, everything is looked at.

    def _conclude(self) -> None:
        for producer in self._producers:
            producer.finish()
        wait_until(
            self._collector.is_idle, within_s=_PATIENCE_S, what="nothing held, every account even"
        )
        self._expect_fresh_event()
        info = self._collector.daemon.status()["info"]
        assert self._collector.daemon.stop() == 0, "the drain of an idle collector"
        state = json.loads((self._collector.data_dir / "checkpoint").read_bytes().split(b" ", 2)[2])
        for cursor, name in (("cursor", "spool"), ("urgent_cursor", "spool_urgent")):
            if state[cursor] != info[name]["units_end"]:
                self.outcome.broken.append(f"{name}: not empty: {state[cursor]}, {info[name]}")
        self._judge()

    def _expect_fresh_event(self) -> None:
        last = self._producers[-1] if self._producers[-1].name == "file" else None
        file = last or next(one for one in self._producers if one.name == "file")
        number, file.claims.issued = file.claims.issued, file.claims.issued + 1
        before = len(self._texts())
        with self._log_file.open("ab") as log:
            log.write(text_of("file", number).encode() + b"\n")
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
        quarantined = [kept.raw.decode() for kept in read_quarantine(log) if isinstance(kept, Kept)]
        log.close()
        delivered = self._texts()
        claims = {producer.name: producer.claims for producer in self._producers}
        outcome = self.outcome
        outcome.broken += judge(claims, delivered, quarantined, crashes=outcome.deaths)
        outcome.delivered, outcome.quarantined = len(delivered), len(quarantined)
        outcome.repeats = len(delivered) - len(set(delivered))
        outcome.promised = sum(len(claim.acked) for claim in claims.values())
        outcome.judged = outcome.runs
