"""Each source against what really sends to it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fluent.sender import FluentSender

from tests.support.collector import Collector, bodies
from tests.support.logd import Logd
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.live

STREAMS = [
    {"name": "logs", "subject": "telemetry.logs.>"},
    {"name": "metrics", "subject": "telemetry.metrics.>"},
]


def lines_of(first: int, end: int) -> list[str]:
    return [f"line {number}" for number in range(first, end)]


def text_of(first: int, end: int) -> str:
    return "".join(f"{line}\n" for line in lines_of(first, end))


def file_source(pattern: Path, **more: object) -> dict[str, object]:
    return {
        "type": "file", "include": [str(pattern)], "service": "app", "poll_ms": 10,
        "rotate_wait_s": 0.2,
    } | more  # fmt: skip


def arrived(logd: Logd) -> list[str]:
    return bodies(logd.values("logs"))


def test_rotation_by_rename_and_by_copytruncate_while_running(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "app.log"
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [file_source(path)]) as collector,
    ):
        with path.open("w", buffering=1) as writer:
            writer.write(text_of(0, 100))
            wait_until(lambda: len(arrived(logd)) == 100)
            path.rename(tmp_path / "app.log.1")
            writer.write(text_of(100, 200))  # the writer still has the renamed file
            path.write_text(text_of(200, 300))
            writer.write("line 300")  # never ended by a newline
        wait_until(lambda: len(arrived(logd)) == 301)
        assert sorted(arrived(logd)) == sorted(lines_of(0, 301))

        path.write_text(text_of(301, 310))  # truncates the same inode, as copytruncate does
        wait_until(lambda: len(arrived(logd)) == 310)
        path.write_text("")
        path.write_text(text_of(310, 320))
        wait_until(lambda: len(arrived(logd)) == 320)
        assert arrived(logd)[301:] == lines_of(301, 320)
        wait_until(collector.is_idle)
        wait_until(lambda: "rotated_file_finished" in collector.daemon.log())


def test_rotation_while_stopped_and_lines_written_meanwhile(tmp_path: Path, nats_url: str) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.log")  # a name that is not UTF-8
    path.write_text(text_of(0, 50))
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        with Collector(tmp_path / "collector", nats_url, [file_source(path)]) as collector:
            wait_until(lambda: len(arrived(logd)) == 50)
            assert collector.daemon.stop() == 0
            with path.open("a") as file:
                file.write(text_of(50, 60))
            path.rename(tmp_path / "app.log.1")
            path.write_text(text_of(60, 70))
            collector.daemon.start()
            wait_until(lambda: len(arrived(logd)) >= 70)
            wait_until(collector.is_idle)
        assert sorted(arrived(logd)) == sorted(lines_of(0, 70))


def test_long_lines_are_cut_and_marked_and_json_lines_are_taken_apart(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "app.log"
    structured = {
        "event": "started",
        "level": "warning",
        "timestamp": "2026-01-02T03:04:05Z",
        "n": 1,
    }
    odd = '{"level":"loud","ts":"soon","n":1e400}\n'
    plain = "2026-01-02 03:04:06,5 ERROR lost\n"
    path.write_text("x" * 500 + "\n" + json.dumps(structured) + "\n" + odd + plain)
    source = file_source(path, max_line_bytes=100, detect=["severity", "time"])
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, [source]) as collector,
    ):
        wait_until(lambda: len(arrived(logd)) == 4)
        cut, taken, kept, found = (json.loads(value or b"") for value in logd.values("logs"))
        assert (found["severity_number"], found["time_unix_nano"]) == (
            17,
            1_767_323_046_500_000_000,
        )
        assert cut["body"] == "x" * 100
        assert cut["attributes"]["log.record.truncated"] is True
        assert taken["body"] == "started"
        assert taken["severity_number"] == 13
        assert taken["time_unix_nano"] == 1_767_323_045_000_000_000
        assert taken["attributes"]["n"] == 1
        own = {name: kept["attributes"][name] for name in ("level", "ts", "n")}
        assert own == {"level": "loud", "ts": "soon", "n": "1e400"}
        detail = collector.daemon.stage("source/file")["detail"]
        counted = ("lines_truncated", "levels_unknown", "timestamps_unreadable", "lines_repaired")
        assert [detail[name] for name in counted] == [1, 1, 2, 1]  # the cut line has no time


def test_fluent_logger_over_tcp_and_over_a_unix_socket(tmp_path: Path, nats_url: str) -> None:
    path, port = tmp_path / "fluent.sock", free_port()
    sources = [
        {"type": "forward", "listen": f"127.0.0.1:{port}"},
        {"type": "forward", "name": "local", "path": str(path), "service": "web"},
    ]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources),
    ):
        for options in ({"host": "127.0.0.1", "port": port}, {"host": f"unix://{path}"}):
            sender = FluentSender("shop", nanosecond_precision=True, **options)
            assert sender.emit("cart", {"message": "sold", "level": "error", "price": 3.5})
            sender.close()
        wait_until(lambda: len(arrived(logd)) == 2)
        records = [json.loads(value or b"") for value in logd.values("logs")]
        assert {record["resource"]["service.name"] for record in records} == {"shop", "web"}
        for record in records:
            assert record["body"] == "sold"
            assert record["severity_number"] == 17
            assert record["attributes"] == {"price": 3.5, "fluent.tag": "shop.cart"}


def test_standard_input_alone_ends_the_process_when_it_ends(tmp_path: Path, nats_url: str) -> None:
    with Logd(tmp_path / "logd", nats_url, STREAMS) as logd:
        collector = Collector(tmp_path / "c", nats_url, [{"type": "stdin", "service": "legacy"}])
        result = subprocess.run(
            [sys.executable, "-m", "penstock.collector", "--config", tmp_path / "c/collector.yaml"],
            input=text_of(0, 5000).encode() + b"last",
            capture_output=True,
            timeout=30 * PATIENCE,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert arrived(logd) == [*lines_of(0, 5000), "last"]
        assert not (collector.data_dir / "endpoints.json").exists()


def test_host_metrics_keep_to_the_metric_spec(tmp_path: Path, nats_url: str) -> None:
    sources = [{"type": "host_metrics", "interval_s": 0.2}]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "collector", nats_url, sources) as collector,
    ):

        def names() -> set[str]:
            return {json.loads(value or b"")["name"] for value in logd.values("metrics")}

        expected = {"system.cpu.time", "system.memory.usage", "system.network.io"}
        wait_until(lambda: names() >= expected, what="one of each")
        assert collector.account("host_metrics")["quarantined"] == 0


def run_collector(config: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.collector", "--config", str(config)],
        capture_output=True,
        timeout=30 * PATIENCE,
        check=False,
    )


def test_a_second_collector_on_one_data_directory_is_refused(tmp_path: Path, nats_url: str) -> None:
    with Collector(tmp_path / "c", nats_url, [{"type": "host_metrics"}]) as collector:
        config = collector.config | {"admin": "127.0.0.1:0"}
        (tmp_path / "second.yaml").write_text(yaml.safe_dump(config))
        result = run_collector(tmp_path / "second.yaml")
        assert result.returncode == 69
        assert b"in use by process" in result.stderr
        endpoints = json.loads((collector.data_dir / "endpoints.json").read_text())
        assert endpoints["admin"] == collector.daemon.admin


def test_a_wrong_configuration_exits_with_78(tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("data_dir: /tmp/x\nsources: [{type: unix, pth: /x}]\n")
    result = run_collector(config)
    assert result.returncode == 78
    assert b"sources.0.pth" in result.stderr
