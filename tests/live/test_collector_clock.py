"""The wall clock is set, back and forward: what waits or counts time goes by another clock."""

import json
import socket
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tests.support.collector import Collector, UnixSender, log_line
from tests.support.logd import Logd
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

STREAMS = [
    {"name": "logs", "subject": "telemetry.logs.>"},
    {"name": "metrics", "subject": "telemetry.metrics.>"},
]
JUMPS_S = (-7200, 7200, 0)
"""Each from the one before: two hours back, four forward, two back."""

RATE = 0.01
"""Records a second: a clock that is believed lets 144 through in four hours."""

TRANSFORMS = {
    "rare": {"type": "throttle", "inputs": ["rare_file"], "rate": RATE, "burst": 1},
    "once": {"type": "dedupe", "inputs": ["once_file"], "window_s": 3600, "key": "body"},
    "counted": {
        "type": "logs_to_metrics", "inputs": ["unix"], "interval_s": 0.2, "name": "records.seen",
    },
}  # fmt: skip


def records(logd: Logd, stream: str) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for value in logd.values(stream)]


def make(tmp_path: Path, nats_url: str, port: int) -> Collector:
    """A collector with everything that goes by time, and a clock that can be set."""

    def file(name: str) -> dict[str, Any]:
        path = str(tmp_path / f"{name}.log")
        return {"type": "file", "name": f"{name}_file", "include": [path], "service": name,
                "poll_ms": 10, "join_timeout_s": 0.2, "rotate_wait_s": 0.2}  # fmt: skip

    joined = file("joined") | {"multiline": {"continuation": r"^\s"}}
    sources: list[dict[str, Any]] = [
        {"type": "unix", "path": str(tmp_path / "s.sock")},
        {"type": "host_metrics", "interval_s": 0.3},
        {"type": "statsd", "udp": f"127.0.0.1:{port}", "flush_interval_s": 0.2},
        joined, file("rare"), file("once"),
    ]  # fmt: skip
    output = {"inputs": ["unix", "host_metrics", "statsd", "joined_file", *TRANSFORMS]}
    collector = Collector(
        tmp_path / "collector", nats_url, sources, transforms=TRANSFORMS, output=output
    )
    collector.daemon.program = (
        sys.executable, "-m", "tests.support.faulty_collector", str(tmp_path)
    )  # fmt: skip
    return collector


def test_nothing_stands_still_or_is_let_through_when_the_clock_is_set(
    tmp_path: Path, nats_url: str
) -> None:
    begun_s = perf_counter()
    port, clock = free_port(), tmp_path / "clock"
    collector = make(tmp_path, nats_url, port)

    def write(name: str, text: str) -> None:
        with (tmp_path / f"{name}.log").open("a") as file:
            file.write(text)

    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        collector,
        UnixSender(tmp_path / "s.sock", "a", lambda n: [log_line(n)]) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd,
    ):

        def bodies_of(service: str) -> list[str]:
            found = records(logd, "logs")
            return [r["body"] for r in found if r["resource"]["service.name"] == service]

        def counts() -> dict[str, int]:
            names = [record["name"] for record in records(logd, "metrics")]
            wanted = ("system.cpu.utilization", "hits", "records.seen")
            return {name: names.count(name) for name in wanted}

        def goes_on(before: dict[str, int]) -> bool:
            statsd.sendto(b"hits:1|c", ("127.0.0.1", port))
            return all(count > before[name] + 2 for name, count in counts().items())

        write("rare", "first\nsecond\n")
        write("once", "the same\n")
        wait_until(lambda: (bodies_of("rare"), bodies_of("once")) == (["first"], ["the same"]))
        for number, jump_s in enumerate(JUMPS_S):
            clock.with_suffix(".new").write_text(str(jump_s))
            clock.with_suffix(".new").replace(clock)
            acked, before = sender.acked, counts()
            write("rare", "more\n")
            write("once", "the same\n")
            write("joined", f"Error {number}\n  at a\n")
            wait_until(lambda n=acked: sender.acked > n + 20)  # type: ignore[misc]
            wait_until(lambda b=before: goes_on(b), what="intervals end")  # type: ignore[misc]
            event = f"Error {number}\n  at a"
            wait_until(lambda e=event: e in bodies_of("joined"))  # type: ignore[misc]
        sender.stop()
        wait_until(collector.is_idle)
        rare, once = collector.account("rare_file"), collector.account("once_file")
        allowed = 1 + int((perf_counter() - begun_s) * RATE)
        assert 1 <= rare["delivered"] <= allowed
        assert rare["delivered"] + rare["dropped"]["throttled"] == 5
        assert once["deduplicated"] == len(JUMPS_S)
        everyone = collector.daemon.status()["info"]["reconciliation"]
        assert not any(account["quarantined"] for account in everyone.values()), everyone
        wait_until(lambda: collector.daemon.status()["health"] == "ready", what="ready")
        times = [record["time_unix_nano"] for record in records(logd, "metrics")]
        assert max(times) - min(times) > 3 * 3600 * 10**9, "the clock did jump"
        for record in records(logd, "metrics"):
            assert record.get("start_time_unix_nano", 0) <= record["time_unix_nano"], record
