"""A running collector that is asked for things: reload, replay, look. One that only delivers."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from penstock.collector.cli.main import cli
from penstock.collector.limits import MIB
from tests.support.collector import Collector, UnixSender, bodies, encode_batch, log_line
from tests.support.logd import Logd
from tests.support.nats_server import nats_server
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [
    {"name": "logs", "subject": "telemetry.logs.>"},
    {"name": "audit", "subject": "telemetry.audit.>"},
]
PER_BATCH = 20


def numbered(batch: int) -> list[bytes]:
    first = (batch - 1) * PER_BATCH
    return [log_line(number) for number in range(first, first + PER_BATCH)]


def command(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    lines = result.output.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def send(path: Path, *frames: bytes) -> bytes:
    """Send frames of the Unix framing; returns when each was answered."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        connection.sendall(b"".join(frames))
        answers = b""
        while answers.count(b"ack") < len(frames):
            answers += connection.recv(4096)
    return answers


@pytest.fixture
def logd(tmp_path: Path, nats_url: str) -> Iterator[Logd]:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as running:
        yield running


def stored(logd: Logd, count: int, stream: str = "logs") -> list[str]:
    wait_until(lambda: len(logd.values(stream)) >= count, what=f"{count} records in {stream}")
    return bodies(logd.values(stream))


def reloads(collector: Collector) -> dict[str, Any]:
    found: dict[str, Any] = collector.daemon.status()["info"]["reloads"]
    return found


def test_a_reload_under_load_loses_and_repeats_nothing(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    kept, other, log_path = tmp_path / "a.sock", tmp_path / "b.sock", tmp_path / "app.log"
    log_path.write_text("".join(f"line {number}\n" for number in range(5000)))
    first: list[dict[str, Any]] = [{"type": "unix", "name": "kept", "path": str(kept)}]
    file = {"type": "file", "include": [str(log_path)], "service": "app", "poll_ms": 10}
    with Collector(tmp_path / "collector", nats_url, [*first, file]) as collector:
        connected = collector.config["sources"]
        with UnixSender(kept, "sender-1", numbered) as sender:
            wait_until(lambda: sender.acked > 5, what="acks")
            connected[:] = [
                *first,
                {**file, "exclude": ["*.gz"]},
                {"type": "unix", "name": "new", "path": str(other)},
            ]
            collector.config |= {
                "batch": {"max_age_ms": 10},
                "receive": {"max_source_bytes": 33 * MIB},
            }
            collector.daemon.write_config()
            (answer,) = command("reload", collector.data_dir)
            assert answer["sources"] == {"added": ["new"], "changed": ["file"]}
            assert sorted(answer["keys"]) == ["batch", "receive"]
            receiving = collector.daemon.status()["info"]["receiving"]
            assert receiving["kept"]["max_bytes"] == 33 * MIB
            send(other, encode_batch("two", 1, [log_line(1, service="two")]))
            # The last of the reloads takes the file away: who has not read it then never does.
            wait_until(lambda: collector.account("file").get("received") == 5000, what="the lines")
            connected[:] = first
            collector.daemon.write_config()
            os.kill(collector.daemon.pid, signal.SIGHUP)
            wait_until(lambda: reloads(collector)["generation"] == 3, what="the second reload")
            before = sender.acked
            wait_until(lambda: sender.acked > before + 5, what="acks go on")
            assert collector.daemon.log().count("protocol_error") == 0
        wait_until(collector.is_idle, what="idle")
        total = sender.acked * PER_BATCH + 5000 + 1
        found = stored(logd, total)
        assert len(found) == len(set(found)) or found.count("number 1") == 2
        lines = [body for body in found if body.startswith("line")]
        assert lines == [f"line {number}" for number in range(5000)]
        assert collector.daemon.stop() == 0


def test_a_reload_that_is_wrong_changes_nothing_and_says_why(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    path, port = tmp_path / "a.sock", free_port()
    sources: list[dict[str, Any]] = [{"type": "unix", "path": str(path)}]
    with (
        Collector(tmp_path / "collector", nats_url, sources) as collector,
        socket.create_server(("127.0.0.1", port)),
    ):
        for wrong, why, code in (
            (
                {
                    "sources": [
                        *sources,
                        {"type": "forward", "service": "x", "listen": f"127.0.0.1:{port}"},
                    ]
                },
                "cannot listen",
                69,
            ),
            ({"sources": [{"type": "carrier_pigeon"}]}, "sources.0", 78),
            ({"name": "another"}, "name cannot change", 78),
            (
                {"nats": {"url": f"nats://127.0.0.1:{port}"}, "connect_timeout_s": 0.2},
                "no NATS server",
                69,
            ),
        ):
            config = dict(collector.config)
            collector.config.update(wrong)
            collector.daemon.write_config()
            collector.config.clear()
            collector.config.update(config)
            result = CliRunner().invoke(cli, ["reload", str(collector.data_dir)])
            assert result.exit_code == code
            assert why in result.output
        assert reloads(collector)["generation"] == 1
        assert reloads(collector)["counts"] == {"refused": 4}
        send(path, encode_batch("one", 1, [log_line(0)]))
        assert stored(logd, 1) == ["number 0"]


def test_a_kill_in_the_middle_of_reloads_loses_and_repeats_nothing(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    path = tmp_path / "a.sock"
    other = {"type": "unix", "name": "other", "path": str(tmp_path / "b.sock")}
    sources: list[dict[str, Any]] = [{"type": "unix", "path": str(path)}]
    with Collector(tmp_path / "collector", nats_url, sources) as collector:
        with UnixSender(path, "sender-1", numbered) as sender:
            for turn in range(6):
                before = sender.acked
                wait_until(lambda: sender.acked > before + 5, what="acks")  # noqa: B023
                sources[1:] = [] if turn % 2 else [other]
                collector.config["batch"] = {"max_age_ms": 10 + turn}
                collector.daemon.write_config()
                os.kill(collector.daemon.pid, signal.SIGHUP)
                threading.Event().wait(turn * 0.004)  # so that the kill falls somewhere else
                collector.restart(kill=True)
            before = sender.acked
            wait_until(lambda: sender.acked > before + 5, what="acks")
        wait_until(collector.is_idle, what="idle")
        found = stored(logd, sender.acked * PER_BATCH)
        assert found[: sender.acked * PER_BATCH] == [
            f"number {number}" for number in range(sender.acked * PER_BATCH)
        ]
        assert len(found) == len(set(found))


def test_quarantine_is_replayed_once_running_or_stopped_and_the_records_are_seen(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    path = tmp_path / "a.sock"
    sources = [{"type": "unix", "path": str(path)}]
    bad = b'{"schema":"log/9.9","kind":"log","body":"from the future"}'
    with Collector(tmp_path / "collector", nats_url, sources) as collector:
        place = collector.data_dir / "quarantine"
        tap = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock.collector", "tap", str(collector.data_dir)),
                *("--point", "quarantine", "--limit", "2"),
            ],
            stdout=subprocess.PIPE,
        )
        assert tap.stdout is not None
        try:
            wait_until(lambda: "admin_action_requested" in collector.daemon.log(), what="a tap")
            send(path, encode_batch("one", 1, [log_line(0), bad]))
            seen = json.loads(tap.stdout.readline())
            assert (seen["source"], json.loads(seen["record"])["body"]) == (
                "unix",
                "from the future",
            )
            wait_until(collector.is_idle, what="idle")
            (answer,) = command("quarantine", "replay", place)
            assert answer["replayed"] == 1
            assert json.loads(tap.stdout.readline())["reason"] == seen["reason"], "refused again"
            assert tap.wait(timeout=30) == 0
        finally:
            tap.kill()
            tap.wait()
            tap.stdout.close()
        wait_until(lambda: collector.account("unix")["quarantined"] == 2, what="quarantine")
        (top,) = command("top", collector.data_dir, "--once", "--json", "--interval", "0.2")
        stages = {stage["stage"]: stage for stage in top["stages"]}
        assert stages["source/unix"]["received"] == 3
        assert stages["source/unix"]["errors"] == 2
        wait_until(collector.is_idle, what="idle")
        while_it_runs = command("quarantine", "show", place)
        (counted,) = command("quarantine", "ls", collector.data_dir)
        assert (counted["records"], counted["replayed"]) == (2, 1)
        assert collector.daemon.stop() == 0
        assert command("quarantine", "show", place) == while_it_runs
        assert command("quarantine", "ls", place) == [counted]
        (answer,) = command("quarantine", "replay", place)
        assert (answer["replayed"], answer["before"]) == (1, 1)
        assert [unit["records"] for unit in command("spool", "ls", place.parent / "spool")][-1] == 1
        collector.daemon.start()
        wait_until(lambda: collector.account("unix")["quarantined"] == 1, what="refused again")
        assert stored(logd, 1) == ["number 0"]


def test_what_is_refused_says_why_to_the_operator_and_in_the_metrics(
    tmp_path: Path, nats_url: str, logd: Logd
) -> None:
    path, port = tmp_path / "app.log", free_port()
    long = "z" * 40_000  # two records; the second goes on with the first, and ends with it
    path.write_text(f"2026-01-02T03:04:05Z on time\nno time\n{long}\n")
    of_file: dict[str, Any] = {"type": "file", "include": [str(path)], "service": "app"}
    of_file["max_line_bytes"] = 65_536
    sources: list[dict[str, Any]] = [
        {**of_file, "timestamp": {"on_error": "quarantine"}},
        {**of_file, "name": "filtered", "timestamp": {"on_error": "filter"}},
        {"type": "otlp", "grpc": None, "http": f"127.0.0.1:{port}"},
    ]
    point = {"timeUnixNano": "5", "count": "2", "bucketCounts": ["1"], "explicitBounds": []}
    histogram = {"aggregationTemporality": 2, "dataPoints": [point, point]}
    scope = {"metrics": [{"name": "a", "histogram": histogram}]}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [scope]}]}).encode()
    expected = {
        ("file", "timestamp: no time can be read where it should stand"): 3,
        ("otlp", "bucket_counts must add up to count"): 2,
    }
    with Collector(tmp_path / "collector", nats_url, sources) as collector:
        sent = Request(f"http://127.0.0.1:{port}/v1/metrics", body)
        sent.add_header("content-type", "application/json")
        with urlopen(sent, timeout=20) as answer:
            assert json.load(answer)["partialSuccess"]["rejectedDataPoints"] == "2"
        wait_until(
            lambda: collector.account("filtered").get("filtered") == 3, what="a filtered line"
        )
        wait_until(lambda: collector.account("file").get("quarantined") == 3, what="a line")
        wait_until(lambda: collector.account("otlp").get("quarantined") == 2, what="points")
        wait_until(collector.is_idle, what="idle")
        for stage in ("source/file", "source/file:filtered"):
            assert collector.daemon.stage(stage)["detail"]["timestamps_unreadable"] == 2
        with urlopen(f"http://{collector.config['admin']}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        found = {
            (labels["source"], labels["reason"]): value
            for family in text_string_to_metric_families(text)
            for name, labels, value, *_ in family.samples
            if name == "penstock_collector_refused_records_total"
        }
        assert found == expected
        told = command("quarantine", "ls", collector.data_dir)
        assert {
            (one["source"], one.get("meaning", one["reason"])): one["records"] for one in told
        } == expected
        on_time = ["2026-01-02T03:04:05Z on time"] * 2
        assert stored(logd, 2) == on_time
        command("quarantine", "replay", collector.data_dir, "--source", "file")
        _, _, *replayed = stored(logd, 5)
        assert (replayed[0], "".join(replayed[1:])) == ("no time", long)


def test_a_stopped_collectors_spool_is_looked_at_mended_and_delivered(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "a.sock"
    sources = [{"type": "unix", "path": str(path)}]
    audit = json.dumps(json.loads(log_line(7)) | {"kind": "audit"}).encode()
    options = {"drain_timeout_s": 0.3}
    with Collector(tmp_path / "collector", nats_url, sources, **options) as collector:
        send(path, encode_batch("one", 1, [*numbered(1), audit]))
        assert collector.daemon.stop() == 75, "nothing takes it"
        config = collector.directory / "collector.yaml"
        spool = collector.data_dir / "spool"
        (unit,) = command("spool", "ls", spool)
        assert (unit["kind"], unit["records"]) == ("logs", PER_BATCH)
        assert [u["kind"] for u in command("spool", "ls", f"{spool}-urgent")] == ["audit"]
        assert command("spool", "cat", spool) == [json.loads(line) for line in numbered(1)]
        segment = next(spool.glob("*.log"))
        size = segment.stat().st_size
        with segment.open("ab") as file:
            file.write(b"torn" * 10)
        (found,) = command("spool", "check", spool)
        assert not found["damaged"]
        assert str(segment) in {problem["file"] for problem in found["problems"]}
        (mended,) = command("spool", "repair", spool)
        assert (mended["units"], mended["damaged"]) == (1, False)
        assert segment.stat().st_size == size
        drain = [sys.executable, "-m", "penstock.collector", "spool", "drain"]
        drain += ["--config", str(config)]
        assert subprocess.run([*drain, "--timeout", "0.5"], check=False).returncode == 75
        with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
            assert subprocess.run(drain, check=False, timeout=60).returncode == 0
            assert stored(logd, PER_BATCH) == [f"number {n}" for n in range(PER_BATCH)]
            (summary,) = command("spool", "check", spool)
            assert not summary["damaged"]


def noise(count: int) -> list[str]:
    """Bodies that cannot be compressed below 60 bytes each, for a server's `max_payload`."""
    dice = random.Random(7)
    letters = "abcdefghijklmnop"  # no digits: some would be a card's number, and redacted
    return [f"number {number} {''.join(dice.choices(letters, k=120))}" for number in range(count)]


def noisy(texts: list[str]) -> list[bytes]:
    record = json.loads(log_line(0))
    return [json.dumps(record | {"body": body}).encode() for body in texts]


@pytest.mark.parametrize("how", ["the next server", "a reload"])
def test_batches_fit_a_servers_payload_also_when_it_takes_less_than_before(
    tmp_path: Path, how: str
) -> None:
    """The second: a server ends the connection of who sends too much, for good to nats-py."""
    port, path = free_port(), tmp_path / "a.sock"
    url, limit = f"nats://127.0.0.1:{port}", tmp_path / "nats.conf"
    sources, sent = [{"type": "unix", "path": str(path)}], noise(200)
    logd = Logd(tmp_path / "logd", url, STREAMS)
    collector = Collector(tmp_path / "collector", url, sources)

    def send_more() -> None:
        send(path, encode_batch("one", 2, noisy(sent[100:])))
        assert stored(logd, 200) == sent
        assert collector.account("unix")["quarantined"] == 0
        wait_until(lambda: collector.daemon.status()["health"] == "ready", what="ready")

    try:
        limit.write_text("max_payload: 1048576\n")
        with nats_server(tmp_path / "nats", port=port, config=limit) as server:
            logd.daemon.start()
            collector.daemon.start()
            send(path, encode_batch("one", 1, noisy(sent[:100])))
            stored(logd, 100)
            limit.write_text("max_payload: 4096\n")
            if how == "a reload":
                server.signal("reload")
                send_more()
        if how == "the next server":
            with nats_server(tmp_path / "nats", port=port, config=limit):
                wait_until(lambda: collector.daemon.status()["health"] == "ready")
                send_more()
    finally:
        for daemon in (collector.daemon, logd.daemon):
            daemon.close()
