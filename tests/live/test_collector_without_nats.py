"""A collector that starts while NATS is away, or does not let it in: what it acks is delivered."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority
from tests.support.chunk_sender import Chunks
from tests.support.collector import Collector, UnixSender, bodies, log_line
from tests.support.logd import Logd
from tests.support.nats_server import nats_server, running_nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

LOGS = [{"name": "logs", "subject": "telemetry.logs.>"}]
PER_BATCH = 20
WORKERS = (sys.executable, "-m", "penstock.collector", "run", "--workers", "2")


def numbered(batch: int) -> list[bytes]:
    first = (batch - 1) * PER_BATCH
    return [log_line(number) for number in range(first, first + PER_BATCH)]


def of_sender(logd: Logd) -> list[str]:
    return [body for body in bodies(logd.values("logs")) if body.startswith("number")]


def expect_delivered(collector: Collector, logd: Logd, sender: UnixSender) -> None:
    """All that was acked is there once, in order, and nothing is wrong any more."""
    wait_until(collector.is_idle, within_s=40, what="idle")
    promised, found = sender.acked * PER_BATCH, of_sender(logd)
    assert found[:promised] == [f"number {number}" for number in range(promised)]
    assert len(found) == len(set(found)), "records were repeated"
    wait_until(lambda: collector.daemon.status()["health"] == "ready", what="ready")


def trouble(collector: Collector) -> str:
    """What is said of NATS; empty when it is there."""
    status = collector.daemon.status()
    found = [reason for reason in status["reasons"] if reason.startswith("NATS")]
    assert not found or status["health"] == "degraded"
    return "".join(found)


def acks_go_on(sender: UnixSender) -> None:
    before = sender.acked
    wait_until(lambda: sender.acked > before + 20, what="acks")


def password(directory: Path, value: str) -> Path:
    """A configuration of a server that lets in who shows it."""
    path = directory / "nats.conf"
    path.write_text(f'authorization {{ user: penstock, password: "{value}" }}\n')
    return path


@contextmanager
def closed_after(*daemons: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for daemon in daemons:
            daemon.close()


def expect_taking(collector: Collector, url: str) -> None:
    """It says what is wrong, is well all the same, and its account balances."""
    said = trouble(collector)
    assert said.startswith(f"NATS at {url} cannot be reached since 20")
    assert "Connect call failed" in said
    assert said.endswith("; held in the spool")
    with collector.daemon.get("/healthz") as answer:
        assert answer.status == 200
    accounts = collector.daemon.status()["info"]["reconciliation"]
    assert {account["difference"] for account in accounts.values()} == {0}


def test_it_takes_and_keeps_what_comes_until_nats_and_logd_are_there(tmp_path: Path) -> None:
    """A host that was started before its NATS server; a kill, and another start without one."""
    port, syslog, forward = free_port(), free_port(), free_port()
    path, url = tmp_path / "c.sock", f"nats://127.0.0.1:{port}"
    sources: list[dict[str, Any]] = [
        {"type": "unix", "path": str(path)},
        {"type": "syslog", "tcp": None, "udp": f"127.0.0.1:{syslog}"},
        {"type": "forward", "listen": f"127.0.0.1:{forward}"},
    ]
    logd = Logd(tmp_path / "logd", url, LOGS)
    collector = Collector(tmp_path / "collector", url, sources)
    with closed_after(collector.daemon, logd.daemon):
        collector.daemon.start()
        forwarder = Chunks(forward, "chunk")
        with UnixSender(path, "sender-1", numbered) as sender:
            acks_go_on(sender)
            expect_taking(collector, url)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                udp.sendto(b"<13>over UDP", ("127.0.0.1", syslog))
            wait_until(lambda: collector.account("syslog").get("held") == 1)
            collector.restart(kill=True)
            acks_go_on(sender)
            expect_taking(collector, url)
            wait_until(lambda: len(forwarder.kept) > 20)
            with running_nats_server(tmp_path / "nats", port=port):
                wait_until(lambda: "no_responders" in str(collector.daemon.status()["reasons"]))
                assert trouble(collector) == ""
                logd.daemon.start()
                acks_go_on(sender)
                sender.stop()
                forwarder.stop()
                expect_delivered(collector, logd, sender)
                found = bodies(logd.values("logs"))
                assert found.count("over UDP") == 1
                chunks = [body for body in found if body.startswith("chunk")]
                assert set(forwarder.kept) <= set(chunks)
                assert len(chunks) == len(set(chunks))
                assert collector.daemon.stop() == 0


def test_a_server_that_comes_later_and_lets_nobody_in_is_named_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    port, path = free_port(), tmp_path / "c.sock"
    secret, url = tmp_path / "password", f"nats://127.0.0.1:{port}"
    secret.write_text("right\n")
    login = {"url": url, "user": "penstock", "password": {"file": str(secret)}}
    logd = Logd(tmp_path / "logd", url, LOGS, nats=login)
    sources = [{"type": "unix", "path": str(path)}]
    collector = Collector(tmp_path / "collector", url, sources, nats=login)
    with closed_after(collector.daemon, logd.daemon):
        collector.daemon.start()
        with UnixSender(path, "sender-1", numbered) as sender:
            with nats_server(tmp_path / "nats", port=port, config=password(tmp_path, "other")):
                wait_until(lambda: "Authorization Violation" in trouble(collector))
                assert "cannot be used since" in trouble(collector)
                assert "right" not in trouble(collector)
                acks_go_on(sender)
            wait_until(lambda: "cannot be reached since" in trouble(collector))
            config = password(tmp_path, "right")
            with nats_server(tmp_path / "nats", port=port, config=config) as server:
                logd.daemon.start()
                wait_until(lambda: collector.daemon.status()["health"] == "ready")
                password(tmp_path, "new")  # another while it runs; who connects reads its file
                server.signal("reload")
                wait_until(lambda: "Authorization Violation" in trouble(collector))
                acks_go_on(sender)
                secret.write_text("new\n")
                wait_until(lambda: collector.daemon.status()["health"] == "ready")
                acks_go_on(sender)
            secret.write_text("newest\n")  # while the server is away
            config = password(tmp_path, "newest")
            with nats_server(tmp_path / "nats", port=port, config=config):
                sender.stop()
                expect_delivered(collector, logd, sender)
                assert collector.daemon.stop() == 0


def start_of(collector: Collector) -> tuple[int, str]:
    """The exit code of one that does not start, and what it said."""
    collector.daemon.launch()
    return collector.daemon.wait(within_s=20), collector.daemon.log()


def test_a_server_that_is_there_and_refuses_ends_the_start(tmp_path: Path) -> None:
    sources = [{"type": "unix", "path": str(tmp_path / "c.sock")}]
    with nats_server(tmp_path / "nats", config=password(tmp_path, "right")) as server:
        login = {"url": server.url, "user": "penstock", "password": "wrong"}
        collector = Collector(tmp_path / "collector", server.url, sources, nats=login)
        code, said = start_of(collector)
        assert code == 69
        assert f"the NATS server at {server.url} cannot be used: nats: 'Authorization" in said
        forward = [{"type": "forward", "listen": f"127.0.0.1:{free_port()}"}]
        collector = Collector(tmp_path / "workers", server.url, forward, nats=login)
        collector.daemon.program = WORKERS
        code, said = start_of(collector)
        assert code == 69
        assert f"the NATS server at {server.url} cannot be used: nats: 'Authorization" in said
        collector = Collector(tmp_path / "other", server.url, sources, nats={"url": "nats://a:b"})
        code, said = start_of(collector)
        assert (code, "nats.url: " in said) == (78, True)


@pytest.mark.parametrize(
    ("name", "trusted", "why"),
    [("DNS:elsewhere", "own", "Hostname mismatch"), ("DNS:localhost", "other", "local issuer")],
)
def test_a_server_that_is_there_and_not_to_be_trusted_ends_the_start(
    tmp_path: Path, name: str, trusted: str, why: str
) -> None:
    authorities = {who: Authority(tmp_path / who) for who in ("own", "other")}
    files = authorities["own"].sign("server", name)
    config = tmp_path / "nats.conf"
    config.write_text(f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}" }}\n')
    sources = [{"type": "unix", "path": str(tmp_path / "c.sock")}]
    with nats_server(tmp_path / "nats", config=config) as server:
        url = f"nats://localhost:{server.port}"
        nats = {"url": url, "ca_file": str(authorities[trusted].cert)}
        code, said = start_of(Collector(tmp_path / "collector", url, sources, nats=nats))
        assert code == 69
        assert why in said
        missing = {"url": url, "ca_file": str(tmp_path / "none.pem")}
        code, said = start_of(Collector(tmp_path / "another", url, sources, nats=missing))
        assert (code, "nats.ca_file: " in said) == (78, True)


def test_a_certificate_that_is_not_trusted_at_first_is_trusted_once_it_is_another(
    tmp_path: Path,
) -> None:
    """nats-py hangs on such a connection."""
    port, path = free_port(), tmp_path / "c.sock"
    url, own = f"nats://localhost:{port}", Authority(tmp_path / "own")
    config = tmp_path / "nats.conf"

    def serve(name: str) -> Path:
        files = own.sign(name, f"DNS:{name}")
        config.write_text(f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}" }}\n')
        return config

    nats = {"url": url, "ca_file": str(own.cert), "ack_timeout_s": 1}
    logd = Logd(tmp_path / "logd", url, LOGS, nats={"url": url, "tls": {"ca_file": str(own.cert)}})
    sources = [{"type": "unix", "path": str(path)}]
    collector = Collector(tmp_path / "collector", url, sources, nats=nats)
    with closed_after(collector.daemon, logd.daemon):
        collector.daemon.start()
        with UnixSender(path, "sender-1", numbered) as sender:
            with nats_server(tmp_path / "nats", port=port, config=serve("elsewhere")):
                wait_until(lambda: "Hostname mismatch" in trouble(collector))
                acks_go_on(sender)
            with nats_server(tmp_path / "nats", port=port, config=serve("localhost")):
                logd.daemon.start()
                sender.stop()
                expect_delivered(collector, logd, sender)


def test_a_drain_without_nats_is_cut_short_and_what_is_held_goes_on_later(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "c.sock"
    url = f"nats://127.0.0.1:{port}"
    logd = Logd(tmp_path / "logd", url, LOGS)
    sources = [{"type": "unix", "path": str(path)}]
    collector = Collector(tmp_path / "collector", url, sources, drain_timeout_s=0.5)
    with closed_after(collector.daemon, logd.daemon):
        collector.daemon.start()
        with UnixSender(path, "sender-1", numbered) as sender:
            acks_go_on(sender)
        assert collector.daemon.stop() == 75
        config = collector.directory / "collector.yaml"
        drain = [sys.executable, "-m", "penstock.collector", "spool", "drain"]
        drain += ["--config", str(config), "--timeout", "0.5"]
        assert subprocess.run(drain, check=False, timeout=60).returncode == 75
        collector.daemon.start()
        assert collector.account("unix")["held"] >= sender.acked * PER_BATCH
        with running_nats_server(tmp_path / "nats", port=port):
            logd.daemon.start()
            expect_delivered(collector, logd, sender)
            assert collector.daemon.stop() == 0


def test_several_workers_start_without_nats_and_deliver_what_each_has_taken(
    tmp_path: Path,
) -> None:
    port, forward = free_port(), free_port()
    url = f"nats://127.0.0.1:{port}"
    sources: list[dict[str, Any]] = [{"type": "forward", "listen": f"127.0.0.1:{forward}"}]
    logd = Logd(tmp_path / "logd", url, LOGS)
    collector = Collector(tmp_path / "collector", url, sources)
    collector.daemon.program = WORKERS
    with closed_after(collector.daemon, logd.daemon):
        collector.daemon.start()
        wait_until(lambda: collector.daemon.status()["health"] == "degraded", what="both run")
        forwarder = Chunks(forward, "chunk")

        def received(worker: int) -> int:
            return int(collector.daemon.stage(f"worker-{worker}/source/forward")["received"])

        wait_until(lambda: received(0) > 20 and received(1) > 20, what="both have received")
        reasons = collector.daemon.status()["reasons"]
        for worker in "01":
            assert any(r.startswith(f"worker {worker}: NATS at {url} cannot") for r in reasons)
        with running_nats_server(tmp_path / "nats", port=port):
            logd.daemon.start()
            forwarder.stop()
            wait_until(collector.is_idle, within_s=40, what="idle")
            found = bodies(logd.values("logs"))
            assert set(forwarder.kept) <= set(found)
            assert len(found) == len(set(found))
            wait_until(lambda: collector.daemon.status()["health"] == "ready", what="ready")
            assert collector.daemon.stop() == 0
