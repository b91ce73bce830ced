"""Several collector processes on the same ports: one to senders and probes, also when one dies."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.collector.agent.admin import ask, ask_once
from penstock.service import ConfigError, UnavailableError
from tests.support.chunk_sender import Chunks
from tests.support.collector import Collector, bodies
from tests.support.logd import Logd
from tests.support.processes import free_port
from tests.support.untrusted_directory import untrusted_directory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]
PENSTOCK = str(Path(sys.executable).parent / "penstock")
WORKERS = (PENSTOCK, "collector", "run", "--workers", "2")


def pid_of(data_dir: Path) -> int:
    return int((data_dir / "lock").read_text())


def started_ms(collector: Collector) -> list[int]:
    """When each worker started, as the collector says it."""
    workers = collector.daemon.status()["info"]["workers"]
    return [workers[worker]["started_ms"] for worker in "01"]


def is_starting(collector: Collector) -> bool:
    return bool(collector.daemon.status()["health"] == "starting")


def reload_all(collector: Collector, port: int) -> None:
    """What both can run by is applied by both; what one cannot, by none that comes after it."""
    wait_until(lambda: collector.daemon.status()["health"] == "ready", what="both are there")
    config, socket_path = collector.config, collector.data_dir / "admin.sock"
    forward = config["sources"][0]
    config["batch"] = {"max_age_ms": 30}
    collector.daemon.write_config()
    before = [pid_of(collector.data_dir), pid_of(collector.data_dir / "workers" / "1")]
    report = ask_once(socket_path, {"do": "reload"})["report"]
    assert report["workers"] == {"0": "applied", "1": "applied"}
    after = [pid_of(collector.data_dir), pid_of(collector.data_dir / "workers" / "1")]
    assert not {*before} & {*after}, "each was restarted"

    new = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config["sources"] = [  # the second is the first worker's alone
            {**forward, "listen": f"127.0.0.1:{new}"},
            {"type": "statsd", "udp": None, "tcp": f"127.0.0.1:{taken.getsockname()[1]}"},
        ]
        collector.daemon.write_config()
        with pytest.raises(UnavailableError, match=r"worker 0 ended with"):
            ask_once(socket_path, {"do": "reload"})
    assert pid_of(collector.data_dir / "workers" / "1") == after[1], "the other was left alone"
    told = collector.daemon.status()["info"]["reloads"]
    assert (told["generation"], told["last"]["workers"]) == (2, {"0": "refused", "1": "kept"})
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", new), timeout=5)
    wait_until(lambda: collector.daemon.status()["health"] == "ready", what="it went back")
    config["sources"] = [forward]
    collector.daemon.write_config()
    os.kill(collector.daemon.pid, signal.SIGHUP)
    wait_until(lambda: "unchanged" in collector.daemon.log(), what="told to all")
    replayed = ask_once(socket_path, {"do": "replay"})
    assert set(replayed["workers"]) == {"0", "1"}
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_workers_share_ports_and_one_that_is_killed_loses_nothing(
    tmp_path: Path, nats_url: str
) -> None:
    port = free_port()
    sources: list[dict[str, Any]] = [{"type": "forward", "listen": f"127.0.0.1:{port}"}]
    collector = Collector(tmp_path / "collector", nats_url, sources)
    collector.daemon.program = WORKERS
    with (
        untrusted_directory(tmp_path / "untrusted") as collector.daemon.cwd,
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        collector,
    ):
        second = collector.data_dir / "workers" / "1"
        sender = Chunks(port)

        def received(worker: int) -> int:
            return int(collector.daemon.stage(f"worker-{worker}/source/forward")["received"])

        wait_until(lambda: received(0) > 20 and received(1) > 20, what="both have received")
        before, started = pid_of(second), started_ms(collector)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: is_starting(collector), what="one is away", momentary=True)
        kept = len(sender.kept)
        wait_until(lambda: len(sender.kept) > kept + 20, what="the other goes on")
        wait_until(lambda: received(1) > 20, within_s=60, what="it is back")
        assert pid_of(second) != before
        (first, again), (same, then) = started_ms(collector), started
        assert first == same
        assert again > then
        reload_all(collector, port)
        sender.stop()
        wait_until(collector.is_idle, what="idle")
        with collector.daemon.get("/metrics") as answer:
            metrics = answer.read().decode()
        for worker in "01":
            assert (
                f'penstock_collector_held_records{{source="forward",worker="{worker}"}}' in metrics
            )
        assert 'penstock_collector_reloads_total{result="applied"} 1.0' in metrics
        assert set(sender.kept) <= set(bodies(logd.values("logs")))
        assert collector.daemon.stop() == 0

        last = pid_of(second)
        collector.daemon.program = (PENSTOCK, "collector", "run")
        collector.daemon.start()

        def is_drained() -> bool:
            holder = (second / "lock").read_text().strip()
            return holder not in ("", str(last)) and not psutil.pid_exists(int(holder))

        wait_until(is_drained, what="what an earlier worker left is looked at")
        assert list(collector.daemon.status()["info"]["workers"]) == ["0"]
        assert collector.daemon.stop() == 0


class Look:
    """A tap: the workers whose records it showed."""

    def __init__(self, socket_path: Path) -> None:
        self.shown: list[int] = []
        self._path = socket_path
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for answer in ask(self._path, {"do": "tap", "follow": True}):
            if "record" in answer:
                self.shown.append(answer["worker"])


def test_a_worker_begins_again_by_what_runs_and_is_looked_into(
    tmp_path: Path, nats_url: str
) -> None:
    """The file was refused and stands as it is; a look that began before goes on after."""
    port = free_port()
    sources: list[dict[str, Any]] = [{"type": "forward", "listen": f"127.0.0.1:{port}"}]
    collector = Collector(tmp_path / "collector", nats_url, sources)
    collector.daemon.program = WORKERS
    with Logd(tmp_path / "logd", nats_url, STREAMS), collector:
        second = collector.data_dir / "workers" / "1"
        wait_until(lambda: collector.daemon.status()["health"] == "ready")
        collector.config["batch"] = {"max_age_ms": 25}
        collector.daemon.write_config()
        socket_path = collector.data_dir / "admin.sock"
        assert ask_once(socket_path, {"do": "reload"})["report"]["result"] == "applied"
        collector.config["sources"] = "none of the kind"
        collector.daemon.write_config()
        with pytest.raises(ConfigError, match="sources"):
            ask_once(socket_path, {"do": "reload"})
        look, sender = Look(socket_path), Chunks(port)
        wait_until(lambda: {0, 1} <= set(look.shown), what="both are looked into")

        before = pid_of(second)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: is_starting(collector), what="one is away", momentary=True)
        wait_until(lambda: collector.daemon.status()["health"] == "ready", what="it is back")
        assert pid_of(second) != before
        seen = len(look.shown)
        wait_until(lambda: 1 in look.shown[seen:], what="the new one is looked into")
        sender.stop()
        wait_until(collector.is_idle)
        assert collector.daemon.stop() == 0
