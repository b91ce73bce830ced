"""Records that never reached the log: `penstock trace` asks real collectors for them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.deploy.cli import cli
from penstock.deploy.trace.report import edge_text
from penstock.service import ExitCode
from tests.support.collector import Collector, UnixSender
from tests.support.logd import Logd
from tests.support.router import FIRST_TIME_NS, publish
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

STREAMS = [{"name": "all", "subject": "telemetry.>"}]
TRANSFORMS: dict[str, Any] = {
    "thirds": {
        "type": "filter",
        "inputs": ["apps"],
        "where": 'kind == "span" || int(extract(body, "([0-9]+)")) % 3 > 0',
    },
    "tail": {
        "type": "tail_sample",
        "inputs": ["thirds"],
        "wait_s": 0.2,
        "rules": [{"where": 'status_code == "ERROR"'}],
    },
}
KEPT, DROPPED = f"{1:032x}", f"{2:032x}"


def record(kind: str, **fields: Any) -> bytes:
    about = {"schema": f"{kind}/1.0", "kind": kind, "time_unix_nano": FIRST_TIME_NS,
             "resource": {"service.name": "checkout"}}  # fmt: skip
    return json.dumps(about | fields).encode()


def record_id(number: int) -> str:
    return f"{number:032x}"


def log(number: int) -> bytes:
    return record("log", severity_number=9, body=f"order {number}", record_id=record_id(number))


def span(trace: str, status: str) -> bytes:
    times = {"end_time_unix_nano": FIRST_TIME_NS + 5}
    return record("span", trace_id=trace, span_id=trace[16:], name="GET /", status_code=status,
                  **times)  # fmt: skip


def batch(_number: int) -> list[bytes]:
    """Logs of which every third is dropped, two traces of which one is kept, and no record."""
    odd = record("other", record_id=record_id(99))
    return [*map(log, range(6)), span(KEPT, "ERROR"), span(DROPPED, "OK"), odd]


def asked(logd: Logd, collector: Collector, *arguments: str) -> tuple[int, dict[str, Any]]:
    admin = f"http://{collector.config['admin']}"
    base = ["trace", "--server", logd.fetch, "--url", admin, "--json"]
    done = CliRunner().invoke(cli, [*base, *arguments])
    assert done.exit_code in (0, 1, 69), done.output
    return done.exit_code, json.loads(done.stdout)


def test_collectors_say_what_became_of_records_that_are_in_no_stream(
    tmp_path: Path, nats_url: str
) -> None:
    path = tmp_path / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(path)}]
    with (
        Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
        Collector(tmp_path / "c", nats_url, sources, transforms=TRANSFORMS) as collector,
    ):
        with UnixSender(path, "s", batch, window=1) as sender:
            wait_until(lambda: sender.acked >= 1, what="an ack")
            sender.stop()

        def edges(*arguments: str) -> list[str]:
            code, answer = asked(logd, collector, *arguments)
            assert (code, answer["records"], answer["not_asked"]) == (ExitCode.FAILURE, [], {})
            return [edge_text(it) for it in answer["edges"]]

        def is_decided() -> bool:
            return bool(asked(logd, collector, "--trace-id", DROPPED)[1]["edges"])

        wait_until(is_decided, what="the decision on a trace")
        wait_until(collector.is_idle, what="idle")
        assert edges("--record-id", record_id(3))[0].endswith(
            "source apps, checkout: filtered by thirds: order 3"
        )
        assert edges("--trace-id", DROPPED)[0].endswith("sampled by tail: GET /")
        assert "in quarantine: " in edges("--record-id", record_id(99))[0]
        assert edges("--record-id", record_id(77)) == []
        _, answer = asked(logd, collector, f"--record-id={record_id(1)}", "--record-id", "nobody")
        assert (len(answer["records"]) > 0, answer["unknown_ids"]) == (True, ["nobody"])

        every = [f"--record-id={record_id(number)}" for number in range(2000)]
        together = edges(*every, f"--trace-id={DROPPED}", "--service", "checkout", "--from", "1h")
        assert {it.rpartition(": ")[2] for it in together} >= {"order 0", "order 3", "GET /"}

        _, answer = asked(logd, collector, "--record-id", record_id(1))
        assert answer["records"]
        assert {it["origin"]["source"] for it in answer["records"]} == {"apps"}
        assert answer["edges"] == []
        _, answer = asked(logd, collector, "--trace-id", KEPT)
        assert answer["records"]
        assert answer["edges"] == [], "what tail_sample held and kept was not dropped"

        publish(nats_url, "telemetry.logs.checkout", [log(3)])
        (edge, *_) = asked(logd, collector, "--record-id", record_id(3))[1]["edges"]
        assert edge_text(edge).startswith("a record with its record id is in the log: ")

        collector.daemon.kill()
        code, answer = asked(logd, collector, "--record-id", record_id(3))
        assert (code, list(answer["not_asked"])) == (
            ExitCode.UNAVAILABLE,
            [f"http://{collector.config['admin']}"],
        )


BURST = 500
BURSTS = f"""
import sys

from penstock import specs
from penstock.specs.emit.delivery.config import EmitterLimits

emitter = specs.setup("burst", limits=EmitterLimits(max_queue_records=50, max_batch_records=10))
for number in range({BURST}):
    specs.log().info(f"order {{number}} placed")
print(flush=True)
sys.stdin.readline()
emitter.flush(60)
print(flush=True)
sys.stdin.readline()
"""


def test_what_an_application_dropped_is_counted_by_reason(tmp_path: Path, nats_url: str) -> None:
    """Its queue overflows before there is a collector, so the queue itself is what drops."""
    path = tmp_path / "c.sock"
    sources = [{"type": "unix", "name": "apps", "path": str(path)}]
    burst = subprocess.Popen(
        [sys.executable, "-c", BURSTS],
        env={"PENSTOCK_SOCKET": str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert burst.stdin is not None
    assert burst.stdout is not None
    try:
        assert burst.stdout.readline() == "\n"
        with (
            Logd(tmp_path / "logd", nats_url, STREAMS) as logd,
            Collector(tmp_path / "c", nats_url, sources) as collector,
        ):
            burst.stdin.write("\n")
            burst.stdin.flush()
            assert burst.stdout.readline() == "\n"
            wait_until(collector.is_idle, what="idle")
            _, answer = asked(logd, collector, "--service", "burst", "--limit", "1000")
            numbers = [int(it["text"].split()[1]) for it in answer["records"]
                       if it["text"].startswith("order")]  # fmt: skip
            (counted,) = answer["applications"]
            assert counted["service"] == "burst"
            assert counted["dropped"] == {"queue_full": BURST - len(numbers)}
            assert (counted["queued"], counted["spooled"], counted["lost"]) == (0, 0, 0)
            assert 0 < len(numbers) == len({*numbers}) < BURST

            with UnixSender(path, "s", lambda _: [log(1)], window=1) as sender:
                wait_until(lambda: sender.acked >= 1, what="an ack")
            wait_until(collector.is_idle, what="idle")
            _, answer = asked(logd, collector, "--record-id", record_id(1))
            assert answer["records"]
            assert answer["applications"] == [], "no record of the question is missing"
            admin = f"http://{collector.config['admin']}"
            lost = ["trace", "--server", logd.fetch, "--url", admin, "--record-id", "lost"]
            done = CliRunner().invoke(cli, lost)
            assert done.exit_code == ExitCode.FAILURE
            dropped = BURST - len(numbers)
            assert done.stdout.splitlines()[-1] == (
                f"not known which: burst, which reports to {admin}, did not hand over"
                f" {dropped} dropped by the library (queue_full {dropped})"
            )
            _, answer = asked(logd, collector, "--service", "another", "--text", "order")
            assert answer["applications"] == []
    finally:
        burst.kill()
        burst.communicate()
