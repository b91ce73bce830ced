"""A full disk, no descriptors, a server that comes and goes: what was acked arrives."""

import os
import resource
import signal
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tests.support.collector import Collector, UnixSender, bodies, log_line
from tests.support.logd import Logd
from tests.support.mounts import grow, small_file_system
from tests.support.nats_server import RestartableNatsServer
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [{"name": "logs", "subject": "telemetry.logs.>"}]


def lines_of(batch: int) -> list[bytes]:
    return [log_line(batch, filler=2000)]


def expect_exactly(logd: Logd, acked: int, collector: Collector) -> None:
    """All that was acked is there once, in order; nothing is held."""
    wait_until(collector.is_idle, within_s=40)
    numbers = [int(body.split()[1].rstrip("x")) for body in bodies(logd.values("logs"))]
    assert numbers == sorted(set(numbers)), "repeated or out of order"
    assert set(range(1, acked + 1)) <= set(numbers)


def test_a_disk_that_is_full_refuses_and_takes_again_when_there_is_room(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "s.sock"
    with (
        small_file_system(tmp_path / "small", "1500k") as small,
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(
            small / "c", nats_url, [{"type": "unix", "path": str(path)}],
            spool={"max_bytes": 64 << 20}, quarantine={"max_bytes": 1 << 20},
        ) as collector,
    ):  # fmt: skip
        os.kill(logd.daemon.pid, signal.SIGSTOP)  # nothing is given back
        try:
            with UnixSender(path, "a", lines_of) as sender:
                wait_until(lambda: collector.daemon.status()["info"]["spool"]["failures"] > 0)
                wait_until(lambda: collector.daemon.status()["health"] == "degraded")
                before = sender.acked
                grow(small, "64m")
                wait_until(lambda: sender.acked > before + 20)
        finally:
            os.kill(logd.daemon.pid, signal.SIGCONT)
        expect_exactly(logd, sender.acked, collector)


@pytest.mark.parametrize("when_full", ["block", "drop_newest", "drop_oldest"])
def test_a_disk_that_is_full_of_what_waits_is_free_again_once_that_is_delivered(
    tmp_path: Path, nats_url: str, when_full: str
) -> None:
    """Nobody makes room: it must find some for the checkpoint that gives the rest back."""
    path = tmp_path / "s.sock"
    with (
        small_file_system(tmp_path / "small", "4m") as small,
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(
            tmp_path / "c", nats_url, [{"type": "unix", "path": str(path)}],
            data_dir=str(small / "data"), quarantine={"max_bytes": 1 << 20},
            spool={"max_bytes": 16 << 20, "when_full": when_full},
        ) as collector,
    ):  # fmt: skip
        os.kill(logd.daemon.pid, signal.SIGSTOP)
        try:
            with UnixSender(path, "a", lines_of) as sender:
                wait_until(lambda: collector.daemon.status()["info"]["spool"]["failures"] > 0)
                wait_until(lambda: "No space left" in str(collector.daemon.status()["reasons"]))
                collector.restart(kill=True)  # it starts without any room, too
                before = sender.acked
                os.kill(logd.daemon.pid, signal.SIGCONT)
                wait_until(lambda: sender.acked > before + 200, within_s=40)
        finally:
            os.kill(logd.daemon.pid, signal.SIGCONT)
        expect_exactly(logd, sender.acked, collector)
        wait_until(lambda: collector.daemon.status()["health"] == "ready", what="ready")
        assert collector.daemon.stop() == 0


def send_syslog(place: str, messages: int) -> None:
    """As one who has no acks: as fast as it is read from."""
    host, port = place.split(":")
    with socket.create_connection((host, int(port))) as connection:
        for number in range(messages):
            connection.sendall(b"<13>number %d " % number + b"x" * 2000 + b"\n")


def test_a_disk_that_is_full_holds_back_who_has_no_acks(tmp_path: Path, nats_url: str) -> None:
    messages, place = 6000, f"127.0.0.1:{free_port()}"
    with (
        small_file_system(tmp_path / "small", "4m") as small,
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(
            tmp_path / "c", nats_url, [{"type": "syslog", "tcp": place}],
            data_dir=str(small / "data"), quarantine={"max_bytes": 1 << 20},
            spool={"max_bytes": 64 << 20},
        ) as collector,
        ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        os.kill(logd.daemon.pid, signal.SIGSTOP)
        try:
            sender = pool.submit(send_syslog, place, messages)
            wait_until(lambda: collector.daemon.status()["info"]["spool"]["failures"] > 1)
        finally:
            os.kill(logd.daemon.pid, signal.SIGCONT)
        sender.result(timeout=120)
        wait_until(lambda: len(logd.values("logs")) >= messages, within_s=40)
        numbers = [int(body.split()[1]) for body in bodies(logd.values("logs"))]
        assert numbers == list(range(messages))
        wait_until(collector.is_idle)
        assert collector.account("syslog")["dropped"] == {}


def test_nats_and_logd_that_come_and_go_and_a_process_that_stands_still(tmp_path: Path) -> None:
    """The server flaps, logd stops for a while, then the collector itself."""
    path = tmp_path / "s.sock"
    nats = RestartableNatsServer(tmp_path / "nats")
    nats.start()
    try:
        with (
            Logd(tmp_path / "logd", nats.url, STREAMS) as logd,
            Collector(tmp_path / "c", nats.url, [{"type": "unix", "path": str(path)}]) as collector,
            UnixSender(path, "a", lines_of) as sender,
        ):
            for _ in range(3):
                count = sender.acked
                wait_until(lambda n=count: sender.acked > n + 10)  # type: ignore[misc]
                nats.end(signal.SIGKILL)
                wait_until(lambda n=count: sender.acked > n + 30)  # type: ignore[misc]
                nats.start()
            wait_until(lambda: collector.daemon.status()["health"] == "ready")
            os.kill(logd.daemon.pid, signal.SIGSTOP)  # longer than an ack is waited for
            wait_until(lambda: collector.daemon.status()["health"] == "degraded")
            os.kill(logd.daemon.pid, signal.SIGCONT)
            wait_until(lambda: collector.daemon.status()["health"] == "ready")
            stand_still(collector, longer_than_s=3)
            count = sender.acked
            wait_until(lambda: sender.acked > count + 10)
            sender.stop()
            expect_exactly(logd, sender.acked, collector)
    finally:
        nats.close()


def test_a_log_that_refuses_gets_all_of_it_once_it_takes_more(
    tmp_path: Path, nats_url: str
) -> None:
    """A full stream that keeps what it has: what it nacks is held, reported, and sent again."""
    path = tmp_path / "s.sock"
    stream: dict[str, Any] = {**STREAMS[0], "discard": "new", "retention": {"messages": 50}}
    with (
        Logd(tmp_path / "logd", nats_url, [stream]) as logd,
        Collector(
            tmp_path / "c", nats_url, [{"type": "unix", "path": str(path)}],
            batch={"max_records": 5, "max_age_ms": 20},
        ) as collector,
        UnixSender(path, "a", lines_of) as sender,
    ):  # fmt: skip
        wait_until(lambda: sender.acked > 100)
        wait_until(lambda: "stream_full" in " ".join(collector.daemon.status()["reasons"]))
        wait_until(lambda: collector.daemon.status()["health"] == "degraded")
        assert collector.account("unix")["held"] > 0
        assert collector.account("unix")["quarantined"] == 0
        stored = len(logd.values("logs"))
        assert stored <= 60
        stream["retention"] = {"messages": 1_000_000}
        assert logd.daemon.stop() == 0
        logd.daemon.start()
        wait_until(lambda: len(logd.values("logs")) > stored + 50, within_s=40)
        sender.stop()
        expect_exactly(logd, sender.acked, collector)


def stand_still(collector: Collector, *, longer_than_s: float) -> None:
    """Stop the process until every time it had set has passed: of acks, ages and checkpoints."""
    os.kill(collector.daemon.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{collector.daemon.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    begun_s = perf_counter()
    wait_until(lambda: perf_counter() - begun_s > longer_than_s)
    os.kill(collector.daemon.pid, signal.SIGCONT)


def test_a_server_that_takes_less_than_a_batch_gets_smaller_ones(tmp_path: Path) -> None:
    """`max_payload` below a batch and above a record; a record above it is in quarantine."""
    path, url = tmp_path / "s.sock", ""
    nats = RestartableNatsServer(tmp_path / "nats", settings="max_payload: 16KB")
    nats.start()
    url = nats.url
    try:
        with (
            Logd(tmp_path / "logd", url, STREAMS) as logd,
            Collector(tmp_path / "c", url, [{"type": "unix", "path": str(path)}]) as collector,
        ):
            with UnixSender(path, "a", incompressible) as sender:
                wait_until(lambda: sender.acked >= 5)
            expect_exactly(logd, 0, collector)
            account = collector.account("unix")
            assert account["quarantined"] > 0
            assert account["delivered"] + account["quarantined"] == account["received"]
            assert account["delivered"] >= 20 * sender.acked
    finally:
        nats.close()


def incompressible(batch: int) -> list[bytes]:
    """Twenty small records and one that no message of the server can hold."""
    small = [log_line(batch * 100 + n) for n in range(20)]
    text = os.urandom(20_000).hex()
    return [*small, log_line(batch * 100 + 50).replace(b"number", b"number " + text.encode(), 1)]


def test_connections_without_descriptors_end_nothing(tmp_path: Path, nats_url: str) -> None:
    """None for new connections, files, segments and checkpoints: what is open goes on.

    Later all of it does.
    """
    path, port = tmp_path / "s.sock", free_port()
    sources: list[dict[str, Any]] = [
        {"type": "unix", "path": str(path)},
        {"type": "syslog", "udp": None, "tcp": f"127.0.0.1:{port}"},
        {"type": "file", "include": [f"{tmp_path}/*.log"], "service": "app", "poll_ms": 10},
    ]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources) as collector,
        UnixSender(path, "a", lines_of) as sender,
    ):
        wait_until(lambda: sender.acked > 5)
        pid = collector.daemon.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 12, limits[1]))
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        wait_until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) >= used + 12)
        for number in range(20):
            (tmp_path / f"{number}.log").write_text(f"number {number} of a file\n")
        before = sender.acked
        wait_until(lambda: sender.acked > before + 20)
        wait_until(lambda: "Too many open files" in collector.daemon.log())
        for one in crowd:
            one.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        for number in range(20):
            body = f"number {number} of a file"
            wait_until(lambda b=body: b in bodies(logd.values("logs")))  # type: ignore[misc]
        with socket.create_connection(("127.0.0.1", port)) as late:
            late.sendall(b"<13>number 0 late\n")
        wait_until(lambda: any("late" in body for body in bodies(logd.values("logs"))))
        sender.stop()
        wait_until(collector.is_idle)
        got = {body.split()[1].rstrip("x") for body in bodies(logd.values("logs"))}
        assert {str(number) for number in range(1, sender.acked + 1)} <= got


def test_more_files_and_idle_senders_than_descriptors_stop_nothing(  # noqa: PLR0915 - one story
    tmp_path: Path, nats_url: str
) -> None:
    """The limit is hard, so that it cannot be raised: each kind has its share, and a reserve."""
    limit, files, idle = 256, 400, 200
    path, tcp, http = tmp_path / "s.sock", free_port(), free_port()
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(files):
        (logs / f"{number}.log").write_text(f"first {number}\n")
    sources: list[dict[str, Any]] = [
        {"type": "unix", "path": str(path)},
        {"type": "syslog", "udp": None, "tcp": f"127.0.0.1:{tcp}"},
        {"type": "otlp", "grpc": None, "http": f"127.0.0.1:{http}"},
        {"type": "file", "include": [f"{logs}/*.log"], "service": "app", "poll_ms": 50},
    ]
    collector = Collector(tmp_path / "c", nats_url, sources)
    collector.daemon.program = (
        "prlimit", f"--nofile={limit // 4}:{limit}", *collector.daemon.program,
    )  # fmt: skip
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        collector,
        UnixSender(path, "a", lines_of) as sender,
    ):

        def seen() -> set[str]:
            return set(bodies(logd.values("logs")))

        crowd = [socket.create_connection(("127.0.0.1", tcp)) for _ in range(idle)]
        wait_until(lambda: {f"first {number}" for number in range(files)} <= seen())
        wait_until(lambda: collector.daemon.status()["health"] == "degraded")
        reasons = collector.daemon.status()["reasons"]  # a busy machine may add one of its own
        (reason,) = [one for one in reasons if "descriptors for connections" in one]
        assert "LimitNOFILE" in reason, reason
        with urllib.request.urlopen(  # another source's address, which none of these may starve
            urllib.request.Request(
                f"http://127.0.0.1:{http}/v1/logs",
                data=b"{}", headers={"Content-Type": "application/json"},
            ),
            timeout=5,
        ) as answer:  # fmt: skip
            assert answer.status == 200
        acked = sender.acked
        wait_until(lambda: sender.acked > acked + 20)
        for number in range(files):
            with (logs / f"{number}.log").open("a") as file:
                file.write(f"second {number}\n")
        (logs / "7.log").rename(logs / "7.log.1")  # closed for others, as most are
        wait_until(lambda: {f"second {number}" for number in range(files)} <= seen())
        told = collector.daemon.status()["info"]["descriptors"]
        assert told["limit"] == limit, "the soft limit is raised"
        assert told["files_open"] <= told["max_files"] < files
        for one in crowd:
            one.close()

        def late_arrives() -> bool:
            with socket.create_connection(("127.0.0.1", tcp)) as late:
                late.sendall(b"<13>late\n")
                return b"late" in b"".join(value or b"" for value in logd.values("logs"))

        wait_until(late_arrives)
        sender.stop()
        wait_until(collector.is_idle)
        assert collector.daemon.stop() == 0
        assert len(collector.daemon.log()) < 500_000
        assert "Traceback" not in collector.daemon.log()
        collector.daemon.start()
        with (logs / "5.log").open("a") as file:
            file.write("third 5\n")
        wait_until(lambda: "third 5" in seen())
        files_seen = [body for body in bodies(logd.values("logs")) if body.startswith(("f", "s"))]
        assert len(files_seen) == len(set(files_seen)), "nothing is read twice"
