"""What the collector acknowledged arrives once and in order, whatever dies on the way."""

import itertools
import json
import socket
import threading
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from penstock.collector.cli.main import cli
from tests.support.collector import Collector, UnixSender, bodies, encode_batch, log_line
from tests.support.logd import Logd
from tests.support.nats_server import running_nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LOGS = [{"name": "logs", "subject": "telemetry.logs.>"}]
PER_BATCH = 20


def numbered(batch: int) -> list[bytes]:
    first = (batch - 1) * PER_BATCH
    return [log_line(number) for number in range(first, first + PER_BATCH)]


def expected(acked: int) -> list[str]:
    return [f"number {number}" for number in range(acked * PER_BATCH)]


class Writer:
    """Appends numbered lines to a file until stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        with self._path.open("a", buffering=1) as file:
            while not self._stop.wait(0.001):
                file.write(f"line {self.written}\n")
                self.written += 1


def arrived(logd: Logd, service: str) -> list[str]:
    needle = f'"service.name":"{service}"'.encode()
    return bodies([value for value in logd.values("logs") if value and needle in value])


def test_kill_of_the_collector_loses_and_repeats_nothing(tmp_path: Path, nats_url: str) -> None:
    socket_path, log_path = tmp_path / "c.sock", tmp_path / "app.log"
    sources: list[dict[str, Any]] = [
        {"type": "unix", "path": str(socket_path)},
        {"type": "file", "include": [str(log_path)], "service": "app", "poll_ms": 10},
    ]
    with (
        Logd(tmp_path / "logd", nats_url, LOGS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
        Writer(log_path) as writer,
    ):
        with UnixSender(socket_path, "sender-1", numbered) as sender:
            for _ in range(4):
                before = sender.acked
                wait_until(lambda: sender.acked > before + 20, what="acks go on")  # noqa: B023
                collector.restart(kill=True)
            wait_until(lambda: sender.acked > before + 40, what="acks go on")
        writer.__exit__()
        lines = [f"line {number}" for number in range(writer.written)]
        wait_until(lambda: len(arrived(logd, "app")) >= len(lines), what="all lines")
        wait_until(collector.is_idle, what="collector idle")
        assert arrived(logd, "app") == lines
        sent = arrived(logd, "shop")
        assert sent[: sender.acked * PER_BATCH] == expected(sender.acked)
        assert len(sent) == len(set(sent)), "records were repeated"


def test_kill_of_logd_loses_and_repeats_nothing(tmp_path: Path, nats_url: str) -> None:
    socket_path = tmp_path / "c.sock"
    sources = [{"type": "unix", "path": str(socket_path)}]
    with (
        Logd(tmp_path / "logd", nats_url, LOGS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        with UnixSender(socket_path, "sender-1", numbered) as sender:
            for _ in range(3):
                before = sender.acked
                wait_until(lambda: sender.acked > before + 20, what="acks go on")  # noqa: B023
                logd.restart(kill=True)
        wait_until(collector.is_idle, what="collector idle")
        sent = arrived(logd, "shop")
        assert sent[: sender.acked * PER_BATCH] == expected(sender.acked)
        assert len(sent) == len(set(sent)), "records were repeated"


def test_acks_go_on_while_nats_is_away_and_all_arrives_when_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    socket_path = tmp_path / "c.sock"
    sources = [{"type": "unix", "path": str(socket_path)}]
    url = f"nats://127.0.0.1:{port}"
    logd = Logd(tmp_path / "logd", url, LOGS)
    collector = Collector(tmp_path / "collector", url, sources)
    try:
        with UnixSender(socket_path, "sender-1", numbered) as sender:
            with running_nats_server(tmp_path / "nats", port=port):
                logd.daemon.start()
                collector.daemon.start()
                wait_until(lambda: sender.acked > 10, what="acks")
            wait_until(lambda: collector.daemon.status()["health"] == "degraded", what="degraded")
            before = sender.acked
            wait_until(lambda: sender.acked > before + 20, what="acks without NATS")
            with running_nats_server(tmp_path / "nats", port=port):
                sender.stop()
                wait_until(collector.is_idle, within_s=30, what="all delivered")
                sent = arrived(logd, "shop")
                assert sent[: sender.acked * PER_BATCH] == expected(sender.acked)
                assert len(sent) == len(set(sent))
                wait_until(lambda: collector.daemon.status()["health"] == "ready", what="ready")
                assert collector.daemon.stop() == 0
                assert logd.daemon.stop() == 0
    finally:
        for daemon in (collector.daemon, logd.daemon):
            daemon.close()


def test_a_drain_that_is_cut_short_exits_with_75_and_goes_on_at_the_next_start(
    tmp_path: Path, nats_url: str
) -> None:
    socket_path = tmp_path / "c.sock"
    sources = [{"type": "unix", "path": str(socket_path)}]
    options = {"drain_timeout_s": 0.5}
    logd = Logd(tmp_path / "logd", nats_url, LOGS)
    with Collector(tmp_path / "collector", nats_url, sources, **options) as collector:
        with UnixSender(socket_path, "sender-1", numbered) as sender:
            wait_until(lambda: sender.acked >= 3, what="acks without logd")
        assert collector.daemon.stop() == 75
        units = command("spool", "ls", collector.data_dir / "spool")
        assert sum(unit["records"] for unit in units) >= sender.acked * PER_BATCH
        (summary,) = command("spool", "check", collector.data_dir / "spool")
        assert (summary["units"], summary["problems"]) == (len(units), [])
        assert not summary["damaged"]
        with logd:
            collector.daemon.start()
            wait_until(lambda: len(arrived(logd, "shop")) >= sender.acked * PER_BATCH)
            assert collector.account("unix")["recovered"] >= sender.acked * PER_BATCH
            wait_until(collector.is_idle, what="idle")
            assert collector.daemon.stop() == 0


def test_a_drain_is_cut_short_also_when_a_source_waits_for_room(
    tmp_path: Path, nats_url: str
) -> None:
    port = free_port()
    sources = [{"type": "syslog", "tcp": None, "udp": f"127.0.0.1:{port}"}]
    options = {"drain_timeout_s": 0.5, "spool": {"max_bytes": 1 << 20}}
    with (
        Collector(tmp_path / "collector", nats_url, sources, **options) as collector,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):

        def is_more_than_it_can_hold() -> bool:
            for _ in range(50):
                sender.sendto(b"<13>" + b"x" * 30_000, ("127.0.0.1", port))
            dropped = collector.account("syslog").get("dropped", {})
            return "receive_queue_full" in dropped

        wait_until(is_more_than_it_can_hold, what="a full spool and a full queue")
        assert collector.daemon.stop() == 75


def test_a_full_spool_refuses_and_takes_again_when_there_is_room(
    tmp_path: Path, nats_url: str
) -> None:
    socket_path = tmp_path / "c.sock"
    sources = [{"type": "unix", "path": str(socket_path)}]
    spool = {"spool": {"max_bytes": 1 << 20, "when_full": "drop_newest"}}
    big = itertools.count()

    def make(batch: int) -> list[bytes]:
        del batch
        return [log_line(next(big), filler=10_000) for _ in range(10)]

    with Collector(tmp_path / "collector", nats_url, sources, **spool) as collector:
        with UnixSender(socket_path, "sender-1", make) as sender:
            wait_until(lambda: sender.nacks, what="a refusal")
            assert sender.nacks[0]["reason"] == "spool_full"
            assert sender.nacks[0]["retry"] is True
            held = sender.acked
            with Logd(tmp_path / "logd", nats_url, LOGS) as logd:
                wait_until(lambda: sender.acked > held + 3, what="acks go on")
                sender.stop()
                wait_until(collector.is_idle, what="all delivered")
                assert len(arrived(logd, "shop")) >= sender.acked * 10
        detail = collector.daemon.stage("source/unix")["detail"]
        assert detail["refused_spool_full"] > 0


def test_records_that_break_their_spec_are_in_quarantine_with_the_reason(
    tmp_path: Path, nats_url: str
) -> None:
    socket_path = tmp_path / "c.sock"
    sources = [{"type": "unix", "path": str(socket_path)}]
    bad = [b"not json", b'{"schema":"log/1.0","kind":"log","body":"no time"}']

    def make(batch: int) -> list[bytes]:
        return [*numbered(batch), *bad]

    with (
        Logd(tmp_path / "logd", nats_url, LOGS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        with UnixSender(socket_path, "sender-1", make, window=2) as sender:
            wait_until(lambda: sender.acked >= 3, what="acks")
        wait_until(collector.is_idle, what="idle")
        account = collector.account("unix")
        assert account["quarantined"] * PER_BATCH == account["delivered"] * 2
        assert arrived(logd, "shop")[: 3 * PER_BATCH] == expected(3)
        collector.restart(kill=True)
        assert collector.daemon.stop() == 0
    kept = command("quarantine", "show", collector.data_dir / "quarantine")
    assert {entry["reason"].split(":")[0] for entry in kept} == {"not_json", "missing_field"}
    assert len(kept) == account["quarantined"]
    counts = command("quarantine", "ls", collector.data_dir / "quarantine")
    assert sum(count["records"] for count in counts) == len(kept)


def command(*arguments: str | Path) -> list[dict[str, Any]]:
    """What a `penstock collector` command prints."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_two_batches_with_one_number_are_one_batch(tmp_path: Path, nats_url: str) -> None:
    socket_path = tmp_path / "c.sock"
    sources = [{"type": "unix", "path": str(socket_path)}]
    with (
        Logd(tmp_path / "logd", nats_url, LOGS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(60)
                connection.connect(str(socket_path))
                connection.sendall(encode_batch("one", 1, [log_line(0)]) * 2)
                answers = b""
                while answers.count(b'{"ack":1}') < 2:
                    answers += connection.recv(4096)
            collector.restart(kill=True)
        wait_until(lambda: arrived(logd, "shop"), what="the record")
        assert arrived(logd, "shop") == ["number 0"]
